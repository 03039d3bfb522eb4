"""Checkpoints that cannot be used: the worker refuses to start in one line, or refuses that model alone."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.registry.model_registry import ModelRegistry
from tests.faults.accounting import Accounts
from tests.faults.fleet import Fleet, Worker
from tests.integration.conftest import PARITY
from tests.waiting import WAIT_S
from worker.inference.probe_child import model_report
from worker.settings import WorkerSettings

CONFIG, WEIGHTS = "model/config.json", "model/model.safetensors"
HTML = b"<!DOCTYPE html>\n<html><head><title>503</title></head>\n<body>Service\nUnavailable</body></html>\n"


@dataclass(frozen=True)
class Defect:
    """What happened to a folder of two checkpoints, and what is said of it."""

    spoil: Callable[[Path], object]
    code: ErrorCode
    text: str


def changed(**changes: object) -> Callable[[Path], object]:
    """The model's config with other values."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | changes))

    return change


def truncated(name: str, share: float) -> Callable[[Path], object]:
    def truncate(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return truncate


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model/pytorch_model.bin")


def reshaped(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name].repeat(2, *[1] * (tensors[name].dim() - 1))}, folder / WEIGHTS)


def not_finite(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, folder / WEIGHTS)


DEFECTS = {
    "no-folder": Defect(shutil.rmtree, ErrorCode.CHECKPOINT_MISSING, "neither"),
    "no-weights": Defect(lambda folder: (folder / WEIGHTS).unlink(), ErrorCode.CHECKPOINT_MISSING, "has no"),
    "no-config": Defect(lambda folder: (folder / CONFIG).unlink(), ErrorCode.CHECKPOINT_MISSING, "has no"),
    "pickle": Defect(pickled, ErrorCode.CHECKPOINT_MISSING, "is a pickle"),
    "truncated": Defect(truncated(WEIGHTS, 0.6), ErrorCode.CHECKPOINT_INVALID, "damaged"),
    "header-only": Defect(truncated(WEIGHTS, 0.001), ErrorCode.CHECKPOINT_INVALID, "damaged"),
    "empty": Defect(written(WEIGHTS, b""), ErrorCode.CHECKPOINT_INVALID, "damaged"),
    "html": Defect(written(WEIGHTS, HTML), ErrorCode.CHECKPOINT_INVALID, "damaged"),
    "huge-header": Defect(written(WEIGHTS, b"\xff" * 7 + b"\x7f{}"), ErrorCode.CHECKPOINT_INVALID, "damaged"),
    "shape": Defect(reshaped, ErrorCode.CHECKPOINT_INVALID, "does not fit its config.json"),
    "other-config": Defect(changed(n_layers=4), ErrorCode.CHECKPOINT_MISSING, "missing"),
    "nan": Defect(not_finite, ErrorCode.CHECKPOINT_INVALID, "not finite"),
    "config-html": Defect(written(CONFIG, HTML), ErrorCode.CHECKPOINT_INVALID, "JSON"),
    "config-list": Defect(written(CONFIG, b"[1]"), ErrorCode.CHECKPOINT_INVALID, "not an object"),
    "config-bytes": Defect(written(CONFIG, b"\xff\xfe\x00"), ErrorCode.CHECKPOINT_INVALID, "JSON"),
    "config-deep": Defect(written(CONFIG, b"[" * 100_000), ErrorCode.CHECKPOINT_INVALID, "JSON"),
    "config-types": Defect(changed(d_model="64"), ErrorCode.CHECKPOINT_INVALID, "expected int"),
    "config-zero": Defect(changed(n_heads=0), ErrorCode.CHECKPOINT_INVALID, "does not describe"),
    "config-negative": Defect(changed(d_model=-64), ErrorCode.CHECKPOINT_INVALID, "does not describe"),
    "config-huge": Defect(
        changed(ff_dim=10**12), ErrorCode.CHECKPOINT_INVALID, "config.json does not describe"
    ),
    "config-beyond": Defect(changed(ff_dim=10**30), ErrorCode.CHECKPOINT_INVALID, "does not describe"),
    "config-layers": Defect(
        changed(n_layers=10**9), ErrorCode.CHECKPOINT_INVALID, "does not fit its weights"
    ),
    "other-tokens": Defect(changed(s1_bits=3), ErrorCode.CHECKPOINT_INVALID, "does not fit"),
    "tokenizer-gone": Defect(
        lambda folder: shutil.rmtree(folder / "tokenizer"),
        ErrorCode.CHECKPOINT_INVALID,
        "is not known: name it",
    ),
    "metadata": Defect(written("metadata.json", b"{"), ErrorCode.CHECKPOINT_INVALID, "metadata.json"),
    "metadata-deep": Defect(
        written("metadata.json", b"[" * 100_000), ErrorCode.CHECKPOINT_INVALID, "metadata.json"
    ),
}


