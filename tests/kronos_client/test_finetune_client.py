"""Finetuning by the client, against a real Redis without any worker."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kronos_client.client import FinetuneState, ForecastClient
from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneProgress, parse_finetune_job
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import CPU_FINETUNE_QUEUE, FINETUNE_TASK, GPU_FINETUNE_QUEUE, PROGRESS_STATE
from kronos_client.contract.schemas import example
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker
from kronos_model.bars.synthetic import candles
from kronos_model.finetuning.config import FinetuneConfig, load_config
from tests.kronos_client.sent import messages, sent_job
from tests.waiting import WAIT_S

CANDLES = candles(seed=1, bars=60)
CONFIG = {"data": {"lookback": 30, "pred_len": 5}, "predictor": {"epochs": 2}}
NORMAL = f"{CPU_FINETUNE_QUEUE}\x06\x163"
LISTS = [NORMAL, CPU_FINETUNE_QUEUE, f"{CPU_FINETUNE_QUEUE}\x06\x166", f"{GPU_FINETUNE_QUEUE}\x06\x163"]
PROGRESS = {
    "stage": "predictor",
    "stage_index": 1,
    "num_stages": 2,
    "epoch": 2,
    "num_epochs": 10,
    "loss": 5.1,
}


def assert_nothing_enqueued(redis: Any) -> None:
    assert [redis.llen(key) for key in LISTS] == [0] * len(LISTS)


def test_a_message_is_what_any_celery_client_would_send(client, redis):
    handle = client.finetune(CONFIG, name="mine", data="hourly/a.csv", deadline_s=3600)
    (message,) = messages(redis, NORMAL)
    headers = message["headers"]
    assert (headers["task"], headers["id"]) == (FINETUNE_TASK, handle.id)
    assert (headers["argsrepr"], headers["kwargsrepr"]) == (
        "()",
        "{'name': 'mine', 'data': 'hourly/a.csv'}",
    )
    job = sent_job(redis, NORMAL)
    assert redis.time()[0] - 60 <= job.pop("submitted_at") <= redis.time()[0] + 1
    assert job == {
        "schema_version": 1,
        "name": "mine",
        "config": CONFIG,
        "data": {"path": "hourly/a.csv"},
        "device": "auto",
        "allow_fallback": True,
        "deadline_s": 3600,
        "priority": "normal",
    }
    assert handle.queue == CPU_FINETUNE_QUEUE


def test_each_form_of_a_config_is_the_same_job(client, redis, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("data:\n  lookback: 30\n  pred_len: 5\npredictor:\n  epochs: 2\n")
    as_json = tmp_path / "config.json"
    as_json.write_text(json.dumps(CONFIG))
    config = FinetuneConfig.model_validate(CONFIG | {"data": {**CONFIG["data"], "path": "elsewhere.csv"}})
    sent = []
    for form in (CONFIG, file, str(as_json), config, load_config(file, ["data.path=x"])):
        client.finetune(form, name="mine", data="a.csv")
        sent.append(sent_job(redis, NORMAL))
        redis.flushall()
    assert all(job["config"] == CONFIG and job["data"] == {"path": "a.csv"} for job in sent)


def test_the_configs_own_path_and_device_are_the_jobs_where_none_are_given(client, redis, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("data: {path: [a.csv, b.csv], lookback: 30}\ntraining_device: cpu\n")
    client.finetune(file, name="mine")
    job = sent_job(redis, NORMAL)
    assert (job["data"], job["device"]) == ({"path": ["a.csv", "b.csv"]}, "cpu")
    assert job["config"] == {"data": {"lookback": 30}}
    redis.flushall()
    client.finetune(file, name="mine", device="mps")
    assert sent_job(redis, NORMAL)["device"] == "mps"


INDEXED = pd.DataFrame(CANDLES.columns, index=pd.to_datetime(list(CANDLES.timestamps)))
SOURCES = {
    "a mapping of columns": (CANDLES.as_dict(), ["0"]),
    "a DataFrame": (INDEXED, ["0"]),
    "a list of them": ([INDEXED, CANDLES.as_dict()], ["0", "1"]),
    "several by name": ({"BTC": INDEXED, "ETH": CANDLES.as_dict()}, ["BTC", "ETH"]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_candles_go_with_the_job(client, redis, source):
    given, names = SOURCES[source]
    client.finetune(CONFIG, name="mine", data=given)
    job = sent_job(redis, NORMAL)
    assert [one["id"] for one in job["data"]["instruments"]] == names
    for one in job["data"]["instruments"]:
        assert one["timestamps"] == list(CANDLES.timestamps)
        np.testing.assert_allclose(decode_column(one["close"]), CANDLES.columns["close"], rtol=1e-6)
    parse_finetune_job(job, Limits())


def test_several_files_are_a_list(client, redis):
    client.finetune(CONFIG, name="mine", data=["a.csv", Path("daily") / "b.csv"])
    assert sent_job(redis, NORMAL)["data"] == {"path": ["a.csv", "daily/b.csv"]}


BAD = CANDLES.as_dict() | {"close": np.where(np.arange(60) == 7, np.nan, CANDLES.columns["close"])}
REFUSED = {  # as the client reads what it is given; the contract's tests have the rest
    "no data": ({"data": None}, ErrorCode.INVALID_CONFIG, "config.data.path"),
    "an absolute path": ({"data": Path("/a.csv")}, ErrorCode.DATA_NOT_ALLOWED, "data.path"),
    "data that is none": ({"data": 5.0}, ErrorCode.BAD_TYPE, "data.instruments.0"),
    "data without prices": (
        {"data": {"a": {"timestamps": []}}}, ErrorCode.MISSING_FIELD, "data.instruments.0.open",
    ),
    "bad candles": ({"data": {"a": CANDLES.as_dict(), "b": BAD}}, ErrorCode.NOT_FINITE,
                    "data.instruments.1.close"),
    "a bad config": ({"config": {"predictor": {"epochs": 0}}}, ErrorCode.INVALID_CONFIG,
                     "config.predictor.epochs"),
    "data that is no object": ({"config": {"data": 5}}, ErrorCode.INVALID_CONFIG, "config.data"),
    "no config": ({"config": 5}, ErrorCode.BAD_TYPE, "config"),
    "no such file": ({"config": "/nowhere/config.yaml"}, ErrorCode.INVALID_CONFIG, "config"),
    "no GPU": ({"device": "cuda", "allow_fallback": False}, ErrorCode.NO_GPU_WORKER, "device"),
}  # fmt: skip


@pytest.mark.parametrize("defect", REFUSED)
def test_what_a_worker_would_refuse_is_not_sent(client, redis, defect):
    changes, code, field = REFUSED[defect]
    arguments = {"config": CONFIG, "name": "mine", "data": "a.csv"} | changes
    with pytest.raises(JobError) as refused:
        client.finetune(arguments.pop("config"), **arguments)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert_nothing_enqueued(redis)


def test_a_job_goes_where_the_announcements_send_it(client, redis):
    announce(redis, fake_worker(GPU_FINETUNE_QUEUE))
    assert client.finetune(CONFIG, name="mine", data="a.csv").queue == GPU_FINETUNE_QUEUE
    assert client.finetune(CONFIG, name="mine", data="a.csv", device="cpu").queue == CPU_FINETUNE_QUEUE
    assert [redis.llen(NORMAL), redis.llen(f"{GPU_FINETUNE_QUEUE}\x06\x163")] == [1, 1]


def test_a_job_with_the_same_id_and_content_has_one_outcome(client, redis, backend):
    first = client.finetune(CONFIG, name="mine", data="a.csv", job_id="my-job")
    client.finetune(CONFIG, name="mine", data="a.csv", job_id="my-job")
    assert redis.llen(NORMAL) == 2  # it is the worker's to see that the first is still under way
    backend.mark_as_done(first.id, example("finetune-result"))
    again = client.finetune(CONFIG, name="mine", data="a.csv", job_id="my-job")
    assert redis.llen(NORMAL) == 2
    assert again.wait(WAIT_S).model_dump(mode="json") == example("finetune-result")
    with pytest.raises(JobError, match="ID_CONFLICT"):
        client.finetune(CONFIG, name="another", data="a.csv", job_id="my-job")


def test_the_states_of_a_job_are_read_back_from_anywhere(client, settings, backend):
    handle = client.finetune(CONFIG, name="mine", data="a.csv")
    with ForecastClient(settings=settings) as another:
        watched = another.finetune_handle(handle.id)
        assert watched.queue is None
        assert watched.state().name == "PENDING"
        backend.store_result(handle.id, PROGRESS, PROGRESS_STATE)
        assert watched.state() == FinetuneState("PROGRESS", FinetuneProgress(**PROGRESS))
        backend.store_result(handle.id, PROGRESS | {"of a newer worker": 1, "loss": None}, PROGRESS_STATE)
        assert watched.state().progress == FinetuneProgress(**(PROGRESS | {"loss": None}))
        backend.store_result(handle.id, {"stage": 7}, PROGRESS_STATE)
        assert watched.state() == FinetuneState("PROGRESS")
        backend.mark_as_done(handle.id, example("finetune-result"))
        assert watched.state() == FinetuneState("SUCCESS")
        assert watched.wait(WAIT_S).model.id == "crypto-hourly@3"


def test_a_handle_names_its_kind(client):
    assert repr(client.finetune_handle("a")) == "FinetuneHandle(id='a', queue=None)"
