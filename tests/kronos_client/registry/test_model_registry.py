"""Registering a checkpoint as a version of a name, finding it again, and what nobody may make of a name."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kronos_client.registry import model_registry
from kronos_client.registry.model_registry import (
    MAX_VERSION,
    DamagedModel,
    ModelRegistry,
    check_name,
    promote,
    roll_back,
)
from kronos_client.registry.registered_model import FILES
from kronos_model.atomic_write import STAGING_AGE_S
from kronos_model.checkpoints.names import comes_from_bundled
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import CheckpointError, CheckpointMissing, DiskFull, FinetuningConfigError
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
METADATA = {
    "max_context": 128,
    "lookback": 90,
    "pred_len": 30,
    "parent": {"model": "kronos-tiny", "revision": None, "tokenizer": "kronos-tiny"},
    "data_fingerprint": "abc",
    "metrics": {"predictor": {"best_loss": 4.5}},
    "evaluation": {"improvements": {"start": {"percent": 3.0}}},
    "config": {"seed": 7},
    "trained": True,
    "device": "cpu",
}
TRICKS = [
    "", ".", "..", "../desk", "desk/..", "desk/1", "/etc", "/etc/passwd", "desk/../desk", "desk@", "desk@0",
    "desk@01", "desk@-1", "desk@../1", "desk@1/..", "desk@1@1", "desk@x", "desk@\u0661", "desk\n", "desk\0",
    "DESK", "-desk", ".desk", "_desk", "d\xe9sk", "desk ", "a" * 65, "desk@9999999999", ".staging-1", "~",
    "C:desk", "desk@*",
]  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "models")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of finetuning, with further files that are not to be copied."""
    folder = tmp_path / "run" / "checkpoint"
    for file in (*FILES, "metadata.json", "model/optimiser.bin"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"content of {file}")
    return folder


def register(registry: ModelRegistry, checkpoint: Path, name: str = "desk", job_id: str = "job-1"):
    return registry.register(checkpoint, name, job_id=job_id, fingerprint="asked", metadata=METADATA)


def retrain(checkpoint: Path) -> None:
    (checkpoint / "model" / "model.safetensors").write_text("other weights")


def references(registry: ModelRegistry) -> list[str]:
    return [model.reference for model in registry.list()]


def leftovers(registry: ModelRegistry) -> list[str]:
    return [path.name for path in registry.folder.glob(".staging-*")]


def test_a_registered_model_is_found_by_name_and_by_version(registry, checkpoint):
    first = register(registry, checkpoint)
    assert (first.name, first.version, first.reference) == ("desk", 1, "desk@1")
    assert registry.resolve("desk") == registry.resolve("desk@1") == first
    second = register(registry, checkpoint, job_id="job-2")
    assert registry.resolve("desk") == registry.resolve("desk@2") == second
    assert registry.resolve("desk@1") == first != second
    assert registry.resolve("desk@3") is None
    assert registry.resolve("other") is None
    assert leftovers(registry) == []


def test_what_lies_in_the_folder_is_what_a_reader_needs_and_no_more(registry, checkpoint):
    before = datetime.now(UTC).replace(microsecond=0)
    folder = register(registry, checkpoint).folder
    assert folder == registry.folder / "desk" / "1"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*FILES, "metadata.json"}
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata.items() >= METADATA.items()
    assert (metadata["name"], metadata["version"]) == ("desk", 1)
    assert (metadata["job_id"], metadata["job_fingerprint"]) == ("job-1", "asked")
    assert before <= datetime.fromisoformat(metadata["created_at"]) <= datetime.now(UTC)
    assert metadata["sha256"].keys() == set(FILES)
    assert read_metadata(folder)["trained"] is True


def test_what_comes_from_a_bundled_model_is_noted_for_all_that_come_from_it(registry, checkpoint):
    first = register(registry, checkpoint)

    def trained_from(parent: str, job_id: str):
        metadata = METADATA | {"parent": {"model": parent}}
        return registry.register(checkpoint, "own", job_id=job_id, fingerprint="f", metadata=metadata)

    second = trained_from(first.reference, "2")
    registry.delete(first.reference)
    third, other = trained_from(second.reference, "3"), trained_from(first.reference, "4")
    assert [comes_from_bundled(one.metadata.model_dump()) for one in (first, second, third)] == [True] * 3
    assert not comes_from_bundled(other.metadata.model_dump()), "nothing says where it comes from"


