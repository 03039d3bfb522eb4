"""The first screen: an example forecast by the bundled model, and the two steps from there to one's own."""

import gzip
import json
import re
from typing import Any

import numpy as np

from kronos_client.client import ForecastClient
from tests.integration.conftest import StartWorker, client  # noqa: F401
from tests.page.conftest import PAGE, OpenPage, RoutedVisit, StartApi
from tests.page.test_routed import CONTENT
from tools.page import example

TOLERANCE = 1e-3
MAX_PACKED_BYTES = 250_000


def numbers_of(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers_of(one)]
    if isinstance(value, list):
        return [number for one in value for number in numbers_of(one)]
    return [value] if isinstance(value, float) else []


def test_the_example_is_what_the_bundled_model_computes(start_worker: StartWorker, client: ForecastClient):  # noqa: F811
    start_worker(**example.SETTINGS).wait_until_ready()
    committed, computed = json.loads(example.EXAMPLE.read_text()), example.example(client)
    assert committed["model"] == computed["model"]
    (one,), (other,) = committed["series"], computed["series"]
    assert one.keys() == other.keys()
    assert one["timestamps"] == other["timestamps"]
    np.testing.assert_allclose(numbers_of(one), numbers_of(other), atol=TOLERANCE)


def test_a_chart_is_there_at_once_without_a_key_or_an_answer(open_page: OpenPage, start_api: StartApi):
    visit = open_page(start_api(KRONOS_API_KEYS="a-key-of-this-test"))
    visit.expected_failures = 1000
    page = visit.open()
    page.wait_for_selector("#answer:not(:empty)")
    assert "An example: made-up prices, forecast by kronos-tiny." in page.inner_text("#made-by")
    assert "not for trading" in page.inner_text("#made-by .badge")
    decimals = r"between \d+\.\d\d and \d+\.\d\d; last close \d+\.\d\d\.$"  # the sample has four
    assert re.search(decimals, page.inner_text("#answer"))
    assert page.locator("#invite").is_visible()
    assert page.locator("#open-own").is_visible()
    label = page.get_attribute("#chart", "aria-label")
    assert "Candles of sample.csv, 464 bars up to Fri, Jan 17, 2025, 01:40 PM" in label
    assert f"forecast of {example.HORIZON} bars" in label
    assert page.locator("#downloads").is_hidden()
    with page.expect_download() as waiting:
        page.click("button >> text=Save picture")
    assert waiting.value.suggested_filename == "forecast-sample.png"


def test_a_phone_has_the_button_at_hand_once_there_is_a_file(routed: RoutedVisit):
    height = 844
    routed.page.set_viewport_size({"width": 390, "height": height})
    page = routed.open()
    page.wait_for_selector("#figure")
    assert page.locator("#drop").bounding_box()["height"] < 72  # one row
    assert page.locator("#chart").bounding_box()["y"] < height / 2
    assert page.locator("#run").bounding_box()["y"] > height  # nothing to forecast from covers nothing
    for field in ("model", "horizon", "download-png"):
        box = page.locator(f"#{field}").bounding_box()
        assert box["y"] + box["height"] <= height, field
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390, field
    page.click("#sample")
    page.wait_for_selector("#run:enabled")
    bar = page.locator(".go").bounding_box()
    assert bar["y"] + bar["height"] == height
    assert bar["height"] < 72
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    assert page.locator("footer a").last.bounding_box()["y"] < bar["y"] - 16  # nothing stays covered


def test_the_scale_holds_the_whole_of_the_widest_range(routed: RoutedVisit):
    page = routed.open()
    low, high, least, most = page.evaluate("""async () => {
        const { ForecastChart } = await import("./forecast/forecast_chart.js")
        const { Candles } = await import("./forecast/candle_file.js")
        const { series: [forecast] } = await (await fetch("forecast/example.json")).json()
        const known = new Candles("known", ["2024-01-01"], { open: [52], high: [52], low: [52], close: [52] })
        const chart = new ForecastChart(document.querySelector("#chart"), () => {})
        chart.show(known, known.slice(1), { ...forecast, paths: null }, false)
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))
        const [under, over] = ["0.025", "0.975"].map((level) => forecast.quantiles[level].close)
        const { from, to } = chart.chart.priceScale("right", 0).getVisibleRange()
        return [from, to, Math.min(...under), Math.max(...over)]
    }""")
    assert low <= least
    assert most <= high


def test_two_actions_lead_to_a_forecast_of_ones_own(routed: RoutedVisit):
    routed.answers["candles"] = CONTENT
    page = routed.open()
    page.wait_for_selector("#invite")
    paste = """text => {
        const clipboardData = new DataTransfer()
        clipboardData.setData("text/plain", text)
        document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }))
    }"""
    page.evaluate(paste, "one word")
    page.evaluate(paste, "date\topen\thigh\tlow\tclose\n2024-03-01\t1\t1\t1\t1")
    page.wait_for_selector("#run:enabled")
    assert page.locator("#invite").is_hidden()
    assert len(routed.requests) == 2  # the models, and one file
    assert page.inner_text("#run") == "Forecast 48 days"
    with page.expect_request("**/v1/forecasts"):
        page.click("#run")


def test_the_first_load_is_small(routed: RoutedVisit):
    loaded: set[str] = set()
    routed.page.on("request", lambda request: loaded.add(request.url.removeprefix(routed.url).split("#")[0]))
    page = routed.open()
    page.wait_for_selector("#answer:not(:empty)")
    files = [PAGE / (name or "index.html") for name in loaded if not name.startswith("v1/")]
    assert PAGE / "forecast" / "example.json" in files
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= MAX_PACKED_BYTES


def test_an_address_of_a_job_shows_no_example(routed: RoutedVisit):
    page = routed.open("#forecasts/one")
    page.wait_for_timeout(500)
    assert page.locator("#invite").is_hidden()
    assert page.locator("#answer-box").is_hidden()
