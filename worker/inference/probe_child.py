"""``python -m worker.inference.probe_child``: test devices, and if the model loads. ``probe.py`` starts it.

It reads one message with the arguments of ``report_on``, and sends one event, ``report`` or ``error``.
"""

from collections.abc import Sequence

import torch

from kronos_client.settings import SettingsError
from kronos_model.devices.probe import TorchProbe, compute_on
from kronos_model.devices.resolution import describe_device, resolve_device, skipped_gpu
from kronos_model.engine.choice import EngineOutlook, engine_outlook
from kronos_model.errors import KronosError
from kronos_model.processes.json_child import JsonParent
from worker.inference.model_loader import ModelLoader
from worker.inference.probe import ALL
from worker.settings import WorkerSettings, explain, get_settings


def device_report(name: str, settings: WorkerSettings, *, with_slots: bool) -> dict[str, object]:
    """The resolved device with ``warning`` and ``description``, or ``error``.

    ``skipped`` says why ``auto`` did not choose the GPU, if there is one.
    ``num_gpus`` counts the machine's GPUs, usable or not. ``engine`` is an ``EngineOutlook``.
    ``slots`` is the number of sample paths that the worker's model computes at once there. If that is
    unknown, it is None, and ``slots_error`` says why.
    """
    try:
        device, warning = resolve_device(name)
        if compute_on(device) != 8:
            raise RuntimeError(f"{device} gives wrong results: 1 · 1 + 1 · 1 is not 2 there")
    except (KronosError, RuntimeError) as error:
        return {"requested": name, "error": _text(error)}
    report: dict[str, object] = {
        "requested": name,
        "device": str(device),
        "warning": warning,
        "skipped": skipped_gpu(TorchProbe()) if name == "auto" and device.type == "cpu" else None,
        "num_gpus": TorchProbe().cuda_device_count() if device.type == "cuda" else 0,
        "description": describe_device(device).as_dict(),
        "engine": _outlook(device, settings)._asdict(),
    }
    if not with_slots:
        return report
    try:
        return report | {"slots": ModelLoader(settings, device).own_slots(), "slots_error": None}
    except KronosError as error:
        return report | {"slots": None, "slots_error": _text(error)}


def model_report(name: str, settings: WorkerSettings) -> dict[str, object]:
    """The worker's model after it loaded there, or ``error`` and its ``code``. Nothing is compiled for it."""
    try:
        device, _ = resolve_device(name)
        if not _outlook(device, settings).is_compiled:
            settings = settings.model_copy(update={"engine": "torch"})
        loaded = ModelLoader(settings, device).load()
    except KronosError as error:
        return {"error": explain(error), "code": error.code}
    return {
        "id": loaded.info.id,
        "revision": loaded.info.revision,
        "num_parameters": loaded.num_parameters,
        "max_context": loaded.max_context,
        "slots": loaded.engine.load.slots,
        "load_s": loaded.load_s,
    }


def report_on(
    devices: Sequence[str], settings: WorkerSettings, *, with_slots: bool, with_model: bool
) -> dict[str, object]:
    """Report on devices, and on the model.

    Args:
        devices: Values of ``KRONOS_DEVICE``; ``all`` alone means every device that this machine may have.
        with_slots: Report for each device how many sample paths the worker's model computes at once.

    Returns:
        ``devices``, one report for each, and ``model``, which is None if not requested or without device.
    """
    if list(devices) == [ALL]:
        gpus = (f"cuda:{index}" for index in range(TorchProbe().cuda_device_count()))
        devices = ["auto", "cpu", "cuda", *gpus, "mps"]
    reports = [device_report(name, settings, with_slots=with_slots) for name in devices]
    model = model_report(devices[0], settings) if with_model and "error" not in reports[0] else None
    return {"devices": reports, "model": model}


def _outlook(device: torch.device, settings: WorkerSettings) -> EngineOutlook:
    return engine_outlook(device, settings.engine, getattr(torch, settings.dtype))


def _text(error: Exception) -> str:
    return f"{error.code}: {error.message}" if isinstance(error, KronosError) else str(error)


if __name__ == "__main__":
    parent = JsonParent()
    try:
        parent.send("report", **report_on(settings=get_settings(), **parent.next_message()))
    except SettingsError as error:
        parent.send("error", message=str(error))
