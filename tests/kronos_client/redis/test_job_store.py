"""The record of a job in Redis."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import cancel_key, job_key, result_key
from kronos_client.redis.admission import Admission
from kronos_client.redis.job_store import Ending, JobStore, Receipt
from kronos_client.redis.message import canonical_json
from kronos_client.redis.queues import delivery_keys
from tests.admitting import admit
from tests.taking import begin_one
from tests.waiting import WAIT_S

KEYS = delivery_keys("test.unacked")


@pytest.fixture
def records(redis):
    return JobStore(redis, 50, KEYS)


def redis_now_s(redis) -> float:
    seconds, microseconds = redis.time()
    return seconds + microseconds / 1e6


def begin(records: JobStore, job_id: str) -> Receipt | str:
    return begin_one(records, job_id, '{"status": "STARTED"}', f"tag-{job_id}", 60.0)


def report(records: JobStore, job_id: str) -> bool:
    return records.store_state(job_id, '{"status": "PROGRESS"}', f"tag-{job_id}")


def outcome(records: JobStore, job_id: str, status: str, tag: str | None = None) -> str:
    ending = Ending(job_id, json.dumps({"status": status}), f"tag-{job_id}" if tag is None else tag)
    (answer,) = records.end([ending])
    return answer


def end(records: JobStore, job_id: str) -> None:
    assert outcome(records, job_id, "SUCCESS") == "stored"


def status(redis, job_id: str) -> str:
    return json.loads(redis.get(result_key(job_id)))["status"]


def test_the_wish_to_cancel_is_of_one_job_and_ends_with_it(records):
    assert not records.is_cancelled("a")
    records.request_cancel("a")
    assert records.is_cancelled("a")
    assert not records.is_cancelled("b")
    begun = {job_id: begin(records, job_id) for job_id in "ab"}
    assert [begun[job_id].is_cancelled for job_id in "ab"] == [True, False]
    assert report(records, "a")
    assert records.is_cancelled("a")
    end(records, "a")
    assert not records.is_cancelled("a")


def test_the_wish_to_cancel_a_job_that_waits_for_days_is_kept_as_long(records, redis):
    records.request_cancel("a")
    assert redis.ttl(cancel_key("a")) > 24 * 3600


def test_everything_kept_of_a_job_expires(records, redis):
    records.request_cancel("a")
    begin(records, "a")
    assert 0 < redis.ttl(result_key("a")) <= 50
    end(records, "a")
    assert 0 < redis.ttl(result_key("a")) <= 50
    assert 0 < redis.ttl(job_key("a")) <= 100
    assert not redis.exists(cancel_key("a"))


def test_a_result_key_of_another_type_is_no_outcome_and_is_replaced(records, redis):
    redis.lpush(result_key("a"), "another program's")
    assert begin(records, "a").held_s == 0
    redis.delete(result_key("a"))
    redis.lpush(result_key("a"), "another program's")
    end(records, "a")
    assert status(redis, "a") == "SUCCESS"


def test_a_wish_to_cancel_what_has_ended_leaves_nothing(records, redis):
    begin(records, "a")
    assert records.request_cancel("a")
    end(records, "a")
    assert not records.request_cancel("a")
    assert not redis.exists(cancel_key("a"))


def test_the_wait_counts_from_the_submission(records, redis):
    receipt = begin(records, "a")
    assert receipt.waited_s(redis_now_s(redis) - 30) == pytest.approx(30, abs=1)
    # A sender's clock may be ahead; the result shows it.
    assert receipt.waited_s(redis_now_s(redis) + 30) == pytest.approx(-30, abs=1)


def test_without_a_submission_the_wait_counts_from_the_first_receipt(records):
    assert begin(records, "a").waited_s(None) == 0
    time.sleep(0.03)
    assert begin(records, "a").waited_s(None) >= 0.03
    assert begin(records, "b").waited_s(None) == 0


def test_a_state_is_stored_and_published_until_there_is_an_outcome(records, redis):
    with redis.pubsub(ignore_subscribe_messages=True) as messages:
        messages.subscribe(result_key("a"))
        messages.get_message(timeout=WAIT_S)
        assert begin(records, "a").held_s == 0
        assert status(redis, "a") == "STARTED"
        assert report(records, "a")
        assert outcome(records, "a", "FAILURE") == "stored"
        seen = [json.loads(messages.get_message(timeout=WAIT_S)["data"])["status"] for _ in range(3)]
        assert seen == ["STARTED", "PROGRESS", "FAILURE"]
        assert outcome(records, "a", "SUCCESS") == "stored"  # as before: the first answer may have been lost
        assert outcome(records, "a", "SUCCESS", tag="another's") == "repeated"
        assert not report(records, "a")
        assert begin(records, "a") == "ended"
        assert messages.get_message(timeout=0.05) is None
    assert status(redis, "a") == "FAILURE"


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE", "REVOKED"])
def test_what_ends_a_job_is_its_outcome(records, status):
    assert outcome(records, "a", status) == "stored"
    assert begin(records, "a") == "ended"
    assert outcome(records, "a", "SUCCESS") == "ended"


def test_of_outcomes_that_come_at_once_one_stands(records, redis):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: outcome(records, "a", "SUCCESS", tag=""), range(32)))
    assert sorted(answers) == ["ended"] * 31 + ["stored"]


@pytest.mark.parametrize("text", ["no JSON", "[]", '"SUCCESS"', '{"state": 1}'])
def test_what_is_no_state_counts_as_none(records, redis, text):
    redis.set(result_key("a"), text)
    assert begin(records, "a").held_s == 0


def test_a_record_that_is_broken_does_not_keep_the_outcome_away(records, redis):
    redis.set(job_key("a"), "not a hash")
    with pytest.raises(JobError, match="another app"):
        begin(records, "a")
    assert redis.get(result_key("a")) is None
    assert outcome(records, "a", "FAILURE") == "stored"
    assert status(redis, "a") == "FAILURE"


def test_an_outcome_makes_no_record_of_what_had_none(records, redis):
    end(records, "a")
    assert not redis.exists(job_key("a"))


RESULT_TTL_S = 50


def claim(redis: Redis, job_id: str, payload: dict) -> bool:
    """A client enqueues it."""
    admission = Admission(redis, result_ttl_s=RESULT_TTL_S, max_queue_jobs=10)
    return admit(admission, job_id, canonical_json(payload))


def let_result_expire(redis: Redis, job_id: str) -> None:
    """As if the job had ended longer ago than a result is kept."""
    redis.hincrbyfloat(job_key(job_id), "ended_at", -RESULT_TTL_S - 1)


def test_an_id_is_for_one_content_whenever_it_was_submitted(records, redis):
    assert claim(redis, "a", {"pred_len": 5, "submitted_at": 1.0})
    assert claim(redis, "a", {"submitted_at": 2.0, "pred_len": 5})
    with pytest.raises(JobError) as refused:
        claim(redis, "a", {"pred_len": 6})
    assert refused.value.code == ErrorCode.ID_CONFLICT
    assert claim(redis, "b", {"pred_len": 6})


def test_a_job_that_has_its_outcome_is_not_enqueued_again_while_that_is_kept(redis):
    records = JobStore(redis, RESULT_TTL_S, KEYS)
    assert claim(redis, "a", {})
    end(records, "a")
    assert redis.hexists(job_key("a"), "ended_at")
    assert not claim(redis, "a", {})
    let_result_expire(redis, "a")
    records.request_cancel("a")
    assert claim(redis, "a", {})
    assert not redis.hexists(job_key("a"), "ended_at")
    assert not records.is_cancelled("a")


def test_a_refused_submission_changes_nothing(redis):
    records = JobStore(redis, RESULT_TTL_S, KEYS)
    claim(redis, "a", {})
    end(records, "a")
    let_result_expire(redis, "a")
    with pytest.raises(JobError):
        claim(redis, "a", {"pred_len": 6})
    assert redis.hexists(job_key("a"), "ended_at")


def test_a_job_sent_again_after_its_result_expired_begins_anew(records, redis):
    """Also by a client that is not ours and claims nothing."""
    claim(redis, "a", {"n": 1})
    begin(records, "a")
    end(records, "a")
    redis.hset(job_key("a"), mapping={"received_at": "1.0", "ended_at": "2.0"})
    redis.delete(result_key("a"))
    records.request_cancel("a")
    again = begin(records, "a")
    assert again.waited_s(None) == pytest.approx(0, abs=1)
    assert not again.is_cancelled
    assert not redis.hexists(job_key("a"), "ended_at")
