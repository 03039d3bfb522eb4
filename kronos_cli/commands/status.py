"""``kronos status``."""

import json
import time

import click
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from kronos_cli.one_line_errors import error_as_json, message_of
from kronos_cli.settings import get_settings
from kronos_cli.tables.status import status_table
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers

NO_WORKER = "no worker is alive on this Redis; start one with: kronos worker"


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; with --json print one line each time.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
    metavar="SECONDS", help="Time between two reads with --watch.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all fields as a JSON list.")
def status(watch: bool, interval_s: float, as_json: bool) -> None:
    """Show all live workers, also busy and loading ones.

    Exit status: 0, or 1 if no worker is alive. With --watch it is 0, and the command continues during an
    outage of Redis.
    """
    console = Console()
    with connect(get_settings().redis_url.get_secret_value()) as redis:
        if watch:
            try:
                if as_json or not console.is_terminal:
                    _watch_by_lines(redis, console, interval_s, as_json=as_json)
                else:
                    _watch_live(redis, console, interval_s)
            except KeyboardInterrupt:
                return
        workers = live_workers(redis)
    if as_json:
        click.echo(json.dumps([worker.as_json() for worker in workers], indent=2))
        raise SystemExit(0 if workers else 1)
    if not workers:
        raise click.ClickException(NO_WORKER)
    console.print(status_table(workers))


def _watch_by_lines(redis: Redis, console: Console, interval_s: float, *, as_json: bool) -> None:
    """Print the status until KeyboardInterrupt, also during an outage of Redis."""
    while True:
        try:
            workers = live_workers(redis)
        except RedisError as error:
            click.echo(json.dumps({"error": error_as_json(error)}) if as_json else message_of(error))
        else:
            if as_json:
                click.echo(json.dumps([worker.as_json() for worker in workers]))
            else:
                console.print(status_table(workers) if workers else NO_WORKER)
        time.sleep(interval_s)


def _watch_live(redis: Redis, console: Console, interval_s: float) -> None:
    """Draw the status on the whole screen until KeyboardInterrupt."""
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
