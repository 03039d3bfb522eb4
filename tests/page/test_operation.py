"""What becomes of jobs and workers: a job's explanation, messages that nobody could read, load over time."""

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from kronos_client.core.job_facts import NEXT
from tests.page.conftest import RoutedVisit, go_to, wait_until
from tests.page.test_routed import WORKER, problem

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
DEAD = {
    "total": 1,
    "messages": [{"at": 1767261600.0, "reason": "not JSON", "queue": "cpu", "id": None, "num_bytes": 12345}],
}


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
    assert page.locator("#job-counts dd").all_inner_texts() == ["0", "1", "0", "0"]
    page.click("#recent-jobs button[aria-expanded]")
    page.wait_for_selector(".explanation p")
    text = page.inner_text(".explanation")
    assert text.startswith("Waiting: 3 jobs come first, starts in about 2 min.")
    assert "another worker" not in text
    attempt, when = page.locator(".timeline li > *").all_inner_texts()
    assert attempt == "Attempt 1: process died"
    assert when.endswith(", by w@desk")
    assert text.endswith("Id two")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert axe_problems(page, "#jobs") == []
    page.keyboard.press("Enter")
    assert page.locator(".explanation").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "Explain"


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
    page.wait_for_selector("#pools p")
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
    page.wait_for_selector(".pool article")
    assert page.locator(".sparkline").count() == 0
    pools = page.locator(".pool")
    assert pools.locator("h3").all_inner_texts() == [
        "Forecasts, processor",
        "Training and backtests, processor",
    ]
    assert pools.first.locator(".node").all_inner_texts() == ["worker@test", "second@test"]
    assert pools.first.locator(".facts dd").all_inner_texts() == [
        "1,203", "1 urgent, 2 normal, 1,200 can wait", "2 of 2", "37.5 %", "1,500 bars/s",
    ]  # fmt: skip
    assert pools.last.locator(".facts dd").all_inner_texts()[-1] == "0 of 1 at work"
    assert page.inner_text("#readiness") == "3 of 3 workers ready: processor"
    assert page.locator(".pool .pill").all_inner_texts() == ["Busy 25 %", "Busy 50 %", "Idle"]
    cards = page.locator(".card:visible").evaluate_all("all => all.map(card => card.offsetWidth)")
    assert len(cards) == 3
    assert len(set(cards)) == 1  # a card alone is as wide as one of two
    full = [worker | {"sequences_running": 64}, trainer, second]
    routed.answers["workers"] = {"workers": full, "queues": queues}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(".sparkline")
    labels = pools.first.locator(".sparkline").evaluate_all(
        "lines => lines.map(line => line.getAttribute('aria-label'))"
    )
    assert labels == 3 * ["load since this page was opened", "speed since this page was opened"]
    points = page.get_attribute(".sparkline polyline", "points").split()
    notes = pools.first.locator(".with-line small").all_inner_texts()
    assert re.fullmatch(r"last [\d.]+ m?s, peak 75 %", notes[0]), notes
    assert re.fullmatch(r"last [\d.]+ m?s, peak 1,500 bars/s", notes[1]), notes
    heights = [float(point.split(",")[1]) for point in points]
    assert heights[-1] < heights[0]  # more load is higher
    assert axe_problems(page, "#workers") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_nothing_is_asked_of_dead_messages_in_other_views(routed: RoutedVisit):
    page = routed.open("#/jobs")
    page.wait_for_selector("#no-jobs")
    assert not [request for request in routed.requests if "dead-messages" in request.url]
    routed.answers["dead-messages"] = DEAD
    go_to(page, "workers")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#dead")
