"""The metrics of engines and jobs."""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.feeds.scores import SERIES_SUMS
from kronos_client.redis.job_store import Receipt
from kronos_model.engine.reports import EngineLoad, StepReport
from tests.ports import free_port
from tests.waiting import WAIT_S
from worker.monitoring.metrics import FinetuneMetrics, WorkerMetrics

MODEL = "kronos-tiny"
NOW = 1.8e9
FIRST = Receipt(NOW, NOW, False)


def generation(queued_s: float) -> SimpleNamespace:
    timings = SimpleNamespace(durations_s=lambda: {"queued": queued_s, "prefill": 0.0, "decode": 0.0})
    return SimpleNamespace(timings=timings)


@pytest.fixture
def loads() -> dict[str, EngineLoad]:
    return {MODEL: EngineLoad(3, 5, 64)}


@pytest.fixture
def metrics(loads) -> WorkerMetrics:
    return WorkerMetrics(lambda: loads, lambda: 2)


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_loads_are_read_at_the_scrape(metrics, loads):
    names = ("kronos_sequences_running", "kronos_sequences_waiting", "kronos_slots")
    assert [value(metrics, name, model=MODEL) for name in names] == [3, 5, 64]
    loads |= {MODEL: EngineLoad(0, 0, 64), "other": EngineLoad(1, 0, 8)}
    assert [value(metrics, name, model=MODEL) for name in names] == [0, 0, 64]
    assert [value(metrics, name, model="other") for name in names] == [1, 0, 8]
    assert value(metrics, "kronos_jobs_running") == 2


def test_a_gpu_is_described_at_the_scrape(loads):
    gpu = SimpleNamespace(memory_total_bytes=80, memory_free_bytes=19, utilisation_percent=None)
    metrics = WorkerMetrics(lambda: loads, lambda: 2, lambda: {"cuda:0": gpu})
    assert value(metrics, "kronos_gpu_memory_total_bytes", device="cuda:0") == 80
    assert value(metrics, "kronos_gpu_memory_free_bytes", device="cuda:0") == 19
    assert value(metrics, "kronos_gpu_utilisation_percent", device="cuda:0") is None
    gpu.utilisation_percent = 87
    assert value(metrics, "kronos_gpu_utilisation_percent", device="cuda:0") == 87


def test_the_wait_of_a_job_has_queue_and_priority_as_labels(metrics):
    labels = {"queue": "gpu.finetune", "priority": "low"}
    for waited_s in (2.5, -0.5):  # a sender's clock may be ahead
        metrics.observe_job_wait("gpu.finetune", "low", NOW - waited_s, FIRST)
    assert value(metrics, "kronos_job_wait_seconds_count", **labels) == 2
    assert value(metrics, "kronos_job_wait_seconds_sum", **labels) == 2.5
    assert value(metrics, "kronos_job_wait_seconds_bucket", **labels, le="1.0") == 1


@pytest.mark.parametrize(
    ("submitted_at", "receipt"),
    [
        (None, FIRST),
        (0.0, FIRST),
        (1e300, FIRST),
        (NOW - 2, Receipt(NOW + 60, NOW, False)),  # delivered again
    ],
)
def test_an_unknown_wait_is_not_observed(metrics, submitted_at, receipt):
    metrics.observe_job_wait("cpu", "normal", submitted_at, receipt)
    assert value(metrics, "kronos_job_wait_seconds_count", queue="cpu", priority="normal") is None


def test_steps_are_counted_by_model_and_phase(metrics, loads):
    for report in (
        StepReport(num_prefill_bars=400, num_bars=0, prefill_s=(0.03,)),
        StepReport(num_prefill_bars=100, num_bars=10, prefill_s=(0.01,), decode_s=(0.004,)),
        StepReport(num_prefill_bars=0, num_bars=20, decode_s=(0.006,)),
    ):
        metrics.observe_step(MODEL, report, loads[MODEL])
    metrics.observe_step("other", StepReport(num_bars=1, decode_s=(0.001,)), loads[MODEL])
    assert value(metrics, "kronos_bars_generated_total", model=MODEL) == 30
    assert value(metrics, "kronos_bars_generated_total", model="other") == 1
    assert value(metrics, "kronos_prefill_bars_total", model=MODEL) == 500
    seconds = {
        phase: (
            value(metrics, "kronos_step_seconds_count", model=MODEL, phase=phase),
            value(metrics, "kronos_step_seconds_sum", model=MODEL, phase=phase),
        )
        for phase in ("prefill", "decode")
    }
    assert seconds == {"prefill": (2, pytest.approx(0.04)), "decode": (2, pytest.approx(0.01))}
    assert value(metrics, "kronos_batch_size_count", model=MODEL) == 2
    assert value(metrics, "kronos_batch_size_sum", model=MODEL) == 30
    assert value(metrics, "kronos_batch_size_bucket", model=MODEL, le="16.0") == 1


