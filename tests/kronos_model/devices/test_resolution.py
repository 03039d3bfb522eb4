"""The device chosen on each kind of machine. Machines are fakes, so the tests run on any machine."""

import json
import logging
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from kronos_model.devices import probe as probe_module
from kronos_model.devices import resolution as device_module
from kronos_model.devices.probe import TorchProbe
from kronos_model.devices.resolution import (
    describe_device,
    empty_cache,
    move_to_device,
    resolve_device,
    skipped_gpu,
)
from kronos_model.errors import DeviceError

CPU = torch.device("cpu")
MPS = torch.device("mps")


def cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


@dataclass
class FakeMachine:
    """A described machine that records the queries."""

    num_gpus: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    has_mps: bool = False
    gpu_platform: str = "CUDA"
    asked: list[str] = field(default_factory=list)

    def cuda_device_count(self) -> int:
        self.asked.append("count")
        return self.num_gpus

    def failure(self, device: torch.device) -> str | None:
        self.asked.append(str(device))
        if str(device) in self.broken:
            return f"not usable ({self.broken[str(device)]})"
        present = device.type == "cpu" or (
            self.has_mps if device.type == "mps" else device.index < self.num_gpus
        )
        return None if present else "not available"

    def platform(self, kind: str) -> str:
        return self.gpu_platform if kind == "cuda" else kind.upper()

    def utilisation_percent(self, device: torch.device) -> int | None:
        return 87 if device.type == "cuda" else None

    def name(self, device: torch.device) -> str:
        return f"Fake {device.type}"

    def memory_bytes(self, device: torch.device) -> tuple[int | None, int | None]:
        return (80 * 2**30, 79 * 2**30) if device.type == "cuda" else (2**34, None)

    def driver_version(self) -> str | None:
        return "570.1" if self.num_gpus else None


def machine(kind: str) -> FakeMachine:
    return {
        "no GPU": FakeMachine(),
        "one GPU": FakeMachine(num_gpus=1),
        "several": FakeMachine(num_gpus=4),
        "MPS": FakeMachine(has_mps=True),
        # A driver too old for the build lists its GPUs and fails when used;
        # one out of step with its library lists none.
        "old driver": FakeMachine(num_gpus=1, broken={"cuda:0": "driver too old"}),
        "mismatched driver": FakeMachine(broken={"cuda:0": "Error 804"}),
    }[kind]


ABSENT = "CUDA device '{}' requested but CUDA not available. Falling back to CPU."
OLD = "CUDA device '{}' requested but CUDA not usable (driver too old). Falling back to CPU."
MISMATCHED = "CUDA device '{}' requested but CUDA not usable (Error 804). Falling back to CPU."
BEYOND_ONE = "CUDA device '{}' requested but only 1 CUDA device was found. Falling back to cuda:0."
BEYOND_FOUR = "CUDA device '{}' requested but only 4 CUDA devices were found. Falling back to cuda:0."
NO_MPS = "MPS device '{}' requested but MPS not available. Falling back to CPU."

