"""The command line: what it shows, and what it does not import."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from worker.cli import cli
from worker.connection import connect
from worker.local import LocalRedis
from worker.routing import announce
from worker.settings import get_settings

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
"""


def status(node: str, **changes: Any) -> dict[str, Any]:
    """An announcement as a worker makes it."""
    tiny = {"id": "kronos-tiny", "revision": None}
    return {
        "node": node,
        "state": "ready",
        "device": "cpu",
        "device_warning": None,
        "queue": "cpu",
        "model": {**tiny, "tokenizer_id": "kronos-tiny", "tokenizer_revision": None},
        "jobs_done": 3,
        "jobs_failed": 1,
        "sequences_running": 2,
        "sequences_waiting": 5,
        "slots": 64,
        "bars_per_s": 1234.5,
        "queue_wait_s": 0.25,
        "uptime_s": 125.0,
        "host": platform.node(),
        **changes,
    }


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    with LocalRedis() as server:
        monkeypatch.setenv("KRONOS_REDIS_URL", server.url)
        get_settings.cache_clear()
        with connect(server.url) as client:
            yield client
    get_settings.cache_clear()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("command", [None, *sorted(cli.commands)])
def test_every_command_has_help(command: str | None) -> None:
    result = run(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    "module", ["cli", "app", "client", "demo", "up", "local", "children", "status_table", "chart"]
)
def test_modules_outside_the_worker_import_without_torch(module: str) -> None:
    script = f"{WITHOUT_TORCH}\nimport worker.{module}"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_commands_work_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    command = [sys.executable, "-P", "-m", "worker", "--help"]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)


def test_status_shows_every_live_worker_with_its_warning(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = "CUDA device 'cuda:0' requested but CUDA not available. Falling back to CPU."
    announce(redis, "celery@one", status("celery@one", device_warning=warning))
    announce(redis, "celery@two", status("celery@two", state="loading", model=None))
    monkeypatch.setenv("COLUMNS", "120")
    result = run("status")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["celery@one", "ready", "cpu", "cpu", "kronos-tiny", "2", "min"] in rows
    assert ["celery@one", "3", "1", "2", "5", "64", "0.2", "s", "1,234"] in rows
    assert ["celery@two", "loading", "cpu", "cpu", "…", "2", "min"] in rows
    assert f"celery@one: {warning}" in " ".join(result.output.split())
    announced = json.loads(run("status", "--json").output)
    assert [worker["device_warning"] for worker in announced] == [warning, None]


def test_a_worker_whose_load_is_not_known_is_shown_nevertheless(redis: Redis) -> None:
    older = status("celery@old")
    for name in ("sequences_running", "sequences_waiting", "bars_per_s", "queue_wait_s"):
        del older[name]
    announce(redis, "celery@old", older)
    announce(redis, "celery@idle", status("celery@idle", bars_per_s=0.0, queue_wait_s=None))
    result = run("status")
    assert result.exit_code == 0, result.output
    assert "celery@old" in result.output
    assert "celery@idle" in result.output


def test_the_table_fits_a_terminal_of_80_columns(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    busy = {"sequences_waiting": 448, "sequences_running": 64, "bars_per_s": 12345.6, "queue_wait_s": 12.3}
    name = "kronos-4711@build-1"
    announce(redis, name, status(name, device="cuda:0", queue="gpu", jobs_done=12345, **busy))
    output = run("status").output
    assert "…" not in output
    rows = [line.split() for line in output.splitlines()]
    assert [name, "ready", "cuda:0", "gpu", "kronos-tiny", "2", "min"] in rows
    assert [name, "12345", "1", "64", "448", "64", "12.3", "s", "12,346"] in rows


def test_status_without_workers_says_how_to_start_one(redis: Redis) -> None:
    result = run("status")
    assert result.exit_code == 1
    assert "kronos worker" in result.output
    assert json.loads(run("status", "--json").output) == []


@pytest.mark.parametrize(
    ("announced", "exit_code", "reason"),
    [
        ({}, 0, ""),
        ({"state": "loading"}, 1, "celery@here is loading"),
        ({"host": "elsewhere"}, 1, "no worker on"),
    ],
)
def test_health_is_that_of_this_hosts_worker(
    redis: Redis, announced: dict[str, str], exit_code: int, reason: str
) -> None:
    announce(redis, "celery@here", status("celery@here", **announced))
    result = run("healthcheck")
    assert result.exit_code == exit_code
    assert reason in result.output


def test_a_redis_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    get_settings.cache_clear()
    result = run("status")
    get_settings.cache_clear()
    assert result.exit_code == 1
    assert "KRONOS_REDIS_URL" in result.output
    assert result.output.count("\n") == 1


def test_flower_is_not_started_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRONOS_FLOWER_PASSWORD", raising=False)
    get_settings.cache_clear()
    result = run("flower")
    get_settings.cache_clear()
    assert result.exit_code == 1
    assert "KRONOS_FLOWER_PASSWORD" in result.output


def test_the_demo_names_what_a_csv_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("date,open,high,close\n2024-06-18,1,1,1\n")
    result = run("demo", "--csv", str(tmp_path / "bad.csv"))
    assert result.exit_code == 1
    assert "no column low" in result.output
