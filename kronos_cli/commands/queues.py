"""``kronos queues``."""

import json

import click

from kronos_cli.settings import get_settings
from kronos_cli.tables import queues as queues_table
from kronos_cli.tables.parts import show
from kronos_client.core.job_facts import dead_messages
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import return_large as large_returned


@click.command()
@click.option("--dead", is_flag=True, help="Show the messages that no worker can read, newest first.")
@click.option("--purge-dead", is_flag=True, help="Delete the dead messages for good.")
@click.option("--return-large", is_flag=True, help="Move large jobs to where release 0.1.0 finds them.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queues(dead: bool, purge_dead: bool, return_large: bool, yes: bool, as_json: bool) -> None:
    """Show how many jobs wait, how fast they are taken, and dead messages.

    The wait is an estimate for a new job of normal priority, at the rate of the last minute.
    """
    if dead + purge_dead + return_large > 1:
        raise click.UsageError("--dead, --purge-dead and --return-large exclude each other: give one of them")
    settings = get_settings()
    with connect(settings.redis_url.get_secret_value()) as redis:
        if purge_dead:
            if not yes:
                click.confirm("Delete all dead messages for good?", abort=True, err=True)
            num_messages = queues_table.purge_dead(redis)
            click.echo(json.dumps({"purged": num_messages}) if as_json else f"{num_messages} deleted.")
        elif return_large:
            num_jobs = large_returned(redis, settings.queue_names.all)
            show({"returned": num_jobs}, f"{num_jobs} large jobs returned.", as_json=as_json)
        elif dead:
            messages = dead_messages(redis)
            view = queues_table.dead_table(messages) if messages else "There are no dead messages."
            show(messages, view, as_json=as_json)
        else:
            report = queues_table.queues_report(redis, settings.max_queue_jobs, settings.queue_names)
            show(report, queues_table.queues_table(report), as_json=as_json)
