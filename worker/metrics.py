"""What operators see of a worker's load: Prometheus metrics, and its status's last seconds. No torch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
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

from worker.routing import ANNOUNCEMENT_INTERVAL_S

if TYPE_CHECKING:
    from kronos_model.engine.engine import EngineLoad, StepReport
    from kronos_model.engine.generation import Generation

log = logging.getLogger(__name__)

STEP_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
WAIT_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Tally:
    """What happened in one second."""

    second: int
    num_bars: int = 0
    num_steps: int = 0
    waited_s: float = 0.0
    num_waits: int = 0


@dataclass(frozen=True)
class Recently:
    """Means over the last seconds; None where nothing happened of which there is a mean.

    ``mean_batch_size`` counts sample paths in a step, ``queue_wait_s`` the time a series waited for slots.
    """

    bars_per_s: float
    mean_batch_size: float | None
    queue_wait_s: float | None


class LoadWindow:
    """Sums of the last ``window_s`` whole seconds and the present one. May be shared by threads."""

    def __init__(
        self, window_s: int = ANNOUNCEMENT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._tallies: deque[Tally] = deque(maxlen=window_s + 1)

    def add_step(self, num_bars: int) -> None:
        """A step that gave as many paths a bar."""
        with self._lock:
            tally = self._present()
            tally.num_bars += num_bars
            tally.num_steps += 1

    def add_wait(self, waited_s: float) -> None:
        """A series that had waited for its slots."""
        with self._lock:
            tally = self._present()
            tally.waited_s += waited_s
            tally.num_waits += 1

    def recently(self) -> Recently:
        """The means as of now."""
        now = self._clock()
        first = int(now) - self._window_s
        with self._lock:
            tallies = [tally for tally in self._tallies if tally.second >= first]
            num_bars = sum(tally.num_bars for tally in tallies)
            num_steps = sum(tally.num_steps for tally in tallies)
            waited_s = sum(tally.waited_s for tally in tallies)
            num_waits = sum(tally.num_waits for tally in tallies)
        elapsed_s = now - max(first, self._started)
        return Recently(
            bars_per_s=num_bars / elapsed_s if elapsed_s > 0 else 0.0,
            mean_batch_size=num_bars / num_steps if num_steps else None,
            queue_wait_s=waited_s / num_waits if num_waits else None,
        )

    def _present(self) -> Tally:
        second = int(self._clock())
        if not self._tallies or self._tallies[-1].second != second:
            self._tallies.append(Tally(second))
        return self._tallies[-1]


class EngineLoads(Collector):
    """Paths and slots as they are when Prometheus asks: after a cancelled job no step would correct them."""

    def __init__(self, loads: Callable[[], Mapping[str, "EngineLoad"]]) -> None:
        self._loads = loads

    def collect(self) -> Iterator[GaugeMetricFamily]:
        running = GaugeMetricFamily(
            "kronos_sequences_running", "Sample paths that hold a slot", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "kronos_sequences_waiting", "Sample paths that wait for a slot", labels=["model"]
        )
        slots = GaugeMetricFamily("kronos_slots", "Sample paths that may run together", labels=["model"])
        for model, load in self._loads().items():
            running.add_metric([model], load.running)
            waiting.add_metric([model], load.waiting)
            slots.add_metric([model], load.slots)
        yield from (running, waiting, slots)


class ModelMetrics:
    """One model's children of the labelled metrics, looked up once."""

    def __init__(self, metrics: "WorkerMetrics", model_id: str) -> None:
        self.num_bars = metrics.num_bars.labels(model_id)
        self.num_prefill_bars = metrics.num_prefill_bars.labels(model_id)
        self.prefill_s = metrics.step_s.labels(model_id, "prefill")
        self.decode_s = metrics.step_s.labels(model_id, "decode")
        self.batch_size = metrics.batch_size.labels(model_id)
        self.queue_wait_s = metrics.queue_wait_s.labels(model_id)


class WorkerMetrics:
    """The metrics of one process, in a registry of its own. It observes engines, on their owner's thread.

    Args:
        loads: each engine's load by model id, from any thread.
        num_jobs: jobs that are computed now.
    """

    def __init__(
        self,
        loads: Callable[[], Mapping[str, "EngineLoad"]],
        num_jobs: Callable[[], int],
        window: LoadWindow | None = None,
    ) -> None:
        self.window = window or LoadWindow()
        self.registry = registry = CollectorRegistry()
        registry.register(EngineLoads(loads))
        ProcessCollector(registry=registry)
        model = ("model",)
        self.num_bars = Counter(
            "kronos_bars_generated", "Bars generated, over all sample paths", model, registry=registry
        )
        self.num_prefill_bars = Counter(
            "kronos_prefill_bars",
            "Bars computed in chunks beside decoding, those of lookbacks above all",
            model,
            registry=registry,
        )
        self.step_s = Histogram(
            "kronos_step_seconds",
            "Time of one step's phase",
            ("model", "phase"),
            buckets=STEP_BUCKETS_S,
            registry=registry,
        )
        self.batch_size = Histogram(
            "kronos_batch_size",
            "Sample paths that one step gave a bar",
            model,
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self.queue_wait_s = Histogram(
            "kronos_queue_wait_seconds",
            "Time a series waited in this worker for its slots",
            model,
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.jobs = Counter(
            "kronos_jobs",
            "Jobs that ended: done, or failed with the code of their error",
            ("outcome", "code"),
            registry=registry,
        )
        running = Gauge("kronos_jobs_running", "Jobs that are computed now", registry=registry)
        running.set_function(num_jobs)
        self.info = Gauge(
            "kronos_worker_info",
            "What this worker runs on and serves; always 1",
            ("device", "model", "queue", "dtype"),
            registry=registry,
        )
        self._by_model: dict[str, ModelMetrics] = {}

    def describe(self, *, device: str, model: str, queue: str, dtype: str) -> None:
        """What the process turned out to be."""
        self.info.clear()
        self.info.labels(device, model, queue, dtype).set(1)

    def observe_step(self, model_id: str, report: "StepReport", load: "EngineLoad") -> None:
        """After each step of an engine."""
        metrics = self._of(model_id)
        if report.num_prefill_bars:
            metrics.num_prefill_bars.inc(report.num_prefill_bars)
            metrics.prefill_s.observe(report.prefill_s)
        if report.num_bars:
            metrics.num_bars.inc(report.num_bars)
            metrics.decode_s.observe(report.decode_s)
            metrics.batch_size.observe(report.num_bars)
            self.window.add_step(report.num_bars)

    def observe_generation(self, model_id: str, generation: "Generation") -> None:
        """After each series that came to its end, well or not."""
        queued_s = generation.timings.durations_s()["queued"]
        self._of(model_id).queue_wait_s.observe(queued_s)
        self.window.add_wait(queued_s)

    def count_job(self, code: str | None) -> None:
        """A job that ended; ``code`` is one of ``ErrorCode``, None where it is done."""
        self.jobs.labels("done" if code is None else "failed", str(code or "")).inc()

    def serve(self, host: str, port: int) -> WSGIServer | None:
        """Answer Prometheus on that port from now on; None where it cannot be had, which the log tells."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:  # no port beyond 65535, says the latter
            log.warning("no metrics on %s:%d (KRONOS_METRICS_PORT): %s", host, port, error)
            return None
        log.info("metrics: http://%s:%d/metrics", host, port)
        return server

    def _of(self, model_id: str) -> ModelMetrics:
        metrics = self._by_model.get(model_id)
        if metrics is None:
            metrics = self._by_model[model_id] = ModelMetrics(self, model_id)
        return metrics
