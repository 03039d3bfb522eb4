"""Queues and dead messages for the terminal: as tables, and as JSON."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kronos_cli.tables.status import duration
from kronos_client.contract.names import CELERY_PRIORITIES, DEAD_KEY
from kronos_client.redis.queues import QUEUES, queue_lengths
from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_model.text import printable

MAX_MESSAGE_CHARS = 120


def queues_report(redis: Redis, max_queue_jobs: int) -> dict[str, Any]:
    """What waits in each queue, who takes it, and how fast.

    ``estimated_wait_s`` is that of a job that comes now with normal priority, by the rate of the last minute;
    None where there is no rate to go by.
    """
    lengths, workers = queue_lengths(redis), live_workers(redis)
    queues = []
    for queue in QUEUES:
        by_priority = lengths[queue]
        waiting = sum(by_priority.values())
        before = waiting - by_priority["low"]
        here = [worker for worker in workers if worker["queue"] == queue]
        rate = jobs_per_s(queue, workers)
        num_ready = sum(worker["state"] == "ready" for worker in here)
        wait_s = round(before / rate, 1) if rate else None
        queues.append(
            {
                "queue": queue,
                **{str(name): number for name, number in by_priority.items()},
                "waiting": waiting,
                "limit": max_queue_jobs,
                "workers": len(here),
                "workers_ready": num_ready,
                "jobs_per_s": round(rate, 4),
                "estimated_wait_s": 0.0 if num_ready and not before else wait_s,
            }
        )
    return {"queues": queues, "dead": int(redis.llen(DEAD_KEY))}


def queues_table(report: Mapping[str, Any]) -> RenderableType:
    """One row a queue, and below what needs somebody's attention."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("queue", no_wrap=True)
    for name in (*CELERY_PRIORITIES, "waiting", "workers", "jobs/s", "wait"):
        table.add_column(name, no_wrap=True, justify="right")
    remarks = []
    for queue in report["queues"]:
        wait_s = queue["estimated_wait_s"]
        table.add_row(
            queue["queue"],
            *(f"{queue[name]:,}" for name in (*CELERY_PRIORITIES, "waiting")),
            f"{queue['workers_ready']}/{queue['workers']}",
            f"{queue['jobs_per_s']:.2f}" if queue["workers"] else "",
            "" if wait_s is None else duration(wait_s),
        )
        if queue["waiting"] and not queue["workers"]:
            jobs = "1 job waits" if queue["waiting"] == 1 else f"{queue['waiting']:,} jobs wait"
            remarks.append(f"{queue['queue']}: {jobs}, and no worker is alive that takes it")
        if queue["waiting"] >= queue["limit"]:
            remarks.append(
                f"{queue['queue']}: full at {queue['limit']:,} (KRONOS_MAX_QUEUE_JOBS); add workers"
            )
    if report["dead"]:
        messages = "1 message" if report["dead"] == 1 else f"{report['dead']:,} messages"
        remarks.append(f"{messages} that nobody can read; to look at them: kronos queues --dead")
    return Group(table, *(Text(remark, style="yellow") for remark in remarks))


def dead_messages(redis: Redis) -> list[dict[str, Any]]:
    """The messages that nobody could read, the newest first."""
    entries: Any = redis.lrange(DEAD_KEY, 0, -1)
    return [_entry(text) for text in entries]


def dead_table(messages: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Two rows a message. What it says is never read as markup, and steers no terminal."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for message in messages:
        at = message.get("at")
        when = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z" if isinstance(at, int | float) else "?"
        table.add_row(
            when, _plain(f"{message.get('reason')} (queue {message.get('queue')}, id {message.get('id')})")
        )
        table.add_row("", _plain(str(message.get("message", ""))[:MAX_MESSAGE_CHARS]), style="dim")
    return table


def purge_dead(redis: Redis) -> int:
    """Delete them for good; how many there were."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.llen(DEAD_KEY)
        pipe.delete(DEAD_KEY)
        num_messages, _ = pipe.execute()
    return int(num_messages)


def _entry(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:  # not ours
        entry = None
    return entry if isinstance(entry, dict) else {"reason": None, "message": text}


def _plain(text: str) -> Text:
    """Senders write what they like, also what would steer the terminal."""
    return Text(printable(text))
