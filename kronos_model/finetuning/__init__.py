"""Training on your own candles: tokenizer, then predictor, from a checkpoint or from scratch.

From Python:

    from kronos_model.finetuning import finetune, load_config

    done = finetune(load_config(Path("finetune.yaml")), Path("output/my-run"))
    KronosPredictor(Kronos.from_pretrained(done.checkpoint), KronosTokenizer.from_pretrained(done.checkpoint))

A config can be checked without torch: what trains is imported on first use.

__main__.py          the command line; launching.py: how it is started, with torchrun for several processes
config.py            the config, its parts in config_parts.py
run.py               a whole run
group.py             the processes that train together
data.py              reading the candles; split.py: cutting them into training, validation and test
starting_point.py    the model and tokenizer to begin with
stages/              training one of the two
final_evaluation.py  the comparison after it; advice.py: warnings before training, and what to try
                     if the model is not better
run_folder.py        the run's files; reporting.py: its events
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
