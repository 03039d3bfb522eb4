"""The page on answers of the test's own: refusals, hung requests, links, limits, scores, themes."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import WORKER_STATUS
from kronos_client.redis.routing import why_waiting
from kronos_model.bars.calendar.sessions import CannotInfer
from tests.page.conftest import RoutedVisit, await_frame, go_to, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE = {"width": 360, "height": 600}
DESKTOP = {"width": 1366, "height": 768}
CLOSES = [10.5, 10.0, 10.25, 10.5, 11.0, 12.0]
DAYS = [f"2024-03-0{day}" for day in range(1, 7)]
FILE = {"name": "bars.csv", "mimeType": "text/csv", "buffer": b"read by the API"}
PRICES = {"open": [10.0] * 6, "high": [13.0] * 6, "low": [9.0] * 6, "close": CLOSES}
CONTENT = {
    "series": {"id": "bars.csv", "timestamps": DAYS} | PRICES,
    "instruments": [],
    "dropped": {},
    "warnings": [],
}
ADDRESS = "forecasts/one"


def column(close: list[float]) -> dict[str, list[float]]:
    return {"open": close, "high": close, "low": close, "close": close, "volume": [0, 0], "amount": [0, 0]}


RESULT = {
    "series": [
        {
            "id": "bars.csv",
            "timestamps": DAYS[4:],
            "mean": column([11.5, 11.5]),
            "quantiles": {"0.1": column([10.5, 12.5]), "0.9": column([11.5, 13.0])},
            "paths": None,
            "seed": 7,
        }
    ],
    "model": {"id": "kronos-tiny"},
    "device": "cpu",
    "device_warning": None,
    "worker": "worker@test",
    "timings_ms": {"total": 10},
    "warnings": [],
}
WORKER = {
    "node": "worker@test",
    "role": "forecast",
    "state": "ready",
    "device": "cpu",
    "queue": "cpu",
    "jobs_done": 0,
    "jobs_failed": 0,
    "uptime_s": 1,
    "models": [{"id": "kronos-tiny", "max_context": 100, "lookback": 60}],
}


def end(before: list[dict[str, Any]] | None = None, **fields: Any) -> Any:
    """An answer: the last event of a job, and the progress before it."""
    progress = [("progress", {"state": "running", "progress": one}) for one in before or []]
    events = [f"event: {kind}\ndata: {json.dumps(of)}\n\n" for kind, of in [*progress, ("end", fields)]]
    return lambda route: route.fulfill(body="".join(events), content_type="text/event-stream")


def problem(status: int, **fields: Any) -> Any:
    """An answer: a problem document."""
    return lambda route: route.fulfill(status=status, json={"status": status} | fields)


def with_file(visit: RoutedVisit, **fields: Any) -> "Page":
    """Open the page with the file of six bars, two of them held out."""
    visit.answers.setdefault("candles", CONTENT)
    page = visit.open()
    page.set_input_files("#file", FILE)
    page.wait_for_selector("#run:enabled")
    for name, value in ({"held-out": 2, "horizon": 2} | fields).items():
        page.fill(f"#{name}", str(value))
    return page


def forecast(visit: RoutedVisit, **changed: Any) -> "Page":
    visit.answers |= {
        "forecasts": {"id": "one", "queue": "cpu"},
        ADDRESS: {"state": "done"},
        f"{ADDRESS}/events": end(state="done", result=RESULT | changed),
    }
    page = with_file(visit)
    page.click("#run")
    page.wait_for_selector("#download-json")
    return page


def test_a_workers_row_names_each_models_engine_and_each_warning_once(routed: RoutedVisit):
    warning = "Native engine not used: Numba is not installed. Falling back to PyTorch."
    models = [
        {"id": "a", "engine": "native", "engine_warning": None},
        *({"id": name, "engine": "torch", "engine_warning": warning} for name in "bc"),
        {"id": "of-0.1.0"},
    ]
    routed.answers["workers"] = {"workers": [WORKER | {"models": models}], "queues": {}}
    page = routed.open("#/workers")
    page.wait_for_selector("#worker-rows .warning")
    assert page.locator("#worker-rows .warning").all_inner_texts() == [warning]
    shown = "a (native engine), b (torch engine), c (torch engine), of-0.1.0"
    assert page.inner_text(".worker .models") == shown
    assert page.inner_text(".worker th") == "worker@test"
    assert page.inner_text(".worker .device") == "processor (CPU)"
    assert page.inner_text(".worker .state") == "Ready"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_refusal_is_in_view_next_to_the_button(routed: RoutedVisit, size: dict[str, int]):
    routed.page.set_viewport_size(size)  # type: ignore[arg-type]
    routed.answers["forecasts"] = problem(422, detail="High is below low.", code="HIGH_BELOW_LOW")
    routed.expected_failures = 1
    page = with_file(routed)
    page.evaluate("scrollTo(0, 0)")
    if size == PHONE:  # the chart begins below the form, which a file opens
        assert page.locator("#forecast .stage").bounding_box()["y"] < 0.6 * size["height"]
        page.locator("#run").scroll_into_view_if_needed()
    button = page.locator("#run").bounding_box()
    assert button["y"] + button["height"] <= size["height"]
    page.click("#run")
    page.wait_for_selector("#job-problem")
    assert page.inner_text("#job-problem") == "High is below low. (HIGH_BELOW_LOW)"
    box = page.locator("#job-problem").bounding_box()
    assert 0 <= box["y"] <= box["y"] + box["height"] <= size["height"]


def test_a_hung_api_is_reported_and_tried_again(routed_alone: RoutedVisit):
    routed_alone.page.clock.install()
    answers, routed_alone.answers = routed_alone.answers, {}
    page = routed_alone.open()
    page.clock.fast_forward(8100)
    page.wait_for_selector("#api-problem")
    assert page.inner_text("#api-problem").startswith("The service has not answered for 8 s.")
    assert page.inner_text("#readiness") == "The service does not answer"
    routed_alone.answers = answers
    page.click("#api-problem button")
    page.wait_for_selector("#api-problem", state="hidden")
    assert page.inner_text("#readiness") == "No worker is running"


def test_a_job_without_an_answer_can_be_sent_again_as_the_same_job(routed_alone: RoutedVisit):
    routed_alone.page.clock.install()
    page = with_file(routed_alone)
    with page.expect_request("**/v1/forecasts"):
        page.click("#run")
    wait_until(page, "() => document.querySelector('#job-state').textContent === 'Sending'")
    page.clock.fast_forward(21_000)
    page.wait_for_selector("#job-problem button")
    routed_alone.answers |= {
        "forecasts": {"id": "one", "queue": "cpu"},
        f"{ADDRESS}/events": end(state="done", result=RESULT),
    }
    page.click("#job-problem button")
    page.wait_for_selector("#download-json")
    first, second = [request for request in routed_alone.requests if request.url.endswith("/forecasts")]
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.post_data == second.post_data


def test_the_bars_of_a_running_forecast_are_drawn_as_they_come(routed: RoutedVisit):
    (series,) = RESULT["series"]
    values = {name: [10.0] for name in series["mean"]}
    first = series | {"timestamps": DAYS[4:5], "mean": values, "quantiles": {"0.1": values, "0.9": values}}
    event = f"event: bars\ndata: {json.dumps({'id': 'one', 'series': [first]})}\n\n"
    routed.answers |= {
        "forecasts": {"id": "one", "queue": "cpu"},
        f"{ADDRESS}/events": lambda route: route.fulfill(body=event, content_type="text/event-stream"),
    }
    page = with_file(routed)
    page.click("#run")
    labels = "() => document.querySelector('#chart').ariaLabel.includes('forecast of {}')"
    wait_until(page, labels.format("1 bar,"))
    assert page.locator("#download-json").is_hidden()
    assert page.locator("#score").is_hidden()
    routed.answers[f"{ADDRESS}/events"] = end(state="done", result=RESULT)
    page.wait_for_selector("#download-json")
    wait_until(page, labels.format("2 bars,"))


def test_a_job_has_a_link_that_shows_it_again(routed: RoutedVisit):
    page = forecast(routed)
    assert page.evaluate("location.hash") == f"#{ADDRESS}"
    page.reload()
    page.wait_for_selector("#download-json")
    assert page.get_attribute("#chart", "aria-label").startswith(
        "Candles of bars.csv, 4 bars up to Mon, Mar 4, 2024"
    )
    assert page.locator("#score").is_visible()
    go_to(page, "jobs")
    assert page.inner_text("#recent-jobs tbody td:first-child") == "bars.csv, 2 bars"
    assert page.inner_text("#recent-jobs .state") == "done"
    page.click("#forget-jobs")
    assert page.locator("#recent").is_hidden()
    assert page.evaluate("Object.keys(localStorage).sort()") == ["kronos.settings.forecast", "kronos.view"]
    page.goto("about:blank")
    routed.open(f"#{ADDRESS}")  # as in another browser
    page.wait_for_selector("#download-json")
    assert "history before this forecast is not in this browser" in page.inner_text("#job-warning")
    assert page.get_attribute("#chart", "aria-label") == "forecast of 2 bars, last close 11.500"


def test_the_list_keeps_the_states_of_jobs_that_went_on(routed: RoutedVisit):
    page = routed.open()
    page.evaluate("""() => {
        const jobs = ["finetunes/one", "forecasts/two"].map((address) => (
            { address, title: address, at: 0, state: "running" }))
        localStorage.setItem("kronos.jobs", JSON.stringify(jobs))
    }""")
    routed.expected_failures = 2
    expired = problem(410, detail="The result has expired.", code="RESULT_EXPIRED")
    routed.answers |= {
        "finetunes/one": {"state": "failed"},
        "forecasts/two": expired,
        "forecasts/two/events": expired,
    }
    page.goto("about:blank")
    page = routed.open("#/jobs")
    page.wait_for_selector(".state-failed")
    page.locator(".state-expired", has_text="no longer kept").wait_for()
    page.click("text=forecasts/two")
    page.wait_for_selector("#job-problem")
    assert page.inner_text("#job-problem").endswith("Send it again. (RESULT_EXPIRED)")
    assert page.locator("#recent-jobs [aria-current]").text_content() == "forecasts/two"


def test_held_out_bars_score_the_forecast(routed: RoutedVisit):
    page = forecast(routed)
    # Errors of 0.5 and 0.5, against 0.5 and 1.5 of the last close. Of 11 and 12, 11 is inside.
    assert page.locator("#score dd").all_inner_texts() == [
        "50.0 % better than no change",
        "0.50 (4.3 %), no change 1.0",
        "1 of 2: 50.0 %, about 80 % expected",
    ]
    verdict = "The close was forecast 0.50 too low · outside the 80 % range"
    assert page.inner_text("#values .bad") == verdict
    page.click("#numbers summary")
    row = page.locator("#numbers tbody tr").first.inner_text().split("\t")
    assert row == ["Tue, Mar 5, 2024", "11.50", "10.50", "11.50", "11.00", "0.50"]
    page.check("#candles")
    assert "forecast, as candles" in page.inner_text("#key-of-chart")


def test_what_must_be_known_of_a_model_stands_beside_its_name_once(routed: RoutedVisit):
    caution = "kronos-tiny was trained on synthetic candles: for trying the service, not for trading."
    page = forecast(routed, warnings=[caution, "Another."])
    assert page.inner_text("#made-by .badge") == caution
    assert page.inner_text("#job-warning") == "Another."


def test_a_model_without_a_backtest_is_called_so(routed: RoutedVisit):
    untested = "No backtest of this model is recorded here."
    routed.answers["models"] = {"models": [{"id": "desk@1", "caution": untested}]}
    page = forecast(routed, model={"id": "desk", "revision": "1"})
    assert page.inner_text("#made-by .badge") == untested
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.inner_text("#answer .badge") == "not tested"
    page.set_viewport_size(DESKTOP)
    assert page.locator("#answer .badge").is_hidden()
    page.select_option("#model", "desk@1")
    assert page.inner_text("#model-note") == untested


def test_limits_are_explained_by_the_numbers_of_the_model(routed: RoutedVisit):
    workers = {
        "workers": [WORKER],
        "queues": {},
        "limits": {"max_sample_count": 12, "max_upload_bytes": 2**20},
    }
    routed.answers["workers"] = workers
    page = with_file(routed)
    page.wait_for_selector("#limits-note")
    assert page.input_value("#samples") == "12"
    assert page.inner_text("#limits-note") == (
        "kronos-tiny learned to read 60 bars, and has room for 100 bars, "
        "those it reads and those ahead together."
    )
    page.fill("#lookback", "80")
    page.fill("#horizon", "48")
    assert page.inner_text("#limits-note").endswith("From bar 21 ahead on, the forecast gets slow.")
    page.fill("#horizon", "101")
    page.click("#run")
    assert page.inner_text("#form-problem") == "Bars ahead: at most 100, as far as kronos-tiny can look."
    go_to(page, "finetune")
    page.set_input_files("#dataset-file", FILE | {"buffer": b"0" * 2**21})
    page.wait_for_selector("#dataset-problem")
    refused = "bars.csv has 2.0 MiB; the service takes at most 1.0."
    assert page.inner_text("#dataset-problem") == refused


def test_a_calibrated_model_offers_to_correct_the_ranges(routed: RoutedVisit):
    calibration = {"lookback": 3, "horizon": 2, "num_windows": 60, "last": "2024-02-01T00:00:00"}
    models = [WORKER["models"][0] | {"calibration": calibration}]
    routed.answers["workers"] = {"workers": [WORKER | {"models": models}], "queues": {}}
    about = {"explanation": ["form: Nasdaq", "close: column Close/Last"]}
    warnings = ["Without prices: 1 of 6 bars. They are left out."]
    routed.answers["candles"] = CONTENT | {"warnings": warnings} | about
    page = with_file(routed)
    assert page.inner_text("#file-name").endswith(
        "Wed, Mar 6, 2024. Without prices: 1 of 6 bars. They are left out."
    )
    page.click("#file-explanation summary")
    assert page.inner_text("#file-explanation p").splitlines() == about["explanation"]
    page.check("#calibrated")
    note = (
        "Learned from 60 earlier forecasts, the last on Thu, Feb 1, 2024. "
        "It reads 3 bars, and holds for 2 bars ahead."
    )
    assert page.inner_text("#calibration-note") == note
    with page.expect_request("**/v1/forecasts") as sent:
        page.click("#run")
    job = sent.value.post_data_json
    assert (job["output"]["calibrated"], len(job["series"][0]["timestamps"])) == (True, 3)


def test_a_verdict_is_short_and_coloured_with_its_sentences_folded(routed: RoutedVisit):
    narrow = "Closes held by the 80 % range 60 %: too narrow."
    verdict = [
        "WORSE than the last value with a spread on these candles.",
        "3.0 % better than x (95 % interval +1.0 to +5.0 %).",
        "1.0 % better than y (95 % interval -1.0 to +3.0 %, which is no clear difference).",
        narrow,
    ]
    trained = RESULT | {"model": {"id": "mine@1"}, "verdict": verdict, "timings_ms": {"training": 1}}
    routed.answers["finetunes/two/events"] = end(state="done", result=trained)
    page = routed.open("#finetunes/two")
    page.wait_for_selector("#trained")
    assert page.inner_text("#trained strong.bad") == "Worse than a simple forecast"
    assert page.locator("#trained b").count() == 0, "of what it is worse than, no number is known"
    assert page.locator("#trained p.bad").all_text_contents() == [narrow, verdict[0]]
    assert page.locator("#trained p.good").all_text_contents() == verdict[1:2]
    assert page.locator("#trained p.good").is_hidden()
    page.click("#trained summary")
    assert page.locator("#trained p.good").is_visible()


def test_a_job_that_waits_says_how_long(routed: RoutedVisit):
    place = {"state": "queued", "jobs_before": 1200, "seconds_left": 42.4}
    routed.answers |= {"forecasts": {"id": "one", "queue": "cpu"}, ADDRESS: place}
    page = with_file(routed)
    page.click("#run")
    wait_until(page, "() => document.querySelector('#job-share').textContent === 'starts in about 42 s'")
    assert page.inner_text("#job-state") == "Waiting: 1,200 jobs come first"
    loading = WORKER_STATUS.validate_python(example("worker-status") | {"state": "loading"})
    text = page.evaluate(
        "async (reason) => (await import('./service/pool.js')).waiting({ waiting: reason }).text",
        why_waiting(loading.queue, [loading]),
    )
    assert text.startswith("Every worker is still loading its model. Wait: this starts")


def test_the_chart_fills_its_width_until_the_user_zooms(routed: RoutedVisit):
    def seen() -> tuple[float, float]:
        await_frame(page)
        chart = page.locator("#chart")
        return float(chart.get_attribute("data-from")), float(chart.get_attribute("data-to"))

    page = routed.open()
    page.click("#sample")
    page.wait_for_selector("#run:enabled")
    everything = (pytest.approx(0, abs=1), pytest.approx(511, abs=1))
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert seen() == everything
    page.hover("#chart")
    page.mouse.wheel(0, -300)
    wait_until(page, "() => document.querySelector('#chart').dataset.from > 1")
    near = seen()
    page.check("#candles")
    page.set_viewport_size({"width": 1000, "height": 900})
    assert seen()[1] == pytest.approx(near[1], abs=2)
    assert seen() != everything
    page.focus("#chart")
    page.keyboard.press("0")
    assert seen() == everything
    page.set_viewport_size({"width": 700, "height": 900})
    assert seen() == everything


def test_the_theme_is_remembered(routed: RoutedVisit):
    page = routed.open()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(242, 244, 248)"
    page.select_option("#theme", "dark")
    assert page.evaluate(ground) == "rgb(9, 12, 17)"
    page.reload()
    assert page.input_value("#theme") == "dark"
    assert page.evaluate(ground) == "rgb(9, 12, 17)"
    page.emulate_media(color_scheme="dark")
    page.select_option("#theme", "light")
    assert page.evaluate(ground) == "rgb(242, 244, 248)"
    page.select_option("#theme", "system")
    assert page.evaluate(ground) == "rgb(9, 12, 17)"


def test_texts_of_times_and_prices(routed: RoutedVisit):
    page = routed.open()
    labels = """async () => {
        const { axisText } = await import("./common/format.js")
        return [0, 1, 2, 3].map((type) => axisText(1718703300, type))
    }"""
    assert page.evaluate(labels) == ["2024", "Jun 2024", "Jun 18", "09:35 AM"]
    numbers = """async () => {
        const { count, duration, figure, price, share, timesOf } = await import("./common/format.js")
        const hours = ["2024-06-18T09:30:00", "2024-06-18T10:30:00"]
        const days = ["2024-06-18T00:00:00", "2024-06-19T00:00:00"]
        const at = (zone) => hours.map((time) => time + zone)
        const times = [hours, days, at("Z"), at("+05:30")].map((texts) => timesOf(texts)(texts[0]))
        return [count(16384), price(67123.456, 2), share(0.6666), figure(0.123456), duration(75), ...times,
            timesOf(hours, "America/New_York")(hours[1])]
    }"""
    assert page.evaluate(numbers) == [
        "16,384", "67,123.46", "66.7 %", "0.123", "1 min",
        "Tue, Jun 18, 2024, 09:30 AM", "Tue, Jun 18, 2024", "Tue, Jun 18, 2024, 09:30 AM UTC",
        "Tue, Jun 18, 2024, 09:30 AM UTC+5:30", "Tue, Jun 18, 2024, 10:30 AM America/New_York",
    ]  # fmt: skip
    decimals = """async () => {
        const { decimalsOf } = await import("./common/format.js")
        return [52.145, 100, 1e-7, 1.5e-7, 1e21].map(decimalsOf)
    }"""
    assert page.evaluate(decimals) == [3, 0, 7, 8, 0]


def test_messages_name_nothing_that_the_page_lacks(routed: RoutedVisit):
    words = """async (texts) => texts.map((await import("./common/texts.js")).inWords)"""
    texts = [
        CannotInfer("2 bars are too few").message,
        "If that is wrong, give the future times or a longer lookback.",
        "1 window is few: ask for 30 or more to see differences.",
    ]
    assert routed.open().evaluate(words, texts) == [
        "the future timestamps cannot be inferred (2 bars are too few): read more bars",
        "If that is wrong, read more bars.",
        "1 past moment is few: ask for 30 or more to see differences.",
    ]
