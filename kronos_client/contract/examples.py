"""Examples of jobs, their results and an error, published with the schemas. No model computed them."""

import json
from pathlib import Path
from typing import Any, Final

FILES: Final = Path(__file__).parent / "example_files"
JOB_ID: Final = "0f6f8a3e-2b1c-4d55-9a57-1c3f0d9b6a10"
"""The example job's id; the seeds in its result are made from it."""


def example(name: str) -> dict[str, Any]:
    """The example ``name``, such as ``forecast-job``, of ``FILES``."""
    content: dict[str, Any] = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return content
