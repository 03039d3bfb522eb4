"""A forecast on the page: from a file to a chart, a table and downloads; warnings, refusals, cancelling."""

import json
import re

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from kronos_client.client import ForecastClient
from kronos_model.bars.synthetic import candles
from tests.integration.conftest import IS_NATIVE, StartWorker, WorkerUnderTest
from tests.page.conftest import TINY, OpenPage, Visit, await_frame, wait_until

LOOKBACK, HORIZON, SAMPLES, SEED = 128, 12, 25, 7
SETTINGS = {"lookback": LOOKBACK, "horizon": HORIZON, "samples": SAMPLES, "seed": SEED}
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
WHITE = (255, 255, 255)
MEAN_COLOUR = (0x7C, 0x3A, 0xED)


@pytest.fixture(scope="module", autouse=True)
def worker(browser, start_worker: StartWorker) -> WorkerUnderTest:
    return start_worker(**TINY).wait_until_ready()


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return pd.DataFrame(candles(3, 150).as_dict())


@pytest.fixture
def csv_file(bars, tmp_path):
    """A file with other names, another order and an extra column."""
    path = tmp_path / "my bars.csv"
    columns = ["volume", "close", "open", "high", "low", "timestamps"]
    renamed = bars[columns].rename(columns=str.title).rename(columns={"Timestamps": "Date"})
    renamed.assign(Note="a, b").to_csv(path, index=False)
    return path


def upload(visit: Visit, path, **fields):
    page = visit.open()
    page.set_input_files("#file", path)
    page.wait_for_selector("#run:enabled")
    for name, value in fields.items():
        page.fill(f"#{name.replace('_', '-')}", str(value))
    page.click("#run")
    return page


