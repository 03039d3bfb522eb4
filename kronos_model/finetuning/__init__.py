"""Training on your own candles: tokenizer, then predictor, from a checkpoint or from scratch.

From Python:

    from kronos_model.finetuning import finetune, load_config

    done = finetune(load_config(Path("finetune.yaml")), Path("output/my-run"))
    KronosPredictor(Kronos.from_pretrained(done.checkpoint), KronosTokenizer.from_pretrained(done.checkpoint))

Names are imported on first use, so a config can be checked without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronos_model.finetuning.config import FinetuneConfig, parse_config
    from kronos_model.finetuning.config_file import load_config
    from kronos_model.finetuning.run import TrainingResult, finetune

_EXPORTS = {
    "FinetuneConfig": "config",
    "TrainingResult": "run",
    "finetune": "run",
    "load_config": "config_file",
    "parse_config": "config",
}

__all__ = ["FinetuneConfig", "TrainingResult", "finetune", "load_config", "parse_config"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
