"""Spans of sending a job and of waiting for it, in processes that export spans.

Others pay for a look into ``sys.modules``.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

TRACER: Final = "kronos"


def api() -> Any:
    """``opentelemetry.trace`` if this process has set it up, else None; redis-py only imports it."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    is_set_up = trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return trace if is_set_up else None


def attributes(operation: str, job_id: str, queue: str) -> dict[str, Any]:
    """By the semantic conventions for messaging."""
    return {
        "messaging.system": "celery",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
    }


class SendSpan:
    """The span of sending one job; ``traceparent`` (W3C) goes into its message, and is empty without one."""

    def __init__(self, job_id: str, queue: str, facts: dict[str, Any]) -> None:
        self.traceparent = ""
        if (trace := api()) is None:
            self._span: Any = None
            return
        given = attributes("send", job_id, queue) | facts
        self._span = trace.get_tracer(TRACER).start_span(
            f"send {queue}", kind=trace.SpanKind.PRODUCER, attributes=given
        )
        context = self._span.get_span_context()
        if context.is_valid:
            flags = int(context.trace_flags)
            self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"

    def end(self, error: Exception | None) -> None:
        """The job was sent, or why not."""
        if self._span is None:
            return
        if error is not None:
            self._span.set_attribute("error.type", getattr(error, "code", type(error).__name__))
            self._span.set_status(api().StatusCode.ERROR, str(error))
        self._span.end()


def waiting(job_id: str) -> AbstractContextManager[Any]:
    """A span while an app waits for a job, in the trace that is under way on this thread or task."""
    trace = api()
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return nullcontext()
    given = {"messaging.message.id": job_id}
    started: AbstractContextManager[Any] = trace.get_tracer(TRACER).start_as_current_span(
        "wait for job", attributes=given
    )
    return started
