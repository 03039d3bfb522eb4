"""Forecasts as tables, by the request's Accept."""

import io
import json

import pandas as pd
import pyarrow as pa
import pytest

from api_stub.routes.tables import WRITERS, preferred
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import series

CSV, PARQUET, ARROW = WRITERS
READERS = {
    CSV: lambda body: pd.read_csv(io.BytesIO(body)),
    PARQUET: lambda body: pd.read_parquet(io.BytesIO(body)),
    ARROW: lambda body: pa.ipc.open_stream(body).read_pandas(),
}


def enqueue(http) -> tuple[str, str]:
    accepted = http.post("/v1/forecasts", json=example("forecast-job")).json()
    return accepted["id"], accepted["url"]


@pytest.mark.parametrize("media_type", WRITERS)
def test_a_result_is_a_table_with_the_numbers_of_its_json(http, jobs, media_type):
    job_id, url = enqueue(http)
    result = example("forecast-result")
    paths = [[1.0] * len(result["series"][0]["timestamps"])] * 2
    result["series"][0]["paths"] = {"close": paths}
    caution = "kronos-tiny was trained on synthetic candles: for trying the service, not for trading."
    result["warnings"] = ["5–95 % rest on few paths.", caution]
    jobs.finish(job_id, result)
    answer = http.get(url, headers={"Accept": media_type})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media_type)
    assert "Accept" in answer.headers["vary"].split(", ")
    assert json.loads(answer.headers["x-warnings"]) == result["warnings"]
    table = READERS[media_type](answer.content)
    assert set(table["caution"]) == {caution}
    for one in result["series"]:
        rows = table[table["series"] == one["id"]]
        assert list(rows["timestamp"]) == one["timestamps"]
        for column, values in one["mean"].items():
            assert list(rows[column]) == values
        for level, columns in one["quantiles"].items():
            assert list(rows[f"close_q{level}"]) == columns["close"]
        for chance in one["events"]:
            assert set(rows[chance["event"]]) == {chance["probability"]}
        assert rows["close_path2"].isna().all() == (one["paths"] is None)


@pytest.mark.parametrize(("path", "place"), [("single", 0), ("batch", 1)])
def test_a_prediction_is_a_table_with_the_names_of_the_request(http, settings, jobs, path, place):
    key = {"Idempotency-Key": "once"}
    body = series() if path == "single" else {"items": [series(series_id=None), series(series_id='=1+2,"x"')]}
    job_id = http.post(f"/v1/predict/{path}", json=body, headers=key).headers["x-job-id"]
    result = example("forecast-result")
    result["series"] = result["series"][: 1 if path == "single" else 2]
    jobs.finish(job_id, result)
    answer = http.post(f"/v1/predict/{path}", json=body, headers=key | {"Accept": CSV})
    assert (answer.status_code, answer.headers["x-job-id"]) == (200, job_id)
    table = READERS[CSV](answer.content)
    assert "caution" not in table
    assert set(table["series"].astype(str)) == ({"AAPL"} if path == "single" else {"0", '=1+2,"x"'})
    assert list(table["close"])[-1] == result["series"][place]["mean"]["close"][-1]


def test_a_job_without_a_result_has_no_table(http, jobs):
    job_id, url = enqueue(http)
    waiting = http.get(url, headers={"Accept": CSV})
    assert (waiting.status_code, waiting.json()["state"]) == (202, "queued")
    jobs.fail(job_id, "OUT_OF_MEMORY", "no room")
    failed = http.get(url, headers={"Accept": CSV})
    assert (failed.status_code, failed.json()["code"], failed.json()["job_id"]) == (
        503,
        "OUT_OF_MEMORY",
        job_id,
    )


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", None),
        ("*/*", None),
        ("application/json", None),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", None),
        ("Text/CSV; header=present", CSV),
        ("text/csv, application/json", CSV),
        ("application/json, text/csv", None),
        ("text/csv;q=0.5, application/json;q=0.9", None),
        ("application/json;q=0.1, application/vnd.apache.parquet", PARQUET),
        ("text/csv;q=0, */*", None),
        ("text/csv;q=high, application/vnd.apache.arrow.stream", ARROW),
        ("application/xml", None),
        (",;,", None),
    ],
)  # fmt: skip
def test_the_most_preferred_format_is_sent(accept, expected):
    assert preferred(accept, WRITERS) == expected
