"""Enqueue forecasts and finetuning from any app: ``from kronos_client import ForecastClient``. No torch.

Names are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronos_client.aio import AsyncForecastClient
    from kronos_client.client import ForecastClient
    from kronos_client.contract.errors import ErrorCode, JobError

__version__ = "0.1.0"

_EXPORTS = {
    "AsyncForecastClient": "aio",
    "ErrorCode": "contract.errors",
    "ForecastClient": "client",
    "JobError": "contract.errors",
}

__all__ = ["AsyncForecastClient", "ErrorCode", "ForecastClient", "JobError"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
