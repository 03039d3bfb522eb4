"""What a job does while its model is being loaded. Nothing is loaded here."""

import threading
import time
from types import SimpleNamespace

import pytest

from tests.worker.fake_engine import WAIT_S
from worker.contract.errors import ErrorCode, JobError
from worker.resident import Resident
from worker.service import EngineDied, ForecastService
from worker.tasks import forecast


@pytest.fixture
def cancelled() -> set[str]:
    return set()


@pytest.fixture
def process(cancelled, monkeypatch):
    """As much of a worker process as a waiting job asks."""
    monkeypatch.setattr(forecast, "PROGRESS_INTERVAL_S", 0.01)
    service = ForecastService()
    service.start()
    yield SimpleNamespace(service=service, records=SimpleNamespace(is_cancelled=cancelled.__contains__))
    service.stop()


def later(action) -> None:
    threading.Timer(0.03, action).start()


def wait(process, resident: Resident, deadline: float | None = None):
    return forecast._wait_for_model(process, "job", resident, deadline)


def test_it_has_the_model_once_that_is_loaded(process):
    resident, served = Resident("b"), object()
    later(lambda: resident.settle(served))
    assert wait(process, resident, time.monotonic() + WAIT_S) is served


def test_it_ends_as_the_load_ended(process):
    resident = Resident("b")
    later(lambda: resident.settle(JobError(ErrorCode.CHECKPOINT_MISSING, "not there", "model")))
    with pytest.raises(JobError) as ended:
        wait(process, resident)
    assert ended.value.code == ErrorCode.CHECKPOINT_MISSING


def test_it_can_be_cancelled(process, cancelled):
    later(lambda: cancelled.add("job"))
    with pytest.raises(JobError) as ended:
        wait(process, Resident("b"))
    assert ended.value.code == ErrorCode.CANCELLED


def test_it_keeps_its_deadline(process, monkeypatch):
    monkeypatch.setattr(forecast, "PROGRESS_INTERVAL_S", 3600)
    with pytest.raises(JobError) as ended:
        wait(process, Resident("b"), time.monotonic() + 0.02)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, "deadline_s")


def test_it_goes_back_to_the_queue_where_the_engine_dies_meanwhile(process):
    later(process.service.stop)
    with pytest.raises(EngineDied):
        wait(process, Resident("b"))


def test_a_lookback_unlike_the_trained_one_is_told():
    series = [SimpleNamespace(id=name, wall=range(bars)) for name, bars in (("a", 128), ("b", 400))]
    warnings = forecast.lookback_warnings(series, SimpleNamespace(lookback=128))
    assert len(warnings) == 1
    assert "'b'" in warnings[0]
    assert "128 bars" in warnings[0]
    assert "400" in warnings[0]
    assert forecast.lookback_warnings(series, SimpleNamespace(lookback=None)) == []
