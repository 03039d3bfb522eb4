"""How a task reads its job."""

from collections.abc import Mapping, Sequence
from typing import Any

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.text import dotted


def job_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The job, which must be the only argument ``job``. Raises JobError otherwise."""
    unknown = sorted(set(kwargs) - {"job"})
    if args or unknown:
        raise JobError(
            ErrorCode.UNKNOWN_FIELD,
            "send the job as the keyword argument 'job', and nothing else",
            dotted((unknown[0],)) if unknown else None,
        )
    if "job" not in kwargs:
        raise JobError(ErrorCode.MISSING_FIELD, "the keyword argument 'job' is missing", "job")
    return kwargs["job"]
