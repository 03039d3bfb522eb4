"""The client against a real Redis without any worker: what it puts there, and what it reads back."""

import base64
import json
import threading
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from celery.app import app_or_default

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient, JobState
from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CPU_QUEUE, FORECAST_TASK, GPU_QUEUE, PROGRESS_STATE, cancel_key
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import delivery_keys, queue_states
from kronos_client.redis.routing import announce
from kronos_client.settings import ClientSettings
from kronos_client.testing import fake_worker
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles
from tests.faults.proxy import FaultyProxy, Rule
from tests.ports import free_port
from tests.taking import take_one
from tests.waiting import WAIT_S
from worker.broker.deliveries import Deliveries

CANDLES = candles(seed=1, bars=60)
LONG = candles(seed=1, bars=9_000).as_dict()  # longer than is sent
LENGTH_MISMATCH = ErrorCode.LENGTH_MISMATCH
LISTS = {"high": f"{CPU_QUEUE}", "normal": f"{CPU_QUEUE}\x06\x163", "low": f"{CPU_QUEUE}\x06\x166"}
"""Where kombu keeps the messages of each priority."""


@pytest.fixture
def client(settings):
    with ForecastClient(settings=settings) as client:
        yield client


def messages(redis: Any, key: str = LISTS["normal"]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in redis.lrange(key, 0, -1)]


def body(message: dict[str, Any]) -> Any:
    assert message["properties"]["body_encoding"] == "base64"
    return json.loads(base64.b64decode(message["body"]))


def enqueued_job(redis: Any, key: str = LISTS["normal"]) -> dict[str, Any]:
    (message,) = messages(redis, key)
    return body(message)[1]["job"]


def assert_nothing_enqueued(redis: Any) -> None:
    assert [redis.llen(key) for key in (*LISTS.values(), GPU_QUEUE, f"{GPU_QUEUE}\x06\x163")] == [0] * 5


def test_a_message_is_what_any_celery_client_would_send(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5, seed=7, sample_count=3, context_policy="rolling")
    (message,) = messages(redis)
    args, kwargs, _ = body(message)
    assert (args, list(kwargs)) == ([], ["job"])
    headers = message["headers"]
    assert (headers["task"], headers["id"]) == (FORECAST_TASK, handle.id)
    assert (message["content-type"], message["content-encoding"]) == ("application/json", "utf-8")
    job = kwargs["job"]
    assert job["schema_version"] == 1
    assert job["sampling"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "sample_count": 3, "seed": 7}
    given = {"quantiles": [0.1, 0.5, 0.9], "paths": False, "repair": True}
    assert job["output"] == job["output"] | given
    assert (job["pred_len"], job["device"], job["allow_fallback"]) == (5, "auto", True)
    assert job["context_policy"] == "rolling"
    # What was not given is the worker's to decide.
    assert not job.keys() & {"model", "deadline_s"}


def test_headers_hold_no_candles_and_the_series_are_named(client, redis):
    client.submit([CANDLES.as_dict()] * 5, pred_len=5, series_ids=["a", "b", "c", "d", "e"])
    headers = messages(redis)[0]["headers"]
    assert headers["argsrepr"] == "()"
    assert headers["kwargsrepr"] == "{'series': 'a, b, c, … (5)', 'pred_len': 5, 'samples': 30}"
    assert len(json.dumps(headers)) < 2000


