"""Logs as JSON, one object a line, for log collectors; ``KRONOS_LOG_FORMAT=json``. No torch."""

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

from kronos_client.redis.message import current_task

FIELDS: Final = ("levelname", "name", "message", "process")
RENAMED: Final = {"levelname": "level", "name": "logger", "process": "pid"}
LEFT_OUT: Final = ("data", "color_message")
"""Extra fields of Celery's and uvicorn's lines: a job's arguments with all candles; colours."""

PER_JOB: Final = ("celery.worker.strategy", "celery.app.trace")
"""These loggers write two lines for each job; ``job_log`` writes one."""


class JsonLines(JsonFormatter):
    """One line a record: time (UTC), level, logger, message, pid; on the thread of a job also its ``job_id``.

    The caller's ``extra`` fields are added.
    """

    def __init__(self) -> None:
        reserved = (*logging.makeLogRecord({}).__dict__, "message", "asctime", *LEFT_OUT)
        super().__init__(FIELDS, rename_fields=RENAMED, timestamp="time", reserved_attrs=reserved)

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """The fields to write."""
        task = current_task()
        job_id = task.request.id if task else None
        return log_data if job_id is None else {"job_id": job_id} | log_data


def use_json(logger: logging.Logger) -> None:
    """Have a logger's handlers write JSON."""
    for handler in logger.handlers:
        handler.setFormatter(JsonLines())


def log_json() -> None:
    """Write all logs and warnings of this process as JSON to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)


def uvicorn_config(base: Mapping[str, Any]) -> dict[str, Any]:
    """uvicorn's logging configuration with all of its formatters as JSON."""
    formatters = {name: {"()": "kronos_client.logs.JsonLines"} for name in base["formatters"]}
    return {**base, "formatters": formatters, "root": {"level": "INFO", "handlers": ["default"]}}
