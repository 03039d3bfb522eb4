"""Options that several commands share, and types of options."""

from pathlib import Path
from typing import Final

import click

from kronos_client.core.forecast_request import SAMPLE_COUNT

PATH: Final = click.Path(path_type=Path)
COUNT: Final = click.IntRange(min=1)
PRIORITY: Final = click.Choice(["high", "normal", "low"])

device = click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE.")
model = click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
tokenizer = click.option("--tokenizer", help="Hub id, folder or bundled name; overrides KRONOS_TOKENIZER.")
lookback = click.option(
    "--lookback",
    type=COUNT,
    help="Number of last bars to use.  [default: as in training, else what the context leaves]",
)
samples = click.option(
    "--samples", "sample_count", type=COUNT, help=f"Sample paths.  [default: {SAMPLE_COUNT}, or the limit]"
)
pred_len = click.option("--pred-len", default=48, show_default=True, type=COUNT, help="Bars to forecast.")
priority = click.option("--priority", type=PRIORITY, default="normal", show_default=True)
