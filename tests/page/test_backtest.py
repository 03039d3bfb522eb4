"""A backtest on the page: its job, its progress, and what it shows of the report."""

import json

import pytest

from kronos_client.contract.schemas import example
from tests.page.conftest import RoutedVisit, go_to, wait_until
from tests.page.test_routed import CLOSES, DAYS, WORKER, end, problem, with_file

ADDRESS = "backtests/one"
RESULT = example("backtest-result")
FINETUNER = WORKER | {"role": "finetune", "queue": "cpu.finetune", "training": None, "models": []}


SEE_STATES = """() => {
  window.seen = []
  const onChange = (changes) => {
    for (const { addedNodes } of changes) seen.push(...[...addedNodes].map((node) => node.data))
  }
  new MutationObserver(onChange).observe(document.querySelector("#testing-share"), { childList: true })
}"""


@pytest.fixture
def answered(routed: RoutedVisit) -> RoutedVisit:
    """Two models, a data set, and a backtest that is done."""
    routed.answers |= {
        "workers": {"workers": [WORKER, FINETUNER], "queues": {}},
        "models": {"models": [{"id": name} for name in RESULT["report"]["models"]]},
        "datasets": {"datasets": [{"name": "stored.csv"}]},
        "backtests": {"id": "one", "queue": "cpu.finetune"},
        f"{ADDRESS}/events": end(state="done", result=RESULT),
    }
    return routed


def test_two_models_are_compared_on_the_file_at_hand(answered: RoutedVisit):
    page = with_file(answered)
    own, other = RESULT["report"]["models"]
    wait_until(page, "() => document.querySelector('#backtest-other').options.length === 3")
    go_to(page, "backtest")
    page.select_option("#backtest-other", other)
    page.fill("#backtest-windows", "6")
    page.click("#test")
    page.wait_for_selector("#tested")
    (request,) = [one for one in answered.requests if one.url.endswith("/backtests")]
    job = json.loads(request.post_data or "")
    (inline,) = job["data"]["instruments"]
    assert (inline["id"], inline["timestamps"], inline["close"]) == ("bars.csv", DAYS, CLOSES)
    assert (job["models"], job["windows"], job["lookback"]) == ([None, other], 6, "auto")
    assert page.inner_text("#tested-what") == "24 moments of 3 instruments: 48 bars read, 3 forecast."
    for name, model in RESULT["report"]["models"].items():
        words = "async (lines) => lines.map((await import('./common/texts.js')).inWords)"
        shown = page.inner_text("#verdicts")
        assert all(line in shown for line in [name, *page.evaluate(words, model["verdict"])])
        assert "lookback" not in shown
    rows = [row.split("\t") for row in page.locator("#backtest-scores tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == [own, other, "a drift-free bootstrap"]
    assert rows[0][3] == f"{RESULT['report']['models'][own]['scores']['coverage']['0.8']:.1%}".replace(
        "%", " %"
    )
    assert page.locator("#by-horizon [role=img]").count() == 2
    assert page.get_attribute("#whole-report", "href") == "v1/backtests/one/report"
    assert page.text_content("#recent-jobs tbody td:first-child") == "Backtest on bars.csv"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, context="#backtest")
    assert found.violations_count == 0, found.generate_report()


def test_a_link_shows_a_backtest_and_a_key_fetches_its_report(answered: RoutedVisit):
    answered.answers[f"{ADDRESS}/report"] = lambda route: route.fulfill(body="<!doctype html>")
    report = RESULT["report"]
    naive = {name: scores for name, scores in report["naive"].items() if name != "bootstrap"}  # as in 0.1.0
    earlier = RESULT | {"report": report | {"naive": naive}}
    answered.answers[f"{ADDRESS}/events"] = end(state="done", result=earlier)
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#tested")
    assert "repeating the last close" in page.inner_text("#backtest-scores")
    page.evaluate("sessionStorage.setItem('kronos.api-key', 'a key')")
    with page.expect_download() as download:
        page.click("#whole-report")
    assert download.value.suggested_filename == "backtest.html"
    request = answered.requests[-1]
    assert (request.headers["accept"], request.headers["authorization"]) == ("text/html", "Bearer a key")


def test_progress_a_stored_file_and_refusals(answered: RoutedVisit):
    progress = {"stage": "forecasting", "forecasts_done": 20, "forecasts_total": 80, "seconds_left": 90}
    event = json.dumps({"state": "running", "progress": progress})
    answered.answers[f"{ADDRESS}/events"] = lambda route: route.fulfill(
        body=f"event: progress\ndata: {event}\n\n", content_type="text/event-stream"
    )
    page = answered.open("#/backtest")
    page.evaluate(SEE_STATES)  # the stream ends at once, so each state is shown for a moment only
    page.click("#test")
    assert page.inner_text("#backtest-form-problem").startswith("Open a file under Forecast")
    wait_until(page, "() => document.querySelector('#backtest-data').options.length === 2")
    page.select_option("#backtest-data", "stored.csv")
    page.check("#backtest-drop")
    page.select_option("#backtest-missing", "ffill")
    page.click("#test")
    wait_until(page, "text => window.seen.includes(text)", "25 % · about 1 min left")
    (request,) = [one for one in answered.requests if one.url.endswith("/backtests")]
    job = json.loads(request.post_data or "")
    assert job["data"] == {"path": "stored.csv"}
    assert job["reading"] == {"missing": "ffill", "drop_bad_rows": True}
    answered.expected_failures = 1
    refused = problem(404, detail="No such job.", code="LOST")
    answered.answers["backtests/two/events"] = refused
    page.evaluate("location.hash = '#backtests/two'")
    page.wait_for_selector("#testing-problem")
    assert page.inner_text("#testing-problem") == (
        "The service does not know this job. Check the link, or send it again. (LOST)"
    )