def downloaded(page, kind: str, folder):
    with page.expect_download() as waiting:
        page.click(f"#download-{kind}")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def prices_of(path) -> np.ndarray:
    """The part of a picture above the volume, as (rows, columns, 3) from 0 to 255."""
    picture = matplotlib.image.imread(path)[..., :3] * 255
    return picture[: len(picture) * 2 // 3]


def shade(ground, colour, alpha: float) -> np.ndarray:
    """A translucent colour on a ground."""
    return np.multiply(ground, 1 - alpha) + np.multiply(colour, alpha)


def is_of(picture: np.ndarray, colour) -> np.ndarray:
    """The pixels of a colour."""
    return (np.abs(picture - colour) < 2.5).all(axis=-1)


def assert_is_filled(picture: np.ndarray, colour) -> None:
    pixels = is_of(picture, colour)
    assert pixels.any(axis=0).sum() > 50, "nothing is drawn"
    assert pixels.sum(axis=0).max() > 5, "only a line is drawn"


def test_a_forecast_by_upload_equals_the_clients(visit, csv_file, bars, redis, tmp_path):
    page = upload(visit, csv_file, **SETTINGS, events="high>=1 by 5")
    page.wait_for_selector("#download-json")
    chances = page.inner_text("#chances")
    sure = "100.0 %\nall of 25 simulated paths (95 % sure: at least 86.7 %)"
    assert f"Chance of high at or above 1 by bar 5\n{sure}" in chances
    assert re.search(r"Chance to end higher\n[\d.]+ %\n[^\n]+ of 25 simulated paths", chances)
    with ForecastClient(redis.url) as client:
        known = bars.tail(LOOKBACK).drop(columns="amount")
        series = client.forecast(
            known, pred_len=HORIZON, sample_count=SAMPLES, seed=SEED, quantiles=LEVELS, timeout_s=30
        ).series[0]

    made_by = page.inner_text("#made-by")
    assert " of my bars.csv, by kronos-tiny on the processor (CPU) in " in made_by
    assert f"Seed {SEED}." in made_by
    assert f", {'native' if IS_NATIVE else 'torch'} engine." in made_by
    assert page.locator("#job-warning").is_hidden()
    page.click("#numbers summary")
    rows = [row.split("\t") for row in page.locator("#numbers tbody tr").all_inner_texts()]
    times = page.locator("#numbers tbody time")
    assert times.evaluate_all("times => times.map(time => time.dateTime)") == list(series.timestamps)
    shown = np.array([[float(cell) for cell in row[1:]] for row in rows])
    closes = [series.mean["close"], *(series.quantiles[str(level)]["close"] for level in LEVELS)]
    np.testing.assert_allclose(shown, np.transpose(closes), atol=1e-3)

    table = pd.read_csv(downloaded(page, "csv", tmp_path))
    np.testing.assert_allclose(table["high"], series.mean["high"], rtol=1e-9)
    np.testing.assert_allclose(table["close_0.9"], series.quantiles["0.9"]["close"], rtol=1e-9)
    result = json.loads(downloaded(page, "json", tmp_path).read_text())
    assert result["series"][0]["timestamps"] == list(series.timestamps)
    assert np.shape(result["series"][0]["paths"]["close"]) == (SAMPLES, HORIZON)


def test_the_chart_shows_the_mean_path_and_the_actual_bars(visit, tmp_path):
    page = visit.use_sample(**SETTINGS)
    assert page.input_value("#held-out") == "48"  # as many as the horizon was
    page.fill("#held-out", str(HORIZON))
    page.click("#run")
    page.wait_for_selector("#download-json")
    assert page.locator("#key-of-chart li").all_inner_texts() == [
        "history", "hidden bars, which followed", "forecast (median)",
        "80 % range", "50 % range",
    ]  # fmt: skip
    assert page.locator("#values").is_hidden()
    page.focus("#chart")
    page.keyboard.press("End")
    assert page.locator("#values").is_visible()
    assert page.locator("#values [scope=col]").all_inner_texts() == ["What followed", "Forecast"]
    page.keyboard.press("Escape")
    is_mean = is_of(prices_of(downloaded(page, "png", tmp_path)), MEAN_COLOUR)
    assert is_mean.any(axis=0).sum() > 20, "the mean path is not drawn"


def test_the_fan_and_the_sample_paths_are_drawn_if_requested(visit, tmp_path):
    page = visit.forecast(**SETTINGS | {"held-out": HORIZON})
    assert "simulated paths" not in page.inner_text("#key-of-chart")
    without = prices_of(downloaded(page, "png", tmp_path))
    ahead = shade(WHITE, MEAN_COLOUR, 0.035)
    outer = shade(ahead, MEAN_COLOUR, 0.18)
    inner = shade(outer, MEAN_COLOUR, 0.24)
    for colour in (outer, inner):  # over many columns, and higher than a line
        assert_is_filled(without, colour)
    page.check("#paths")
    assert "simulated paths" in page.inner_text("#key-of-chart")
    with_paths = prices_of(downloaded(page, "png", tmp_path))
    lines = shade(ahead, MEAN_COLOUR, 0.22)  # the part of a path outside the fan
    assert is_of(with_paths, lines).sum() > is_of(without, lines).sum() + 20
    page.uncheck("#paths")
    np.testing.assert_array_equal(prices_of(downloaded(page, "png", tmp_path)), without)
    page.fill("#held-out", "0")
    page.press("#held-out", "Tab")  # hides the forecast and its fan
    page.wait_for_selector("#download-json", state="hidden")
    assert "paths" not in page.inner_text("#key-of-chart")


def test_the_page_reports_missing_paths(visit):
    page = visit.use_sample(**SETTINGS)

    def ask_for_none(route):  # as the page does for a forecast with many values
        job = route.request.post_data_json
        route.continue_(post_data=json.dumps(job | {"output": job["output"] | {"paths": False}}))

    page.route("**/v1/forecasts", ask_for_none)
    page.click("#run")
    page.wait_for_selector("#download-json")
    assert page.locator("#paths-state").is_hidden()
    page.check("#paths")
    assert page.inner_text("#paths-state") == (
        "This forecast came without its simulated paths. Forecast again to get them; "
        f"seed {SEED} gives the same forecast."
    )
    page.uncheck("#paths")
    assert page.locator("#paths-state").is_hidden()


def test_a_forecast_is_shown_with_its_own_bars(visit, csv_file, tmp_path):
    page = visit.use_sample(**SETTINGS)
    page.route("**/v1/forecasts", lambda route: setattr(visit, "held", route))
    page.click("#run")
    page.wait_for_selector("#run[aria-disabled=true]")
    # Every field changes before the service receives the job.
    page.set_input_files("#file", csv_file)
    wait_until(page, "() => document.querySelector('#file-name').textContent.startsWith('my bars.csv')")
    for name, value in {"held-out": 5, "lookback": 20, "samples": 3, "horizon": 2}.items():
        page.fill(f"#{name}", str(value))
        page.press(f"#{name}", "Tab")
    assert "Candles of my bars.csv, 20 bars" in page.get_attribute("#chart", "aria-label")
    visit.held.continue_()
    page.wait_for_selector("#download-json")
    label = page.get_attribute("#chart", "aria-label")
    assert label.startswith(f"Candles of sample.csv, {LOOKBACK} bars up to ")
    assert f"forecast of {HORIZON} bars" in label
    assert " of sample.csv, by " in page.inner_text("#made-by")
    assert "hidden bars" in page.inner_text("#key-of-chart")  # the sample's, 48 bars
    path = downloaded(page, "json", tmp_path)
    assert path.name == "forecast-sample.json"
    assert json.loads(path.read_text())["series"][0]["id"] == "sample"
    page.evaluate(
        """() => {
            const { fillText } = CanvasRenderingContext2D.prototype
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                if (text.includes(" paths")) window.title = text
                if (text.includes("trading")) window.note = text
                fillText.call(this, text, ...rest)
            }
        }"""
    )
    assert downloaded(page, "png", tmp_path).name == "forecast-sample.png"
    assert page.evaluate("window.title") == (
        f"sample.csv: kronos-tiny on cpu, {SAMPLES} paths, up to Fri, Jan 17, 2025, 02:40 PM"
    )
    assert page.evaluate("window.note").endswith("for trying the service, not for trading.")


def seen(page) -> tuple[float, float]:
    """The visible range in bars, counted from 0; it may begin and end between two bars."""
    await_frame(page)
    chart = page.locator("#chart")
    return float(chart.get_attribute("data-from")), float(chart.get_attribute("data-to"))


def width(page) -> float:
    first, last = seen(page)
    return last - first


def test_hovering_moving_and_zooming(visit):
    page = visit.forecast(**SETTINGS)  # shows three horizons before the forecast
    box = page.locator("#chart").bounding_box()
    last = page.inner_text("#values")
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    wait_until(page, "old => document.querySelector('#values').innerText !== old", last)
    assert page.locator("#values [scope=col]").all_inner_texts() == ["History"]
    before = seen(page)
    page.mouse.wheel(0, -300)
    wait_until(page, "old => document.querySelector('#chart').dataset.to !== String(old)", before[1])
    near = width(page)
    assert near < (before[1] - before[0]) * 0.95
    page.mouse.wheel(0, 600)
    wait_until(
        page,
        "near => { const { from, to } = document.querySelector('#chart').dataset; return to - from > near }",
        near,
    )
    first, end = seen(page)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 100, steps=4)
    page.mouse.up()
    moved = seen(page)
    assert moved[0] < first - 1
    assert moved[1] - moved[0] == pytest.approx(end - first)


