"""Paths of a worker's machine, which messages for whoever sent a job do not name."""

import re
from typing import Any, Final

_PATH: Final = re.compile(
    r"""
    (?<=') / [^'\n]* (?=')           # between quotes, with whatever it holds
    | (?<=") / [^"\n]* (?=")
    | (?<![^\s(\[{=,;]) / [^\s'",;()<>]+   # by itself; not the rest of a URL, hub id or relative path
    """,
    re.VERBOSE,
)


def without_paths(content: Any) -> Any:
    """Text, or what JSON holds, with absolute paths cut down to the name that they end in: ``…/config.json``.

    The worker's own log has them whole.
    """
    if isinstance(content, str):
        return _PATH.sub(_last_name, content)
    if isinstance(content, dict):
        return {without_paths(name): without_paths(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_paths(value) for value in content]
    return content


def _last_name(path: re.Match[str]) -> str:
    text = path[0].rstrip("/")
    end = text[len(text.rstrip(".:!?")) :]  # of the sentence
    return f"…/{text.rstrip('.:!?').rpartition('/')[2]}{end}" if text else path[0]
