"""How failures are stored: a code, and nothing of the worker's machine."""

import json
from typing import Any

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from kronos_client.celery_app import make_app
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ErrorReport
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import delivery_keys
from tests.result_backends import with_result_backend
from tests.taking import begin_one
from tests.waiting import WAIT_S
from worker.broker.result_backend import CodedRedisBackend

FULL_ERROR = JobError(ErrorCode.NOT_FINITE, "row 3 holds NaN", "series.0.close", {"row": 3})


KEYS = delivery_keys("test.unacked")
STARTED = '{"status": "STARTED"}'


@pytest.fixture
def app(settings):
    with make_app(settings) as app:
        with_result_backend(app, KEYS)

        @app.task(name="test.run", shared=False)
        def run(kind: str) -> str:
            if kind == "coded":
                raise FULL_ERROR
            if kind == "defect":
                raise ZeroDivisionError("at /srv/private/path.py")
            return kind

        yield app


@pytest.fixture
def jobs(settings, redis) -> JobStore:
    """What workers see of the jobs."""
    return JobStore(redis, settings.result_ttl_s, KEYS)


def trace(app: Celery, kind: str) -> str:
    """Run the task as a worker's pool does; its outcome goes to the result backend."""
    task, task_id = app.tasks["test.run"], uuid()
    # What it raises is for the worker's own log.
    build_tracer(task.name, task, app=app)(task_id, (kind,), {}, {"id": task_id})
    return task_id


def stored(redis: Any, task_id: str) -> dict[str, Any]:
    """The raw text in Redis, as a client in any language reads it."""
    return json.loads(redis.get(f"celery-task-meta-{task_id}"))


def assert_coded(meta: dict[str, Any], code: ErrorCode) -> list[Any]:
    assert meta["status"] == states.FAILURE
    assert meta["traceback"] is None
    report = ErrorReport.model_validate(meta["result"])
    assert report.exc_message[0] == code
    return meta["result"]["exc_message"]


def test_a_coded_error_is_stored_whole_and_without_traceback(app, redis):
    message = assert_coded(stored(redis, trace(app, "coded")), ErrorCode.NOT_FINITE)
    assert message == ["NOT_FINITE", "row 3 holds NaN", "series.0.close", {"row": 3}]


def test_any_other_exception_gets_a_code_and_shows_nothing_of_the_machine(app, redis):
    meta = stored(redis, trace(app, "defect"))
    message = assert_coded(meta, ErrorCode.INTERNAL)
    assert "ZeroDivisionError" in message[1]
    assert "path.py" not in json.dumps(meta)


SIGNATURE = {"task": "after", "args": [], "kwargs": {}, "options": {}}


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize(
    "after",
    [
        {"chain": [SIGNATURE | {"options": {"task_id": "next", "eta": 5}}]},
        {"callbacks": [SIGNATURE | {"subtask_type": "group"}]},
        {"callbacks": [SIGNATURE | {"options": {"compression": "none"}}]},
    ],
)
def test_what_follows_a_job_and_cannot_be_sent_costs_it_no_result(app, redis, after):
    @app.task(name="test.finish", shared=False, bind=True)
    def finish(self) -> dict[str, Any]:
        self.request.finished = {"warnings": []}
        return self.request.finished

    info = build_tracer(finish.name, finish, app=app)("a", (), {}, {"id": "a", "delivery_info": {}} | after)
    assert info.info is not None  # Celery reports an error
    meta = stored(redis, "a")
    assert meta["status"] == states.SUCCESS
    assert len(meta["result"]["warnings"]) == 1
    if "chain" in after:
        assert_coded(stored(redis, "next"), ErrorCode.INTERNAL)


@pytest.mark.parametrize("reason", ["revoked", "terminated"])
def test_a_revoked_job_ends_as_cancelled(app, redis, reason):
    task_id = uuid()
    app.backend.mark_as_revoked(task_id, reason)
    assert_coded(stored(redis, task_id), ErrorCode.CANCELLED)


def test_another_app_reads_code_message_field_and_details(app, settings):
    url = settings.redis_url.get_secret_value()
    with Celery("other", broker=url, backend=url, set_as_current=False) as other:
        result = AsyncResult(trace(app, "coded"), app=other)
        with pytest.raises(Exception) as ended:  # noqa: PT011  it has no class of ours to name
            result.get(timeout=WAIT_S)
    assert list(ended.value.args) == list(FULL_ERROR.args)


def claimed(app: Celery, task_id: str, tag: str) -> None:
    """A job that a worker has, or had when it vanished."""
    backend: Any = app.backend
    assert begin_one(backend.store, task_id, STARTED, tag, 60.0).held_s == 0


def context(tag: str, task_id: str = "job") -> Context:
    """A task's request, of the delivery with this tag."""
    return Context({"id": task_id}, properties={"delivery_tag": tag})


def test_a_revocation_cancels_the_job_that_another_worker_has(app, redis, jobs):
    claimed(app, "job", "theirs")
    app.backend.mark_as_revoked("job", "revoked", Context({"id": "job"}))
    assert stored(redis, "job")["status"] == "STARTED"
    assert jobs.is_cancelled("job")


def test_a_revocation_ends_a_job_whose_worker_is_gone(app, redis):
    claimed(app, "job", "theirs")
    redis.zrem(KEYS.renewed, "theirs")
    app.backend.mark_as_revoked("job", "revoked", context("ours"))
    assert_coded(stored(redis, "job"), ErrorCode.CANCELLED)


def test_a_revocation_cancels_the_job_that_runs_here(app, redis, jobs, monkeypatch):
    claimed(app, "job", "ours")
    monkeypatch.setattr(CodedRedisBackend, "runs_here", staticmethod(lambda job_id: job_id == "job"))
    app.backend.mark_as_revoked("job", "terminated", context("ours"))
    assert stored(redis, "job")["status"] == "STARTED"
    assert jobs.is_cancelled("job")
    assert jobs.renew({"ours": "job"}, timeout_s=60) == {"ours": True}


def test_what_has_the_id_of_another_job_under_way_is_recognised(app, jobs):
    backend: Any = app.backend

    def begin(tag: str, content: str) -> Any:
        return begin_one(backend.store, "job", STARTED, tag, 60.0, content)

    assert begin("a", "one").held_s == 0
    assert begin("b", "other") == "conflict"
    assert begin("b", "one").held_s > 0  # a second delivery waits
    backend.store_result("job", {}, "SUCCESS", request=context("a"))
    backend.client.delete("celery-task-meta-job")  # its result is no longer kept
    assert begin("b", "other").held_s == 0
