"""The view of feeds: the table of symbols, how past forecasts did, and the fan of one symbol."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.page.conftest import RoutedVisit, await_frame, wait_until
from tests.page.test_operation import PHONE, axe_problems
from tests.page.test_routed import RESULT, problem

if TYPE_CHECKING:
    from playwright.sync_api import Page

UP, HIGH = "close>last at end", "high>last+1% by 2"
HIGH_IN_WORDS = "High > +1% by 2"
CLOSES = [10.0, 11.0, 10.25, 12.0, None]
DAYS = [f"2024-03-0{day}" for day in range(1, 6)]
FIFTH = {"timestamps": ["2024-03-05", "2024-03-06"], "id": "AAPL", "mean": {"close": [11.5, 11.5]}}
BARS: dict[str, Any] = {"timestamps": DAYS, **dict.fromkeys(("open", "high", "low", "close"), CLOSES)}
NEWEST = {
    "series": "AAPL",
    "last_time": "2024-03-04",
    "model": {"id": "kronos-tiny"},
    "forecast": RESULT["series"][0] | FIFTH,
}


def past(version: int, first: int, *medians: float) -> dict[str, Any]:
    """What is kept of an earlier forecast; its 80 % range is 1 to both sides."""
    days = [f"2024-03-0{first + step}" for step in range(len(medians))]
    levels = {"0.1": -1, "0.5": 0, "0.9": 1}
    quantiles = {level: {"close": [one + add for one in medians]} for level, add in levels.items()}
    return {"version": version, "model": "kronos-tiny", "timestamps": days, "quantiles": quantiles}


OLDEST = past(1, 2, 10.75, 11.0, 11.25, 11.5)


def row(name: str, up: float | None, high: float | None, **values: Any) -> dict[str, Any]:
    known = {
        "id": name,
        "last_time": "2024-03-04T10:00:00Z",
        "age_s": 3.0,
        "overdue_s": 0.0,
        "is_current": True,
    }
    close = {"close_mean": 11.5, "close_q0.1": 10.5, "close_q0.9": 12.5, UP: up, HIGH: high}
    return known | close | {"drift": None, "error": None, "closes": []} | values


ROWS = [
    row("AAPL", 0.4, 0.9, closes=[10.0, 12.0, 11.0]),
    row("MSFT", 0.7, 0.1, drift="too_narrow", closes=[3.0, 1.0]),
    row("NVDA", 0.55, 0.5, is_current=False, overdue_s=600.0),
    row("GONE", None, None, close_mean=None, **{"close_q0.1": None}, is_current=False, error="FEED_GONE"),
]
SCORES = {"model": "kronos-tiny", "num_scored": 1234, "coverage_80": 0.783, "pinball_ratio": 0.97}


def answer(routed: RoutedVisit) -> None:
    routed.answers |= {
        "feeds": {"feeds": ["us 5/min", "other"]},
        "feeds/us%205%2Fmin": {"name": "us 5/min", "options": {"events": [UP, HIGH]}, "last_update": "7-0"},
        "feeds/us%205%2Fmin/latest": {"rows": ROWS},
        "feeds/us%205%2Fmin/scores": {"rows": [{"id": None, **SCORES}, {"id": "AAPL", **SCORES}]},
        "feeds/us%205%2Fmin/series/AAPL": {"bars": BARS, "newest": NEWEST, "past": [OLDEST]},
        "feeds/us%205%2Fmin/series/GONE": {"bars": BARS, "past": []},
    }


def opened(routed: RoutedVisit) -> "Page":
    answer(routed)
    page = routed.open("#/feeds")
    page.wait_for_selector("#feed-rows tbody tr")
    return page


def symbols(page: "Page") -> list[str]:
    return page.locator("#feed-rows tbody th").all_inner_texts()


def test_without_a_feed_it_is_said_how_one_is_made(routed: RoutedVisit):
    routed.answers["feeds"] = {"feeds": []}
    page = routed.open("#/feeds")
    page.wait_for_selector("#no-feeds")
    assert "kronos feed create" in page.inner_text("#no-feeds")
    assert page.locator("#feed-box").is_hidden()


def test_symbols_are_sorted_by_any_chance(routed: RoutedVisit):
    page = opened(routed)
    assert symbols(page) == ["MSFT", "NVDA", "AAPL", "GONE"]
    page.click(f"#feed-rows thead button >> text={HIGH_IN_WORDS}")
    assert symbols(page) == ["AAPL", "NVDA", "MSFT", "GONE"]
    assert page.get_attribute("#feed-rows th[aria-sort]", "aria-sort") == "descending"
    assert page.evaluate("document.activeElement.textContent") == HIGH_IN_WORDS
    page.keyboard.press("Enter")
    assert symbols(page) == ["AAPL", "MSFT", "NVDA", "GONE"]
    assert page.inner_text("#feed-rows th[aria-sort=ascending]") == "Symbol"
    assert page.locator("#feed-rows th[aria-sort]").count() == 1


def test_on_a_phone_each_number_of_a_symbol_has_its_heading(routed: RoutedVisit):
    routed.page.set_viewport_size(PHONE)
    page = opened(routed)
    headed = """cell => {
        const { content, display } = getComputedStyle(cell, "::before")
        return display === "block" ? JSON.parse(content) : null
    }"""
    cells = page.locator("#feed-rows tbody tr:not(.opened)", has_text="AAPL").locator("td")

    def heads() -> list[str]:
        shown = cells.filter(visible=True).all()
        return [cell.evaluate(headed) for cell in shown if any(map(str.isdigit, cell.inner_text()))]

    assert heads() == [None, "Expected", "Ends higher"], "the last close stands below its symbol"
    page.click("#feed-rows tbody button >> text=AAPL")
    page.wait_for_selector("#feed-figure")
    assert heads() == [None, "Expected", "80 % range", "Ends higher", HIGH_IN_WORDS]
    assert page.locator("#feed-rows").evaluate("one => one.scrollWidth - one.clientWidth") <= 0


def test_a_row_says_how_far_the_close_is_expected_to_move(routed: RoutedVisit):
    page = opened(routed)
    rows = {
        row.locator("th").inner_text(): [
            row.locator(part).inner_text() for part in (".now", ".change", ".close")
        ]
        for row in page.locator("#feed-rows tbody tr").all()
    }
    assert rows["AAPL"] == ["11", "+4.55 %", "12"]
    assert rows["NVDA"] == ["", "", "11.500"], "without closes"
    assert rows["GONE"] == ["", "", ""]


def test_a_figure_that_needs_somebody_names_its_symbols_and_leads_to_them(routed: RoutedVisit):
    page = opened(routed)
    late, off = page.locator("#feed-scores .meaning").all()[:2]
    assert late.inner_text().split() == ["all", "but", "NVDA", "GONE"]
    assert off.inner_text().split()[-1] == "MSFT"
    late.locator("button >> text=GONE").click()
    wait_until(page, "() => document.querySelector('#feed-caption').textContent.startsWith('GONE')")
    assert page.locator("#feed-rows [aria-current] th").all_inner_texts() == ["GONE"]
    routed.answers["feeds/us%205%2Fmin"] |= {"last_update": "8-0"}
    many = [ROWS[0] | {"id": f"S{number}", "is_current": False} for number in range(6)]
    routed.answers["feeds/us%205%2Fmin/latest"] = {"rows": many}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(page, "() => document.querySelector('#feed-scores .meaning').textContent.includes('S0')")
    assert late.inner_text().split() == ["all", "but", "S0", "S1", "S2", "S3", "and", "2", "more"]


def test_events_are_written_in_words(routed: RoutedVisit):
    page = routed.open()
    said = {
        "high > last+1% at 12": "high more than 1 % above the last close at bar 12",
        "low<=last-2.5%by end": "low at least 2.5 % below the last close by the end",
        "close>last-2% at end": "close less than 2 % below the last close at the end",
        "open<=last+2% at 3": "open at most 2 % above the last close at bar 3",
        "high>=195.5 by 24": "high at or above 195.5 by bar 24",
        "close<last at 1": "close below the last close at bar 1",
        "of a newer service": "of a newer service",
    }
    words = "async (events) => events.map((await import('./forecast/answer.js')).eventInWords)"
    assert page.evaluate(words, list(said)) == list(said.values())


@pytest.mark.parametrize(("width", "is_table_first"), [(1440, False), (1024, True), (390, True)])
def test_the_open_symbol_is_marked_and_the_ranking_is_above_its_chart_on_small_screens(
    routed: RoutedVisit, width: int, is_table_first: bool
):
    routed.page.set_viewport_size({"width": width, "height": 800})
    page = opened(routed)
    page.click("#feed-rows tbody button >> text=AAPL")
    page.wait_for_selector("#feed-figure")
    assert page.locator("#feed-rows [aria-current] th").all_inner_texts() == ["AAPL"]
    assert page.evaluate("document.activeElement.textContent") == "AAPL"
    top = "selector => document.querySelector(selector).getBoundingClientRect().top"
    tops = [page.evaluate(top, selector) for selector in ("#feed-rows", "#feed-figure")]
    assert (tops[0] < tops[1]) is is_table_first
    row = "document.querySelector('#feed-figure').closest('tr')?.previousElementSibling"
    assert page.evaluate(f"{row}?.querySelector('th').innerText ?? null") == (
        "AAPL" if width == PHONE["width"] else None
    )
    place = "document.querySelector('#feed-figure').getBoundingClientRect()"
    wait_until(page, f"() => {place}.top >= 0 && Math.floor({place}.bottom) <= innerHeight")


@pytest.mark.parametrize(("width", "is_open"), [(1440, True), (390, False)])
def test_a_large_screen_shows_the_first_symbol_at_once(routed: RoutedVisit, width: int, is_open: bool):
    routed.page.set_viewport_size({"width": width, "height": 800})
    answer(routed)
    routed.answers["feeds/us%205%2Fmin/series/MSFT"] = {"bars": BARS, "newest": NEWEST, "past": [OLDEST]}
    page = routed.open("#/feeds")
    page.wait_for_selector("#feed-rows tbody tr")
    asked = [request.url for request in routed.requests if "/series/" in request.url]
    assert len(asked) == is_open
    if is_open:
        page.wait_for_selector("#feed-figure")
        assert page.inner_text("#feed-caption").startswith("MSFT")
        assert page.evaluate("scrollY") == 0


def test_on_a_phone_the_ranking_needs_no_scrolling_aside(routed: RoutedVisit):
    routed.page.set_viewport_size(PHONE)
    page = opened(routed)
    scroll = "document.querySelector('#feed-box .scroll')"
    assert page.evaluate(f"{scroll}.scrollWidth - {scroll}.clientWidth") == 0
    page.click(f"#feed-rows thead button >> text={HIGH_IN_WORDS}")
    chances = page.locator("#feed-rows .chance").filter(visible=True)
    heads = chances.evaluate_all("cells => cells.map(cell => cell.dataset.head)")
    assert heads == [HIGH_IN_WORDS] * len(symbols(page)), "each row has the chance by which it is sorted"
    assert chances.first.inner_text().endswith(" %")


def test_each_symbol_has_a_line_of_its_closes_which_moves_with_its_row(routed: RoutedVisit):
    page = opened(routed)
    (request,) = [request.url for request in routed.requests if "/latest" in request.url]
    assert request.endswith("?closes=60")

    def lines() -> list[str]:
        return page.evaluate("""() => [...document.querySelectorAll("#feed-rows tbody tr")].map((row) => {
            const line = row.querySelector("svg[role=img]")
            const parts = [line?.getAttribute("aria-label"), line?.firstChild.getAttribute("points")]
            return [row.querySelector("th").textContent, ...parts].filter(Boolean).join(": ")
        })""")

    aapl = "AAPL: 3 bars, close from 10 to 11: 0.0,26.0 80.0,2.0 160.0,14.0"
    msft = "MSFT: 2 bars, close from 3 to 1: 0.0,2.0 160.0,26.0"
    assert lines() == [msft, "NVDA", aapl, "GONE"]
    page.click(f"#feed-rows thead button >> text={HIGH_IN_WORDS}")
    assert lines() == [aapl, "NVDA", msft, "GONE"]


def test_what_is_late_missing_or_off_its_ranges_is_said(routed: RoutedVisit):
    page = opened(routed)
    states = page.locator("#feed-rows tbody .state").all_inner_texts()
    assert states == [
        "up to date ranges too narrow",
        "next bar is late by 10 min",
        "up to date",
        "no forecast: FEED_GONE",
    ]
    facts = " ".join(page.inner_text("#feed-scores").split())
    assert "Up to date 2 of 4 all but NVDA GONE" in facts
    assert "80 % ranges held 78.3 % kronos-tiny, of 1,234 bars" in facts
    assert "Against the baseline 3" in facts


def drawn(page: "Page", *earlier: dict[str, Any], routed: RoutedVisit) -> bytes:
    """A picture of a symbol's chart with these earlier forecasts."""
    routed.answers["feeds/us%205%2Fmin/series/AAPL"] |= {"past": earlier}
    with page.expect_response("**/series/AAPL"):
        page.click("#feed-rows tbody button >> text=AAPL")
    wait_until(
        page,
        "(text) => document.querySelector('#feed-key').textContent.includes(text)",
        "ends of the 2 earlier forecasts"
        if len(earlier) > 1
        else "end of the earlier forecast"
        if earlier
        else "forecast",
    )
    page.mouse.move(0, 0)
    await_frame(page)
    return page.locator("#feed-chart").screenshot()


