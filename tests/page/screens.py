"""Take the pictures of every view of the page for the documentation: ``python -m tests.page.screens``.

The answers are examples of the contract, so that the pictures change with the page alone.
"""

import io
import json
import shutil
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from kronos_client.contract.schemas import example
from tests.integration.conftest import ROOT
from tests.page.conftest import CHROMIUM, RoutedVisit
from tests.page.test_routed import end

FOLDER: Final = ROOT / "docs" / "images" / "page"
SIZES: Final = {1440: 900, 1024: 768, 390: 844}
THEMES: Final = ("light", "dark")
ADDRESSES: Final = {
    "forecast": "#/forecast",
    "backtest": "#backtests/one",
    "finetune": "#finetunes/two",
    "workers": "#/workers",
    "jobs": "#/jobs",
}
DEAD: Final = {
    "at": 1_767_261_600,
    "reason": "it names no task",
    "queue": "cpu",
    "id": None,
    "num_bytes": 184,
}
EXPLANATION: Final = {
    "id": "three",
    "where": "ended",
    "num_before": None,
    "left_s": None,
    "attempts": [
        {
            "begun_at": 1_767_261_600,
            "ended_at": 1_767_261_603,
            "worker": "celery@desk",
            "how": "process died",
        },
        {"begun_at": 1_767_261_640, "ended_at": 1_767_261_642, "worker": "celery@lab", "how": None},
    ],
    "bars": None,
    "error": None,
    "is_cancel_requested": False,
    "dead_reason": None,
    "next": "Read its result.",
}
LOADS: Final = (0.2, 0.5, 0.4, 0.9, 0.7, 0.8)
READ_AGAIN: Final = "document.dispatchEvent(new Event('visibilitychange'))"
NUM_COLOURS: Final = 128
SETTLED_MS: Final = 600
SENT_MS: Final = 1_767_261_600_000


def answers() -> dict[str, Any]:
    """What the API of the pictures answers."""
    worker = example("worker-status")
    card = {"device": "cuda:0", "device_description": {"name": "NVIDIA H100"}, "queue": "gpu"}
    gpus = [worker | card | {"node": f"celery@gpu-{number}", "slots": 512} for number in (1, 2)]
    trainer = worker | {"node": "trainer@desk", "role": "finetune", "queue": "cpu.finetune", "training": None}
    lengths = {"high": 0, "normal": 3, "low": 12}
    queues = {
        name: {"ready": ready, "lengths": lengths}
        for name, ready in {"gpu": 2, "cpu": 1, "cpu.finetune": 1}.items()
    }
    models = [{"id": "kronos-tiny", "lookback": 416, "min_lookback": 32, "pred_len": 48}, {"id": "desk@3"}]
    return {
        "workers": {"workers": [*gpus, worker, trainer], "queues": queues},
        "models": {"models": models},
        "dead-messages": {"total": 1, "messages": [DEAD]},
        "datasets": {"datasets": [{"name": "btc-hourly.parquet"}, {"name": "eurusd.csv"}]},
        "backtests/one/events": end(state="done", result=tested()),
        "finetunes/two": {"state": "running"},
        "jobs/three/explanation": EXPLANATION,
        "finetunes/two/events": end(state="done", result=example("finetune-result")),
    }


def tested() -> dict[str, Any]:
    """The example of a backtest, with models that differ and more of the worst windows."""
    result = example("backtest-result")
    *_, second = result["report"]["models"].values()
    second["scores"] |= {"crps_scaled": 1.07, "coverage": {"0.5": 0.52, "0.8": 0.81, "0.9": 0.91}}
    second["scores"]["pit"].reverse()
    for values in (second["by_horizon"]["crps_scaled"], second["by_horizon"]["coverage"]["0.8"]):
        values[:] = [0.94 * value for value in values]
    *_, held = result["report"]["portfolio"]["models"].values()
    held["equity"] = [1 + 0.6 * (value - 1) + 0.01 * place for place, value in enumerate(held["equity"])]
    (worst,) = result["report"]["worst_windows"]
    result["report"]["worst_windows"] = [worst | {"error": worst["error"] - less} for less in (0, 0.9, 1.3)]
    return result


def jobs() -> str:
    """The list of jobs that the browser of the pictures remembers."""
    sent = [
        ("forecasts/three", "btc-hourly.parquet, 48 bars", "done"),
        ("backtests/one", "Backtest on btc-hourly.parquet", "done"),
        ("finetunes/two", "Training of desk on btc-hourly.parquet", "running"),
    ]
    kept = [
        {"address": address, "title": title, "at": SENT_MS, "state": state} for address, title, state in sent
    ]
    return f"localStorage.setItem('kronos.jobs', {json.dumps(json.dumps(kept))})"


def read_loads(visit: RoutedVisit) -> None:
    """Let the page read the workers several times, with more and less to do."""
    workers = visit.answers["workers"]["workers"]
    for place in range(2 * len(LOADS)):
        loads = [LOADS[(place + number) % len(LOADS)] for number in range(len(workers))]
        visit.answers["workers"] |= {
            "workers": [
                worker | {"sequences_running": int(load * worker["slots"]), "bars_per_s": 2000 * load}
                if worker["role"] == "forecast"
                else worker
                for worker, load in zip(workers, loads, strict=True)
            ]
        }
        with visit.page.expect_response("**/v1/workers"):
            visit.page.evaluate(READ_AGAIN)


def shoot(browser: Browser, width: int, theme: str) -> None:
    """Take the picture of each view in one size and theme."""
    size = {"width": width, "height": SIZES[width]}
    context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    visit = RoutedVisit(context)
    visit.answers = answers()
    visit.page.goto(visit.url)
    for view, address in ADDRESSES.items():
        visit.page.evaluate(jobs())
        visit.page.goto(visit.url + address)
        visit.page.reload()
        if view == "workers":
            read_loads(visit)
        if view == "jobs":
            visit.page.click("#recent-jobs button[aria-expanded]")
        visit.page.wait_for_timeout(SETTLED_MS)
        picture = Image.open(io.BytesIO(visit.page.screenshot(full_page=False)))
        small = picture.convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE)
        small.save(FOLDER / f"{view}-{width}-{theme}.png", optimize=True)
    context.close()
    assert visit.errors == [], visit.errors


def main() -> None:
    """Replace the pictures."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in SIZES:
            for theme in THEMES:
                shoot(browser, width, theme)
        browser.close()


if __name__ == "__main__":
    main()
