"""The command line: its output, and the packages that it does not import."""

import json
import os
import platform
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from redis import Redis

from kronos_cli.main import cli
from kronos_cli.settings import get_settings
from kronos_cli.stack.processes import ProcessStack
from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import WORKER_STATUS, AnyWorkerStatus
from kronos_client.redis.routing import announce
from kronos_model.processes.children import LocalStackError
from tests.waiting import WAIT_S
from tests.worker.inference.forecasts import result
from worker.inference.probe import ProbeError

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
"""


def status(node: str, **changes: Any) -> AnyWorkerStatus:
    """An announcement as a worker makes it."""
    load = {"sequences_running": 2, "sequences_waiting": 5, "bars_per_s": 1234.5, "queue_wait_s": 0.25}
    own = {"node": node, "host": platform.node(), "uptime_s": 125.0, "jobs_done": 3, "jobs_running": []}
    return WORKER_STATUS.validate_python(example("worker-status") | load | own | changes)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("command", [None, *sorted(cli.commands)])
def test_every_command_has_help(command: str | None) -> None:
    result = run(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_the_listed_help_is_the_beginning_of_the_commands_own(name: str) -> None:
    listed = str(cli.commands[name].short_help).removesuffix(".")
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert command is not None
    assert " ".join(str(command.help).split()).startswith(listed)


def test_the_list_imports_no_command() -> None:
    script = (
        "import sys; from kronos_cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "loaded = [name for name in sys.modules if name.startswith('kronos_cli.commands')]\n"
        "sys.exit(str(loaded) if loaded or 'celery' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)


def test_status_and_healthcheck_start_without_numpy_and_celery() -> None:
    script = (
        "import sys; import kronos_cli.commands.status, kronos_cli.commands.healthcheck\n"
        "sys.exit(str({'numpy', 'pandas', 'celery', 'torch'} & sys.modules.keys() or '') or 0)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)


def test_commands_work_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "kronos_cli").mkdir()
    (tmp_path / "kronos_cli" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    command = [sys.executable, "-P", "-m", "kronos_cli", "--help"]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)


def test_status_shows_every_live_worker_with_its_warning(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = "CUDA device 'cuda:0' requested but CUDA not available. Falling back to CPU."
    announce(redis, status("celery@one", device_warning=warning))
    announce(redis, status("celery@two", state="loading", model=None, models=[]))
    monkeypatch.setenv("COLUMNS", "120")
    result = run("status")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["celery@one", "ready", "cpu", "torch", "cpu", "kronos-tiny", "2", "min"] in rows
    assert ["celery@one", "3", "1", "2", "5", "64", "0.2", "s", "1,234"] in rows
    assert ["celery@two", "loading", "cpu", "cpu", "…", "2", "min"] in rows
    assert f"celery@one: {warning}" in " ".join(result.output.split())
    announced = json.loads(run("status", "--json").output)
    assert [worker["device_warning"] for worker in announced] == [warning, None]


def test_status_and_check_name_each_engine_and_a_warning_once(redis: Redis) -> None:
    warning = "Native engine not used: Numba is not installed. Falling back to PyTorch."
    held = example("worker-status")["models"][0]
    native, torch = held | {"engine": "native"}, held | {"engine_warning": warning}
    announce(redis, status("celery@one", models=[native, torch, torch]))
    shown = " ".join(run("status").output.split())
    assert "celery@one ready cpu native, torch cpu kronos-tiny" in shown
    assert shown.count(f"celery@one: {warning}") == 1
    (announced,) = json.loads(run("status", "--json").output)
    assert [model["engine"] for model in announced["models"]] == ["native", "torch", "torch"]
    found = json.loads(run("check", "--no-compute", "--json").output)["findings"]
    (finding,) = (one for one in found if warning in one["message"])
    assert (finding["level"], finding["remedy"]) == ("warning", "run kronos check on its machine")


def test_status_names_limits_that_differ_among_workers(redis: Redis) -> None:
    for node, max_paths in (("a", 4096), ("b", 100)):
        announce(redis, status(node, limits={"max_paths": max_paths, "max_bars": 10}))
    output = run("status").output
    assert "KRONOS_MAX_PATHS is 100 on b, 4096 on a; give all workers" in " ".join(output.split())
    assert "KRONOS_MAX_BARS" not in output


def test_status_shows_the_progress_of_jobs(redis: Redis) -> None:
    jobs = [{"id": f"job-{number}", "bars_done": 95 - number, "bars_total": 100} for number in range(7)]
    announce(redis, status("celery@one", jobs_running=jobs, num_jobs_running=20))
    announce(redis, status("celery@idle", jobs_running=[], num_jobs_running=0))
    rows = [line.split() for line in run("status").output.splitlines()]
    assert ["celery@one", "job-0", "95%", "100"] in rows
    assert ["celery@one", "job-4", "91%", "100"] in rows
    assert ["celery@one", "and", "15", "more"] in rows
    assert not [row for row in rows if row[:2] == ["celery@idle", "job-0"]]


def test_the_table_fits_a_terminal_of_80_columns(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    busy = {"sequences_waiting": 448, "sequences_running": 64, "bars_per_s": 12345.6, "queue_wait_s": 12.3}
    name = "kronos-4711@build-1"
    announce(redis, status(name, device="cuda:0", queue="gpu", jobs_done=12345, **busy))
    output = run("status").output
    assert "…" not in output
    rows = [line.split() for line in output.splitlines()]
    assert [name, "ready", "cuda:0", "torch", "gpu", "kronos-tiny", "2", "min"] in rows
    assert [name, "12345", "1", "64", "448", "64", "12.3", "s", "12,346"] in rows


def test_names_stay_whole_on_a_narrow_terminal(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "kronos-4711@build-1.of-a-company.example"
    announce(redis, status(name, device="cuda:0", queue="gpu"))
    rows = [line.split() for line in run("status").output.splitlines()]
    assert [name, "ready", "cuda:0", "torch", "gpu", "kronos-tiny", "2", "min"] in rows


def test_status_shows_how_busy_a_gpu_is(redis: Redis) -> None:
    memory = {"memory_total_bytes": 80 * 2**30, "memory_free_bytes": 19 * 2**30}
    gpu = {"name": "AMD Instinct (ROCm)", "kind": "cuda", "index": 0, "utilisation_percent": 87, **memory}
    announce(redis, status("celery@one", device="cuda:0", device_description=gpu))
    announce(redis, status("celery@old", device="cuda:1", device_description={"name": "NVIDIA H200"}))
    odd = {"name": "odd", "memory_total_bytes": "80 GiB", "memory_free_bytes": 1, "utilisation_percent": []}
    announce(redis, status("celery@odd", device="cuda:2", device_description=odd))
    rows = [line.split() for line in run("status").output.splitlines()]
    assert ["celery@one", "AMD", "Instinct", "(ROCm)", "87", "%", "61", "of", "80", "GiB"] in rows
    assert ["celery@old", "NVIDIA", "H200", "?", "?"] in rows


def test_status_without_workers_names_the_command_that_starts_one(redis: Redis) -> None:
    result = run("status")
    assert result.exit_code == 1
    assert "kronos worker" in result.output
    as_json = run("status", "--json")
    assert (as_json.exit_code, json.loads(as_json.output)) == (1, [])


def test_as_json_an_error_is_an_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def error_of(*arguments: str) -> tuple[int, str]:
        outcome = run(*arguments, "--json")
        error = json.loads(outcome.stdout)["error"]
        assert error.keys() == {"code", "message"}
        assert error["message"] in " ".join(outcome.stderr.split())
        return outcome.exit_code, error["code"]

    (tmp_path / "bad.csv").write_text("date,open,high,close\n2024-06-18,1,1,1\n")
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    assert error_of("status") == (1, "BROKER_UNREACHABLE")
    assert error_of("queues") == (1, "BROKER_UNREACHABLE")
    assert error_of("queues", "--purge-dead") == (1, "ABORTED")
    assert error_of("queues", "--dead", "--purge-dead") == (2, "USAGE")
    assert error_of("no-such-command") == (2, "USAGE")
    assert error_of("demo", "--csv", str(tmp_path / "bad.csv")) == (1, "INVALID_INPUT")
    assert error_of("finetune", "--watch") == (2, "USAGE")
    assert error_of("models") == (1, "FAILED")
    health = run("healthcheck", "--json")
    assert (health.exit_code, json.loads(health.stdout)["ok"]) == (1, False)
    monkeypatch.setenv("KRONOS_MAX_JOBS", "many")
    get_settings.cache_clear()
    assert error_of("status") == (1, "SETTINGS")


CLIENT_ONLY = """
import sys
MISSING = {"fastapi", "flower", "huggingface_hub", "matplotlib", "pandas", "psutil", "pyarrow",
    "pythonjsonlogger", "rich", "safetensors", "torch", "uvicorn"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import json
from click.testing import CliRunner
from kronos_cli.main import cli
for command in sys.argv[1:]:
    done = CliRunner().invoke(cli, command.split())
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
EXTRAS = {
    "demo": "worker", "devices": "worker", "finetune --config x": "cli", "flower": "worker",
    "forecast x.csv": "cli", "models": "cli", "queues": "cli", "up": "worker", "worker": "worker",
    "api": "api",
}  # fmt: skip
"""The extra that each command needs."""


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"].keys() == {"kronos"}
    assert EntryPoint("kronos", project["scripts"]["kronos"], "console_scripts").load() is cli


def test_a_redis_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    result = run("status")
    assert result.exit_code == 1
    assert "KRONOS_REDIS_URL" in result.output
    assert result.output.count("\n") == 1


def test_flower_is_not_started_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRONOS_FLOWER_PASSWORD", raising=False)
    result = run("flower")
    assert result.exit_code == 1
    assert "KRONOS_FLOWER_PASSWORD" in result.output


def test_as_json_the_demo_prints_its_forecast_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caution = "kronos-tiny was trained on synthetic candles: for trying the service, not for trading."
    worker, forecast = status("celery@one"), result(close=10.0).model_copy(update={"warnings": (caution,)})
    monkeypatch.setattr("kronos_cli.commands.demo.Demo.compute", lambda *_: (worker, forecast))
    outcome = run("demo", "--output", str(tmp_path / "a.png"), "--json")
    assert outcome.exit_code == 0, outcome.output
    report = json.loads(outcome.stdout)
    assert (report["chart"], report["caution"]) == (str(tmp_path / "a.png"), caution)
    assert report["result"] == forecast.model_dump(mode="json")
    assert "Chart" in outcome.stderr
    assert outcome.stderr.count("for trading") == 1


@pytest.mark.parametrize(
    ("dtype", "is_compiled", "engine"),
    [("float32", True, None), ("float32", False, "torch"), ("bfloat16", True, "torch")],
)
def test_the_demo_does_not_wait_for_a_compilation(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_compiled: bool, engine: str | None
) -> None:
    given: list[dict[str, str]] = []

    def start(stack: ProcessStack, name: str, command: list[str], variables: dict[str, str]) -> None:
        given.append(variables)
        raise LocalStackError("enough")

    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("KRONOS_DTYPE", dtype)
    monkeypatch.setattr("kronos_cli.commands.demo.is_warm", lambda dtypes: is_compiled)
    monkeypatch.setattr(ProcessStack, "start", start)
    outcome = run("demo")
    assert "enough" in outcome.output
    (variables,) = given
    assert variables.get("KRONOS_ENGINE") == engine


def test_check_prints_each_problem_with_its_remedy(redis: Redis) -> None:
    report = json.loads(run("check", "--no-compute", "--json").output)
    assert report["ok"] is True
    assert {tuple(finding) for finding in report["findings"]} == {("check", "level", "message", "remedy")}
    found = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert found.items() >= {"redis": "ok", "packages": "ok", "workers": "warning"}.items()
    announce(redis, status("celery@one", device_warning="CUDA not available"))
    shown = run("check", "--no-compute")
    assert shown.exit_code == 0
    assert "celery@one: CUDA not available" in " ".join(shown.output.split())
    assert "→ run kronos devices on its machine" in " ".join(shown.output.split())


def test_check_fails_without_redis_and_with_invalid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://:secret-word@127.0.0.1:1/0")
    outcome = run("check", "--no-compute")
    assert outcome.exit_code == 1
    assert "✗ redis" in outcome.output
    assert "folder" in outcome.output  # the other checks go on
    assert "secret-word" not in outcome.output
    monkeypatch.setenv("KRONOS_MAX_JOBS", "many")
    report = json.loads(run("check", "--json").output)
    assert (report["ok"], report["findings"][-1]["check"]) == (False, "settings")
    assert "KRONOS_MAX_JOBS" in report["findings"][-1]["message"]


def test_devices_are_shown_with_the_device_that_each_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    warning = "CUDA device 'cuda' requested but CUDA not available. Falling back to CPU."
    what = {"name": "[red]CPU[/]", "memory_free_bytes": 2**30, "memory_total_bytes": None}
    cpu = {
        "requested": "cpu",
        "device": "cpu",
        "warning": None,
        "skipped": None,
        "description": what,
        "slots": 64,
    }
    found = [
        cpu | {"slots_error": None},
        cpu | {"requested": "cuda", "warning": warning, "slots": None, "slots_error": "no model"},
    ]
    asked: list[Any] = []

    def run_probe(names: Any, **given: Any) -> dict[str, Any]:
        asked.append((names, given["environment"].get("KRONOS_MODEL")))
        return {"devices": found, "model": None}

    monkeypatch.setattr("kronos_cli.commands.devices.run_probe", run_probe)
    outcome = run("devices", "--model", "mine")
    assert outcome.exit_code == 0
    assert asked == [(("all",), "mine")]
    rows = [line.split() for line in outcome.output.splitlines()]
    assert ["cpu", "cpu", "[red]CPU[/]", "1.0", "GiB", "?", "64"] in rows
    assert ["cuda", "cpu", "[red]CPU[/]", "1.0", "GiB", "?", "?"] in rows
    assert warning in " ".join(outcome.output.split())
    assert json.loads(run("devices", "--json").output) == found
    found.append({"requested": "gpu", "error": "INVALID_DEVICE: what"})
    refused = run("devices", "gpu")
    assert refused.exit_code == 1
    assert "INVALID_DEVICE: what" in refused.output


def test_a_device_that_cannot_be_tried_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ProbeError("no torch")

    monkeypatch.setattr("kronos_cli.commands.devices.run_probe", fail)
    outcome = run("devices")
    assert (outcome.exit_code, outcome.output) == (1, "Error: no torch\n")


@pytest.mark.parametrize(
    ("announced", "exit_code", "reason"),
    [
        ({}, 0, "celery@here is ready"),
        ({"state": "loading"}, 1, "celery@here is loading"),
        ({"host": "elsewhere"}, 1, "no worker on"),
    ],
)
def test_the_health_check_and_check_of_the_worker_read_this_hosts_worker(
    redis: Redis, announced: dict[str, str], exit_code: int, reason: str
) -> None:
    announce(redis, status("celery@here", **announced))
    for command in (["healthcheck"], ["check", "--worker"]):
        outcome = run(*command)
        assert outcome.exit_code == exit_code
        assert reason in outcome.output or (command == ["healthcheck"] and not exit_code)
        report = json.loads(run(*command, "--json").stdout)
        found = [finding["check"] for finding in report["findings"]]
        assert (report["ok"], found) == (exit_code == 0, ["worker"])


def test_if_only_the_client_is_installed_one_line_names_the_extra(tmp_path: Path) -> None:
    """All commands in one process, in which the packages of the extras are missing."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "KRONOS_REDIS_URL": "redis://127.0.0.1:1/0",
        "KRONOS_MODEL_FOLDER": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLIENT_ONLY, *EXTRAS, "check --no-compute"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *refusals, check = map(json.loads, done.stdout.splitlines())
    for (command, extra), (exit_code, _, errors) in zip(EXTRAS.items(), refusals, strict=True):
        assert (exit_code, errors.count("\n")) == (1, 1), (command, errors)
        assert f'pip install ".[{extra}]"' in errors
    exit_code, printed, errors = check
    assert (exit_code, errors) == (1, "")
    assert "✗ redis 127.0.0.1:1 does not answer" in " ".join(printed.split())
