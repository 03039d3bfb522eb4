"""Fixtures for page tests: Chromium, and the HTTP API as a process on a Redis of its own."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from api_stub import page_files
from kronos_cli.stack.local_redis import LocalRedis
from tests.api_process import ApiUnderTest
from tests.integration.conftest import ROOT, redis, start_worker  # noqa: F401
from tests.waiting import WAIT_S

if TYPE_CHECKING:  # without it the tests are skipped
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
SCREENSHOTS = ROOT / "output" / "screenshots"
PAGE = ROOT / "api_stub" / "page"
WAIT_MS = 1000 * WAIT_S

TINY = {"KRONOS_MODEL": "kronos-tiny", "KRONOS_TOKENIZER": "", "KRONOS_MAX_CONTEXT": ""}
"""Settings of a worker that serves the bundled checkpoint."""


class Visit:
    """A page, with its errors and its requests to other hosts. There should be none of either."""

    def __init__(self, context: "BrowserContext", url: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.url = url
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.expected_failures = 0
        """Requests that the test makes fail. Each leaves a line in the browser's console."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        context.on("request", self._on_request)

    def open(self, fragment: str = "") -> "Page":
        """Open the page, with all settings of a forecast shown, on a phone, too."""
        self.page.goto(self.url + fragment)
        self.page.evaluate("document.querySelector('#forecast-advanced').open = true")
        self.page.evaluate("document.querySelector('#forecast-form').classList.remove('folded')")
        return self.page

    def use_sample(self, **fields: Any) -> "Page":
        """Open the page, load the sample, and fill fields by their ids."""
        page = self.open()
        page.click("#sample")
        page.wait_for_selector("#run:enabled")
        for name, value in fields.items():
            page.fill(f"#{name.replace('_', '-')}", str(value))
        return page

    def forecast(self, **fields: Any) -> "Page":
        """Forecast from the sample, and wait for the result."""
        page = self.use_sample(**fields)
        page.click("#run")
        page.wait_for_selector("#downloads")
        return page

    def shoot(self, name: str) -> None:
        """Save a screenshot of the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def _on_console(self, message: "ConsoleMessage") -> None:
        if message.type not in ("error", "warning"):
            return
        if message.text.startswith("Failed to load resource") and self.expected_failures:
            self.expected_failures -= 1
            return
        self.errors.append(message.text)

    def _on_request(self, request: "Request") -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)


class RoutedVisit(Visit):
    """A page without a server. The test gives the API's answers, by their addresses below v1/.

    An answer is JSON, or a function that answers the route. A request without one never gets an answer.
    """

    def __init__(self, context: "BrowserContext") -> None:
        super().__init__(context, "http://page.test/")
        self.answers: dict[str, Any] = {
            "workers": {"workers": [], "queues": {}},
            "models": {"models": []},
            "datasets": {"datasets": []},
        }
        self.requests: list[Request] = []
        """Those of the API, apart from readings of the workers."""
        context.route(f"{self.url}**", self._answer)

    def _answer(self, route: "Route", request: "Request") -> None:
        address = urlsplit(request.url).path.lstrip("/")
        if not address.startswith("v1/"):
            route.fulfill(path=PAGE / (address or "index.html"), headers=self._headers(address))
        else:
            address = address.removeprefix("v1/")
            if address != "workers":
                self.requests.append(request)
            answer = self.answers.get(address)
            if callable(answer):
                answer(route)
            elif answer is not None:
                route.fulfill(json=answer)

    @staticmethod
    def _headers(address: str) -> dict[str, str]:
        kinds = {
            ".js": "text/javascript",
            ".css": "text/css",
            ".svg": "image/svg+xml",
            ".csv": "text/csv",
            ".json": "application/json",
        }
        kind = next((kind for suffix, kind in kinds.items() if address.endswith(suffix)), "text/html")
        return page_files.HEADERS | {"Content-Type": kind}


def wait_until(page: "Page", predicate: str, argument: Any = None) -> None:
    """Wait until a function returns true. Playwright's own wait evaluates text, which the page forbids."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(predicate, argument):
        assert time.monotonic() < deadline, f"never became true: {predicate}"
        page.wait_for_timeout(50)


def go_to(page: "Page", view: str) -> None:
    """Choose a view in the header."""
    page.click(f"header nav a[href='#/{view}']")
    page.wait_for_selector(f"#{view}")


def await_frame(page: "Page") -> None:
    """Wait until the chart is drawn, which happens in the next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


StartApi = Callable[..., ApiUnderTest]
OpenPage = Callable[..., Visit]


@pytest.fixture(scope="module")
def start_api(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartApi]:  # noqa: F811
    """Starts APIs on the module's Redis, each with an empty data folder, and stops them at the end."""
    folder = tmp_path_factory.mktemp("api")
    started: list[ApiUnderTest] = []

    def start(**settings: str) -> ApiUnderTest:
        data = folder / f"data-{len(started)}"
        data.mkdir()
        own = {"KRONOS_DATA_FOLDER": str(data)}
        api = ApiUnderTest(redis.url, folder / f"{len(started)}.log", own | settings)
        started.append(api)
        return api

    yield start
    for api in started:
        api.stop()


@pytest.fixture(scope="module")
def api(start_api: StartApi) -> ApiUnderTest:
    """An API with default settings."""
    return start_api()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    reason = "Playwright is not installed: ./kronos setup --dev"
    playwright_api = pytest.importorskip("playwright.sync_api", reason=reason)
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: make system-deps")
    options = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    if os.getuid() == 0:
        options.append("--no-sandbox")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: "Browser", api: ApiUnderTest) -> Iterator[OpenPage]:
    """Opens pages of the module's API or another. At the end, none may have errors or foreign requests."""
    opened: list[tuple[BrowserContext, Visit]] = []

    def make(at: ApiUnderTest | None = None, **context_options: Any) -> Visit:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context_options))
        visit = Visit(context, (at or api).url)
        opened.append((context, visit))
        return visit

    yield make
    for context, visit in opened:
        context.close()
        assert visit.errors == []
        assert visit.foreign == []


@pytest.fixture
def routed(browser: "Browser") -> Iterator[RoutedVisit]:
    """A page whose requests the test answers. At the end it may have no errors or foreign requests."""
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    visit = RoutedVisit(context)
    yield visit
    context.close()
    assert visit.errors == []
    assert visit.foreign == []


@pytest.fixture
def visit(open_page: OpenPage) -> Visit:
    """A page of the module's API that is not open yet."""
    return open_page()
