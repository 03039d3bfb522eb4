"""A job's whole way: enqueued by an app, computed by a real worker, back equal to the reference."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from celery import Celery
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FORECAST_TASK, STATUS_TASK, job_key
from kronos_model.bars.columns import COLUMNS
from tests.integration.conftest import CASES, PARITY, StartWorker, WorkerUnderTest, submit_long_job
from tests.waiting import WAIT_S, await_true

TOLERANCE = 1e-5
CUDA_WARNING = "CUDA device 'cuda:0' requested but CUDA not available. Falling back to CPU."


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerUnderTest:
    """A worker whose requested GPU is missing."""
    return start_worker(KRONOS_DEVICE="cuda:0", KRONOS_MAX_BARS="1000").wait_until_ready()


@dataclass(frozen=True)
class RawClient:
    """Any Celery client: it has the task's name and the queue's, and none of our code."""

    app: Celery

    def send(self, /, *args: object, queue: str = "cpu", **kwargs: object):
        return self.app.send_task(FORECAST_TASK, args=args, kwargs=kwargs, queue=queue)


@pytest.fixture(scope="module")
def raw(redis: LocalRedis) -> RawClient:
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    return RawClient(app)


def raw_job(candles: pd.DataFrame, lookback: int = 40, **changes: object) -> dict:
    part = candles[:lookback]
    series = {name: part[name].tolist() for name in COLUMNS}
    series |= {"id": "x", "timestamps": part["timestamps"].tolist()}
    return {"series": [series], "pred_len": 4} | changes


def error_of(result) -> list:
    """Code, message, field and details, as any client sees them in the stored result."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - our class is unknown to a foreign client
        result.get(timeout=WAIT_S)
    meta = result.backend.get_task_meta(result.id)
    assert meta["status"] == "FAILURE"
    assert not meta["traceback"]
    return list(meta["result"].args)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_job_comes_back_equal_to_the_reference(worker, client, candles, case):
    lookback, pred_len = case["lookback"], case["pred_len"]
    past = [candles[start : start + lookback][["timestamps", *case["columns"]]] for start in case["starts"]]
    future = [candles["timestamps"][start + lookback :][:pred_len].tolist() for start in case["starts"]]
    result = client.forecast(
        past,
        lookback=lookback,
        future_timestamps=future,
        temperature=case["T"],
        top_k=case["top_k"],
        top_p=case["top_p"],
        sample_count=case["sample_count"],
        seed=case["torch_manual_seed"],
        repair=False,
        timeout_s=WAIT_S,
    )
    assert len(result.series) == len(case["starts"])
    for number, series in enumerate(result.series):
        expected = pd.read_csv(PARITY / f"{case['name']}.{number}.csv")
        actual = np.stack([series.mean[name] for name in COLUMNS], axis=-1)
        # The wire's columns are float32, and a volume of nothing is noise around 0.
        np.testing.assert_allclose(actual, expected.to_numpy(), rtol=TOLERANCE, atol=1e-9)
        assert list(series.timestamps) == future[number]


def test_the_last_bars_are_read_that_the_job_asks_for_or_the_context_leaves(worker, client, candles):
    def series(first: int, **options: object):
        future = candles["timestamps"][200:208].tolist()
        options |= {"future_timestamps": future, "sample_count": 2, "seed": 1, "timeout_s": WAIT_S}
        found = client.forecast(candles[first:200], **options).series[0]
        assert found.manifest.bars.num_bars == 200 - first  # those that the job has
        return found.model_copy(update={"manifest": found.manifest.forecast})

    assert series(0, lookback=40) == series(160)
    # Of a context of 128; how long it was trained with is unknown.
    assert series(0) == series(200 - (128 - 8))
    assert (series(0).lookback, series(0, lookback=40).lookback) == (120, 40)
    assert series(0, lookback=150).mean != series(0).mean


def test_a_job_may_keep_a_rolling_context(worker, client, candles):
    # The context of 128 is full after 9 bars; up to there both are the same.
    def close(policy: str, horizon: int) -> list[float]:
        result = client.forecast(
            candles[:120],
            future_timestamps=candles["timestamps"][120 : 120 + horizon].tolist(),
            seed=1,
            context_policy=policy,
            lookback=120,
            sample_count=1,
            timeout_s=WAIT_S,
        )
        return list(result.series[0].mean["close"])

    np.testing.assert_allclose(close("rolling", 8), close("exact", 8), rtol=TOLERANCE)
    rolling, exact = close("rolling", 40), close("exact", 40)
    assert len(rolling) == 40
    assert not np.allclose(rolling, exact, rtol=TOLERANCE)


