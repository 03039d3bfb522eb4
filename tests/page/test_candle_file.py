"""The page reads CSV files as the Python readers do: both are tested with the same files."""

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import ROOT
from tests.kronos_model.bars.files.candle_files import EXPECTED, FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = "http://page.test/"
READ = """
async ([name, content]) => {
  const { FileProblem, readCandles } = await import("/candle_file.js")
  const bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0))
  try {
    const { timestamps, columns } = await readCandles(new File([bytes], name))
    return { timestamps, columns }
  } catch (error) {
    if (!(error instanceof FileProblem)) throw error
    return { error: error.message }
  }
}
"""


@pytest.fixture(scope="module")
def page(browser: "Browser") -> "Iterator[Page]":
    """An empty page that can import the web page's modules, without a server."""
    page = browser.new_page()
    page.route(
        f"{ADDRESS}*.js",
        lambda route: route.fulfill(path=ROOT / "api_stub/page" / route.request.url[len(ADDRESS) :]),
    )
    page.route(ADDRESS, lambda route: route.fulfill(body="", content_type="text/html"))
    page.goto(ADDRESS)
    yield page
    page.close()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_page_reads_a_file_as_python_does(page: "Page", name: str) -> None:
    content = base64.b64encode((FOLDER / name).read_bytes()).decode()
    assert page.evaluate(READ, [name, content]) == EXPECTED[name]
