"""What lies in a job's folder, and what stays of it when the job is over."""

import os

import pytest

from worker.contract.finetune import parse_finetune_job
from worker.contract.instruments import prepare_instruments
from worker.contract.limits import Limits
from worker.finetuning.job_folder import JobFolder, JobNotes

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


def test_whatever_the_id_is_the_folder_lies_inside(folder, tmp_path):
    assert folder.root.parent == tmp_path / ".runs"
    assert JobFolder(tmp_path, "../../etc/passwd").root == folder.root
    assert JobFolder(tmp_path, "another").root != folder.root


def test_notes_are_found_by_the_next_worker_of_the_same_job(folder, tmp_path):
    assert folder.notes("print") is None
    folder.write_notes(NOTES)
    assert JobFolder(tmp_path, "../../etc/passwd").notes("print") == NOTES


@pytest.mark.parametrize("content", [None, "half a line {", "[]", '{"unknown": 1}'])
def test_what_another_job_left_under_the_same_id_goes(folder, content):
    folder.write_notes(NOTES)
    fill(folder)
    if content is not None:
        (folder.root / "job.json").write_text(content)
    assert folder.notes("another" if content is None else "print") is None
    assert not folder.root.exists()


def test_a_job_that_ended_keeps_its_best_checkpoint_and_one_that_is_done_its_report(folder, tmp_path):
    assert folder.best_so_far() is None
    fill(folder)
    assert folder.saved_at_ns() > 0
    folder.keep_best()
    assert folder.best_so_far() == f".runs/{folder.root.name}/run/predictor/best"
    assert folder.saved_at_ns() == 0
    assert sorted(path.name for path in folder.run.iterdir()) == ["data.json", "predictor", "tokenizer"]
    folder.keep_result()
    assert [path.name for path in folder.run.iterdir()] == ["data.json"]
    assert folder.data_report() == {"report": {}}


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
    from kronos_model.finetuning.config import DataConfig
    from kronos_model.finetuning.instruments import read_instruments

    prices = [1.0, 1.5, 1 / 3]
    instruments = [
        {
            "id": name,
            "timestamps": [f"2024-01-01T00:0{minute}:00+08:00" for minute in range(3)],
            **dict.fromkeys(("open", "high", "low", "close"), prices),
            **volume,
        }
        for name, volume in (('a/b, "c"', {}), ("NA", {"volume": [1.0, 2.0, 3.0]}))
    ]
    config = {"data": {"lookback": 1, "pred_len": 1}, "start": {"model": "kronos-tiny"}}
    job = parse_finetune_job(
        {"name": "mine", "config": config, "data": {"instruments": instruments}}, Limits()
    )
    assert job.data.instruments is not None
    folder.write_candles(prepare_instruments(job.data.instruments))
    data = DataConfig(
        path=str(folder.root / "candles"), instrument_column="instrument", lookback=1, pred_len=1
    )
    read, _ = read_instruments(data)
    assert [one.name for one in read] == ["NA", 'a/b, "c"']
    assert read[0].bars[:, 3].tolist() == pytest.approx(prices)
    assert read[0].bars[:, 4].tolist() == [1.0, 2.0, 3.0]
    assert read[0].is_aware
