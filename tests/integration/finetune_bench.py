"""Finetuning workers whose training processes train nothing: see ``fake_trainer.py``."""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kronos_client.client import FinetuneHandle, ForecastClient
from tests.waiting import await_true

if TYPE_CHECKING:
    from tests.integration.conftest import StartWorker, WorkerUnderTest

STEP_S = 0.05
LONG = 2000
"""Steps of a training that ends by ``hurry``: by itself only after 100 s."""
VISIBILITY_TIMEOUT_S = 3
FAKE = ("--include", "tests.integration.fake_training")


class Bench:
    """Folders of models and candles, a fake trainer's log, and workers that share them."""

    def __init__(self, folder: Path, start: "StartWorker", client: ForecastClient) -> None:
        self.models, self.data, self.log = folder / "models", folder / "data", folder / "trainer.log"
        self.data.mkdir()
        (self.data / "candles.csv").write_text("timestamps,open,high,low,close\n")
        self.client = client
        self.workers: list[WorkerUnderTest] = []
        self._start = start

    @property
    def settings(self) -> dict[str, str]:
        return {
            "KRONOS_ROLE": "finetune",
            "KRONOS_MODEL_FOLDER": str(self.models),
            "KRONOS_DATA_FOLDER": str(self.data),
            "KRONOS_VISIBILITY_TIMEOUT_S": str(VISIBILITY_TIMEOUT_S),
            "KRONOS_FINETUNE_GRACE_S": "3",
            "FAKE_LOG": str(self.log),
            "FAKE_STEP_S": str(STEP_S),
            "WORLD_SIZE": "2",
        }

    def worker(self, *arguments: str, **settings: str) -> "WorkerUnderTest":
        worker = self._start(*FAKE, "--loglevel", "INFO", *arguments, **self.settings | settings)
        self.workers.append(worker)
        return worker

    def submit(
        self, num_steps: int, *, seed: int = 0, data: Any = "candles.csv", **options: Any
    ) -> FinetuneHandle:
        config = {"start": {"model": "kronos-tiny"}, "predictor": {"epochs": num_steps}, "seed": seed}
        return self.client.finetune(config, name="mine", data=data, **options)

    def hurry(self) -> None:
        """Make all further steps take no time."""
        self.log.with_name("hurry").touch()

    def lines(self, what: str) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry for entry in entries if entry["what"] == what]

    def await_step(self, step: int) -> int:
        """Wait until training has reached this step. Returns the process id."""
        await_true(lambda: any(line["step"] >= step for line in self.lines("step")))
        return int(self.lines("step")[-1]["pid"])

    def assert_trained_once(self, num_steps: int) -> None:
        """Check that each step was trained, and that two processes never trained at once."""
        steps = sorted(self.lines("step"), key=lambda line: line["at"])
        assert {line["step"] for line in steps} == set(range(1, num_steps + 1))
        in_turn = [pid for pid, _ in groupby(line["pid"] for line in steps)]
        assert len(in_turn) == len(set(in_turn))
        assert len(self.lines("done")) == 1
