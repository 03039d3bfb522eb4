"""A Redis that may fail, workers that may be killed, and accounts of every job.

By default each fault is short, so that all of them take minutes together; ``--faults`` runs them at length.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from kronos_client.client import ForecastClient
from tests.faults.accounting import Accounts, Forecasts, undisturbed
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy
from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.conftest import PARITY
from worker.settings import WorkerSettings

HERE = Path(__file__).parent
SHORT_TIMEOUT_S = 3
LONG_TEST_S = 3600

MakeClient = Callable[..., ForecastClient]
Note = Callable[[str, object], None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)
            if config.getoption("--faults"):
                item.add_marker(pytest.mark.timeout(LONG_TEST_S))


@pytest.fixture(scope="module", autouse=True)
def draw_one_path(one_path: None) -> None:
    """For all tests of the folder."""


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """Keeps a figure for the run's summary; seconds to a tenth."""

    def rounded(value: object) -> object:
        if isinstance(value, list):
            return [rounded(one) for one in value]
        return round(value, 1) if isinstance(value, float) else value

    return lambda name, value: record_property(name, rounded(value))


@pytest.fixture(scope="session")
def at_length(request: pytest.FixtureRequest) -> bool:
    """Whether faults last as long as in service."""
    return bool(request.config.getoption("--faults"))


@pytest.fixture(scope="session")
def candles() -> pd.DataFrame:
    return pd.read_csv(PARITY / "candles.csv")


@pytest.fixture(scope="session")
def forecasts(candles: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    """The undisturbed forecast of every form and seed. All processes of a run share them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_folder = folder.parents[1] if "PYTEST_XDIST_WORKER" in os.environ else folder
    shared = run_folder / "undisturbed.json"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            redis = RedisUnderFault(folder / "redis")
            fleet = Fleet(redis, folder)
            try:
                fleet.start(PACE_S="0")
                with ForecastClient(redis.url) as client:
                    found = undisturbed(client, candles)
            finally:
                fleet.stop()
                redis.stop()
            shared.write_text(json.dumps([[*key, list(closes)] for key, closes in found.items()]))
    return {(form, seed): closes for form, seed, closes in json.loads(shared.read_text())}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisUnderFault]:
    server = RedisUnderFault(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def fleet(redis: RedisUnderFault, tmp_path: Path) -> Iterator[Fleet]:
    """Workers with a short visibility timeout; none of their processes may be left at the end."""
    fleet = Fleet(redis, tmp_path, KRONOS_VISIBILITY_TIMEOUT_S=str(SHORT_TIMEOUT_S))
    try:
        yield fleet
        fleet.stop()
    finally:
        fleet.end_all()


@pytest.fixture
def proxy(redis: RedisUnderFault) -> Iterator[FaultyProxy]:
    with FaultyProxy(redis.url) as proxy:
        yield proxy


@pytest.fixture
def make_client(redis: RedisUnderFault) -> Iterator[MakeClient]:
    """Clients of this Redis, or of another URL, with settings of their own."""
    with contextlib.ExitStack() as exits:

        def make(url: str | None = None, **settings: object) -> ForecastClient:
            return exits.enter_context(
                ForecastClient(url or redis.url, settings=WorkerSettings.load(**settings))
            )

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> ForecastClient:
    return make_client()


@pytest.fixture
def accounts(
    request: pytest.FixtureRequest,
    redis: RedisUnderFault,
    candles: pd.DataFrame,
    forecasts: Forecasts,
    fleet: Fleet,
) -> Iterator[Accounts]:
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[5:45]
    accounts = Accounts(name, redis, candles, forecasts, fleet)
    yield accounts
    accounts.close()
