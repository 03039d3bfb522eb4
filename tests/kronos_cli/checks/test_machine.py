"""The checks of folders, ports, device and model."""

import socket
from pathlib import Path
from typing import Any

import pytest

from kronos_cli.checks import Finding, machine
from kronos_cli.checks.machine import folder_findings, port_findings, report_findings
from kronos_cli.settings import CliSettings

ENGINE = {"kind": "native", "why": "AVX2, compiled", "is_fallback": False}
FALLBACK = {"kind": "torch", "why": "Numba is not installed", "is_fallback": True}
DEVICE = {
    "engine": ENGINE,
    "requested": "cuda:1",
    "device": "cuda:1",
    "warning": None,
    "skipped": None,
    "description": {"name": "GPU", "memory_free_bytes": None, "memory_total_bytes": None},
    "slots": 512,
    "slots_error": None,
}
MODEL = {"id": "kronos-tiny", "num_parameters": 5, "slots": 64, "load_s": 0.1}


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_folders_must_exist_and_be_writable_if_the_worker_writes_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache" / "not-made-yet"))
    well = CliSettings(model_folder=tmp_path, data_folder=tmp_path)
    assert {finding.level for finding in folder_findings(well)} == {"ok"}
    assert list(tmp_path.iterdir()) == []
    missing = CliSettings(model_folder=tmp_path / "no", data_folder=tmp_path / "no")
    found = by_check(folder_findings(missing))
    assert found["registered models"].level == found["candles"].level == "failed"
    assert "KRONOS_MODEL_FOLDER" in found["registered models"].remedy


def test_only_finetuning_must_write_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    readable = tmp_path / "models"
    readable.mkdir()

    def refuse(*_: Any, **given: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine, "NamedTemporaryFile", refuse)
    levels = {
        role: by_check(folder_findings(CliSettings(model_folder=readable, role=role)))[
            "registered models"
        ].level
        for role in ("forecast", "finetune")
    }
    assert levels == {"forecast": "ok", "finetune": "failed"}


def test_folders_without_access_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    def none_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine.Path, "exists", refuse)
    assert by_check(folder_findings(CliSettings()))["model cache"].level == "ok"
    monkeypatch.setattr(machine, "gettempdir", none_usable)
    found = by_check(folder_findings(CliSettings()))
    assert found["temporary folder"].level == "failed"
    assert "No usable temporary directory" in found["temporary folder"].message
    assert "TMPDIR" in found["temporary folder"].remedy

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(machine.Path, "home", homeless)
    assert by_check(folder_findings(CliSettings()))["model cache"].level == "failed"


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MIN_FREE_BYTES", 2**62)
    assert by_check(folder_findings(CliSettings()))["temporary folder"].level == "warning"


def test_the_metrics_port_must_be_free_or_held_by_a_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = CliSettings(metrics_port=taken.getsockname()[1])
        assert by_check(port_findings(settings, []))["metrics port"].level == "warning"
        assert by_check(port_findings(settings, ["a worker"]))["metrics port"].level == "ok"
    assert "is free" in by_check(port_findings(settings, []))["metrics port"].message
    nowhere = CliSettings(metrics_port=9100, metrics_host="192.0.2.1")
    assert by_check(port_findings(nowhere, []))["metrics port"].level == "warning"
    assert "metrics port" not in by_check(port_findings(CliSettings(), []))


@pytest.mark.parametrize(
    ("device", "model", "levels", "part"),
    [
        ({}, MODEL, {"device": "ok", "engine": "ok", "model": "ok"}, "64 slots"),
        ({}, None, {"device": "ok", "engine": "ok"}, "cuda:1, GPU"),
        ({"warning": "no GPU"}, MODEL, {"device": "warning", "engine": "ok", "model": "ok"}, "no GPU"),
        ({"skipped": "CUDA not usable"}, None, {"device": "warning", "engine": "ok"}, "GPU. CUDA not usable"),
        ({"engine": FALLBACK}, None, {"device": "ok", "engine": "warning"}, "torch: Numba is not installed"),
        ({"error": "INVALID_DEVICE: what"}, None, {"device": "failed"}, "INVALID_DEVICE"),
        (
            {},
            {"error": "damaged", "code": "CHECKPOINT_INVALID"},
            {"device": "ok", "engine": "ok", "model": "failed"},
            "damag",
        ),
        (
            {},
            {"error": "silent", "code": "CHECKPOINT_UNREACHABLE"},
            {"device": "ok", "engine": "ok", "model": "warning"},
            "not on this machine yet",
        ),
    ],
)
def test_a_probes_report_becomes_findings(
    device: dict[str, Any], model: dict[str, Any] | None, levels: dict[str, str], part: str
) -> None:
    findings = [*report_findings({"devices": [DEVICE | device], "model": model})]
    assert {finding.check: finding.level for finding in findings} == levels
    assert part in " ".join(finding.message for finding in findings)
    assert all(bool(finding.remedy) is (finding.level != "ok") for finding in findings)
