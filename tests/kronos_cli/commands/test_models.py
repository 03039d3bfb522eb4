"""`kronos models register`: checkpoints that were trained without a job."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kronos_cli.main import cli
from kronos_cli.settings import get_settings
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.checkpoints.source import BUNDLED_FOLDER

BUNDLED = BUNDLED_FOLDER / "kronos-tiny"


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelRegistry]:
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", str(tmp_path / "models"))
    get_settings.cache_clear()
    yield ModelRegistry(tmp_path / "models")
    get_settings.cache_clear()


def register(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["models", "register", *map(str, arguments)])


def test_the_checkpoint_of_a_training_is_registered_once_with_its_metadata(registry):
    for _ in range(2):
        done = register(BUNDLED, "--name", "mine")
        assert (done.exit_code, done.stdout) == (0, "mine@1\n"), done.output
    model = registry.resolve("mine")
    model.verify()
    training = json.loads((BUNDLED / "metadata.json").read_text())
    assert (model.metadata.max_context, model.metadata.job_id) == (training["max_context"], "")
    assert model.metadata.lookback == training["lookback"]
    assert CliRunner().invoke(cli, ["models"]).stdout.count("mine@1") == 2


def test_two_folders_of_save_pretrained_are_registered_together(registry, tmp_path):
    model, tokenizer = (
        shutil.copytree(BUNDLED / part, tmp_path / part[0]) for part in ("model", "tokenizer")
    )
    done = register(model, "--tokenizer", tokenizer, "--name", "mine", "--max-context", 100, "--json")
    assert (json.loads(done.stdout)["id"], json.loads(done.stdout)["max_context"]) == ("mine@1", 100)
    registry.resolve("mine@1").verify()
    assert (
        json.loads(register(model, "--tokenizer", tokenizer, "--name", "b", "--json").stdout)["max_context"]
        == 512
    )


def test_what_no_worker_could_load_is_refused_with_one_line(registry, tmp_path):
    model, tokenizer = (
        shutil.copytree(BUNDLED / part, tmp_path / part[0]) for part in ("model", "tokenizer")
    )
    config = json.loads((tokenizer / "config.json").read_text())
    (tokenizer / "config.json").write_text(json.dumps(config | {"s1_bits": 99}))
    (tmp_path / "empty").mkdir()
    for arguments, reason in (
        ([model, "--tokenizer", tokenizer], "different token sizes"),
        ([model], "no checkpoint folder"),
        ([tmp_path / "empty", "--tokenizer", tmp_path / "empty"], "has no model/config.json"),
    ):
        done = register(*arguments, "--name", "mine")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert reason in done.stderr
    assert "bundled model" in register(BUNDLED, "--name", "kronos-tiny").stderr
    assert registry.list() == []
