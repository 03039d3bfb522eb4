"""A backtest's fields, as a sender and a worker check them."""

from datetime import UTC, date, datetime

import pytest

from kronos_client.contract.backtest import parse_backtest_job
from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import Limits
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.synthetic import candles

JOB = {"data": {"path": ["a.csv", "folder"]}}
PRICES = {name: [1.0] for name in ("open", "high", "low", "close")}
INLINE = {"instruments": [{"id": "a", "timestamps": ["2024-01-01"], **PRICES}]}


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"data": {}}, "MISSING_FIELD", "data"),
        ({"data": {"path": "../secret.csv"}}, "DATA_NOT_ALLOWED", "data.path"),
        ({"schema_version": 9}, "UNSUPPORTED_VERSION", "schema_version"),
        ({"window": 3}, "UNKNOWN_FIELD", "window"),
        ({"reading": {"path": "a"}}, "UNKNOWN_FIELD", "reading.path"),
        ({"reading": {"drop_bad_rows": 0}}, "BAD_TYPE", "reading.drop_bad_rows"),
        ({"data": INLINE, "reading": {"decimal": ","}}, "BAD_VALUE", "reading"),
        ({"models": []}, "BAD_VALUE", "models"),
        ({"models": ["a", "a"]}, "BAD_VALUE", "models"),
        ({"models": ["drift"]}, "BAD_VALUE", "models"),
        ({"models": ["a\n"]}, "BAD_VALUE", "models.0"),
        ({"windows": 0}, "BAD_VALUE", "windows"),
        ({"samples": 1}, "BAD_VALUE", "samples"),
        ({"samples": 257}, "LIMIT_EXCEEDED", "samples"),
        ({"horizon": 513}, "PRED_LEN_TOO_LONG", "horizon"),
        ({"lookback": 8193}, "LIMIT_EXCEEDED", "lookback"),
        ({"seed": -1}, "BAD_VALUE", "seed"),
        ({"top": 0}, "BAD_VALUE", "top"),
        ({"cost_bps": -1}, "BAD_VALUE", "cost_bps"),
        ({"start": "yesterday"}, "BAD_VALUE", "start"),
        ({"end": 5}, "BAD_TYPE", "end"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name(fields, code, field):
    with pytest.raises(JobError) as refused:
        parse_backtest_job(JOB | fields, Limits())
    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_misspelt_field_names_the_one_of_a_backtest_that_was_meant():
    for fields, meant in (({"horizn": 3}, "horizon"), ({"reading": {"decimel": ","}}, "decimal")):
        with pytest.raises(JobError, match=f"; did you mean {meant}.$"):
            parse_backtest_job(JOB | fields, Limits())


def test_dates_and_times_are_read_as_they_are_written():
    job = parse_backtest_job(JOB | {"start": "2024-06-18", "end": "2024-06-18T09:30:00+00:00"}, Limits())
    assert job.moments == {"start": date(2024, 6, 18), "end": datetime(2024, 6, 18, 9, 30, tzinfo=UTC)}


def test_clients_send_the_options_of_a_backtest():
    with FakeForecastClient() as client:
        handle = client.submit_backtest(
            "prices", models="mine@3", start=date(2024, 1, 1), windows=None, lookback=64,
            reading=ReadOptions(drop_bad_rows=True), job_id="files",
        )  # fmt: skip
        result = handle.wait()
        client.submit_backtest({"A": candles(seed=1, bars=60).as_dict()}, job_id="inline").wait()
        assert client.backtest_handle("files").state().name == "SUCCESS"
    sent = client.jobs["files"]
    assert (sent["data"], sent["models"], sent["start"]) == ({"path": "prices"}, ["mine@3"], "2024-01-01")
    assert sent["reading"]["drop_bad_rows"]
    assert "windows" not in sent
    assert list(result.report["models"]) == ["mine@3"]
    assert client.jobs["inline"]["data"]["instruments"][0]["id"] == "A"