REQUESTS = (None, "auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:7", "mps")
EXPECTED = {
    # machine: one cell a request, in the order above
    "no GPU": [CPU, CPU, CPU, *[(CPU, ABSENT)] * 4, (CPU, NO_MPS)],
    "one GPU": [cuda(0), cuda(0), CPU, cuda(0), cuda(0), *[(cuda(0), BEYOND_ONE)] * 2, (CPU, NO_MPS)],
    "several": [cuda(0), cuda(0), CPU, cuda(0), cuda(0), cuda(1), (cuda(0), BEYOND_FOUR), (CPU, NO_MPS)],
    "MPS": [MPS, MPS, CPU, *[(CPU, ABSENT)] * 4, MPS],
    "old driver": [CPU, CPU, CPU, *[(CPU, OLD)] * 4, (CPU, NO_MPS)],
    "mismatched driver": [CPU, CPU, CPU, *[(CPU, MISMATCHED)] * 4, (CPU, NO_MPS)],
}
ROWS = [
    pytest.param(
        kind, requested, *(cell if isinstance(cell, tuple) else (cell, None)), id=f"{kind}-{requested}"
    )
    for kind, cells in EXPECTED.items()
    for requested, cell in zip(REQUESTS, cells, strict=True)
]
MALFORMED = [
    "", " ", "CPU", "cpu ", "cpu:0", "mps:0", "auto:1", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:01",
    "cuda:1.0", "cuda:x", "cuda:0,1", "cuda:1\n", "cuda: 1", "cuda1", "cuda:١", "cuda:" + "9" * 5000, "meta",
    "xpu", "none", 0, True, b"cpu", ["cpu"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    device_module.warn_once.cache_clear()
    monkeypatch.delenv("KRONOS_DEVICE", raising=False)


@pytest.mark.parametrize(("kind", "requested", "device", "warning"), ROWS)
def test_resolves(
    kind: str,
    requested: str | None,
    device: torch.device,
    warning: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = warning and warning.format(requested)
    with caplog.at_level(logging.WARNING, "kronos_model"):
        assert resolve_device(requested, probe=machine(kind)) == (device, expected)
    assert [record.getMessage() for record in caplog.records] == ([expected] if expected else [])


@pytest.mark.parametrize("requested", MALFORMED, ids=lambda value: repr(value)[:16])
def test_refuses_an_unknown_device(requested: object) -> None:
    asked = machine("several")
    with pytest.raises(DeviceError, match=r"Use one of: auto, cpu, cuda, cuda:N, mps") as caught:
        resolve_device(requested, probe=asked)  # type: ignore[arg-type]
    assert caught.value.code == "INVALID_DEVICE"
    assert caught.value.field == "device"
    json.dumps(caught.value.details)
    assert asked.asked == []


def test_none_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_DEVICE", "cuda:1")
    assert resolve_device(None, probe=machine("several")) == (cuda(1), None)
    assert resolve_device("cpu", probe=machine("several")) == (CPU, None)
    monkeypatch.setenv("KRONOS_DEVICE", "")
    assert resolve_device(None, probe=machine("several")) == (cuda(0), None)
    monkeypatch.setenv("KRONOS_DEVICE", "gpu")
    with pytest.raises(DeviceError, match="'gpu' in KRONOS_DEVICE is not known"):
        resolve_device(None, probe=machine("several"))


ECC, MPS_MEMORY = "uncorrectable ECC error", "MPS backend out of memory"
AMD = FakeMachine(num_gpus=1, gpu_platform="ROCm")  # such a build calls its devices cuda too
FALLING_BACK = "{} device '{}' requested but {}. Falling back to {}."


@pytest.mark.parametrize(
    ("requested", "probe", "device", "warning"),
    [
        ("auto", FakeMachine(num_gpus=3, broken={"cuda:0": "Xid 79"}), cuda(1), None),
        ("auto", FakeMachine(num_gpus=1, has_mps=True), cuda(0), None),
        ("auto", FakeMachine(has_mps=True, broken={"cuda:0": "x"}), MPS, None),
        ("auto", FakeMachine(has_mps=True, broken={"mps": "x"}), CPU, None),
        ("cuda:7", machine("old driver"), CPU, OLD.format("cuda:7")),
        # Not to another GPU.
        (
            "cuda:1", FakeMachine(num_gpus=2, broken={"cuda:1": ECC}), CPU,
            FALLING_BACK.format("CUDA", "cuda:1", f"CUDA not usable ({ECC})", "CPU"),
        ),
        (
            "mps", FakeMachine(has_mps=True, broken={"mps": MPS_MEMORY}), CPU,
            FALLING_BACK.format("MPS", "mps", f"MPS not usable ({MPS_MEMORY})", "CPU"),
        ),
        ("cuda", AMD, cuda(0), None),
        (
            "cuda:1", AMD, cuda(0),
            FALLING_BACK.format("ROCm", "cuda:1", "only 1 ROCm device was found", "cuda:0"),
        ),
        (
            "cuda", FakeMachine(gpu_platform="ROCm"), CPU,
            FALLING_BACK.format("ROCm", "cuda", "ROCm not available", "CPU"),
        ),
    ],
)  # fmt: skip
def test_resolves_on_machines_with_a_defect_or_of_another_maker(
    requested: str, probe: FakeMachine, device: torch.device, warning: str | None
) -> None:
    assert resolve_device(requested, probe=probe) == (device, warning)


def test_auto_reports_a_broken_driver_as_information_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kronos_model"):
        assert resolve_device("auto", probe=machine("mismatched driver")) == (CPU, None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "Device 'cuda:0' is skipped: CUDA not usable (Error 804).")
    ]


def test_a_warning_is_logged_once_and_returned_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kronos_model"):
        first = resolve_device("cuda:0", probe=machine("no GPU"))
        assert resolve_device("cuda:0", probe=machine("no GPU")) == first
        resolve_device("cuda:1", probe=machine("no GPU"))
    assert [record.getMessage() for record in caplog.records] == [
        ABSENT.format("cuda:0"),
        ABSENT.format("cuda:1"),
    ]


def test_a_request_for_the_cpu_makes_no_probe() -> None:
    probe = machine("several")
    resolve_device("cpu", probe=probe)
    assert probe.asked == []


def test_describes_a_gpu() -> None:
    description = describe_device(cuda(1), probe=machine("several"))
    assert (description.name, description.kind, description.index) == ("Fake cuda", "cuda", 1)
    assert (description.memory_total_bytes, description.memory_free_bytes) == (80 * 2**30, 79 * 2**30)
    assert description.versions["driver"] == "570.1"
    assert json.loads(json.dumps(description.as_dict())) == description.as_dict()


def test_describes_this_cpu() -> None:
    description = describe_device(CPU)
    assert (description.kind, description.index) == ("cpu", None)
    assert description.name
    assert description.memory_total_bytes is not None
    assert (description.memory_free_bytes or 0) <= description.memory_total_bytes
    assert description.versions["torch"] == torch.__version__


class NoRoom(nn.Linear):
    """A module that can be moved only to the CPU."""

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        if fn(torch.empty(0)).device.type != "cpu":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
        return super()._apply(fn, recurse)


class AnyDevice(FakeMachine):
    """A probe on which every device computes. "meta" stands for a GPU: tensors lose their values there."""

    def failure(self, device: torch.device) -> None:
        return None


def network(last: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), last(4, 2))


def test_moves_a_module() -> None:
    module = network(nn.Linear)
    moved, device, warning = move_to_device(module, torch.device("meta"), probe=AnyDevice())
    assert moved is module
    assert (device.type, warning) == ("meta", None)
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}


