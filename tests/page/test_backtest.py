"""A backtest on the page: its job, its progress, and what it shows of the report."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from api_stub.routes.promotions import REMEDY
from kronos_client.contract.backtest import parse_backtest_job
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.schemas import example
from tests.page.conftest import RoutedVisit, go_to, wait_until
from tests.page.test_operation import PHONE, axe_problems
from tests.page.test_routed import CLOSES, CONTENT, DAYS, FILE, WORKER, end, problem, with_file

ADDRESS = "backtests/one"
RESULT = example("backtest-result")
SIMPLE = [
    "Baseline",
    "Last close, with a spread",
    "Recent trend",
    "Last season, with a spread",
    "Random walk",
]
FINETUNER = WORKER | {"role": "finetune", "queue": "cpu.finetune", "training": None, "models": []}

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.page.fake_api import Route

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


def test_only_a_clear_winner_is_bold_and_ranges_are_coloured_by_how_far_off_they_are(routed: RoutedVisit):
    def scores(error: float, *held: float) -> dict[str, Any]:
        return {"crps_scaled": error, "coverage": dict(zip(("0.5", "0.8", "0.9"), held, strict=True))}

    def against(**verdicts: str) -> dict[str, Any]:
        return {name: {"verdict": verdict} for name, verdict in verdicts.items()}

    best = {"scores": scores(1.0, 0.54, 0.71, 0.79), "against": against(bootstrap="better", other="better")}
    other = {"scores": scores(1.1, 0.5, 0.8, 0.9), "against": against(bootstrap="better", best="worse")}
    kinds = """async ([models, naive]) => {
        const { scoresTable } = await import("./common/scores.js")
        const rows = [...scoresTable(models, naive).querySelectorAll("tbody tr")]
        return rows.map((row) => [...row.cells].map((cell) => cell.className).join(" ").trim())
    }"""
    page, naive = routed.open(), {"bootstrap": scores(1.2, 0.5, 0.8, 0.9)}
    models = {"best": best, "other": other}
    assert page.evaluate(kinds, [models, naive]) == ["best good warn bad", "good good good", "good good good"]
    best["against"]["bootstrap"]["verdict"] = "unclear"
    assert page.evaluate(kinds, [models, naive])[0] == "good warn bad"


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
    assert (inline["id"], inline["timestamps"], inline["close"]) == ("bars", DAYS, CLOSES)
    assert (job["models"], job["windows"], job["lookback"]) == ([None, other], 6, "auto")
    assert page.inner_text("#tested-title") == f"{own} and {other} on bars.csv"
    assert page.inner_text("#tested-what") == "24 moments of 3 instruments: 48 bars read, 3 forecast."
    for name, model in RESULT["report"]["models"].items():
        words = "async (lines) => lines.map((await import('./common/texts.js')).inWords)"
        shown = page.text_content("#verdicts")
        assert all(line in shown for line in [name, *page.evaluate(words, model["verdict"])])
        assert "lookback" not in shown
    rows = [row.split("\t") for row in page.locator("#backtest-scores tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == [own, other, *SIMPLE]
    assert rows[0][3] == f"{RESULT['report']['models'][own]['scores']['coverage']['0.8']:.1%}".replace(
        "%", " %"
    )
    assert page.locator("#by-horizon [role=img]").count() == 2
    said = page.locator("#verdicts strong").all_inner_texts()
    assert said == ["No clear advantage over simple forecasts"]  # once for both models
    direct = page.locator("#verdicts > p").first.inner_text()
    assert direct == f"{other}: The same as {own}."
    by = "1.2 % better than the baseline (95 % sure: −3.0 to +5.4 %)"
    numbers = page.locator("#verdicts p:has(b)").all_inner_texts()
    assert [" ".join(text.split()) for text in numbers] == 2 * [by]
    (drawn,) = labels(page, "#against")
    assert drawn == "; ".join(f"{name}: +1.2 %, 95 % sure: −3.0 to +5.4 %" for name in (own, other))
    places = page.locator("#against .group > .name").all_inner_texts()
    assert places == ["all bars", "1", "2", "3"]
    assert page.locator("#against .interval.unclear").count() == 2 * len(places)
    dashed = page.locator("#reliability .dashed, #by-horizon .dashed").count()
    assert dashed == 4  # in the keys, as in the four charts
    assert page.get_attribute("#whole-report", "href") == "v1/backtests/one/report"
    assert page.text_content("#recent-jobs tbody td:first-child") == "Backtest on bars.csv"
    assert axe_problems(page, "#backtest") == []


def test_a_link_shows_a_backtest_and_a_key_fetches_its_report(answered: RoutedVisit):
    answered.answers[f"{ADDRESS}/report"] = lambda route: route.fulfill(body="<!doctype html>")
    report = RESULT["report"]
    naive = {name: scores for name, scores in report["naive"].items() if name != "bootstrap"}  # as in 0.1.0
    earlier = RESULT | {"report": report | {"naive": naive}}
    answered.answers[f"{ADDRESS}/events"] = end(state="done", result=earlier)
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#tested")
    names = page.locator("#backtest-scores tbody th").all_inner_texts()
    assert names[2:] == SIMPLE[1:]
    page.evaluate("sessionStorage.setItem('kronos.api-key', 'a key')")
    with page.expect_download() as download:
        page.click("#whole-report")
    assert download.value.suggested_filename == "backtest.html"
    request = answered.requests[-1]
    assert (request.headers["accept"], request.headers["authorization"]) == ("text/html", "Bearer a key")


def test_a_file_is_opened_where_the_user_is_and_a_refused_one_where_its_form_is(answered: RoutedVisit):
    answered.answers["candles"] = CONTENT
    page = answered.open("#/backtest")
    wait_until(page, "() => document.querySelector('#backtest-data').options.length === 2")
    page.select_option("#backtest-data", "stored.csv")
    page.set_input_files("#backtest-file", FILE)
    wait_until(page, "() => document.querySelector('#backtest-data').value === 'file:'")
    assert page.locator("#backtest").is_visible()
    page.click("#test")
    page.wait_for_selector("#tested")
    (sent,) = [request for request in answered.requests if request.method == "POST" and "back" in request.url]
    assert sent.post_data_json["data"]["instruments"][0]["id"] == "bars"
    answered.expected_failures = 1
    answered.answers["candles"] = problem(422, code="FILE", detail="Is 03/04 in March?", field="date_format")
    page.set_input_files("#backtest-file", FILE)
    page.wait_for_selector("#file-problem:has-text('March')")
    assert page.locator("#date-format").is_visible()


def test_progress_a_stored_file_and_refusals(answered: RoutedVisit):
    progress = {"stage": "forecasting", "forecasts_done": 20, "forecasts_total": 80, "seconds_left": 90}
    event = json.dumps({"state": "running", "progress": progress})
    answered.answers[f"{ADDRESS}/events"] = lambda route: route.fulfill(
        body=f"event: progress\ndata: {event}\n\n", content_type="text/event-stream"
    )
    page = answered.open("#/backtest")
    page.evaluate(SEE_STATES)  # the stream ends at once, so each state is shown for a moment only
    page.click("#test")
    assert page.inner_text("#backtest-form-problem").startswith("Choose a file first")
    wait_until(page, "() => document.querySelector('#backtest-data').options.length === 2")
    page.select_option("#backtest-data", "stored.csv")
    page.click("#backtest-advanced summary")
    page.click("#backtest-file-form summary")
    page.check("#backtest-drop-bad-rows")
    page.fill("#backtest-columns", " close = Adj=Close,")
    page.select_option("#backtest-decimal", ",")
    page.select_option("#backtest-missing", "ffill")
    page.fill("#backtest-from", "2024-03-01")
    page.fill("#backtest-stride", "24")
    page.fill("#backtest-costs", "2.5")
    assert page.inner_text("#backtest-advanced .changed") == "7 changed"
    assert axe_problems(page, "#backtest") == []
    page.click("#test")
    wait_until(page, "text => window.seen.includes(text)", "25 % · about 1 min left")
    (request,) = [one for one in answered.requests if one.url.endswith("/backtests")]
    job = json.loads(request.post_data or "")
    assert job["data"] == {"path": "stored.csv"}
    reading = {"missing": "ffill", "drop_bad_rows": True, "decimal": ",", "columns": {"close": "Adj=Close"}}
    assert job["reading"] == reading
    assert (job["start"], job["end"], job["stride"], job["cost_bps"]) == ("2024-03-01", None, 24, 2.5)
    assert parse_backtest_job(job, Limits()).samples == 30
    answered.expected_failures = 1
    refused = problem(404, detail="No such job.", code="LOST")
    answered.answers["backtests/two/events"] = refused
    page.evaluate("location.hash = '#backtests/two'")
    page.wait_for_selector("#testing-problem")
    assert page.inner_text("#testing-problem") == (
        "The service does not know this job. Check the link, or send it again. (LOST)"
    )


def report_of(**changed: Any) -> Any:
    """A backtest that is done, with changes in its report."""
    return end(state="done", result=RESULT | {"report": RESULT["report"] | changed})


def labels(page: "Page", part: str) -> list[str]:
    return page.locator(f"{part} [role=img]").evaluate_all(
        "charts => charts.map(chart => chart.getAttribute('aria-label'))"
    )


def test_a_report_is_drawn_as_its_page_is(answered: RoutedVisit):
    worst = RESULT["report"]["worst_windows"][0]
    other = worst | {"instrument": "SOL-USD", "error": 2.0}
    answered.answers[f"{ADDRESS}/events"] = report_of(worst_windows=[worst, other])
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#tested")
    assert page.inner_text("#tested-title").endswith(" on 3 instruments")
    own = next(iter(RESULT["report"]["models"]))
    scores = RESULT["report"]["models"][own]["scores"]
    inside, places = labels(page, "#reliability")
    percent = [f"{100 * scores['coverage'][level]:.1f} %" for level in ("0.5", "0.9")]
    assert f"{own}: {percent[0]} to {percent[1]}" in inside
    assert "as it should be: 50.0 % to 90.0 %" in inside
    assert f" to {100 * scores['pit'][-1]:.1f} %; crypto" in places
    gaps = [round(100 * (scores["coverage"][level] - float(level)), 1) for level in ("0.5", "0.8", "0.9")]
    written = page.locator("#reliability .drawn >> nth=0").locator(".group > .bar:first-child")
    assert written.all_inner_texts() == [f"{gap:+.1f}".replace("-", "−") for gap in gaps]
    ends = "bar => 100 - parseFloat(getComputedStyle(bar, '::before').top) / bar.clientHeight * 100"
    place = page.locator("#reliability .drawn >> nth=0")
    lowest, *_, highest = (tick.replace("−", "-") for tick in place.locator(".tick").all_inner_texts())
    for bar, gap in zip(written.all(), gaps, strict=True):
        if gap > 0:
            above = (gap - float(lowest)) / (float(highest) - float(lowest))
            assert bar.evaluate(ends) == pytest.approx(100 * above, abs=0.5)
    sides = written.evaluate_all("all => all.map(bar => bar.classList.contains('under'))")
    assert sides == [gap < 0 for gap in gaps]
    assert page.locator("#reliability .drawn >> nth=1").locator(".group").count() == 10
    assert labels(page, "#by-horizon")[0].startswith("Error, by bar ahead")
    page.select_option("#horizon-score", "direction")
    right = RESULT["report"]["models"][own]["by_horizon"]["direction_accuracy"]
    shares = f"{own}: {100 * right[0]:.1f} % to {100 * right[-1]:.1f} %"
    assert shares in labels(page, "#by-horizon")[0]
    heads = page.locator("#portfolio tbody th").all_inner_texts()
    assert heads == [*RESULT["report"]["models"], "by past return", "at random"]
    assert len(labels(page, "#portfolio")) == 2
    assert "ETH-USD: 48 bars" in page.get_attribute("#worst .chart", "aria-label")
    page.click("#worst button:has-text('SOL-USD')")
    assert page.get_attribute("#worst .chart", "aria-label") == (
        f"{own} on SOL-USD: 48 bars, the forecast of 3, and what followed"
    )
    pressed = page.locator("#worst button[aria-pressed=true]").all_inner_texts()
    assert pressed == ["SOL-USD, Tue, Jan 9, 2024, 05:00 AM: 2 usual moves"]
    said = page.inner_text("#worst .legend >> nth=0").strip()
    assert said == "SOL-USD, 1 hour O 35.96 H 36.03 L 35.83 C 35.90 −0.17 %"
    page.evaluate("document.querySelectorAll('#tested details').forEach(part => { part.open = true })")
    assert axe_problems(page, "#backtest") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_report_without_portfolio_or_windows_has_neither(answered: RoutedVisit):
    answered.answers[f"{ADDRESS}/events"] = report_of(portfolio=None, worst_windows=[])
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#tested")
    assert page.locator("#portfolio").is_hidden()
    assert page.locator("#worst").is_hidden()


def test_two_backtests_of_one_file_are_shown_next_to_each_other(answered: RoutedVisit):
    own, second = RESULT["report"]["models"]
    alone = {"crypto-hourly@4": RESULT["report"]["models"][second], own: RESULT["report"]["models"][own]}
    kept = [
        {"address": f"backtests/{name}", "title": f"Backtest on {file}", "at": 0, "state": "done"}
        for name, file in (("one", "a.csv"), ("two", "a.csv"), ("of-others", "b.csv"))
    ]
    answered.answers["backtests/two"] = {
        "state": "done",
        "result": RESULT | {"report": RESULT["report"] | {"models": alone}},
    }
    page = answered.open()
    page.evaluate("jobs => localStorage.setItem('kronos.jobs', jobs)", json.dumps(kept))
    page.goto("about:blank")
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#other")
    values = page.locator("#other-backtest option").evaluate_all("all => all.map(one => one.value)")
    assert values == ["", "backtests/two"]
    page.select_option("#other-backtest", "backtests/two")
    page.wait_for_selector("#other-problem")
    names = page.locator("#verdicts h3").all_inner_texts()
    assert names == [own, second, "crypto-hourly@4", f"{own}, the other backtest"]
    assert page.locator("#backtest-scores tbody tr").count() == 4 + len(SIMPLE)
    assert "by more than chance" in page.inner_text("#other-problem")
    assert axe_problems(page, "#backtest") == []
    page.select_option("#other-backtest", "")
    wait_until(page, "() => document.querySelectorAll('#verdicts h3').length === 2")
    assert page.locator("#verdicts h3").all_inner_texts() == [own, second]
    assert page.locator("#other-problem").is_hidden()
    answered.answers["backtests/two"]["result"]["report"]["instruments"] = []
    page.select_option("#other-backtest", "backtests/two")
    page.wait_for_selector("#other-problem:has-text('cannot be compared')")
    assert page.locator("#verdicts h3").all_inner_texts() == [own, second]


def test_a_version_is_promoted_from_its_backtest_and_the_verdict_is_shown(answered: RoutedVisit):
    own, second = RESULT["report"]["models"]
    info = {own: {"id": own, "revision": None}, second: {"id": "desk", "revision": "3"}}
    verdict = {"verdict": "worse", "difference": -4.0, "low": -6.0, "high": -2.0}
    sent: list[dict[str, Any]] = []

    def answer(route: "Route") -> None:
        sent.append(route.request.post_data_json)
        if sent[-1]["force"]:
            return route.fulfill(json={"id": "desk@3", "before": "desk@2", "verdict": None})
        refusal = f"desk@3 must be no worse than desk@2, but the backtest says so: {REMEDY}"
        return problem(409, detail=refusal, code="NOT_PROMOTED", details={"verdict": verdict})(route)

    answered.expected_failures = 1
    answered.answers |= {f"{ADDRESS}/events": report_of(model_info=info), "models/desk%403/promote": answer}
    page = answered.open(f"#{ADDRESS}")
    page.wait_for_selector("#tested")
    assert page.locator(".promotion").count() == 1, "only versions can be promoted"
    page.click(".promotion button")
    page.wait_for_selector(".promotion .bad")
    assert page.locator(".promotion [role=status] p").all_inner_texts()[:2] == [
        "desk@3 must be no worse than desk@2, but the backtest says so (NOT_PROMOTED)",
        "By the backtest it is 4 % worse (95 % range −6 to −2 %).",
    ]
    assert page.get_attribute(".promotion a", "href") == "#/backtest?model=desk%403&other=desk"
    assert axe_problems(page, "#backtest") == []
    page.click(".promotion button:has-text('without')")
    page.wait_for_selector(".promotion .good")
    assert page.inner_text(".promotion .good") == "desk means desk@3 from now on instead of desk@2."
    assert sent == [{"backtest": "one", "force": False}, {"backtest": "one", "force": True}]
