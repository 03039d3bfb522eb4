"""The output of ``kronos models``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kronos_cli.main import cli
from kronos_cli.settings import get_settings
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import FILES

METADATA = {
    "max_context": 128,
    "parent": {"model": "NeoQuasar/Kronos-small", "revision": "901c26c1332695a2a8f243eb2f37243a37bea320"},
    "data_fingerprint": "4f2e9a7710aa55",
    "metrics": {"tokenizer": {"best_loss": 0.03125}, "predictor": {"best_loss": 4.5678}},
    "evaluation": {
        "models": {
            "finetuned": {"against": {"start": {"difference": 3.14}, "last_value": {"difference": -0.27}}}
        }
    },
}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelRegistry]:
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", str(tmp_path / "models"))
    monkeypatch.setenv("COLUMNS", "80")
    get_settings.cache_clear()
    yield ModelRegistry(tmp_path / "models")
    get_settings.cache_clear()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text(file)
    return tmp_path / "checkpoint"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["models", *arguments])


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_every_version_is_shown_with_its_origin_and_its_quality(registry, checkpoint):
    model = registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata=METADATA)
    registry.register(checkpoint, "bare", job_id="job-2", fingerprint="f", metadata={"max_context": 8})
    result = run()
    assert result.exit_code == 0, result.output
    assert str(registry.folder) in result.output.splitlines()[0]
    day = f"{model.metadata.created_at:%Y-%m-%d}"
    losses, improvements = ["0.03125", "4.568"], ["+3.1", "%", "-0.3", "%"]
    parent = ["NeoQuasar/Kronos-small", "@901c26c1"]
    for row in (["desk@1", *parent, day, "4f2e9a77"], ["desk@1", *losses, *improvements], ["bare@1", day]):
        assert row in rows(result.output)


def test_a_damaged_version_is_shown_with_the_reason(registry, checkpoint):
    folder = registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata=METADATA).folder
    registry.register(checkpoint, "desk", job_id="job-2", fingerprint="f", metadata=METADATA)
    (folder / "metadata.json").write_text("{")
    output = run().output
    assert ["desk@1", "damaged"] in rows(output)
    assert "desk@1: " in output
    assert "metadata.json" in "".join(output.split())
    assert "desk@2" in output
    listed = json.loads(run("--json").output)
    assert listed["folder"] == str(registry.folder)
    newest, oldest = listed["models"]
    assert (newest["id"], newest["damaged"], newest["metrics"]) == ("desk@2", None, METADATA["metrics"])
    assert (oldest["id"], oldest["version"]) == ("desk@1", 1)
    assert "metadata.json" in oldest["damaged"]


def test_metadata_are_never_markup_and_never_break_the_table(registry, checkpoint):
    odd = {"parent": {"model": "[red]x[/red]"}, "metrics": [1], "evaluation": "none", "data_fingerprint": {}}
    registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata={"max_context": 8} | odd)
    result = run()
    assert result.exit_code == 0, result.output
    assert "[red]x[/red]" in result.output


def test_an_empty_folder_is_named(registry):
    result = run()
    assert result.exit_code == 0
    assert result.output == f"Registered models in {registry.folder}: none yet\n"
    assert json.loads(run("--json").output) == {"folder": str(registry.folder), "models": []}


def test_without_a_folder_the_setting_is_named(registry, monkeypatch):
    monkeypatch.delenv("KRONOS_MODEL_FOLDER")
    get_settings.cache_clear()
    result = run()
    assert result.exit_code == 1
    assert "KRONOS_MODEL_FOLDER is not set" in result.output
