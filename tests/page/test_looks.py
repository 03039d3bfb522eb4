"""The page in dark, in light and on a phone, checked by axe-core. Screenshots are saved."""

import io
from typing import TYPE_CHECKING

import matplotlib.image
import pytest

from tests.integration.conftest import StartWorker, WorkerUnderTest
from tests.page.conftest import TINY, OpenPage, await_frame

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True},
}
FIELDS = {"horizon": 24, "held_out": 24, "lookback": 128, "seed": 7}


def corner(page: "Page") -> tuple[int, ...]:
    """The background colour of the chart."""
    with io.BytesIO(page.locator("#chart").screenshot()) as picture:
        pixels = matplotlib.image.imread(picture, format="png")
    return tuple(round(float(value) * 255) for value in pixels[6, 6, :3])


@pytest.fixture(scope="module", autouse=True)
def worker(browser, start_worker: StartWorker) -> WorkerUnderTest:
    return start_worker(**TINY, KRONOS_DEVICE="cuda").wait_until_ready()


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_is_accessible(open_page: OpenPage, look: str):
    visit = open_page(**LOOKS[look])
    page = visit.open()
    visit.shoot(f"{look}-empty")
    page = visit.use_sample(**FIELDS)
    page.check("#paths")
    page.click("#run")
    page.wait_for_selector("#download-json")
    page.click("#numbers summary")
    page.wait_for_selector("#readiness:not(:empty)")
    await_frame(page)
    visit.shoot(look)
    reason = "axe-playwright-python is not installed: ./kronos setup --dev"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason).Axe()
    results = axe.run(page)
    assert results.violations_count == 0, results.generate_report()
    # A phone shows a page that is too wide in full, and reports that width as its own.
    width = LOOKS[look].get("viewport", {}).get("width", 1280)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]


def test_colours_follow_the_system_while_the_page_is_open(open_page: OpenPage):
    visit = open_page(color_scheme="light")
    page = visit.forecast(**FIELDS)
    assert corner(page) == (0xFF, 0xFF, 0xFF)
    page.emulate_media(color_scheme="dark")
    await_frame(page)
    assert corner(page) == (0x10, 0x15, 0x1C)


def test_a_worker_on_a_fallback_device_has_a_warning(open_page: OpenPage):
    page = open_page().open("#/workers")
    page.wait_for_selector("#worker-rows .warning")
    assert "Falling back to CPU" in page.inner_text("#worker-rows .warning")
    assert page.inner_text("#worker-rows .pool th") == "Forecasts, processor"
    assert page.locator("#fleet-facts dd").all_inner_texts()[:3] == [
        "0", "0 urgent, 0 normal, 0 can wait", "1 of 1",
    ]  # fmt: skip
