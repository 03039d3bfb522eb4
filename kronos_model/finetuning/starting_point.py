"""The start of a run: loaded checkpoints, or modules from scratch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.finetuning.config import FinetuneConfig, StartConfig
from kronos_model.finetuning.config_parts import PredictorShape, TokenizerShape
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
    max_context = config.max_context
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_from_text(f"{config.seed}:start"))
        tokenizer = _tokenizer(start)
        if isinstance(start.model, PredictorShape):
            model = Kronos(**start.model.model_dump())
            max_context = max_context or config.data.window
        else:
            model = Kronos.from_pretrained(start.model, revision=start.model_revision)
            max_context = max_context or default_max_context(start.model)
    (model_id, revision), (tokenizer_id, tokenizer_revision) = _origin(model), _origin(tokenizer)
    check_fit(model, tokenizer, model_id, tokenizer_id)
    parent = {
        "model": model_id,
        "revision": revision,
        "tokenizer": tokenizer_id,
        "tokenizer_revision": tokenizer_revision,
    }
    return StartingPoint(model, tokenizer, max_context, parent)


def with_revisions(config: FinetuneConfig, parent: Mapping[str, str | None]) -> FinetuneConfig:
    """The config with the commits of ``parent`` in place of branches, which may move."""
    found = {"model_revision": parent["revision"], "tokenizer_revision": parent["tokenizer_revision"]}
    commits = {field: commit for field, commit in found.items() if commit is not None}
    return config.model_copy(update={"start": config.start.model_copy(update=commits)})


def untouched_pair(start: StartConfig) -> tuple[Kronos, KronosTokenizer] | None:
    """The pair before training, for a comparison; None if training starts from scratch."""
    if isinstance(start.model, PredictorShape) or isinstance(start.tokenizer, TokenizerShape):
        return None
    pair = load_pair(**start.model_dump())
    return pair.model, pair.tokenizer


def _tokenizer(start: StartConfig) -> KronosTokenizer:
    if isinstance(start.tokenizer, TokenizerShape):
        return KronosTokenizer(**start.tokenizer.model_dump())
    name: Any = start.tokenizer
    if name is None:
        assert isinstance(start.model, str), "the config requires a tokenizer for a shape"
        name = tokenizer_of(start.model)
    return KronosTokenizer.from_pretrained(name, revision=start.tokenizer_revision)


def _origin(module: PretrainedModule) -> tuple[str, str | None]:
    """Name and revision."""
    source = module.checkpoint
    return (FROM_SCRATCH, None) if source is None else (source.id, source.revision)
