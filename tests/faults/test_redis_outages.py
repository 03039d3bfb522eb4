"""Redis restarted, paused and gone under load: nothing accepted is lost, and all come back by themselves."""

import threading
import time
from contextlib import contextmanager

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient, Note
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true

CLIENT_TIMEOUT_S = 25
"""A client reports a Redis that does not answer within this time: 20 s, and a margin."""


class Feeder:
    """A client on a thread that enqueues one job after the other, and again under the same id if in doubt."""

    def __init__(self, accounts: Accounts, client: ForecastClient, form: str = "small") -> None:
        self.refusals: list[tuple[str, float]] = []
        self.error: Exception | None = None
        self._accounts = accounts
        self._client = client
        self._form = form
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    @contextmanager
    def feeding(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join(120)
        assert not self._thread.is_alive(), "the client hangs"
        if self.error is not None:
            raise self.error

    def _feed(self) -> None:
        try:
            while not self._is_over.wait(0.05):
                _, refusals = self._accounts.submit_until_accepted(self._client, self._form, 180)
                self.refusals += refusals
        except Exception as error:  # noqa: BLE001 - reported to the test's own thread
            self.error = error

    def codes(self) -> set[str]:
        return {code for code, _ in self.refusals}

    def longest_s(self) -> float:
        return max((seconds for _, seconds in self.refusals), default=0.0)


def work_again(redis: RedisUnderFault, accounts: Accounts, client: ForecastClient) -> float:
    """Seconds from now until a job that is enqueued anew has its result."""
    began = time.monotonic()
    handle, _ = accounts.submit_until_accepted(client, "small")
    await_true(lambda: handle.id in accounts.ended([handle.id]), "a job is done again")
    return time.monotonic() - began


def test_redis_restarted_again_and_again_under_load(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    make_client: MakeClient,
    at_length: bool,
    note: Note,
):
    for worker in [fleet.begin() for _ in range(2)]:
        worker.wait_until_ready()
    recoveries_s = []
    with Feeder(accounts, make_client()).feeding() as feeder:
        for number in range(5 if at_length else 2):
            accounts.submit_many(client, "long", 16)
            (redis.stop if number % 2 else redis.kill)()
            redis.start()
            recoveries_s.append(work_again(redis, accounts, client))
    note("a new job done after s", recoveries_s)
    assert len(fleet.running) == 2, fleet.logs()
    assert feeder.codes() <= {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN}
    accounts.assert_balanced(may_repeat=True)


@pytest.mark.parametrize("how", ["paused", "away"])
def test_redis_that_does_not_answer_for_long(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    make_client: MakeClient,
    at_length: bool,
    note: Note,
    how: str,
):
    # A client reports a paused Redis after at most 20 s, so the pause is longer.
    outage_s = {"paused": (22, 30), "away": (10, 120)}[how][at_length]
    for worker in [fleet.begin() for _ in range(2)]:
        worker.wait_until_ready()
    accounts.submit_many(client, "long", 48)
    waiting = accounts.submit(client, "long")
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(outcome_of(waiting)), daemon=True)
    waiter.start()
    with Feeder(accounts, make_client()).feeding() as feeder:
        time.sleep(0.5)
        with getattr(redis, how)():
            time.sleep(outage_s)
        recovery_s = work_again(redis, accounts, client)
    note("a new job done after s", recovery_s)
    note("longest refusal s", feeder.longest_s())
    assert len(fleet.running) == 2, fleet.logs()
    assert feeder.refusals, "no enqueueing met the outage"
    assert feeder.codes() <= {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN}
    accounts.assert_balanced(may_repeat=True)
    waiter.join(CLIENT_TIMEOUT_S + outage_s)
    # A waiting client gets the result, or soon an error that Redis does not answer, and may wait again.
    (answer,) = answers
    assert answer == "" or answer == ErrorCode.BROKER_UNREACHABLE
    assert waiting.wait(WAIT_S).series


def outcome_of(handle) -> str:
    try:
        handle.wait(180)
    except JobError as error:
        return error.code
    return ""
