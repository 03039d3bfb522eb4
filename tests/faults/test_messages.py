"""Invalid messages on the queues of real workers: each is answered or buried, and no worker ends."""

import base64
import itertools
import json
import time
import zlib
from pathlib import Path
from typing import Any

from celery import Celery

from kronos_client.client import ForecastHandle
from kronos_client.contract.names import DEAD_KEY, FINETUNE_TASK
from kronos_client.redis.queues import list_keys
from kronos_model.text import escaped
from tests.faults.accounting import await_empty
from tests.faults.conftest import MakeClient
from tests.faults.fleet import Fleet, Worker
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true
from tests.worker.broker.test_messages import message

HUGE = 12 * 2**20


class Pickled:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.text = f"cposix\nsystem\n(S'touch {path}'\ntR.".encode()


def with_body(body: bytes, content_type: str, job_id: str, **headers: Any) -> dict[str, Any]:
    return message(headers={"id": job_id} | headers) | {
        "body": base64.b64encode(body).decode(),
        "content-type": content_type,
    }


def named(job_id: str, body: Any = None, **headers: Any) -> dict[str, Any]:
    properties = {"correlation_id": job_id}
    return message(body or [[], {"job": {}}, {}], headers={"id": job_id} | headers, properties=properties)


def anonymous() -> list[bytes]:
    """Content that names no job."""
    envelopes: list[Any] = [
        5,
        [],
        {},
        None,
        {"body": "x"},
        message(headers={"id": None}, properties={"correlation_id": None}),
        message(headers={"id": "\ud800"}, properties={"correlation_id": 5}),
        {"headers": [], "properties": [], "body": []},
    ]
    return [b"", b"\xff\xfe", b"not json", b"[" * 60_000, *(json.dumps(one).encode() for one in envelopes)]


def signed(marker: Path) -> dict[str, Any]:
    """Messages that name a job, by its id."""
    bomb = zlib.compress(b"[" + b" " * 2**28)
    return {
        "a\nb\x1b[31m": named("a\nb\x1b[31m"),
        "x" * 201: named("x" * 201),
        "number": named("number", body=[5]),
        "base64": message(headers={"id": "base64"}) | {"body": "%%%"},
        "pickle": with_body(Pickled(marker).text, "application/x-python-serialize", "pickle"),
        "pickle-as-json": with_body(Pickled(marker).text, "application/json", "pickle-as-json"),
        "yaml": with_body(b"!!python/object/apply:os.system [true]", "application/x-yaml", "yaml"),
        "msgpack": with_body(b"\x93\x90\x80\x80", "application/x-msgpack", "msgpack"),
        "bomb": with_body(bomb, "application/json", "bomb", compression="application/x-gzip"),
        "nested": with_body(b"[" * 500_000, "application/json", "nested"),
        "task": named("task", task="celery.starmap"),
        "huge": named("huge", body=[[], {"job": "x" * HUGE}, {}]),
        "eta": named("eta", eta="soon"),
        "utf-16": with_body(json.dumps([[], {"job": {}}, {}]).encode("utf-16"), "application/json", "utf-16"),
        "bom": with_body(b"\xef\xbb\xbf[[], {}, {}]", "application/json", "bom"),
        "surrogate": with_body(b'[[], {"job": "\xed\xa0\x80"}, {}]', "application/json", "surrogate"),
        "self": named("self", body=[[1], {"self": 1}, {}]),
        "chain": named("chain", body=[[], {"job": {}}, {"chain": [{"task": 1}]}]),
        "old": {"body": base64.b64encode(b'{"task": "x", "id": "old"}').decode(), "headers": {},
                "properties": {"body_encoding": "base64"}, "content-type": "application/json"},
    }  # fmt: skip


def rss_mb(worker: Worker) -> float:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_unreadable_messages_are_answered_or_buried_and_the_worker_goes_on(
    redis: RedisUnderFault, fleet: Fleet, make_client: MakeClient, candles, tmp_path: Path
) -> None:
    worker = fleet.start()
    client = make_client()
    marker = tmp_path / "unpickled"
    bad = signed(marker)
    before_mb = rss_mb(worker)
    lists = itertools.cycle(list_keys("cpu"))
    for raw in [*anonymous(), *(json.dumps(one).encode() for one in bad.values())]:
        redis.connection.lpush(next(lists), raw)
    good = client.submit(candles[:40], pred_len=4, seed=1, priority="low")
    assert len(good.wait(WAIT_S).series[0].mean["close"]) == 4

    deadline = time.monotonic() + WAIT_S
    num_expected = len(bad) + len(anonymous())
    while redis.connection.llen(DEAD_KEY) < num_expected and time.monotonic() < deadline:
        time.sleep(0.05)
    entries = [json.loads(entry) for entry in redis.connection.lrange(DEAD_KEY, 0, -1)]
    assert sorted(filter(None, (entry["id"] for entry in entries))) == sorted(
        escaped(job_id, 200) for job_id in bad
    )
    assert sum(entry["id"] is None for entry in entries) == len(anonymous())
    for job_id in bad:
        meta = json.loads(redis.connection.get(f"celery-task-meta-{job_id}"))
        assert (meta["status"], meta["result"]["exc_message"][0]) == ("FAILURE", "BAD_MESSAGE"), job_id
        assert meta["traceback"] is None
    assert not marker.exists()
    assert worker.is_running
    assert rss_mb(worker) < before_mb + 200
    await_empty(lambda: redis.connection.keys("kronos.*unacked"), "unacknowledged messages", fleet)
    assert not redis.connection.exists(*list_keys("cpu"))
    assert worker.read_metrics()["kronos_messages_dead_total"] == num_expected
    log = worker.log.read_text()
    assert "\x1b[31m" not in log
    assert max(map(len, log.splitlines())) < 2000


