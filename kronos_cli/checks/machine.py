"""Checks of this machine: folders, ports, the device and the model."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any, Final

from kronos_cli.checks.finding import Finding
from kronos_cli.settings import CliSettings
from kronos_cli.stack.ports import FLOWER_PORT, why_not_free
from worker.inference.probe import ProbeError, run_probe

PROBE_TIMEOUT_S: Final = 600.0
OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
"""A check downloads no model."""
MIN_FREE_BYTES: Final = 2**30


def folder_findings(settings: CliSettings) -> list[Finding]:
    """Whether the folders that are set can be read, and those that are written to written."""
    findings = [_temporary_folder(), _model_cache()]
    if settings.model_folder is not None:
        is_written = settings.role == "finetune"
        findings.append(
            _folder("registered models", settings.model_folder, "KRONOS_MODEL_FOLDER", is_written=is_written)
        )
    if settings.data_folder is not None:
        findings.append(_folder("candles", settings.data_folder, "KRONOS_DATA_FOLDER", is_written=False))
    return findings


def _temporary_folder() -> Finding:
    try:
        folder = Path(gettempdir())
    except OSError as error:  # it tries to write in each that it knows
        remedy = "make room, or set TMPDIR to a folder that this user may write to"
        return Finding("temporary folder", "failed", error.strerror or str(error), remedy)
    return _folder("temporary folder", folder, "TMPDIR", is_written=True)


def _model_cache() -> Finding:
    try:
        cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    except RuntimeError as error:  # a user without home
        return Finding(
            "model cache", "failed", str(error), "set HF_HOME to a folder that this user may write to"
        )
    # Unlike Path.exists, this one says no of what may not be looked at.
    there = next((one for one in (cache, *cache.parents) if os.path.exists(one)), cache)  # noqa: PTH110
    return _folder("model cache", there, "HF_HOME", is_written=True)


def _folder(check: str, folder: Path, variable: str, *, is_written: bool) -> Finding:
    try:
        if is_written:
            with NamedTemporaryFile(dir=folder, prefix=".kronos-check-"):
                pass
        else:
            next(folder.iterdir(), None)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        verb = "written" if is_written else "read"
        remedy = f"make it, or give this user the right to it, or set {variable} to another folder"
        return Finding(check, "failed", f"{folder} cannot be {verb}: {error.strerror}", remedy)
    text = f"{folder}, {free_bytes / 2**30:,.1f} GiB free"
    if is_written and free_bytes < MIN_FREE_BYTES:
        return Finding(check, "warning", text, f"make room, or set {variable} to a folder on another disk")
    return Finding(check, "ok", text)


def port_findings(settings: CliSettings, workers_here: Sequence[str]) -> list[Finding]:
    """Whether ports are free; ``workers_here`` are live workers on this host, which may hold the metrics'."""
    findings = []
    if (port := settings.metrics_port) is not None:
        host = settings.metrics_host
        reason = why_not_free(host, port)
        if reason is None:
            findings.append(Finding("metrics port", "ok", f"{host}:{port} is free"))
        elif workers_here:
            text = f"{host}:{port} is taken, and {', '.join(workers_here)} runs here"
            findings.append(Finding("metrics port", "ok", text))
        else:
            remedy = "set KRONOS_METRICS_PORT to a free one: the worker would run without metrics"
            findings.append(Finding("metrics port", "warning", f"{host}:{port}: {reason}", remedy))
    for check, host, port, remedy in (
        ("flower port", "127.0.0.1", FLOWER_PORT, "give --port"),
        ("api port", settings.api_host, settings.api_port, "set KRONOS_API_PORT"),
    ):
        is_free = why_not_free(host, port) is None
        text = "is free" if is_free else f"is taken; unless by ours, which runs here: {remedy}"
        findings.append(Finding(check, "ok", f"{host}:{port} {text}"))
    return findings


def compute_findings(settings: CliSettings) -> list[Finding]:
    """Whether the device computes and the model loads there, tried in a process of its own."""
    try:
        report = run_probe(
            [settings.device],
            with_model=settings.role == "forecast",
            environment=OFFLINE,
            timeout_s=PROBE_TIMEOUT_S,
        )
    except ProbeError as error:
        remedy = "see that torch is installed as requirements.txt has it: ./kronos setup"
        return [Finding("device", "failed", str(error), remedy)]
    return report_findings(report)


def report_findings(report: Mapping[str, Any]) -> list[Finding]:
    """The findings in a probe's report on one device."""
    device, model = report["devices"][0], report["model"]
    if "error" in device:
        return [Finding("device", "failed", device["error"], "set KRONOS_DEVICE to one of those")]
    text = f"{device['device']}, {device['description']['name']}"
    if device["warning"] is None:
        findings = [Finding("device", "ok", text)]
    else:
        remedy = (
            "see nvidia-smi and install requirements-cuda.txt; or set KRONOS_DEVICE=auto. "
            "`kronos devices` shows all"
        )
        findings = [Finding("device", "warning", f"{text}. {device['warning']}", remedy)]
    if model is None:
        return findings
    if model.get("code") == "CHECKPOINT_UNREACHABLE":
        remedy = "the worker downloads it at its first start; without the hub: KRONOS_MODEL=kronos-tiny"
        return [*findings, Finding("model", "warning", "not on this machine yet", remedy)]
    if "error" in model:
        return [*findings, Finding("model", "failed", model["error"], "correct KRONOS_MODEL and its kin")]
    size = (
        f"{model['num_parameters']:,} parameters, {model['slots']} slots, loaded in {model['load_s']:.1f} s"
    )
    return [*findings, Finding("model", "ok", f"{model['id']}: {size}")]
