"""The types of options that several commands share."""

from pathlib import Path
from typing import Any, Final

import click
from pydantic import TypeAdapter, ValidationError

from kronos_client.contract import forecast as contract

PATH: Final = click.Path(path_type=Path)
COUNT: Final = click.IntRange(min=1)
POSITIVE: Final = click.FloatRange(min=0, min_open=True)
PRIORITY: Final = click.Choice(["high", "normal", "low"])


class Levels(click.ParamType[tuple[float, ...]]):
    """Numbers between 0 and 1, separated by commas. May be empty."""

    name = "levels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(float(text) for text in value.split(",") if text.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers like 0.1,0.5,0.9", param, ctx)
        if any(not 0 < level < 1 for level in levels):
            self.fail(f"{value!r}: quantiles lie between 0 and 1", param, ctx)
        return levels


class Device(click.ParamType[str]):
    """A device, as jobs name it."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            device: str = TypeAdapter(contract.Device).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:N and mps", param, ctx)
        return device
