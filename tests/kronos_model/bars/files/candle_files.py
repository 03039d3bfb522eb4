"""Candle files and their expected results, the same for every reader."""

import json
from pathlib import Path
from typing import Any

from kronos_model.bars.files.options import ReadOptions

FOLDER = Path(__file__).parents[3] / "data" / "candle_files"

EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
"""By case, ``timestamps`` and ``columns``, or the ``error`` with the file's name instead of its path.

A case is named after its file, unless it has ``file``. It may have ``options``, ``instruments`` if they have
names, and ``dropped``.
"""

READABLE = [name for name, outcome in EXPECTED.items() if "error" not in outcome]


def file_of(name: str) -> Path:
    """The file of a case."""
    return FOLDER / EXPECTED[name].get("file", name)


def options_of(name: str) -> ReadOptions:
    """The options of a case."""
    return ReadOptions(**EXPECTED[name].get("options", {}))
