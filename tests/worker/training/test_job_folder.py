"""The files in a job's folder, and those that stay after the job."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import prepare_instruments
from kronos_model.checkpoints.source import read_metadata
from worker.training import job_folder
from worker.training.job_folder import JobFolder, JobNotes

BUNDLED = Path(__file__).parents[3] / "kronos_model" / "bundled" / "kronos-tiny"
NOTES = JobNotes("print", {"model": "mine@2"}, 1.5, 3)


@pytest.fixture
def folder(tmp_path):
    folder = JobFolder(tmp_path, "../../etc/passwd")
    folder.root.mkdir(parents=True)
    return folder


def fill(folder: JobFolder) -> None:
    for stage in ("tokenizer", "predictor"):
        (folder.run / stage / "best" / "model").mkdir(parents=True)
        (folder.run / stage / "state.safetensors").write_text("state")
    (folder.run / "checkpoint" / "model").mkdir(parents=True)
    (folder.run / "data.json").write_text('{"report": {}}')
    (folder.root / "candles").mkdir()


def test_for_any_id_the_folder_is_inside(folder, tmp_path):
    assert folder.root.parent == tmp_path / ".runs"
    assert JobFolder(tmp_path, "../../etc/passwd").root == folder.root
    assert JobFolder(tmp_path, "another").root != folder.root


def test_notes_are_found_by_the_next_worker_of_the_same_job(folder, tmp_path):
    assert folder.notes("print") is None
    folder.write_notes(NOTES)
    assert JobFolder(tmp_path, "../../etc/passwd").notes("print") == NOTES


@pytest.mark.parametrize("content", [None, "half a line {", "[]", '{"unknown": 1}'])
def test_files_of_another_job_with_the_same_id_are_removed(folder, content):
    folder.write_notes(NOTES)
    fill(folder)
    if content is not None:
        (folder.root / "job.json").write_text(content)
    assert folder.notes("another" if content is None else "print") is None
    assert not folder.root.exists()


def test_a_completed_run_keeps_its_checkpoint_and_a_registered_one_its_report(folder):
    folder.keep_best()
    assert folder.best_so_far() is None
    fill(folder)
    assert folder.saved_at_ns() > 0
    folder.keep_best()
    assert folder.best_so_far() == f".runs/{folder.root.name}/run/checkpoint"
    assert folder.saved_at_ns() == 0
    assert sorted(path.name for path in folder.run.iterdir()) == ["checkpoint", "data.json"]
    folder.keep_result()
    assert [path.name for path in folder.run.iterdir()] == ["data.json"]
    assert folder.read("run/data.json") == {"report": {}}


def best_of(folder: JobFolder, stage: str, part: str) -> None:
    shutil.copytree(BUNDLED / part, folder.run / stage / "best")
    (folder.run / stage / "state.safetensors").write_text("state")


@pytest.mark.parametrize(
    ("config", "max_context"),
    [
        ({"start": {"model": "kronos-tiny"}, "max_context": 48}, 48),
        ({"start": {"model": "kronos-tiny"}}, read_metadata("kronos-tiny")["max_context"]),
        ({"start": {"model": "NeoQuasar/Kronos-base"}}, 512),
    ],
)
def test_the_best_of_both_stages_is_one_checkpoint_that_loads_by_its_path(folder, config, max_context):
    from kronos_model.model_pair import load_pair

    best_of(folder, "tokenizer", "tokenizer")
    best_of(folder, "predictor", "model")
    data = {"path": "x", "lookback": 16, "pred_len": 4}
    (folder.root / "config.json").write_text(json.dumps(config | {"data": data}))
    folder.keep_best()
    best = folder.best_so_far()
    assert best == f".runs/{folder.root.name}/run/best"
    pair = load_pair(folder.model_folder / best)
    assert pair.max_context == max_context
    assert pair.tokenizer.checkpoint.folder == folder.run / "best" / "tokenizer"
    assert [path.name for path in folder.run.iterdir()] == ["best"]
    folder.keep_best()  # by a worker that died before it could report it
    assert load_pair(folder.model_folder / best).max_context == max_context
    folder.keep_result()
    assert not list(folder.run.iterdir())


def test_an_interrupted_keep_is_completed_by_the_next_worker(folder, monkeypatch):
    best_of(folder, "tokenizer", "tokenizer")
    best_of(folder, "predictor", "model")
    with monkeypatch.context() as patch:
        patch.setattr(job_folder, "atomic_write", interrupted)
        with pytest.raises(OSError, match="killed"):
            folder.keep_best()
    folder.keep_best()
    kept = sorted(path.name for path in (folder.run / "best").iterdir())
    assert kept == ["metadata.json", "model", "tokenizer"]


def interrupted(*_: object) -> None:
    raise OSError("killed")


def test_a_tokenizer_alone_takes_the_place_of_an_earlier_attempts_pair(folder):
    """A model does not fit a tokenizer that was trained later."""
    best_of(folder, "tokenizer", "tokenizer")
    best_of(folder, "predictor", "model")
    folder.keep_best()
    best_of(folder, "tokenizer", "tokenizer")
    folder.keep_best()
    assert [path.name for path in (folder.run / "best").iterdir()] == ["tokenizer"]


def test_a_save_is_seen_by_its_time(folder):
    fill(folder)
    os.utime(folder.run / "predictor" / "state.safetensors", ns=(1, 2**62))
    assert folder.saved_at_ns() == 2**62


def test_a_link_is_put_in_place_of_an_earlier_workers(folder, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        folder.link("start/mine@1", tmp_path / name)
    assert (folder.root / "start" / "mine@1").resolve() == tmp_path / "there"


def test_inline_candles_are_read_back_as_they_were_sent(folder):
    from kronos_model.finetuning.config_parts import DataConfig
    from kronos_model.finetuning.data import read_files

    prices = [1.0, 1.5, 1 / 3, 1.0, 2.0]
    instruments = [
        {
            "id": name,
            "timestamps": [f"2024-01-01T00:0{minute}:00+08:00" for minute in range(5)],
            **dict.fromkeys(("open", "high", "low", "close"), prices),
            **volume,
        }
        for name, volume in (('a/b, "c"', {}), ("NA", {"volume": prices}))
    ]
    data = {"lookback": 2, "pred_len": 1, "validation_fraction": 0.2, "test_fraction": 0}
    config = {"data": data, "start": {"model": "kronos-tiny"}}
    job = parse_finetune_job(
        {"name": "mine", "config": config, "data": {"instruments": instruments}}, Limits()
    )
    assert job.data.instruments is not None
    folder.write_candles(prepare_instruments(job.data.instruments))
    placed = DataConfig(path=str(folder.root / "candles"), id_column="instrument")
    read, _ = read_files(placed.paths, placed, "data.")
    assert [one.name for one in read] == ["NA", 'a/b, "c"']
    assert read[0].bars[:, 3].tolist() == pytest.approx(prices)
    assert read[0].bars[:, 4].tolist() == pytest.approx(prices)
    assert read[0].is_aware
