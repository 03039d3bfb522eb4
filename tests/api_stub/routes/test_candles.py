"""A file of candles becomes the series of a forecast job."""

import gzip

import pytest

from api_stub.routes import candles
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.options import ReadOptions
from tests.kronos_model.bars.files.candle_files import FOLDER

URL = "/v1/candles"
FILE_FORECASTS = "/v1/forecasts/file"
CSV = {"Content-Type": "text/csv"}


def test_the_series_of_a_file_can_be_forecast(http, settings, jobs):
    content = (FOLDER / "instruments.csv").read_bytes() + b"soon,B,1,1,1,1\n"
    params = {"name": "my market.csv.gz", "id_column": "symbol", "instrument": "B", "drop_bad_rows": "true"}
    answer = http.post(
        URL,
        params=params | {"column": "close:Open", "max_bars": 1},
        content=gzip.compress(content),
        headers={"Content-Type": "application/gzip"},
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["series"]["timestamps"] == ["2024-06-19"]
    assert found["series"]["close"] == found["series"]["open"] == [1.1]
    assert found["instruments"] == ["A", "B"]
    assert found["dropped"] == {"unreadable_time": 1}
    assert found["bad_rows"][0].startswith("my market.csv.gz, line 5, column date: there is 'soon'")
    job = {"series": [found["series"] | {"future_timestamps": ["2024-06-20"]}]}
    assert http.post("/v1/forecasts", json=job).status_code == 202
    assert jobs.sent()[0]["series"][0]["id"] == "B"
    assert not list(settings.data_folder.glob("*"))


def test_the_zone_that_a_file_names_is_that_of_the_job(http, jobs):
    rows = [f"2024103{day} {hour:02}:00:00 US/Eastern,1,2,1,1" for day in (0, 1) for hour in range(24)]
    content = "\n".join(["date,open,high,low,close", *rows])
    found = http.post(URL, params={"name": "a.csv"}, content=content, headers=CSV).json()["series"]
    assert (found["timezone"], found["timestamps"][0]) == ("US/Eastern", "2024-10-30T00:00:00-04:00")
    assert http.post("/v1/forecasts", json={"series": [found], "pred_len": 90}).status_code == 202
    assert http.post(f"{FILE_FORECASTS}?pred_len=90", content=content, headers=CSV).status_code == 202
    assert [job["series"][0]["timezone"] for job in jobs.sent()] == ["US/Eastern"] * 2


def test_a_form_that_cannot_be_found_names_the_parameter(http):
    content = (FOLDER / "times_day_or_month.csv").read_bytes()
    answer = http.post(URL, params={"name": "a.csv"}, content=content, headers=CSV)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (422, "INVALID_INPUT", "date_format")
    assert problem["detail"].startswith("a.csv has dates such as '05/06/2018', which may have the day")


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        (
            ("1,2,1,1", "1,2,0,1"),
            "body",
            "is not a price above zero; drop_bad_rows=true leaves such rows out",
        ),
        (
            ("1,2,1,1", ",,,"),
            "body",
            "; missing=ffill gives such rows the close before, missing=drop leaves them",
        ),
        (("06-02", "06-01"), "body", "has several; drop_bad_rows=true leaves such rows out"),
        (("date", "moment of it"), "column", ", or name the column: column=timestamps:TITLE"),
        (("close", "end"), "column", ", or name the column: column=close:TITLE"),
        (("2024-06-0", "05/06/201"), "date_format", "(date_format)"),
    ],
)
def test_an_error_says_which_parameter_helps(http, change, field, remedy):
    content = "date,open,high,low,close\n2024-06-01,3,4,2,3\n2024-06-02,1,2,1,1\n".replace(*change)
    problem = http.post(URL, params={"name": "a.csv"}, content=content, headers=CSV).json()
    assert (problem["field"], remedy in problem["detail"]) == (field, True), problem


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"column": "close"}, "column"),
        ({"decimal": ";"}, "decimal"),
        ({"max_bars": 0}, "max_bars"),
        ({"max_bars": 10**6}, "max_bars"),
    ],
)
def test_an_invalid_parameter_is_refused(http, params, field):
    answer = http.post(URL, params=params, content=b"x", headers=CSV)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_form_is_no_file(http):
    answer = http.post(URL, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_it_needs_no_data_folder_and_takes_the_size_of_uploads(settings, http, monkeypatch):
    http.app.state.backend.settings = settings.model_copy(update={"data_folder": None})

    async def refuse(path, name, options, code, wanted):
        assert (path.stat().st_size, wanted["max_bars"]) == (2**24 + 1, 8192)
        assert options == ReadOptions()
        raise JobError(ErrorCode.INVALID_INPUT, f"{name} was read", "body")

    monkeypatch.setattr(candles, "read_upload", refuse)
    answer = http.post(URL, content=b" " * (2**24 + 1), headers=CSV)
    assert (answer.status_code, answer.json()["detail"]) == (422, "candles.csv was read")


def test_forms_of_vendors_are_explained_and_what_is_odd_is_a_warning(http):
    content = (FOLDER / "polygon_flat_file.csv").read_bytes()
    answer = http.post(URL, params={"name": "a.csv", "instrument": "AA"}, content=content[:-1], headers=CSV)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["series"]["id"], found["instruments"]) == ("AA", ["A", "AA"])
    assert found["explanation"][0].startswith("form: Polygon (Massive) flat files")
    assert found["warnings"][0].startswith("the last line has no line end")
    content = (FOLDER / "two_vendors.csv").read_bytes()
    problem = http.post(URL, params={"name": "a.csv"}, content=content, headers=CSV).json()
    assert (problem["field"], "fit two forms" in problem["detail"]) == ("column", True)