def test_a_move_that_fails_half_way_leaves_the_module_whole_on_the_cpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = network(NoRoom)
    parameters = list(module.parameters())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with caplog.at_level(logging.WARNING, "kronos_model"):
        moved, device, warning = move_to_device(module, torch.device("meta"), probe=AnyDevice())
    assert (moved, device) == (module, CPU)
    reason = "META cannot hold the Sequential (CUDA out of memory)"
    assert warning == f"META device 'meta' requested but {reason}. Falling back to CPU."
    assert [record.getMessage() for record in caplog.records] == [warning]
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)
    # An optimiser made before the move still holds the parameters that compute.
    assert all(now is then for now, then in zip(module.parameters(), parameters, strict=True))


def test_a_module_is_not_moved_to_a_device_that_does_not_compute() -> None:
    module, device, warning = move_to_device(network(nn.Linear), cuda(0), probe=machine("old driver"))
    assert (device, warning) == (CPU, OLD.format("cuda:0"))
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"cpu"}


def test_the_cache_is_emptied_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    for device in (CPU, MPS, cuda(0)):
        empty_cache(device)
    assert emptied == ["cuda"]


def test_the_gpu_that_auto_skips_is_named() -> None:
    assert skipped_gpu(machine("old driver")) == "CUDA not usable (driver too old)"
    assert skipped_gpu(machine("one GPU")) is None
    assert skipped_gpu(machine("no GPU")) is None


@pytest.mark.usefixtures("no_cuda_calls")
def test_cpu_paths_never_call_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == (CPU, None)
    describe_device(CPU)
    module, device, warning = move_to_device(network(nn.Linear), CPU)
    assert (device, warning) == (CPU, None)
    assert module.eval()(torch.ones(1, 3)).shape == (1, 2)
    empty_cache(CPU)
    empty_cache(MPS)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(probe_module, "driver_version", lambda: None)
    assert resolve_device("auto") == (CPU, None)
    assert resolve_device("cuda:0") == (CPU, ABSENT.format("cuda:0"))


def test_the_guard_against_cuda_calls_works(no_cuda_calls: list[str]) -> None:
    for call in (torch.cuda.is_available, torch.cuda.Event, torch.accelerator.current_accelerator):
        with pytest.raises(AssertionError, match="must not touch CUDA"):
            call()
    with pytest.raises(AssertionError, match="must not touch CUDA"):
        torch.manual_seed(0)  # reaches for every GPU's generator as well
    assert len(no_cuda_calls) == 4
    no_cuda_calls.clear()


