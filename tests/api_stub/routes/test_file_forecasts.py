"""Forecasts of uploaded files and of data sets."""

import re
import time

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from api_stub.routes import candles
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import ADDRESS, series

URL = "/v1/forecasts/file"
CSV = {"Content-Type": "text/csv"}
JSON = {"Content-Type": "application/json"}
COLUMNS = {"timestamps": series(num_candles=40)["timestamps"]} | {
    name: [value + bar for bar in range(40)]
    for name, value in (("open", 2.0), ("high", 3.0), ("low", 1.0), ("close", 2.5))
}
TEXT = "\n".join(",".join(map(str, row)) for row in (COLUMNS, *zip(*COLUMNS.values(), strict=True)))


@pytest.fixture
def read(monkeypatch) -> list[tuple]:
    """Reads every file as the same bars, without a process."""
    calls = []

    async def read_upload(path, name, options, code, bars):
        calls.append((path.read_text(), name, options.id_column, bars))
        found = {"series": {"id": "", **COLUMNS}, "dropped": {}, "bad_rows": [], "warnings": ["cut"]}
        return found | {"instruments": ["A", "B"]}

    monkeypatch.setattr(candles, "read_upload", read_upload)
    return calls


def test_a_file_is_read_by_the_reader_and_forecast_as_by_the_clients(http, settings, jobs):
    settings.data_folder.mkdir()
    (settings.data_folder / "BTC.csv").write_text(TEXT)
    events = ["close>last+2% at 3", "high>=3 by end"]
    query = {"dataset": "BTC.csv", "pred_len": 3, "top_p": 0.8, "quantiles": [0.2, 0.8], "seed": 5}
    query |= {"events": events, "statistics": True, "calendar": "24/7", "calibrated": True}
    answer = http.post(URL, params=query, headers=JSON)
    assert answer.status_code == 202, answer.text
    (job,) = jobs.sent()
    (one,) = job["series"]
    assert (one["id"], job["pred_len"], len(one["timestamps"])) == ("BTC", 3, 40)
    assert (job["sampling"]["sample_count"], job["sampling"]["top_p"], job["sampling"]["seed"]) == (
        100,
        0.8,
        5,
    )
    assert (job["output"]["quantiles"], one["calendar"]) == ([0.2, 0.8], "24/7")
    assert (job["output"]["events"], job["output"]["statistics"]) == (events, True)
    assert job["output"]["calibrated"]
    assert answer.headers["location"] == f"/v1/forecasts/{job['id']}"
    assert (answer.json()["id"], answer.json()["state"]) == (job["id"], "queued")


def test_the_answer_counts_the_rows_that_were_left_out(http, settings, jobs):
    settings.data_folder.mkdir()
    (settings.data_folder / "BTC.csv").write_text(f"{TEXT}\nsoon,2,3,1,2.5\n2031-01-01,,,,\n")
    query = {"dataset": "BTC.csv", "pred_len": 3, "drop_bad_rows": True, "missing": "drop"}
    answer = http.post(URL, params=query, headers=JSON).json()
    (job,) = jobs.sent()
    assert (job["missing"], len(job["series"][0]["timestamps"])) == ("drop", 41)
    assert answer["dropped"] == {"unreadable_time": 1}
    assert answer["bad_rows"][0].startswith("BTC.csv, line 42, column timestamps: there is 'soon'")


def test_the_answer_says_that_the_file_has_more_instruments(http, settings, jobs):
    settings.data_folder.mkdir()
    header, *rows = TEXT.splitlines()
    lines = [f"{header},symbol", *(f"{row},{name}" for name in ("T1", "T0") for row in rows)]
    (settings.data_folder / "two.csv").write_text("\n".join([*lines, ""]))
    query = {"dataset": "two.csv", "pred_len": 3, "id_column": "symbol"}
    answer = http.post(URL, params=query, headers=JSON).json()
    assert answer["file_warnings"] == ["first of 2 instruments: T0; give instrument"]
    answer = http.post(URL, params=query | {"instrument": "T1"}, headers=JSON).json()
    assert answer["file_warnings"] == []


