"""``kronos queues``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from redis import Redis
from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.settings import get_settings
from kronos_cli.terminal import duration, moment, show, simple_table
from kronos_client.contract.names import CELERY_PRIORITIES, DEAD_KEY
from kronos_client.core.job_facts import dead_messages
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import NO_PREFIX, QueueNames, foreign_bindings, num_misplaced, queue_states
from kronos_client.redis.queues import return_large as large_returned
from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_model.text import plural, printable

MAX_MESSAGE_CHARS = 120


@click.command()
@click.option("--dead", is_flag=True, help="Show the messages that no worker can read, newest first.")
@click.option("--purge-dead", is_flag=True, help="Delete the dead messages for good.")
@click.option("--return-large", is_flag=True, help="Move large jobs to where release 0.1.0 finds them.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queues(dead: bool, purge_dead: bool, return_large: bool, yes: bool, as_json: bool) -> None:
    """Show how many jobs wait, how fast they are taken, and dead messages.

    The wait is an estimate for a new job of normal priority, at the rate of busy workers.
    """
    if dead + purge_dead + return_large > 1:
        raise click.UsageError("--dead, --purge-dead and --return-large exclude each other: give one of them")
    settings = get_settings()
    with connect(settings.redis_url.get_secret_value()) as redis:
        if purge_dead:
            if not yes:
                click.confirm("Delete all dead messages for good?", abort=True, err=True)
            num_messages = delete_dead(redis)
            click.echo(json.dumps({"purged": num_messages}) if as_json else f"{num_messages} deleted.")
        elif return_large:
            num_jobs = large_returned(redis, settings.queue_names.all)
            show({"returned": num_jobs}, f"{num_jobs} large jobs returned.", as_json=as_json)
        elif dead:
            messages = dead_messages(redis)
            view = dead_table(messages) if messages else "There are no dead messages."
            show(messages, view, as_json=as_json)
        else:
            report = queues_report(redis, settings.max_queue_jobs, settings.queue_names)
            show(report, queues_table(report), as_json=as_json)


def queues_report(redis: Redis, max_queue_jobs: int, names: QueueNames = NO_PREFIX) -> dict[str, Any]:
    """Count the jobs and workers of each queue.

    ``delayed`` jobs wait for their time; ``due`` are those whose time has come. ``of_feeds`` are those of the
    waiting ones that feeds' due series make. ``estimated_wait_s`` is for a
    new job of normal priority, at the rate of busy workers. It is None if there is no rate.
    """
    states, workers = queue_states(redis, max_queue_jobs, names.all), live_workers(redis)
    queues = []
    for queue in names.all:
        state = states[queue]
        waiting = sum(state.lengths.values())
        before = waiting - state.lengths["low"]
        here = [worker for worker in workers if worker.queue == queue]
        num_ready = sum(worker.is_ready for worker in here)
        rate = jobs_per_s(queue, workers)
        wait_s = round(before / rate, 1) if rate else None
        row: dict[str, Any] = {"queue": queue, **state.lengths}
        row |= {"waiting": waiting, "delayed": state.delayed, "due": state.due, "oldest_s": state.oldest_s}
        row |= {"of_feeds": state.of_feeds, "limit": max_queue_jobs}
        row |= {"workers": len(here), "workers_ready": num_ready}
        row |= {"jobs_per_s": round(rate, 4), "estimated_wait_s": 0.0 if num_ready and not before else wait_s}
        queues.append(row)
    dead, misplaced = int(redis.llen(DEAD_KEY)), num_misplaced(redis)
    foreign = foreign_bindings(redis, names.all)
    return {"queues": queues, "dead": dead, "misplaced": misplaced, "foreign": foreign}


def queues_table(report: Mapping[str, Any]) -> RenderableType:
    """One row per queue, and below it the problems."""
    counts = (*CELERY_PRIORITIES, "waiting", "delayed")
    table = simple_table("queue", *counts, "workers", "jobs/s", "wait", texts=["queue"])
    remarks = []
    for queue in report["queues"]:
        name, waiting, workers = queue["queue"], queue["waiting"], queue["workers"]
        rate = f"{queue['jobs_per_s']:.2f}" if workers else ""
        wait = "" if queue["estimated_wait_s"] is None else duration(queue["estimated_wait_s"])
        lengths = (f"{queue[count]:,}" for count in counts)
        table.add_row(name, *lengths, f"{queue['workers_ready']}/{workers}", rate, wait)
        if waiting and not workers:
            jobs = "1 job waits" if waiting == 1 else f"{waiting:,} jobs wait"
            remarks.append(f"{name}: {jobs}, and no worker of this queue is alive; start one")
        if waiting - queue["of_feeds"] + queue["delayed"] >= queue["limit"]:
            remarks.append(f"{name}: full at {queue['limit']:,} (KRONOS_MAX_QUEUE_JOBS); add workers")
    if report["dead"]:
        messages = plural(report["dead"], "message")
        remarks.append(f"{messages} that no worker can read; run kronos queues --dead")
    if number := report["misplaced"]:
        jobs = plural(number, "job")
        remarks.append(f"celery: {jobs} in Celery's default queue, which no worker reads; send with a queue")
    for binding in report["foreign"]:
        remarks.append(f"{binding}, by another app; set KRONOS_QUEUE_PREFIX if it is not a sender of jobs")
    return Group(table, *(Text(remark, style="yellow") for remark in remarks))


def dead_table(messages: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Two rows per message. Its text is never markup."""
    table = simple_table("when", "what", texts=["when"], names=["what"], show_header=False)
    for message in messages:
        what = f"{message.get('reason')} (queue {message.get('queue')}, id {message.get('id')})"
        table.add_row(moment(message.get("at")), Text(printable(what)))
        excerpt = str(message.get("message", ""))[:MAX_MESSAGE_CHARS]
        table.add_row("", Text(printable(excerpt)), style="dim")
    return table


def delete_dead(redis: Redis) -> int:
    """Delete the dead messages, and return their number."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.llen(DEAD_KEY)
        pipe.delete(DEAD_KEY)
        return int(pipe.execute()[0])
