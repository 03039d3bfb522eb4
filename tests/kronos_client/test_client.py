"""The client against a real Redis without any worker: what it puts there, and what it reads back."""

import json
import time
from typing import Any

import numpy as np
import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient, JobState
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CPU_QUEUE, FORECAST_TASK, GPU_QUEUE, cancel_key
from kronos_client.contract.schemas import example
from kronos_client.redis import connection
from kronos_client.redis.routing import announce
from kronos_client.settings import ClientSettings
from kronos_client.testing import fake_worker
from kronos_model.bars.synthetic import candles
from tests.faults.proxy import FaultyProxy, Rule
from tests.kronos_client.sent import body, messages, sent_job
from tests.ports import free_port
from tests.waiting import WAIT_S

CANDLES = candles(seed=1, bars=60)
LONG = candles(seed=1, bars=9_000).as_dict()  # longer than is sent
LENGTH_MISMATCH = ErrorCode.LENGTH_MISMATCH
LISTS = {"high": f"{CPU_QUEUE}", "normal": f"{CPU_QUEUE}\x06\x163", "low": f"{CPU_QUEUE}\x06\x166"}
"""Where kombu keeps the messages of each priority."""
NORMAL = LISTS["normal"]


def assert_nothing_enqueued(redis: Any) -> None:
    assert [redis.llen(key) for key in (*LISTS.values(), GPU_QUEUE, f"{GPU_QUEUE}\x06\x163")] == [0] * 5


def test_a_message_is_what_any_celery_client_would_send(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5, seed=7, sample_count=3, context_policy="rolling")
    (message,) = messages(redis, NORMAL)
    args, kwargs, _ = body(message)
    assert (args, list(kwargs)) == ([], ["job"])
    headers = message["headers"]
    assert (headers["task"], headers["id"]) == (FORECAST_TASK, handle.id)
    assert (message["content-type"], message["content-encoding"]) == ("application/json", "utf-8")
    job = kwargs["job"]
    assert job["schema_version"] == 1
    assert (job["sampling"], job["pred_len"]) == ({"sample_count": 3, "seed": 7}, 5)
    assert job["context_policy"] == "rolling"
    # What has the contract's default is not sent.
    assert job.keys() == {
        *("schema_version", "series", "sampling", "pred_len", "context_policy", "submitted_at"),
    }


def test_headers_hold_no_candles_and_the_series_are_named(client, redis):
    client.submit([CANDLES.as_dict()] * 5, pred_len=5, series_ids=["a", "b", "c", "d", "e"])
    headers = messages(redis, NORMAL)[0]["headers"]
    assert headers["argsrepr"] == "()"
    assert headers["kwargsrepr"] == "{'series': 'a, b, c, … (5)', 'pred_len': 5, 'samples': 100}"
    assert len(json.dumps(headers)) < 2000


