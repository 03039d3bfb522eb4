"""Options and types of options that several commands share."""

from pathlib import Path
from typing import Final

import click
from pydantic import TypeAdapter, ValidationError

from kronos_client.contract import forecast as contract

PATH: Final = click.Path(path_type=Path)
COUNT: Final = click.IntRange(min=1)
POSITIVE: Final = click.FloatRange(min=0, min_open=True)

lookback_option = click.option(
    "--lookback", type=COUNT, help="Last bars used. Default: as in training, else 400."
)
pred_len_option = click.option(
    "--pred-len", default=48, show_default=True, type=COUNT, help="Bars to forecast."
)
priority_option = click.option(
    "--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True
)
device_option = click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE.")
model_option = click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
tokenizer_option = click.option(
    "--tokenizer", help="Hub id, folder or bundled name; overrides KRONOS_TOKENIZER."
)


def levels(text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1, separated by commas. May be empty."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers like 0.1,0.5,0.9") from None
    if any(not 0 < level < 1 for level in found):
        raise ValueError(f"{text!r}: quantiles lie between 0 and 1")
    return found


def device(text: str) -> str:
    """A device, as jobs name it."""
    try:
        checked: str = TypeAdapter(contract.Device).validate_python(text)
    except ValidationError:
        raise ValueError(f"{text!r} is none of auto, cpu, cuda, cuda:N and mps") from None
    return checked
