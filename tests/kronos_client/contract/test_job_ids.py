"""Which ids jobs may have."""

import uuid

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import checked_job_id, is_job_id


@pytest.mark.parametrize("job_id", ["a", "order-4711", "größe 7", "x" * 200])
def test_printable_texts_are_ids(job_id):
    assert is_job_id(job_id)
    assert checked_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", "a\nb", "\x1b[31m", "x" * 201, "\ud800"])
def test_what_no_worker_accepts_is_refused_before_it_is_sent(job_id):
    assert not is_job_id(job_id)
    with pytest.raises(JobError) as refused:
        checked_job_id(job_id)
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_VALUE, "job_id")


@pytest.mark.parametrize("value", [None, 5, ["a"], {}])
def test_only_texts_are_ids(value):
    assert not is_job_id(value)


def test_other_ids_become_text_and_missing_ones_are_made():
    assert checked_job_id(5) == "5"
    assert str(uuid.UUID(checked_job_id())) != checked_job_id()
