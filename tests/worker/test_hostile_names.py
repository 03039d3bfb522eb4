"""Hostile names in jobs: paths out of the folders, and models that are not listed."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.jobs import Limits, parse_job
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.checkpoints import source as checkpoint_source
from kronos_model.errors import CheckpointError
from tests.kronos_client.contract.contract_jobs import series
from tests.waiting import WAIT_S
from tests.worker.inference.test_model_cache import FakeLoader, loaded, naming
from worker.inference.engine_thread import EngineThread
from worker.inference.model_cache import ModelCache
from worker.settings import WorkerSettings
from worker.tasks.attempt import job_of
from worker.training.job_inputs import check_path, check_start

LIMITS = Limits()
SECRET = "what-no-job-may-see"
OUTSIDE = [
    "../{secret}",
    "inside/../../{secret}",
    "inside/../../data/../{secret}",
    "./../{secret}",
    "..",
    "../",
    "{folder}/{secret}",
    "//{folder}/{secret}",
    "file://{folder}/{secret}",
    "~/{secret}",
    "~root/{secret}",
    "inside/link-out",
    "link-out-folder/{secret}",
    "link-up/../{secret}",
    "inside\\..\\..\\{secret}",
    "..\\{secret}",
    "%2e%2e/{secret}",
    "%2e%2e%2f{secret}",
    "..%c0%af{secret}",
    "\u2024\u2024/{secret}",  # one dot leaders
    "\uff0e\uff0e/{secret}",  # fullwidth full stops
    "..\u2215{secret}",  # division slash
    "..\uff0f{secret}",  # fullwidth solidus
    "\u202e../{secret}",
    "../{secret}\0",
    "inside\0/../../{secret}",
    "../{secret}\n",
    "a" * 256,
    "a/" * 400,
    "a" * 5000,
    "../" * 400 + "{secret}",
    "/proc/self/environ",
    "/dev/stdin",
    "\udcff\udcfe",
    "\ud800",
    "$HOME/{secret}",
    "`id`",
    "C:\\{secret}",
    "",
    " ",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder, with a secret next to it and links to the secret."""
    data = tmp_path / "data"
    (data / "inside").mkdir(parents=True)
    (data / "inside" / "candles.csv").write_text("x")
    secret = tmp_path / SECRET
    secret.mkdir()
    (secret / SECRET).write_text(SECRET)
    (data / "inside" / "link-out").symlink_to(secret / SECRET)
    (data / "link-out-folder").symlink_to(secret)
    (data / "link-up").symlink_to("..")
    return data


def text_of(error: JobError) -> str:
    return json.dumps(error.args)


def open_data(path: object, folder: Path) -> None:
    """Resolve as a worker does with a job."""
    data = parse_finetune_job({"name": "mine", "data": {"path": path}}, LIMITS).data
    for one in (data.path,) if isinstance(data.path, str) else data.path or ():
        check_path(folder, one)


