"""A worker's Prometheus metrics. No torch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kronos_client.contract.names import Priority
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.feeds.drift import KINDS
from kronos_client.feeds.scores import INTERVALS
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.queues import MAX_WAIT_S
from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S

if TYPE_CHECKING:
    from kronos_model.devices.resolution import DeviceDescription
    from kronos_model.engine.generation import Generation
    from kronos_model.engine.reports import EngineLoad, StepReport

log = logging.getLogger(__name__)

STEP_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
WAIT_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
JOB_WAIT_BUCKETS_S: Final = (0.01, 0.05, 0.2, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


ENGINE_GAUGES: Final = {
    "kronos_sequences_running": ("running", "Sample paths that hold a slot"),
    "kronos_sequences_waiting": ("waiting", "Sample paths that wait for a slot"),
    "kronos_slots": ("slots", "Sample paths that can run together"),
}
GPU_GAUGES: Final = {
    "kronos_gpu_memory_total_bytes": ("memory_total_bytes", "Memory of the worker's GPU"),
    "kronos_gpu_memory_free_bytes": ("memory_free_bytes", "Free memory of the worker's GPU"),
    "kronos_gpu_utilisation_percent": ("utilisation_percent", "Share of time in which it computes"),
}
TRAINING_GAUGES: Final = {
    "kronos_training_step": ("step", "Steps that the stage has taken"),
    "kronos_training_steps": ("num_steps", "Steps that the stage has in all"),
    "kronos_training_loss": ("loss", "Training loss as last reported"),
}


class Rates:
    """The growth of some counts over the last ``window_s``, or little longer. May be shared by threads."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: deque[tuple[float, ...]] = deque()

    def growth(self, *counts: float) -> tuple[float, ...]:
        """Note the present counts.

        Returns:
            The seconds since the window's start, or since the first call; then by how much each count grew.
        """
        with self._lock:
            latest = (self._clock(), *counts)
            self._noted.append(latest)
            while len(self._noted) > 1 and self._noted[1][0] <= latest[0] - self._window_s:
                self._noted.popleft()
            return tuple(now - before for now, before in zip(latest, self._noted[0], strict=True))


@dataclass(frozen=True, eq=False)
class GaugesAtScrape(Collector):
    """Gauges that are read when they are scraped. After a cancelled job no step would update them.

    Args:
        gauges: For each metric, the attribute that it shows and its description.
        read: Returns the objects with these attributes by the values of ``labels``, or the value if there is
            one label. None gives no sample.
    """

    labels: Sequence[str]
    gauges: Mapping[str, tuple[str, str]]
    read: Callable[[], Mapping[Any, object]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        rows = self.read()
        for name, (attribute, text) in self.gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=self.labels)
            for labels, row in rows.items():
                if (value := getattr(row, attribute)) is not None:
                    gauge.add_metric((labels,) if isinstance(labels, str) else labels, value)
            yield gauge


