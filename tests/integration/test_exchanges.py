"""Control commands and events on exchanges of our own, on a Redis database that other Celery apps use too."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Consumer
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.celery_app import make_app
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import DEAD_KEY, FORECAST_TASK
from kronos_client.settings import ClientSettings
from tests import fork_server
from tests.integration.conftest import StartWorker, WorkerUnderTest
from tests.waiting import WAIT_S, await_true


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerUnderTest:
    """Celery's rate limits hold no job of it."""
    return start_worker("task.default_rate_limit=1/h").wait_until_ready()


@pytest.fixture(scope="module")
def app(redis: LocalRedis) -> Iterator[Celery]:
    """As a process of ours has it."""
    with make_app(ClientSettings.model_construct().with_redis_url(redis.url)) as app:
        yield app


@pytest.fixture(scope="module")
def other_app(redis: LocalRedis) -> Iterator[Celery]:
    """Another app on Celery's defaults."""
    with Celery("payments", broker=redis.url, backend=redis.url, set_as_current=False) as app:
        yield app


def queues_of(app: Celery, worker: WorkerUnderTest) -> list[str]:
    answers = app.control.inspect([worker.node], timeout=WAIT_S, limit=1).active_queues()
    assert answers is not None
    return [queue["name"] for queue in answers[worker.node]]


def ask(app: Celery, worker: WorkerUnderTest, command: str, **arguments: Any) -> dict[str, str]:
    """The worker's answer to a control command."""
    (answer,) = app.control.broadcast(
        command, arguments, [worker.node], reply=True, timeout=WAIT_S, limit=1
    )  # fmt: skip
    return answer[worker.node]


def test_celery_can_inspect_the_worker(worker, app, client, candles):
    handle = client.submit(candles[:40], pred_len=3)
    handle.wait(WAIT_S)
    inspect = app.control.inspect([worker.node], timeout=WAIT_S, limit=1)
    stats = inspect.stats()[worker.node]
    assert stats["total"][FORECAST_TASK] >= 1
    assert "@" not in str(stats["broker"])
    for ask_for in (inspect.active, inspect.reserved, inspect.scheduled, inspect.revoked):
        assert ask_for() == {worker.node: []}, ask_for
    for ask_for in (inspect.registered, inspect.conf, inspect.report, inspect.active_queues):
        assert ask_for()[worker.node], ask_for


def test_another_apps_commands_reach_no_worker(worker, app, other_app, redis, client, candles):
    """Its commands come before ours on the worker's connection, so ours see what they did."""
    other_app.send_task("pay", queue="payments")
    other_app.control.add_consumer("payments")
    other_app.control.cancel_consumer("cpu")
    other_app.control.shutdown()
    assert queues_of(app, worker) == ["cpu"]
    assert len(client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).series) == 1
    connection = Redis.from_url(redis.url)
    assert connection.llen("payments") == 1
    assert connection.llen(DEAD_KEY) == 0
    assert other_app.control.inspect(timeout=0.5).ping() is None
    assert "control command" not in worker.log.read_text()


@pytest.mark.parametrize("command", [("status",), ("inspect", "ping")], ids=" ".join)
def test_celerys_own_command_line_reaches_the_worker(worker, redis, command):
    environment = os.environ | {"KRONOS_REDIS_URL": redis.url}

    def is_shown() -> bool:
        shown = fork_server.run(["celery", "-A", "worker.app", *command], environment)
        return shown.returncode == 0 and worker.node in shown.stdout

    await_true(is_shown, "the worker answers within the command's second")


def test_only_queues_of_its_role_can_be_added_and_changes_are_logged(worker, app):
    refused = ask(app, worker, "add_consumer", queue="payments", exchange="payments", exchange_type="direct")
    assert "'payments' is refused" in refused["error"]
    assert "only from cpu and gpu" in refused["error"]
    assert "ok" in ask(app, worker, "add_consumer", queue="gpu", exchange="bank", routing_key="pay")
    await_true(lambda: sorted(queues_of(app, worker)) == ["cpu", "gpu"], "the queue is added")
    with app.connection_for_read() as connection:
        assert connection.default_channel.get_table("bank") == []
    assert "ok" in ask(app, worker, "cancel_consumer", queue="gpu")
    await_true(lambda: queues_of(app, worker) == ["cpu"], "the queue is left")
    kept = ask(app, worker, "cancel_consumer", queue="cpu")
    assert "'cpu' is refused" in kept["error"]
    assert "stop it by the control command shutdown" in kept["error"]
    assert queues_of(app, worker) == ["cpu"]
    log = worker.log.read_text()
    for command in ("add_consumer", "cancel_consumer"):
        assert f"control command {command}, arguments {{'queue': " in log


