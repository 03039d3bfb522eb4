"""Candle files and their expected results, the same for the Python readers and the web page."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "data" / "candle_files"

EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
"""By file, ``timestamps`` and ``columns``, or the ``error`` with the file's name instead of its path."""

READABLE = [name for name, outcome in EXPECTED.items() if "error" not in outcome]
