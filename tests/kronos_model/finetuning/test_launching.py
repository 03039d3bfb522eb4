"""The command lines that start training."""

from typing import Any

import pytest

from kronos_model.finetuning import launching
from kronos_model.finetuning.launching import (
    EACH_GPU,
    addresses,
    training_command,
    training_environment,
)

MODULE = ["-P", "-m", "kronos_model.finetuning", "--config", "c.json"]


NODES = {"processes": EACH_GPU, "nodes": "2", "master": "a:29400"}
TO_NODES = ["--nproc-per-node=gpu", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:29400"]


@pytest.mark.parametrize(
    ("options", "own", "expected"),
    [
        ({"processes": 3}, "", ["--nproc-per-node=3", "--standalone"]),
        (NODES, "10.0.0.1", [*TO_NODES, "--local-addr=10.0.0.1", "--rdzv-conf=is_host=True"]),
        (NODES, "10.0.0.2", [*TO_NODES, "--local-addr=10.0.0.2", "--rdzv-conf=is_host=False"]),
        (
            {"nodes": "1:3", "master": "a"}, "127.0.0.1",
            ["--nproc-per-node=1", "--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-endpoint=a",
             "--local-addr=127.0.0.1", "--max-restarts=3"],
        ),
    ],
)  # fmt: skip
def test_several_processes_are_started_by_torchrun(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], own: str, expected: list[str]
) -> None:
    monkeypatch.setattr(launching, "addresses", lambda master: (own, "10.0.0.1"))
    command = training_command(MODULE[3:], **options)
    split = command.index("--no-python")
    assert command[:4] == [command[0], "-P", "-m", "torch.distributed.run"]
    assert sorted(command[4:split]) == sorted([*expected, "--shutdown-timeout=120"])
    assert command[split + 1 :] == [command[0], *MODULE]


def test_the_address_of_a_machine_is_that_in_the_network_of_the_master(monkeypatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert addresses("127.0.0.1:29400") == ("127.0.0.1", "127.0.0.1")
    assert training_environment(None, 1, "127.0.0.1")["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert training_environment(None, 1, "127.0.0.1")["GLOO_SOCKET_IFNAME"] == "eth7"


def test_one_process_needs_no_torchrun() -> None:
    assert training_command(MODULE[3:])[1:] == MODULE


def test_the_processes_share_the_cores_and_belong_to_no_other_training(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("kronos_model.devices.cores.num_cores", lambda: 9)
    monkeypatch.setenv("WORLD_SIZE", "2")
    environment = training_environment(None, 2)
    assert environment["OMP_NUM_THREADS"] == "4"
    assert "WORLD_SIZE" not in environment
    assert training_environment(3, 2)["OMP_NUM_THREADS"] == "3"