def test_commands_that_would_hold_or_fail_jobs_are_refused(worker, app, client, candles):
    arguments = {"task_name": FORECAST_TASK, "rate_limit": "1/h"}
    assert "limit what apps send instead" in ask(app, worker, "rate_limit", **arguments)["error"]
    for command in ("pool_grow", "pool_shrink", "autoscale"):
        assert "start more workers instead" in ask(app, worker, command)["error"]
    assert "and start it again instead" in ask(app, worker, "pool_restart")["error"]
    for _ in range(2):
        client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S)
    assert "Traceback" not in worker.log.read_text()


def test_a_job_is_revoked_by_our_app(worker, app, client, candles):
    assert "flagged as revoked" in ask(app, worker, "revoke", task_id="unwanted")["ok"]
    with pytest.raises(JobError) as ended:
        client.submit(candles[:40], pred_len=2, job_id="unwanted").wait(WAIT_S)
    assert ended.value.code == ErrorCode.CANCELLED
    assert "control command revoke, arguments {'task_id': 'unwanted'}" in worker.log.read_text()


@contextlib.contextmanager
def events_of(app: Celery) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """A connection whose ``drain_events`` adds to the list what a receiver of this app is sent."""
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        channel = connection.default_channel
        for consumer in receiver.get_consumers(lambda **given: Consumer(channel, **given), channel):
            consumer.consume()
        drain(connection)  # subscribes
        yield connection, seen


def drain(connection: Any) -> None:
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.2)


def test_a_job_that_was_cancelled_while_it_waited_ends_in_flower(worker, app, client, candles):
    with events_of(app) as (connection, seen):
        worker.process.send_signal(signal.SIGSTOP)
        client.submit(candles[:40], pred_len=2, job_id="unwanted-2").cancel()
        worker.process.send_signal(signal.SIGCONT)

        def ended() -> list[str]:
            drain(connection)
            of_job = [event for event in seen if event.get("uuid") == "unwanted-2"]
            return [event["exception"] for event in of_job if event["type"] == "task-failed"]

        await_true(ended, "the event")
        assert ended()[0].startswith("JobError('CANCELLED', ")


def test_events_reach_our_receivers_only(worker, app, other_app, client: ForecastClient, candles):
    with events_of(app) as (connection, ours), events_of(other_app) as (other_connection, others):
        handle = client.submit(candles[:40], pred_len=2)
        model = handle.wait(WAIT_S).model.id
        refused = client.submit(candles[:40], pred_len=2, model="other")
        client.feed("us-5min", pred_len=2, sample_count=1).append(
            candles[:40].rename(columns={"timestamps": "ds"}).assign(unique_id="a")
        )

        def has_all() -> bool:
            drain(connection)
            types = {event["type"] for event in ours if event.get("uuid") == handle.id}
            kinds = [event["type"] for event in ours]
            has_ended = kinds.count("task-failed") == 1 and kinds.count("task-succeeded") == 2
            return has_ended and types >= {"task-sent", "task-received", "task-started", "task-succeeded"}

        await_true(has_all, "all events of the jobs")
        done = [event["result"] for event in ours if event["type"] == "task-succeeded"]
        received = [event["kwargs"] for event in ours if event["type"] == "task-received"]
        (failed,) = [event for event in ours if event["type"] == "task-failed"]
        assert done == [f"by {model} on cpu"] * 2
        assert "{'feed': 'us-5min', 'pred_len': 2, 'samples': 1}" in received
        assert failed["uuid"] == refused.id
        assert failed["exception"].startswith("JobError('MODEL_NOT_ALLOWED', ")
        drain(other_connection)
        assert others == []


def test_a_setting_brings_back_the_shared_exchanges(start_worker, app, other_app):
    worker = start_worker(KRONOS_SHARED_EXCHANGES="true", KRONOS_QUEUE_PREFIX="old.").wait_until_ready()
    assert worker.log.read_text().count("KRONOS_SHARED_EXCHANGES is on") == 1
    assert queues_of(other_app, worker) == ["old.cpu"]
    other_app.control.shutdown()
    assert worker.process.wait(WAIT_S) == 0


def test_services_with_different_prefixes_do_not_control_each_other(worker, app, redis, start_worker):
    other = start_worker(KRONOS_QUEUE_PREFIX="other.").wait_until_ready()
    settings = ClientSettings.model_construct(queue_prefix="other.").with_redis_url(redis.url)
    with make_app(settings) as other_service:
        assert queues_of(other_service, other) == ["other.cpu"]
        other_service.control.shutdown()
    assert other.process.wait(WAIT_S) == 0
    assert queues_of(app, worker) == ["cpu"]


def test_our_app_shuts_a_worker_down(worker, app):
    app.control.shutdown([worker.node])
    assert worker.process.wait(WAIT_S) == 0
    assert "control command shutdown, arguments {}" in worker.log.read_text()
