"""A finetuning worker: what it needs to start, and its status."""

import io

import pytest
from rich.console import Console

from kronos_cli.commands.status import status_table
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.redis.routing import is_gpu_ready, live_workers
from kronos_client.settings import SettingsError
from tests.waiting import await_true
from worker.training.finetune_process import FinetuneProcess

CPU = {"device": "cpu", "warning": None, "description": {"name": "a CPU"}}
GPU = {
    "device": "cuda:0",
    "warning": "slow",
    "num_gpus": 2,
    "description": {"name": "a GPU", "memory_total_bytes": 80, "memory_free_bytes": 79},
}


@pytest.fixture
def folders(settings, tmp_path):
    (tmp_path / "data").mkdir()
    return settings.model_copy(
        update={"role": "finetune", "model_folder": tmp_path / "models", "data_folder": tmp_path / "data"}
    )


def shown(workers: list) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(status_table(workers))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_it_announces_itself_and_what_it_trains(folders, redis):
    process = FinetuneProcess(folders, "f@host", GPU)
    assert process.queue == "gpu.finetune"
    assert "finetuning, idle" in shown([process.status()])
    described = process.status().device_description
    assert (described["memory_total_bytes"], described["memory_free_bytes"]) == (80, None)
    process.start()
    process.training = TrainingStatus(
        job_id="a", name="mine", stage="predictor", epoch=2, num_epochs=10, step=120, num_steps=1000, loss=5.1
    )
    process.ready()
    await_true(lambda: any(worker.is_ready and worker.training for worker in live_workers(redis)))
    workers = live_workers(redis)
    assert not is_gpu_ready(workers)
    text = shown(workers)
    assert "finetuning mine: predictor, epoch 2/10, step 120/1000, loss 5.1000" in text
    assert "f@host: slow" in text
    process.drain()
    assert process.state == "draining"
    process.stop()
    assert live_workers(redis) == []


@pytest.mark.parametrize(("requested", "most"), [("auto", 2), ("cuda", 2), ("cuda:0", 1)])
def test_a_job_has_at_most_one_process_for_each_gpu_of_its_worker(folders, requested, most):
    process = FinetuneProcess(folders.model_copy(update={"device": requested}), "f@host", GPU)
    assert process.max_processes == most


def test_a_job_without_progress_is_shown_too(folders):
    process = FinetuneProcess(folders, "f@host", CPU)
    process.training = TrainingStatus(job_id="a", name="mine")
    assert process.queue == "cpu.finetune"
    assert "finetuning mine: …" in shown([process.status()])


@pytest.mark.parametrize(
    ("field", "value", "variable"),
    [
        ("model_folder", None, "KRONOS_MODEL_FOLDER is not set"),
        ("model_folder", "file", "KRONOS_MODEL_FOLDER cannot be used"),
        ("data_folder", "file", "KRONOS_DATA_FOLDER cannot be used"),
        ("data_folder", "nothing", "KRONOS_DATA_FOLDER cannot be used"),
    ],
)
def test_without_its_folders_it_does_not_start(folders, tmp_path, field, value, variable):
    (tmp_path / "file").write_text("")
    path = None if value is None else tmp_path / value
    with pytest.raises(SettingsError, match=variable):
        FinetuneProcess(folders.model_copy(update={field: path}), "f@host", CPU)
