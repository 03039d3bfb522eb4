"""What the whole repository keeps to: nothing that comes from outside is ever run, or loaded as code."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kronos_client.celery_app import celery_config
from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[1]

RUNS_WHAT_IT_READS = [
    "import pickle\npickle.loads(data)",
    "from pickle import Unpickler",
    "import _pickle",
    "import cloudpickle",
    "import dill",
    "import joblib",
    "import jsonpickle",
    "import shelve",
    "import marshal\nmarshal.loads(data)",
    "eval(text)",
    "exec(text)",
    "import builtins\nbuiltins.eval(text)",
    "import builtins\nbuiltins.exec(text)",
    "import yaml\nyaml.load(text)",
    "import yaml\nyaml.load(text, yaml.Loader)",
    "import yaml\nyaml.unsafe_load(text)",
    "from yaml import full_load",
    "import torch\ntorch.load(path)",
    "import torch\ntorch.load(path, weights_only=True)",
    "from torch import load",
    "import torch\ntorch.jit.load(path)",
    "import torch\ntorch.hub.load(repo)",
    "import torch\ntorch.save(weights, path)",
    "from torch.serialization import load",
    "import torch.package",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "import pandas as pd\npd.read_pickle(path)",
    "from kombu.serialization import enable_insecure_serializers",
    "from kombu.serialization import register_pickle",
]
REFUSING = {"S102", "S301", "S302", "S307", "S506", "TID251"}


def refusals(code: str, path: str) -> set[str]:
    """The rules of ours that the linter refuses this code by, were it in that file."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=json", "--stdin-filename", path, "-"],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return {finding["code"] for finding in json.loads(done.stdout)} & REFUSING


@pytest.mark.parametrize("path", ["worker/new.py", "tests/new.py"])
@pytest.mark.parametrize("code", RUNS_WHAT_IT_READS)
def test_the_linter_refuses_what_runs_code_that_it_reads(code: str, path: str) -> None:
    assert refusals(code, path)


@pytest.mark.parametrize("code", ["import json\njson.loads(text)", "import yaml\nyaml.safe_load(text)"])
def test_the_linter_lets_plain_data_pass(code: str) -> None:
    assert not refusals(code, "worker/new.py")


def test_no_line_is_excepted_and_few_files_are() -> None:
    """The files are of tests, and from them nothing of ours imports."""
    lines = [
        f"{path}: {line}"
        for folder in (
            "kronos_model",
            "kronos_client",
            "worker",
            "kronos_cli",
            "api_stub",
            "tests",
            "benchmarks",
        )
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if any(f"noqa: {rule}" in line for rule in REFUSING) and path != Path(__file__)
    ]
    assert lines == []
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert set(ruff["select"]) >= REFUSING
    excepted = {path for path, rules in ruff["per-file-ignores"].items() if REFUSING & set(rules)}
    assert excepted == {
        "tests/kronos_model/checkpoints/test_pretrained.py",
        "tests/kronos_model/test_parity_tensors.py",
        "tests/kronos_model/finetuning/test_loop.py",
    }


def test_messages_are_json_in_both_directions() -> None:
    config = celery_config(WorkerSettings.model_construct())
    for name in ("task_serializer", "result_serializer"):
        assert config[name] == "json"
    for name in ("accept_content", "result_accept_content"):
        assert config[name] == ["json"]