class JobMetrics:
    """The metrics of a process and its jobs, for workers of both roles, in their own registry.

    ``num_jobs`` returns how many jobs are computed now.
    """

    def __init__(self, num_jobs: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self.num_done = 0
        self.num_failed = 0
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        ProcessCollector(registry=self.registry)
        text = "Time from a job's submission until a worker first began it"
        labels = ("queue", "priority")
        self.job_wait_s = self._histogram("kronos_job_wait_seconds", text, labels, buckets=JOB_WAIT_BUCKETS_S)
        text = "Jobs that ended: done, or failed with the code of their error"
        self.jobs = self._counter("kronos_jobs", text, ("outcome", "code"))
        text = "Jobs given to another worker while this one computed them; this worker's outcome is discarded"
        self.jobs_repeated = self._counter("kronos_jobs_repeated", text)
        text = "Unreadable messages moved to kronos:dead"
        self.messages_dead = self._counter("kronos_messages_dead", text)
        text = "Bytes of outcomes that Redis did not accept yet; the worker keeps them and tries again"
        self.outcomes_kept = Gauge("kronos_outcomes_kept_bytes", text, registry=self.registry)
        running = Gauge("kronos_jobs_running", "Jobs that are computed now", registry=self.registry)
        running.set_function(num_jobs)
        text = "What this worker runs on and serves; always 1"
        facts = ("device", "model", "queue", "dtype", "engine")
        self.info = Gauge("kronos_worker_info", text, facts, registry=self.registry)

    def describe(self, *, device: str, model: str, queue: str, dtype: str, engine: str) -> None:
        """Set the labels of ``kronos_worker_info``."""
        self.info.clear()
        self.info.labels(device, model, queue, dtype, engine).set(1)

    def observe_job_wait(
        self, queue: str, priority: Priority, submitted_at: float | None, receipt: Receipt
    ) -> None:
        """Observe how long a job waited: at its first start only, and only if its time is credible."""
        if receipt.now > receipt.received_at or submitted_at is None:
            return
        if receipt.now - MAX_WAIT_S <= submitted_at <= receipt.now + MAX_WAIT_S:
            self.job_wait_s.labels(queue, priority).observe(max(0.0, receipt.waited_s(submitted_at)))

    def count_job(self, code: str | None) -> None:
        """Count a job that ended; ``code`` is one of ``ErrorCode``, None if it succeeded."""
        with self._lock:
            self.num_done += code is None
            self.num_failed += code is not None
        self.jobs.labels("done" if code is None else "failed", str(code or "")).inc()

    def serve(self, host: str, port: int) -> WSGIServer | None:
        """Serve the metrics on this port. Returns None, after a warning, if the port is not available."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            text = "metrics cannot be served on %s:%d (KRONOS_METRICS_PORT); the worker runs without them: %s"
            log.warning(text, host, port, error)
            return None
        log.info("metrics: http://%s:%d/metrics", host, port)
        return server


class WorkerMetrics(JobMetrics):
    """The metrics of a forecasting process; an ``EngineObserver``.

    Args:
        loads: Returns each engine's load by model id, in any thread.
        num_jobs: As of ``JobMetrics``.
        gpus: Returns the descriptions of the process's GPU, if it has one, by its name.
    """

    def __init__(
        self,
        loads: Callable[[], Mapping[str, "EngineLoad"]],
        num_jobs: Callable[[], int],
        gpus: Callable[[], Mapping[str, "DeviceDescription"]] = dict,
    ) -> None:
        super().__init__(num_jobs)
        self.registry.register(GaugesAtScrape(("device",), GPU_GAUGES, gpus))
        self._rates = Rates(ANNOUNCEMENT_INTERVAL_S)
        self._bars = self._steps = self._waits = 0
        self._waited_s = 0.0
        model = ("model",)
        self.registry.register(GaugesAtScrape(model, ENGINE_GAUGES, loads))
        text = "Bars generated, over all sample paths"
        self.num_bars = self._counter("kronos_bars_generated", text, model)
        text = "Bars computed by prefill, mostly of lookbacks"
        self.num_prefill_bars = self._counter("kronos_prefill_bars", text, model)
        text = "Time of one step's phase"
        self.step_s = self._histogram("kronos_step_seconds", text, ("model", "phase"), buckets=STEP_BUCKETS_S)
        text = "Sample paths that got a bar in one step"
        self.batch_size = self._histogram("kronos_batch_size", text, model, buckets=BATCH_BUCKETS)
        text = "Time that a series waited in this worker for its slots"
        self.queue_wait_s = self._histogram("kronos_queue_wait_seconds", text, model, buckets=WAIT_BUCKETS_S)
        text = "Bars of a feed's earlier forecasts that have come; one for each forecast of it"
        self.feed_bars = self._counter("kronos_feed_scored_bars", text, ("feed",))
        text = "Those whose close lay in the central interval of so many per cent"
        self.feed_inside = self._counter("kronos_feed_bars_inside", text, ("feed", "interval"))
        text = "Pinball loss of quantiles, in the lookback's mean changes: of the model, and of a bootstrap"
        self.feed_loss = self._counter("kronos_feed_loss", text, ("feed", "forecast"))
        text = "Chances of events that came true or not, summed: their number, and their squared errors"
        self.feed_chances = self._counter("kronos_feed_chances", text, ("feed", "sum"))
        text = "Drift alarms of a feed's series: too_narrow or too_wide"
        self.feed_drifts = self._counter("kronos_feed_drifts", text, ("feed", "kind"))
        text = "Forecast bars of a feed that never came"
        self.feed_missing = self._counter("kronos_feed_missing_bars", text, ("feed",))

    def observe_step(self, model_id: str, report: "StepReport", load: "EngineLoad") -> None:
        if report.num_prefill_bars:
            self.num_prefill_bars.labels(model_id).inc(report.num_prefill_bars)
        if report.num_bars:
            self.num_bars.labels(model_id).inc(report.num_bars)
            self.batch_size.labels(model_id).observe(report.num_bars)
            self._bars += report.num_bars
            self._steps += 1
        for seconds in report.prefill_s:
            self.step_s.labels(model_id, "prefill").observe(seconds)
        for seconds in report.decode_s:
            self.step_s.labels(model_id, "decode").observe(seconds)

    def observe_generation(self, model_id: str, generation: "Generation") -> None:
        queued_s = generation.timings.durations_s()["queued"]
        self.queue_wait_s.labels(model_id).observe(queued_s)
        self._waited_s += queued_s
        self._waits += 1

    def observe_scores(self, feed: str, sums: Mapping[str, float], drifts: Sequence[str]) -> None:
        """Count what a job has added to a feed's scores: ``SERIES_SUMS`` by name, or nothing; and alarms."""
        for kind in KINDS:  # from 0 on: Prometheus's increase() does not count a first value
            self.feed_drifts.labels(feed, kind).inc(drifts.count(kind))
        if not sums:
            return
        self.feed_bars.labels(feed).inc(sums["num_scored"])
        for share in INTERVALS:
            self.feed_inside.labels(feed, share).inc(sums[f"inside_{share}"])
        self.feed_loss.labels(feed, "model").inc(sums["loss"])
        self.feed_loss.labels(feed, "bootstrap").inc(sums["bootstrap_loss"])
        self.feed_chances.labels(feed, "number").inc(sums["num_chances"])
        self.feed_chances.labels(feed, "squared_error").inc(sums["brier"])
        self.feed_missing.labels(feed).inc(sums["num_missing"])

    def recently(self) -> dict[str, Any]:
        """Means over the last seconds, for the worker's status; None if nothing happened.

        ``mean_batch_size`` is paths per step, ``queue_wait_s`` the time that a series waited for slots.
        """
        counts = (self._bars, self._steps, self._waited_s, self._waits)
        elapsed_s, num_bars, num_steps, waited_s, num_waits = self._rates.growth(*counts)
        return {
            "bars_per_s": num_bars / elapsed_s if elapsed_s else 0.0,
            "mean_batch_size": num_bars / num_steps if num_steps else None,
            "queue_wait_s": waited_s / num_waits if num_waits else None,
        }


class FinetuneMetrics(JobMetrics):
    """The metrics of a finetuning worker; ``training`` returns the running job, None if there is none."""

    def __init__(self, training: Callable[[], TrainingStatus | None]) -> None:
        super().__init__(lambda: int(training() is not None))

        def read() -> dict[tuple[str, ...], TrainingStatus]:
            now = training()
            return {} if now is None else {(now.name, now.stage or ""): now}

        self.registry.register(GaugesAtScrape(("model", "stage"), TRAINING_GAUGES, read))
