"""From an app's data (paths, DataFrames, options) to a backtest as a job. No pandas needed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any, Literal, TypedDict, Unpack

from kronos_client.contract.names import SCHEMA_VERSION, Priority
from kronos_client.core.finetune_request import DataSource, data_payload
from kronos_client.core.forecast_request import check_options, plain
from kronos_client.core.reading import readable
from kronos_model.bars.files.options import ReadOptions


class WindowChoice(TypedDict, total=False):
    """What every backtest may ask for. Those without a description are as of ``BacktestOptions``.

    Attributes:
        models: By default the workers' own alone.
        lookback: By default the fewest bars that one of the models reads by itself.
    """

    windows: int | None
    stride: int | None
    lookback: int | Literal["auto"] | None
    horizon: int
    samples: int
    seed: int
    start: date | None
    end: date | None
    models: str | Sequence[str | None] | None


class BacktestJobOptions(WindowChoice, total=False):
    """Options of a backtest that workers run.

    Attributes:
        reading: How to read files: ``ReadOptions``, or a mapping like it.
        deadline_s: Seconds from submission until the job is given up.
        priority: Of this job; its forecasts have low priority.
        job_id, retry_for_s: As in ``ForecastClient.submit``.
    """

    reading: ReadOptions | Mapping[str, Any]
    deadline_s: float | None
    priority: Priority
    job_id: str | None
    retry_for_s: float


def backtest_payload(data: DataSource, **options: Unpack[BacktestJobOptions]) -> dict[str, Any]:
    """Make a backtest as JSON has it. The contract checks its values later.

    Raises:
        JobError: The data cannot be read.
        TypeError: An option does not exist.
    """
    check_options(options, BacktestJobOptions)
    given = plain(**options)
    for name in ("start", "end"):
        if isinstance(given.get(name), date):
            given[name] = given[name].isoformat()
    if isinstance(given.get("reading"), ReadOptions):
        given["reading"] = asdict(given["reading"])
    models = given.get("models")
    with readable("models", "models"):
        if models is not None:
            given["models"] = [models] if isinstance(models, str) else list(models)
    fields = {name: value for name, value in given.items() if value is not None}
    return {"schema_version": SCHEMA_VERSION, "data": data_payload(data)} | fields
