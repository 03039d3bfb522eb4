"""Queues and dead messages as tables and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.tables.parts import duration, moment, simple_table
from kronos_client.contract.names import CELERY_PRIORITIES, DEAD_KEY
from kronos_client.redis.queues import NO_PREFIX, QueueNames, foreign_bindings, num_misplaced, queue_states
from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_model.text import printable

MAX_MESSAGE_CHARS = 120


def queues_report(redis: Redis, max_queue_jobs: int, names: QueueNames = NO_PREFIX) -> dict[str, Any]:
    """Count the jobs and workers of each queue.

    ``delayed`` jobs wait for their time; that of ``due`` ones has come. ``estimated_wait_s`` is for a new job
    of normal priority, at the rate of the last minute. It is None if there is no rate.
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
        row |= {"limit": max_queue_jobs, "workers": len(here), "workers_ready": num_ready}
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
        if waiting + queue["delayed"] >= queue["limit"]:
            remarks.append(f"{name}: full at {queue['limit']:,} (KRONOS_MAX_QUEUE_JOBS); add workers")
    if report["dead"]:
        messages = "1 message" if report["dead"] == 1 else f"{report['dead']:,} messages"
        remarks.append(f"{messages} that no worker can read; run kronos queues --dead")
    if number := report["misplaced"]:
        jobs = "1 job" if number == 1 else f"{number} jobs"
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


def purge_dead(redis: Redis) -> int:
    """Delete the dead messages, and return their number."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.llen(DEAD_KEY)
        pipe.delete(DEAD_KEY)
        return int(pipe.execute()[0])
