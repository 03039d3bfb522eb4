"""A task that is cancelled while its job is on its way leaves none behind."""

import asyncio
import threading

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.async_sending import _Sending, sent
from kronos_client.core.retrying import Retries
from tests.waiting import WAIT_S


class FakeHandle:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


class FakeSend:
    """Enqueues once it may."""

    def __init__(self) -> None:
        self.handle = FakeHandle()
        self.is_begun, self.may_end, self.is_done = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> FakeHandle:
        self.is_begun.set()
        assert self.may_end.wait(WAIT_S)
        self.is_done.set()
        return self.handle


async def cancelled_amid(send: FakeSend, *, may_stay: bool) -> None:
    sending = asyncio.create_task(sent(send, Retries(0), may_stay=may_stay))
    await asyncio.to_thread(send.is_begun.wait, WAIT_S)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert not send.is_done.is_set()
    send.may_end.set()


def test_a_job_that_nobody_can_ask_for_is_cancelled_once_it_is_enqueued():
    send = FakeSend()
    asyncio.run(cancelled_amid(send, may_stay=False))
    assert send.handle.cancelled.wait(WAIT_S)


def test_a_job_whose_id_is_the_callers_stays():
    send = FakeSend()
    asyncio.run(cancelled_amid(send, may_stay=True))  # it waits for its threads
    assert send.is_done.is_set()
    assert not send.handle.cancelled.is_set()


def test_of_a_job_that_is_enqueued_already_the_caller_is_told():
    sending = _Sending(handle := FakeHandle)
    given = sending.run()
    assert sending.give_up() is given
    assert isinstance(given, handle)
    assert not given.cancelled.is_set()


def test_a_refusal_is_tried_again():
    send = FakeSend()
    send.may_end.set()
    refusals = [JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": 0.01})]

    def refused_once() -> FakeHandle:
        if refusals:
            raise refusals.pop()
        return send()

    assert asyncio.run(sent(refused_once, Retries(WAIT_S), may_stay=False)) is send.handle
