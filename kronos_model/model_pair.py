"""A model and the tokenizer that belongs to it, loaded together."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kronos_model.checkpoints.names import bundled_names, did_you_mean, full_name
from kronos_model.checkpoints.source import local_origin, read_metadata
from kronos_model.errors import CheckpointError, CheckpointMismatch
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

DEFAULT_MODEL = "NeoQuasar/Kronos-small"
DEFAULT_MAX_CONTEXT = 512

# The publisher's table; config.json names neither the tokenizer nor the context.
_PUBLISHED = {
    "NeoQuasar/Kronos-mini": ("NeoQuasar/Kronos-Tokenizer-2k", 2048),
    "NeoQuasar/Kronos-small": ("NeoQuasar/Kronos-Tokenizer-base", 512),
    "NeoQuasar/Kronos-base": ("NeoQuasar/Kronos-Tokenizer-base", 512),
}


@dataclass(frozen=True, slots=True)
class CheckpointPair:
    """A model, a tokenizer that fits it, and the most bars that the model sees."""

    model: Kronos
    tokenizer: KronosTokenizer
    max_context: int


def load_pair(
    model: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    model_revision: str | None = None,
    tokenizer_revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> CheckpointPair:
    """Load a model and its tokenizer onto the CPU, both in eval mode.

    Args:
        model: a bundled name, a local folder, or a hub id; by default ``NeoQuasar/Kronos-small``.
        tokenizer: a bundled name, a local folder, or a hub id; by default the model's own: the published one,
            or the other half of a folder that holds ``model/`` and ``tokenizer/``.
        model_revision, tokenizer_revision: branch, tag or commit hash; for hub ids only.
        cache_dir, local_files_only, token: as in ``huggingface_hub.hf_hub_download``.

    Raises:
        CheckpointMismatch: their tokens differ in bits.
        CheckpointError: the model's tokenizer is not known, or a checkpoint cannot be used.
        CheckpointMissing, CheckpointUnreachable: a checkpoint is missing, or the hub does not answer.
    """
    model = DEFAULT_MODEL if model is None else model
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    access: dict[str, Any] = {"cache_dir": cache_dir, "local_files_only": local_files_only, "token": token}
    loaded_model = Kronos.from_pretrained(model, revision=model_revision, **access)
    loaded_tokenizer = KronosTokenizer.from_pretrained(tokenizer, revision=tokenizer_revision, **access)
    check_fit(loaded_model, loaded_tokenizer, str(model), str(tokenizer))
    return CheckpointPair(loaded_model, loaded_tokenizer, default_max_context(model))


def default_max_context(model: str | os.PathLike[str]) -> int:
    """The context that the model was trained with: by the publisher's table or ``metadata.json``, else 512.

    Raises CheckpointError if that file is damaged.
    """
    model = full_name(str(model))
    if model in _PUBLISHED:
        return _PUBLISHED[model][1]
    max_context = read_metadata(model).get("max_context")
    return max_context if isinstance(max_context, int) and max_context > 0 else DEFAULT_MAX_CONTEXT


def tokenizer_of(model: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The tokenizer that belongs to a model.

    Raises CheckpointError if it is not known, CheckpointMissing if there can be no such model.
    """
    model = full_name(model) if isinstance(model, str) else model
    if str(model) in _PUBLISHED:
        return _PUBLISHED[str(model)][0]
    if str(model) in bundled_names() or (Path(model) / KronosTokenizer.checkpoint_part).is_dir():
        return model
    local_origin(model)
    raise CheckpointError(
        f"The tokenizer of '{model}' is not known: name it (KRONOS_TOKENIZER, or MODEL=TOKENIZER in "
        "KRONOS_MODELS), or give a folder that holds model/ and tokenizer/" + did_you_mean(str(model))
    )


def check_fit(model: Kronos, tokenizer: KronosTokenizer, model_id: str, tokenizer_id: str) -> None:
    """Raise CheckpointMismatch if the tokens of the two differ in bits."""
    ours, theirs = ({key: half.config[key] for key in ("s1_bits", "s2_bits")} for half in (model, tokenizer))
    if ours == theirs:
        return
    raise CheckpointMismatch(
        f"Model '{model_id}' reads tokens of {ours['s1_bits']} + {ours['s2_bits']} bits, "
        f"but tokenizer '{tokenizer_id}' writes {theirs['s1_bits']} + {theirs['s2_bits']} bits. "
        "Use the tokenizer that the model was trained with.",
        details={"model": {"id": model_id, **ours}, "tokenizer": {"id": tokenizer_id, **theirs}},
    )
