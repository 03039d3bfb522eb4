"""What becomes of jobs and workers: a job's explanation, messages that nobody could read, load over time."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from kronos_client.contract.schemas import example
from kronos_client.core.job_facts import NEXT
from tests.page.conftest import RoutedVisit, go_to, wait_until
from tests.page.test_routed import CLOSES, DAYS, PRICES, RESULT, WORKER, end, problem, with_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.page.fake_api import Route

PHONE = {"width": 390, "height": 844}
FACTS: dict[str, Any] = {
    "id": "two",
    "where": "waiting",
    "num_before": 3,
    "left_s": 120.0,
    "attempts": [
        {"begun_at": 1767261600.0, "ended_at": 1767261660.0, "worker": "w@desk", "how": "process died"}
    ],
    "bars": None,
    "error": None,
    "is_cancel_requested": False,
    "dead_reason": None,
    "next": "Wait, or start another worker.",
}
LOOKBACK = {"name": "bars.csv", "timestamps": DAYS[:4], "columns": {**PRICES, "close": CLOSES[:4]}}
STOPPED = "No worker takes jobs from the queue cpu. Start one with: kronos worker"
DEAD = {
    "total": 1,
    "messages": [{"at": 1767261600.0, "reason": "not JSON", "queue": "cpu", "id": None, "num_bytes": 12345}],
}


def rows(page: "Page") -> list[list[str]]:
    """The cells of the table of workers that have a text."""
    texts = page.locator("#worker-rows tbody tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return [[" ".join(text.split()) for text in row if text] for row in texts]


def axe_problems(page: "Page", context: str) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [found["id"] for found in axe.run(page, context=context).response["violations"]]


def list_of_jobs(routed: RoutedVisit) -> "Page":
    page = routed.open()
    kept = [{"address": "forecasts/two", "title": "btc.csv, 48 bars", "at": 0, "state": "queued"}]
    page.evaluate("jobs => localStorage.setItem('kronos.jobs', jobs)", json.dumps(kept))
    routed.answers["forecasts/two"] = {"state": "queued"}
    page.goto("about:blank")
    return routed.open("#/jobs")


def test_a_job_is_explained_below_its_row_until_asked_again(routed: RoutedVisit):
    routed.answers["jobs/two/explanation"] = FACTS
    page = list_of_jobs(routed)
    chips = page.locator("#job-counts button:visible").all_inner_texts()
    assert chips == ["All 1", "Running 0", "Waiting 1", "Done 0", "Failed 0"]
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation p")
    text = page.inner_text(".explanation")
    assert text.startswith("Waiting: 3 jobs come first, starts in about 2 min.")
    assert "another worker" not in text
    attempt, when = page.locator(".timeline li > *").all_inner_texts()
    assert attempt == "Attempt 1: process died"
    assert when.endswith(", by w@desk")
    assert "Id two" in text
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert axe_problems(page, "#jobs") == []
    page.keyboard.press("Enter")
    assert page.locator(".explanation").count() == 0
    assert page.evaluate("document.activeElement.ariaExpanded") == "false"


def test_a_row_says_why_a_job_failed_how_far_one_is_and_opens_a_result(routed: RoutedVisit):
    failure = {"code": "HIGH_BELOW_LOW", "message": "High is below low.", "details": {"row": 212}}
    states: dict[str, dict[str, Any]] = {
        "forecasts/one": {"state": "done"},
        "forecasts/two": {"state": "running", "bars_done": 3, "bars_total": 8, "seconds_left": 7},
        "backtests/three": {"state": "running", "progress": {"forecasts_done": 9, "forecasts_total": 10}},
        "finetunes/four": {"state": "failed", "error": failure},
        "finetunes/five": {"state": "running", "progress": {"step": None, "num_steps": 7}},
        "forecasts/six": {"state": "queued", "jobs_before": 2, "seconds_left": 40},
        "forecasts/seven": {"state": "queued", "waiting": STOPPED},
        "forecasts/eight": {"state": "cancelled"},
    }
    page = routed.open()
    kept = [{"address": address, "title": address, "at": 0, "state": "queued"} for address in states]
    page.evaluate("jobs => localStorage.setItem('kronos.jobs', jobs)", json.dumps(kept))
    routed.answers |= states
    page.goto("about:blank")
    page = routed.open("#/jobs")
    for shown in (".state-failed", ".state-done", ".state-cancelled", ".note >> text=No worker is running"):
        page.wait_for_selector(f"#recent-jobs {shown}")
    wait_until(page, "() => document.querySelectorAll('.state-running').length === 3")
    assert page.locator("#recent-jobs .note").all_inner_texts() == [
        "", "37 % done, about 7 s left", "90 % done",
        "High is below low.\n\nCorrect row 212, then choose the file again.", "0 % done",
        "Waiting: 2 jobs come first, starts in about 40 s",
        "No worker is running. This starts by itself once the service's operator starts one: kronos worker",
        "",
    ]  # fmt: skip
    steps = page.locator("#recent-jobs .steps").all_inner_texts()
    assert [text.replace("⋯", "") for text in steps] == [
        "Open result", "Follow", "Follow", "Correct it", "Follow", "Follow", "Follow", "Open",
    ]  # fmt: skip
    chips = page.locator("#job-counts button:visible").all_inner_texts()
    assert chips == ["All 8", "Running 3", "Waiting 2", "Done 1", "Failed 1", "Cancelled 1"]
    page.click("#job-counts >> text=Waiting")
    waiting = page.locator("#recent-jobs td:first-child").all_inner_texts()
    assert waiting == ["forecasts/six", "forecasts/seven"]
    assert page.get_attribute("#job-counts [data-filter=queued]", "aria-pressed") == "true"
    page.click("#job-counts >> text=All")
    assert axe_problems(page, "#jobs") == []
    page.goto("about:blank")
    page = routed.open("#/jobs")  # which a job that has ended is not asked for again
    assert page.inner_text("tr:has(.state-failed) .note > :first-child") == "High is below low."
    page.click("#recent-jobs >> text=Correct it")
    page.wait_for_selector("#finetune-form")
    assert page.evaluate("location.hash") == "#finetunes/four"
    page.goto(f"{routed.url}#/jobs")
    page.click("#recent-jobs >> text=Open result")
    wait_until(page, "() => location.hash === '#forecasts/one'")


def test_a_job_that_goes_on_is_cancelled_from_its_row_and_one_that_ended_is_removed(routed: RoutedVisit):
    page = list_of_jobs(routed)

    def cancel(route: "Route") -> None:
        if route.request.method == "GET":  # the list is read again meanwhile
            return route.fulfill(json={"state": "queued"})
        routed.answers["forecasts/two"] = {"state": "cancelled"}
        return route.fulfill(json={"state": "cancelled"})

    page.wait_for_selector("#recent-jobs .state-queued")
    routed.answers["forecasts/two"] = cancel
    page.click("#recent-jobs .more")
    page.click("#job-menu >> text=Cancel")
    page.wait_for_selector("#recent-jobs .state-cancelled")
    assert [request.method for request in routed.requests].count("DELETE") == 1
    page.focus("#recent-jobs .more")
    page.keyboard.press("Enter")
    assert axe_problems(page, "#jobs") == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Remove from the list"
    page.keyboard.press("Enter")
    page.wait_for_selector("#no-jobs")


def test_what_is_taken_off_the_list_comes_back_with_all_that_was_kept(routed: RoutedVisit):
    routed.answers |= {
        "forecasts": {"id": "one", "queue": "cpu"},
        "forecasts/one/events": end(state="done", result=RESULT),
    }
    page = with_file(routed)
    page.click("#run")
    page.wait_for_selector("#download-json")
    go_to(page, "jobs")
    kept = """() => JSON.stringify(
        Object.entries(localStorage).filter(([name]) => /job|candles/.test(name)).sort())"""
    before = page.evaluate(kept)
    assert "candles.forecasts/one" in before
    page.click("#forget-jobs")
    page.wait_for_selector("#no-jobs")
    assert page.evaluate(kept) == "[]"
    assert axe_problems(page, "#jobs") == []
    page.keyboard.press("Enter")  # the way back has the focus
    page.wait_for_selector("#recent-jobs .state-done")
    assert page.evaluate(kept) == before
    assert page.locator("#discarded").is_hidden()


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("forecast", "Up 9.5 % by Wed, Mar 6, 80 % range 12.50 to 13.00"),
        ("backtest", "NeoQuasar/Kronos-small: no clear advantage; crypto-hourly@3: no clear advantage"),
        ("finetune", "crypto-hourly@3: 7.7 % better than the baseline"),
    ],
)
def test_the_row_of_a_job_that_is_done_says_what_came_of_it(routed: RoutedVisit, kind: str, outcome: str):
    address = f"{kind}s/two"
    result = RESULT if kind == "forecast" else example(f"{kind}-result")
    routed.answers[address] = {"state": "done", "result": result}
    page = routed.open()
    kept = {
        "kronos.jobs": [{"address": address, "title": "two", "at": 0, "state": "queued"}],
        f"kronos.candles.{address}": {"lookback": LOOKBACK, "actual": LOOKBACK},
    }
    for name, value in kept.items():
        page.evaluate("([name, text]) => localStorage.setItem(name, text)", [name, json.dumps(value)])
    page.goto("about:blank")
    page = routed.open("#/jobs")
    page.wait_for_selector("#recent-jobs .state-done")
    assert " ".join(page.inner_text("#recent-jobs .note").split()) == outcome


@pytest.mark.parametrize(
    ("error", "step"),
    [
        ({"code": "NOT_FINITE", "field": "series.0.high", "details": {"row": 7}}, "Correct row 7,"),
        ({"code": "TRAINING_DATA_INVALID", "field": None}, "Correct the file, then choose it again."),
        ({"code": "BAD_VALUE", "field": "sampling.top_p"}, "Change it in the form, then send it."),
        ({"code": "MODEL_CAPACITY", "field": "model"}, ""),
        ({"code": "WORKER_LOST", "field": None}, ""),
    ],
    ids=lambda value: value["code"] if isinstance(value, dict) else "",
)
def test_only_an_error_of_the_input_has_a_next_step(routed: RoutedVisit, error: dict[str, Any], step: str):
    page = routed.open()
    of = "async (error) => (await import('./common/texts.js')).nextStep(error)"
    assert page.evaluate(of, error).startswith(step)
    assert bool(page.evaluate(of, error)) is bool(step)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_came_to_nothing_is_sent_again_from_its_row(routed: RoutedVisit, state: str):
    error = {"code": "WORKER_LOST", "message": "Its worker ended."}
    routed.answers |= {
        "forecasts": {"id": "one", "queue": "cpu"},
        "forecasts/one/events": end(state=state, error=error),
    }
    page = with_file(routed)
    page.click("#run")
    page.wait_for_selector("#job-problem")
    go_to(page, "jobs")
    routed.answers |= {
        "forecasts": {"id": "two", "queue": "cpu"},
        "forecasts/two/events": end(state="done", result=RESULT),
    }
    page.click("#recent-jobs >> text=Send again")
    page.wait_for_selector("#download-json")
    assert page.evaluate("location.hash") == "#forecasts/two"
    first, second = (
        request
        for request in routed.requests
        if request.method == "POST" and request.url.endswith("forecasts")
    )
    assert first.post_data == second.post_data
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert page.get_attribute("#chart", "aria-label").startswith("Candles of bars.csv, 4 bars")
    go_to(page, "jobs")
    assert page.locator("#recent-jobs .state").all_inner_texts() == ["done", state]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"where": "held", "bars": [14, 24], "left_s": 7, "next": NEXT["held"]},
         "A worker is computing it, 14 of 24 bars are done, about 7 s left."),
        ({"where": "held", "next": NEXT["vanished"]}, f"A worker is computing it. {NEXT['vanished']}"),
        ({"where": "ended", "error": ["LOST", "Gone."], "next": NEXT["failed"]}, "It has ended. It failed: "),
        ({"where": "gone", "next": NEXT["gone"]}, f"No worker will get it any more. {NEXT['gone']}"),
    ],
    ids=["held", "vanished", "failed", "gone"],
)  # fmt: skip
def test_an_explanation_is_a_paragraph_without_commands(
    routed: RoutedVisit, facts: dict[str, Any], words: str
):
    routed.answers["jobs/two/explanation"] = FACTS | {"num_before": None, "left_s": None} | facts
    page = list_of_jobs(routed)
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation p")
    text = page.inner_text(".explanation p >> nth=0")
    assert text.startswith(words)
    assert "kronos " not in text


def test_an_explanation_stays_as_it_is_when_the_list_changes(routed: RoutedVisit):
    routed.answers["jobs/two/explanation"] = FACTS
    page = list_of_jobs(routed)
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation p")
    page.evaluate("document.querySelector('.explanation').kept = true")
    routed.answers["forecasts/two"] = {"state": "running"}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(".state-running")
    assert page.evaluate("document.querySelector('.explanation').kept") is True
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert sum("explanation" in request.url for request in routed.requests) == 1


def test_a_job_that_the_service_does_not_know_says_so(routed: RoutedVisit):
    routed.expected_failures = 1
    routed.answers["jobs/two/explanation"] = problem(
        404, detail="Nothing is known about this job.", code="LOST"
    )
    page = list_of_jobs(routed)
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation td:has-text('The service does not know this job')")


def test_the_list_of_jobs_fits_a_phone(routed: RoutedVisit):
    routed.answers["jobs/two/explanation"] = FACTS
    page = list_of_jobs(routed)
    page.set_viewport_size(PHONE)
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation p")
    width = page.evaluate("document.querySelector('#recent .scroll').scrollWidth")
    assert width <= page.evaluate("document.querySelector('#recent .scroll').clientWidth")


def test_dead_messages_are_shown_with_their_reasons(routed: RoutedVisit):
    routed.answers["dead-messages"] = DEAD
    page = routed.open("#/workers")
    page.wait_for_selector("#dead")
    assert page.inner_text("#dead-title") == "1 message that no worker could read"
    assert page.inner_text("#dead-messages tbody td:nth-child(2)") == "not JSON"
    assert axe_problems(page, "#workers") == []


def test_a_key_that_may_not_see_dead_messages_asks_once_and_another_asks_again(routed: RoutedVisit):
    routed.expected_failures = 1
    routed.answers["dead-messages"] = problem(403, detail="This key may not.", code="FORBIDDEN")
    page = routed.open("#/workers")
    wait_until(
        page, "() => performance.getEntriesByType('resource').filter(e => e.name.includes('dead')).length"
    )
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#no-workers")
    assert page.locator("#dead").is_hidden()
    assert page.locator("#dead-problem").is_hidden()
    assert sum("dead-messages" in request.url for request in routed.requests) == 1
    routed.answers["dead-messages"] = DEAD
    page.evaluate("sessionStorage.setItem('kronos.api-key', 'another')")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#dead")


def test_another_error_of_dead_messages_is_shown_until_it_is_over(routed: RoutedVisit):
    routed.expected_failures = 1
    routed.answers["dead-messages"] = problem(503, detail="Redis is away.", code="BROKER_UNREACHABLE")
    page = routed.open("#/workers")
    page.wait_for_selector("#dead-problem")
    assert page.inner_text("#dead-problem").endswith("(BROKER_UNREACHABLE)")
    assert axe_problems(page, "#workers") == []
    routed.answers["dead-messages"] = {"total": 0, "messages": []}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#dead-problem", state="hidden")


def test_workers_stand_in_pools_with_waiting_jobs_load_and_speed_over_time(routed: RoutedVisit):
    worker = WORKER | {"slots": 64, "sequences_running": 16, "sequences_waiting": 0, "bars_per_s": 1200}
    second = worker | {"node": "second@test", "sequences_running": 32, "bars_per_s": 300}
    trainer = WORKER | {"node": "t@test", "role": "finetune", "queue": "cpu.finetune", "training": None}
    lengths = {"high": 1, "normal": 2, "low": 1200}
    queues = {
        "cpu": {"ready": 2, "lengths": lengths},
        "gpu": {"ready": 0, "lengths": {"high": 0, "normal": 0, "low": 0}},
        "cpu.finetune": {"ready": 1, "lengths": {"high": 0, "normal": 0, "low": 0}},
    }
    routed.answers |= {
        "workers": {"workers": [worker, trainer, second], "queues": queues},
        "dead-messages": {"total": 0, "messages": []},
    }
    page = routed.open("#/workers")
    page.wait_for_selector("#worker-rows .worker")
    assert page.locator("#fleet .sparkline").count() == 0
    assert page.locator("#fleet-facts dd").all_inner_texts() == [
        "1,203", "1 urgent, 2 normal, 1,200 can wait", "3 of 3", "2 at work", "38 %", "of what fits at once",
        "1,500 bars/s", "forecast by all workers",
    ]  # fmt: skip
    of_cpu = ["processor (CPU)"]
    assert rows(page) == [
        ["Forecasts, processor", "2 of 2 ready", "38 %", "1,500 bars/s", "1,203 jobs"],
        ["worker@test", *of_cpu, "Busy", "25 %", "1,200 bars/s", "0 paths", "kronos-tiny", "0", "0", "1 s"],
        ["second@test", *of_cpu, "Busy", "50 %", "300 bars/s", "0 paths", "kronos-tiny", "0", "0", "1 s"],
        ["Training and backtests, processor", "1 of 1 ready", "0 %", "0 jobs"],
        ["t@test", *of_cpu, "Idle", "0 %", "training", "0", "0", "1 s"],
    ]
    assert page.inner_text("#readiness") == "3 of 3 workers ready: processor"
    full = [worker | {"sequences_running": 64}, trainer, second]
    routed.answers["workers"] = {"workers": full, "queues": queues}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#fleet .sparkline")
    labels = page.locator("#worker-rows .sparkline").evaluate_all(
        "lines => lines.map(line => line.getAttribute('aria-label'))"
    )
    load, speed = "load since this page was opened", "speed since this page was opened"
    assert labels == [*3 * [load, speed], load, load]

    def heights(line: int) -> list[float]:
        points = page.get_attribute(f"#worker-rows tr:nth-child({line}) .load polyline", "points")
        return [float(point.split(",")[1]) for point in (points or "").split()]

    busier, same = heights(2), heights(3)
    assert busier[-1] < busier[0]  # more load is higher
    assert same == [14, 14], "half of the scale that all lines have"
    assert axe_problems(page, "#workers") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator("#fleet .scroll").evaluate("one => one.scrollWidth - one.clientWidth") == 0


def test_workers_have_a_verdict_of_what_is_missing(routed_alone: RoutedVisit):
    def verdict(worker: dict[str, Any], num_waiting: int, num_done: int = 0) -> str:
        lengths = {"high": 0, "normal": num_waiting, "low": 0}
        worker = WORKER | {"slots": 64, "sequences_running": 32, "jobs_done": num_done} | worker
        queues = {"cpu": {"ready": int(worker["state"] == "ready"), "lengths": lengths}}
        routed_alone.answers["workers"] = {"workers": [worker], "queues": queues}
        page.clock.set_fixed_time(100 + num_done)
        before = page.inner_text("#fleet-verdict")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wait_until(page, "before => document.querySelector('#fleet-verdict').innerText !== before", before)
        return page.inner_text("#fleet-verdict")

    page = routed_alone.open("#/workers")
    page.wait_for_selector("#no-workers")
    assert verdict({}, 0) == "Enough workers: 50 % of the capacity is free, and nothing waits."
    assert verdict({}, 2).endswith("50 % of the capacity is free, and what waits begins soon.")
    full = {"sequences_running": 64}
    assert verdict(full, 9) == "More work than workers: 9 jobs wait. Start another one: kronos worker"
    assert verdict(full, 40, 20) == (  # one job a second
        "More work than workers: 40 jobs wait about 40 s. Start another one: kronos worker"
    )
    loading = {"state": "loading"}
    assert verdict(loading, 0) == "The workers still load their models: jobs wait until one is ready."
    assert verdict(loading, 1, 30) == (
        "No worker is ready (Forecasts, processor): 1 job waits. Start one: kronos worker"
    )


def dot_colour(page: "Page", selector: str) -> str:
    colour = "selector => getComputedStyle(document.querySelector(selector), '::before').backgroundColor"
    return str(page.evaluate(colour, selector))


def of_theme(page: "Page", name: str) -> str:
    return str(page.evaluate("async (name) => (await import('./charts/colours.js')).colour(name)", name))


@pytest.mark.parametrize(
    ("changed", "colour", "state"),
    [
        ({"sequences_running": 0}, "control", "Idle"),
        ({"sequences_running": 9}, "up", "Busy"),
        ({"sequences_running": 64}, "warning-line", "Full"),
        ({"state": "loading"}, "control", "Loading its model"),
        ({"state": "draining"}, "warning-line", "Finishing, then it stops"),
        ({"problem": "Its disk is full."}, "down", "Not ready"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_what_works_is_green_and_only_what_needs_somebody_is_yellow_or_red(
    routed: RoutedVisit, changed: dict[str, Any], colour: str, state: str
):
    worker = WORKER | {"slots": 64, "bars_per_s": 1200} | changed
    routed.answers["workers"] = {"workers": [worker], "queues": {}}
    page = routed.open("#/workers")
    dot = ".worker .state .dot"
    page.wait_for_selector(dot)
    assert page.inner_text(dot) == state
    assert page.inner_text(".pool .state").endswith(", full") is (state == "Full")
    assert dot_colour(page, dot) == of_theme(page, colour)


@pytest.mark.parametrize(
    ("num_ready", "num_waiting", "colour"),
    [(1, 0, "up"), (1, 9, "up"), (0, 0, "warning-line"), (0, 1, "down")],
)
def test_a_pool_is_green_while_it_needs_nothing(
    routed: RoutedVisit, num_ready: int, num_waiting: int, colour: str
):
    lengths = {"high": 0, "normal": num_waiting, "low": 0}
    worker = WORKER | {"slots": 64, "sequences_running": 0, "state": "ready" if num_ready else "loading"}
    queues = {"cpu": {"ready": num_ready, "lengths": lengths}}
    routed.answers["workers"] = {"workers": [worker], "queues": queues}
    page = routed.open("#/workers")
    page.wait_for_selector(".pool .dot")
    assert dot_colour(page, ".pool .dot") == of_theme(page, colour)
    assert dot_colour(page, "#readiness") == of_theme(page, "up" if num_ready else "warning-line")
    assert page.locator("#fleet-facts .warn").count() == 1 - num_ready


@pytest.mark.parametrize(
    ("state", "colour"),
    [("running", "up"), ("done", "up"), ("queued", "control"), ("cancelled", "control"), ("failed", "down")],
)
def test_a_job_has_the_colour_of_what_it_needs(routed: RoutedVisit, state: str, colour: str):
    page = routed.page
    routed.answers["forecasts/one"] = {"state": state}
    job = {"address": "forecasts/one", "title": "one", "at": 0, "state": state}
    page.evaluate(f"localStorage.setItem('kronos.jobs', '{json.dumps([job])}')")
    routed.open("#/jobs")
    page.wait_for_selector("#recent-jobs .state")
    assert dot_colour(page, "#recent-jobs .state") == of_theme(page, colour)


def test_nothing_is_asked_of_dead_messages_in_other_views(routed: RoutedVisit):
    page = routed.open("#/jobs")
    page.wait_for_selector("#no-jobs")
    assert not [request for request in routed.requests if "dead-messages" in request.url]
    routed.answers["dead-messages"] = DEAD
    go_to(page, "workers")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#dead")
