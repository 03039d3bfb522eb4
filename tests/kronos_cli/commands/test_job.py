"""``kronos job``: one job explained from Redis alone."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from kronos_cli.main import cli
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import DEAD_KEY, job_key, result_key
from kronos_client.core.stored import FORGOTTEN, encode_failure
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import DELIVERY_KEYS, list_key
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker
from tests.admitting import admit
from tests.taking import begin_one, take_one
from worker.broker.deliveries import Deliveries

KEYS = DELIVERY_KEYS["forecast"]
LIST = list_key("cpu", 3)
TIMEOUT_S = 60.0
WORKER = "celery@one"


@pytest.fixture(autouse=True)
def environment(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def store(redis: Redis) -> JobStore:
    return JobStore(redis, 100, KEYS)


@pytest.fixture
def deliveries(redis_server) -> Deliveries:
    redis = connect(redis_server.url, decode_responses=False)
    return Deliveries(redis, KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000)


def submit(redis: Redis, *job_ids: str) -> None:
    admission = Admission(redis, result_ttl_s=100, max_queue_jobs=100)
    for job_id in job_ids:
        admit(admission, job_id)


def begin(store: JobStore, deliveries: Deliveries, job_id: str = "a") -> str:
    delivery = take_one(deliveries, [LIST])
    assert delivery is not None
    begin_one(store, job_id, '{"status": "STARTED"}', delivery.tag, TIMEOUT_S, worker=WORKER)
    return delivery.tag


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["job", *arguments])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def facts(job_id: str = "a") -> dict[str, Any]:
    return json.loads(run(job_id, "--json").stdout)


def assert_facts(**expected: object) -> None:
    """Of one call: times may differ by a second in the next."""
    found = facts()
    assert found | expected == found


def shown(job_id: str = "a") -> str:
    return " ".join(run(job_id).stdout.split())


def live(redis: Redis, **fields: Any) -> None:
    announce(redis, fake_worker("cpu", node=WORKER, versions={"kronos": "1"}, **fields))


def test_an_unknown_job(redis):
    result = run("a")
    assert result.exit_code == 1
    assert "Where unknown" in shown()
    assert "Check the id" in shown()
    assert facts()["where"] == "unknown"
    assert json.loads(run("a\nb", "--json").stdout)["error"]["code"] == "USAGE"


def test_a_waiting_job_has_its_place_and_about_how_long_it_takes(redis, store, deliveries):
    submit(redis, *"xyzabc")
    assert_facts(where="waiting", num_before=3, left_s=None, num_ready=0)
    assert "waits in cpu (normal), about 3 jobs before it" in shown()
    assert "waits in cpu (normal), about 1 job before it" in shown("y")
    assert "No worker serves the queue cpu. Jobs wait until one does; start one with:" in shown()
    redis.lpush("cpu", "a high one", "another")
    begin(store, deliveries, "x")
    live(redis, jobs_per_s=0.1)
    assert_facts(num_before=4, left_s=40.0, num_ready=1)
    assert "about 40 s" in shown()
    for job_id, num_before in (("z", 3), ("c", 3)):
        JobStore(redis, 100).end([Ending(job_id, '{"status": "FAILURE"}')])
        assert facts()["num_before"] == num_before
    begin(store, deliveries, "y")
    begin(store, deliveries, "z")
    assert facts()["num_before"] == 2


def test_a_large_job_that_was_move_to_large(redis, deliveries):
    submit(redis, *"bca")
    for _ in range(2):
        delivery = take_one(deliveries, [LIST])
        assert delivery is not None
        deliveries.move_to_large(delivery.tag)
    assert facts("c") | {"where": "waiting", "num_before": 2} == facts("c")  # the one left, and b
    assert "waits in cpu (normal, large jobs), about 2 jobs before it" in shown("c")
    assert_facts(where="waiting", num_before=0)


def test_a_message_that_never_arrived(redis):
    live(redis)
    submit(redis, "a")
    redis.delete(LIST)
    assert facts()["num_before"] is None
    assert "not there now" in shown()
    assert "submit it again under its id" in shown()


def test_a_running_job_has_its_worker_its_bar_and_its_claim(redis, store, deliveries):
    live(redis)
    submit(redis, "a")
    tag = begin(store, deliveries)
    redis.hincrbyfloat(job_key("a"), "begun_at", -30)
    progress = {"status": "PROGRESS", "result": {"bars_done": 3, "bars_total": 9, "series": ["x" * 10_000]}}
    store.store_state("a", json.dumps(progress), tag)
    found = facts()
    now = redis.time()[0]
    assert found | {"where": "held", "bars": [3, 9], "is_worker_alive": True} == found
    assert found["left_s"] == pytest.approx(60, abs=10)
    assert found["until"] == pytest.approx(now + TIMEOUT_S, abs=10)
    assert found["kept_until"] == pytest.approx(now + 100, abs=10)
    assert [attempt["worker"] for attempt in found["attempts"]] == [WORKER]
    assert "PROGRESS, bar 3 of 9" in shown()
    assert f"by {WORKER}: goes on" in shown()
    redis.flushdb()


def test_a_job_of_a_vanished_worker(redis, store, deliveries):
    submit(redis, "a")
    begin(store, deliveries)
    assert "its worker is not announced" in shown()
    assert "a worker gets it again when the claim has ended" in shown()


def test_the_last_eight_attempts_and_how_each_ended(redis, store, deliveries):
    submit(redis, "a")
    for number in range(9):
        tag = begin(store, deliveries)
        store.release("a", tag, f"reason {number}")
        deliveries.put_back(tag, 1000.0 if number == 8 else 0.0)
    found = facts()
    assert [one["how"] for one in found["attempts"]] == [f"reason {number}" for number in range(1, 9)]
    assert all(one["begun_at"] <= one["ended_at"] for one in found["attempts"])
    assert found["where"] == "delayed"
    assert found["left_s"] == pytest.approx(1000, abs=10)
    assert "then in cpu (normal)" in shown()


def test_an_ended_job(redis, store, deliveries):
    submit(redis, "a", "b")
    tag = begin(store, deliveries)
    store.end([Ending("a", '{"status": "SUCCESS", "result": {}}', tag)])
    assert_facts(where="ended", state="SUCCESS", error=None, until=None)
    assert "ended the job" in shown()
    redis.delete(result_key("a"))
    assert "no longer kept" in shown()
    assert "Stored nothing: the job ended, and its result has expired Next" in shown()
    redis.set(result_key("a"), encode_failure("a", FORGOTTEN))
    assert "Stored nothing: the job ended, and its result has expired Error RESULT_EXPIRED: " in shown()
    tag = begin(store, deliveries, "b")
    store.end([Ending("b", encode_failure("b", JobError(ErrorCode.DEADLINE, "too [bold]late\x1b[0m")), tag)])
    assert "DEADLINE: too [bold]late�[0m" in shown("b")


def test_a_dead_message_and_a_job_without_one(redis, store, deliveries):
    submit(redis, "a")
    tag = begin(store, deliveries)
    store.request_cancel("a")
    redis.lpush(DEAD_KEY, "no JSON", json.dumps({"id": "b", "reason": "another"}))
    store.end([Ending("a", "", tag, json.dumps({"id": "a", "reason": "it cannot be stored"}))])
    assert_facts(where="gone", dead_reason="it cannot be stored", is_cancel_requested=True)
    assert "kronos:dead: it cannot be stored" in shown()
    assert "Submit it again: that is safe" in shown()


@pytest.mark.parametrize("value", [b"\xff \xfe", b"", b"nan", b"1 2 3\n4", b"99999999999999999999"])
def test_what_other_programs_wrote_is_shown_as_far_as_it_goes(redis, value):
    names = ("at", "list", "place", "begun_at", "ended_at", "attempts", "worker", "renewed_at", "holder")
    for name in names:
        redis.delete(job_key("a"))
        redis.hset(job_key("a"), mapping={"fingerprint": "x", "at": f"list {LIST}", name: value})
        assert run("a").exit_code == 0
        assert facts()["id"] == "a"
    redis.delete(job_key("a"))
    redis.lpush(job_key("a"), "x")
    redis.hset(result_key("a"), "x", "y")
    assert facts()["unreadable"] == sorted([job_key("a"), result_key("a")])
    assert f"{job_key('a')}: no permission, or another app's key" in shown()


def test_the_workers_of_a_pool_take_the_jobs_of_its_feeds(redis):
    live(redis)
    key = list_key("cpu.feed", 3)
    redis.lpush(key, "the message")
    redis.hset(job_key("f"), mapping={"list": key, "place": 0, "at": f"list {key}"})
    told = json.loads(run("f", "--json").output)
    assert (told["where"], told["list"], told["num_ready"]) == ("waiting", "cpu.feed (normal)", 1)