def test_a_step_in_which_nothing_ran_is_none(metrics, loads):
    metrics.observe_step(MODEL, StepReport(), loads[MODEL])
    assert value(metrics, "kronos_step_seconds_count", model=MODEL, phase="decode") is None
    assert metrics.recently()["mean_batch_size"] is None


def test_scores_are_counted_by_feed(metrics):
    metrics.observe_scores("us", {}, [])
    assert value(metrics, "kronos_feed_drifts_total", feed="us", kind="too_narrow") == 0  # for increase()
    counts = [4, 4, 3, 1, 0.5, 2.0, 1, 2, 0.25]
    for sums in (dict(zip(SERIES_SUMS, counts, strict=True)), {}):
        metrics.observe_scores("us", sums, ["too_narrow"])
    assert value(metrics, "kronos_feed_drifts_total", feed="us", kind="too_narrow") == 2
    assert value(metrics, "kronos_feed_drifts_total", feed="us", kind="too_wide") == 0
    assert value(metrics, "kronos_feed_scored_bars_total", feed="us") == 4
    assert value(metrics, "kronos_feed_bars_inside_total", feed="us", interval="80") == 3
    assert value(metrics, "kronos_feed_loss_total", feed="us", forecast="bootstrap") == 2
    assert value(metrics, "kronos_feed_chances_total", feed="us", sum="squared_error") == 0.25
    assert value(metrics, "kronos_feed_missing_bars_total", feed="us") == 1


def test_the_wait_for_slots_is_observed_per_series(metrics):
    metrics.recently()
    for queued_s in (0.5, 1.5):
        metrics.observe_generation(MODEL, generation(queued_s))
    assert value(metrics, "kronos_queue_wait_seconds_sum", model=MODEL) == 2
    assert value(metrics, "kronos_queue_wait_seconds_count", model=MODEL) == 2
    assert metrics.recently()["queue_wait_s"] == 1


def test_jobs_are_counted_by_their_outcome_from_any_thread(metrics):
    with ThreadPoolExecutor(8) as threads:
        for code in (None, None, ErrorCode.DEADLINE) * 100:
            threads.submit(metrics.count_job, code)
    assert value(metrics, "kronos_jobs_total", outcome="done", code="") == 200
    assert value(metrics, "kronos_jobs_total", outcome="failed", code="DEADLINE") == 100
    assert (metrics.num_done, metrics.num_failed) == (200, 100)


def test_a_worker_says_what_it_is_once(metrics):
    for device in ("cuda:0", "cpu"):
        metrics.describe(device=device, model=MODEL, queue="cpu", dtype="float32", engine="torch")
    (info,) = (family for family in metrics.registry.collect() if family.name == "kronos_worker_info")
    (sample,) = info.samples
    facts = {"device": "cpu", "model": MODEL, "queue": "cpu", "dtype": "float32", "engine": "torch"}
    assert sample.labels == facts
    assert sample.value == 1


def test_metrics_are_served_on_the_given_port(metrics):
    server = metrics.serve("127.0.0.1", free_port())
    assert server is not None
    try:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    assert f'kronos_slots{{model="{MODEL}"}} 64.0' in text.splitlines()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("203.0.113.1", 9100)])
def test_an_unusable_address_is_a_warning(metrics, caplog, host, port):
    assert metrics.serve(host, port) is None
    assert "KRONOS_METRICS_PORT" in caplog.text


def test_the_status_has_the_means_of_the_last_seconds(metrics, loads):
    assert metrics.recently() == {"bars_per_s": 0.0, "mean_batch_size": None, "queue_wait_s": None}
    for num_bars in (64, 32):
        metrics.observe_step(MODEL, StepReport(num_bars=num_bars, decode_s=(0.1,)), loads[MODEL])
    recently = metrics.recently()
    assert (recently["mean_batch_size"], recently["queue_wait_s"]) == (48, None)
    assert recently["bars_per_s"] > 0


def test_a_finetuning_worker_has_metrics_of_its_jobs_progress():
    training = None
    metrics = FinetuneMetrics(lambda: training)
    labels = {"model": "mine", "stage": "predictor"}
    assert metrics.registry.get_sample_value("kronos_jobs_running") == 0
    assert metrics.registry.get_sample_value("kronos_training_loss", labels) is None
    training = TrainingStatus(job_id="a", name="mine", stage="predictor", step=7, num_steps=20, loss=2.5)
    names = ("step", "steps", "loss")
    assert [metrics.registry.get_sample_value(f"kronos_training_{name}", labels) for name in names] == [
        7,
        20,
        2.5,
    ]
    assert metrics.registry.get_sample_value("kronos_jobs_running") == 1
    training = TrainingStatus(job_id="b", name="mine")
    assert metrics.registry.get_sample_value("kronos_training_loss", {"model": "mine", "stage": ""}) is None


def test_a_finetuning_worker_has_no_engine_metrics():
    names = {family.name for family in FinetuneMetrics(lambda: None).registry.collect()}
    assert {"kronos_jobs", "kronos_job_wait_seconds", "kronos_messages_dead", "kronos_worker_info"} <= names
    assert not {"kronos_slots", "kronos_bars_generated"} & names