def test_the_moment_of_submission_is_on_the_clock_of_redis(client, redis, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    before = redis.time()[0]
    client.submit(CANDLES.as_dict(), pred_len=5)
    assert before <= enqueued_job(redis)["submitted_at"] <= redis.time()[0] + 1


@pytest.mark.parametrize("priority", LISTS)
def test_each_priority_has_its_list(client, redis, priority):
    client.submit(CANDLES.as_dict(), pred_len=5, priority=priority)
    assert enqueued_job(redis, LISTS[priority])["priority"] == priority
    assert sum(redis.llen(key) for key in LISTS.values()) == 1


def test_a_job_goes_where_the_announcements_send_it(client, redis):
    announce(redis, fake_worker(GPU_QUEUE, node="gpu@1"))
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    assert handle.queue == GPU_QUEUE
    assert len(messages(redis, f"{GPU_QUEUE}\x06\x163")) == 1
    assert client.submit(CANDLES.as_dict(), pred_len=5, device="cpu").queue == CPU_QUEUE
    assert [worker.node for worker in client.workers()] == ["gpu@1"]


INDEXED = pd.DataFrame(CANDLES.columns, index=pd.to_datetime(list(CANDLES.timestamps)))
SOURCES = {
    "arrays": (CANDLES.as_dict(), CANDLES.timestamps),
    "lists": ({k: list(v) for k, v in CANDLES.as_dict().items()}, CANDLES.timestamps),
    "a column of times": (pd.DataFrame(CANDLES.as_dict()), CANDLES.timestamps),
    "an index of times": (INDEXED, CANDLES.timestamps),
    "aware times": (INDEXED.tz_localize("Asia/Shanghai"), [f"{t}+08:00" for t in CANDLES.timestamps]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_candles_arrive_as_they_were(client, redis, source):
    given, timestamps = SOURCES[source]
    client.submit(given, pred_len=5)
    (series,) = enqueued_job(redis)["series"]
    assert series["timestamps"] == list(timestamps)
    for name in COLUMNS:
        np.testing.assert_allclose(decode_column(series[name]), CANDLES.columns[name], rtol=1e-6)


def test_several_series_each_have_their_own_times(client, redis):
    both = [candles(seed=1, bars=40).as_dict(), candles(seed=2, bars=50).as_dict()]
    futures = [["2025-03-03T10:00:00", "2025-03-03T10:05:00"], ["2025-04-03T10:00:00", "2025-04-03T10:05:00"]]
    client.submit(both, future_timestamps=futures)
    job = enqueued_job(redis)
    assert "pred_len" not in job
    assert [one["id"] for one in job["series"]] == ["0", "1"]
    assert [one["future_timestamps"] for one in job["series"]] == futures
    assert [len(one["timestamps"]) for one in job["series"]] == [40, 50]


REFUSED = {
    "no horizon": ({}, ErrorCode.MISSING_FIELD, "pred_len"),
    "a negative horizon": ({"pred_len": -1}, ErrorCode.BAD_VALUE, "pred_len"),
    "an unknown device": ({"pred_len": 5, "device": "tpu"}, ErrorCode.INVALID_DEVICE, "device"),
    "an unknown priority": ({"pred_len": 5, "priority": "urgent"}, ErrorCode.BAD_VALUE, "priority"),
    "no GPU": ({"pred_len": 5, "device": "cuda", "allow_fallback": False}, ErrorCode.NO_GPU_WORKER, "device"),
    "too many paths": (
        {"pred_len": 5, "sample_count": 257},
        ErrorCode.LIMIT_EXCEEDED,
        "sampling.sample_count",
    ),
    "an unknown zone": ({"pred_len": 5, "timezone": "Mars/Base"}, ErrorCode.TIMEZONE_UNKNOWN, None),
}


@pytest.mark.parametrize("defect", REFUSED)
def test_what_a_worker_would_refuse_is_not_sent(client, redis, defect):
    options, code, field = REFUSED[defect]
    with pytest.raises(JobError) as refused:
        client.submit(CANDLES.as_dict(), **options)
    assert refused.value.code == code
    assert field is None or refused.value.field == field
    assert_nothing_enqueued(redis)


def test_bad_candles_are_refused_by_field_and_row(client, redis):
    bad = CANDLES.as_dict()
    bad["close"] = np.where(np.arange(60) == 7, np.nan, bad["close"])
    with pytest.raises(JobError) as refused:
        client.submit([CANDLES.as_dict(), bad], pred_len=5)
    assert (refused.value.code, refused.value.field) == (ErrorCode.NOT_FINITE, "series.1.close")
    assert refused.value.details["row"] == 7
    assert_nothing_enqueued(redis)


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"candles": None}, ErrorCode.BAD_TYPE, "series.0"),
        ({"candles": 5.0}, ErrorCode.BAD_TYPE, "series.0"),
        ({"candles": [CANDLES.as_dict(), {"timestamps": []}]}, ErrorCode.MISSING_FIELD, "series.1.open"),
        ({"candles": [{"open": [1.0]}]}, ErrorCode.MISSING_FIELD, "series.0.timestamps"),
        ({"candles": {"open": ["?"], "timestamps": []}}, ErrorCode.BAD_TYPE, "series.0.open"),
        ({"timestamps": 5}, ErrorCode.BAD_TYPE, "series.0.timestamps"),
        ({"candles": LONG, "timestamps": LONG["timestamps"][1:]}, LENGTH_MISMATCH, "series.0.timestamps"),
        ({"candles": LONG | {"low": LONG["low"][1:]}}, LENGTH_MISMATCH, "series.0.low"),
        ({"series_ids": ["a", "b"]}, LENGTH_MISMATCH, "series_ids"),
        ({"candles": [CANDLES.as_dict()] * 2, "timestamps": [[]]}, LENGTH_MISMATCH, "timestamps"),
        ({"candles": "candles.csv"}, ErrorCode.BAD_TYPE, "series.0"),
        ({"candles": {"A": CANDLES.as_dict(), "B": {}}}, ErrorCode.MISSING_FIELD, "series.1.timestamps"),
        ({"quantiles": 0.5}, ErrorCode.BAD_TYPE, "quantiles"),
        ({"quantiles": ["x"]}, ErrorCode.BAD_TYPE, "quantiles"),
        ({"pred_len": object()}, ErrorCode.BAD_TYPE, "pred_len"),
        ({"seed": "seven"}, ErrorCode.BAD_TYPE, "sampling.seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_coded_errors_too(client, redis, arguments, code, field):
    arguments = {"candles": CANDLES.as_dict(), "pred_len": 5} | arguments
    with pytest.raises(JobError) as refused:
        client.submit(arguments.pop("candles"), **arguments)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert_nothing_enqueued(redis)


def test_numpy_scalars_are_numbers(client, redis):
    client.submit(
        CANDLES.as_dict(),
        pred_len=np.int64(5),
        seed=np.uint32(7),
        temperature=np.float32(0.5),
        quantiles=np.array([0.5]),
    )
    job = enqueued_job(redis)
    assert (job["pred_len"], job["sampling"]["seed"], job["sampling"]["temperature"]) == (5, 7, 0.5)
    assert job["output"]["quantiles"] == [0.5]


def test_a_message_beyond_the_limit_is_refused_by_its_size(settings, redis):
    small = settings.model_copy(update={"max_message_bytes": 2000})
    with ForecastClient(settings=small) as client, pytest.raises(JobError) as refused:
        client.submit(CANDLES.as_dict(), pred_len=5)
    assert refused.value.code == ErrorCode.LIMIT_EXCEEDED
    assert refused.value.details["actual"] > refused.value.details["limit"] == 2000
    assert_nothing_enqueued(redis)


@pytest.fixture
def narrow(settings):
    """A client whose queues hold three jobs."""
    with ForecastClient(settings=settings.model_copy(update={"max_queue_jobs": 3})) as client:
        yield client


def test_a_full_queue_refuses_jobs_of_every_priority(narrow, redis):
    for priority in LISTS:
        narrow.submit(CANDLES.as_dict(), pred_len=5, priority=priority)
    for priority in LISTS:
        with pytest.raises(JobError) as refused:
            narrow.submit(CANDLES.as_dict(), pred_len=5, priority=priority)
        assert refused.value.code == ErrorCode.QUEUE_FULL
        assert refused.value.details == {"queue": "cpu", "length": 3, "limit": 3, "retry_after_s": 60}
    assert sum(redis.llen(key) for key in LISTS.values()) == 3
    redis.rpop(LISTS["low"])
    narrow.submit(CANDLES.as_dict(), pred_len=5)


def test_when_to_try_again_follows_from_what_the_ready_workers_of_the_queue_did_lately(narrow, redis):
    for node, queue, state, rate in (
        ("a@1", CPU_QUEUE, "ready", 0.1),
        ("b@1", CPU_QUEUE, "ready", 0.15),
        ("c@1", CPU_QUEUE, "draining", 5.0),
        ("d@1", GPU_QUEUE, "loading", 5.0),
    ):
        announce(redis, fake_worker(queue, state, node=node, jobs_per_s=rate))
    announce(redis, fake_worker(node="new@1"))
    for _ in range(3):
        narrow.submit(CANDLES.as_dict(), pred_len=5)
    with pytest.raises(JobError, match="QUEUE_FULL") as refused:
        narrow.submit(CANDLES.as_dict(), pred_len=5)
    assert refused.value.details["retry_after_s"] == 4


def test_a_job_that_was_done_is_found_again_behind_a_full_queue(narrow, backend):
    handles = [narrow.submit(CANDLES.as_dict(), pred_len=5, job_id=str(number)) for number in range(3)]
    backend.mark_as_done(handles[0].id, example("forecast-result"))
    narrow.submit(CANDLES.as_dict(), pred_len=5)
    assert narrow.submit(CANDLES.as_dict(), pred_len=5, job_id="0").wait(WAIT_S).series
    with pytest.raises(JobError, match=r"QUEUE_FULL.*submitted before"):
        narrow.submit(CANDLES.as_dict(), pred_len=5, job_id="1")


def test_without_redis_nothing_is_enqueued_and_the_error_says_so():
    with ForecastClient(f"redis://:pw@127.0.0.1:{free_port()}/0") as client:
        with pytest.raises(JobError) as ended:
            client.submit(CANDLES.as_dict(), pred_len=5)
        assert ended.value.code == ErrorCode.BROKER_UNREACHABLE
        assert "pw" not in str(ended.value)
        with pytest.raises(JobError, match="BROKER_UNREACHABLE"):
            client.workers()


def test_an_enqueue_whose_answer_is_lost_is_uncertain_and_may_be_repeated(client, redis):
    with FaultyProxy(client.redis_url) as proxy, ForecastClient(proxy.url) as behind:
        proxy.rules = [Rule(None, lambda request: request.script == "admit")]
        with pytest.raises(JobError) as ended:
            behind.submit(CANDLES.as_dict(), pred_len=5, job_id="my-job")
    assert (ended.value.code, ended.value.details) == (ErrorCode.ENQUEUE_UNCERTAIN, {"job_id": "my-job"})
    assert [message["headers"]["id"] for message in messages(redis)] == ["my-job"]
    assert client.submit(CANDLES.as_dict(), pred_len=5, job_id="my-job").queue == CPU_QUEUE


@pytest.mark.parametrize(
    "error", ["OOM command not allowed", "NOPERM no", "LOADING data", "BUSY a script runs"]
)
def test_an_enqueue_that_redis_refuses_leaves_nothing(client, redis, error):
    with FaultyProxy(client.redis_url) as proxy, ForecastClient(proxy.url) as behind:
        proxy.rules = [Rule(error, lambda request: request.script == "admit")]
        with pytest.raises(JobError) as ended:
            behind.submit(CANDLES.as_dict(), pred_len=5, job_id="my-job")
        assert ended.value.code == ErrorCode.BROKER_UNREACHABLE
        assert redis.keys() == []
        proxy.rules = []
        assert behind.submit(CANDLES.as_dict(), pred_len=5, job_id="my-job").queue == CPU_QUEUE


def test_a_redis_that_goes_away_before_sending_is_unreachable():
    with LocalRedis() as server, ForecastClient(server.url) as client:
        assert client.submit(CANDLES.as_dict(), pred_len=5).queue == CPU_QUEUE  # the workers are known now
        server.stop()
        with pytest.raises(JobError, match="BROKER_UNREACHABLE"):
            client.submit(CANDLES.as_dict(), pred_len=5)


def test_the_states_of_a_job_are_read_back(client, backend):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    assert handle.state() == JobState("PENDING")
    backend.store_result(handle.id, None, "STARTED")
    assert handle.state() == JobState("STARTED")
    backend.store_result(handle.id, {"bars_done": 3, "bars_total": 10}, PROGRESS_STATE)
    assert handle.state() == JobState("PROGRESS", 3, 10)
    backend.mark_as_done(handle.id, example("forecast-result"))
    assert handle.state() == JobState("SUCCESS")
    failed = client.submit(CANDLES.as_dict(), pred_len=5)
    backend.mark_as_failure(failed.id, JobError(ErrorCode.DEADLINE, "too late"))
    assert failed.state() == JobState("FAILURE")


def test_waiting_gives_the_result_or_the_jobs_own_error(client, backend):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    with pytest.raises(JobError, match="TIMEOUT"):
        handle.wait(0.01)
    timer = threading.Timer(0.05, backend.mark_as_done, (handle.id, example("forecast-result")))
    timer.start()
    result = handle.wait(WAIT_S)
    timer.join()
    assert result == ForecastResult.model_validate(example("forecast-result"))

    failed = client.submit(CANDLES.as_dict(), pred_len=5)
    error = JobError(ErrorCode.NOT_FINITE, "row 3 holds NaN", "series.0.close", {"row": 3})
    backend.mark_as_failure(failed.id, error)
    with pytest.raises(JobError) as ended:
        failed.wait(WAIT_S)
    assert ended.value.args == error.args


def set_progress(backend: Any, job_id: str, bars_done: int) -> None:
    """As a worker does while it computes."""
    meta = {"bars_done": bars_done, "bars_total": 10}
    backend.store_result(job_id, meta, PROGRESS_STATE)


def test_progress_goes_from_the_queue_to_the_end(client, backend):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    seen = []
    for state in handle.progress():
        seen.append(state)
        if state == JobState("PENDING"):
            set_progress(backend, handle.id, 3)
        else:
            backend.mark_as_done(handle.id, example("forecast-result"))
    assert seen == [JobState("PENDING"), JobState("PROGRESS", 3, 10), JobState("SUCCESS")]
    assert [state.has_ended for state in seen] == [False, False, True]


def test_progress_ends_with_a_failure_and_leaves_its_error_to_wait(client, backend):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    backend.mark_as_failure(handle.id, JobError(ErrorCode.DEADLINE, "too late"))
    assert list(handle.progress()) == [JobState("FAILURE")]
    with pytest.raises(JobError, match="too late"):
        handle.wait(WAIT_S)


def test_the_end_of_a_job_is_not_waited_for_until_the_next_look(client, monkeypatch, backend):
    monkeypatch.setattr("kronos_client.core.core.LOOK_INTERVAL_S", 60.0)
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    states = handle.progress()
    assert next(states) == JobState("PENDING")
    timer = threading.Timer(0.05, backend.mark_as_done, (handle.id, example("forecast-result")))
    timer.start()
    assert list(states) == [JobState("SUCCESS")]
    timer.join()


def test_whoever_waits_is_told_of_each_new_state(client, backend):
    seen = []

    def follow(state: JobState) -> None:
        seen.append(state)
        if state.name == "PENDING":
            set_progress(backend, handle.id, 4)
        elif state.bars_done == 4:
            # The same once more, which is nothing new.
            set_progress(backend, handle.id, 4)
            timer.start()

    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    timer = threading.Timer(1.5, backend.mark_as_done, (handle.id, example("forecast-result")))
    result = ForecastResult.model_validate(example("forecast-result"))
    assert handle.wait(WAIT_S, on_progress=follow) == result
    assert seen == [JobState("PENDING"), JobState("PROGRESS", 4, 10), JobState("SUCCESS")]


def test_who_is_told_may_give_up_waiting(client, backend):
    class Enough(RuntimeError):
        """As an app's own; not to be mistaken for one of Celery's."""

    def give_up(state: JobState) -> None:
        raise Enough

    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    with pytest.raises(Enough):
        handle.wait(WAIT_S, on_progress=give_up)
    backend.mark_as_done(handle.id, example("forecast-result"))
    assert handle.wait(WAIT_S).series


def test_the_time_to_wait_counts_with_progress_too(client):
    seen = []
    with pytest.raises(JobError, match="TIMEOUT"):
        client.forecast(CANDLES.as_dict(), pred_len=5, timeout_s=0.01, on_progress=seen.append)
    assert set(seen) == {JobState("PENDING")}


def test_there_is_no_progress_of_a_job_that_nobody_knows(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    redis.flushall()
    for follow in (lambda: next(handle.progress()), lambda: handle.wait(WAIT_S, on_progress=print)):
        with pytest.raises(JobError) as lost:
            follow()
        assert lost.value.code == ErrorCode.LOST


def test_who_waits_while_redis_is_emptied_is_told_that_the_job_is_lost(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    timer = threading.Timer(0.3, redis.flushall)
    timer.start()
    with pytest.raises(JobError) as lost:
        handle.wait(1000)
    timer.join()
    assert lost.value.code == ErrorCode.LOST


def test_who_follows_a_job_while_redis_is_emptied_is_told_so_too(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    states = handle.progress()
    assert next(states) == JobState("PENDING")
    redis.flushall()
    with pytest.raises(JobError) as lost:
        next(states)
    assert lost.value.code == ErrorCode.LOST


def test_a_result_of_which_nobody_told_is_found_all_the_same(client, redis):
    def store_unheard() -> None:
        redis.set(
            f"celery-task-meta-{handle.id}",
            json.dumps({"status": "SUCCESS", "result": example("forecast-result"), "task_id": handle.id}),
        )

    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    timer = threading.Timer(0.3, store_unheard)
    timer.start()
    assert handle.wait(WAIT_S).series
    timer.join()


def test_states_are_subscribed_to_while_a_job_is_waited_for_and_no_longer(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    assert redis.pubsub_channels("celery-*") == []
    states = handle.progress()
    assert next(states) == JobState("PENDING")
    assert redis.pubsub_channels("celery-*") == [f"celery-task-meta-{handle.id}"]
    states.close()
    while redis.pubsub_channels("celery-*"):
        time.sleep(0.01)


def test_a_forecast_that_is_not_done_in_time_is_cancelled(client, redis):
    with pytest.raises(JobError, match="TIMEOUT"):
        client.forecast(CANDLES.as_dict(), pred_len=5, timeout_s=0.01, job_id="my-job")
    stored = json.loads(redis.get("celery-task-meta-my-job"))
    assert (stored["status"], stored["result"]["exc_message"][0]) == ("FAILURE", "CANCELLED")


def test_cancelling_leaves_the_wish_where_workers_look(client, redis, backend):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    backend.store_result(handle.id, {}, "STARTED")
    assert not redis.exists(cancel_key(handle.id))
    handle.cancel()
    assert redis.exists(cancel_key(handle.id))
    assert handle.state().name == "STARTED"


def test_a_job_that_nobody_has_begun_is_cancelled_at_once(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    handle.cancel()
    with pytest.raises(JobError, match="CANCELLED"):
        handle.wait(timeout_s=WAIT_S)
    # Submitted again it is the same job, with its one outcome.
    assert client.submit(CANDLES.as_dict(), pred_len=5, job_id=handle.id).state().has_ended


@pytest.fixture
def deliveries(redis_server):
    """What a worker takes messages with."""
    with connect(redis_server.url, decode_responses=False) as redis:
        yield Deliveries(redis, delivery_keys("unacked"), timeout_s=60, max_bytes=2**20)


@pytest.mark.parametrize("priority", LISTS)
def test_a_cancelled_job_gives_back_its_room(narrow, redis, priority):
    handles = [narrow.submit(CANDLES.as_dict(), pred_len=5, priority=priority) for _ in range(3)]
    handles[1].cancel()
    narrow.submit(CANDLES.as_dict(), pred_len=5)
    with pytest.raises(JobError, match="QUEUE_FULL"):
        narrow.submit(CANDLES.as_dict(), pred_len=5)


def test_a_job_that_a_worker_has_taken_stays_there_when_it_is_cancelled(client, redis, deliveries):
    first, second = (client.submit(CANDLES.as_dict(), pred_len=5, job_id=name) for name in ("a", '"\u00e4'))
    take_one(deliveries, [LISTS["normal"]])
    first.cancel()
    assert redis.hlen("unacked") == 1
    assert queue_states(redis, 100)[CPU_QUEUE].lengths["normal"] == 1
    second.cancel()
    assert queue_states(redis, 100)[CPU_QUEUE].lengths["normal"] == 0
    assert [one["headers"]["id"] for one in messages(redis)] == [second.id]


def test_a_wish_to_cancel_what_was_not_there_does_not_outlive_that(client, redis):
    redis.set(cancel_key("later"), "1")
    client.submit(CANDLES.as_dict(), pred_len=5, job_id="later")
    assert not redis.exists(cancel_key("later"))


def test_a_host_keeps_its_own_current_celery_app(client):
    before = app_or_default()
    with ForecastClient(client.redis_url):
        assert app_or_default() is before


def test_neither_client_nor_handle_prints_the_password(client):
    secret = client.redis_url.split(":")[2].partition("@")[0]
    assert secret not in f"{client!r}{client.submit(CANDLES.as_dict(), pred_len=5)!r}"


def test_the_url_comes_before_the_settings():
    url = "redis://:pw@127.0.0.1:1/5"
    client = ForecastClient(url, settings=ClientSettings.model_construct())
    assert client.redis_url == url
