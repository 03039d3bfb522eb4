"""The views of the page: one at a time, each with an address, the last one remembered."""

import re

import pytest

from kronos_client.contract.schemas import example
from tests.page.conftest import RoutedVisit, go_to
from tests.page.test_routed import WORKER, end

VIEWS = ("forecast", "feeds", "backtest", "finetune", "workers", "jobs")
SIZE = {"width": 1440, "height": 900}
COVERED = """() => [...document.querySelectorAll("header nav a, #readiness, #theme")].filter((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect()
    const ends = [left + 2, right - 2].map((x) => document.elementFromPoint(x, (top + bottom) / 2))
    return one.scrollWidth > one.clientWidth || !ends.every((found) => one.contains(found))
}).map((one) => one.textContent)"""
CUT_CHOICES = """() => {
    const context = document.createElement("canvas").getContext("2d")
    const edge = 2 // the arrow stands in the padding
    const cut = (select) => {
        const { color, font, paddingLeft, paddingRight } = getComputedStyle(select)
        if (color === "rgba(0, 0, 0, 0)") return [] // on a phone, the theme's is an icon
        const room = select.offsetWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) - edge
        context.font = font
        const texts = [...select.options].map(({ text }) => text)
        return texts.filter((text) => context.measureText(text).width > room)
    }
    return [...document.querySelectorAll("select")].filter((one) => one.checkVisibility()).flatMap(cut)
}"""


def shown(page) -> list[str]:
    sections = page.locator("main > section").filter(visible=True)
    return list(sections.evaluate_all("found => found.map(({ id }) => id)"))


def test_one_view_is_shown_at_a_time_and_the_last_one_is_remembered(routed: RoutedVisit):
    routed.page.set_viewport_size(SIZE)
    page = routed.open()
    assert shown(page) == ["forecast"]
    for view in VIEWS:
        go_to(page, view)
        assert shown(page) == [view]
        assert page.evaluate("location.hash") == f"#/{view}"
        assert page.inner_text("header nav [aria-current=page]").lower() == view
        assert page.evaluate("document.documentElement.scrollHeight") <= 1.5 * SIZE["height"], view
    page.go_back()
    assert shown(page) == ["workers"]
    page.goto("about:blank")
    routed.open()
    assert shown(page) == ["workers"]


@pytest.mark.parametrize("width", [1440, 1024, 390, 360])
def test_no_view_and_no_choice_is_cut_off(routed: RoutedVisit, width: int):
    page = routed.page
    page.set_viewport_size({"width": width, "height": 800})
    worker = WORKER | {"device": "cuda:0", "device_description": {"name": "NVIDIA RTX 4090"}}
    routed.answers["workers"] = {"workers": [WORKER, worker], "queues": {}}
    routed.answers["models"] = {"models": [{"id": "kronos-tiny", "kind": "own"}]}
    routed.open()
    page.wait_for_selector("#readiness.ready")
    assert page.evaluate(COVERED) == []
    for view in VIEWS:
        go_to(page, view)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.evaluate(CUT_CHOICES) == [], view


@pytest.mark.parametrize("address", ["#forecasts/one", "#backtests/one", "#finetunes/one"])
def test_the_addresses_of_jobs_open_their_views(routed: RoutedVisit, address: str):
    page = routed.open(address)
    kind = re.sub(r"[#/]|s/one", "", address)
    assert shown(page) == [kind]
    assert any(f"/{address[1:]}/events" in request.url for request in routed.requests)


@pytest.mark.parametrize("address", ["#finetune", "#/finetune", "#/finetune?epochs=5"])
def test_the_addresses_of_views_open_them(routed: RoutedVisit, address: str):
    page = routed.open(address)
    assert shown(page) == ["finetune"]
    assert page.input_value("#epochs") == ("5" if "epochs" in address else "3")


@pytest.mark.parametrize("view", ["backtest", "finetune"])
def test_a_view_without_results_says_how_to_start_and_shows_an_example(routed: RoutedVisit, view: str):
    routed.page.set_viewport_size(SIZE)
    page = routed.open(f"#/{view}")
    steps = page.locator(f"#{view} .intro li strong").all_inner_texts()
    assert [step[:2] for step in steps] == ["1.", "2.", "3."]
    assert "made-up figures" in page.inner_text(f"#{view} .intro")  # nobody takes it for a result
    last = page.locator(f"#{view} .intro > *").last.bounding_box()
    assert last["y"] + last["height"] > 2 / 3 * SIZE["height"]
    routed.answers[f"{view}s/one/events"] = end(state="done", result=example(f"{view}-result"))
    page.goto(f"{routed.url}#{view}s/one")
    page.wait_for_selector("#tested" if view == "backtest" else "#trained")
    assert page.locator(f"#{view} .intro").filter(visible=True).count() == 0


def test_nothing_moves_if_the_system_asks_for_less_motion(routed: RoutedVisit):
    page = routed.open()
    moving = """() => [...document.querySelectorAll("*")].filter((one) => {
        const { transitionDuration, animationName } = getComputedStyle(one)
        return transitionDuration !== "0s" || animationName !== "none"
    }).length"""
    assert page.evaluate(moving) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0


def test_every_view_is_accessible_without_anything_done(routed: RoutedVisit):
    reason = "axe-playwright-python is not installed: ./kronos setup --dev"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason).Axe()
    page = routed.open()
    for theme in ("light", "dark"):
        page.select_option("#theme", theme)
        for view in VIEWS:
            go_to(page, view)
            found = axe.run(page)
            assert found.violations_count == 0, found.generate_report()
