"""From what apps ask for to a job of the contract."""

import asyncio
import inspect
import json
from pathlib import Path

import jsonschema
import pytest

from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract.forecast import ForecastJob, Output, Sampling, SeriesInput
from kronos_client.core.forecast_request import JOB_DEFAULTS, PARTS, forecast_payload, with_defaults
from kronos_client.core.job import candles_job
from kronos_client.core.long_request import finetune_payload
from kronos_client.core.options import ForecastOptions
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient
from kronos_model.bars.synthetic import candles

CANDLES = candles(seed=1, bars=60).as_dict()
SETTINGS = ClientSettings.model_construct()
RELEASE = Path(__file__).parents[2] / "data" / "release_0_1_0" / "forecast-job.json"


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(TypeError, match=r"unknown option horizon. The options are .*, pred_len, "):
        forecast_payload(CANDLES, horizon=5)
    with pytest.raises(TypeError, match=r"unknown option pred_len. The options are .*processes"):
        finetune_payload({}, name="mine", data="a.csv", pred_len=5)


def test_one_level_and_one_event_need_no_list():
    job = forecast_payload(CANDLES, pred_len=5, quantiles=0.1, events="close>last at end")
    assert (job["output"]["quantiles"], job["output"]["events"]) == ([0.1], ["close>last at end"])


@pytest.mark.parametrize(
    ("method", "given", "wanted"),
    [
        ("forecast", {"sample_cuont": 5}, "sample_count"),
        ("forecast", {"timeot_s": 5}, "timeout_s"),
        ("submit", {"jobid": "a"}, "job_id"),
        ("forecast_many", {"max_inflight": 5}, "max_in_flight"),
        ("backtest", {"windws": 5}, "windows"),
    ],
)
@pytest.mark.parametrize("client", [ForecastClient, AsyncForecastClient])
def test_a_misspelt_option_of_a_method_names_the_one_that_was_meant(client, method, given, wanted):
    (misspelt,) = given
    with pytest.raises(TypeError, match=f"{misspelt}; did you mean {wanted}. The options are .*{wanted}"):
        asyncio.run(getattr(client, method)(client, CANDLES, **given))


def test_every_option_is_one_of_the_contract():
    models = (SeriesInput, Sampling, Output, ForecastJob)
    fields = {"series_ids"}.union(*(model.model_fields for model in models))
    assert ForecastOptions.__annotations__.keys() <= fields


def test_defaults_are_the_contracts():
    job = ForecastJob.model_validate(forecast_payload(CANDLES, pred_len=5))
    assert job == ForecastJob(series=job.series, pred_len=5, sampling=Sampling(sample_count=100))


def test_what_was_not_given_is_left_out():
    assert not forecast_payload(CANDLES).keys() & {"pred_len", "model", "deadline_s"}


def test_defaults_never_change_because_jobs_are_sent_without_them():
    schema = json.loads(RELEASE.read_text(encoding="utf-8"))
    parts = {"sampling": schema["$defs"]["Sampling"], "output": schema["$defs"]["Output"]}
    for defaults, known in ((JOB_DEFAULTS, schema), *((PARTS[name], parts[name]) for name in parts)):
        for name, field in known["properties"].items():
            if name in defaults and name not in parts:
                assert defaults[name] == field["default"], f"an older worker still takes {field['default']}"


def test_a_new_field_with_its_default_does_not_reach_an_older_worker():
    schema = json.loads(RELEASE.read_text(encoding="utf-8"))
    given = {
        name: one.default
        for name, one in inspect.signature(ForecastClient.submit).parameters.items()
        if name in ForecastOptions.__annotations__ and one.default is not ...
    }
    for options in ({}, given):
        full = forecast_payload(CANDLES, **options | {"pred_len": 5})
        sent = json.loads(candles_job(CANDLES, options | {"pred_len": 5}, None, SETTINGS).content)
        jsonschema.validate(sent, schema)
        assert (sent["sampling"], "output" in sent) == ({"sample_count": 100}, False)
        assert ForecastJob.model_validate(sent) == ForecastJob.model_validate(full)
        assert with_defaults(sent) == with_defaults(full)


@pytest.mark.parametrize(
    ("source", "options", "ids"),
    [
        (CANDLES, {}, ["0"]),
        (CANDLES, {"series_ids": "AAPL"}, ["AAPL"]),
        ({"AAPL": CANDLES, "MSFT": CANDLES}, {}, ["AAPL", "MSFT"]),
        ({"AAPL": CANDLES}, {"timestamps": [CANDLES["timestamps"]]}, ["AAPL"]),
        ({"AAPL": CANDLES}, {"series_ids": ["A"]}, ["A"]),
    ],
)
def test_series_have_the_names_of_a_mapping_or_those_that_are_given(source, options, ids):
    payload = forecast_payload(source, pred_len=5, **options)
    assert [one["id"] for one in payload["series"]] == ids


@pytest.mark.parametrize("how", ["forecast", "submit", "async", "many"])
def test_where_limits_allow_fewer_paths_the_default_is_what_they_allow_and_the_result_says_so(how):
    many = {str(number): CANDLES for number in range(64)}

    def result(client, **options):
        if how == "submit":
            return client.submit(many, pred_len=2, **options).wait()
        if how == "async":
            return asyncio.run(FakeAsyncForecastClient(client).forecast(many, pred_len=2, **options))
        if how == "many":
            return next(client.forecast_many([[*many.values()]], pred_len=2, **options)).unwrap()
        return client.forecast(many, pred_len=2, **options)

    with FakeForecastClient(settings=ClientSettings.model_construct(max_paths=128)) as client:
        said = [result(client).warnings, result(client, sample_count=1).warnings]
        assert [job["sampling"]["sample_count"] for job in client.jobs.values()] == [128 // 64, 1]
    ((note,), nothing) = [[text for text in texts if "KRONOS_MAX_PATHS" in text] for texts in said]
    assert note.startswith("2 paths are drawn for each series, not 100: KRONOS_MAX_PATHS allows no more;")
    assert nothing == []
