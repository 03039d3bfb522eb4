"""Starts the export of a service's spans and metrics, as the standard OTEL_* variables say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from kronos_client.settings import SettingsError

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


def _is_asked(service: str, signal: Literal["TRACES", "METRICS"]) -> bool:
    """Whether variables name an exporter or an endpoint. Then the service has a name, too."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER")
    if exporter and exporter != "otlp":
        return False
    endpoint = os.environ.get(ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    is_asked = bool(exporter or endpoint)
    if is_asked:
        os.environ.setdefault("OTEL_SERVICE_NAME", service)
    return is_asked


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        text = "OTEL_* variables ask for an export, and OpenTelemetry is not installed"
        raise SettingsError(f'{text}: install "kronos-worker[otel]", or unset {ENDPOINT}') from error


def export_traces(service: str) -> bool:
    """Export this process's spans by OTLP over HTTP if variables ask for it; returns whether they do.

    Raises:
        SettingsError: The packages are not installed.
    """
    if not _is_asked(service, "TRACES"):
        return False
    with _installed():
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider()  # flushed when the process ends
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


def export_metrics(service: str, registry: Any) -> None:
    """As ``export_traces``, the metrics of a Prometheus registry."""
    if _is_asked(service, "METRICS"):
        with _installed():
            from kronos_client.otel.metrics import MetricsExport
        MetricsExport(registry).start()
