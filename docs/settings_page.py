"""Write the page of settings from the code: ``python -m docs.settings_page`` (``make settings``)."""

from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from api_stub.settings import ApiSettings
from kronos_cli.settings import CliSettings
from kronos_client.settings import PREFIX, ClientSettings, ServiceSettings
from worker.settings import WorkerSettings

PAGE: Final = Path(__file__).parent / "reference" / "settings.md"

SECTIONS: Final[dict[str, type[ClientSettings]]] = {
    "Every process": ClientSettings,
    "Workers, HTTP API and commands": ServiceSettings,
    "Workers": WorkerSettings,
    "HTTP API": ApiSettings,
    "Flower": CliSettings,
}

HEAD: Final = """<!-- Written by `make settings`: change the code, not this page. -->

# Settings

Settings are environment variables. Each process reads them once, when it starts.

- Write `_FILE` behind a name, as in `KRONOS_REDIS_URL_FILE`, to name a file that holds the value, such as
  one of Docker's secrets.
- An empty variable counts as not set.
- A value that cannot be used ends the process with one line that names the variable.
- `./kronos check` shows variables that begin with `KRONOS_` and are no setting.
- Clients and workers must agree on the limits of a job. Give both the same values.
"""

BOUNDS: Final = {"ge": "≥", "gt": ">", "le": "≤"}
TYPES: Final = {int: "integer", float: "number", Path: "path", str: "text", SecretStr: "text"}


def page() -> str:
    """Return the page: a table for each kind of process, with the settings that it reads in addition."""
    tables = (
        f"\n## {title}\n\n| variable | value | default | meaning |\n| --- | --- | --- | --- |\n"
        + "".join(f"{row}\n" for row in _rows(settings))
        for title, settings in SECTIONS.items()
    )
    return HEAD + "".join(tables)


def _rows(settings: type[ClientSettings]) -> Iterator[str]:
    inherited = {name for parent in settings.__bases__ for name in getattr(parent, "model_fields", ())}
    for name, field in settings.model_fields.items():
        if name not in inherited:
            default = field.default
            text = default.get_secret_value() if isinstance(default, SecretStr) else default
            shown = "" if text is None else f"`{text}`"
            yield f"| `{PREFIX}{name.upper()}` | {_values(field)} | {shown} | {field.description} |"


def _values(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(bound, name)
    ]
    return " ".join([TYPES[kinds[0]], ", ".join(bounds)]).strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
