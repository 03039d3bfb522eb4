"""``kronos status``."""

import json
import time
from contextlib import nullcontext

import click
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from kronos_cli.one_line_errors import error_as_json
from kronos_cli.settings import get_settings
from kronos_cli.tables.parts import show
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
    with connect(get_settings().redis_url.get_secret_value()) as redis:
        if watch:
            try:
                _watch(redis, interval_s, as_json=as_json)
            except KeyboardInterrupt:
                return
        workers = live_workers(redis)
    if not workers and not as_json:
        raise click.ClickException(NO_WORKER)
    show([worker.as_json() for worker in workers], status_table(workers), as_json=as_json)
    raise SystemExit(0 if workers else 1)


def _watch(redis: Redis, interval_s: float, *, as_json: bool) -> None:
    """Show the status until KeyboardInterrupt, also during an outage of Redis. A terminal is redrawn."""
    console = Console()
    is_redrawn = console.is_terminal and not as_json
    live = Live(console=console, screen=True, auto_refresh=False) if is_redrawn else None
    with live or nullcontext():
        while True:
            view: RenderableType
            try:
                workers = live_workers(redis)
                data: object = [worker.as_json() for worker in workers]
                view = status_table(workers) if workers else Text(NO_WORKER)
            except RedisError as error:
                data = {"error": error_as_json(error)}
                view = Text(data["error"]["message"], style="red")
            if live is not None:
                live.update(view, refresh=True)
            elif as_json:
                click.echo(json.dumps(data))
            else:
                console.print(view, soft_wrap=isinstance(view, Text))
            time.sleep(interval_s)
