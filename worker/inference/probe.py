"""Try what workers will do, in a short-lived process of its own: ``python -m worker.inference.probe``.

The parent of a prefork pool must not run torch before it forks, and a finetuning worker never runs it: they
learn the device from here. The prefork parent also learns whether the model can be loaded at all, once
instead of in every child. Prints one JSON object.
"""

import json
import sys
from typing import Any

from kronos_client.settings import SettingsError
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.errors import KronosError
from kronos_model.processes.exiting import collect_nothing_at_exit
from worker.inference.model_loader import ModelLoader
from worker.settings import WorkerSettings, explain, get_settings


def preflight(settings: WorkerSettings) -> dict[str, Any]:
    """``device`` as it resolves, with ``warning`` and ``description``; or ``error`` where none can serve."""
    try:
        device, warning = resolve_device(settings.device)
        if settings.role == "forecast" and device.type == "cpu":  # prefork is refused on any other
            ModelLoader(settings, device).load_own()
    except KronosError as error:
        return {"error": explain(error)}
    return {"device": str(device), "warning": warning, "description": describe_device(device).as_dict()}


if __name__ == "__main__":
    collect_nothing_at_exit()
    try:
        json.dump(preflight(get_settings()), sys.stdout)
    except SettingsError as error:
        json.dump({"error": str(error)}, sys.stdout)
