"""The output of ``kronos queues``: waiting jobs and dead messages."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from kronos_cli.commands.queues import queues_report
from kronos_cli.main import cli
from kronos_client.contract.names import DEAD_KEY
from kronos_client.contract.worker_status import State
from kronos_client.redis.queues import large_key, list_key
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker

AT_S = 1_750_000_000


@pytest.fixture(autouse=True)
def _small_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_MAX_QUEUE_JOBS", "6")


def queues(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["queues", *arguments], input=given)


def put(redis: Redis, queue: str, **numbers: int) -> None:
    for name, step in (("high", 0), ("normal", 3), ("low", 6)):
        for _ in range(numbers.get(name, 0)):
            redis.lpush(list_key(queue, step), "message")


def live(redis: Redis, queue: str, state: State = "ready", jobs_per_s: float = 0.0) -> None:
    announce(redis, fake_worker(queue, state, node=f"{queue}-{state}", jobs_per_s=jobs_per_s))


def bury(redis: Redis, **changes: Any) -> None:
    entry = {"at": AT_S, "reason": "no JSON", "queue": "cpu", "id": "j1", "num_bytes": 3, "message": "abc"}
    redis.lpush(DEAD_KEY, json.dumps(entry | changes))


def test_jobs_and_bindings_that_belong_elsewhere_are_remarked_on(redis: Redis) -> None:
    redis.lpush("celery", '{"headers": {"task": "kronos.forecast"}}', '{"headers": {"task": "theirs"}}')
    redis.sadd("_kombu.binding.celery", "celery\x06\x16\x06\x16gpu")
    shown = " ".join(queues().output.split())
    assert "celery: 1 job in Celery's default queue, which no worker reads; send with a queue" in shown
    assert "the queue 'gpu' is bound to the exchange 'celery', by another app; set KRONOS_QUEUE_" in shown


def test_each_queue_has_its_lengths_its_rate_and_the_wait_of_a_normal_job(redis: Redis) -> None:
    put(redis, "cpu", high=1, normal=2, low=3)
    live(redis, "cpu", jobs_per_s=0.5)
    live(redis, "cpu", "loading")
    cpu, gpu, *_ = queues_report(redis, 100)["queues"]
    assert cpu == {
        "queue": "cpu",
        "high": 1,
        "normal": 2,
        "low": 3,
        "waiting": 6,
        "delayed": 0,
        "due": 0,
        "oldest_s": 0.0,
        "of_feeds": 0,
        "limit": 100,
        "workers": 2,
        "workers_ready": 1,
        "jobs_per_s": 0.5,
        "estimated_wait_s": 6.0,
    }
    assert (gpu["queue"], gpu["waiting"], gpu["estimated_wait_s"]) == ("gpu", 0, None)
    row = next(line.split() for line in queues().output.splitlines() if line.split()[:1] == ["cpu"])
    assert row == ["cpu", "1", "2", "3", "6", "0", "1/2", "0.50", "6", "s"]


def test_the_wait_is_none_if_it_is_unknown(redis: Redis) -> None:
    put(redis, "cpu", normal=1)
    put(redis, "gpu", low=1)
    live(redis, "cpu")
    live(redis, "gpu")
    cpu, gpu, *_ = queues_report(redis, 100)["queues"]
    assert cpu["estimated_wait_s"] is None
    assert gpu["estimated_wait_s"] == 0


def test_problems_are_listed_below_the_table(redis: Redis) -> None:
    put(redis, "gpu.finetune", normal=1)
    put(redis, "cpu", normal=6)
    live(redis, "cpu")
    bury(redis)
    shown = " ".join(queues().output.split())
    assert "gpu.finetune: 1 job waits, and no worker of this queue is alive" in shown
    assert "cpu: full at 6 (KRONOS_MAX_QUEUE_JOBS)" in shown
    assert "1 message that no worker can read; run kronos queues --dead" in shown
    assert "cpu: 6 jobs wait" not in shown


def test_json_has_the_same(redis: Redis) -> None:
    bury(redis)
    report = json.loads(queues("--json").output)
    assert report == queues_report(redis, 6)
    assert report["dead"] == 1
    assert [queue["queue"] for queue in report["queues"]] == ["cpu", "gpu", "cpu.finetune", "gpu.finetune"]


def test_dead_messages_are_shown_newest_first_without_control_characters(redis: Redis) -> None:
    assert queues("--dead").output == "There are no dead messages.\n"
    bury(redis)
    bury(redis, reason="[red]odd[/]", message="\x1b[2J" + "x" * 500, id=None)
    redis.lpush(DEAD_KEY, "not ours")
    outcome = queues("--dead")
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.output.splitlines()
    assert "\x1b" not in outcome.output
    assert any("[red]odd[/]" in line for line in lines)
    assert any("2025-06-15 15:06:40Z" in line and "no JSON (queue cpu, id j1)" in line for line in lines)
    assert outcome.output.index("not ours") < outcome.output.index("odd") < outcome.output.index("no JSON")
    report = json.loads(queues("--dead", "--json").output)
    assert [one["reason"] for one in report] == [None, "[red]odd[/]", "no JSON"]


def test_dead_messages_are_deleted_only_after_confirmation(redis: Redis) -> None:
    bury(redis)
    bury(redis)
    assert queues("--purge-dead", given="n\n").exit_code == 1
    assert queues("--purge-dead").exit_code == 1  # no input
    assert queues("--purge-dead", "--dead").exit_code == 2
    assert redis.llen(DEAD_KEY) == 2
    assert json.loads(queues("--purge-dead", "--yes", "--json").output) == {"purged": 2}
    assert redis.exists(DEAD_KEY) == 0
    assert queues("--purge-dead", given="y\n").stdout.endswith("0 deleted.\n")


def test_delayed_jobs_count_for_the_limit(redis: Redis) -> None:
    put(redis, "cpu", normal=5)
    redis.zadd("kronos:delayed:cpu", {"a": 1})
    shown = queues()
    row = next(line.split() for line in shown.output.splitlines() if line.split()[:1] == ["cpu"])
    assert row[1:6] == ["0", "5", "0", "5", "1"]
    assert "cpu: full at 6" in shown.output


def test_large_jobs_are_returned_to_their_first_lists(redis: Redis) -> None:
    key = list_key("cpu", 3)
    redis.lpush(large_key(key), "1.5\nmessage")
    assert json.loads(queues("--return-large", "--json").output) == {"returned": 1}
    assert redis.lrange(key, 0, -1) == ["message"]
    assert queues("--return-large").output == "0 large jobs returned.\n"
    assert queues("--return-large", "--dead").exit_code == 2
