"""Finetuning jobs on real workers: each ends in a model, or in a code."""

from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.celery_app import make_app
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key
from kronos_client.settings import ClientSettings
from tests.integration.finetune_bench import LONG
from tests.integration.test_workers import kronos
from tests.processes import await_end
from tests.waiting import WAIT_S, await_true


@pytest.fixture
def app(redis: LocalRedis) -> Iterator[Celery]:
    """What other clients than ours have."""
    with make_app(ClientSettings(redis_url=redis.url)) as app:
        yield app


def test_a_job_becomes_a_registered_model_and_forecasts_go_on_meanwhile(bench, redis, start_worker, candles):
    worker = bench.worker("--pool", "prefork", "--concurrency", "4", "--autoscale", "4,2").wait_until_ready()
    (announced,) = worker.announcements()
    assert (announced["role"], announced["queue"], announced["device"]) == ("finetune", "cpu.finetune", "cpu")
    await_true(lambda: "ready: role=finetune device=cpu" in worker.log.read_text(), "it logs what it runs on")
    forecaster = start_worker().wait_until_ready()
    handle = bench.submit(LONG)
    assert handle.queue == "cpu.finetune"
    bench.await_step(1)
    assert bench.client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).worker == forecaster.node
    assert not handle.state().has_ended
    await_true(lambda: (worker.announcements()[0]["training"] or {}).get("step"))
    shown = kronos(redis, "status")
    assert shown.returncode == 0, shown.stderr
    assert "finetuning mine: predictor, epoch" in " ".join(shown.stdout.split())
    bench.hurry()
    result = handle.wait(WAIT_S)
    assert result.model.id == "mine@1"
    assert (result.num_attempts, result.resumed, result.worker) == (1, False, worker.node)
    bench.assert_trained_once(LONG)
    (started,) = bench.lines("start")
    assert started["nice"] >= 10
    assert not started["group"]
    assert (bench.models / "mine" / "1" / "metadata.json").exists()
    assert not list(bench.models.glob(".runs/*/run/predictor"))
    # The same worker runs backtests, with forecasts of the other one.
    options = {"windows": 2, "horizon": 2, "samples": 2, "lookback": 32}
    tested = bench.client.submit_backtest({"A": candles}, **options).wait(WAIT_S)
    assert (tested.worker, tested.queue, tested.report["num_windows"]) == (worker.node, "cpu.finetune", 2)
    assert len(list(bench.models.glob(".runs/*/run/report.html"))) == 1
    worker.stop()
    forecaster.stop()


def test_a_cancelled_job_keeps_its_best_checkpoint(bench):
    worker = bench.worker().wait_until_ready()
    handle = bench.submit(LONG)
    bench.await_step(5)
    handle.cancel()
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.CANCELLED
    best = ended.value.details["best_checkpoint"]
    assert (bench.models / best).is_dir()
    assert best in ended.value.message
    assert not list(bench.models.glob(".runs/*/run/*/state.safetensors"))
    assert len(bench.lines("stopped")) == 1
    worker.stop()


def test_a_job_that_celery_terminates_is_cancelled_and_the_worker_goes_on(bench, app):
    """As Flower's button does it."""
    # While nothing trains, after a claim that ran out, a revocation has no checkpoint to name.
    worker = bench.worker(KRONOS_VISIBILITY_TIMEOUT_S="60").wait_until_ready()
    handle = bench.submit(LONG)
    bench.await_step(5)
    app.control.revoke(handle.id, terminate=True)
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.CANCELLED
    assert ended.value.details.get("best_checkpoint"), ended.value
    assert bench.submit(3, seed=1).wait(WAIT_S).model.name == "mine"
    worker.stop()


def test_a_late_job_and_one_that_ignores_its_end_are_ended(bench):
    worker = bench.worker(KRONOS_FINETUNE_TIME_LIMIT_S="6", KRONOS_FINETUNE_GRACE_S="1").wait_until_ready()
    with pytest.raises(JobError) as ended:
        bench.submit(LONG, deadline_s=2).wait(WAIT_S)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, "deadline_s")
    with pytest.raises(JobError) as ended:
        bench.submit(LONG, seed=15).wait(WAIT_S)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, None)
    assert "KRONOS_FINETUNE_TIME_LIMIT_S" in ended.value.message
    assert await_end(bench.lines("step")[-1]["pid"])
    worker.stop()


