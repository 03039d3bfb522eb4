"""``kronos status``."""

import json
import time
from typing import TYPE_CHECKING

import click

from kronos_cli.commands.one_line_errors import error_as_json, message_of
from kronos_cli.settings import get_settings

if TYPE_CHECKING:
    from kronos_client.contract.worker_status import AnyWorkerStatus

NO_WORKER = "no worker is alive on this Redis; start one with: kronos worker"


@click.command()
@click.option("--watch", is_flag=True, help="Show it anew until Ctrl-C; with --json a line each time.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
    metavar="SECONDS", help="How often --watch looks.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The whole announcements, as a JSON list.")
def status(watch: bool, interval_s: float, as_json: bool) -> None:
    """Show the workers that are alive, busy and loading ones included.

    Exit status: 0, or 1 where no worker is alive. With --watch it is 0, and goes on while Redis is away.
    """
    if watch:
        try:
            _watch(interval_s, as_json=as_json)
        except KeyboardInterrupt:
            return  # which is how it ends
    workers = announced_workers()
    if as_json:
        click.echo(json.dumps([worker.as_json() for worker in workers], indent=2))
        raise SystemExit(0 if workers else 1)
    from rich.console import Console

    from kronos_cli.tables.status import status_table

    if not workers:
        raise click.ClickException(NO_WORKER)
    Console().print(status_table(workers))


def announced_workers() -> "list[AnyWorkerStatus]":
    """The status of every live worker."""
    from kronos_client.redis.connection import connect
    from kronos_client.redis.routing import live_workers

    with connect(get_settings().redis_url.get_secret_value()) as redis:
        return live_workers(redis)


def _watch(interval_s: float, *, as_json: bool) -> None:
    """Until KeyboardInterrupt, also while Redis is away."""
    from redis.exceptions import RedisError
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from kronos_cli.tables.status import status_table
    from kronos_client.redis.connection import connect
    from kronos_client.redis.routing import live_workers

    console = Console()
    with connect(get_settings().redis_url.get_secret_value()) as redis:
        if as_json or not console.is_terminal:
            while True:
                try:
                    workers = live_workers(redis)
                except RedisError as error:
                    told = message_of(error)
                    click.echo(json.dumps({"error": error_as_json(error)}) if as_json else told)
                else:
                    if as_json:
                        click.echo(json.dumps([worker.as_json() for worker in workers]))
                    else:
                        console.print(status_table(workers) if workers else NO_WORKER)
                time.sleep(interval_s)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                view: RenderableType
                try:
                    workers = live_workers(redis)
                    view = status_table(workers) if workers else Text(NO_WORKER)
                except RedisError as error:
                    view = Text(message_of(error), style="red")
                live.update(view, refresh=True)
                time.sleep(interval_s)
