"""When a submission is tried again."""

import threading

import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.dispatcher import Retries
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.ports import free_port
from tests.waiting import WAIT_S

CANDLES = candles(seed=1, bars=60).as_dict()
AWAY = JobError(ErrorCode.BROKER_UNREACHABLE, "away")
UNCERTAIN = JobError(ErrorCode.ENQUEUE_UNCERTAIN, "lost", None, {"job_id": "a"})


def full(retry_after_s: float) -> JobError:
    return JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": retry_after_s})


class Tries:
    """Retries on a clock of their own, which goes on by each pause."""

    def __init__(self, retry_for_s: float) -> None:
        self.now = 100.0
        self.retries = Retries(retry_for_s, clock=lambda: self.now, vary=lambda low, high: 1.0)

    def pause(self, error: JobError) -> float:
        pause_s = self.retries.pause_s(error)
        self.now += pause_s
        return round(pause_s, 6)


def test_pauses_double_up_to_ten_seconds():
    tries = Tries(1000)
    assert [tries.pause(AWAY) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_it_is_said_once_a_minute_that_redis_is_away(caplog, monkeypatch):
    monkeypatch.setattr(Retries, "_said_at", 0.0)
    one, other = Tries(75), Tries(75)
    other.pause(full(7))
    while one.now < 170:
        one.pause(AWAY)
        other.pause(AWAY)
    assert caplog.messages == ["away; trying again for up to 75 s", "away; trying again for up to 12 s"]


def test_a_full_queue_says_when():
    tries = Tries(1000)
    assert [tries.pause(full(7)), tries.pause(full(3)), tries.pause(AWAY)] == [7, 3, 0.2]


def test_the_last_try_is_at_the_end_and_then_the_error_is_raised():
    tries = Tries(5)
    assert [tries.pause(full(3)), tries.pause(full(3))] == [3, 2]
    with pytest.raises(JobError, match="QUEUE_FULL"):
        tries.pause(full(3))


def test_time_counts_from_the_first_refusal():
    tries = Tries(5)
    tries.now += 1000
    assert tries.pause(full(5)) == 5


@pytest.mark.parametrize("code", [ErrorCode.ID_CONFLICT, ErrorCode.NOT_FINITE, ErrorCode.NO_GPU_WORKER])
def test_what_no_time_heals_is_raised_at_once(code):
    with pytest.raises(JobError, match=code):
        Tries(1000).pause(JobError(code, "no"))


def test_what_may_have_been_enqueued_is_not_denied_later():
    tries = Tries(1)
    tries.pause(UNCERTAIN)
    tries.pause(AWAY)
    tries.now += 10
    with pytest.raises(JobError) as ended:
        tries.pause(AWAY)
    assert ended.value is UNCERTAIN


def test_pauses_vary_so_that_many_do_not_come_back_at_once():
    pauses = {Retries(1000).pause_s(full(10)) for _ in range(20)}
    assert len(pauses) > 10
    assert all(8 <= pause_s <= 12 for pause_s in pauses)


def test_a_submission_is_tried_again_with_the_same_id():
    fake = FakeForecastClient()
    fake.refuse_next(UNCERTAIN)
    fake.refuse_next(full(0.01))
    assert fake.submit(CANDLES, pred_len=5, job_id="a", retry_for_s=30).wait(WAIT_S).series
    assert list(fake.jobs) == ["a"]
    fake.refuse_next(UNCERTAIN)
    with pytest.raises(JobError, match="ENQUEUE_UNCERTAIN"):
        fake.submit(CANDLES, pred_len=5)


def test_a_redis_that_comes_back_has_the_job_once(tmp_path):
    port = free_port()
    with LocalRedis(port=port, data=tmp_path) as server:
        url = server.url
    settings = ClientSettings.model_construct().with_redis_url(url)
    with ForecastClient(settings=settings) as client, pytest.raises(JobError, match="BROKER_UNREACHABLE"):
        client.submit(CANDLES, pred_len=5)
    with ForecastClient(settings=settings) as client:
        handles = []
        thread = threading.Thread(
            target=lambda: handles.append(client.submit(CANDLES, pred_len=5, job_id="a", retry_for_s=60))
        )
        thread.start()
        with LocalRedis(port=port, data=tmp_path):
            thread.join()
            assert handles[0].state().name == "PENDING"
            assert client.submit(CANDLES, pred_len=5, job_id="a").id == "a"
