"""Examples of jobs, their results and an error, as they are published beside the schemas."""

from typing import Any

import numpy as np

from kronos_client.contract.columns import encode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import (
    FinetunedModel,
    FinetuneResult,
    FinetuneTimings,
)
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.contract.names import CPU_FINETUNE_QUEUE, CPU_QUEUE, SCHEMA_VERSION
from kronos_client.contract.results import ForecastResult, ModelInfo, Timings, series_result
from kronos_client.contract.worker_status import ForecastWorkerStatus, ModelStatus, RunningJob
from kronos_model.bars.columns import COLUMNS
from kronos_model.forecast import Forecast

JOB_ID = "0f6f8a3e-2b1c-4d55-9a57-1c3f0d9b6a10"
CLOSES = (187.15, 187.92, 188.4, 187.66, 189.02, 189.95, 189.3, 190.14)


def example_job() -> dict[str, Any]:
    """Two instruments: one with arrays and given future times, one with base64 columns."""
    close = np.array(CLOSES)
    open_ = np.concatenate([[186.9], close[:-1]])
    columns = {
        "open": open_,
        "high": np.maximum(open_, close) + 0.4,
        "low": np.minimum(open_, close) - 0.35,
        "close": close,
    }
    days = np.arange("2024-06-03", "2024-06-13", dtype="datetime64[D]")
    trading_days = [str(day) for day in days if np.is_busday(day)]
    hours = np.arange("2024-06-13T00:00", "2024-06-13T08:00", dtype="datetime64[h]")
    return {
        "schema_version": SCHEMA_VERSION,
        "series": [
            {
                "id": "AAPL",
                "timestamps": trading_days,
                **{name: [round(float(value), 2) for value in values] for name, values in columns.items()},
                "volume": [50080500, 47471400, 54156800, 41181800, 53103900, 97262100, 172373300, 198134300],
                "future_timestamps": ["2024-06-13", "2024-06-14", "2024-06-17"],
            },
            {
                "id": "BTC-USD",
                "timestamps": [f"{hour}:00:00Z" for hour in hours],
                **{name: encode_column(360 * values) for name, values in columns.items()},
                "seed": 7,
            },
        ],
        "pred_len": 3,
        "sampling": {"temperature": 1.0, "top_p": 0.9, "sample_count": 20, "seed": 42},
        "output": {"quantiles": [0.1, 0.5, 0.9], "paths": False, "repair": True},
        "device": "auto",
        "allow_fallback": True,
        "deadline_s": 60,
        "priority": "normal",
    }


def example_result() -> dict[str, Any]:
    """What the job's result looks like; its numbers come from no model."""
    limits = Limits()
    job = parse_job(example_job(), limits)
    rng = np.random.default_rng(0)
    series = []
    for prepared in prepare(job, JOB_ID, limits):
        columns = prepared.columns
        close, volume = columns["close"][-1], columns.get("volume", np.zeros(1))[-1]
        newest = np.array([close, close, close, close, volume, volume * close])
        shape = (job.sampling.sample_count, job.horizon, len(COLUMNS))
        paths = newest * (1 + 0.01 * rng.standard_normal(shape))
        forecast = Forecast(paths.astype(np.float32), prepared.seed).repaired()
        series.append(series_result(prepared, forecast, job.output))
    result = ForecastResult(
        series=tuple(series),
        model=ModelInfo(
            id="NeoQuasar/Kronos-small",
            revision="0123456789abcdef0123456789abcdef01234567",
            tokenizer_id="NeoQuasar/Kronos-Tokenizer-base",
            tokenizer_revision="89abcdef0123456789abcdef0123456789abcdef",
        ),
        device="cpu",
        device_warning=None,
        queue=CPU_QUEUE,
        worker="celery@example",
        timings_ms=Timings(queued=4.0, prefill=31.5, decode=88.2, total=131.7),
        warnings=tuple(text for prepared in prepare(job, JOB_ID, limits) for text in prepared.warnings),
    )
    return result.model_dump(mode="json")


