"""The first screen: an example forecast by the bundled model, and the two steps from there to one's own."""

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.schemas import example as example_of
from tests.integration.conftest import StartWorker, client  # noqa: F401
from tests.page.conftest import PAGE, OpenPage, RoutedVisit, StartApi, wait_until
from tests.page.test_routed import CONTENT, end
from tools.page import example

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE = {"width": 390, "height": 844}
TOLERANCE = 1e-3
MAX_PACKED_BYTES = 250_000
MAX_OWN_LINES = 4500
JUMP = 0.2
"""An edge of a range is drawn so much smoother than its values."""


def numbers_of(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers_of(one)]
    if isinstance(value, list):
        return [number for one in value for number in numbers_of(one)]
    return [value] if isinstance(value, float) else []


def is_on_first_screen(page: "Page", field: str) -> bool:
    box = page.locator(field).bounding_box()
    inside = 0 <= box["x"] < box["x"] + box["width"] <= PHONE["width"]
    return inside and box["y"] + box["height"] <= PHONE["height"]


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
    assert "An example, forecast by kronos-tiny." in page.inner_text("#made-by")
    assert "not for trading" in page.inner_text("#made-by .badge")
    sentence = " ".join(page.inner_text("#answer").split())
    assert sentence.startswith("The sample, made-up prices: ")
    decimals = r"\(file time\), 80 % range \d+\.\d\d to \d+\.\d\d\. .+; last close \d+\.\d\d\.$"
    assert re.search(decimals, sentence), "the file has four decimals"
    assert page.locator("#invite").is_visible()
    assert page.locator("#open-own").is_visible()
    assert page.locator(".ask #held-out").is_visible(), "how a forecast would have done is asked for at once"
    label = page.get_attribute("#chart", "aria-label")
    assert "Candles of sample.csv, 464 bars up to Fri, Jan 17, 2025, 01:40 PM" in label
    assert f"forecast of {example.HORIZON} bars" in label
    assert page.locator("#download-json").is_hidden()
    with page.expect_download() as waiting:
        page.click("button >> text=Download CSV")
    assert waiting.value.suggested_filename == "forecast-sample.csv"
    title, *rows = waiting.value.path().read_text().splitlines()
    assert title.startswith("timestamps,open,high,low,close,")
    assert title.endswith(",caution")
    assert all(
        row.endswith(
            ',"kronos-tiny was trained on synthetic candles: for trying the service, not for trading."'
        )
        for row in rows
    )
    with page.expect_download() as waiting:
        page.click("button >> text=Save picture")
    assert waiting.value.suggested_filename == "forecast-sample.png"


def test_a_phone_has_all_that_a_forecast_needs_on_its_first_screen(routed: RoutedVisit):
    routed.page.set_viewport_size(PHONE)
    page = routed.page
    page.goto(routed.url)
    page.wait_for_selector("#figure")
    assert page.locator("#forecast-form > *").filter(visible=True).count() == 0
    assert page.inner_text("#asked").split("\n")[0].startswith("48 bars · ")
    assert page.locator("#asked").bounding_box()["height"] < 60
    assert page.inner_text("#answer .badge") == "not for trading"
    assert page.locator("#forecast .stage").bounding_box()["y"] < 0.31 * PHONE["height"]
    first, last = (float(page.get_attribute("#chart", f"data-{end}")) for end in ("from", "to"))
    assert page.locator("#chart").bounding_box()["width"] / (last - first) > 4, "candles have bodies"
    for field in ("chart", "score > :first-child", "change", "open-here"):
        assert is_on_first_screen(page, f"#{field}"), field
    page.click("#change")
    for field in ("model", "horizon", "run-sample"):
        assert is_on_first_screen(page, f"#{field}"), field
    cut = "all => all.filter((one) => one.getBoundingClientRect().right > innerWidth).map(({ id }) => id)"
    assert page.locator(".tools button, .tools input").evaluate_all(cut) == []
    page.click("#sample")
    page.wait_for_selector("#run:enabled")
    fields = [page.locator(f"#{field}").bounding_box() for field in ("horizon", "run")]
    assert [box["y"] + box["height"] for box in fields] == [fields[0]["y"] + fields[0]["height"]] * 2
    assert is_on_first_screen(page, "#run")
    assert page.inner_text("#run").split() == ["Forecast", "48", "×", "5", "minutes"]  # for screen readers


