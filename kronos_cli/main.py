"""The command line: one module of ``kronos_cli.commands`` for each command, imported when it runs."""

from importlib import import_module
from typing import Final

import click

from kronos_cli.one_line_errors import OneLineErrors

COMMANDS: Final = {
    "api": "Serve the HTTP API and its web page.",
    "check": "Look for what is wrong with this installation, and say what to do about it.",
    "completion": "Print the script by which a shell completes commands and options.",
    "demo": "Make one forecast, from an empty machine to a chart: Redis, worker, job, result.",
    "devices": "Show what each device would resolve to on this machine.",
    "finetune": "Train a model on your own candles: here, or as a job.",
    "flower": "Run Flower, the web page on queues and jobs.",
    "forecast": "Forecast candle files: CSV or Parquet, folders of them, or patterns.",
    "healthcheck": "Exit with 0 when a worker on this host is ready.",
    "models": "Show the registered models, which forecast jobs may name.",
    "queues": "Show what waits in the queues, by priority, how fast it is worked off, and dead messages.",
    "status": "Show the workers that are alive, busy and loading ones included.",
    "up": "Run Redis, workers, the API with its page, and Flower on this machine.",
    "worker": "Run a worker: load the model once, take jobs from the queue of its device.",
}
"""What ``--help`` and shells show without importing the commands."""


class Commands(OneLineErrors):
    """A group that imports a command when it is called, so that none pays for another."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Replace the entry of the list by the command itself."""
        name, entry, rest = super().resolve_command(ctx, args)
        if name is None or entry is None:
            return name, entry, rest
        command: click.Command = getattr(import_module(f"kronos_cli.commands.{name}"), name)
        return name, command, rest


@click.group(
    cls=Commands,
    commands={name: click.Command(name, short_help=text) for name, text in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Kronos forecasts as jobs on Redis.

    Settings are environment variables that begin with KRONOS_; every command reads KRONOS_REDIS_URL.
    """