def test_a_missing_gpu_gives_a_visible_warning(visit):
    page = visit.use_sample(**SETTINGS)
    page.select_option("#device", "cuda")
    assert "none is ready" in page.inner_text("#device option[value=cuda]")
    page.click("#run")
    page.wait_for_selector("#download-json")
    warning = page.locator("#device-warning")
    assert warning.inner_text() == ("No graphics card is ready for this, so the processor computed it.")
    assert warning.bounding_box()["y"] < page.locator("#chart").bounding_box()["y"]
    assert page.locator("#made-by strong").all_inner_texts() == ["kronos-tiny", "processor (CPU)"]
    visit.shoot("warning")


def test_a_required_gpu_that_is_missing_is_refused(visit):
    visit.expected_failures = 1
    page = visit.use_sample(**SETTINGS)
    page.select_option("#device", "cuda")
    page.uncheck("#fallback")
    page.click("#run")
    page.wait_for_selector("#job-problem")
    assert "(NO_GPU_WORKER)" in page.inner_text("#job-problem")


HEADER = "date,open,high,low,close\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"{HEADER}2024-01-01,1,2,1,1\n2024-01-02,1,2,x,1\n",
            "line 3, column low: there is 'x' where a number is needed, or tick “Leave out rows that cannot",
        ),
        (
            f"{HEADER}2024-01-01,1,2,1,1\n2024-01-02,,,,\n",
            ", or choose what becomes of “Candles without prices”",
        ),
        (HEADER.replace("close", "last"), "hold them, or give the “Names of your columns”"),
        ("\x00<script>alert(1)</script>", "bad.csv has no column with the times"),
    ],
    ids=["no-number", "no-prices", "no-close", "markup"],
)
def test_a_bad_file_is_refused_with_line_and_column(visit, tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    visit.expected_failures = 1
    page = visit.open()
    page.set_input_files("#file", path)
    page.wait_for_selector("#file-problem")
    assert message in page.inner_text("#file-problem")
    assert page.locator("#run").is_disabled()
    path.write_text(f"{HEADER}2024-01-01,1,2,1,1\n")  # once corrected, it can be chosen again
    page.set_input_files("#file", path)
    page.wait_for_selector("#run:enabled")
    assert page.locator("#file-problem").is_hidden()


def test_the_form_says_how_to_read_the_file(visit, bars, tmp_path):
    table = bars.assign(Name="A", close=bars["close"].astype(object)).rename(columns={"close": "Last"})
    table["timestamps"] = pd.to_datetime(table["timestamps"]).dt.strftime("%d/01/%Y %H:%M")  # 6 to 7
    table.loc[140, "Last"] = "n/a"
    path = tmp_path / "market.csv"
    pd.concat([table, table[:9].assign(Name="B")]).to_csv(path, index=False)
    visit.expected_failures = 5
    page = visit.open()
    page.set_input_files("#file", path)
    for problem, field, value in (
        ("no column close", "columns", "close=Last"),
        ("the day or the month first", "date-format", "%d/%m/%Y %H:%M"),
        ("line 142, column Last: there is 'n/a'", "id-column", "Name"),
    ):
        page.locator("#file-problem", has_text=problem).wait_for()
        page.fill(f"#{field}", value)
        page.press(f"#{field}", "Tab")
    page.check("#drop-bad-rows")
    page.locator("#file-name", has_text="A: 149 bars").wait_for()
    assert page.inner_text("#file-name").endswith(". Rows left out: 1 not a number")
    page.select_option("#instrument", "B")
    page.locator("#file-name", has_text="B: 9 bars").wait_for()
    other = tmp_path / "other.csv"
    pd.concat([table.assign(Name=name) for name in "CD"]).to_csv(other, index=False)
    page.set_input_files("#file", other)  # it has no B
    page.locator("#file-name", has_text="C: 149 bars").wait_for()
    other.write_text("nothing")
    page.set_input_files("#file", other)
    page.wait_for_selector("#file-problem")
    assert page.inner_text("#file-name").startswith("C: 149 bars")  # it is still open


def test_the_workers_warnings_are_shown(visit):
    page = visit.forecast(**SETTINGS | {"lookback": 20})
    assert page.inner_text("#job-warning").startswith("The model learned to read")
    assert page.locator("#device-warning").is_hidden()


def test_an_invalid_field_is_named(visit):
    page = visit.use_sample(**SETTINGS | {"samples": 0})
    page.click("#run")
    page.wait_for_selector("#form-problem")
    assert page.inner_text("#form-problem").startswith("Paths: ")
    assert page.evaluate("document.activeElement.id") == "samples"


def test_a_running_job_shows_its_progress_and_can_be_cancelled(visit):
    page = visit.use_sample(**SETTINGS | {"samples": 256, "horizon": 400, "lookback": 176})
    with page.expect_request("**/v1/forecasts") as asked:
        page.click("#run")
    assert asked.value.post_data_json["output"]["paths"] is False  # too many values to request without need
    wait_until(page, "() => document.querySelector('#job-progress').value > 0")
    assert page.inner_text("#job-state") == "Computing"
    assert re.fullmatch(r"\d+ %( · about .+ left)?", page.inner_text("#job-share"))
    visit.shoot("progress")
    page.click("#cancel")
    page.wait_for_selector("#job-problem")
    assert "(CANCELLED)" in page.inner_text("#job-problem")
    assert page.locator("#job").is_hidden()
    page.fill("#samples", "2")
    page.fill("#horizon", "3")
    page.click("#run")
    page.wait_for_selector("#download-json")
    assert page.locator("#job-problem").is_hidden()


def test_the_page_works_by_keyboard(visit):
    page = visit.open()
    page.wait_for_selector("#readiness.ready")

    def tab_to(element_id: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == element_id:
                return
        pytest.fail(f"#{element_id} cannot be reached by Tab")

    tab_to("sample")
    page.keyboard.press("Enter")
    page.wait_for_selector("#run:enabled")

    def shown() -> str:
        return str(page.get_attribute("#values time", "datetime"))

    tab_to("run")
    tab_to("samples")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    page.wait_for_selector("#download-json")
    tab_to("chart")
    last = shown()
    page.keyboard.press("ArrowLeft")
    last_but_one = shown()
    assert last_but_one < last
    page.keyboard.press("Home")
    assert shown() < last_but_one
    assert page.locator("#values [scope=col]").all_inner_texts() == ["History"]
    whole = width(page)
    page.keyboard.press("+")
    assert width(page) == pytest.approx(0.8 * whole)
    page.keyboard.press("-")
    assert width(page) == pytest.approx(whole)
    page.keyboard.press("+")
    page.keyboard.press("+")
    first, end = seen(page)
    assert first > 1
    assert end < 174
    page.keyboard.press("0")
    # All 128 bars of the lookback and 48 held out, to a fraction of a bar.
    assert seen(page)[0] < 0.5
    assert seen(page)[1] > 174.5
    page.keyboard.press("Escape")
    assert shown() == last
    page.keyboard.press("ArrowLeft")  # from the last bar again
    assert shown() == last_but_one
    for button in ("json", "csv", "png"):  # the chart does not trap the focus
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.id") == f"download-{button}"


def test_a_file_may_be_dropped_anywhere(visit, csv_file):
    page = visit.open()
    drop = """([text, count]) => {
        const data = new DataTransfer()
        for (let file = 0; file < count; file += 1) data.items.add(new File([text], "dropped.csv"))
        const event = new DragEvent("drop", { dataTransfer: data, bubbles: true })
        document.querySelector("#workers").dispatchEvent(event)
    }"""
    page.evaluate(drop, [csv_file.read_text(), 2])
    assert page.inner_text("#file-problem").startswith("Open one file")
    page.evaluate(drop, [csv_file.read_text(), 1])
    page.wait_for_selector("#run:enabled")
    assert page.locator("#file-problem").is_hidden()
    assert page.inner_text("#file-name").startswith("dropped.csv: 150 bars")


def test_clocks_that_go_back_and_markup_in_names_do_no_harm(open_page: OpenPage, tmp_path):
    times = pd.date_range("2024-10-27T00:00", periods=60, freq="15min", tz="Europe/Berlin")
    rng = np.random.default_rng(1)
    close = 100 + rng.standard_normal(60).cumsum()
    frame = pd.DataFrame({"time": [time.isoformat() for time in times], "open": close, "close": close})
    path = tmp_path / "<img src=x onerror=alert(1)>.csv"
    frame.assign(high=close + 1, low=close - 1).to_csv(path, index=False)
    page = upload(open_page(), path, **SETTINGS | {"lookback": 60, "held-out": 0})
    page.wait_for_selector("#download-json")
    assert page.inner_text("#file-name").startswith("<img src=x onerror=alert(1)>.csv: 60 bars")
    assert page.locator("main img").count() == 0
    seconds = "async texts => (await import('./common/times.js')).chartTimes(texts)"
    shown = page.evaluate(seconds, [time.isoformat() for time in times])
    assert set(np.diff(shown)) == {15 * 60}