class TestTorchProbe:
    """The real probe, with PyTorch's answers replaced by those seen on other machines."""

    @pytest.fixture(autouse=True)
    def _cuda_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(probe_module, "driver_version", lambda: "580.65.06")
        monkeypatch.setattr(torch.version, "cuda", "13.0")

    @pytest.mark.parametrize(
        ("message", "failure"),
        [
            (
                "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
                "not available",
            ),
            ("No CUDA GPUs are available", "not available"),
            (
                "The NVIDIA driver on your system is too old (found version 11040). Please update it",
                "not usable (The NVIDIA driver on your system is too old (found version 11040))",
            ),
            (
                "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors",
                "not usable (CUDA error: no kernel image is available for execution on the device)",
            ),
            ("", "not usable (RuntimeError)"),
        ],
    )
    def test_distinguishes_absent_from_broken(
        self, message: str, failure: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_args: object, **_kwargs: object) -> None:
            raise RuntimeError(message)

        monkeypatch.setattr(torch, "ones", fail)
        assert TorchProbe().failure(cuda(0)) == failure

    def test_an_old_driver_is_named_with_what_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_args: object) -> None:
            raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")

        monkeypatch.setattr(probe_module, "compute_on", fail)
        monkeypatch.setattr(probe_module, "driver_version", lambda: "535.104.05")
        _, warning = resolve_device("cuda")
        assert warning == (
            "CUDA device 'cuda' requested but CUDA not usable (driver 535.104.05 found, but CUDA 13.0 of "
            "this PyTorch needs 580 or newer: update the driver, or install torch from "
            "https://download.pytorch.org/whl/cu126). Falling back to CPU."
        )

    def test_a_driver_without_a_build_of_pytorch_for_it_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
        assert TorchProbe().failure(cuda(0)) == (
            "not usable (driver 580.65.06 found, but this PyTorch is built for the CPU: install "
            "requirements-cuda.txt)"
        )

    def test_a_build_for_rocm_names_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "hip", "7.2.0")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "AMD Instinct MI300X")
        assert TorchProbe().platform("cuda") == "ROCm"
        assert TorchProbe().name(cuda(0)) == "AMD Instinct MI300X (ROCm)"

    def test_utilisation_is_unknown_without_the_library_that_reads_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(device: torch.device) -> int:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

        monkeypatch.setattr(torch.cuda, "utilization", fail)
        assert TorchProbe().utilisation_percent(cuda(0)) is None
        monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87 + device.index)
        assert TorchProbe().utilisation_percent(cuda(1)) == 88
        assert TorchProbe().utilisation_percent(CPU) is None

    @pytest.mark.parametrize(
        ("error", "is_lost"),
        [
            (None, False),
            (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
            (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"), True),
            (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512 bytes"), False),
        ],
    )
    def test_a_device_is_lost_if_it_computes_nothing_more(
        self, error: Exception | None, is_lost: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def compute(device: torch.device) -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(probe_module, "compute_on", compute)
        assert TorchProbe().is_lost(cuda(1)) is is_lost
        assert not TorchProbe().is_lost(CPU)

    def test_a_gpu_that_died_has_no_memory_figures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_args: object) -> None:
            raise RuntimeError("CUDA error: unspecified launch failure")

        monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
        monkeypatch.setattr(torch.cuda, "get_device_name", fail)
        description = describe_device(cuda(0))
        figures = description.memory_total_bytes, description.memory_free_bytes
        assert (description.name, *figures) == ("cuda", None, None)


@pytest.mark.gpu
def test_the_real_gpu(first_gpu: str) -> None:
    device, warning = resolve_device("cuda:0")
    assert (device, warning) == (cuda(0), None)
    beyond = resolve_device(f"cuda:{torch.cuda.device_count()}")
    assert beyond[0] == cuda(0)
    assert "Falling back to cuda:0." in (beyond[1] or "")
    description = describe_device(device)
    assert description.kind == "cuda"
    assert 0 < (description.memory_free_bytes or 0) <= (description.memory_total_bytes or 0)
    module, placed, warning = move_to_device(network(nn.Linear), device)
    assert (placed, warning) == (device, None)
    assert next(module.parameters()).is_cuda
    empty_cache(device)