def test_the_result_says_what_ran_where(worker, client, candles):
    result = client.forecast(candles[:40], pred_len=3, sample_count=5, paths=True, seed=1, timeout_s=WAIT_S)
    assert (result.device, result.queue, result.worker) == ("cpu", "cpu", worker.node)
    assert result.device_warning == CUDA_WARNING
    assert CUDA_WARNING in result.warnings
    assert result.model.id == str(PARITY / "model")
    timings = result.timings_ms
    assert timings.total >= timings.prefill + timings.decode > 0
    (series,) = result.series
    assert series.seed == 1
    assert np.shape(series.paths["close"]) == (5, 3)
    assert sorted(series.quantiles) == ["0.1", "0.5", "0.9"]
    median = np.median(series.paths["close"], axis=0)
    np.testing.assert_allclose(series.quantiles["0.5"]["close"], median, rtol=1e-6)
    assert all(high >= close for high, close in zip(series.mean["high"], series.mean["close"], strict=True))


def test_arrays_and_base64_give_the_same_forecast(worker, client, raw, candles):
    from_arrays = raw.send(job=raw_job(candles, sampling={"seed": 3})).get(timeout=WAIT_S)
    from_base64 = client.forecast(candles[:40], pred_len=4, sample_count=1, seed=3, timeout_s=WAIT_S)
    assert from_arrays["series"][0]["mean"]["close"] == list(from_base64.series[0].mean["close"])


def test_without_a_seed_the_id_decides(worker, client, candles):
    first, again, other = (
        client.submit(candles[:40], pred_len=3, job_id=job_id).wait(WAIT_S).series[0]
        for job_id in ("seed-by-id", "seed-by-id", "another-id")
    )
    assert first == again
    assert first.seed != other.seed
    assert first.mean != other.mean


def test_series_of_one_job_equal_series_alone(worker, client, candles):
    parts = [candles[:40], candles[100:107], candles[300:500]]
    together = client.forecast(parts, pred_len=5, seed=8, sample_count=2, timeout_s=WAIT_S)
    for part, series in zip(parts, together.series, strict=True):
        alone = client.forecast(part, pred_len=5, seed=series.seed, sample_count=2, timeout_s=WAIT_S)
        np.testing.assert_allclose(series.mean["close"], alone.series[0].mean["close"], rtol=1e-5)


def test_many_jobs_at_once_all_come_back_right(worker, client, candles):
    handles = [client.submit(candles[start : start + 30], pred_len=6, seed=start) for start in range(40)]
    results = [handle.wait(WAIT_S) for handle in handles]
    for start in (0, 17, 39):
        alone = client.forecast(candles[start : start + 30], pred_len=6, seed=start, timeout_s=WAIT_S)
        np.testing.assert_allclose(
            results[start].series[0].mean["close"], alone.series[0].mean["close"], rtol=1e-5
        )


BAD_SERIES = [
    ("close", [math.nan], ErrorCode.NOT_FINITE, 0),
    ("volume", [math.inf], ErrorCode.NOT_FINITE, 0),
    ("open", [0.0], ErrorCode.NON_POSITIVE_PRICE, 0),
    ("low", [-1.0], ErrorCode.NON_POSITIVE_PRICE, 0),
    ("high", [1.0], ErrorCode.HIGH_BELOW_LOW, 0),
    ("amount", [1.0, 2.0], ErrorCode.LENGTH_MISMATCH, None),
    ("open", "not base64!", ErrorCode.BAD_ENCODING, None),
    ("open", {"a": 1}, ErrorCode.BAD_TYPE, None),
    ("timestamps", ["yesterday"], ErrorCode.BAD_TIMESTAMP, 0),
    ("timestamps", ["2024-03-01 09:35:00+08:00"], ErrorCode.MIXED_TIMEZONES, None),
    ("timestamps", ["2030-01-01 00:00:00"], ErrorCode.TIMESTAMPS_NOT_ASCENDING, 1),
    ("colour", "blue", ErrorCode.UNKNOWN_FIELD, None),
]


