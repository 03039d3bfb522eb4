"""What the packages promise as a whole: their exports, what they import, and what they never do."""

import ast
import functools
import gc
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kronos_client
import kronos_model
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import CPU_QUEUE
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[1]


def modules_in(wing: str) -> tuple[str, ...]:
    """All modules below a folder of the checkout; a ``__main__`` would run."""
    found = (ROOT / wing).rglob("*.py")
    names = (path.relative_to(ROOT).with_suffix("").parts for path in found if path.stem != "__main__")
    return tuple(sorted({".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names}))


CLIENTS = ("kronos_client.client", "kronos_client.aio", "kronos_client.testing")
PACKAGES_WITHOUT_TORCH = (
    "kronos_client",
    "kronos_cli",
    "api_stub",
    "kronos_model/bars",
    "kronos_model/evaluation",
    "kronos_model/processes",
    "worker/broker",
    "worker/monitoring",
    "worker/training",
)
# Of the engine, what decides; what computes imports both.
DECIDING = ("kronos_model.engine.engine",)
WITHOUT_TORCH = (*(module for package in PACKAGES_WITHOUT_TORCH for module in modules_in(package)), *DECIDING)

BLOCKING = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""

CHECK_A_DATASET = """
import csv
from pathlib import Path
import api_stub.__main__
from api_stub.uploads.file_child import read
from kronos_model.bars.synthetic import candles

columns = candles(seed=1, bars=40).as_dict()
file = Path(sys.argv[1], "BTC-USD.csv")
with file.open("w", newline="") as lines:
    writer = csv.writer(lines)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
print(read(file, {}, None)["num_bars"])
"""

START_A_FINETUNING_WORKER = """
from worker.app import app

app.loader.import_default_modules()
print("kronos.finetune" in app.tasks)
"""

RUN_COMMANDS = """
import json
from click.testing import CliRunner
from kronos_cli.main import cli

for command in sys.argv[1:]:
    done = CliRunner().invoke(cli, command.split())
    print(json.dumps([done.stdout, done.stderr]))
"""

ENQUEUE = """
import threading

from kronos_model.bars.synthetic import candles
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError

with ForecastClient(sys.argv[1]) as client:
    candles = candles(seed=1, bars=60).as_dict()
    handle = client.submit(candles, pred_len=5, job_id="without-torch")
    threads = [thread.name for thread in threading.enumerate()]
    assert threads == ["MainThread"], f"an event loop was started before anything waits: {threads}"
    try:
        client.submit({**candles, "close": candles["close"] * float("nan")}, pred_len=5)
    except JobError as error:
        print(handle.queue, error.code)
for name in ("torch", "pandas", "celery", "kombu", "scipy", "yaml"):
    assert name not in sys.modules, name
# Only waiting, live workers and other kinds of jobs need these.
for name in ("core.core", "core.many", "contract.worker_status", "contract.finetune", "redis.job_store"):
    assert f"kronos_client.{name}" not in sys.modules, name
"""


PLOT = """
from kronos_client.contract.errors import JobError
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example

result = ForecastResult.model_validate(example("forecast-result"))
assert "<svg" in result._repr_html_()
try:
    result.plot()
except JobError as error:
    print(error)
"""


def run_without(names: tuple[str, ...], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own that cannot import these packages."""
    script = BLOCKING.format(names=set(names)) + code
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S
    )


def test_exports_are_what_their_names_say():
    assert kronos_model.__all__ == sorted(kronos_model.__all__)
    for name in kronos_model.__all__:
        assert getattr(kronos_model, name).__module__.startswith("kronos_model.")
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = kronos_model.Missing


@pytest.mark.parametrize("switch", [gc.enable, gc.disable])
def test_importing_the_client_leaves_garbage_collection_as_it_was(switch):
    switch()
    try:
        expected = gc.isenabled()
        assert kronos_client.ForecastClient
        assert gc.isenabled() == expected
    finally:
        gc.enable()


def test_type_checkers_see_the_same_exports():
    tree = ast.parse((ROOT / "kronos_model" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert isinstance(block.test, ast.Name)
    assert block.test.id == "TYPE_CHECKING"
    seen = {
        alias.name: importlib.import_module(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == kronos_model.__all__
    for name, module in seen.items():
        assert getattr(module, name) is getattr(kronos_model, name)


@pytest.mark.parametrize(
    ("blocked", "modules"),
    [(("torch",), WITHOUT_TORCH), (("torch", "pandas", "celery", "kombu"), CLIENTS)],
    ids=["torch", "torch, pandas and Celery"],
)
def test_what_enqueues_is_imported_without(blocked, modules):
    imports = "".join(f"import {module}\n" for module in modules)
    done = run_without(blocked, f"{imports}print('all')\nimport kronos_model.model")
    assert done.stdout == "all\n", done.stderr
    assert "torch is blocked" in done.stderr  # else this would prove nothing


def test_a_finetuning_worker_imports_no_torch(monkeypatch):
    monkeypatch.setenv("KRONOS_ROLE", "finetune")
    done = run_without(("torch",), START_A_FINETUNING_WORKER)
    assert done.stdout == "True\n", done.stderr


def test_a_job_is_built_checked_and_enqueued_without_torch_pandas_and_celery():
    with LocalRedis() as server:
        done = run_without(("torch", "pandas", "celery", "kombu"), ENQUEUE, server.url)
        assert done.stdout == f"{CPU_QUEUE} NOT_FINITE\n", done.stderr
        from redis import Redis

        with Redis.from_url(server.url) as redis:
            assert redis.llen(f"{CPU_QUEUE}\x06\x163") == 1


VENDORS_FRAME = """
import pandas as pd

from kronos_client.contract.errors import JobError
from kronos_client.core.series import job_series

bars = {name: [1.0] * 30 for name in ("开盘", "最高", "最低", "收盘")}
try:
    print(len(job_series(pd.DataFrame(bars | {"日期": pd.date_range("2024-06-18", periods=30)}))))
except JobError as error:
    print(error)
"""


def test_a_vendors_frame_needs_no_more_than_its_extra_says():
    done = run_without(brought_by_no_more_than("frames"), VENDORS_FRAME)
    assert done.stdout == "1\n", done.stderr
    done = run_without(("pyarrow",), VENDORS_FRAME)
    assert re.match("NOT_INSTALLED: .* needs pyarrow: install kronos-worker.frames.", done.stdout), (
        done.stderr
    )


BACKTEST = """
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError

try:
    ForecastClient("redis://127.0.0.1:1").backtest(["prices.csv"], "bt", windows=2, horizon=4)
except JobError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["httpx2", "pandas"])
def test_without_the_packages_of_a_backtest_it_says_what_to_install_first(package):
    done = run_without((package,), BACKTEST)
    text = f"NOT_INSTALLED: a backtest needs the package {package}: install kronos-worker[cli]\n"
    assert done.stdout == text, done.stderr


@functools.cache
def brought_by_no_more_than(extra: str) -> tuple[str, ...]:
    """The packages here that an installation with this extra would lack."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = closure([*project["dependencies"], *project["optional-dependencies"][extra]])
    allowed.add(canonicalize_name(project["name"]))  # it is in a checkout that a wheel was built from
    others = tuple(
        package
        for package, owners in packages_distributions().items()
        if package.isidentifier() and not allowed & {canonicalize_name(owner) for owner in owners}
    )
    assert {"torch", "accelerate", "einops", "safetensors"} <= set(others)
    return others


def test_without_matplotlib_a_plot_is_one_error_and_a_notebook_has_its_fan():
    done = run_without(("matplotlib", "pandas"), PLOT)
    text = "NOT_INSTALLED: a plot needs Matplotlib and pandas: install kronos-worker[plot]\n"
    assert done.stdout == text, done.stderr


def test_the_api_needs_no_more_than_its_extra_says(tmp_path):
    """Also where it reads an uploaded file as finetuning would."""
    done = run_without(brought_by_no_more_than("api"), CHECK_A_DATASET, str(tmp_path))
    assert done.stdout == "40\n", done.stderr


def test_commands_that_compute_nothing_need_no_more_than_their_extra_says(monkeypatch, tmp_path):
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", str(tmp_path))
    commands = "status --json", "queues", "models", "check", "finetune --watch no-such-job", "completion bash"
    with LocalRedis() as server:
        monkeypatch.setenv("KRONOS_REDIS_URL", server.url)
        done = run_without(brought_by_no_more_than("cli"), RUN_COMMANDS, *commands)
    for command, line in zip(commands, done.stdout.splitlines(), strict=True):
        printed, errors = json.loads(line)
        assert "blocked" not in printed + errors, command
        assert "not installed" not in errors, command
        assert printed or "no-such-job" in command


def closure(written: Iterable[str]) -> set[str]:
    """The names of what these requirements bring along, directly or not."""
    found: set[tuple[str, str]] = set()
    left = [(text, "") for text in written]
    while left:
        text, of_extra = left.pop()
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": of_extra}):
            name = canonicalize_name(requirement.name)
            for extra in {"", *requirement.extras} - {extra for known, extra in found if known == name}:
                found.add((name, extra))
                left += [(line, extra) for line in requires(name) or []]
    return {name for name, _ in found}


IMPORT = re.compile(
    r"^[ \t]*(?:from (?=[\w.]+ import )|import (?=[\w.]+(?: as \w+)?(?:$|  #)))([a-zA-Z_]\w*)", re.MULTILINE
)


def test_every_package_that_is_imported_is_pinned():
    """A package that is imported is a direct dependency, even if another one requires it."""
    pinned = {
        re.split(r"[\[=;]", line)[0].lower().replace("-", "_")
        for file in ("requirements.txt", "requirements-dev.txt", "requirements-docs.txt")
        for line in (ROOT / file).read_text().splitlines()
        if line and not line.startswith("#")
    }
    brought_along = {
        "starlette": "fastapi",
        "PIL": "pillow",
        "torchgen": "torch",
        "anyio": "fastapi",
        "mcp_types": "mcp",
        "hcl2": "python_hcl2",
        "backports": "backports.zstd",
        "compression": "backports.zstd",  # of Python 3.14
        "pydantic_core": "pydantic",
        "yaml": "pyyaml",
        "pythonjsonlogger": "python_json_logger",
        "opentelemetry": "opentelemetry_sdk",
    }
    own = {"kronos_model", "kronos_client", "worker", "kronos_cli", "api_stub"}
    own |= {"tests", "benchmarks", "docs", "tools"}
    own |= {"setuptools", "stand_in"}  # of scripts in tests: what builds a wheel, and a package made there
    for folder in own:
        for path in (ROOT / folder).rglob("*.py"):
            for name in {*IMPORT.findall(path.read_text())} - sys.stdlib_module_names - own:
                assert brought_along.get(name, name) in pinned, f"{path} imports {name}"


def test_a_release_asks_no_index_where_pip_is_told_not_to(tmp_path: Path) -> None:
    """Neither to build nor to install. The release ends where its stand-in for uv makes no environment."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    python, log = tmp_path / ".venv/bin/python", tmp_path / "log"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho "$@" >>{log}\n')
    (tmp_path / "kronos").write_text("#!/bin/sh\n")
    for script in (python, tmp_path / "kronos"):
        script.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1"}
    subprocess.run([tmp_path / ".ci/release"], env=environment, capture_output=True, check=False)
    lines = log.read_text().splitlines()
    for verb in (" build ", " tool run ", " pip install "):
        assert [" --no-index " in line for line in lines if verb in line] == [True], verb