def test_a_finetuning_worker_buries_them_too(redis: RedisUnderFault, fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.start(KRONOS_ROLE="finetune", KRONOS_MODEL_FOLDER=str(tmp_path / "models"))
    for raw in anonymous():
        redis.connection.lpush("cpu.finetune", raw)
    redis.connection.lpush("cpu.finetune", json.dumps(named("typo", task="kronos.finetun")))
    redis.connection.lpush("cpu.finetune", json.dumps(named("empty", task=FINETUNE_TASK)))
    await_true(
        lambda: '"exc_message"' in (redis.connection.get("celery-task-meta-empty") or ""),
        "the last message is answered",
    )
    codes = {
        job_id: json.loads(redis.connection.get(f"celery-task-meta-{job_id}"))["result"]["exc_message"][0]
        for job_id in ("typo", "empty")
    }
    assert codes == {"typo": "BAD_MESSAGE", "empty": "MISSING_FIELD"}
    assert redis.connection.llen(DEAD_KEY) == len(anonymous()) + 1
    assert worker.is_running


def test_an_odd_callback_does_not_end_the_worker_nor_hide_the_jobs_end(
    redis: RedisUnderFault, fleet: Fleet, make_client: MakeClient, candles
) -> None:
    worker = fleet.start()
    client = make_client()
    job = client.submit(candles[:40], pred_len=2, seed=1)
    job.wait(WAIT_S)
    good = {
        "schema_version": 1,
        "series": [{"id": "a", "timestamps": list(map(str, candles["timestamps"][:20]))}
                   | {name: candles[name][:20].tolist() for name in ("open", "high", "low", "close")}],
        "pred_len": 2,
    }  # fmt: skip
    odd: list[Any] = [
        {"callbacks": [{"task": "x", "options": {"queue": 5}}]},
        {"callbacks": [{"task": "x", "options": {"countdown": "soon"}}]},
        {"chain": [{"task": "x", "args": [], "kwargs": {}, "options": {"link": 5}}]},
        {"errbacks": [{"task": "x", "subtask_type": "chord"}]},
        {"chord": {"task": "x", "options": {}}},
        {"callbacks": [{"task": "x", "subtask_type": "group", "kwargs": {"tasks": 5}}]},
    ]
    for number, embed in enumerate(odd):
        redis.connection.lpush("cpu", json.dumps(named(f"odd-{number}", [[], {"job": good}, embed])))
    deadline = time.monotonic() + WAIT_S
    waiting = {f"odd-{number}" for number in range(len(odd))}
    while waiting and time.monotonic() < deadline:
        for job_id in list(waiting):
            meta = json.loads(redis.connection.get(f"celery-task-meta-{job_id}") or "{}")
            if meta.get("status") in ("SUCCESS", "FAILURE"):
                assert meta["status"] == "SUCCESS", meta
                waiting.remove(job_id)
        time.sleep(0.05)
    assert waiting == set()
    assert worker.is_running
    assert len(client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).series) == 1


def test_a_job_sent_with_a_countdown_runs_once_and_not_before(
    redis: RedisUnderFault, fleet: Fleet, make_client: MakeClient, candles
) -> None:
    """Longer than the visibility timeout: Celery's own workers run such a task again and again."""
    fleet.start(KRONOS_VISIBILITY_TIMEOUT_S="2")
    client = make_client()
    handle = client.submit(candles[:40], pred_len=2, seed=1)
    handle.wait(WAIT_S)
    job = json.loads(json.dumps(_job_of(candles)))
    sent_at = time.time()
    with Celery(broker=redis.url, backend=redis.url, set_as_current=False) as app:
        app.send_task("kronos.forecast", kwargs={"job": job}, queue="cpu", task_id="later", countdown=4)
        result = app.AsyncResult("later").get(timeout=WAIT_S)
    assert time.time() - sent_at > 3.5
    assert len(result["series"]) == 1
    await_empty(lambda: redis.connection.keys("kronos.*unacked"), "unacknowledged messages", fleet)
    assert redis.connection.hget("kronos:taken", "cpu\x06\x163") is not None


def _job_of(candles) -> dict[str, Any]:
    columns = {name: candles[name][:20].tolist() for name in ("open", "high", "low", "close")}
    series = {"id": "a", "timestamps": list(map(str, candles["timestamps"][:20]))} | columns
    return {"schema_version": 1, "series": [series], "pred_len": 2}


def test_of_two_jobs_under_one_id_a_bad_message_does_not_end_the_one_that_runs(
    redis: RedisUnderFault, fleet: Fleet, make_client: MakeClient, candles
) -> None:
    fleet.start()
    client = make_client()
    running: ForecastHandle = client.submit(candles[:120], pred_len=100, sample_count=8, seed=1)
    while running.state().name == "PENDING":
        time.sleep(0.01)
    redis.connection.lpush("cpu", json.dumps(named(running.id, body=[5])))
    assert len(running.wait(WAIT_S).series) == 1
    assert redis.connection.llen(DEAD_KEY) == 1
