"""Fixtures for page tests: Chromium, and the HTTP API as a process on a Redis of its own."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kronos_cli.stack.local_redis import LocalRedis
from tests.api_process import ApiUnderTest
from tests.integration.conftest import ROOT, redis, start_worker  # noqa: F401
from tests.page.fake_api import PAGE, FakeApi, Request  # noqa: F401
from tests.page.fake_api import serve as fake_api_server
from tests.waiting import WAIT_S

if TYPE_CHECKING:  # without it the tests are skipped
    from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize
    from playwright.sync_api import Request as BrowserRequest

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
SCREENSHOTS = ROOT / "output" / "screenshots"
VIEWPORT: "ViewportSize" = {"width": 1366, "height": 768}
LARGE: "ViewportSize" = {"width": 1280, "height": 900}
WAIT_MS = 1000 * WAIT_S

TINY = {"KRONOS_MODEL": "kronos-tiny", "KRONOS_TOKENIZER": "", "KRONOS_MAX_CONTEXT": ""}
"""Settings of a worker that serves the bundled checkpoint."""


class Visit:
    """A page, with its errors and its requests to other hosts. There should be none of either."""

    def __init__(self, page: "Page", url: str) -> None:
        self.page = page
        self.page.set_default_timeout(WAIT_MS)
        self.url = url
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.expected_failures = 0
        """Requests that the test makes fail. Each leaves a line in the browser's console."""
        self._listeners = {
            "console": self._on_console,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": self._on_request,
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)  # type: ignore[call-overload]

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
        page.wait_for_selector("#download-json")
        return page

    def shoot(self, name: str) -> None:
        """Save a screenshot of the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def begin_anew(self, viewport: "ViewportSize") -> None:
        """Make a page that other tests have used like a new one, in the same process."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.goto(f"{self.url}icon.svg")  # ends what the last test's page does
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        self.page.mouse.move(0, 0)

    def check(self) -> None:
        """Stop listening, and fail on errors and on requests to other hosts."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        assert self.errors == []
        assert self.foreign == []

    def _on_console(self, message: "ConsoleMessage") -> None:
        if message.type not in ("error", "warning"):
            return
        if message.text.startswith("Failed to load resource") and self.expected_failures:
            self.expected_failures -= 1
            return
        self.errors.append(message.text)

    def _on_request(self, request: "BrowserRequest") -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)


class RoutedVisit(Visit):
    """A page with a server that gives the test's answers, by their addresses below v1/."""

    def __init__(self, page: "Page", api: FakeApi) -> None:
        super().__init__(page, api.url)
        self.api = api

    @property
    def answers(self) -> dict[str, Any]:
        return self.api.answers

    @answers.setter
    def answers(self, answers: dict[str, Any]) -> None:
        self.api.answers = answers

    @property
    def requests(self) -> list[Request]:
        """Those of the API, apart from readings of the workers."""
        return self.api.requests


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
    opened: list[Visit] = []

    def make(at: ApiUnderTest | None = None, **context_options: Any) -> Visit:
        context = browser.new_context(**({"viewport": LARGE} | context_options))
        opened.append(Visit(context.new_page(), (at or api).url))
        return opened[-1]

    yield make
    for visit in opened:
        visit.page.context.close()
        visit.check()


@pytest.fixture(scope="module")
def fake_api() -> Iterator[FakeApi]:
    with fake_api_server() as api:
        yield api


@pytest.fixture(scope="module")
def shared_page(browser: "Browser") -> "Page":
    """One page for a module's tests: opening it again costs a third of what a new one does."""
    return browser.new_context(viewport=VIEWPORT).new_page()  # type: ignore[arg-type]


@pytest.fixture
def routed(shared_page: "Page", fake_api: FakeApi) -> Iterator[RoutedVisit]:
    """A page whose requests the test answers. At the end it may have no errors or foreign requests."""
    visit = RoutedVisit(shared_page, fake_api)
    visit.begin_anew(VIEWPORT)
    fake_api.reset()
    yield visit
    visit.check()


@pytest.fixture
def routed_alone(browser: "Browser", fake_api: FakeApi) -> Iterator[RoutedVisit]:
    """As `routed`, in a page of its own: a clock that a test has set cannot be taken away again."""
    context = browser.new_context(viewport=VIEWPORT)
    fake_api.reset()
    visit = RoutedVisit(context.new_page(), fake_api)
    yield visit
    context.close()
    visit.check()


@pytest.fixture
def visit(shared_page: "Page", api: ApiUnderTest) -> Iterator[Visit]:
    """A page of the module's API that is not open yet. At the end it may have no errors, as `routed`."""
    visit = Visit(shared_page, api.url)
    visit.begin_anew(LARGE)
    yield visit
    visit.check()
