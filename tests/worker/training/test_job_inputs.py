"""What a finetuning job may name: paths in the data folder, and checkpoints to start from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.finetuning.config import FinetuneConfig, parse_config
from worker.settings import WorkerSettings
from worker.training.job_inputs import check_path, check_start


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    (root / "asia" / "tokyo").mkdir(parents=True)
    (root / "asia" / "tokyo" / "a.csv").write_text("")
    (root / "b.csv").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.csv").write_text("")
    return root


@pytest.mark.parametrize("path", ["b.csv", "asia", "asia/tokyo/a.csv", "."])
def test_paths_inside_are_allowed(folder, path):
    assert check_path(folder, path) == (folder / path).resolve()


def test_links_that_stay_inside_are_allowed(folder):
    (folder / "same.csv").symlink_to("b.csv")
    (folder / "same").symlink_to(folder / "asia")
    assert check_path(folder, "same.csv") == folder / "b.csv"
    assert check_path(folder, "same") == folder / "asia"
    assert check_path(folder, ".") == folder


def test_a_data_folder_that_is_a_link_itself_is_allowed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert check_path(tmp_path / "link", "b.csv") == folder / "b.csv"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("out", "outside"),
        ("out.csv", "outside/secret.csv"),
        ("asia/tokyo/out.csv", "outside/secret.csv"),
        ("asia/out", "outside"),
    ],
)
@pytest.mark.parametrize("named", ["link", "."])
def test_links_that_lead_out_are_refused_at_any_depth(folder, tmp_path, link, target, named):
    (folder / link).symlink_to(tmp_path / target)
    with pytest.raises(JobError) as refused:
        check_path(folder, link if named == "link" else named)
    assert refused.value.code == ErrorCode.DATA_NOT_ALLOWED


def test_what_cannot_be_read_is_refused_with_the_setting_of_the_folder(folder):
    (folder / "circle").symlink_to("circle")
    for path in ("circle", "nowhere"):
        with pytest.raises(JobError, match=f"'{path}' cannot be read in the worker's KRONOS_DATA_FOLDER"):
            check_path(folder, path)


def test_without_a_folder_nothing_is_allowed():
    with pytest.raises(JobError, match="KRONOS_DATA_FOLDER"):
        check_path(None, "b.csv")


BUNDLED = Path(__file__).parents[3] / "kronos_model" / "bundled" / "kronos-tiny"


def config(model: str, **start: object) -> FinetuneConfig:
    return parse_config({"data": {"path": "."}, "start": {"model": model, **start}})


class Worker(NamedTuple):
    settings: WorkerSettings
    registry: ModelRegistry

    def check(self, given: FinetuneConfig) -> tuple[FinetuneConfig, Mapping[Any, RegisteredModel]]:
        return check_start(given, self.settings, self.registry)


@pytest.fixture
def models(settings, tmp_path):
    settings = settings.model_copy(
        update={
            "model": "owner/own",
            "model_revision": "abc",
            "tokenizer": "owner/tokenizer",
            "models": f"owner/further=owner/other@v1,{tmp_path}",
        }
    )
    registry = ModelRegistry(tmp_path / "models")
    for _ in range(2):
        registry.register(BUNDLED, "mine", job_id=f"job{_}", fingerprint="f", metadata={"max_context": 64})
    return Worker(settings, registry)


@pytest.mark.parametrize(
    ("given", "model", "revision"),
    [
        (config("kronos-tiny"), "kronos-tiny", None),
        (config("tiny"), "tiny", None),
        (config("owner/own"), "owner/own", "abc"),
        (config("owner/own", model_revision="abc"), "owner/own", "abc"),
        (config("owner/further"), "owner/further", None),
    ],
)
def test_bundled_and_listed_models_are_allowed_at_their_revision(models, given, model, revision):
    checked, registered = models.check(given)
    assert (checked.start.model, checked.start.model_revision, registered) == (model, revision, {})


def test_a_tokenizer_is_checked_in_the_same_way(models):
    checked, _ = models.check(config("owner/own", tokenizer="owner/other"))
    assert (checked.start.tokenizer, checked.start.tokenizer_revision) == ("owner/other", "v1")
    with pytest.raises(JobError) as refused:
        models.check(config("owner/own", tokenizer="owner/own"))
    assert refused.value.field == "config.start.tokenizer"


def test_the_workers_own_model_may_be_a_registered_one(models):
    own = Worker(models.settings.model_copy(update={"model": "mine"}), models.registry)
    assert own.check(config("mine"))[1]["model"].reference == "mine@2"


def test_a_registered_model_is_allowed_by_name_and_version(models):
    assert models.check(config("mine"))[1]["model"].reference == "mine@2"
    assert models.check(config("mine@1"))[1]["model"].reference == "mine@1"


@pytest.mark.parametrize(
    "given",
    [
        config("NeoQuasar/Kronos-small"),
        config("owner/own", model_revision="main"),
        config("mine@3"),
        config("mine", model_revision="main"),
        config("../models/mine/1"),
        config("nobody"),
    ],
)
def test_any_other_model_is_refused_and_named_in_the_message(models, given):
    with pytest.raises(JobError) as refused:
        models.check(given)
    assert (refused.value.code, refused.value.field) == (ErrorCode.MODEL_NOT_ALLOWED, "config.start.model")
    assert "kronos-tiny" in refused.value.details["allowed"]


def test_a_misspelled_registered_model_has_its_nearest(models):
    with pytest.raises(JobError, match=r"; did you mean mine\?"):
        models.check(config("mime@1"))


def test_a_registered_model_that_was_changed_is_refused(models):
    weights = models.registry.resolve("mine").folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(JobError) as refused:
        models.check(config("mine"))
    assert refused.value.code == ErrorCode.CHECKPOINT_INVALID


def test_a_folder_of_the_settings_is_found_from_any_working_folder(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    models = Worker(settings.model_copy(update={"model": "own"}), ModelRegistry(tmp_path))
    assert models.check(config("own"))[0].start.model == str(tmp_path / "own")


def test_a_computed_tokenizer_is_trained_only_if_the_config_says_so(models):
    """Training would spoil it: also that of a registered model that comes from the bundled one."""
    models.registry.register(
        BUNDLED, "copy", job_id="c", fingerprint="f", metadata={"max_context": 64, "for_trying": True}
    )
    given = {"data": {"path": "."}, "start": {"model": "copy"}}
    both = ("tokenizer", "predictor")
    assert [models.check(config(name))[0].stages for name in ("tiny", "copy", "mine", "owner/own")] == [
        ("predictor",),
        ("predictor",),
        both,
        both,
    ]
    assert models.check(config("owner/own", tokenizer="copy"))[0].stages == ("predictor",)
    assert models.check(parse_config(given | {"stages": both}))[0].stages == both
