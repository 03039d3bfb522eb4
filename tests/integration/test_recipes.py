"""The recipes of docs/recipes and their notebook, run as a reader runs them."""

import ast
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.backtesting import reporting
from kronos_model.bars.columns import COLUMNS
from tests import fork_server
from tests.api_process import ApiUnderTest
from tests.doc_blocks import blocks_of
from tests.integration.conftest import ROOT, StartWorker, WorkerUnderTest
from tests.waiting import WAIT_S

FOLDER = ROOT / "docs" / "recipes"
SCRIPTS = {
    block.title: block.text for page in FOLDER.glob("*.md") for block in blocks_of(page) if block.title
}
API_ADDRESS = "http://127.0.0.1:8000"
PYTHON = ".venv/bin/python"


class Reader:
    """Runs scripts in a folder that stands for the checkout, with the settings of what is under test."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.settings = settings
        for name, text in SCRIPTS.items():
            (folder / name).write_text(text)
        (folder / "kronos_model").mkdir()
        (folder / "kronos_model" / "bundled").symlink_to(ROOT / "kronos_model" / "bundled")

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
        return inherited | self.settings

    def change(self, name: str, text: str, other: str) -> None:
        """Make a script smaller."""
        script = self.folder / name
        assert script.read_text().count(text) == 1, text
        script.write_text(script.read_text().replace(text, other))

    def python(self, name: str, *arguments: str) -> str:
        """What a script prints. It runs in this process, which has imported what it needs."""
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", [name, *arguments])
            for variable, value in self.settings.items():
                patch.setenv(variable, value)
            runpy.run_path(name, run_name="__main__")
        return printed.getvalue()

    def shell(self, name: str) -> str:
        """What a script's commands print; ``./kronos`` is a fork of a process that has imported it."""
        text = re.sub(r"\\\n\s*", " ", (self.folder / name).read_text())
        return "".join(self._command(*line.split(" || ")) for line in text.splitlines())

    def _command(self, command: str, otherwise: str = "") -> str:
        words = shlex.split(command)
        if words == ["set", "-e"]:
            return ""  # below, each command must succeed
        if words[0] == "./kronos":
            ran = fork_server.run(["kronos_cli", *words[1:]], self.environment, cwd=self.folder)
        elif words[0] == PYTHON and words[1] in SCRIPTS:
            return self.python(*words[1:])
        else:
            words[0] = sys.executable if words[0] == PYTHON else words[0]
            ran = subprocess.run(
                words,
                cwd=self.folder,
                env=self.environment | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        if ran.returncode and otherwise:
            return ran.stderr + self._command(otherwise)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def one_path() -> None:
    """They draw the default, as users do."""


@pytest.fixture(scope="module")
def reader(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("checkout")
    settings = {
        "KRONOS_REDIS_URL": redis.url,
        "KRONOS_MODEL_FOLDER": str(folder / "output" / "models"),
        "KRONOS_DATA_FOLDER": str(folder / "output" / "data"),
        "MPLBACKEND": "agg",
    }
    reader = Reader(folder, settings)
    reader.python("sample_candles.py")
    return reader


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, reader: Reader) -> WorkerUnderTest:
    """As ``kronos up`` starts it, with the bundled model."""
    tiny = {"KRONOS_MODEL": "kronos-tiny", "KRONOS_TOKENIZER": "kronos-tiny", "KRONOS_MAX_CONTEXT": "512"}
    return start_worker(**reader.settings | tiny).wait_until_ready()


@pytest.fixture(scope="module")
def api(reader: Reader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    api = ApiUnderTest(
        reader.settings["KRONOS_REDIS_URL"], tmp_path_factory.mktemp("api") / "log", reader.settings
    )
    yield api.url.rstrip("/")
    api.stop()


def test_one_file_three_ways_and_the_same_numbers(worker, reader, api):
    printed = reader.python("chart.py")
    assert "for trying the service" in printed
    assert (reader.folder / "output" / "chart.png").read_bytes().startswith(b"\x89PNG")
    reader.shell("forecast_file.sh")
    assert (reader.folder / "output" / "forecasts" / "NORTH_M5.png").exists()
    by_command = pd.read_csv(reader.folder / "output" / "forecasts" / "NORTH_M5.csv")
    assert len(by_command) == 24
    assert f"{by_command['close'].iloc[-1]:.6f}"[:7] in printed
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")
    reader.change("forecast_http.sh", API_ADDRESS, api)
    by_curl = partial(subprocess.run, ["sh", "forecast_http.sh"], cwd=reader.folder, stdout=subprocess.PIPE)
    assert by_curl().returncode == 0
    reader.change("forecast_http.sh", "seed=1", "seed=1&respond_async=true")
    unfinished = by_curl()
    assert (unfinished.returncode, unfinished.stdout[:22]) == (1, b"no table, but HTTP 202")
    by_http = pd.read_csv(reader.folder / "output" / "forecast.csv")
    assert by_http["close_q0.1"].tolist() == pytest.approx(by_command["close_q0.1"].tolist(), rel=1e-5)


def test_a_backtest_its_verdict_and_corrected_quantiles(worker, reader):
    reader.change("is_it_any_good.sh", "--windows 20", "--windows 8 --lookback 32 --samples 20")
    reader.change("is_it_any_good.sh", "--calibrated", "--calibrated --samples 20")
    printed = reader.shell("is_it_any_good.sh")
    assert (reader.folder / "output" / "backtest" / "report.html").exists()
    assert "mine@1: calibrated from 32 windows" in printed
    assert len(pd.read_csv(reader.folder / "output" / "calibrated.csv")) == 4 * 12
    printed = reader.python("read_report.py")
    assert "of 32 windows" in printed
    assert re.search(r"^[+-][\d.]+ % against \w+", printed, re.MULTILINE)


@pytest.fixture(scope="module")
def signals(worker: WorkerUnderTest, reader: Reader) -> str:
    """What ``signals.py`` prints."""
    reader.change("signals.py", "NUM_DECISIONS = 40", "NUM_DECISIONS = 4")
    return reader.python("signals.py")


def test_chances_become_positions(signals, reader):
    assert "after costs" in signals
    positions = pd.read_csv(reader.folder / "output" / "positions.csv")["target"].dropna()
    assert len(positions) == 4
    assert set(positions) <= {-1, 0, 1}


def test_positions_in_vectorbt(signals, reader):
    if find_spec("vectorbt") is None:
        pytest.skip("vectorbt is not installed, as in CI's job of that name: pip install vectorbt==1.2.0")
    assert "after costs" in reader.python("portfolio.py")


def test_a_model_is_trained_compared_promoted_and_rolled_back(worker, reader, start_worker):
    start_worker(**reader.settings, KRONOS_ROLE="finetune").wait_until_ready()
    reader.change("finetune.yaml", "windows_per_epoch: 512", "windows_per_epoch: 32\n  validation_windows: 8")
    reader.change("finetune.yaml", "epochs: 2", "epochs: 1")
    reader.change("finetune.yaml", "predictor:\n", "evaluation: {windows: 2, sample_count: 2}\npredictor:\n")
    reader.change("train.sh", "output/data/market --from", "output/data/market/EAST_M5.csv --from")
    reader.change("train.sh", "--windows 12", "--windows 30 --samples 9")
    assert "my-market means my-market@1 now" in reader.shell("start.sh")
    printed = reader.shell("train.sh")
    report = json.loads((reader.folder / "output" / "1-or-2" / "report.json").read_text())
    by = report["models"]["my-market@2"]["against"]["my-market@1"]
    is_promoted = by["verdict"] != "worse" and by["low"] is not None and report["num_windows"] >= 30
    assert ("my-market means my-market@2 now" in printed) == is_promoted
    assert ("my-market still means my-market@1" in printed) != is_promoted
    assert f"my-market means my-market@{1 if is_promoted else 2} now" in reader.shell("roll_back.sh")


def test_the_service_forecasts_what_the_notebook_did(worker, reader):
    printed = reader.python("both_ways.py")
    differences = dict(re.findall(r"largest difference, (\w+): ([\d.]+)", printed))
    assert differences.keys() == set(COLUMNS)
    assert max(map(float, differences.values())) < 1e-3


def test_a_night_goes_on_after_a_crash(worker, reader, redis):
    reader.change("nightly.py", "NUM_NAMES = 1000", "NUM_NAMES = 40")
    command = [sys.executable, *shlex.split((reader.folder / "nightly.sh").read_text())[1:]]
    environment = reader.environment | {"PYTHONPATH": str(ROOT)}
    bare = subprocess.run(command[:-1], cwd=reader.folder, env=environment, capture_output=True, text=True)
    assert (bare.returncode, bare.stderr[:24]) == (1, "usage: nightly.py NIGHT,")
    with subprocess.Popen(
        command, cwd=reader.folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert any(line == "10 done\n" for line in first.stdout)
        first.kill()
    stored = Redis.from_url(redis.url)
    before = {key: stored.get(key) for key in stored.scan_iter("celery-task-meta-nightly-*")}
    done = {key: result for key, result in before.items() if b'"SUCCESS"' in result}
    assert len(done) >= 10
    assert "40 forecasts" in reader.shell("nightly.sh")
    table = pd.read_csv(reader.folder / "output" / "nightly-2025-03-14.csv")
    assert sorted(table["name"]) == sorted(f"name-{number}" for number in range(40))
    assert {key: stored.get(key) for key in done} == done, "none was computed twice: its times are the same"
    reader.change("nightly.py", "seed=number", "seed=number + 1")
    with pytest.raises(SystemExit, match="name-0: ID_CONFLICT"):
        reader.shell("nightly.sh")
    assert len(pd.read_csv(reader.folder / "output" / "nightly-2025-03-14.csv")) == 40


def test_a_universe_is_ranked_and_scored(worker, reader):
    reader.change("universe.py", "range(40)", "range(8)")
    reader.change("universe.py", "range(200, 208)", "range(200, 203)")
    reader.change("universe.py", "sample_count=50", "sample_count=8")
    reader.change(
        "universe.py", "if update.drift:", "print('read', update.series)\n" + " " * 20 + "if update.drift:"
    )
    printed = reader.shell("run_universe.sh")
    assert Counter(re.findall("^read (.*)", printed, re.MULTILINE)) == {f"name-0{n}": 3 for n in range(8)}
    assert printed.count("name-") >= 16
    assert re.search(r"^num_scored +24$", printed, re.MULTILINE)  # 2 bars, then 1 more
    begun_at = time.monotonic()
    reader.python("universe.py")
    assert time.monotonic() - begun_at < 45, "no bar that was appended before is waited for"


def test_an_agent_gets_a_forecast_with_its_caution(worker, reader, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    printed = reader.shell("run_agent.sh")
    assert re.search(r"^caution: .*for trying the service", printed, re.MULTILINE)
    assert "high>=last+0.5% by 12 " in printed
    assert "24 bars in the table" in printed


def test_an_apps_tests_pass(reader):
    install = "python3 -m venv .venv\n.venv/bin/python -m pip install -q ../kronos pytest\n"
    reader.change("run_tests.sh", install, "")  # this environment has both
    assert "5 passed" in reader.shell("run_tests.sh")


def test_the_notebook_runs_from_its_first_cell_to_its_last(worker, reader, monkeypatch):
    monkeypatch.setattr(reporting, "write_page", lambda *_: None)  # its charts take seconds
    monkeypatch.setattr(tempfile, "tempdir", str(reader.folder))
    notebook = json.loads((FOLDER / "first-hour.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells)
    script = [SHOW, *(shown("".join(cell["source"])) for cell in cells)]
    (reader.folder / "first_hour.py").write_text("\n".join(script))
    printed = reader.python("first_hour.py")
    for expected in ("'cpu', 'cpu', 'ready'", "<b>kronos-tiny</b>", "<svg", " paths"):
        assert expected in printed
    (report,) = reader.folder.glob("first-hour-*/report.json")
    assert f"['{report.parent}', " in printed
    assert not (reader.folder / "output" / "first-hour").exists()


SHOW = 'def show(value): print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))'


def shown(cell: str) -> str:
    """A cell. The value of its last line is printed, as a notebook shows it."""
    tree = ast.parse(cell)
    if isinstance(last := tree.body[-1], ast.Expr):
        last.value = ast.Call(ast.Name("show"), [last.value], [])
    return ast.unparse(tree)


def test_every_script_is_run():
    """Or is read by one that is, as the config of a training is."""
    read = {"agent.py", "finetune.yaml", "keep_current.py", "sizing.py", "test_sizing.py"}
    tests = Path(__file__).read_text() + Path(__file__).with_name("test_sources.py").read_text()
    called = set(re.findall(r'"(\w+\.(?:py|sh))"', tests))
    assert SCRIPTS.keys() - read <= called