def test_nothing_outside_the_data_folder_can_be_named(bench, tmp_path, app):
    worker = bench.worker().wait_until_ready()
    outside = tmp_path / "secret.csv"
    outside.write_text("")
    (bench.data / "link.csv").symlink_to(outside)
    (bench.data / "folder").mkdir()
    (bench.data / "folder" / "inner.csv").symlink_to(outside)
    for path in ("link.csv", "folder", "nothing.csv"):
        with pytest.raises(JobError) as refused:
            bench.submit(5, data=path).wait(WAIT_S)
        assert (refused.value.code, refused.value.field) == (ErrorCode.DATA_NOT_ALLOWED, "data.path")
    config = {"start": {"model": "kronos-tiny"}}
    payload = {"name": "mine", "config": config, "data": {"path": "../secret.csv"}}
    sent = app.send_task("kronos.finetune", kwargs={"job": payload}, queue="cpu.finetune")
    with pytest.raises(JobError) as refused:
        sent.get(timeout=WAIT_S)
    assert refused.value.code == ErrorCode.DATA_NOT_ALLOWED
    assert bench.lines("start") == []
    worker.stop()


def test_a_job_on_the_wrong_queue_is_answered(bench, start_worker, app):
    workers = [bench.worker().wait_until_ready(), start_worker().wait_until_ready()]
    for task, queue, right in (
        ("kronos.finetune", "cpu", "gpu.finetune"),
        ("kronos.forecast", "cpu.finetune", "gpu"),
    ):
        with pytest.raises(JobError) as refused:
            app.send_task(task, kwargs={"job": {}}, queue=queue).get(timeout=WAIT_S)
        assert refused.value.code == ErrorCode.INVALID_INPUT
        assert right in refused.value.details["queues"]
    for worker in workers:
        worker.stop()


def test_a_job_that_is_submitted_twice_is_trained_once(bench, redis):
    workers = [bench.worker().wait_until_ready() for _ in range(2)]
    handle = bench.submit(60)
    bench.await_step(5)
    again = bench.submit(60, job_id=handle.id)
    assert again.wait(WAIT_S) == handle.wait(WAIT_S)
    assert len(bench.lines("start")) == 1
    record = Redis.from_url(redis.url, decode_responses=True).hgetall(job_key(handle.id))
    assert "holder" not in record
    for worker in workers:
        worker.stop()


def test_a_model_that_was_really_trained_is_forecast_with_at_once(bench, start_worker, candles):
    """The training process is the real one; the forecast worker was there before the model."""
    forecaster = start_worker(KRONOS_MODEL_FOLDER=str(bench.models)).wait_until_ready()
    worker = start_worker(**bench.settings).wait_until_ready()
    bench.workers += [worker, forecaster]
    shape = {"d_model": 16, "n_heads": 2, "ff_dim": 16}
    stage = {"epochs": 2, "batch_size": 4, "windows_per_epoch": 8, "validation_windows": 4}
    config = {
        "data": {"lookback": 16, "pred_len": 4},
        "start": {
            "model": shape | {"n_layers": 1, "s1_bits": 4, "s2_bits": 4},
            "tokenizer": shape
            | {"n_enc_layers": 2, "n_dec_layers": 2, "s1_bits": 4, "s2_bits": 4, "group_size": 4},
        },
        "tokenizer": stage,
        "predictor": stage,
        "evaluation": {"windows": 2, "sample_count": 2},
    }
    result = bench.client.finetune(config, name="real", data=candles).wait(WAIT_S)
    assert (result.model.id, result.parent["model"]) == ("real@1", "from scratch")
    assert result.verdict
    assert result.metrics.keys() == {"tokenizer", "predictor"}
    forecast = bench.client.forecast(candles[:16], pred_len=2, model="real", timeout_s=WAIT_S)
    assert (forecast.model.id, forecast.worker) == ("real", forecaster.node)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        # Before the device, which takes longer to find.
        ({"KRONOS_MODEL_FOLDER": "", "KRONOS_DEVICE": "tpu"}, "KRONOS_MODEL_FOLDER is not set"),
        ({"KRONOS_MODEL_FOLDER": "/proc/nothing"}, "cannot be written"),
        ({"KRONOS_DATA_FOLDER": "/nothing"}, "KRONOS_DATA_FOLDER cannot be used"),
        ({"KRONOS_DEVICE": "tpu"}, "INVALID_DEVICE"),
    ],
)
def test_a_finetuning_worker_that_cannot_serve_stops_with_one_line(bench, start_worker, settings, line):
    worker = start_worker(**bench.settings | settings)
    bench.workers.append(worker)
    assert worker.process.wait(WAIT_S) == 1
    log = worker.log.read_text()
    assert line in log
    assert "Traceback" not in log
