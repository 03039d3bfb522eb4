"""Spans of a worker's attempts at jobs, children of the span that sent the job.

They are made from moments that the attempt notes, so computing knows nothing of them. An attempt whose
process dies leaves none; the next one is a child of the same span.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kronos_client.otel.setup import export_metrics, export_traces
from kronos_client.otel.spans import TRACER, attributes

_trace_ids: Final[dict[str, str]] = {}
"""Of the jobs that run here, by id, for logs."""
_is_on = False


def set_up(registry: Any) -> None:
    """Begin to export spans and metrics if OTEL_* variables ask for it. Raises SettingsError."""
    global _is_on
    _is_on = export_traces("kronos-worker")
    export_metrics("kronos-worker", registry)


def trace_id_of(job_id: str) -> str | None:
    """The trace of a job that runs here."""
    return _trace_ids.get(job_id)


def new_trace(job_id: str, queue: str, traceparent: str | None) -> "AttemptTrace | None":
    """The spans of an attempt; None if none are exported."""
    return AttemptTrace(job_id, queue, traceparent) if _is_on else None


class AttemptTrace:
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

    @property
    def context(self) -> Any:
        """For spans of what the attempt itself sends."""
        return self._inside

    def began(self, submitted_at: float | None) -> None:
        """The worker has the claim on the job, which was sent at this Unix time."""
        if submitted_at is not None and (sent := int(submitted_at * 1e9)) < self._received:
            self._add("wait", sent, self._received, self._parent)
        self._done = time.time_ns()
        self._add("take", self._received, self._done)

    def computed(self, timings_ms: Mapping[str, float]) -> None:
        """The outcome is known; a result says how long its phases took."""
        self._done = end = time.time_ns()
        for phase in ("decode", "prefill"):
            if phase in timings_ms:
                start = max(self._received, end - int(timings_ms[phase] * 1e6))
                self._add(phase, start, end)
                end = start

    def ended(self, error: Exception | None = None) -> None:
        """The outcome is stored; ``error`` is it, or why the attempt ended without one."""
        if error is None:
            self._add("store", self._done, time.time_ns())
        else:
            problem = str(getattr(error, "code", type(error).__name__))
            self._span.set_attribute("error.type", problem)
            self._span.set_status(self._trace.StatusCode.ERROR, problem)
        given = {"messaging.message.id": self._job_id}
        for name, start, end, context in self._phases:
            self._tracer.start_span(name, context, attributes=given, start_time=start).end(end)
        self._span.end()
        _trace_ids.pop(self._job_id, None)

    def _add(self, name: str, start: int, end: int, context: Any = None) -> None:
        inside = self._inside if context is None else context
        self._phases.append((name, start, end, inside))

    @staticmethod
    def taken_together(traces: "Sequence[AttemptTrace | None]") -> None:
        """Link attempts whose jobs were taken in one call: by a span that has links to all that sent them."""
        known = [trace for trace in traces if trace is not None]
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
