"""Take the pictures of Flower for the documentation: ``python -m tests.page.flower_screens``.

It runs ``kronos up`` with two workers, and sends jobs that end well, late, cancelled and refused.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_model.bars.synthetic import candles
from tests.integration.conftest import ROOT
from tests.page.conftest import CHROMIUM
from tests.ports import free_port
from tests.waiting import WAIT_S, await_true

FOLDER: Final = ROOT / "docs" / "images"
WIDTH: Final = 1500
NUM_COLOURS: Final = 64
BARS: Final = candles(seed=1, bars=64).as_dict()
MARKETS: Final = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "EURUSD", "AAPL", "MSFT")


def send_jobs(url: str) -> str:
    """Send jobs and wait for them. Returns the id of one that missed its deadline."""
    with ForecastClient(url) as client:
        await_true(lambda: sum(worker.is_ready for worker in client.workers()) == 2, "both workers are ready")
        for market in MARKETS:
            client.forecast(BARS, pred_len=24, series_ids=[market], timeout_s=WAIT_S)
        everything = client.submit([BARS] * len(MARKETS), pred_len=12, series_ids=list(MARKETS), device="cpu")
        everything.wait(WAIT_S)
        large = {"pred_len": 300, "sample_count": 250, "model": "kronos-tiny", "device": "cpu"}
        late = client.submit(BARS, series_ids=["LATE"], deadline_s=1, **large)
        cancelled = client.submit(BARS, series_ids=["CANCELLED"], **large)
        next(state for state in cancelled.progress() if state.bars_total)  # it runs
        cancelled.cancel()
        refused = client.submit(BARS, pred_len=24, series_ids=["REFUSED"], model="other-model")
        for handle in (late, cancelled, refused):
            with suppress(JobError):
                handle.wait(WAIT_S)
        return late.id


def shoot(page: Page, name: str) -> None:
    """Take one picture, with few colours."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    small = picture.convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE)
    small.save(FOLDER / f"flower-{name}.png", optimize=True)


def main() -> None:
    """Replace the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [
            sys.executable,
            "-m",
            "kronos_cli",
            "up",
            "--workers",
            "2",
            "--no-finetune",
            "--no-api",
            "--json",
        ]
        ports = ["--redis-port", str(free_port()), "--flower-port", str(free_port())]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        up = subprocess.Popen(
            [*command, *ports], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert up.stdout is not None
            found = json.loads(up.stdout.readline())
            job_id = send_jobs(found["redis_url"])
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            login = {"username": found["flower_user"], "password": found["flower_password"]}
            page = browser.new_context(http_credentials=login).new_page()
            pictures = (
                ("workers", "workers", 620),
                ("tasks", "tasks", 760),
                ("task", f"task/{job_id}", 950),
            )
            for name, address, height in pictures:
                page.set_viewport_size({"width": WIDTH, "height": height})
                page.goto(f"{found['flower_url']}/{address}", wait_until="networkidle")
                shoot(page, name)
            browser.close()
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(WAIT_S)


if __name__ == "__main__":
    main()
