"""What one can do with the chart and read from the answer, on answers of the test's own."""

import io
from collections import Counter
from typing import TYPE_CHECKING

import matplotlib.image
import pytest

from kronos_client.contract.schemas import example
from tests.page.conftest import RoutedVisit, await_frame, go_to, wait_until
from tests.page.test_routed import ADDRESS, CONTENT, RESULT, column, end, forecast, problem, with_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

(SERIES,) = RESULT["series"]
UP = {
    "event": "close>last at end", "probability": 0.75, "standard_error": 0.2,
    "low": 0.3, "high": 0.95, "num_hits": 3, "num_paths": 4,
}  # fmt: skip
PATHS = {
    "high": [[10.8, 13.0], [11.6, 12.0], [11.0, 11.2], [12.4, 12.5]],
    "low": [[10.2, 11.0], [11.0, 11.5], [9.0, 9.5], [11.0, 12.0]],
    "close": [[10.5, 12.0], [11.5, 12.0], [10.0, 10.0], [12.0, 12.5]],
}
WITH_PATHS = SERIES | {"paths": PATHS, "events": [UP]}
BACKTEST = example("backtest-result")
UP_COLOUR, MEDIAN_COLOUR = (0x0B, 0x7A, 0x5C), (0x7C, 0x3A, 0xED)
AXIS_PX = 30
TAG_PX = 200


def card(page: "Page") -> list[list[str]]:
    return [row.split("\t") for row in page.locator("#values tbody tr").all_inner_texts()]


def seen(page: "Page") -> tuple[float, float]:
    await_frame(page)
    chart = page.locator("#chart")
    return float(chart.get_attribute("data-from") or "nan"), float(chart.get_attribute("data-to") or "nan")


def test_the_answer_is_one_sentence_and_its_numbers(routed: RoutedVisit):
    page = forecast(routed, series=[WITH_PATHS | {"events": [UP | {"low": 0.51}]}])
    sentence = " ".join(page.inner_text("#answer").split())
    assert sentence == (
        "bars: Up 9.5 % by Wed, Mar 6, 80 % range 12.50 to 13.00. "
        "Likely: 75.0 % of the paths end higher; last close 10.50."
    )
    assert page.locator("#chances dd:not(.meaning)").all_inner_texts() == ["75.0 %", "12.50 to 13.00"]
    assert page.locator("#chances .meaning").first.inner_text() == (
        "95 % sure: 51.0 % to 95.0 %, as 3 of 4 simulated paths"
    )


def test_the_zone_stands_with_the_times_and_in_the_headline(routed: RoutedVisit):
    hours = [f"2024-03-04T0{hour}:00:00-05:00" for hour in range(1, 7)]
    series = {**CONTENT["series"], "timestamps": hours, "timezone": "America/New_York"}  # type: ignore[dict-item]
    routed.answers["candles"] = CONTENT | {"series": series}
    page = forecast(routed, series=[SERIES | {"timestamps": hours[4:]}])
    sentence = " ".join(page.inner_text("#answer").split())
    when = "Mon, Mar 4, 06:00 AM New York time"
    assert sentence.startswith(f"bars: Up 9.5 % by {when}, 80 % range 12.50 to 13.00.")
    assert page.inner_text("#zone") == "Times: America/New_York"
    page.focus("#chart")
    page.keyboard.press("End")
    assert page.inner_text("#values time") == "Mon, Mar 4, 2024, 06:00 AM America/New_York"


@pytest.mark.parametrize(
    ("closes", "words"),
    [([10.0, 10.5], "Unchanged by"), ([10.0, 9.45], "Down 10.0 % by"), ([11.0, 21.0], "Up 100.0 % by")],
)
def test_the_answer_says_which_way(routed: RoutedVisit, closes: list[float], words: str):
    median = SERIES["quantiles"] | {"0.5": column(closes)}
    page = forecast(routed, series=[SERIES | {"quantiles": median}])
    assert " ".join(page.inner_text("#answer").split()).startswith(f"bars: {words}")


@pytest.mark.parametrize(
    ("probability", "low", "words", "is_coloured"),
    [
        (0.58, 0.48, "No clear direction by", False),
        (0.6, 0.51, "Up 5.0 % by", False),
        (0.8, 0.71, "Up 5.0 % by", True),
    ],
)
def test_only_a_sure_move_has_a_direction_and_only_a_likely_one_a_colour(
    routed: RoutedVisit, probability: float, low: float, words: str, is_coloured: bool
):
    median = SERIES["quantiles"] | {"0.5": column([10.0, 11.025])}
    chances = [chance | {"probability": probability, "low": low} for chance in WITH_PATHS["events"]]
    page = forecast(routed, series=[SERIES | {"quantiles": median, "events": chances}])
    assert " ".join(page.inner_text("#answer").split()).startswith(f"bars: {words}")
    assert page.locator("#answer .good").count() == is_coloured


