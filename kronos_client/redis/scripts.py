"""Lua scripts, which Redis runs as a whole, as files beside the modules that run them."""

import re
from functools import cache
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "lua"
INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


@cache
def read_script(name: str, folder: Path = SCRIPTS) -> str:
    """The text of ``name.lua``, each line ``-- include: other`` replaced by ``other.lua``.

    What is not in the folder is looked for among the scripts of this package.
    """
    path = folder / f"{name}.lua"
    text = (path if path.exists() else SCRIPTS / path.name).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda line: read_script(line[1], folder), text)
