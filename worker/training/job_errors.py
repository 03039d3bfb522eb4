"""The errors of finetuning jobs and backtests. No torch."""

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneJob
from kronos_model.processes.json_child import Event
from kronos_model.text import escaped, without_paths
from worker.training.child import Stop
from worker.training.job_notes import MAX_STARTS_AT_SAVE

KILLED = -9
MAX_MESSAGE_CHARS = 500
"""Length of the training process's message, which may quote the job's config and candles."""


def failed(event: Event, job: FinetuneJob) -> JobError:
    """The training process's own error, with the job's name for its field."""
    field = event.get("field")
    if field == "data.path" and job.data.instruments is not None:
        field = "data.instruments"
    elif field is not None and field != "data.path":
        field = f"config.{field}"
    message = escaped(without_paths(event["message"]), MAX_MESSAGE_CHARS)
    return JobError(event["code"], message, field, without_paths(event.get("details")))


def killed(exit_status: int) -> JobError:
    """The training process ended twice at the same save, without an error of its own."""
    if exit_status == KILLED:
        return _out_of_memory("the training process was killed twice in a row")
    text = f"the training process ended twice in a row with status {exit_status}; see the worker's log"
    return JobError(ErrorCode.INTERNAL, text)


def killed_too_often() -> JobError:
    """Training was started ``MAX_STARTS_AT_SAVE`` times at one save and did not reach the next."""
    return _out_of_memory(
        f"training was started {MAX_STARTS_AT_SAVE} times and killed each time before its next save, perhaps "
        "together with its worker"
    )


def backtest_killed_too_often() -> JobError:
    """The same for the worker of a backtest."""
    text = (
        f"the worker was killed {MAX_STARTS_AT_SAVE} times in a row as it read or scored the candles, most "
        "likely for lack of memory: name fewer files, or give the worker more memory"
    )
    return JobError(ErrorCode.OUT_OF_MEMORY, text, "data")


def _out_of_memory(how: str) -> JobError:
    remedy = "lower batch_size, lookback or num_workers, or give the worker more memory"
    text = f"{how}, most likely for lack of memory: {remedy}"
    return JobError(ErrorCode.OUT_OF_MEMORY, text, "config")


def stopped(stop: Stop, deadline_s: float | None, time_limit_s: float) -> JobError:
    """The error of a job that was cancelled, missed its deadline, or reached its time limit."""
    if stop is Stop.CANCELLED:
        return JobError(ErrorCode.CANCELLED, "the job was cancelled, as asked")
    if stop is Stop.DEADLINE:
        late = f"the job was not done within its deadline of {deadline_s} s"
        return JobError(ErrorCode.DEADLINE, f"{late}; allow more time, or ask for less", "deadline_s")
    late = f"the job took longer than its time limit of {time_limit_s:g} s"
    remedy = "ask for less, or raise the job's time_limit or the worker's KRONOS_FINETUNE_TIME_LIMIT_S"
    return JobError(ErrorCode.DEADLINE, f"{late}; {remedy}")


def with_best(error: JobError, best: str | None) -> JobError:
    """Add the best checkpoint so far to the error, relative to the model folder."""
    message = error.message
    if best is not None:
        message += f"; the best checkpoint so far is kept as {best} in the model folder"
    return JobError(error.code, message, error.field, error.details | {"best_checkpoint": best})