def test_a_price_line_reads_how_often_it_is_touched(routed: RoutedVisit):
    page = forecast(routed, series=[WITH_PATHS])
    of = "of 4 simulated paths before Wed, Mar 6"
    for price, reading in {
        "12.2": f"12.20 is touched by 50.0 % {of}, by half of those before Tue, Mar 5.",
        "9.2": f"9.20 is touched by 25.0 % {of}, by half of those before Tue, Mar 5.",
        "99": f"99.00 is touched by none {of}.",
    }.items():
        page.fill("#price-line", price)
        assert page.inner_text("#touched") == reading
    page.fill("#price-line", "")
    assert page.locator("#touched").is_hidden()
    page.click("#draw-line")
    page.click("#chart", position={"x": 200, "y": 100})
    wait_until(page, "() => Number(document.querySelector('#price-line').value) > 1")
    assert "simulated path" in page.inner_text("#touched")
    assert page.get_attribute("#draw-line", "aria-pressed") == "false"


def test_ranges_and_the_scale_of_prices(routed: RoutedVisit):
    page = routed.open()
    page.click("#sample")
    page.wait_for_selector("#run:enabled")
    for name, bars in {"50 bars": 50, "200 bars": 200, "All": 512}.items():
        page.click(f"#ranges button:text-is('{name}')")
        first, last = seen(page)
        assert last - first == pytest.approx(bars + 48 if bars < 512 else bars, abs=3)
        assert page.locator("#ranges [aria-pressed=true]").all_inner_texts() == [name]
    page.focus("#chart")
    page.keyboard.press("+")
    wait_until(page, "() => !document.querySelector('#ranges [aria-pressed=true]')")
    page.check("#log")
    assert page.get_attribute("#chart", "data-scale") == "log"
    page.uncheck("#log")
    assert page.get_attribute("#chart", "data-scale") == "linear"


def test_the_card_of_a_bar_has_its_values_and_the_ranges(routed: RoutedVisit):
    page = forecast(routed)
    page.focus("#chart")
    page.keyboard.press("End")
    assert card(page) == [
        ["Open", "10.00", "11.50"], ["High", "13.00", "11.50"], ["Low", "9.00", "11.50"],
        ["Close", "12.00", "11.50"], ["80 % range", "12.50 – 13.00"],
    ]  # fmt: skip
    page.keyboard.press("Escape")
    assert page.locator("#values").is_hidden()


def axis_colours(page: "Page") -> set[tuple[int, ...]]:
    """The strong colours of areas on the axis of prices."""
    with io.BytesIO(page.locator("#chart").screenshot()) as picture:
        pixels = matplotlib.image.imread(picture, format="png")
    points = (255 * pixels[:, -AXIS_PX:, :3]).round().astype(int).reshape(-1, 3)
    counted = Counter(map(tuple, points.tolist()))
    return {
        colour
        for colour, number in counted.items()
        if number > TAG_PX and max(colour) - min(colour) > TAG_PX // 2
    }


def legend(page: "Page") -> tuple[str, set[str]]:
    """The line at the top of the chart, and the classes of its values."""
    values = page.locator(".stage .legend b")
    return page.inner_text(".stage .legend").strip(), set(
        values.evaluate_all("all => all.map(one => one.className)")
    )


def test_a_line_at_the_top_follows_the_crosshair(routed: RoutedVisit):
    page = forecast(routed)
    assert legend(page) == ("bars.csv, 1 day O 10.00 H 13.00 L 9.00 C 10.50 +2.44 %", {"good"})
    page.focus("#chart")
    page.keyboard.press("End")
    assert legend(page) == (
        "bars.csv, 1 day Wed, Mar 6, 2024 O 10.00 H 13.00 L 9.00 C 12.00 +9.09 % forecast 11.50",
        {"good", ""},
    )
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    text, _ = legend(page)
    assert text == "bars.csv, 1 day Sun, Mar 3, 2024 O 10.00 H 13.00 L 9.00 C 10.25 +2.50 %"
    page.keyboard.press("Escape")
    assert legend(page) == ("bars.csv, 1 day O 10.00 H 13.00 L 9.00 C 10.50 +2.44 %", {"good"})


