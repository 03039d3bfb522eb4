"""A task that is cancelled while its job is being sent leaves none behind."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.schemas import example
from kronos_client.core.core import Core
from kronos_client.core.job import Job, forecast_job
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeForecastClient

WAIT_S = 10
SETTINGS = ClientSettings.model_construct()
JOB = forecast_job(example("forecast-job"), "a", SETTINGS)


def make_job() -> Job:
    return JOB


class SlowDispatcher:
    """Sends a job once it may."""

    def __init__(self) -> None:
        self.is_begun, self.may_end, self.is_done = threading.Event(), threading.Event(), threading.Event()
        self.is_cancelled = threading.Event()
        self.refusals: list[JobError] = []

    def shared(self, job: Job, scope: str | None) -> Job:
        return job

    def send_all(self, jobs: Sequence[Job]) -> list[str | JobError]:
        self.is_begun.set()
        assert self.may_end.wait(WAIT_S)
        if self.refusals:
            return [self.refusals.pop()]
        self.is_done.set()
        return ["cpu"]

    def try_to_cancel(self, job_id: str) -> None:
        assert job_id == JOB.id
        self.is_cancelled.set()


@pytest.fixture
def slow() -> SlowDispatcher:
    return SlowDispatcher()


def core_of(dispatcher: SlowDispatcher) -> Core:
    return Core(SETTINGS, dispatcher, store=None)  # type: ignore[arg-type]  # nothing is waited for


async def cancelled_amid(slow: SlowDispatcher, *, may_stay: bool) -> None:
    sending = asyncio.create_task(core_of(slow).send(make_job, may_stay=may_stay))
    await asyncio.to_thread(slow.is_begun.wait, WAIT_S)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert not slow.is_done.is_set()
    slow.may_end.set()


def test_a_job_that_nobody_can_ask_for_is_cancelled_once_it_is_enqueued(slow):
    asyncio.run(cancelled_amid(slow, may_stay=False))
    assert slow.is_cancelled.wait(WAIT_S)


def test_a_job_whose_id_is_the_callers_stays(slow):
    asyncio.run(cancelled_amid(slow, may_stay=True))  # it waits for its threads
    assert slow.is_done.is_set()
    assert not slow.is_cancelled.is_set()


def test_a_job_that_was_just_enqueued_is_cancelled_too(slow):
    slow.may_end.set()

    async def cancelled_after() -> None:
        async def call(function, *arguments):
            function(*arguments)
            await asyncio.sleep(WAIT_S)  # the thread is done, and its caller does not know yet

        core = core_of(slow)
        core.call = call
        sending = asyncio.create_task(core.send(make_job, may_stay=False))
        while not slow.is_done.is_set():
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(cancelled_after())
    assert slow.is_cancelled.wait(WAIT_S)


def test_a_refusal_is_tried_again(slow):
    slow.may_end.set()
    slow.refusals.append(JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": 0.01}))
    assert asyncio.run(core_of(slow).send(make_job, WAIT_S, may_stay=False)) == (JOB, "cpu")


def test_a_job_is_checked_and_written_as_json_once(monkeypatch):
    checks = []
    for name in ("contract.jobs.check_job", "core.job.check_series", "core.job.canonical_json"):
        monkeypatch.setattr(f"kronos_client.{name}", _counted(f"kronos_client.{name}", checks))
    client = FakeForecastClient(hold=True)
    client.refuse_next(JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": 0.01}), times=2)
    client.submit_job(example("forecast-job"), retry_for_s=WAIT_S)
    assert checks == ["check_job", "canonical_json", "check_series"]


def _counted(path: str, calls: list[str]):
    module, _, name = path.rpartition(".")
    function = getattr(__import__(module, fromlist=[name]), name)

    def counted(*arguments):
        calls.append(name)
        return function(*arguments)

    return counted


def test_a_job_that_may_be_queued_is_cancelled_with_the_task_that_was_to_send_it_again(slow):
    slow.refusals.append(JobError(ErrorCode.ENQUEUE_UNCERTAIN, "no answer"))
    slow.may_end.set()

    async def cancelled_between_attempts() -> None:
        sending = asyncio.create_task(core_of(slow).send(make_job, may_stay=False, retry_for_s=WAIT_S))
        while slow.refusals:
            await asyncio.sleep(0.001)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(cancelled_between_attempts())
    assert slow.is_cancelled.wait(WAIT_S)
