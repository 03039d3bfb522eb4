"""The output of `kronos models`, and its subcommands register, promote and rollback."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kronos_cli.main import cli
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import FILES
from kronos_model.checkpoints.names import BUNDLED_FOLDER
from kronos_model.errors import CheckpointError

METADATA = {
    "max_context": 128,
    "parent": {"model": "NeoQuasar/Kronos-small", "revision": "901c26c1332695a2a8f243eb2f37243a37bea320"},
    "data_fingerprint": "4f2e9a7710aa55",
    "metrics": {"tokenizer": {"best_loss": 0.03125}, "predictor": {"best_loss": 4.5678}},
    "evaluation": {
        "models": {
            "finetuned": {"against": {"start": {"difference": 3.14}, "bootstrap": {"difference": -0.27}}}
        }
    },
}


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRegistry:
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", str(tmp_path / "models"))
    monkeypatch.setenv("COLUMNS", "80")
    return ModelRegistry(tmp_path / "models")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text(file)
    return tmp_path / "checkpoint"


def models(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["models", *map(str, arguments)])


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_every_version_is_shown_with_its_origin_and_its_quality(registry, checkpoint):
    model = registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata=METADATA)
    registry.register(checkpoint, "bare", job_id="job-2", fingerprint="f", metadata={"max_context": 8})
    result = models()
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
    output = models().output
    assert ["desk@1", "damaged"] in rows(output)
    assert "desk@1: " in output
    assert "metadata.json" in "".join(output.split())
    assert "desk@2" in output
    listed = json.loads(models("--json").output)
    assert listed["folder"] == str(registry.folder)
    newest, oldest = listed["models"]
    assert (newest["id"], newest["damaged"], newest["metrics"]) == ("desk@2", None, METADATA["metrics"])
    assert (oldest["id"], oldest["version"]) == ("desk@1", 1)
    assert "metadata.json" in oldest["damaged"]


def test_metadata_are_never_markup_and_never_break_the_table(registry, checkpoint):
    odd = {"parent": {"model": "[red]x[/red]"}, "metrics": [1], "evaluation": "none", "data_fingerprint": {}}
    registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata={"max_context": 8} | odd)
    result = models()
    assert result.exit_code == 0, result.output
    assert "[red]x[/red]" in result.output


def test_an_empty_folder_is_named(registry):
    result = models()
    assert result.exit_code == 0
    assert result.output == f"Registered models in {registry.folder}: none yet\n"
    assert json.loads(models("--json").output) == {"folder": str(registry.folder), "models": []}


def test_without_a_folder_the_setting_is_named(registry, monkeypatch):
    monkeypatch.delenv("KRONOS_MODEL_FOLDER")
    result = models()
    assert result.exit_code == 1
    assert "KRONOS_MODEL_FOLDER is not set" in result.output


BUNDLED = BUNDLED_FOLDER / "kronos-tiny"


def register(*arguments: object) -> Any:
    return models("register", *arguments)


def test_the_checkpoint_of_a_training_is_registered_once_with_its_metadata(registry):
    for _ in range(2):
        done = register(BUNDLED, "--name", "mine")
        assert (done.exit_code, done.stdout) == (0, "mine@1\n"), done.output
    model = registry.resolve("mine")
    model.verify()
    training = json.loads((BUNDLED / "metadata.json").read_text())
    assert (model.metadata.max_context, model.metadata.job_id) == (training["max_context"], "")
    assert model.metadata.lookback == training["lookback"]
    assert models().stdout.count("mine@1") == 2


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


@pytest.fixture
def versions(registry: ModelRegistry) -> list[str]:
    """Three versions of one name, with the same weights."""
    return [
        registry.register(
            BUNDLED, "mine", job_id=str(number), fingerprint="f", metadata={"max_context": 64}
        ).reference
        for number in range(3)
    ]


def backtest_of(folder: Path, new: str, present: str, *, num_windows: int = 30, **by: Any) -> Path:
    """A folder with the part of a report that a promotion reads."""
    info = {
        number: {"id": reference.partition("@")[0], "revision": reference.partition("@")[2]}
        for number, reference in (("a", new), ("b", present))
    }
    against = {"b": {"verdict": "unclear", "difference": 1.0, "low": -1.0, "high": 3.0} | by}
    report = {"model_info": info, "models": {"a": {"against": against}, "b": {"against": {}}}}
    report["num_windows"] = num_windows
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_a_name_means_its_newest_version_until_one_is_promoted_and_again_after_a_rollback(registry, versions):
    assert registry.resolve("mine").version == 3
    assert models("promote", "mine@2", "--force").output == "mine means mine@2 now, instead of mine@3.\n"
    registry.register(BUNDLED, "mine", job_id="new", fingerprint="f", metadata={"max_context": 64})
    assert registry.resolve("mine").version == 2
    assert models("promote", "mine@2").exit_code == 0, "it is what the name means already"
    models("promote", "mine@1", "--force")
    listed = models()
    assert "mine means mine@1." in listed.output
    current = {one["id"] for one in json.loads(models("--json").output)["models"] if one["current"]}
    assert current == {"mine@1"}
    registry.delete("mine@1")
    assert registry.resolve("mine").version == 2, "the version before takes the place of a deleted one"
    outputs = [models("rollback", "mine").output for _ in range(2)]
    assert outputs == [
        "mine means mine@2 now.\n",
        "mine means mine@4 now, instead of mine@2.\n"
        "No promotion is left, so mine means its newest version.\n",
    ]
    assert registry.resolve("mine").version == 4
    assert "no version of mine was promoted" in models("rollback", "mine").stderr
    assert "no registered model is called mnie; did you mean mine?" in models("rollback", "mnie").stderr


def test_a_damaged_version_can_be_replaced(registry, versions):
    def damage(version: int) -> None:
        (registry.folder / "mine" / str(version) / "metadata.json").write_text("{")

    models("promote", "mine@1", "--force")
    models("promote", "mine@2", "--force")
    damage(2)
    assert models("rollback", "mine").output == "mine means mine@1 now.\n"
    damage(1)
    assert models("promote", "mine@3", "--force").output == "mine means mine@3 now.\n"
    assert "no version that can be used" in models("rollback", "mine").output


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ({"verdict": "worse", "difference": -7.25, "low": -9.0}, "it is 7.2 % worse than mine@3"),
        ({"low": None}, "too few windows"),
        ({"num_windows": 6}, "has too few windows to compare them: 6. Ask for 30 or more"),
        ({"verdict": "unclear"}, None),
        ({"verdict": "better"}, None),
        ({"difference": 0.0, "low": 0.0}, None),
    ],
)
def test_a_version_is_promoted_only_if_a_backtest_says_that_it_is_no_worse(
    registry, versions, tmp_path, by, reason
):
    done = models("promote", "mine@1", "--backtest", backtest_of(tmp_path, "mine@1", "mine@3", **by))
    assert done.exit_code == (reason is not None), done.output
    assert (reason or "mine means mine@1 now") in done.output
    if reason is None:
        assert "The backtest says: " in done.output
        assert ("which is no clear difference" in done.output) == (by.get("verdict") != "better")
    assert registry.resolve("mine").version == (1 if reason is None else 3)


def test_a_promotion_needs_a_version_and_a_backtest_of_both(registry, versions, tmp_path):
    other = backtest_of(tmp_path, "mine@2", "mine@3")
    (registry.folder / "report.json").write_text('{"rows": 3}')
    for arguments, reason in (
        (["mine"], "write NAME@VERSION"),
        (["mine@9"], "no version mine@9"),
        (["mine@1"], "but without a backtest, nothing says so. --force"),
        (["mine@1", "--backtest", other], "the backtest has no mine@1"),
        (["mine@1", "--backtest", registry.folder], "there is no report.json of that backtest"),
        (["mine@1", "--backtest", registry.folder / "mine"], "there is no report.json of that backtest"),
    ):
        done = models("promote", *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert reason in done.stderr


def test_a_damaged_record_of_promotions_names_the_file(registry, versions):
    (registry.folder / "mine" / "promotions.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"promotions.json of the registered model mine cannot be used"):
        registry.resolve("mine")
    assert registry.resolve("mine@1").version == 1
    assert models().exit_code == 0
