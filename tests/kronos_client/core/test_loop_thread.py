"""A client for callers without an event loop: prompt, for many threads, inside loops, and after a fork."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.handle import LoopClosed, LoopThread
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import RESULT
from tests.waiting import WAIT_S, await_true

CANDLES = candles(seed=1, bars=60).as_dict()


def test_many_threads_share_one_client_and_one_connection(client, backend, redis):
    results = []
    handles = [client.submit(CANDLES, pred_len=5) for _ in range(20)]
    before = len(redis.client_list())
    threads = [
        threading.Thread(target=lambda handle=handle: results.append(handle.wait(WAIT_S)))
        for handle in handles
    ]
    for thread in threads:
        thread.start()
    while len(redis.pubsub_channels("celery-*")) < 20:
        time.sleep(0.01)
    assert len(redis.client_list()) <= before + 1
    for handle in handles:
        backend.mark_as_done(handle.id, RESULT.model_dump(mode="json"))
    for thread in threads:
        thread.join()
    assert results == [RESULT] * 20


def test_it_works_inside_a_running_event_loop(client, backend):
    async def main() -> None:
        handle = client.submit(CANDLES, pred_len=5)
        backend.mark_as_done(handle.id, RESULT.model_dump(mode="json"))
        assert handle.wait(WAIT_S) == RESULT
        assert [one.error.code for one in client.forecast_many([{}], pred_len=5)] == ["EMPTY_SERIES"]

    asyncio.run(main())


WAITS = {
    "wait": lambda client, handle: handle.wait(WAIT_S),
    "progress": lambda client, handle: list(handle.progress()),
    "forecast_many": lambda client, handle: list(client.forecast_many([CANDLES], pred_len=5)),
}


@pytest.mark.parametrize("wait", WAITS)
def test_an_interrupt_ends_the_waiting_at_once(client, redis, wait):
    def interrupt_the_wait() -> None:
        await_true(redis.pubsub_channels)
        os.kill(os.getpid(), signal.SIGINT)

    handle = client.submit(CANDLES, pred_len=5)
    interrupt = threading.Thread(target=interrupt_the_wait)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        WAITS[wait](client, handle)
    interrupt.join()
    handle.cancel()  # it goes on; and so does the client
    with pytest.raises(JobError, match=ErrorCode.CANCELLED):
        handle.wait(WAIT_S)


def test_a_client_that_was_made_before_a_fork_works_in_the_child(client, backend):
    handle, other = (client.submit(CANDLES, pred_len=5) for _ in range(2))
    with pytest.raises(JobError, match=ErrorCode.TIMEOUT):
        handle.wait(0.01)  # its thread and its connections are there
    child = os.fork()
    if child == 0:
        status = 1
        try:
            backend.mark_as_done(handle.id, RESULT.model_dump(mode="json"))
            assert handle.wait(WAIT_S) == RESULT
            new = client.submit(CANDLES, pred_len=5)
            new.cancel()
            with pytest.raises(JobError, match=ErrorCode.CANCELLED):
                new.wait(WAIT_S)
            status = 0
        finally:
            os._exit(status)
    assert handle.wait(WAIT_S) == RESULT  # and in the parent as before
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    backend.mark_as_done(other.id, RESULT.model_dump(mode="json"))
    assert other.wait(WAIT_S) == RESULT


@pytest.mark.parametrize("on_progress", [None, lambda state: None])
def test_closing_ends_what_waits_on_other_threads(client, redis, on_progress):
    ended = []

    def wait() -> None:
        try:
            handle.wait(WAIT_S, on_progress=on_progress)
        except RuntimeError as error:
            ended.append(str(error))

    handle = client.submit(CANDLES, pred_len=5)
    thread = threading.Thread(target=wait)
    thread.start()
    await_true(redis.pubsub_channels)
    client.close()
    thread.join(WAIT_S)
    assert ended == [f"the client was closed while it waited for the job {handle.id}"]


def test_closing_ends_every_call_of_other_threads():
    ended = []

    class EmptyCore:
        async def close(self) -> None:
            pass

    def call_until_closed(running) -> None:
        try:
            while True:
                running.run(asyncio.sleep(0))
        except LoopClosed as error:
            ended.append(str(error))

    for _ in range(100):  # the moment of closing differs
        loop = LoopThread(EmptyCore)
        loop.run(lambda core: asyncio.sleep(0))
        threads = [threading.Thread(target=call_until_closed, args=(loop.start(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        loop.close()
        for thread in threads:
            thread.join(WAIT_S)
    assert ended == ["the client was closed by another thread"] * 300


def test_closing_between_two_states_ends_the_wait(client):
    handle = client.submit(CANDLES, pred_len=5)
    with pytest.raises(RuntimeError, match=f"the client was closed while it waited for the job {handle.id}"):
        handle.wait(WAIT_S, on_progress=lambda state: client.close())


def test_closing_the_client_closes_its_connections(settings, redis):
    before = {connection["id"] for connection in redis.client_list()}
    with ForecastClient(settings=settings) as client:
        assert client.submit(CANDLES, pred_len=5).state().name
        assert {connection["id"] for connection in redis.client_list()} - before
    await_true(lambda: {connection["id"] for connection in redis.client_list()} <= before)


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_client_that_is_never_closed_ends_its_thread_as_it_is_collected(kind, settings):
    before = set(threading.enumerate())
    client = FakeForecastClient() if kind == "fake" else ForecastClient(settings=settings)
    assert client.submit(CANDLES, pred_len=5).state().name
    (thread,) = [one for one in threading.enumerate() if one not in before and one.name == "kronos-client"]
    del client
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_the_client_cancels_what_a_loop_left_under_way(client, settings, redis):
    outcomes = client.forecast_many([{}, CANDLES], pred_len=5, in_order=False)
    assert next(outcomes).error.code == ErrorCode.EMPTY_SERIES
    while not (keys := redis.keys("kronos:job:*")):
        time.sleep(0.01)
    client.close()  # as where the loop was left by an error
    outcomes.close()
    with ForecastClient(settings=settings) as other, pytest.raises(JobError, match=ErrorCode.CANCELLED):
        other.forecast_handle(keys[0].removeprefix("kronos:job:")).wait(WAIT_S)


LEFT_BY_AN_ERROR = """
import sys
from kronos_client.client import ForecastClient
from kronos_model.bars.synthetic import candles
with ForecastClient(sys.argv[1]) as client:
    run = client.forecast_many([{}] * 3, pred_len=5)
    next(run).unwrap()
"""


def test_a_program_that_an_error_ends_says_nothing_else(redis_server):
    """The generator is closed after its client, while the interpreter shuts down."""
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_BY_AN_ERROR, redis_server.url],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Exception ignored" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("kronos_client.contract.errors.JobError: EMPTY_SERIES")


LEFT_OPEN = """
import sys
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_model.bars.synthetic import candles
client = ForecastClient(sys.argv[1])
run = client.forecast_many([candles(seed=1, bars=60).as_dict()] * 3, pred_len=5, timeout_s=0.2)
print(next(run).error.code)
"""


def test_a_program_that_closes_nothing_ends_quietly(redis_server, redis):
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, redis_server.url], capture_output=True, text=True, timeout=WAIT_S
    )
    said = "No worker serves the queue cpu. Jobs wait until one does; start one with: kronos worker\n"
    assert (ended.stdout, ended.stderr, ended.returncode) == ("TIMEOUT\n", said, 0)