def written(name: str, folder: Path) -> str:
    return name.format(secret=SECRET, folder=folder.parent) if "{" in name else name


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: ascii(name[:30])[1:-1].replace("/", "|"))
def test_no_path_of_a_job_leads_out_of_the_data_folder(name: str, folder: Path) -> None:
    path = written(name, folder)
    with pytest.raises(JobError) as refused:
        check_path(folder, path)
    assert refused.value.code == "DATA_NOT_ALLOWED"
    assert len(refused.value.message) < 200
    assert refused.value.message.isprintable()
    if str(folder.parent) not in path:
        assert str(folder.parent) not in text_of(refused.value)


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: ascii(name[:30])[1:-1].replace("/", "|"))
def test_a_job_that_passes_all_other_checks_has_no_path_outside(name: str, folder: Path) -> None:
    path = written(name, folder)
    for data in (path, [path], ["inside/candles.csv", path]):
        with pytest.raises(JobError) as refused:
            open_data(data, folder)
        assert refused.value.code in {"DATA_NOT_ALLOWED", "BAD_VALUE", "BAD_TYPE"}
        assert len(refused.value.message) < 300
        assert refused.value.message.isprintable()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any request to the hub or another server fail the test."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"the network was asked: {arguments}")

    monkeypatch.setattr(checkpoint_source, "fetch_checkpoint", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


UNLISTED = [
    "NeoQuasar/Kronos-base",
    "neoquasar/kronos-small",
    "NeoQuasar/Kronos-small@main",
    "NeoQuasar/Kronos-small=x/y",
    "NeoQuasar/Kronos-small,x/y",
    "NeoQuasar/Kronos-small ",
    " NeoQuasar/Kronos-small",
    "NeoQuasar//Kronos-small",
    "NeoQuasar/Kronos-small/",
    "NeoQuasar/\u212aronos-small",  # the Kelvin sign
    "Neo\u200bQuasar/Kronos-small",
    "https://huggingface.co/NeoQuasar/Kronos-small",
    "hf://NeoQuasar/Kronos-small",
    "kronos-tiny@1",
    "./kronos-tiny",
    "kronos-tiny/model",
    "../checkpoints/kronos-tiny",
    "registered@0",
    "registered@01",
    "registered@9",
    "registered@1/../..",
    "registered/1",
    "registered/../registered",
    "Registered",
    "registered\0",
    ".runs",
    ".staging-1",
    ".last",
    "..",
    ".",
    "/",
    "",
    *OUTSIDE,
]


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    registry = ModelRegistry(tmp_path / "models")
    bundled = Path(checkpoint_source.BUNDLED_FOLDER) / "kronos-tiny"
    registry.register(bundled, "registered", job_id="a", fingerprint="f", metadata={"max_context": 64})
    return registry


@pytest.fixture
def engine_thread() -> Iterator[EngineThread]:
    engine_thread = EngineThread()
    engine_thread.start()
    yield engine_thread
    engine_thread.stop()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", UNLISTED, ids=lambda name: ascii(name[:30])[1:-1].replace("/", "|"))
def test_a_forecast_cannot_name_a_model_that_is_not_listed(
    name: str, registry: ModelRegistry, engine_thread: EngineThread, folder: Path
) -> None:
    loader = FakeLoader(registry)
    pool = ModelCache(engine_thread, loader, loaded("own"), naming("NeoQuasar/Kronos-small"))
    name = written(name, folder)
    with pytest.raises(JobError) as refused:
        pool.find(parse_job({"series": [series()], "pred_len": 5, "model": name}, LIMITS).model)
    assert refused.value.code in {"MODEL_NOT_ALLOWED", "BAD_VALUE"}
    assert refused.value.field == "model"
    assert len(refused.value.message) < 300
    assert loader.started == []
    assert str(registry.folder) not in text_of(refused.value)


def test_the_error_of_a_damaged_model_has_no_path(
    engine_thread: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    loader = FakeLoader()
    loader.errors["further"] = CheckpointError(
        "/srv/models/further/model.safetensors is damaged", details={"in": ["/srv/models/further"]}
    )
    pool = ModelCache(engine_thread, loader, loaded("own"), naming("further"))
    entry = pool.hold(pool.find("further"))
    assert wait([entry.loading], WAIT_S).done
    with pytest.raises(JobError) as refused:
        assert entry.served
    assert refused.value.message == "…/model.safetensors is damaged"
    assert "srv" not in text_of(refused.value)
    assert "/srv/models/further/model.safetensors is damaged" in caplog.text


@pytest.mark.parametrize("key", ["\ud800", "\n" * 500, "\x1b[31m"])
def test_other_arguments_of_a_task_are_shown_short_and_escaped(key: str) -> None:
    with pytest.raises(JobError) as refused:
        job_of((), {"job": {}, key: 1})
    assert len(refused.value.field) < 400
    assert refused.value.field.isprintable()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("part", ["model", "tokenizer"])
@pytest.mark.parametrize("name", UNLISTED, ids=lambda name: ascii(name[:30])[1:-1].replace("/", "|"))
def test_training_cannot_start_from_a_model_that_is_not_listed(
    name: str, part: str, registry: ModelRegistry, folder: Path
) -> None:
    settings = WorkerSettings.model_construct(model="NeoQuasar/Kronos-small", models=str(folder))
    name = written(name, folder)
    payload = {"name": "mine", "data": {"path": "a.csv"}, "config": {"start": {part: name}}}
    with pytest.raises(JobError) as refused:
        check_start(parse_finetune_job(payload, LIMITS).finetune_config(), settings, registry)
    # The workers' own model is not a tokenizer.
    assert refused.value.code in {"MODEL_NOT_ALLOWED", "INVALID_CONFIG", "LIMIT_EXCEEDED"}
    assert len(refused.value.message) < 400
    assert refused.value.message.isprintable()
    if str(folder.parent) not in name:
        assert str(folder.parent) not in text_of(refused.value)