@pytest.mark.parametrize(("name", "values", "code", "row"), BAD_SERIES, ids=lambda value: str(value)[:24])
def test_bad_candles_are_a_coded_error_that_names_the_field(worker, raw, candles, name, values, code, row):
    job = raw_job(candles)
    series = job["series"][0]
    if isinstance(values, list) and code is not ErrorCode.LENGTH_MISMATCH:
        values = values + series[name][len(values) :]
    series[name] = values
    stored = error_of(raw.send(job=job))
    assert stored[0] == code
    assert name in stored[2]
    if row is not None:
        assert stored[3]["row"] == row


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"schema_version": 2}, ErrorCode.UNSUPPORTED_VERSION, "schema_version"),
        ({"pred_len": 129}, ErrorCode.PRED_LEN_TOO_LONG, "pred_len"),
        ({"pred_len": "4"}, ErrorCode.BAD_TYPE, "pred_len"),
        ({"series": []}, ErrorCode.BAD_VALUE, "series"),
        ({"device": "tpu"}, ErrorCode.INVALID_DEVICE, "device"),
        ({"model": "other/model"}, ErrorCode.MODEL_NOT_ALLOWED, "model"),
        ({"sampling": {"sample_count": 10_000}}, ErrorCode.LIMIT_EXCEEDED, "sampling.sample_count"),
        ({"device": "cuda", "allow_fallback": False}, ErrorCode.NO_GPU_WORKER, "device"),
        ({"submitted_at": 1.0, "deadline_s": 5.0}, ErrorCode.DEADLINE, "deadline_s"),
    ],
    ids=str,
)
def test_bad_jobs_are_a_coded_error(worker, raw, candles, changes, code, field):
    stored = error_of(raw.send(job=raw_job(candles, **changes)))
    assert (stored[0], stored[2]) == (code, field)


@pytest.mark.parametrize(
    ("args", "kwargs", "code"),
    [
        ((), {}, ErrorCode.MISSING_FIELD),
        ((), {"job": 5}, ErrorCode.BAD_TYPE),
        ((), {"job": None}, ErrorCode.BAD_TYPE),
        ((1,), {}, ErrorCode.UNKNOWN_FIELD),
        ((), {"job": {}, "more": 1}, ErrorCode.UNKNOWN_FIELD),
    ],
)
def test_a_payload_that_is_not_a_job_is_a_coded_error(worker, raw, args, kwargs, code):
    assert error_of(raw.send(*args, **kwargs))[0] == code


def test_bad_jobs_leave_their_neighbours_alone(worker, client, raw, candles):
    good = [client.submit(candles[:60], pred_len=40, seed=1) for _ in range(3)]
    bad = [raw.send(job=raw_job(candles, pred_len=0)) for _ in range(3)]
    means = {tuple(handle.wait(WAIT_S).series[0].mean["close"]) for handle in good}
    assert [error_of(result)[0] for result in bad] == [ErrorCode.BAD_VALUE] * 3
    assert np.ptp(np.array(sorted(means)), axis=0).max() < 1e-4
    assert worker.process.poll() is None


def test_the_client_refuses_before_it_sends(client, candles, redis):
    with pytest.raises(JobError) as refused:
        client.submit(candles.assign(close=-1.0)[:40], pred_len=3)
    assert refused.value.code == ErrorCode.NON_POSITIVE_PRICE
    with pytest.raises(JobError) as refused:
        client.submit(candles.drop(columns="timestamps")[:40], pred_len=3)
    assert refused.value.code == ErrorCode.MISSING_FIELD


def test_cuda_without_a_gpu_worker_runs_on_the_cpu_with_a_warning(worker, client, candles):
    result = client.forecast(candles[:40], pred_len=3, device="cuda:1", timeout_s=WAIT_S)
    assert result.device == "cpu"
    assert "'cuda:1'" in result.device_warning
    assert "Falling back to CPU" in result.device_warning


def test_a_job_that_asks_for_the_cpu_and_gets_it_is_not_warned(worker, client, candles):
    result = client.forecast(candles[:40], pred_len=3, device="cpu", timeout_s=WAIT_S)
    assert (result.device, result.device_warning) == ("cpu", None)


def test_an_id_that_was_used_is_refused_for_other_content(worker, client, candles):
    client.submit(candles[:40], pred_len=3, job_id="used-once").wait(WAIT_S)
    with pytest.raises(JobError) as refused:
        client.submit(candles[:40], pred_len=4, job_id="used-once")
    assert refused.value.code == ErrorCode.ID_CONFLICT


