"""A job's state and error, as answers and webhooks name them."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.core.stored import Stored

State = Literal["queued", "running", "done", "failed", "cancelled"]


class JobProblem(BaseModel):
    """Why a job has no result."""

    code: str = Field(examples=["HIGH_BELOW_LOW"])
    message: str
    field: str | None = None
    details: dict[str, Any] = {}


def state_of(stored: Stored) -> State:
    """The name of a job's state."""
    if stored.status == states.SUCCESS:
        return "done"
    if stored.has_ended:
        return "cancelled" if stored.value.code == ErrorCode.CANCELLED else "failed"
    return "running" if stored.status in (states.STARTED, PROGRESS_STATE) else "queued"


def problem_of(error: JobError) -> JobProblem:
    """An error as part of an answer."""
    return JobProblem(code=error.code, message=error.message, field=error.field, details=error.details)
