"""``python -m worker.inference.self_test``: what this machine computes on, and whether the model loads.

A short-lived process of its own, so that who asks needs no torch and outlives a driver that takes it down.
Takes names of devices, and ``--model`` to load the model on the first of them. Prints one JSON object.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

from kronos_model.devices.probe import TorchProbe
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.errors import KronosError
from kronos_model.processes.exiting import collect_nothing_at_exit
from worker.inference.model_loader import ModelLoader
from worker.settings import WorkerSettings, explain, get_settings

ALL: Final = "all"


def device_report(name: str, settings: WorkerSettings) -> dict[str, Any]:
    """What a device's name resolves to, with ``warning``, ``description`` and ``slots``; or ``error``.

    ``slots`` are the paths that the worker's model would compute at once there; None, with ``slots_error``,
    where that cannot be told.
    """
    try:
        device, warning = resolve_device(name)
        _compute(device)
    except (KronosError, RuntimeError) as error:
        return {"requested": name, "error": _text(error)}
    report = {
        "requested": name,
        "device": str(device),
        "warning": warning,
        "description": describe_device(device).as_dict(),
    }
    try:
        return report | {"slots": ModelLoader(settings, device).own_slots(), "slots_error": None}
    except KronosError as error:
        return report | {"slots": None, "slots_error": _text(error)}


def model_report(name: str, settings: WorkerSettings) -> dict[str, Any]:
    """The worker's model as it loads there; or ``error`` with its ``code``."""
    try:
        device, _ = resolve_device(name)
        loaded = ModelLoader(settings, device).load_own()
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


def self_test(names: Sequence[str], settings: WorkerSettings, *, with_model: bool) -> dict[str, Any]:
    """``devices``, one report for each name, and ``model``, None unless asked for.

    The name ``all`` stands for all that could be asked for here.
    """
    if list(names) == [ALL]:
        names = [
            "auto",
            "cpu",
            "cuda",
            *(f"cuda:{index}" for index in range(TorchProbe().cuda_device_count())),
            "mps",
        ]
    devices = [device_report(name, settings) for name in names]
    model = model_report(names[0], settings) if with_model and "error" not in devices[0] else None
    return {"devices": devices, "model": model}


def _compute(device: torch.device) -> None:
    """Raises RuntimeError where the device cannot add up; of a GPU that was tried on resolving it."""
    ones = torch.ones(2, 2, device=device)
    if (ones @ ones).sum().item() != 8:
        raise RuntimeError(f"{device} computes wrongly: 1 · 1 + 1 · 1 is not 2 there")


def _text(error: Exception) -> str:
    return f"{error.code}: {error.message}" if isinstance(error, KronosError) else str(error)


if __name__ == "__main__":
    collect_nothing_at_exit()
    arguments = sys.argv[1:]
    json.dump(
        self_test(
            [name for name in arguments if name != "--model"],
            get_settings(),
            with_model="--model" in arguments,
        ),
        sys.stdout,
    )