def test_a_job_that_is_submitted_again_has_the_one_outcome(worker, client, candles):
    def submit(job_id: str):
        # A cancellation takes up to a second: a worker checks once a second.
        sample_count = 4 if job_id == "twice" else 256
        return client.submit(candles[:120], pred_len=100, sample_count=sample_count, seed=1, job_id=job_id)

    handles = [submit("twice"), submit("twice")]
    assert handles[0].wait(WAIT_S) == handles[1].wait(WAIT_S) == submit("twice").wait(WAIT_S)

    cancelled = submit("cancelled")
    cancelled.cancel()
    for handle in (cancelled, submit("cancelled")):
        with pytest.raises(JobError) as ended:
            handle.wait(WAIT_S)
        assert ended.value.code == ErrorCode.CANCELLED
    cancelled.cancel()  # it has ended: this leaves nothing behind
    assert client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).series
    assert submit("cancelled").state().name == "FAILURE"


def test_a_broken_record_is_a_coded_error_and_no_endless_loop(worker, client, candles, redis):
    job_id = "poisoned-record"
    handle = client.submit(candles[:120], pred_len=100, sample_count=4, job_id="keeps-it-busy")
    connection = Redis.from_url(redis.url)
    connection.set(job_key(job_id), "not a hash")
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    result = app.send_task(FORECAST_TASK, kwargs={"job": raw_job(candles)}, task_id=job_id, queue="cpu")
    assert error_of(result)[0] == ErrorCode.INTERNAL
    assert handle.wait(WAIT_S).series


def test_a_result_that_is_gone_is_not_waited_for(worker, client, candles, redis):
    handle = client.submit(candles[:40], pred_len=3)
    handle.wait(WAIT_S)
    connection = Redis.from_url(redis.url)
    connection.delete(f"celery-task-meta-{handle.id}")
    connection.hset(job_key(handle.id), "ended_at", "1.0")
    with pytest.raises(JobError) as gone:
        handle.wait()
    assert gone.value.code == ErrorCode.RESULT_EXPIRED
    connection.delete(job_key(handle.id))
    with pytest.raises(JobError) as gone:
        handle.wait()
    assert gone.value.code == ErrorCode.LOST


def test_cuda_without_falling_back_is_an_error_at_once(worker, client, candles):
    with pytest.raises(JobError) as refused:
        client.submit(candles[:40], pred_len=3, device="cuda", allow_fallback=False)
    assert refused.value.code == ErrorCode.NO_GPU_WORKER


def test_progress_is_reported_and_a_running_job_can_be_cancelled(worker, client, candles):
    handle = submit_long_job(client, candles)
    await_true(lambda: handle.state().bars_done)
    state = handle.state()
    assert state.bars_total == 120 * 256 * 16
    assert 0 < state.bars_done < state.bars_total
    handle.cancel()
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.CANCELLED
    assert client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).series


def test_a_running_job_that_is_late_ends_by_its_deadline(worker, client, candles):
    handle = submit_long_job(client, candles, deadline_s=1.5)
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.DEADLINE


def test_waiting_too_short_is_a_timeout_and_the_job_goes_on(worker, client, candles):
    handle = client.submit(candles[:120], pred_len=120, sample_count=4)
    with pytest.raises(JobError) as ended:
        handle.wait(0.05)
    assert ended.value.code == ErrorCode.TIMEOUT
    assert handle.wait(WAIT_S).series


def test_the_status_task_answers_with_every_worker(worker, raw):
    (status,) = raw.app.send_task(STATUS_TASK, queue="cpu").get(timeout=WAIT_S)["workers"]
    assert status["node"] == worker.node
    assert (status["requested_device"], status["device"], status["queue"]) == ("cuda:0", "cpu", "cpu")
    assert status["device_warning"] == CUDA_WARNING
    assert status["state"] == "ready"
    assert status["max_context"] == 128
    assert status["num_parameters"] == 174_272
    assert status["jobs_done"] > 0
    assert status["jobs_failed"] > 0
    assert status["load_s"] > 0
    assert status["uptime_s"] > 0
    assert status["device_description"]["memory_total_bytes"] > 0
    assert status["versions"]["celery"].startswith("5.")


def test_the_log_says_once_what_the_worker_runs_on(worker):
    lines = [line for line in worker.log.read_text().splitlines() if "ready: role=forecast device=" in line]
    assert len(lines) == 1
    for part in ("device=cpu", f"warning={CUDA_WARNING}", f"model={PARITY / 'model'}", "queue=cpu"):
        assert part in lines[0]
    assert worker.log.read_text().count("poisoned-record cannot begin") == 1  # the poisoned record's
