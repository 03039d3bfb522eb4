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
"""Makes a check download nothing."""
MIN_FREE_BYTES: Final = 2**30


def folder_findings(settings: CliSettings) -> list[Finding]:
    """Check that each folder can be read, or written if the role writes to it."""
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
    except OSError as error:  # no candidate folder is writable
        remedy = "free disk space, or set TMPDIR to a folder that this user can write to"
        return Finding("temporary folder", "failed", error.strerror or str(error), remedy)
    return _folder("temporary folder", folder, "TMPDIR", is_written=True)


def _model_cache() -> Finding:
    try:
        cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    except RuntimeError as error:  # the user has no home folder
        remedy = "set HF_HOME to a folder that this user can write to"
        return Finding("model cache", "failed", str(error), remedy)
    # Unlike Path.exists, os.path.exists returns False if access is denied.
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
        remedy = f"create it, give this user access to it, or set {variable} to another folder"
        return Finding(check, "failed", f"{folder} cannot be {verb}: {error.strerror}", remedy)
    text = f"{folder}, {free_bytes / 2**30:,.1f} GiB free"
    if is_written and free_bytes < MIN_FREE_BYTES:
        return Finding(
            check, "warning", text, f"free disk space, or set {variable} to a folder on another disk"
        )
    return Finding(check, "ok", text)


def port_findings(settings: CliSettings, workers_here: Sequence[str]) -> list[Finding]:
    """Check the ports. A live worker on this host (``workers_here``) may hold the metrics port."""
    findings = []
    if (port := settings.metrics_port) is not None:
        host = settings.metrics_host
        reason = why_not_free(host, port)
        if reason is None:
            findings.append(Finding("metrics port", "ok", f"{host}:{port} is free"))
        elif workers_here:
            text = f"{host}:{port} is in use, and {', '.join(workers_here)} runs here"
            findings.append(Finding("metrics port", "ok", text))
        else:
            remedy = "set KRONOS_METRICS_PORT to a free port; otherwise the worker runs without metrics"
            findings.append(Finding("metrics port", "warning", f"{host}:{port}: {reason}", remedy))
    for check, host, port, remedy in (
        ("flower port", "127.0.0.1", FLOWER_PORT, "give --port"),
        ("api port", settings.api_host, settings.api_port, "set KRONOS_API_PORT"),
    ):
        is_free = why_not_free(host, port) is None
        text = "is free" if is_free else f"is in use; if not by a Kronos process: {remedy}"
        findings.append(Finding(check, "ok", f"{host}:{port} {text}"))
    return findings


def compute_findings(settings: CliSettings) -> list[Finding]:
    """Compute on the device and load the model, in a separate process."""
    try:
        report = run_probe(
            [settings.device],
            with_model=settings.role == "forecast",
            environment=OFFLINE,
            timeout_s=PROBE_TIMEOUT_S,
        )
    except ProbeError as error:
        remedy = "install torch in the version of requirements.txt: ./kronos setup"
        return [Finding("device", "failed", str(error), remedy)]
    return report_findings(report)


def report_findings(report: Mapping[str, Any]) -> list[Finding]:
    """The findings from a probe's report on one device."""
    device, model = report["devices"][0], report["model"]
    if "error" in device:
        return [Finding("device", "failed", device["error"], "set KRONOS_DEVICE to one of these")]
    text = f"{device['device']}, {device['description']['name']}"
    if device["warning"] is None:
        findings = [Finding("device", "ok", text)]
    else:
        remedy = (
            "run nvidia-smi and install requirements-cuda.txt, or set KRONOS_DEVICE=auto. "
            "`kronos devices` lists all devices"
        )
        findings = [Finding("device", "warning", f"{text}. {device['warning']}", remedy)]
    if model is None:
        return findings
    if model.get("code") == "CHECKPOINT_UNREACHABLE":
        remedy = "the worker downloads it at its first start; without internet set KRONOS_MODEL=kronos-tiny"
        return [*findings, Finding("model", "warning", "the model is not on this machine yet", remedy)]
    if "error" in model:
        return [
            *findings,
            Finding(
                "model", "failed", model["error"], "correct KRONOS_MODEL, KRONOS_TOKENIZER or their revisions"
            ),
        ]
    size = (
        f"{model['num_parameters']:,} parameters, {model['slots']} slots, loaded in {model['load_s']:.1f} s"
    )
    return [*findings, Finding("model", "ok", f"{model['id']}: {size}")]
