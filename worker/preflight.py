"""Try what prefork children will do, in a short-lived process of its own: ``python -m worker.preflight``.

The parent of a prefork pool must not run torch before it forks. It learns the device from here, and whether
the model can be loaded at all, once instead of in every child. Prints one JSON object.
"""

import json
import sys

from kronos_model.device import resolve_device
from kronos_model.errors import KronosError
from worker.loading import ModelLoader
from worker.settings import Settings, SettingsError, explain, get_settings


def preflight(settings: Settings) -> dict[str, str]:
    """``device`` as it resolves, or ``error`` where a worker cannot serve with these settings."""
    try:
        device, _ = resolve_device(settings.device)
        if device.type == "cpu":  # prefork is refused on any other
            ModelLoader(settings, device).load_own()
    except KronosError as error:
        return {"error": explain(error)}
    return {"device": str(device)}


if __name__ == "__main__":
    try:
        json.dump(preflight(get_settings()), sys.stdout)
    except SettingsError as error:
        json.dump({"error": str(error)}, sys.stdout)
