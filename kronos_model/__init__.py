"""Kronos, the foundation model for candlestick series: load it, forecast with it.

Names are imported on first use, so modules without torch work where torch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronos_model.devices.resolution import describe_device, move_to_device, resolve_device
    from kronos_model.errors import KronosError
    from kronos_model.forecast import Forecast
    from kronos_model.model import Kronos
    from kronos_model.predictor import KronosPredictor
    from kronos_model.tokenizer import KronosTokenizer

_EXPORTS = {
    "Forecast": "forecast",
    "Kronos": "model",
    "KronosError": "errors",
    "KronosPredictor": "predictor",
    "KronosTokenizer": "tokenizer",
    "describe_device": "devices.resolution",
    "move_to_device": "devices.resolution",
    "resolve_device": "devices.resolution",
}

__all__ = [
    "Forecast",
    "Kronos",
    "KronosError",
    "KronosPredictor",
    "KronosTokenizer",
    "describe_device",
    "move_to_device",
    "resolve_device",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