def test_a_number_that_is_none_is_json_for_any_reader(registry, checkpoint):
    metadata = METADATA | {"metrics": {"loss": float("nan")}}
    folder = registry.register(checkpoint, "desk", job_id="j", fingerprint="f", metadata=metadata).folder
    text = (folder / "metadata.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["metrics"] == {"loss": None}


def test_the_same_job_registers_once(registry, checkpoint):
    first = register(registry, checkpoint)
    register(registry, checkpoint, job_id="job-2")
    assert register(registry, checkpoint) == first
    assert references(registry) == ["desk@2", "desk@1"]


def test_an_id_that_comes_again_for_other_content_registers_that(registry, checkpoint):
    """Nightly jobs have fixed ids, and their records expire."""
    first = register(registry, checkpoint)
    retrain(checkpoint)
    second = register(registry, checkpoint)
    assert (first.version, second.version) == (1, 2)
    second.verify()
    assert second.metadata.sha256 != first.metadata.sha256
    third = registry.register(checkpoint, "desk", job_id="job-1", fingerprint="more", metadata=METADATA)
    assert (third.version, third.metadata.job_fingerprint) == (3, "more")
    assert register(registry, checkpoint) == second


def test_a_job_that_is_registered_needs_no_room_to_be_found_so(registry, checkpoint, monkeypatch):
    first = register(registry, checkpoint)
    monkeypatch.setattr(model_registry, "copy_checkpoint", lambda *_: pytest.fail("it was copied"))
    assert register(registry, checkpoint) == first


def test_a_job_whose_version_lost_its_weights_registers_anew(registry, checkpoint):
    (register(registry, checkpoint).folder / "model" / "model.safetensors").unlink()
    again = register(registry, checkpoint)
    assert again.version == 2
    again.verify()


def test_a_number_is_given_once_whatever_is_deleted(registry, checkpoint):
    for number in range(1, 4):
        register(registry, checkpoint, job_id=f"job-{number}")
    for version in (2, 3):
        shutil.rmtree(registry.folder / "desk" / str(version))
    assert registry.resolve("desk").version == 1
    assert register(registry, checkpoint, job_id="job-4").version == 4
    for version in (1, 4):
        shutil.rmtree(registry.folder / "desk" / str(version))
    assert registry.resolve("desk") is None
    assert register(registry, checkpoint, job_id="job-5").version == 5


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"many", b"-1", b"1", b"9999999"])
def test_where_the_highest_number_is_not_known_those_that_are_there_decide(registry, checkpoint, content):
    for number in (1, 2):
        register(registry, checkpoint, job_id=f"job-{number}")
    last = registry.folder / "desk" / ".last"
    last.unlink() if content is None else last.write_bytes(content)
    assert register(registry, checkpoint, job_id="job-3").version == 3


def test_a_newest_version_that_is_half_deleted_leaves_the_name_to_the_one_before(registry, checkpoint):
    kept = register(registry, checkpoint)
    (registry.folder / "desk" / "50" / "model").mkdir(parents=True)
    (registry.folder / "desk" / "51").write_text("a file")
    assert registry.resolve("desk") == registry.resolve("desk@1") == kept
    for reference in ("desk@50", "desk@51"):
        with pytest.raises(CheckpointMissing, match=f"{reference} has no metadata.json"):
            registry.resolve(reference)
    listed = registry.list()
    assert [model.reference for model in listed] == ["desk@51", "desk@50", "desk@1"]
    assert [isinstance(model, DamagedModel) for model in listed] == [True, True, False]
    assert register(registry, checkpoint, job_id="job-2").version == 52


def test_a_name_whose_every_version_is_half_deleted_is_not_there(registry, checkpoint):
    (register(registry, checkpoint).folder / "metadata.json").unlink()
    assert registry.resolve("desk") is None
    assert references(registry) == ["desk@1"]


