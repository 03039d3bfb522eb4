"""What the packages promise as a whole: their exports, what they import, and what they never do."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kronos_model
from worker.contract.names import CPU_QUEUE
from worker.local import LocalRedis

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for package in ("kronos_model", "worker") for path in (ROOT / package).rglob("*.py"))

WITHOUT_TORCH = (
    "worker.client",
    "worker.contract",
    "worker.contract.schemas",
    "worker.settings",
    "worker.routing",
    "worker.jobs",
    "worker.celery_config",
    "worker.app",
    "worker.series",
    "worker.connection",
    "worker.result_backend",
    "worker.cli",
    "worker.demo",
    "worker.up",
    "worker.local",
    "worker.takeover",
    "worker.prefetch",
    "worker.metrics",
    "worker.bootstrap",
    "kronos_model",
    "kronos_model.engine.engine",
    "kronos_model.engine.reads",
    "kronos_model.candles",
    "kronos_model.synthetic",
    "kronos_model.forecast",
    "kronos_model.finetuning",
    "kronos_model.finetuning.config_file",
    "kronos_model.finetuning.evaluation",
    "kronos_model.finetuning.run_folder",
    "kronos_model.finetuning.splits",
    "worker.finetune_command",
    "worker.finetuning.run",
    "worker.models_table",
    "worker.tasks.finetune",
)

BLOCKING = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
"""

ENQUEUE = """
from kronos_model.synthetic import candles
from worker.client import ForecastClient
from worker.contract.errors import JobError

with ForecastClient(sys.argv[1]) as client:
    candles = candles(seed=1, bars=60).as_dict()
    handle = client.submit(candles, pred_len=5, job_id="without-torch")
    try:
        client.submit({**candles, "close": candles["close"] * float("nan")}, pred_len=5)
    except JobError as error:
        print(handle.queue, error.code)
assert "torch" not in sys.modules
"""


def run_without(names: tuple[str, ...], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own that cannot import these packages."""
    script = BLOCKING.format(names=set(names)) + code
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_exports_are_what_their_names_say():
    assert kronos_model.__all__ == sorted(kronos_model.__all__)
    assert set(kronos_model.__all__) == kronos_model._EXPORTS.keys()
    for name, module in kronos_model._EXPORTS.items():
        assert getattr(kronos_model, name).__module__ == f"kronos_model.{module}"
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = kronos_model.Missing


def test_type_checkers_see_the_same_exports():
    tree = ast.parse((ROOT / "kronos_model" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert isinstance(block.test, ast.Name)
    assert block.test.id == "TYPE_CHECKING"
    seen = {
        alias.name: node.module.removeprefix("kronos_model.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == kronos_model._EXPORTS


@pytest.mark.parametrize(
    ("blocked", "modules"),
    [(("torch",), WITHOUT_TORCH), (("torch", "pandas"), ("worker.client",))],
    ids=["torch", "torch and pandas"],
)
def test_what_enqueues_is_imported_without(blocked, modules):
    imports = "".join(f"import {module}\n" for module in modules)
    done = run_without(blocked, imports)
    assert done.returncode == 0, done.stderr
    # Else the block would prove nothing.
    assert "torch is blocked" in run_without(blocked, "import kronos_model.model").stderr


def test_a_job_is_built_checked_and_enqueued_without_torch_and_pandas():
    with LocalRedis() as server:
        done = run_without(("torch", "pandas"), ENQUEUE, server.url)
        assert done.stdout == f"{CPU_QUEUE} NOT_FINITE\n", done.stderr
        from redis import Redis

        with Redis.from_url(server.url) as redis:
            assert redis.llen(f"{CPU_QUEUE}\x06\x163") == 1


def unsafe_parts(tree: ast.AST) -> Iterator[str]:
    """Whatever runs code that it reads, or could."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            if name.partition(".")[0] in {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}:
                yield name
            if name in {"torch.load", "torch.hub.load", "torch.jit.load", "torch.package"}:
                yield name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unpickles(path):
    assert list(unsafe_parts(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(x)",
        "from torch import load",
        "f = torch.load",
    ],
)
def test_unpickling_would_be_noticed(code):
    assert list(unsafe_parts(ast.parse(code)))


def test_every_package_that_is_imported_is_pinned():
    """What is used by name is a direct dependency, whoever else brings it along."""
    pinned = {
        re.split(r"[\[=;]", line)[0].lower().replace("-", "_")
        for file in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / file).read_text().splitlines()
        if line and not line.startswith("#")
    }
    brought_along = {"pydantic_core": "pydantic", "yaml": "pyyaml"}
    own = {"kronos_model", "worker", "tests", "benchmarks"}
    for folder in own:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.append(node.module)
                for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - own:
                    assert brought_along.get(name, name) in pinned, f"{path} imports {name}"
