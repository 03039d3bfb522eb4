"""The command line. Each command is a module of ``kronos_cli.commands``, imported when it runs."""

from importlib import import_module

import click

from kronos_cli.command_list import COMMANDS
from kronos_cli.one_line_errors import OneLineErrors


class Commands(OneLineErrors):
    """A group that imports only the command that is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Replace the listed entry by the command itself."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            ctx.invoked_subcommand = name  # for the message about a package that the import misses
            command = getattr(import_module(f"kronos_cli.commands.{name}"), name)
        return name, command, rest


@click.group(
    cls=Commands,
    commands={name: click.Command(name, short_help=text) for name, text in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Kronos forecasts as jobs on Redis.

    Settings are environment variables that begin with KRONOS_. Every command reads KRONOS_REDIS_URL.
    """
