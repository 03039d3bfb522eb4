"""The forms of the page: nothing covers them, their words, settings that stay, and what training proposes."""

import re
from typing import Any

from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import parse_job
from tests.page.conftest import RoutedVisit, go_to, wait_until
from tests.page.test_operation import axe_problems
from tests.page.test_routed import PHONE, problem, with_file


def test_training_starts_as_the_model_was_trained(routed: RoutedVisit):
    own = {"id": "mine@1", "lookback": 256, "min_lookback": 64, "pred_len": 24}
    routed.answers |= {
        "models": {"models": [{"id": "kronos-tiny"}, own]},
        "datasets": {"datasets": [{"name": "stored.csv"}]},
    }
    page = routed.open("#finetune")
    wait_until(page, "() => document.querySelector('#dataset').value === 'stored.csv'")
    wait_until(page, "() => document.querySelector('#start').options.length === 2")
    assert page.get_attribute("#train-lookback", "placeholder") == "auto"
    assert page.locator("#tokenizer-epochs").is_hidden()
    page.select_option("#start", "mine@1")
    shown = [page.get_attribute(f"#train-{name}", "placeholder") for name in ("lookback", "horizon")]
    assert shown == ["256", "24"]
    assert page.inner_text("#start-note") == (
        "It learned to read 64 to 256 bars, and to look 24 bars ahead. "
        "Your file needs at least about 350 bars."
    )
    routed.expected_failures = 1
    refusal = problem(
        422, detail="No column close.", code="TRAINING_DATA_INVALID", field="config.data.columns.close"
    )
    routed.answers["finetunes"] = refusal
    with page.expect_request("**/v1/finetunes") as sent:
        page.click("#train")
    page.wait_for_selector("#dataset-columns-wrong")
    config = sent.value.post_data_json["config"]
    assert config["data"] | {"lookback": {"min": 64, "max": 256}, "pred_len": 24} == config["data"]
    assert config["stages"] == ["predictor"]
    page.fill("#train-lookback", "128")
    page.check("#dataset-drop-bad-rows")
    assert page.inner_text("#finetune-advanced .changed") == "2 changed"


def test_a_time_zone_of_the_form_is_the_jobs_and_the_charts(routed: RoutedVisit):
    routed.expected_failures = 1
    refusal = problem(422, detail="The offsets differ.", code="TIMEZONE_MISMATCH", field="series.0.timezone")
    routed.answers["forecasts"] = refusal
    page = with_file(routed)
    assert page.locator("#zones option[value='America/New_York']").count() == 1
    page.fill("#timezone", "America/New_York")
    assert page.inner_text("#forecast-advanced .changed").endswith("changed")
    with page.expect_request("**/v1/forecasts") as sent:
        page.click("#run")
    job = sent.value.post_data_json
    assert job["series"][0]["timezone"] == "America/New_York"
    assert parse_job(job, Limits()).series[0].timezone == "America/New_York"
    page.wait_for_selector("#timezone-wrong")
    assert page.inner_text("#timezone-wrong") == "The offsets differ."
    assert axe_problems(page, "#forecast") == []


def test_no_button_covers_a_field_and_words_are_for_people_who_trade(routed: RoutedVisit):
    page = routed.open()
    page.evaluate("document.querySelectorAll('form details').forEach(part => { part.open = true })")
    covered = """() => [...document.querySelectorAll("form input, form select")].filter((field) => {
        if (!field.checkVisibility()) return false
        return ["start", "end"].some((block) => {
            field.scrollIntoView({ block, behavior: "instant" })
            const { x, y, width, height } = field.getBoundingClientRect()
            const top = document.elementFromPoint(x + width / 2, y + height / 2)
            return top !== field
        })
    }).map(({ id }) => id)"""
    text = ""
    for view in ("forecast", "backtest", "finetune", "workers", "jobs"):
        go_to(page, view)
        for size in ({"width": 1440, "height": 900}, PHONE):
            page.set_viewport_size(size)
            assert page.evaluate(covered) == []
        text += page.inner_text("main")
    page.click("#words summary")
    text += page.inner_text("body")
    assert len(text) > 3000
    jargon = r"worker's own|actual bars|are an error|such device|lookback|sample path|epoch|[A-Z]+_[A-Z]+"
    assert re.findall(jargon, text) == []
    unexplained = """() => [...document.querySelectorAll("[data-term]")].filter((label) => {
        const ids = (label.control ?? label).getAttribute("aria-describedby").split(" ")
        return !label.title || !ids.some((id) => document.getElementById(id).textContent === label.title)
    }).length"""
    assert page.evaluate(unexplained) == 0


def test_settings_stay_are_shared_by_the_address_and_go_back(routed: RoutedVisit):
    routed.answers["models"] = {"models": [{"id": "kronos-tiny"}, {"id": "mine@1"}]}
    page = routed.open()
    assert page.locator("#forecast-form .settings").is_hidden()
    page.fill("#horizon", "12")
    page.uncheck("#fallback")
    page.click("#file-form summary")
    page.fill("#columns", "close=Last")
    go_to(page, "backtest")
    page.fill("#backtest-windows", "7")
    assert page.evaluate("location.hash") == "#/backtest?windows=7"
    go_to(page, "forecast")
    page.fill("#events", "high>=1 by 5")
    address = "#/forecast?horizon=12&chances=high%3E%3D1+by+5&fallback=false&columns=close%3DLast"
    assert page.evaluate("location.hash") == address

    def fields() -> list[Any]:
        ids = ("horizon", "events", "columns", "backtest-windows", "model")
        return [*(page.input_value(f"#{name}") for name in ids), page.is_checked("#fallback")]

    page.goto("about:blank")
    routed.open()
    assert fields() == ["12", "high>=1 by 5", "close=Last", "7", "", False]
    assert page.locator("#file-form").get_attribute("open") is not None
    assert page.inner_text("#forecast-form .settings").startswith("4 settings are not the defaults.")
    page.goto(f"{routed.url}#/forecast?model=mine%401&horizon=24&unknown=1")
    wait_until(page, "() => document.querySelector('#model').value === 'mine@1'")
    wait_until(page, "() => document.querySelector('#model').selectedOptions[0].text === 'mine@1'")
    assert fields() == ["24", "", "", "7", "mine@1", True]
    page.click("#forecast-form .settings button")
    assert fields() == ["48", "", "", "7", "", True]
    assert page.evaluate("location.hash") == "#/forecast"
    assert page.evaluate("Object.keys(localStorage).sort()") == ["kronos.settings.backtest", "kronos.view"]