@pytest.mark.parametrize("number", [MAX_VERSION + 1, 20250131, 99999999, 999999999])
def test_a_folder_with_too_high_a_number_is_no_version(registry, checkpoint, number):
    register(registry, checkpoint)
    (registry.folder / "desk" / str(number)).mkdir()
    assert register(registry, checkpoint, job_id="job-2") == registry.resolve("desk@2")
    assert references(registry) == ["desk@2", "desk@1"]
    assert registry.resolve(f"desk@{number}") is None


@pytest.mark.parametrize("is_next_taken", [False, True])
def test_after_the_last_number_there_is_none(registry, checkpoint, is_next_taken):
    """The folder of the one after it, with something in it, would else be tried for ever."""
    (registry.folder / "desk" / str(MAX_VERSION - 1)).mkdir(parents=True)
    if is_next_taken:
        (registry.folder / "desk" / str(MAX_VERSION + 1) / "model").mkdir(parents=True)
    newest = register(registry, checkpoint)
    assert newest.version == MAX_VERSION
    assert registry.resolve("desk") == registry.resolve(newest.reference) == newest
    with pytest.raises(FinetuningConfigError, match="choose another name") as refused:
        register(registry, checkpoint, job_id="job-2")
    assert refused.value.field == "name"
    assert (references(registry)[0], leftovers(registry)) == (newest.reference, [])


def test_the_same_job_on_two_workers_at_once_registers_once(registry, checkpoint, monkeypatch):
    """Both looked before either had registered."""
    both_looked = threading.Barrier(2)
    copy = model_registry.copy_checkpoint
    monkeypatch.setattr(model_registry, "copy_checkpoint", lambda *a: (both_looked.wait(WAIT_S), copy(*a))[1])
    with ThreadPoolExecutor(2) as threads:
        models = list(threads.map(lambda _: register(registry, checkpoint), range(2)))
    assert models[0] == models[1]
    assert references(registry) == ["desk@1"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_registrations_that_race_become_versions_of_their_own(registry, checkpoint, monkeypatch, has_locks):
    """Also on a network folder that has no locks; all of them see the same newest version first."""
    num_racers = 4
    start = threading.Barrier(num_racers)
    copy = model_registry.copy_checkpoint
    monkeypatch.setattr(model_registry, "copy_checkpoint", lambda *a: (copy(*a), start.wait(WAIT_S))[0])
    if not has_locks:

        def refuse(*_: object) -> None:
            raise OSError("no locks here")

        monkeypatch.setattr("fcntl.flock", refuse)
    with ThreadPoolExecutor(num_racers) as threads:
        jobs = [f"job-{number}" for number in range(num_racers)]
        models = list(threads.map(lambda job: register(registry, checkpoint, job_id=job), jobs))
    assert sorted(model.version for model in models) == [1, 2, 3, 4]
    for job, model in zip(jobs, models, strict=True):
        model.verify()
        assert registry.resolve(model.reference).metadata.job_id == job


CRASH = """
import os, sys
from pathlib import Path
from kronos_client.registry.model_registry import ModelRegistry
Path.rename = lambda *_: os._exit(9)
ModelRegistry(Path(sys.argv[1])).register(
    Path(sys.argv[2]), "desk", job_id="job-1", fingerprint="f", metadata={"max_context": 8}
)
"""


def test_a_crash_leaves_nothing_that_anybody_sees(registry, checkpoint):
    crashed = subprocess.run(
        [sys.executable, "-c", CRASH, str(registry.folder), str(checkpoint)], cwd=ROOT, check=False
    )
    assert crashed.returncode == 9
    (staging,) = leftovers(registry)
    assert registry.list() == []
    assert registry.resolve("desk") is None
    assert register(registry, checkpoint).version == 2  # the first number may be in somebody's notes
    assert leftovers(registry) == [staging]  # it may be another's, that is at work
    old = registry.folder.stat().st_mtime - STAGING_AGE_S - 60
    os.utime(registry.folder / staging, (old, old))
    register(registry, checkpoint, job_id="job-2")
    assert leftovers(registry) == []


@pytest.mark.parametrize("text", TRICKS)
def test_what_is_no_name_is_never_looked_for(registry, checkpoint, text, monkeypatch):
    register(registry, checkpoint)
    monkeypatch.setattr(model_registry, "entries_in", lambda folder, _: pytest.fail(f"{folder} was read"))
    monkeypatch.setattr(model_registry, "read_registered", lambda *_: pytest.fail("something was read"))
    assert registry.resolve(text) is None


def test_a_deleted_version_is_gone_and_its_number_is_not_used_again(registry, checkpoint):
    for job_id in ("job-1", "job-2"):
        register(registry, checkpoint, job_id=job_id)
    assert registry.delete("desk@2")
    assert not registry.delete("desk@2")
    assert registry.resolve("desk@2") is None
    assert registry.resolve("desk").version == 1
    assert register(registry, checkpoint, job_id="job-3").version == 3


@pytest.mark.parametrize("text", [*TRICKS, "desk", "desk@2", "kronos-tiny"])
def test_nothing_but_a_version_is_deleted(registry, checkpoint, text, tmp_path):
    register(registry, checkpoint)
    before = sorted(tmp_path.rglob("*"))
    assert not registry.delete(text)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [*TRICKS, "desk@1", "NeoQuasar/Kronos-small", "kronos-tiny"])
