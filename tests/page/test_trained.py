"""What the page shows of a model that has been trained: its comparison, and its promotion."""

from typing import Any

from kronos_client.contract.schemas import example
from tests.page.conftest import RoutedVisit
from tests.page.test_operation import PHONE, axe_problems
from tests.page.test_routed import end, problem

RESULT = example("finetune-result")


def trained(routed: RoutedVisit, **changed: Any) -> Any:
    routed.answers["finetunes/two/events"] = end(state="done", result=RESULT | changed)
    page = routed.open("#finetunes/two")
    page.wait_for_selector("#trained")
    return page


def test_a_trained_model_is_compared_with_its_start_and_a_simple_forecast(routed: RoutedVisit):
    evaluation = RESULT["evaluation"]
    models = evaluation["models"]
    start = models["finetuned"] | {"scores": models["finetuned"]["scores"] | {"crps_scaled": 2.87}}
    page = trained(routed, evaluation=evaluation | {"models": models | {"start": start}})
    assert " ".join(page.inner_text("#trained .verdict").split()) == (
        "Better than all simple forecasts: 7.7 % better than the baseline (95 % sure: +4.2 to +11.2 %)"
    )
    rows = [row.split("\t")[:3] for row in page.locator("#trained tbody tr").all_inner_texts()]
    assert rows == [
        ["crypto-hourly@3", "2.61", "49.0 %"],
        ["NeoQuasar/Kronos-small, before training", "2.87", "49.0 %"],
        ["Baseline", "2.83", "51.0 %"],
        ["Last close, with a spread", "2.98", "52.0 %"],
    ]
    drawn = page.get_attribute("#trained .bars", "aria-label")
    assert drawn.startswith(
        "crypto-hourly@3: +7.7 %, 95 % sure: +4.2 to +11.2 %; NeoQuasar/Kronos-small, before"
    )
    of_one = page.locator("#trained .group > .interval:first-child")
    is_clear = ["unclear" not in kind for kind in of_one.evaluate_all("all => all.map(one => one.className)")]
    assert is_clear == [*8 * [True], False]  # all bars, and the eight spans
    assert "On 64 moments that training has not seen: 256 bars read" in page.inner_text(
        "#trained .outcome > .help"
    )
    assert axe_problems(page, "#finetune") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_model_that_was_not_compared_has_no_table(routed: RoutedVisit):
    page = trained(routed, evaluation=None, verdict=[])
    assert page.locator("#trained table").count() == 0


def test_a_trained_version_is_promoted_or_refused_with_the_way_to_a_backtest(routed: RoutedVisit):
    refused = problem(409, detail="It must be no worse, but nothing says so", code="NOT_PROMOTED", details={})
    routed.expected_failures = 2
    routed.answers["models/crypto-hourly%403/promote"] = refused
    page = trained(routed)
    page.click(".promotion button")
    page.wait_for_selector(".promotion a")
    assert axe_problems(page, "#finetune") == []
    routed.answers["models/crypto-hourly%403/promote"] = problem(403, detail="No.", code="FORBIDDEN")
    page.click(".promotion button:has-text('without')")
    page.wait_for_selector(".promotion .bad:has-text('FORBIDDEN')")
    routed.answers["models/crypto-hourly%403/promote"] = {
        "id": "crypto-hourly@3",
        "before": None,
        "verdict": None,
    }
    page.click(".promotion button")
    page.wait_for_selector(".promotion .good")
    assert page.inner_text(".promotion .good") == "crypto-hourly means crypto-hourly@3 from now on."
    routed.answers["models/crypto-hourly%403/promote"] = refused
    routed.expected_failures = 1
    page.click(".promotion button")
    page.click(".promotion a")
    page.wait_for_selector("#backtest")
    assert page.input_value("#backtest-model") == "crypto-hourly@3"
    assert page.input_value("#backtest-other") == "crypto-hourly"
