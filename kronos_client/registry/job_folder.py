"""Where the files of a finetuning job or backtest lie, below the model folder."""

import hashlib
from pathlib import Path
from typing import Final

RUNS: Final = ".runs"


def job_folder(model_folder: Path, job_id: str) -> Path:
    """A job's folder. Any text may be an id, so the name is a hash of it."""
    return model_folder / RUNS / hashlib.sha256(job_id.encode()).hexdigest()[:32]


def output_folder(model_folder: Path, job_id: str) -> Path:
    """What the job itself writes: training's output, or a backtest's forecasts and report."""
    return job_folder(model_folder, job_id) / "run"
