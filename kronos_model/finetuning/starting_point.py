"""The start of a run: loaded checkpoints, or modules from scratch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.finetuning.config import FinetuneConfig, StartConfig
from kronos_model.finetuning.shapes import PredictorShape, TokenizerShape
from kronos_model.model import Kronos
from kronos_model.model_pair import check_fit, default_max_context, load_pair, tokenizer_of
from kronos_model.seeds import seed_from_text
from kronos_model.tokenizer import KronosTokenizer

FROM_SCRATCH = "from scratch"


@dataclass(frozen=True)
class StartingPoint:
    """Model and tokenizer to train, and their origin.

    ``parent`` has the keys model, revision, tokenizer, tokenizer_revision, as in a registered model.
    """

    model: Kronos
    tokenizer: KronosTokenizer
    max_context: int
    parent: dict[str, str | None]


def starting_point(config: FinetuneConfig) -> StartingPoint:
    """Load each named checkpoint, and make each module given by its shape, on the CPU.

    The same seed makes the same modules. Raises CheckpointError and its subclasses.
    """
    start = config.start
    with _drawing(seed_from_text(f"{config.seed}:start")):
        tokenizer = _tokenizer(start)
        model = (
            Kronos(**start.model.model_dump())
            if isinstance(start.model, PredictorShape)
            else Kronos.from_pretrained(start.model, revision=start.model_revision)
        )
    check_fit(model, tokenizer, _name(model), _name(tokenizer))
    return StartingPoint(
        model,
        tokenizer,
        config.max_context or _max_context(config),
        parent={
            "model": _name(model),
            "revision": _revision(model),
            "tokenizer": _name(tokenizer),
            "tokenizer_revision": _revision(tokenizer),
        },
    )


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Draw from this seed on the CPU. ``torch.random.fork_rng`` is not used, since it queries GPUs."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def with_revisions(config: FinetuneConfig, parent: Mapping[str, str | None]) -> FinetuneConfig:
    """The config with the commits of ``parent`` in place of branches, which may move."""
    start = config.start.model_copy(
        update={
            field: parent[key]
            for field, key in (("model_revision", "revision"), ("tokenizer_revision", "tokenizer_revision"))
            if parent[key] is not None
        }
    )
    return config.model_copy(update={"start": start})


def untouched_pair(start: StartConfig) -> tuple[Kronos, KronosTokenizer] | None:
    """The pair before training, for a comparison; None if training starts from scratch."""
    if isinstance(start.model, PredictorShape) or isinstance(start.tokenizer, TokenizerShape):
        return None
    pair = load_pair(
        start.model,
        start.tokenizer,
        model_revision=start.model_revision,
        tokenizer_revision=start.tokenizer_revision,
    )
    return pair.model, pair.tokenizer


def _tokenizer(start: StartConfig) -> KronosTokenizer:
    if isinstance(start.tokenizer, TokenizerShape):
        return KronosTokenizer(**start.tokenizer.model_dump())
    name: Any = start.tokenizer
    if name is None:
        assert isinstance(start.model, str), "the config requires a tokenizer for a shape"
        name = tokenizer_of(start.model)
    return KronosTokenizer.from_pretrained(name, revision=start.tokenizer_revision)


def _max_context(config: FinetuneConfig) -> int:
    """A model from scratch sees as many bars as its windows have."""
    if isinstance(config.start.model, PredictorShape):
        return config.data.window
    return default_max_context(config.start.model)


def _name(module: PretrainedModule) -> str:
    return FROM_SCRATCH if module.checkpoint is None else module.checkpoint.id


def _revision(module: PretrainedModule) -> str | None:
    return None if module.checkpoint is None else module.checkpoint.revision
