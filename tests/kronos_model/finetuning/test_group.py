"""Training by several processes, as torchrun starts them on several machines."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import InitProcessGroupKwargs

from kronos_model.errors import FinetuningConfigError, TrainingDataError
from kronos_model.finetuning import finetune, group
from kronos_model.finetuning.group import GROUP_TIMEOUT
from tests import fork_server
from tests.ports import free_port
from tests.waiting import WAIT_S

from .tiny_runs import MODEL, TOKENIZER, tiny_config

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
DROPOUT = {"ffn_dropout_p": 0.1, "resid_dropout_p": 0.1}
"""Not inside attention, which each process draws for itself."""


def losses(folder: Path) -> list[tuple[str, int, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        (line["stage"], line["step"], line["validation_loss" if line["event"] == "epoch" else "loss"])
        for line in lines
    ]


def test_a_lost_node_ends_training_and_one_process_goes_on_with_the_losses_of_one(data, tmp_path):
    """The two share each batch of 7 windows unequally. One dies in the second epoch of the predictor."""
    stage = {
        "epochs": 2, "batch_size": 7, "gradient_accumulation_steps": 2, "windows_per_epoch": 56,
        "validation_windows": 8, "optimiser": {"learning_rate": 1e-3},
    }  # fmt: skip
    config = tiny_config(
        data,
        data={"path": str(data), "lookback": {"min": 12, "max": 24}, "pred_len": 8},
        start={
            "model": MODEL | DROPOUT | {"token_dropout_p": 0.1},
            "tokenizer": TOKENIZER | DROPOUT,
        },
        tokenizer=stage,
        predictor=stage,
        save_interval_s=1e-9,
    )
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [
        "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--local-addr=localhost",
        "-m", "tests.kronos_model.finetuning.lost_node", "--config", "config.json", "--output", "run",
    ]  # fmt: skip
    # Asked before the first stage, and 8 steps and 4 batches of validation in each stage.
    nodes = [
        fork_server.Process(
            command, ENVIRONMENT | extra, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for extra in ({}, {"LOST_AT": "20"})
    ]  # fmt: skip
    try:
        (_, errors), _ = (node.communicate(timeout=WAIT_S) for node in nodes)
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [1, -9], errors
    assert "lost another process of this training, or its machine" in errors
    assert losses(tmp_path / "run")[-1][:2] == ("predictor", 4)
    resumed = finetune(config, tmp_path / "run")
    whole = finetune(config, tmp_path / "whole")
    ours, theirs = losses(tmp_path / "run"), losses(tmp_path / "whole")
    assert [entry[:2] for entry in ours] == [entry[:2] for entry in theirs]
    assert [entry[2] for entry in ours] == pytest.approx([entry[2] for entry in theirs], rel=1e-5)
    for name, result in whole.metadata["metrics"].items():
        assert resumed.metadata["metrics"][name]["best_epoch"] == result["best_epoch"]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_wait_for_a_silent_machine_is_limited(backend: str) -> None:
    """Accelerate passes on only what is not its own default."""
    assert (
        InitProcessGroupKwargs(backend=backend, timeout=GROUP_TIMEOUT).to_kwargs()["timeout"] == GROUP_TIMEOUT
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "error", "message"),
    [
        (" bars of 2 instruments", " bars of 3 instruments", TrainingDataError, "read different candles"),
        ("instruments, sha256:", "instruments, sha256:0", TrainingDataError, "read different candles"),
        ('"0"', '"1"', FinetuningConfigError, "seed is not the same in all processes: process 1 on node-b"),
        (", process ", ", program ", FinetuningConfigError, "one folder that all machines mount"),
    ],
)
def test_machines_with_other_candles_configs_or_folders_are_refused(
    data, tmp_path, monkeypatch, ours, theirs, error, message
):
    """The other process is simulated: it sends what this one sends, with one difference."""
    gathered = group._gathered

    def both(accelerator: Any, text: str) -> list[str]:
        (own,) = gathered(accelerator, text)
        other = json.dumps(["node-b", *json.loads(own.replace(ours, theirs))[1:]])
        return [own, other]

    monkeypatch.setattr(group, "_gathered", both)
    with pytest.raises(error, match=message) as raised:
        finetune(tiny_config(data), tmp_path / "run")
    assert "node-b" in str(raised.value)
    assert not (tmp_path / "run" / "config.json").exists()