def test_no_model_is_registered_by_what_is_no_free_name(registry, checkpoint, name):
    with pytest.raises(FinetuningConfigError) as refused:
        register(registry, checkpoint, name)
    assert refused.value.field == "name"
    assert not registry.folder.exists()


@pytest.mark.parametrize("name", ["d", "0", "desk-2.1_b", "a" * 64, "desk.", "con"])
def test_names_that_may_be_are_registered(registry, checkpoint, name):
    check_name(name)
    assert register(registry, checkpoint, name) == registry.resolve(name)


def test_a_bundled_model_is_never_taken_from_the_folder(registry, checkpoint):
    register(registry, checkpoint)
    (registry.folder / "desk").rename(registry.folder / "kronos-tiny")
    assert registry.resolve("kronos-tiny") is None
    assert registry.resolve("kronos-tiny@1") is None


@pytest.mark.parametrize("missing", FILES)
def test_half_a_checkpoint_is_not_registered(registry, checkpoint, missing):
    (checkpoint / missing).unlink()
    with pytest.raises(CheckpointMissing, match=missing):
        register(registry, checkpoint)
    assert registry.list() == []


@pytest.mark.parametrize("metadata", [{}, {"max_context": 0}, METADATA | {"lookback": "many"}])
def test_metadata_that_cannot_serve_is_named(registry, checkpoint, metadata):
    with pytest.raises(CheckpointError, match=r"max_context|lookback"):
        registry.register(checkpoint, "desk", job_id="job-1", fingerprint="f", metadata=metadata)
    assert (registry.list(), leftovers(registry)) == ([], [])


@pytest.mark.parametrize("changed", FILES)
def test_a_file_that_was_changed_since_is_named(registry, checkpoint, changed):
    model = register(registry, checkpoint)
    model.verify()
    (model.folder / changed).write_text("another content")
    with pytest.raises(CheckpointError, match=changed):
        model.verify()
    (model.folder / changed).unlink()
    with pytest.raises(CheckpointMissing, match=changed):
        model.verify()


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "JSON"), ("[]", "object"), ("{}", "name"), (b"\xff", "JSON"), ('{"name": "a"}', "version")],
)
def test_damaged_metadata_is_a_coded_error_and_leaves_the_others_alone(registry, checkpoint, content, reason):
    kept = register(registry, checkpoint)
    other = register(registry, checkpoint, "other")
    path = register(registry, checkpoint, job_id="job-2").folder / "metadata.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("desk", "desk@2"):
        with pytest.raises(
            CheckpointError, match=r"metadata\.json of the registered model desk@2"
        ) as damaged:
            registry.resolve(name)
        assert damaged.value.code == "CHECKPOINT_INVALID"
    found = registry.list()
    assert [model.reference for model in found] == ["desk@2", "desk@1", "other@1"]
    assert isinstance(found[0], DamagedModel)
    assert reason.lower() in found[0].reason.lower()
    assert found[1:] == [kept, other]
    # Neither the number nor the job is taken for another's.
    assert register(registry, checkpoint, job_id="job-3").version == 3


