"""The command line of a benchmark, from its defaults."""

import argparse
from typing import Any


def options(text: str | None, **defaults: Any) -> argparse.Namespace:
    """Options of these names and types; a list takes one value or more. ``text`` describes them."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in defaults.items():
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        number = {"nargs": "+"} if several else {}
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, **number)
    return parser.parse_args()