def example_finetune_job() -> dict[str, Any]:
    """Both stages from a published checkpoint, on files in the worker's data folder."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": "crypto-hourly",
        "config": {
            "data": {
                "columns": {"timestamps": "Date", "close": "Adj Close"},
                "lookback": 400,
                "pred_len": 48,
                "validation_fraction": 0.1,
                "test_fraction": 0.1,
            },
            "start": {"model": "NeoQuasar/Kronos-small"},
            "tokenizer": {"epochs": 10},
            "predictor": {"epochs": 10, "patience": 3, "optimiser": {"learning_rate": 4e-5}},
            "evaluation": {"windows": 64, "season": 24},
            "seed": 7,
        },
        "data": {"path": ["hourly/BTC-USD.csv", "hourly/ETH-USD.csv"]},
        "device": "auto",
        "allow_fallback": True,
        "deadline_s": 86400,
        "priority": "low",
    }


def example_finetune_result() -> dict[str, Any]:
    """What the job's result looks like; its numbers come from no training."""
    verdict = (
        "8.9 % better than the model it started from (95 % interval 6.1 to 11.7 %).",
        "The 80 % interval held 78.3 % of the closes.",
    )
    trained = {"best_epoch": 6, "epochs": 9, "steps": 8640, "trained_s": 2620.9}
    result = FinetuneResult(
        model=FinetunedModel(name="crypto-hourly", version=3, id="crypto-hourly@3"),
        parent={
            "model": "NeoQuasar/Kronos-small",
            "revision": "0123456789abcdef0123456789abcdef01234567",
            "tokenizer": "NeoQuasar/Kronos-Tokenizer-base",
            "tokenizer_revision": "89abcdef0123456789abcdef0123456789abcdef",
        },
        metrics={
            "tokenizer": {"best_loss": 0.021, **trained},
            "predictor": {"best_loss": 2.31, **trained},
        },
        evaluation={
            "judged": "finetuned",
            "num_windows": 64,
            "horizon": 48,
            "season": 24,
            "improvements": {
                "start": {"percent": 8.9, "low_percent": 6.1, "high_percent": 11.7, "outcome": "better"}
            },
            "verdict": list(verdict),
        },
        verdict=verdict,
        data={
            "num_instruments": 2,
            "num_bars": 52416,
            "num_gaps": 3,
            "num_sorted": 0,
            "dropped": {"NaN or infinite": 12},
        },
        device="cpu",
        device_warning=None,
        queue=CPU_FINETUNE_QUEUE,
        worker="celery@example",
        warnings=(),
        timings_ms=FinetuneTimings(queued=35.0, training=5241830.0, total=5242410.0),
        num_attempts=2,
        resumed=True,
    )
    return result.model_dump(mode="json")


def example_worker_status() -> dict[str, Any]:
    """A worker that computes one job."""
    status = ForecastWorkerStatus(
        node="celery@example",
        state="ready",
        role="forecast",
        queue=CPU_QUEUE,
        requested_device="auto",
        device="cpu",
        device_warning=None,
        device_description={"name": "Example CPU", "kind": "cpu", "index": None},
        model=ModelInfo(id="kronos-tiny", revision=None, tokenizer_id="kronos-tiny", tokenizer_revision=None),
        num_parameters=460608,
        max_context=512,
        load_s=0.4,
        jobs_done=118,
        jobs_failed=1,
        jobs_per_s=1.9667,
        jobs_running=(RunningJob(id=JOB_ID, bars_done=20, bars_total=60),),
        num_jobs_running=1,
        sequences_running=20,
        sequences_waiting=0,
        slots=64,
        bars_per_s=1804.2,
        mean_batch_size=20.0,
        queue_wait_s=0.01,
        models=(
            ModelStatus(
                id="kronos-tiny", revision=None, state="ready", jobs=1, slots=64, running=20, waiting=0
            ),
        ),
        max_models=4,
        dtype="float32",
        threads=2,
        versions={"python": "3.11.9", "torch": "2.13.0"},
        host="example",
        pid=4711,
        uptime_s=127.5,
    )
    return status.as_json()


def example_error() -> dict[str, Any]:
    """A job that was refused, as Celery's JSON backend stores it."""
    error = JobError(
        ErrorCode.HIGH_BELOW_LOW,
        "column 'high', row 3: 185.1 is below the low of the same bar",
        "series.0.high",
        {"row": 3},
    )
    return {
        "exc_type": type(error).__name__,
        "exc_module": type(error).__module__,
        "exc_message": list(error.args),
    }