def test_the_moment_of_submission_is_on_the_clock_of_redis(client, redis, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    before = redis.time()[0]
    client.submit(CANDLES.as_dict(), pred_len=5)
    assert before <= sent_job(redis, NORMAL)["submitted_at"] <= redis.time()[0] + 1


@pytest.mark.parametrize("priority", LISTS)
def test_each_priority_has_its_list(client, redis, priority):
    client.submit(CANDLES.as_dict(), pred_len=5, priority=priority)
    assert sent_job(redis, LISTS[priority]).get("priority", "normal") == priority
    assert sum(redis.llen(key) for key in LISTS.values()) == 1


def test_a_job_goes_where_the_announcements_send_it(client, redis):
    announce(redis, fake_worker(GPU_QUEUE, node="gpu@1"))
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    assert handle.queue == GPU_QUEUE
    assert len(messages(redis, f"{GPU_QUEUE}\x06\x163")) == 1
    assert client.submit(CANDLES.as_dict(), pred_len=5, device="cpu").queue == CPU_QUEUE
    assert [worker.node for worker in client.workers()] == ["gpu@1"]


def test_several_series_each_have_their_own_times(client, redis):
    both = [candles(seed=1, bars=40).as_dict(), candles(seed=2, bars=50).as_dict()]
    futures = [["2025-03-03T10:00:00", "2025-03-03T10:05:00"], ["2025-04-03T10:00:00", "2025-04-03T10:05:00"]]
    client.submit(both, future_timestamps=futures)
    job = sent_job(redis, NORMAL)
    assert "pred_len" not in job
    assert [one["id"] for one in job["series"]] == ["0", "1"]
    assert [one["future_timestamps"] for one in job["series"]] == futures
    assert [len(one["timestamps"]) for one in job["series"]] == [40, 50]


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
        ({"candles": {"A": CANDLES.as_dict(), "B": {}}}, ErrorCode.EMPTY_SERIES, "series.1"),
        ({"quantiles": object()}, ErrorCode.BAD_TYPE, "quantiles"),
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


def test_a_text_that_is_no_number_is_named_with_its_row(client):
    closes = ["1.5", 2, "n/a?"]
    with pytest.raises(JobError, match=r"'close', row 2: 'n/a\?' is not a number") as refused:
        client.submit(CANDLES.as_dict() | {"close": [*closes, *CANDLES.as_dict()["close"][3:]]}, pred_len=5)
    assert refused.value.details == {"row": 2}


def test_numpy_scalars_are_numbers(client, redis):
    client.submit(
        CANDLES.as_dict(),
        pred_len=np.int64(5),
        seed=np.uint32(7),
        temperature=np.float32(0.5),
        quantiles=np.array([0.5]),
    )
    job = sent_job(redis, NORMAL)
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


def test_without_redis_nothing_is_enqueued_and_the_error_says_so():
    with ForecastClient(f"redis://:pw@127.0.0.1:{free_port()}/0") as client:
        with pytest.raises(JobError) as ended:
            client.submit(CANDLES.as_dict(), pred_len=5)
        assert ended.value.code == ErrorCode.BROKER_UNREACHABLE
        assert "pw" not in str(ended.value)
        with pytest.raises(JobError, match="BROKER_UNREACHABLE"):
            client.workers()


def test_an_enqueue_whose_answer_is_lost_is_uncertain_and_may_be_repeated(client, redis, monkeypatch):
    monkeypatch.setitem(connection.OPTIONS, "socket_timeout", 0.5)
    with FaultyProxy(client.redis_url) as proxy, ForecastClient(proxy.url) as behind:
        proxy.rules = [Rule(None, lambda request: request.script == "admit")]
        with pytest.raises(JobError) as ended:
            behind.submit(CANDLES.as_dict(), pred_len=5, job_id="my-job")
    assert (ended.value.code, ended.value.details) == (ErrorCode.ENQUEUE_UNCERTAIN, {"job_id": "my-job"})
    assert [message["headers"]["id"] for message in messages(redis, NORMAL)] == ["my-job"]
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


def test_there_is_no_progress_of_a_job_that_nobody_knows(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    redis.flushall()
    for follow in (lambda: next(handle.progress()), lambda: handle.wait(WAIT_S, on_progress=print)):
        with pytest.raises(JobError) as lost:
            follow()
        assert lost.value.code == ErrorCode.LOST


@pytest.mark.parametrize("result", [None, {"series": 3}])
def test_what_is_no_result_of_the_job_is_named(client, backend, result):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    backend.store_result(handle.id, result, "SUCCESS")
    for read in (handle.wait, handle.peek):
        with pytest.raises(JobError, match="not the result of a forecast job") as lost:
            read()
        assert lost.value.code == ErrorCode.LOST


def test_states_are_subscribed_to_while_a_job_is_waited_for_and_no_longer(client, redis):
    handle = client.submit(CANDLES.as_dict(), pred_len=5)
    assert redis.pubsub_channels("celery-*") == []
    states = handle.progress()
    assert next(states).name == "PENDING"
    assert redis.pubsub_channels("celery-*") == [f"celery-task-meta-{handle.id}"]
    states.close()
    while redis.pubsub_channels("celery-*"):
        time.sleep(0.01)


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


def test_neither_client_nor_handle_prints_the_password(client):
    secret = client.redis_url.split(":")[2].partition("@")[0]
    assert secret not in f"{client!r}{client.submit(CANDLES.as_dict(), pred_len=5)!r}"


def test_the_url_comes_before_the_settings():
    url = "redis://:pw@127.0.0.1:1/5"
    client = ForecastClient(url, settings=ClientSettings.model_construct())
    assert client.redis_url == url