def test_the_axis_has_tags_of_the_last_close_and_the_median(routed: RoutedVisit):
    page = with_file(routed)
    await_frame(page)
    assert axis_colours(page) == {UP_COLOUR}
    forecast(routed)
    await_frame(page)
    assert axis_colours(page) == {UP_COLOUR, MEDIAN_COLOUR}


def test_one_of_several_series_is_found_by_its_name(routed: RoutedVisit):
    other = SERIES | {"id": "ETH", "mean": column([20.0, 21.0]), "warnings": ["Of ETH."]}
    page = forecast(routed, series=[SERIES, other])
    assert page.locator("#series-names option").evaluate_all("all => all.map(one => one.value)") == [
        "bars.csv",
        "ETH",
    ]
    page.fill("#series", "ETH")
    page.press("#series", "Enter")
    wait_until(
        page, "() => document.querySelector('#chart').ariaLabel === 'forecast of 2 bars, last close 21.000'"
    )
    assert page.inner_text("#job-warning") == "Of ETH."
    page.fill("#series", "bars.csv")
    page.press("#series", "Enter")
    wait_until(page, "() => document.querySelector('#chart').ariaLabel.startsWith('Candles of bars.csv')")


def test_a_backtest_that_found_no_skill_stands_above_the_answer(routed: RoutedVisit):
    (name, *_) = BACKTEST["report"]["models"]
    routed.answers |= {
        "backtests": {"id": "two", "queue": "cpu.finetune"},
        "backtests/two/events": end(state="done", result=BACKTEST),
        "forecasts": {"id": "one", "queue": "cpu"},
        f"{ADDRESS}/events": end(state="done", result=RESULT | {"model": {"id": name}}),
    }
    page = with_file(routed)
    go_to(page, "backtest")
    page.click("#test")
    page.wait_for_selector("#tested")
    go_to(page, "forecast")
    page.click("#run")
    page.wait_for_selector("#no-skill")
    assert page.inner_text("#no-skill").startswith(
        "A backtest of this model on this file found no skill: Not shown to be"
    )
    above, answer = (page.locator(part).bounding_box()["y"] for part in ("#no-skill", "#answer"))
    assert above < answer
    page.reload()
    page.wait_for_selector("#no-skill")


def test_a_wrong_field_is_marked_until_it_is_changed(routed: RoutedVisit):
    page = with_file(routed, samples=0)
    page.click("#run")
    assert page.get_attribute("#samples", "aria-invalid") == "true"
    note = page.locator("#samples + .field-problem")
    assert note.is_visible()
    assert note.get_attribute("id") in page.get_attribute("#samples", "aria-describedby")
    page.fill("#samples", "8")
    assert note.count() == 0
    assert page.get_attribute("#samples", "aria-invalid") is None


def test_what_the_service_refuses_is_marked_at_its_field(routed: RoutedVisit):
    routed.expected_failures = 1
    refusal = problem(422, detail="unknown column", code="BAD_VALUE", field="output.events.1")
    routed.answers["forecasts"] = refusal
    page = with_file(routed)
    page.click("#run")
    page.wait_for_selector("#events + .field-problem")
    assert page.inner_text("#events + .field-problem") == "unknown column"
    assert page.inner_text("#job-problem") == "unknown column (BAD_VALUE)"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_is_large_and_every_state_of_it_accessible(routed: RoutedVisit, theme: str):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = forecast(routed, series=[WITH_PATHS, SERIES | {"id": "ETH"}], warnings=["Another."])
    page.select_option("#theme", theme)
    page.fill("#price-line", "12.2")
    page.check("#paths")
    page.fill("#samples", "0")
    page.click("#run")
    page.focus("#chart")
    page.keyboard.press("End")
    assert page.locator("#values").is_visible()
    height = page.locator("#chart").bounding_box()["height"]
    assert height + 1 >= 0.6 * page.viewport_size["height"]
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()


def test_advanced_says_how_many_settings_differ(routed: RoutedVisit):
    page = routed.open()
    assert page.inner_text("#forecast-advanced > summary") == "Advanced"
    page.fill("#seed", "3")
    page.fill("#top-p", "0.9")
    page.fill("#horizon", "12")
    assert page.inner_text("#forecast-advanced > summary").split() == ["Advanced", "2", "changed"]
