"""``kronos calibrate``: from a backtest's folder to a version of a model. A fake client answers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kronos_cli.main import cli
from kronos_client.backtesting import reporting
from kronos_client.backtesting.store import LEVELS
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.testing import FakeForecastClient
from tests.kronos_client.backtesting.test_run import walk

CANDLES = {"later": walk(1).set_axis(walk(1).index + pd.Timedelta(days=731)), "now": walk(2)}
TINY = {"id": "kronos-tiny", "revision": None, "tokenizer_id": "kronos-tiny", "tokenizer_revision": None}


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRegistry:
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", str(tmp_path / "models"))
    monkeypatch.setattr(reporting, "write_page", lambda path, *_: path.write_text("page"))
    return ModelRegistry(tmp_path / "models")


def backtest(folder: Path, info: dict[str, Any] = TINY, **options: Any) -> Path:
    """A backtest of the fake's random walks, as if ``info`` had computed them."""
    asked = {"lookback": 40, "horizon": 3, "windows": 30, "samples": 20, "models": ["one"]} | options
    FakeForecastClient().backtest(CANDLES, folder, **asked)
    report = json.loads((folder / "report.json").read_text())
    report["model_info"] = dict.fromkeys(report["model_info"], info)
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["calibrate", *map(str, arguments)])


def test_the_bundled_model_and_then_its_version_are_calibrated_once(registry, tmp_path):
    for _ in range(2):
        done = run(backtest(tmp_path / "first"), "--name", "mine")
        assert done.exit_code == 0, done.output
        assert done.output.startswith("mine@1: calibrated from 60 windows.\nFitted to the 40 earlier windows")
    model = registry.resolve("mine")
    model.verify()
    first = model.metadata
    assert (first.calibration.lookback, first.calibration.horizon, first.max_context) == (40, 3, 512)
    assert first.calibration.levels == LEVELS
    assert (first.calibration.first[:4], first.calibration.last[:4]) == ("2024", "2026")
    info = TINY | {"id": "mine", "revision": "1"}
    done = run(backtest(tmp_path / "second", info, seed=1), "--name", "mine", "--json")
    second = json.loads(done.stdout)
    assert (second["id"], second["parent"]["model"], second["parent"]["revision"]) == ("mine@2", "mine", "1")
    assert second["sha256"] == first.sha256
    assert second["calibration"]["shifts"] != first.calibration.model_dump(mode="json")["shifts"]
    listed = CliRunner().invoke(cli, ["models"]).stdout
    assert "40 bars read, 3 ahead" in listed
    [held] = [model["scores"]["coverage"]["0.8"] for model in second["evaluation"]["models"].values()]
    assert f"{held:.0%}" in listed


def test_it_is_compared_with_the_bootstrap_first_unless_the_backtest_is_of_0_1_0(tmp_path):
    folder = backtest(tmp_path / "new")
    done = run(folder, "--name", "mine")
    first = done.stdout.splitlines()[1].partition(". The 80 % interval held")[0]
    begins = "Fitted to the 40 earlier windows and tried on the 20 later ones, the close's quantiles are "
    assert first.startswith(begins)
    assert "than a drift-free bootstrap of the lookback (95 % interval " in first
    table = pq.read_table(folder / "forecasts.parquet").drop_columns(["group", "bootstrap_loss"])
    pq.write_table(table, folder / "forecasts.parquet")
    done = run(folder, "--name", "mine")
    assert "and tried on the 20 later ones, the 80 % interval held" in done.stdout


def test_too_few_windows_for_a_check_are_told_how_many_would_do(registry, tmp_path):
    said = [run(backtest(tmp_path / str(n), windows=n // 2), "--name", "mine").stdout for n in (44, 46)]
    assert ["on the latest of them: that takes 45." in text for text in said] == [True, False]
    assert "tried on the 15 later ones" in said[1]


def test_what_cannot_be_calibrated_is_refused_with_one_line(registry, tmp_path):
    several = backtest(tmp_path / "several", models=["one", "two"], windows=2)
    short = backtest(tmp_path / "short", windows=None, stride=40)
    long = backtest(tmp_path / "long", lookback=290)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.json").write_text('{"rows": 3}')
    for arguments, reason in (
        ([several], "choose one of one, two with --model"),
        ([several, "--model", "three"], "has no model three"),
        ([several, "--model", "two"], "needs 30 windows, not 4: repeat the backtest with more --windows\n"),
        (
            [short],
            "no more: repeat the backtest with a smaller --stride than 40, a shorter --lookback than 40",
        ),
        ([long], "no more: repeat the backtest with a shorter --lookback than 290, or more candles\n"),
        ([tmp_path / "empty"], "run `kronos backtest` first"),
        ([tmp_path / "other"], "run `kronos backtest` first"),
    ):
        done = run(*arguments, "--name", "mine")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert reason in done.stderr
    assert registry.list() == []
