"""Results as the tests of ``kronos forecast`` need them."""

from typing import Any

from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example


def result(close: float = 10.0, **changes: Any) -> ForecastResult:
    """One series, two bars ahead, one quantile pair."""
    columns = {name: [close, close + 1] for name in ("open", "high", "low", "close", "volume", "amount")}
    series = {
        "id": "0",
        "timestamps": ["2024-06-18 09:50:00", "2024-06-18 09:55:00"],
        "mean": columns,
        "quantiles": {"0.9": columns, "0.1": columns},
        "paths": None,
        "seed": 7,
    }
    return ForecastResult.model_validate(
        example("forecast-result") | {"series": [series], "warnings": []} | changes
    )