@pytest.mark.parametrize(
    ("view", "result", "shown", "button"),
    [("backtest", "backtest-result", "tested", "test"), ("finetune", "finetune-result", "trained", "train")],
)
def test_a_phone_has_what_starts_a_job_on_the_first_screen(
    routed: RoutedVisit, view: str, result: str, shown: str, button: str
):
    routed.page.set_viewport_size(PHONE)
    routed.answers[f"{view}s/one/events"] = end(state="done", result=example_of(result))
    page = routed.open(f"#/{view}")
    assert is_on_first_screen(page, f"#{button}")
    page.goto(f"{routed.url}#{view}s/one")
    page.wait_for_selector(f"#{shown}")
    page.evaluate("scrollTo(0, 0)")
    assert not is_on_first_screen(page, f"#{button}")  # the result comes first
    assert is_on_first_screen(page, f"#{view} .start button")
    page.click(f"#{view} .start button")
    wait_until(page, "id => document.querySelector(id).contains(document.activeElement)", f"#{view}-form")
    page.wait_for_timeout(100)
    assert 0 <= page.locator(f"#{view}-form").bounding_box()["y"] < PHONE["height"] / 2


def test_the_scale_leaves_the_candles_readable_and_says_what_it_cuts(routed: RoutedVisit):
    page = routed.open()
    scale = """async ([isWhole, high]) => {
        const { ForecastChart } = await import("./forecast/forecast_chart.js")
        const { Candles } = await import("./forecast/candle_file.js")
        const { series: [forecast] } = await (await fetch("forecast/example.json")).json()
        const prices = { open: [52], high: [high], low: [52], close: [52] }
        const known = new Candles("known", ["2024-01-01"], prices)
        const chart = new ForecastChart(document.querySelector("#chart"))
        chart.isWhole = isWhole
        chart.show(known, known.slice(1), { ...forecast, paths: null }, false)
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))
        const { from, to } = chart.chart.priceScale("right", 0).getVisibleRange()
        const closes = (level) => forecast.quantiles[level].close
        const ends = (low, high) => [Math.min(...closes(low)), Math.max(...closes(high))]
        const [outer, widest] = [ends("0.1", "0.9"), ends("0.025", "0.975")]
        return { scale: [from, to], cut: chart.cut, outer, widest }
    }"""

    def holds(outer: list[float], inner: list[float]) -> bool:
        return outer[0] <= inner[0] + JUMP and inner[1] - JUMP <= outer[1]

    usual, whole, narrow = (page.evaluate(scale, how) for how in ([False, 53], [True, 53], [False, 55]))
    assert holds(usual["scale"], usual["outer"])
    assert not holds(usual["scale"], usual["widest"])
    assert usual["cut"] == usual["widest"]
    for shown in (whole, narrow):  # if it is asked for, or is not much higher than the candles
        assert holds(shown["scale"], shown["widest"])
        assert shown["cut"] is None

    edges = """async () => {
        const { smooth } = await import("./forecast/forecast_chart.js")
        const items = Array.from({ length: 49 }, (_, time) => ({ time, values: [0, Number(time > 20)] }))
        const drawn = smooth(items).map(({ values }) => values[1])
        return [drawn[0], drawn.at(-1), Math.max(...drawn.slice(1).map((one, place) => one - drawn[place]))]
    }"""
    first, last, cliff = page.evaluate(edges)
    assert (first, last) == (0, 1)
    assert cliff < 0.2, "one path's jump is no cliff"

    page.wait_for_selector("#figure")
    low, high = usual["widest"]
    said = [f"95 % range, cut: {low:.2f} to {high:.2f}", "80 % range", "50 % range"]
    ranges = page.locator("#key-of-chart [data-term=range]")
    assert ranges.all_inner_texts() == said
    page.check("#whole")
    assert ranges.all_inner_texts() == ["95 % range", *said[1:]]


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


def test_one_action_forecasts_the_sample(routed: RoutedVisit):
    page = routed.open()
    page.wait_for_selector("#invite")
    assert page.locator("#forecast-form button:disabled").filter(visible=True).count() == 0
    with page.expect_request("**/v1/forecasts") as waiting:
        page.click("#run-sample")
    job = waiting.value.post_data_json
    assert job["series"][0]["id"] == "sample"
    assert len(job["series"][0]["future_timestamps"]) == job["pred_len"] == 48
    assert page.locator("#run-sample").is_hidden()


def test_the_first_load_is_small(routed: RoutedVisit):
    loaded: set[str] = set()
    routed.page.on("request", lambda request: loaded.add(request.url.removeprefix(routed.url).split("#")[0]))
    page = routed.open()
    page.wait_for_selector("#answer:not(:empty)")
    files = [PAGE / (name or "index.html") for name in loaded if not name.startswith("v1/")]
    assert PAGE / "forecast" / "example.json" in files
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= MAX_PACKED_BYTES


def test_the_page_stays_small_to_read():
    own = [path for path in PAGE.rglob("*") if path.suffix in {".js", ".css"} and "vendor" not in path.parts]
    assert sum(len(path.read_text().splitlines()) for path in own) <= MAX_OWN_LINES


def test_an_address_of_a_job_shows_no_example(routed: RoutedVisit):
    page = routed.open("#forecasts/one")
    page.wait_for_timeout(500)
    assert page.locator("#invite").is_hidden()
    assert page.locator("#answer-box").is_hidden()