def test_a_version_under_another_name_or_number_is_damaged(registry, checkpoint):
    folder = register(registry, checkpoint).folder
    for reference in ("desk@7", "stolen@1"):
        name, version = reference.split("@")
        shutil.copytree(folder, registry.folder / name / version)
        with pytest.raises(CheckpointError, match="moved or copied"):
            registry.resolve(reference)


@pytest.mark.parametrize("linked", ["desk", "desk/1", "desk/1/metadata.json"])
def test_a_link_that_leads_out_of_the_folder_is_refused(registry, checkpoint, tmp_path, linked):
    register(registry, checkpoint)
    outside = tmp_path / "outside"
    (registry.folder / linked).rename(outside)
    (registry.folder / linked).symlink_to(outside)
    with pytest.raises(CheckpointError, match="leads out"):
        registry.resolve("desk")
    (listed,) = registry.list()
    assert isinstance(listed, DamagedModel)
    assert "leads out" in listed.reason


@pytest.mark.parametrize("linked", [*FILES, "model"])
def test_weights_that_lie_elsewhere_are_refused(registry, checkpoint, tmp_path, linked):
    model = register(registry, checkpoint)
    outside = tmp_path / "outside"
    (model.folder / linked).rename(outside)
    (model.folder / linked).symlink_to(outside)
    with pytest.raises(CheckpointError, match="leads out"):
        model.verify()


def test_links_in_a_circle_are_refused(registry, checkpoint):
    register(registry, checkpoint)
    (registry.folder / "loop").symlink_to(registry.folder / "loop")
    with pytest.raises(CheckpointError, match="leads out"):
        registry.resolve("loop")
    assert references(registry) == ["desk@1", "loop"]


def test_the_folder_itself_may_be_a_link(registry, checkpoint, tmp_path):
    (tmp_path / "disk").mkdir()
    registry.folder.symlink_to(tmp_path / "disk")
    register(registry, checkpoint).verify()
    assert registry.resolve("desk").version == 1


def test_a_folder_that_is_not_there_has_no_models(registry):
    assert registry.list() == []
    assert registry.resolve("desk") is None


def test_what_else_lies_in_the_folder_is_no_model(registry, checkpoint):
    register(registry, checkpoint)
    (registry.folder / "README").write_text("hello")
    (registry.folder / "notes").write_text("a file")
    for folder in ("empty", "desk/draft", "desk/02", ".hidden/1"):
        (registry.folder / folder).mkdir(parents=True)
    assert references(registry) == ["desk@1"]
    assert registry.resolve("notes") is registry.resolve("empty") is None


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EDQUOT"])
def test_no_room_is_said_so_and_leaves_nothing(registry, checkpoint, monkeypatch, code):
    def fail(*_: object) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(model_registry.shutil, "copyfile", fail)
    with pytest.raises(DiskFull, match="KRONOS_MODEL_FOLDER") as full:
        register(registry, checkpoint)
    assert os.strerror(getattr(errno, code)) in full.value.message
    assert "desk" in full.value.message
    assert (registry.list(), leftovers(registry)) == ([], [])


@pytest.mark.parametrize(("code", "is_full"), [("EINVAL", False), ("EIO", True)])
def test_a_file_system_that_cannot_sync_folders_will_do(registry, checkpoint, monkeypatch, code, is_full):
    def fail(_: int) -> None:
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(os, "fsync", fail)
    if is_full:
        with pytest.raises(DiskFull, match=code):
            register(registry, checkpoint)
    else:
        register(registry, checkpoint).verify()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: run it as another user")
def test_a_folder_without_permission_is_said_so(registry, checkpoint):
    registry.folder.mkdir(mode=0o500)
    with pytest.raises(DiskFull, match="Permission denied"):
        register(registry, checkpoint)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("/")


