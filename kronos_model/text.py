"""Text from outside, made safe for messages, logs and terminals. No torch."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

MAX_EXCERPT_CHARS: Final = 60
MAX_INTEGER: Final = 10**18

_PATH: Final = re.compile(
    r"""
    (?<=') / [^'\n]* (?=')           # between quotes, with any content
    | (?<=") / [^"\n]* (?=")
    | (?<![^\s(\[{=,;]) / [^\s'",;()<>]+   # by itself; not the rest of a URL, hub id or relative path
    """,
    re.VERBOSE,
)


def cut(text: str, max_chars: int) -> str:
    """Return at most ``max_chars`` characters; the last is ``…`` if some were left out."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def printable(text: str, instead: str = "�") -> str:
    """Replace every character that could steer a terminal or break a log line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else instead for char in text)


def escaped(text: str, max_chars: int) -> str:
    """Write unprintable characters as escapes, and cut the text."""
    start = text[: max_chars + 1]
    return cut("".join(char if char.isprintable() else _escape(char) for char in start), max_chars)


def plural(number: int, noun: str) -> str:
    """A number and its noun, such as ``1 window`` and ``2 windows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Replace every run of white space by one space."""
    return " ".join(text.split())


def dotted(parts: Iterable[object], max_part_chars: int = MAX_EXCERPT_CHARS) -> str:
    """Join the parts of a field's path; each is cut and escaped, as keys may come from outside."""
    return ".".join(_escape(str(part)[:max_part_chars]) for part in parts)


def excerpt(value: Any) -> str:
    """Show a JSON value in a message: short, escaped, without the content of a container."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return ascii(value[:MAX_EXCERPT_CHARS]) + ("…" if len(value) > MAX_EXCERPT_CHARS else "")
    if isinstance(value, int):
        return str(value) if abs(value) < MAX_INTEGER else "a huge integer"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def without_paths(content: Any) -> Any:
    """Shorten absolute paths in text or JSON to the name at their end: ``…/config.json``.

    Clients do not need to know a worker's folders; the worker's log has the whole paths.
    """
    if isinstance(content, str):
        return _PATH.sub(_last_name, content)
    if isinstance(content, dict):
        return {without_paths(name): without_paths(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_paths(value) for value in content]
    return content


def _escape(text: str) -> str:
    return ascii(text)[1:-1]


def _last_name(path: re.Match[str]) -> str:
    text = path[0].rstrip("/")
    name = text.rstrip(".:!?")  # less the end of the sentence
    return f"…/{name.rpartition('/')[2]}{text[len(name) :]}" if text else path[0]
