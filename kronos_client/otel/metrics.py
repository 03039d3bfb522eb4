"""Exports a Prometheus registry by OTLP, so that each metric stands once in the code."""

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

log = logging.getLogger(__name__)

DEFAULT_INTERVAL_MS: Final = 60_000
CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class MetricsExport:
    """Exports every OTEL_METRIC_EXPORT_INTERVAL milliseconds, on a thread, and once at the end."""

    def __init__(self, registry: Any) -> None:
        self._registry, self._resource = registry, Resource.create()
        self._exporter = OTLPMetricExporter()
        self._began_ns = time.time_ns()
        interval_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or DEFAULT_INTERVAL_MS)
        self._interval_s = interval_ms / 1000
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="kronos-otel-metrics", daemon=True).start()
        atexit.register(self._end)

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.export()

    def _end(self) -> None:
        self._is_over.set()
        self.export()

    def export(self) -> None:
        """Export the present values. The exporter itself logs what the receiver does not take."""
        now_ns = time.time_ns()
        metrics = [metric for family in self._registry.collect() for metric in self._metrics(family, now_ns)]
        scope = ScopeMetrics(InstrumentationScope("kronos"), metrics, "")
        try:
            self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        except Exception:  # the next export must be tried
            log.warning("metrics could not be exported", exc_info=True)

    def _metrics(self, family: Any, now_ns: int) -> Iterator[Metric]:
        moments: dict[str, Any] = {"start_time_unix_nano": self._began_ns, "time_unix_nano": now_ns}
        name = family.name
        if family.type == "histogram":
            points = [HistogramDataPoint(**moments, **point) for point in _histogram_points(family)]
            yield Metric(name, family.documentation, "", Histogram(points, CUMULATIVE))
            return
        wanted = f"{name}_total" if family.type == "counter" else name
        numbers = [
            NumberDataPoint(attributes=sample.labels, value=sample.value, **moments)
            for sample in family.samples
            if sample.name == wanted
        ]
        data: Any = Sum(numbers, CUMULATIVE, True) if family.type == "counter" else Gauge(numbers)
        yield Metric(name, family.documentation, "", data)


def _histogram_points(family: Any) -> Iterator[dict[str, Any]]:
    """A bucket of Prometheus counts all up to its bound, one of OpenTelemetry what is between two bounds."""
    series: dict[tuple[Any, ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        known = series.setdefault(tuple(labels.items()), {"labels": labels, "buckets": []})
        if sample.name.endswith("_bucket"):
            known["buckets"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            known["sum"] = sample.value
    for known in series.values():
        bounds, totals = zip(*sorted(known["buckets"]), strict=True)
        counts = [int(total - before) for total, before in zip(totals, (0, *totals[:-1]), strict=True)]
        yield {
            "attributes": known["labels"],
            "count": int(totals[-1]),
            "sum": known["sum"],
            "bucket_counts": counts,
            "explicit_bounds": [bound for bound in bounds if bound < math.inf],
            "min": math.nan,
            "max": math.nan,
        }
