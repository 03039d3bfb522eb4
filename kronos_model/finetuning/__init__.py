"""Training on your own candles: tokenizer, then predictor, from a checkpoint or from scratch.

From Python:

    from kronos_model.finetuning import finetune, load_config

    done = finetune(load_config(Path("finetune.yaml")), Path("output/my-run"))
    KronosPredictor(Kronos.from_pretrained(done.checkpoint), KronosTokenizer.from_pretrained(done.checkpoint))

A config can be checked without torch: what trains is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from kronos_model.finetuning.config import FinetuneConfig, load_config, parse_config

if TYPE_CHECKING:
    from kronos_model.finetuning.run import TrainingResult, finetune

__all__ = ["FinetuneConfig", "TrainingResult", "finetune", "load_config", "parse_config"]


def __getattr__(name: str) -> Any:
    if name not in ("TrainingResult", "finetune"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kronos_model.finetuning import run

    return getattr(run, name)
