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
NUM_COLOURS: Final = 128
SETTLED_MS: Final = 600
SENT_MS: Final = 1_767_261_600_000


def answers() -> dict[str, Any]:
    """What the API of the pictures answers."""
    worker = example("worker-status")
    trainer = worker | {"node": "trainer@desk", "role": "finetune", "queue": "cpu.finetune", "training": None}
    lengths = {"high": 0, "normal": 3, "low": 12}
    queues = {name: {"ready": 1, "lengths": lengths} for name in ("cpu", "gpu", "cpu.finetune")}
    models = [{"id": "kronos-tiny", "lookback": 416, "min_lookback": 32, "pred_len": 48}, {"id": "desk@3"}]
    return {
        "workers": {"workers": [worker, trainer], "queues": queues},
        "models": {"models": models},
        "dead-messages": {"total": 1, "messages": [DEAD]},
        "datasets": {"datasets": [{"name": "btc-hourly.parquet"}, {"name": "eurusd.csv"}]},
        "backtests/one/events": end(state="done", result=example("backtest-result")),
        "finetunes/two": {"state": "running"},
        "finetunes/two/events": end(state="done", result=example("finetune-result")),
    }


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
