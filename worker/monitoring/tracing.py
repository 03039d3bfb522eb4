"""Spans of a worker's attempts at jobs, children of the span that sent the job.

They are made from moments that the attempt notes, so computing knows nothing of them. An attempt whose
process dies leaves none; the next one is a child of the same span.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from kronos_client.contract.errors import JobError
from kronos_client.otel import spans
from kronos_client.otel.setup import export_metrics, export_traces
from kronos_client.otel.spans import TRACER, attributes

_trace_ids: Final[dict[str, str]] = {}
"""Of the jobs that run here, by id, for logs."""


def set_up(registry: Any) -> None:
    """Begin to export spans and metrics if OTEL_* variables ask for it. Raises SettingsError."""
    export_traces("kronos-worker")
    export_metrics("kronos-worker", registry)


def trace_id_of(job_id: str) -> str | None:
    """The trace of a job that runs here."""
    return _trace_ids.get(job_id)


class NoTrace:
    """An attempt in a process that exports no spans."""

    def began(self, submitted_at: float | None) -> None:
        """The worker has the claim on the job, which was sent at this Unix time."""

    def computed(self, outcome: object) -> None:
        """The outcome is known: a JobError, or a result, which says how long its phases took."""

    def ended(self, error: Exception | None = None) -> None:
        """The outcome is stored; ``error`` is why the attempt ended without one."""


class AttemptTrace(NoTrace):
    """One attempt, from when the worker received the message: wait, take, prefill, decode, store."""

    def __init__(self, job_id: str, queue: str, traceparent: str | None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._job_id, self._queue = trace, job_id, queue
        self._tracer = trace.get_tracer(TRACER)
        self._parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent or ""})
        self._received = self._done = time.time_ns()
        given = attributes("process", job_id, queue)
        self._span = self._tracer.start_span(
            f"process {queue}", self._parent, trace.SpanKind.CONSUMER, given, start_time=self._received
        )
        self._inside = trace.set_span_in_context(self._span)
        self._phases: list[tuple[str, int, int, Any]] = []  # exported with the attempt, or not at all
        _trace_ids[job_id] = f"{self._span.get_span_context().trace_id:032x}"

    def began(self, submitted_at: float | None) -> None:
        if submitted_at is not None and (sent := int(submitted_at * 1e9)) < self._received:
            self._add("wait", sent, self._received, self._parent)
        self._done = time.time_ns()
        self._add("take", self._received, self._done)

    def computed(self, outcome: object) -> None:
        self._done = end = time.time_ns()
        if isinstance(outcome, JobError):
            self._failed(outcome)
            return
        given: Any = outcome if isinstance(outcome, dict) else vars(outcome)
        timings_ms: Any = given.get("timings_ms", {})
        timings_ms = timings_ms if isinstance(timings_ms, dict) else vars(timings_ms)
        for phase in ("decode", "prefill"):
            if phase in timings_ms:
                start = max(self._received, end - int(timings_ms[phase] * 1e6))
                self._add(phase, start, end)
                end = start

    def ended(self, error: Exception | None = None) -> None:
        if error is None:
            self._add("store", self._done, time.time_ns())
        else:
            self._failed(error)
        given = {"messaging.message.id": self._job_id}
        for name, start, end, context in self._phases:
            self._tracer.start_span(name, context, attributes=given, start_time=start).end(end)
        self._span.end()
        _trace_ids.pop(self._job_id, None)

    def _failed(self, error: Exception) -> None:
        problem = str(getattr(error, "code", type(error).__name__))
        self._span.set_attribute("error.type", problem)
        self._span.set_status(self._trace.StatusCode.ERROR, problem)

    def _add(self, name: str, start: int, end: int, context: Any = None) -> None:
        self._phases.append((name, start, end, self._inside if context is None else context))

    @staticmethod
    def taken_together(traces: Sequence[NoTrace]) -> None:
        """Link attempts whose jobs were taken in one call: by a span that has links to all that sent them."""
        known = [trace for trace in traces if isinstance(trace, AttemptTrace)]
        if len(known) < 2:
            return
        trace, first = known[0]._trace, known[0]
        senders = [trace.get_current_span(each._parent).get_span_context() for each in known]
        links = [trace.Link(sender) for sender in senders if sender.is_valid]
        given: dict[str, Any] = attributes("receive", "", first._queue)
        given["messaging.batch.message_count"] = len(known)
        del given["messaging.message.id"]
        name, kind = f"receive {first._queue}", trace.SpanKind.CONSUMER
        span = first._tracer.start_span(name, kind=kind, attributes=given, links=links)
        for each in known:
            each._span.add_link(span.get_span_context())
        span.end()


def new_trace(job_id: str, queue: str, traceparent: str | None) -> NoTrace:
    """The spans of an attempt."""
    return NoTrace() if spans.api() is None else AttemptTrace(job_id, queue, traceparent)