def test_the_fan_of_a_symbol_is_shown_over_its_past_forecasts(routed: RoutedVisit):
    page = opened(routed)
    before = past(2, 4, 11.0, 11.0)
    alone, both = drawn(page, OLDEST, routed=routed), drawn(page, OLDEST, before, routed=routed)
    assert page.inner_text("#feed-caption") == "AAPL after Mon, Mar 4, 2024, by kronos-tiny"
    assert page.locator("#feed-key li").all_inner_texts() == [
        "history", "forecast", "80 % range", "ends of the 2 earlier forecasts",
    ]  # fmt: skip
    assert axe_problems(page, "#feeds") == []
    assert alone != both
    assert drawn(page, OLDEST, past(2, 4, 11.0, 12.0), routed=routed) not in (alone, both)
    drawn(page, OLDEST, past(2, 4, 11.5, 11.0), routed=routed)

    page.focus("#feed-chart")
    said = []
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
        said.append(page.inner_text("#feed-figure .legend").strip())
    assert said == [
        "AAPL, 1 day Tue, Mar 5, 2024 forecast 11.50 −4.17 % before 11.00 to 11.50",
        "AAPL, 1 day Mon, Mar 4, 2024 O 12.00 H 12.00 L 12.00 C 12.00 +17.07 % before 11.25 to 11.50",
        "AAPL, 1 day Sun, Mar 3, 2024 O 10.25 H 10.25 L 10.25 C 10.25 −6.82 % before 11.00",
        "AAPL, 1 day Sat, Mar 2, 2024 O 11.00 H 11.00 L 11.00 C 11.00 +10.00 % before 10.75",
    ]
    page.keyboard.press("Escape")
    assert "before" not in page.inner_text("#feed-figure .legend")
    routed.answers["feeds/us%205%2Fmin/series/AAPL"] |= {"newest": NEWEST | {"last_time": DAYS[2]}}
    page.click("#feed-rows tbody button >> text=AAPL")
    page.wait_for_selector("#feed-key li >> text=newer bars, not forecast yet")
    page.click("#feed-rows tbody button >> text=GONE")
    wait_until(page, "() => document.querySelector('#feed-caption').textContent === 'GONE: no forecast yet'")
    assert page.locator("#feed-key li").all_inner_texts() == ["history"]
    page.set_viewport_size(PHONE)
    wait_until(page, f"() => document.documentElement.scrollWidth === {PHONE['width']}")