def test_the_answer_says_that_the_limits_allow_fewer_paths(settings, jobs, read):
    few = settings.model_copy(update={"max_sample_count": 10})
    with TestClient(create_app(few), base_url=ADDRESS, headers=CSV) as http:
        said = [
            http.post(URL, params=query, content=TEXT).json()["file_warnings"]
            for query in (
                {"pred_len": 3, "instrument": "A"},
                {"pred_len": 3, "instrument": "A", "sample_count": 5},
            )
        ]
    limits = "KRONOS_MAX_SAMPLE_COUNT allows no more"
    (cut, fewer), *others = said
    assert (cut, *others) == ("cut", ["cut"])
    assert fewer.startswith(f"10 paths are drawn for each series, not 100: {limits}")


def test_the_answer_is_that_of_the_job(http, settings, jobs, read):
    key = CSV | {"Idempotency-Key": "once"}
    query = {"name": "BTC.csv", "pred_len": 3, "id_column": "symbol", "instrument": "B"}
    job_id = http.post(URL, params=query, content=TEXT, headers=key).json()["id"]
    wanted = {"instrument": "B", "max_bars": settings.max_bars}
    assert read == [(TEXT, "BTC.csv", "symbol", wanted)]
    result = jobs.finish(job_id)
    answer = http.post(URL, params=query, content=TEXT, headers=key)
    assert answer.status_code == 200
    about_file = {"dropped": {}, "bad_rows": [], "file_warnings": ["cut"]}
    assert answer.json() == http.get(f"/v1/forecasts/{job_id}").json() | about_file
    table = http.post(URL, params=query, content=TEXT, headers=key | {"Accept": "text/csv"})
    assert table.text.count("\n") == 1 + sum(len(one["timestamps"]) for one in result["series"])
    assert example("forecast-result")["series"][0]["id"] in table.text


def test_a_failed_forecast_is_answered_with_its_error(http, jobs, read):
    key = CSV | {"Idempotency-Key": "once"}
    job_id = http.post(URL, params={"pred_len": 3}, content=TEXT, headers=key).json()["id"]
    jobs.fail(job_id, "OUT_OF_MEMORY", "no room")
    answer = http.post(URL, params={"pred_len": 3}, content=TEXT, headers=key)
    assert (answer.status_code, answer.json()["code"], answer.json()["job_id"]) == (
        503,
        "OUT_OF_MEMORY",
        job_id,
    )


def test_nobody_waits_for_a_worker_that_is_not_there(settings, jobs, read):
    begun_at = time.monotonic()
    waits = create_app(settings.model_copy(update={"api_wait_s": 10}))
    with TestClient(waits, base_url=ADDRESS, headers=CSV) as http:
        answer = http.post(URL, params={"pred_len": 3}, content=TEXT)
    assert time.monotonic() - begun_at < 5
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert answer.json()["waiting"].startswith("No worker serves the queue cpu. ")


@pytest.mark.parametrize(
    ("query", "headers", "status", "field"),
    [
        ({}, CSV, 422, "pred_len"),
        ({"pred_len": 0}, CSV, 422, "pred_len"),
        ({"pred_len": 3, "top_p": 2}, CSV, 422, "top_p"),
        ({"pred_len": 3, "quantiles": 2}, CSV, 422, "quantiles.0"),
        ({"pred_len": 3, "sample_count": 1000}, CSV, 413, "sample_count"),
        ({"pred_len": 3, "timezone": "Mars"}, CSV, 422, "body"),
        ({"pred_len": 3}, {"Content-Type": "text/plain"}, 415, None),
        ({"pred_len": 3, "dataset": "a.csv"}, CSV, 415, None),
        ({"pred_len": 3, "dataset": "../a.csv"}, JSON, 404, "name"),
    ],
)
def test_an_invalid_request_names_its_parameter(http, jobs, read, query, headers, status, field):
    answer = http.post(URL, params=query, content=TEXT, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
    assert not re.search(r"\b(sampling|output)\.", answer.json()["detail"])
    assert jobs.sent() == []