DAMAGES = {
    "metadata gone": lambda folder: (folder / "metadata.json").unlink(),
    "metadata spoilt": lambda folder: (folder / "metadata.json").write_text("{"),
    "metadata a folder": lambda folder: replace_by_folder(folder / "metadata.json"),
    "metadata elsewhere": lambda folder: replace_by_link(folder / "metadata.json"),
    "metadata another's": lambda folder: shutil.move(folder, folder.with_name("2")),
    "weights gone": lambda folder: (folder / FILES[1]).unlink(),
    "weights changed": lambda folder: (folder / FILES[1]).write_text("other weights"),
    "weights a folder": lambda folder: replace_by_folder(folder / FILES[1]),
    "weights elsewhere": lambda folder: replace_by_link(folder / FILES[1]),
    "version elsewhere": replace_by_link,
    "name elsewhere": lambda folder: replace_by_link(folder.parent),
}


def verify(registry: ModelRegistry) -> None:
    for reference in ("desk@1", "desk@2"):
        if model := registry.resolve(reference):
            model.verify()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_error_names_the_model_and_never_where_it_lies(registry, checkpoint, tmp_path, damage):
    """The error reaches the job's sender, who must not see a worker's folders."""
    damage(register(registry, checkpoint).folder)
    with pytest.raises(CheckpointError, match="registered model desk") as raised:
        verify(registry)
    assert str(tmp_path) not in raised.value.message
    assert str(tmp_path.resolve()) not in raised.value.message


def test_a_registration_that_fails_never_tells_where_it_was_to_lie(registry, checkpoint, tmp_path, caplog):
    last = register(registry, checkpoint).folder.with_name(".last")
    replace_by_folder(last)
    with pytest.raises(DiskFull, match=r"desk.*Is a directory") as raised:
        register(registry, checkpoint, job_id="job-2")
    assert str(tmp_path) not in raised.value.message
    assert str(last) in caplog.text  # the log names the path for the operator
    (checkpoint / FILES[0]).unlink()
    with pytest.raises(CheckpointMissing, match=FILES[0]) as raised:
        register(registry, checkpoint)
    assert str(tmp_path) not in raised.value.message


@pytest.mark.parametrize("change", [promote, roll_back])
def test_promotions_at_once_lose_no_entry(registry, checkpoint, monkeypatch, change):
    """The second begins while the first writes, and gets as far as it can before the first goes on."""
    versions = [register(registry, checkpoint, job_id=str(number)) for number in range(3)]
    folder = registry.folder / "desk"
    promote(versions[0], forced=True)
    reached, flock, write = threading.Event(), fcntl.flock, model_registry._write
    first = threading.current_thread()

    def flock_noted(*given: Any) -> None:
        if threading.current_thread() is not first:
            reached.set()
        flock(*given)

    def change_again() -> None:
        change(versions[2], forced=True) if change is promote else change(folder)
        reached.set()

    second = threading.Thread(target=change_again, daemon=True)

    def write_late(*given: Any) -> None:
        if threading.current_thread() is first:
            second.start()
            assert reached.wait(WAIT_S)
        write(*given)

    monkeypatch.setattr(fcntl, "flock", flock_noted)
    monkeypatch.setattr(model_registry, "_write", write_late)
    promote(versions[1], forced=True)
    second.join(WAIT_S)
    expected = [1, 2, 3] if change is promote else [1]
    assert [one.version for one in model_registry.read_promotions(folder)] == expected


def test_a_rollback_without_a_model_folder_changes_nothing(registry):
    assert not roll_back(registry.folder / "desk")
    assert not registry.folder.exists()


def test_a_name_that_was_deleted_as_a_whole_begins_anew_with_another_model(registry, checkpoint):
    first = register(registry, checkpoint)
    register(registry, checkpoint, job_id="job-2")
    shutil.rmtree(registry.folder / "desk")
    retrain(checkpoint)
    again = register(registry, checkpoint)
    assert again.reference == first.reference == "desk@1"
    assert again != first


def test_the_list_is_by_name_and_newest_first(registry, checkpoint):
    for number in range(1, 11):
        register(registry, checkpoint, job_id=f"job-{number}")
    register(registry, checkpoint, "a")
    assert registry.resolve("desk").version == 10
    assert references(registry)[:4] == ["a@1", "desk@10", "desk@9", "desk@8"]
