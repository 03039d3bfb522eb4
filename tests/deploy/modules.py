"""The Terraform modules of deploy/terraform as data."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import hcl2

ROOT: Final = Path(__file__).resolve().parents[2]
TERRAFORM: Final = ROOT / "deploy" / "terraform"
MODULES: Final = ("machine", "google", "google/pool", "aws", "aws/pool")


def _plain(value: Any) -> Any:
    """python-hcl2 keeps quotes, and marks blocks."""
    if isinstance(value, dict):
        return {key.strip('"'): _plain(item) for key, item in value.items() if not key.endswith("comments__")}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@cache
def parsed(path: Path) -> dict[str, Any]:
    """One file's blocks; a block has the key ``__is_block__``."""
    content: dict[str, Any] = _plain(hcl2.loads(path.read_text()))
    return content


def resources(module: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each resource and data source of a module: kind and type, name, content."""
    for path in sorted((TERRAFORM / module).glob("*.tf")):
        for kind in ("resource", "data"):
            for block in parsed(path).get(kind, []):
                ((type_, named),) = ((key, value) for key, value in block.items() if key != "__is_block__")
                ((name, content),) = ((key, value) for key, value in named.items() if key != "__is_block__")
                yield f"{kind}.{type_}", name, content
