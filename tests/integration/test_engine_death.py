"""A worker whose engine dies: the process ends, and another one gets the job."""

import pytest

from tests.integration.conftest import StartWorker, WorkerUnderTest
from tests.waiting import WAIT_S
from worker.inference.forced_shutdown import EXIT_STATUS

INCLUDE = ("--include", "tests.faults.faulty_engine")
SETTINGS = {"KRONOS_VISIBILITY_TIMEOUT_S": "4"}


@pytest.fixture
def start_dying(start_worker: StartWorker, tmp_path):
    def start(*arguments: str, fault: str = "die", **settings: str) -> WorkerUnderTest:
        (tmp_path / fault).touch()
        settings = SETTINGS | {"FAULTY_ENGINE": str(tmp_path)} | settings
        return start_worker(*INCLUDE, "--loglevel", "INFO", *arguments, **settings)

    return start


@pytest.mark.parametrize("fault", ["die", "lose-device"])
def test_the_worker_ends_and_another_one_does_the_job(start_worker, start_dying, client, candles, fault):
    dying = start_dying(fault=fault).wait_until_ready()
    handles = [client.submit(candles[:40], pred_len=3, seed=seed) for seed in range(3)]
    assert dying.process.wait(WAIT_S) == EXIT_STATUS
    log = dying.log.read_text()
    assert "the engines' thread died" in log
    assert "it ends now" not in log
    healthy = start_worker(**SETTINGS).wait_until_ready()
    assert {handle.wait(WAIT_S).worker for handle in handles} == {healthy.node}
    healthy.stop()


def test_the_worker_ends_even_if_its_shutdown_hangs(start_worker, start_dying, client, candles):
    dying = start_dying(HANGING_SHUTDOWN="1").wait_until_ready()
    handle = client.submit(candles[:40], pred_len=3)
    assert dying.process.wait(WAIT_S) == EXIT_STATUS
    assert "it ends now" in dying.log.read_text()
    healthy = start_worker(**SETTINGS).wait_until_ready()
    assert handle.wait(WAIT_S).worker == healthy.node
    healthy.stop()