def test_rows_are_read_again_only_for_a_new_forecast(routed: RoutedVisit):
    page = opened(routed)

    def num_read() -> int:
        return sum("/latest" in request.url for request in routed.requests)

    def look() -> None:
        with page.expect_response("**/v1/feeds/us%205%2Fmin"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    look()
    assert num_read() == 1
    routed.answers["feeds/us%205%2Fmin"] |= {"last_update": "8-0"}
    routed.answers["feeds/us%205%2Fmin/latest"] = {"rows": ROWS[:1]}
    look()
    page.wait_for_selector("#feed-rows tbody tr:only-child")


@pytest.mark.parametrize("address", ["feeds", "feeds/us%205%2Fmin/latest"])
def test_a_refusal_is_said_and_tried_again(routed: RoutedVisit, address: str):
    answer(routed)
    routed.expected_failures = 1000
    working = routed.answers[address]
    routed.answers[address] = problem(403, detail="this key may not read feeds")
    page = routed.open("#/feeds")
    page.wait_for_selector("#feeds-problem button")
    assert "this key may not read feeds" in page.inner_text("#feeds-problem")
    routed.answers[address] = working
    page.evaluate("document.querySelector('#feeds-problem button')?.click()")  # or a reading came before
    page.wait_for_selector("#feed-rows tbody tr")
    assert page.locator("#feeds-problem").is_hidden()
