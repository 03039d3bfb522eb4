"""Each output of a forecast has its place in all clients, and each field of a series' forecast in answers."""

from typing import Any

import pytest

from api_stub.routes.file_forecasts import FileForecast
from api_stub.routes.predictions import Prediction, SingleRequest
from kronos_cli.commands.options import of_forecast
from kronos_client.contract.forecast import Output
from kronos_client.contract.results import SeriesForecast, forecast_columns
from kronos_client.core.options import FeedOptions, ForecastOptions

COMMAND: Any = of_forecast(lambda **_: None)
IN_ONE_ANSWER = {
    "scoring": "only workers ask for it, for feeds",
    "stream": "the answer comes at once",
    "repair": "the answer is always repaired",
}
PLACES = {
    "core/options.py ForecastOptions": (ForecastOptions.__annotations__, {"scoring"}),
    "core/options.py CommonOptions, for feeds": (
        FeedOptions.__annotations__,
        {"scoring", "stream", "paths"},  # updates of a feed are whole, and kept for long
    ),
    "commands/options.py OF_FORECASTS": (
        {option.name for option in COMMAND.__click_params__},
        {*IN_ONE_ANSWER, "paths"},  # files are written without paths
    ),
    "file_forecasts.py FileForecast": (FileForecast.model_fields, {*IN_ONE_ANSWER}),
    "predictions.py SingleRequest": (
        SingleRequest.model_fields,
        {*IN_ONE_ANSWER, "calibrated"},  # files and jobs of apps have it
    ),
}
RENAMED = {"id": "series_id", "timestamps": "prediction", "mean": "prediction"}
NOT_IN_PREDICTIONS = {"timestamps_from", "timezone", "scoring", "manifest"}
NOT_IN_TABLES = {
    *("id", "timestamps_from", "timezone", "paths", "statistics"),
    *("seed", "lookback", "warnings", "scoring", "manifest"),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_output_can_be_asked_for_everywhere(place: str) -> None:
    offered, exceptions = PLACES[place]
    assert Output.model_fields.keys() - offered == exceptions, f"add it to {place}, or here with a reason"


def test_predictions_have_every_field_of_a_series() -> None:
    left_out = {
        name for name in SeriesForecast.model_fields if RENAMED.get(name, name) not in Prediction.model_fields
    }
    assert left_out == NOT_IN_PREDICTIONS, "add it to predictions.py Prediction, or here"


class Noting(dict[str, Any]):
    """A forecast that notes which fields were read."""

    def __init__(self) -> None:
        super().__init__(timestamps=(), mean={}, quantiles={})
        self.noted: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.noted.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.noted.add(name)
        return super().get(name, default)


def test_tables_have_every_field_that_has_a_value_for_each_bar() -> None:
    forecast = Noting()
    forecast_columns("a", forecast)
    assert SeriesForecast.model_fields.keys() - forecast.noted == NOT_IN_TABLES, (
        "make a column of it in results.py forecast_columns, or add it here"
    )
