"""Logs as JSON: every line is one object, and none holds a job's candles."""

import io
import json
import logging
from typing import Any

import pytest
from celery import Celery

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.logs import JsonLines, uvicorn_config
from worker.monitoring.job_log import log_job

RESULT = {
    "device": "cuda:0",
    "device_warning": None,
    "queue": "gpu",
    "worker": "node@host",
    "timings_ms": {"queued": 1.5, "total": 20.0},
    "model": {"id": "kronos-tiny", "revision": None},
    "series": [{"mean": {"close": [1.0, 2.0]}}],
}


class Lines:
    """A logger of its own, and what it wrote."""

    def __init__(self, name: str) -> None:
        self._text = io.StringIO()
        handler = logging.StreamHandler(self._text)
        handler.setFormatter(JsonLines())
        self.log = logging.getLogger(name)
        self.log.handlers, self.log.propagate, self.log.level = [handler], False, logging.INFO

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._text.getvalue().splitlines()]


@pytest.fixture
def lines(request):
    lines = Lines(f"tests.{request.node.name}")
    yield lines
    lines.log.handlers, lines.log.propagate = [], True


@pytest.fixture
def job_lines(monkeypatch):
    lines = Lines("worker.monitoring.job_log")
    yield lines
    lines.log.handlers, lines.log.propagate, lines.log.level = [], True, logging.NOTSET


def test_a_line_is_one_object_whatever_it_says(lines):
    lines.log.warning('two\nlines, a "quote" and %s', "\x1b[31m\u2028é", extra={"queue": "cpu"})
    (line,) = lines.all()
    assert line["message"] == 'two\nlines, a "quote" and \x1b[31m\u2028é'
    assert (line["level"], line["queue"]) == ("WARNING", "cpu")
    assert line["time"].endswith("+00:00")
    assert isinstance(line["pid"], int)
    assert "job_id" not in line


def test_a_traceback_stays_in_its_line(lines):
    try:
        raise ValueError("why")
    except ValueError:
        lines.log.exception("failed")
    (line,) = lines.all()
    assert "ValueError: why" in line["exc_info"]


def test_what_celery_hands_along_is_left_out(lines):
    lines.log.info("Task received", extra={"data": {"kwargs": "{'job': candles}"}})
    assert "candles" not in json.dumps(lines.all())


def test_lines_of_a_jobs_thread_carry_its_id(lines):
    app = Celery("logs", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task
    def one() -> None:
        lines.log.info("inside")

    one.apply(task_id="a-job")
    lines.log.info("outside")
    assert [line.get("job_id") for line in lines.all()] == ["a-job", None]


def test_a_job_that_is_done_is_one_line_without_its_numbers(job_lines):
    log_job("kronos.forecast", "a", RESULT, "node@host", "cuda:0")
    (line,) = job_lines.all()
    assert {name: line[name] for name in ("job_id", "outcome", "device", "queue", "model", "timings_ms")} == {
        "job_id": "a", "outcome": "done", "device": "cuda:0", "queue": "gpu", "model": "kronos-tiny",
        "timings_ms": RESULT["timings_ms"],
    }  # fmt: skip
    assert not {"series", "device_warning", "code"} & line.keys()


def test_a_job_that_failed_says_its_code(job_lines):
    error = JobError(ErrorCode.NOT_FINITE, "bad", "series.0.close", {})
    log_job("kronos.forecast", "b", error, "node@host", "cpu")
    (line,) = job_lines.all()
    assert (line["code"], line["field"], line["outcome"]) == ("NOT_FINITE", "series.0.close", "failed")
    assert (line["device"], line["worker"]) == ("cpu", "node@host")


def test_uvicorns_lines_are_json_too():
    base = {"version": 1, "formatters": {"default": {"fmt": "x"}, "access": {"fmt": "y"}}, "handlers": {}}
    config = uvicorn_config(base)
    json_lines = {"()": "kronos_client.logs.JsonLines"}
    assert config["formatters"] == {"default": json_lines, "access": json_lines}
    assert base["formatters"]["default"] == {"fmt": "x"}
