"""A client and a worker of the same settings refuse the same jobs, in the same words."""

import json
from typing import Any

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.redis.queues import list_key
from kronos_client.settings import ClientSettings
from kronos_model.bars.synthetic import candles
from tests.kronos_client.contract.contract_jobs import job, series
from tests.kronos_client.sent import sent_job

CANDLES = candles(seed=1, bars=60).as_dict()
MAX_PRED_LEN = 512
BEYOND = {
    "max_series": (2, {"candles": [CANDLES] * 3}, ErrorCode.LIMIT_EXCEEDED),
    "max_sample_count": (4, {"sample_count": 5}, ErrorCode.LIMIT_EXCEEDED),
    "max_paths": (9, {"candles": [CANDLES] * 2, "sample_count": 5}, ErrorCode.LIMIT_EXCEEDED),
    "max_result_bytes": (5000, {"sample_count": 20, "paths": True}, ErrorCode.RESULT_TOO_LARGE),
}


def taken(redis: Any, queue: str) -> dict[str, Any]:
    """The only job there, taken off."""
    job = sent_job(redis, list_key(queue, 3))
    redis.delete(list_key(queue, 3))
    return job


def submit(settings: ClientSettings, options: dict[str, Any]) -> None:
    options = {"candles": CANDLES, "pred_len": 5} | options
    with ForecastClient(settings=settings) as client:
        client.submit(options.pop("candles"), **options)


@pytest.mark.parametrize("name", BEYOND)
def test_a_job_beyond_a_limit_is_refused_on_both_sides_alike(settings, redis, name):
    limit, options, code = BEYOND[name]
    submit(settings, options)
    payload = taken(redis, "cpu")
    narrow = settings.model_copy(update={name: limit})
    with pytest.raises(JobError) as by_client:
        submit(narrow, options)
    worker_limits = narrow.limits(MAX_PRED_LEN)
    with pytest.raises(JobError) as by_worker:
        prepare(parse_job(payload, worker_limits), "id", worker_limits)
    assert by_client.value.code == code
    assert by_client.value.args == by_worker.value.args
    assert by_client.value.details["actual"] > by_client.value.details["limit"] == limit


@pytest.mark.parametrize("name", [name for name in BEYOND if name != "max_result_bytes"])
def test_a_job_at_a_limit_is_accepted_on_both_sides(settings, redis, name):
    limit, options, _ = BEYOND[name]
    # One more is what was too much.
    at_limit = settings.model_copy(update={name: limit + 1})
    submit(at_limit, options)
    limits = at_limit.limits(MAX_PRED_LEN)
    prepare(parse_job(taken(redis, "cpu"), limits), "id", limits)


def test_a_longer_series_is_refused_by_workers_and_cut_by_clients(settings, redis):
    submit(settings, {})
    (whole,) = taken(redis, "cpu")["series"]
    narrow = settings.model_copy(update={"max_bars": 59})
    submit(narrow, {})
    limits = narrow.limits(MAX_PRED_LEN)
    (cut,) = parse_job(taken(redis, "cpu"), limits).series
    assert cut.timestamps == tuple(whole["timestamps"][1:])
    assert decode_column(cut.close, "close").tolist() == decode_column(whole["close"], "close").tolist()[1:]
    with pytest.raises(JobError, match=r"series\.0.* 60 is more than the worker's limit of 59 bars"):
        parse_job({"series": [whole], "pred_len": 5}, limits)
    with pytest.raises(JobError, match=ErrorCode.LENGTH_MISMATCH):  # not cut
        submit(narrow, {"timestamps": whole["timestamps"][1:]})


def test_the_default_number_of_paths_keeps_to_lowered_limits(settings, redis):
    for limits, num_series, expected in (
        ({"max_sample_count": 16}, 1, 16),
        ({"max_paths": 20}, 2, 10),
        ({}, 1, 100),
    ):
        submit(settings.model_copy(update=limits), {"candles": [CANDLES] * num_series})
        assert taken(redis, "cpu")["sampling"]["sample_count"] == expected


def test_a_message_as_large_as_clients_may_send_is_read_by_workers(settings, redis):
    submit(settings, {})
    payload = taken(redis, "cpu")
    del payload["submitted_at"]  # added behind the check
    size = len(json.dumps(payload, separators=(",", ":")))
    submit(exact := settings.model_copy(update={"max_message_bytes": size}), {})
    parse_job(taken(redis, "cpu"), exact.limits(MAX_PRED_LEN))
    with pytest.raises(JobError) as refused:
        submit(settings.model_copy(update={"max_message_bytes": size - 1}), {})
    assert refused.value.details == {"limit": size - 1, "actual": size}


def test_a_finetuning_job_beyond_a_limit_is_refused_on_both_sides_alike(settings, redis):
    config = {"data": {"lookback": 30, "pred_len": 5}, "predictor": {"epochs": 2}}
    with ForecastClient(settings=settings) as client:
        client.finetune(config, name="mine", data=CANDLES)
    payload = taken(redis, "cpu.finetune")
    narrow = settings.model_copy(update={"max_inline_bars": 59})
    with ForecastClient(settings=narrow) as client, pytest.raises(JobError) as by_client:
        client.finetune(config, name="mine", data=CANDLES)
    with pytest.raises(JobError) as by_worker:
        parse_finetune_job(payload, narrow.limits(MAX_PRED_LEN))
    assert by_client.value.code == ErrorCode.LIMIT_EXCEEDED
    assert by_client.value.args == by_worker.value.args


def test_a_job_that_streams_is_refused_if_its_bars_are_too_many_to_be_sent_often():
    limits = Limits()
    asked = job(*(series(str(number)) for number in range(64)), pred_len=512, output={"quantiles": []})
    parse_job(asked, limits)
    with pytest.raises(JobError) as refused:
        parse_job(asked | {"output": {"quantiles": [], "stream": True}}, limits)
    assert (refused.value.code, refused.value.field) == (ErrorCode.RESULT_TOO_LARGE, "output.stream")
