"""Enqueue forecasts, backtests and finetuning from any app: ``from kronos_client import ForecastClient``.

No torch. Names are imported when first used.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kronos_client.aio import AsyncForecastClient
    from kronos_client.client import ForecastClient
    from kronos_client.contract.backtest import BacktestProgress, BacktestResult
    from kronos_client.contract.errors import ErrorCode, JobError
    from kronos_client.contract.finetune import FinetuneProgress, FinetuneResult
    from kronos_client.contract.model_info import CalibrationInfo
    from kronos_client.contract.results import (
        Distribution,
        EventChance,
        ForecastResult,
        PathStatistics,
        SeriesForecast,
    )
    from kronos_client.contract.worker_status import FinetuneWorkerStatus, ForecastWorkerStatus
    from kronos_client.core.handle import (
        AsyncBacktestHandle,
        AsyncFinetuneHandle,
        AsyncForecastHandle,
        BacktestHandle,
        FinetuneHandle,
        ForecastHandle,
    )
    from kronos_client.core.kinds import BacktestState, FinetuneState, JobState
    from kronos_client.core.many import ForecastOutcome
    from kronos_client.core.options import BacktestJobOptions, FinetuneOptions, ForecastOptions
    from kronos_client.settings import ClientSettings, SettingsError

__version__ = "0.1.0"

_MODULES = {
    "aio": "AsyncForecastClient",
    "client": "ForecastClient",
    "contract.backtest": "BacktestProgress BacktestResult",
    "contract.errors": "ErrorCode JobError",
    "contract.finetune": "FinetuneProgress FinetuneResult",
    "contract.results": "Distribution EventChance ForecastResult PathStatistics SeriesForecast",
    "contract.model_info": "CalibrationInfo",
    "contract.worker_status": "FinetuneWorkerStatus ForecastWorkerStatus",
    "core.handle": "AsyncBacktestHandle AsyncFinetuneHandle AsyncForecastHandle "
    "BacktestHandle FinetuneHandle ForecastHandle",
    "core.kinds": "BacktestState FinetuneState JobState",
    "core.many": "ForecastOutcome",
    "core.options": "BacktestJobOptions FinetuneOptions ForecastOptions",
    "settings": "ClientSettings SettingsError",
}

__all__ = [
    "AsyncBacktestHandle", "AsyncFinetuneHandle", "AsyncForecastClient", "AsyncForecastHandle",
    "BacktestHandle", "BacktestJobOptions", "BacktestProgress", "BacktestResult", "BacktestState",
    "CalibrationInfo", "ClientSettings", "Distribution", "ErrorCode", "EventChance", "FinetuneHandle",
    "FinetuneOptions",
    "FinetuneProgress", "FinetuneResult", "FinetuneState", "FinetuneWorkerStatus", "ForecastClient",
    "ForecastHandle", "ForecastOptions", "ForecastOutcome", "ForecastResult", "ForecastWorkerStatus",
    "JobError", "JobState", "PathStatistics", "SeriesForecast", "SettingsError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(_imported(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _imported(module: str) -> Any:
    """Imports leave little garbage, and looking for it would take a seventh of their time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if is_enabled:
            gc.enable()
