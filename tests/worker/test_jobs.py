"""What Redis knows of a job beside its message and its result."""

import time

import pytest

from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import cancel_key, job_key
from worker.jobs import JobRecords


@pytest.fixture
def records(redis):
    return JobRecords(redis, result_ttl_s=50)


def redis_now_s(redis) -> float:
    seconds, microseconds = redis.time()
    return seconds + microseconds / 1e6


def test_the_wish_to_cancel_is_of_one_job_and_ends_with_it(records):
    assert not records.is_cancelled("a")
    records.request_cancel("a")
    assert records.is_cancelled("a")
    assert not records.is_cancelled("b")
    records.end("a")
    assert not records.is_cancelled("a")


def test_everything_kept_of_a_job_expires(records, redis):
    records.request_cancel("a")
    records.waited_s("a", None)
    records.end("a")
    records.request_cancel("a")
    for key in (cancel_key("a"), job_key("a")):
        assert 0 < redis.ttl(key) <= 100


def test_the_wait_counts_from_the_submission(records, redis):
    assert records.waited_s("a", redis_now_s(redis) - 30) == pytest.approx(30, abs=1)
    # A sender's clock may be ahead; whoever asks sees it.
    assert records.waited_s("a", redis_now_s(redis) + 30) == pytest.approx(-30, abs=1)


def test_without_a_submission_the_wait_counts_from_the_first_receipt(records):
    assert records.waited_s("a", None) == 0
    time.sleep(0.03)
    again = records.waited_s("a", None)
    assert 0.03 <= again < 5
    assert records.waited_s("b", None) == 0


def test_the_first_receipt_is_noted_also_where_the_submission_is_known(records, redis):
    records.waited_s("a", redis_now_s(redis) - 30)
    time.sleep(0.03)
    assert 0.03 <= records.waited_s("a", None) < 5


def test_an_id_is_for_one_content_whenever_it_was_submitted(records):
    assert records.claim("a", {"pred_len": 5, "submitted_at": 1.0})
    assert records.claim("a", {"submitted_at": 2.0, "pred_len": 5})
    with pytest.raises(JobError) as refused:
        records.claim("a", {"pred_len": 6})
    assert refused.value.code == ErrorCode.ID_CONFLICT
    assert records.claim("b", {"pred_len": 6})


def test_a_job_that_has_its_outcome_is_not_enqueued_again_while_that_is_kept(redis):
    records = JobRecords(redis, result_ttl_s=1)
    assert records.claim("a", {})
    records.end("a")
    assert records.has_ended("a")
    assert not records.claim("a", {})
    time.sleep(1.1)
    records.request_cancel("a")
    assert records.claim("a", {})
    assert not records.has_ended("a")
    assert not records.is_cancelled("a")


def test_a_refused_submission_changes_nothing(redis):
    records = JobRecords(redis, result_ttl_s=1)
    records.claim("a", {})
    records.end("a")
    time.sleep(1.1)
    with pytest.raises(JobError):
        records.claim("a", {"pred_len": 6})
    assert records.explain_absence("a").code == ErrorCode.RESULT_EXPIRED


def test_a_job_without_result_is_lost_expired_or_still_to_come(redis):
    records = JobRecords(redis, result_ttl_s=1)
    assert records.explain_absence("a").code == ErrorCode.LOST
    records.claim("a", {})
    assert redis.ttl(job_key("a")) > 24 * 3600  # however long the queue is
    assert records.explain_absence("a") is None
    records.end("a")
    assert records.explain_absence("a") is None  # its result may be on the way
    time.sleep(1.1)
    assert records.explain_absence("a").code == ErrorCode.RESULT_EXPIRED
    records.claim("a", {})  # submitted again
    assert records.explain_absence("a") is None
