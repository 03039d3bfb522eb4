"""Generated error replies: every accepted job ends once, with the same numbers, and every worker lives.

With ``--faults`` each test generates ``FAULT_EXAMPLES`` cases; ``FAULT_CASE`` repeats one.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from tests.faults.accounting import Accounts, Forecasts
from tests.faults.conftest import MakeClient
from tests.faults.error_replies import ERRORS, Case, each_case
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy
from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.finetune_bench import FAKE, Bench
from tests.waiting import WAIT_S

NUM_SHORT = 3
BUSY, NOPERM = ERRORS[0], ERRORS[5]
"""The scripts that store an outcome."""
ENDED_S = 60


@pytest.fixture
def size(at_length: bool) -> tuple[int, float]:
    """The number of generated cases, and the seconds that one lasts at most."""
    return (int(os.environ.get("FAULT_EXAMPLES", 100)), 12.0) if at_length else (NUM_SHORT, 1.0)


@pytest.fixture
def client_proxy(redis: RedisUnderFault) -> Iterator[FaultyProxy]:
    with FaultyProxy(redis.url) as proxy:
        yield proxy


@pytest.fixture
def make_accounts(
    redis: RedisUnderFault, candles: pd.DataFrame, forecasts: Forecasts, fleet: Fleet
) -> Callable[[], Accounts]:
    numbers = iter(range(10**6))
    return lambda: Accounts(f"case{next(numbers)}", redis, candles, forecasts, fleet)


def wait_again(wait: Callable[[float], object]) -> object:
    """Wait for an outcome as an app should: again, if Redis does not answer."""
    while True:
        try:
            return wait(WAIT_S)
        except JobError as error:
            if error.code != ErrorCode.BROKER_UNREACHABLE:
                return error


def until_reached(call: Callable[[], object]) -> None:
    while True:
        try:
            call()
            return
        except JobError as error:
            if error.code != ErrorCode.BROKER_UNREACHABLE:
                raise


def test_forecasts(
    fleet: Fleet,
    redis: RedisUnderFault,
    proxy: FaultyProxy,
    client_proxy: FaultyProxy,
    make_client: MakeClient,
    make_accounts: Callable[[], Accounts],
    size: tuple[int, float],
) -> None:
    behind = make_client(client_proxy.url)

    def run(case: Case) -> None:
        if not fleet.running:
            fleet.start(KRONOS_REDIS_URL=proxy.url)
        (client_proxy if case.is_client else proxy).rules = [case.rule()]
        accounts = make_accounts()
        try:
            handles = [
                accounts.submit_until_accepted(behind, form)[0] for form in ("long", "small", "wide", "small")
            ]
            if case.is_cut:
                redis.kill_connections()
            until_reached(handles[0].cancel)
            accounts.settle(ENDED_S)
            waited = [wait_again(handle.wait) for handle in handles]
            assert not any(isinstance(outcome, JobError) for outcome in waited[1:]), waited
            accounts.assert_balanced(allowed=[ErrorCode.CANCELLED], may_repeat=True)
            assert len(fleet.running) == 1, fleet.logs()
        finally:
            proxy.rules = client_proxy.rules = []
            accounts.close()

    each_case(
        run,
        *size,
        Case("script end", NOPERM, is_after=False, skip=0, lasts_s=1.0),
        Case("any", BUSY, is_after=True, skip=8, lasts_s=1.0),
    )


def test_training_and_backtests(
    fleet: Fleet,
    redis: RedisUnderFault,
    proxy: FaultyProxy,
    client_proxy: FaultyProxy,
    make_client: MakeClient,
    make_accounts: Callable[[], Accounts],
    candles: pd.DataFrame,
    size: tuple[int, float],
    tmp_path: Path,
) -> None:
    (tmp_path / "bench").mkdir()
    behind: ForecastClient = make_client(client_proxy.url)
    bench = Bench(tmp_path / "bench", fleet.begin, behind)  # type: ignore[arg-type]
    options = {"windows": 2, "horizon": 2, "samples": 2, "lookback": 32}
    num_trained = 0

    def run(case: Case) -> None:
        nonlocal num_trained
        if len(fleet.running) < 2:
            fleet.end_all()
            fleet.start(KRONOS_REDIS_URL=proxy.url, PACE_S="0")
            fleet.start(*FAKE, **bench.settings | {"KRONOS_REDIS_URL": proxy.url})
        (client_proxy if case.is_client else proxy).rules = [case.rule()]
        accounts = make_accounts()
        try:
            handles = [
                submit_again(accounts, lambda job_id: bench.submit(4, job_id=job_id)),
                submit_again(
                    accounts,
                    lambda job_id: behind.submit_backtest({"A": candles}, job_id=job_id, **options),
                ),
            ]
            if case.is_cut:
                redis.kill_connections()
            accounts.settle(ENDED_S)
            waited = [wait_again(handle.wait) for handle in handles]
            assert not any(isinstance(outcome, JobError) for outcome in waited), waited
            accounts.assert_balanced(may_repeat=True)
            num_trained += 1
            assert len(list(bench.models.glob("mine/*/metadata.json"))) == num_trained
            assert len(fleet.running) == 2, fleet.logs()
        finally:
            proxy.rules = client_proxy.rules = []
            accounts.close()

    each_case(run, *size, Case("any", BUSY, is_after=False, skip=20, lasts_s=1.0))


def submit_again(accounts: Accounts, submit):  # type: ignore[no-untyped-def]
    """Submit under one id until it is accepted."""
    job_id = accounts.next_id()
    while True:
        try:
            handle = submit(job_id)
        except JobError as error:
            if error.code not in (ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN):
                raise
            continue
        accounts.count(job_id)
        return handle
