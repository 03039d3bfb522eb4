"""A job's error for each end of its training process."""

import pytest

from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.names import Limits
from worker.training.finetune_run import MAX_MESSAGE_CHARS, training_error

JOB = parse_finetune_job({"name": "mine", "data": {"path": "a.csv"}}, Limits())


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("'/srv/models/.runs/ab/run/model' cannot be written", "'…/model' cannot be written"),
        ("no column 'a\x1b[31m\n'", "no column 'a\\x1b[31m\\n'"),
        ("no column " + "a" * 60_000, "no column " + "a" * (MAX_MESSAGE_CHARS - 11) + "…"),
    ],
)
def test_trainings_message_is_passed_on_escaped_and_without_paths(sent: str, expected: str) -> None:
    error = training_error({"event": "failed", "code": "DISK_FULL", "message": sent, "field": "clip"}, JOB)
    assert (error.code, error.field) == ("DISK_FULL", "config.clip")
    assert error.message == expected


def test_details_have_no_paths_either() -> None:
    event = {"event": "failed", "code": "DISK_FULL", "message": "", "details": {"folder": "/srv/models"}}
    assert training_error(event, JOB).details == {"folder": "…/models"}