@pytest.fixture
def spoiled(tmp_path: Path) -> Callable[[str], Path]:
    def spoil(name: str) -> Path:
        folder = tmp_path / f"checkpoint-{name}"
        shutil.copytree(PARITY / "model", folder / "model")
        shutil.copytree(PARITY / "tokenizer", folder / "tokenizer")
        DEFECTS[name].spoil(folder)
        return folder

    return spoil


@pytest.mark.parametrize("name", DEFECTS)
def test_the_fault_of_a_checkpoint_is_one_line(spoiled: Callable[[str], Path], name: str):
    line = model_report("cpu", WorkerSettings.load(model=str(spoiled(name))))["error"]
    assert line.startswith(f"{DEFECTS[name].code}: ")
    assert DEFECTS[name].text in line
    assert "\n" not in line
    assert len(line) < 1000


CELERY = ("celery", "-A", "worker.app", "worker")
OWN = ("kronos_cli", "worker")
STARTS = [
    ("truncated", CELERY, ("--loglevel", "WARNING")),
    ("html", OWN, ()),
    ("shape", CELERY, ()),
    ("no-folder", CELERY, ()),
    ("config-html", OWN, ()),
]
NUM_SHORT = 2
"""The cases that run without ``--faults``."""


def assert_refused(worker: Worker, code: str, text: str) -> None:
    """Exactly one line says why, and it is the last that is said."""
    status = worker.process.wait(WAIT_S)
    log = worker.log.read_text()
    assert status == 1, log
    lines = [line for line in log.splitlines() if code in line]
    assert len(lines) == 1, log
    assert text in lines[0]
    assert "CRITICAL" in lines[0]
    assert not re.search(r"Traceback|Error:|\bERROR\b", log.replace(lines[0], "")), log
    assert worker.announcements() == []


@pytest.mark.parametrize(("name", "command", "arguments"), STARTS)
def test_a_worker_refuses_to_start_with_one_clear_line(
    fleet: Fleet,
    spoiled: Callable[[str], Path],
    at_length: bool,
    name: str,
    command: tuple[str, ...],
    arguments: tuple[str, ...],
):
    if not at_length and (name, command, arguments) not in STARTS[:NUM_SHORT]:
        pytest.skip("takes long: ./kronos test --faults")
    model = {"KRONOS_MODEL": str(spoiled(name)), "KRONOS_TOKENIZER": ""}
    worker = fleet.begin(*arguments, command=command, **model)
    assert_refused(worker, DEFECTS[name].code, DEFECTS[name].text)


def register(folder: Path, name: str) -> Path:
    """A model of this name in the registry; its version's folder."""
    return (
        ModelRegistry(folder)
        .register(PARITY, name, job_id=name, fingerprint=name, metadata={"max_context": 128})
        .folder
    )


def spoil_registered(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).chmod(0o644)
    (folder / WEIGHTS).write_bytes(content)


def test_a_registered_model_that_was_changed_is_no_workers_own(fleet: Fleet, tmp_path: Path):
    spoil_registered(register(tmp_path / "models", "desk"))
    settings = {
        "KRONOS_MODEL": "desk",
        "KRONOS_TOKENIZER": "",
        "KRONOS_MODEL_FOLDER": str(tmp_path / "models"),
    }
    worker = fleet.begin(command=CELERY, **settings)
    assert_refused(worker, ErrorCode.CHECKPOINT_INVALID, "SHA-256")


def test_further_models_that_are_damaged_fail_their_own_jobs_and_no_others(
    fleet: Fleet, accounts: Accounts, client: ForecastClient, spoiled: Callable[[str], Path], tmp_path: Path
):
    names = ["no-weights", "pickle", "truncated", "html", "shape", "nan", "config-html", "metadata"]
    damaged = {str(spoiled(name)): DEFECTS[name] for name in names}
    registered = register(tmp_path / "models", "desk")
    spoil_registered(registered)
    register(tmp_path / "models", "fine")
    worker = fleet.start(
        KRONOS_MODELS=",".join([*damaged, "kronos-tiny"]),
        KRONOS_MODEL_FOLDER=str(tmp_path / "models"),
        KRONOS_MAX_MODELS="4",
    )
    expected = {model: defect.code for model, defect in damaged.items()} | {
        "desk": ErrorCode.CHECKPOINT_INVALID
    }
    for model, code in expected.items():
        bad = accounts.submit(client, "small", model=model, seed=0)
        good = [
            accounts.submit(client, "small"),
            accounts.submit(client, "small", model="kronos-tiny", seed=99),
            accounts.submit(client, "small", model="fine", seed=99),
        ]
        with pytest.raises(JobError) as refused:
            bad.wait(WAIT_S)
        assert (refused.value.code, refused.value.field) == (code, "model")
        assert str(PARITY) not in refused.value.message
        for handle in good:
            handle.wait(WAIT_S)
    assert "Traceback" not in worker.log.read_text()
    accounts.assert_balanced(allowed=set(expected.values()))
