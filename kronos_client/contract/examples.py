"""Examples of jobs, their results and an error, published with the schemas. No model computed them."""

import json
from pathlib import Path
from typing import Any, Final

FILES: Final = Path(__file__).parent / "example_files"
JOB_ID: Final = "0f6f8a3e-2b1c-4d55-9a57-1c3f0d9b6a10"
"""The example job's id; the seeds in its result are made from it."""


def example_job() -> dict[str, Any]:
    """Two instruments: one with arrays and given future times, one with base64 columns."""
    return _read("forecast-job")


def example_result() -> dict[str, Any]:
    """What the job's result looks like."""
    return _read("forecast-result")


def example_finetune_job() -> dict[str, Any]:
    """Both stages from a published checkpoint, on files in the worker's data folder."""
    return _read("finetune-job")


def example_finetune_result() -> dict[str, Any]:
    """What the finetuning job's result looks like."""
    return _read("finetune-result")


def example_worker_status() -> dict[str, Any]:
    """A worker that computes one job."""
    return _read("worker-status")


def example_error() -> dict[str, Any]:
    """A job that was refused, as Celery's JSON backend stores it."""
    return _read("error")


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return content
