"""Reads the Lua scripts, which Redis runs atomically, from their files."""

import re
from functools import cache
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "lua"
INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


@cache
def read_script(name: str, folder: Path = SCRIPTS) -> str:
    """The text of ``name.lua``, each line ``-- include: other`` replaced by ``other.lua``.

    A script that is not in ``folder`` is read from this package's folder.
    """
    path = folder / f"{name}.lua"
    text = (path if path.exists() else SCRIPTS / path.name).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda line: read_script(line[1], folder), text)
