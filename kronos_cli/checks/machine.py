"""Checks of this machine: folders, ports, the device and the model."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any, Final

from kronos_cli.checks import Finding, Level
from kronos_cli.settings import CliSettings
from kronos_cli.stack.ports import LOOPBACK, why_not_free
from kronos_cli.stack.processes import FLOWER_PORT
from worker.inference.probe import ProbeError, run_probe

PROBE_TIMEOUT_S: Final = 600.0
OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
"""Variables with which a check downloads nothing."""
MIN_FREE_BYTES: Final = 2**30


def folder_findings(settings: CliSettings) -> Iterator[Finding]:
    """Check that each folder can be read, or written if the role writes to it."""
    yield _folder("temporary folder", lambda: Path(gettempdir()), "TMPDIR", is_written=True)
    yield _folder("model cache", _model_cache, "HF_HOME", is_written=True)
    if (models := settings.model_folder) is not None:
        is_written = settings.role == "finetune"
        yield _folder("registered models", lambda: models, "KRONOS_MODEL_FOLDER", is_written=is_written)
    if (data := settings.data_folder) is not None:
        yield _folder("candles", lambda: data, "KRONOS_DATA_FOLDER", is_written=False)


def _model_cache() -> Path:
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    # Unlike Path.exists, os.path.exists returns False if access is denied.
    return next((folder for folder in (cache, *cache.parents) if os.path.exists(folder)), cache)  # noqa: PTH110


def _folder(check: str, find: Callable[[], Path], variable: str, *, is_written: bool) -> Finding:
    try:
        folder = find()
    except (OSError, RuntimeError) as error:  # no candidate is writable, or the user has no home folder
        remedy = f"free disk space, or set {variable} to a folder that this user can write to"
        return Finding(check, "failed", getattr(error, "strerror", None) or str(error), remedy)
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
    is_full = is_written and free_bytes < MIN_FREE_BYTES
    text = f"{folder}, {free_bytes / 2**30:,.1f} GiB free"
    remedy = f"free disk space, or set {variable} to a folder on another disk"
    return Finding(check, "warning" if is_full else "ok", text, remedy)


def port_findings(settings: CliSettings, workers_here: Sequence[str]) -> Iterator[Finding]:
    """Check the ports. A live worker on this host (``workers_here``) may hold the metrics port."""
    if (port := settings.metrics_port) is not None:
        place = f"{settings.metrics_host}:{port}"
        reason = why_not_free(settings.metrics_host, port)
        if reason is None:
            yield Finding("metrics port", "ok", f"{place} is free")
        elif workers_here:
            text = f"{place} is in use, presumably by {', '.join(workers_here)}"
            yield Finding("metrics port", "ok", text)
        else:
            remedy = "set KRONOS_METRICS_PORT to a free port; otherwise the worker runs without metrics"
            yield Finding("metrics port", "warning", f"{place}: {reason}", remedy)
    for check, host, port, remedy in (
        ("flower port", LOOPBACK, FLOWER_PORT, "give kronos flower --port"),
        ("api port", settings.api_host, settings.api_port, "set KRONOS_API_PORT"),
    ):
        is_free = why_not_free(host, port) is None
        text = "is free" if is_free else f"is in use; unless a Kronos process uses it: {remedy}"
        yield Finding(check, "ok", f"{host}:{port} {text}")


def compute_findings(settings: CliSettings, served: Sequence[str] = ()) -> Iterator[Finding]:
    """Compute on the device and load the model, in a separate process.

    Live workers hold the models ``served``. Then a machine that names no model needs none here.
    """
    needs_model = settings.role == "forecast"
    try:
        report = run_probe(
            [settings.device], with_model=needs_model, environment=OFFLINE, timeout_s=PROBE_TIMEOUT_S
        )
    except ProbeError as error:
        remedy = "install torch in the version of requirements.txt: ./kronos setup"
        yield Finding("device", "failed", str(error), remedy)
    else:
        yield from report_findings(report, () if settings.model else served)


def report_findings(report: Mapping[str, Any], served: Sequence[str] = ()) -> Iterator[Finding]:
    """The findings from a probe's report on one device. A model that is not here may be ``served``."""
    device, model = report["devices"][0], report["model"]
    if "error" in device:
        yield Finding("device", "failed", device["error"], "set KRONOS_DEVICE to another device, such as cpu")
        return
    warning = device["warning"] or device["skipped"]
    text = f"{device['device']}, {device['description']['name']}" + (f". {warning}" if warning else "")
    remedy = "run nvidia-smi and install requirements-cuda.txt, or set KRONOS_DEVICE=cpu"
    remedy += ". `kronos devices` lists all devices"
    yield Finding("device", "warning" if warning else "ok", text, remedy)
    engine = device["engine"]
    remedy = "mend that, or set KRONOS_ENGINE=torch if PyTorch is wanted"
    level: Level = "warning" if engine["is_fallback"] else "ok"
    yield Finding("engine", level, f"{engine['kind']}: {engine['why']}", remedy)
    if model is None:
        return
    if model.get("code") == "CHECKPOINT_UNREACHABLE" and served:
        yield Finding("model", "ok", f"KRONOS_MODEL is not set here; live workers serve {', '.join(served)}")
    elif model.get("code") == "CHECKPOINT_UNREACHABLE":
        remedy = "the worker downloads it at its first start; without internet set KRONOS_MODEL=kronos-tiny"
        yield Finding("model", "warning", "the model is not on this machine yet", remedy)
    elif "error" in model:
        is_large = model.get("code") == "OUT_OF_MEMORY"  # then the message names the settings
        remedy = "" if is_large else "correct KRONOS_MODEL, KRONOS_TOKENIZER or their revisions"
        yield Finding("model", "failed", model["error"], remedy)
    else:
        size = f"{model['num_parameters']:,} parameters, {model['slots']} slots"
        yield Finding("model", "ok", f"{model['id']}: {size}, loaded in {model['load_s']:.1f} s")
