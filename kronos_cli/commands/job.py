"""``kronos job``."""

import click
from rich.text import Text

from kronos_cli.settings import get_settings
from kronos_cli.terminal import duration, moment, show, simple_table
from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.names import is_job_id
from kronos_client.core.job_facts import Attempt, JobFacts, read_job
from kronos_client.redis.connection import connect
from kronos_model.text import printable


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def job(job_id: str, as_json: bool) -> None:
    """Explain one job: where it is, its attempts, what it waits for, what to do next.

    Only Redis is read. Exit status: 0, or 1 if Redis holds nothing about the job.
    """
    if not is_job_id(job_id):
        raise click.UsageError("this cannot be a job's id")
    with connect(get_settings().redis_url.get_secret_value(), decode_responses=False) as redis:
        facts = read_job(redis, job_id)
    table = simple_table("what", "value", texts=["what"], names=["value"], show_header=False)
    for what, text in _rows(facts):
        table.add_row(what, Text(printable(text)))
    show(facts.model_dump(), table, as_json=as_json)
    raise SystemExit(1 if facts.where == "unknown" else 0)


def _rows(facts: JobFacts) -> list[tuple[str, str]]:
    jobs = "job" if facts.num_before == 1 else "jobs"
    before = "not there now" if facts.num_before is None else f"about {facts.num_before:,} {jobs} before it"
    claim = f"{moment(facts.until)} unless renewed" if facts.until else "at an unknown time"
    where = {
        "waiting": f"waits in {facts.list}, {before}, {facts.num_ready} ready workers",
        "delayed": f"delayed until {moment(facts.until)}, then in {facts.list}",
        "held": f"held by a worker; the claim ends {claim}",
        "gone": "nowhere: no message is left, and no outcome is stored",
    }
    left = "unknown" if facts.left_s is None else f"about {duration(facts.left_s)}"
    bars = f", bar {facts.bars[0]:,} of {facts.bars[1]:,}" if facts.bars else ""
    stored = f"{facts.state}{bars}, until {moment(facts.kept_until)}" if facts.state else "nothing"
    code = facts.error[0] if facts.error else None
    if facts.where == "ended" and (code == ErrorCode.RESULT_EXPIRED or not facts.state):
        stored = "nothing: the job ended, and its result has expired"
    rows = [
        ("Job", facts.id),
        ("Where", where.get(facts.where, facts.where)),
        ("Dead", f"a message is in kronos:dead: {facts.dead_reason}" if facts.dead_reason else ""),
        ("Cancel", "requested" if facts.is_cancel_requested else ""),
        *[("Attempt", _attempt(facts, attempt)) for attempt in facts.attempts],
        ("Stored", stored),
        ("Error", ": ".join(facts.error or ())),
        ("Time left", left if facts.where in ("waiting", "delayed", "held") else ""),
        *[("Not read", f"{key}: no permission, or another app's key") for key in facts.unreadable],
        ("Next", facts.next),
    ]
    return [row for row in rows if row[1]]


def _attempt(facts: JobFacts, attempt: Attempt) -> str:
    held = "goes on" if facts.is_worker_alive else "its worker is not announced"
    last = {"held": held, "ended": "ended the job"}
    how = attempt.how or last.get(facts.where, "its worker vanished")
    return f"{moment(attempt.begun_at)} to {moment(attempt.ended_at)} by {attempt.worker}: {how}"
