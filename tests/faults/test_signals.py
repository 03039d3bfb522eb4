"""SIGTERM and SIGINT, once and twice: running jobs end or are handed back, and nothing is left running."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kronos_cli.stack.services import worker_names
from kronos_client.client import ForecastClient
from tests import fork_server
from tests.faults.accounting import Accounts
from tests.faults.conftest import Note
from tests.faults.fleet import MARK, Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.conftest import PARITY_SETTINGS
from tests.integration.test_one_machine import await_match
from tests.ports import free_port
from tests.waiting import WAIT_S, await_true

GRACE_S = 60
TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


def at_length(*signals: signal.Signals) -> object:
    return pytest.param(signals, marks=pytest.mark.at_length)


@pytest.mark.parametrize(
    "signals",
    [(TERM,), at_length(INT), at_length(TERM, TERM), (INT, INT)],
    ids=lambda s: "-".join(x.name for x in s),
)
def test_a_worker_that_gets_signals_loses_nothing(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, note: Note, signals
):
    worker = fleet.start(KRONOS_MAX_JOBS="16")
    accounts.submit_many(client, "long", 40)
    await_true(lambda: len(accounts.in_hand(worker.node)) >= 16, "it is busy")
    began = time.monotonic()
    status = worker.end(*signals, timeout_s=GRACE_S)
    note("ended after s", time.monotonic() - began)
    assert status == 0, fleet.logs()
    fleet.assert_no_orphans()
    if len(signals) == 1:  # it had the time to come to an end with all
        assert redis.held().keys() <= {"kronos.forecast.unacked_mutex"}
    fleet.start()
    accounts.assert_balanced()


class Stack:
    """``kronos up`` on data of its own."""

    def __init__(self, folder: Path, mark: dict[str, str], num_workers: int, *options: str) -> None:
        self.data, self._folder, self._mark = folder / "up", folder, mark
        self._options = ["--workers", str(num_workers), *options]
        self._worker_names = worker_names(num_workers)
        self._num_starts = 0
        self._ports = [str(free_port()) for _ in range(2)]

    def start(self) -> str:
        """Its Redis's URL, once all workers are ready."""
        self._num_starts += 1
        self.log = self._folder / f"up-{self._num_starts}.log"
        ports = ["--redis-port", self._ports[0], "--flower-port", self._ports[1]]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
        settings = PARITY_SETTINGS | {"KRONOS_VISIBILITY_TIMEOUT_S": "3"}
        with self.log.open("w") as output:
            self.process = fork_server.Process(
                ["kronos_cli", "up", "--data", str(self.data), *ports, *self._options],
                inherited | settings | self._mark,
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        url = await_match(self.log, r"KRONOS_REDIS_URL=(\S+)")
        for name in self._worker_names:
            await_match(self.log, rf"^{name} +\| .*(ready\.)")
        return url


class RedisOfStack(RedisUnderFault):
    """The one that the stack started, for the accounts."""

    def __init__(self, url: str) -> None:
        from redis import Redis

        self.url = url
        self.connection = Redis.from_url(url, decode_responses=True)


def test_a_stack_that_is_ended_again_and_again_loses_nothing(
    tmp_path: Path, candles, forecasts, at_length: bool, note: Note
):
    """SIGTERM; at length SIGINT, a second one, which ends all at once, and SIGKILL: each time it goes on."""
    mark = {MARK: str(tmp_path)}
    stack = Stack(tmp_path, mark, 2) if at_length else Stack(tmp_path, mark, 1, "--no-finetune", "--no-api")
    redis = RedisOfStack(stack.start())
    fleet = Fleet(redis, tmp_path)
    accounts = Accounts("stack", redis, candles, forecasts, fleet)
    try:
        with ForecastClient(redis.url) as client:
            # After SIGKILL the guards give workers their 60 s, which they need where Redis ends first.
            for signals in ((TERM,), (INT,), (INT, INT), (KILL,)) if at_length else ((TERM,),):
                begun = set(accounts.listener.events)
                accounts.submit_many(client, "heavy", 40 if at_length else 16)
                await_true(lambda begun=begun: set(accounts.listener.events) - begun, "it is busy")
                began = time.monotonic()
                for number in signals:
                    stack.process.send_signal(number)
                    time.sleep(0.3)
                status = stack.process.wait(WAIT_S)
                assert status == (-KILL if KILL in signals else 0), stack.log.read_text()[-3000:]
                fleet.assert_no_orphans()
                note(f"{'+'.join(one.name for one in signals)} ended after s", time.monotonic() - began)
                stack.start()
            accounts.assert_balanced(may_repeat=True)
        stack.process.send_signal(TERM)
        assert stack.process.wait(WAIT_S) == 0
        fleet.assert_no_orphans()
    finally:
        accounts.close()
        fleet.end_all()
