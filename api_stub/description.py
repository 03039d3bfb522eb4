"""The OpenAPI description, with what FastAPI cannot derive: problems, keys and whole examples."""

from typing import Any, Final

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api_stub.addresses import PROBES
from api_stub.problems import MEDIA_TYPE, Problem
from api_stub.routes.job_views import (
    BACKTESTS,
    FINETUNES,
    FORECASTS,
    BacktestView,
    FinetuneView,
    ForecastView,
)
from api_stub.routes.prediction_jobs import PredictionJob
from api_stub.routes.predictions import SingleRequest
from api_stub.scopes import SCHEME
from kronos_client.contract import states
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import JOB_ID, example
from kronos_client.core.stored import Stored

TEMPLATE: Final = "#/components/schemas/{model}"


def describe(app: FastAPI, *, needs_keys: bool) -> None:
    """Extend the app's OpenAPI description, which is made when first requested."""
    written = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(written(), needs_keys=needs_keys)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(description: dict[str, Any], *, needs_keys: bool) -> None:
    components = description["components"]
    _, schemas = models_json_schema([(Problem, "serialization")], ref_template=TEMPLATE)
    components["schemas"] |= schemas["$defs"]
    for path, operations in description["paths"].items():
        for operation in operations.values() if path not in PROBES else ():
            key = {
                SCHEME: sorted(
                    {scope for needed in operation.get("security", []) for scope in needed[SCHEME]}
                )
            }
            # The empty entry means that no key is needed.
            operation["security"] = [key] if needs_keys else [{}, key]
    for path, method, part, shown in _examples():
        operation = description["paths"][path][method]
        content = (operation | operation["responses"])[part]["content"]
        content["application/json"]["example"] = shown


def problem_response(description: str, **example: Any) -> dict[str, Any]:
    """A problem response for FastAPI. If given the model, FastAPI would declare application/json."""
    schema = {"$ref": TEMPLATE.format(model=Problem.__name__)}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema} | example}}


def _examples() -> list[tuple[str, str, str, Any]]:
    """Examples of request bodies and of answers: path, method, body or status, and the example."""
    request = _request()
    result = ForecastResult.model_validate(example("forecast-result"))
    job = PredictionJob(JOB_ID, [SingleRequest.model_validate(request)], [0], "")
    (prediction,) = job.predictions(result.model_copy(update={"series": result.series[:1]}))
    answer = prediction.model_dump(mode="json")
    forecast = ForecastView.from_stored(JOB_ID, Stored(states.SUCCESS, example("forecast-result")))
    trained = FinetuneView.from_stored(JOB_ID, Stored(states.SUCCESS, example("finetune-result")))
    tested = BacktestView.from_stored(JOB_ID, Stored(states.SUCCESS, example("backtest-result")))
    return [
        ("/v1/predict/single", "post", "requestBody", request),
        ("/v1/predict/single", "post", "200", answer),
        ("/v1/predict/batch", "post", "requestBody", {"items": [request]}),
        ("/v1/predict/batch", "post", "200", [answer]),
        (FORECASTS, "post", "requestBody", example("forecast-job")),
        (f"{FORECASTS}/{{job_id}}", "get", "200", forecast.model_dump(mode="json")),
        (FINETUNES, "post", "requestBody", example("finetune-job")),
        (f"{FINETUNES}/{{job_id}}", "get", "200", trained.model_dump(mode="json")),
        (BACKTESTS, "post", "requestBody", example("backtest-job")),
        (f"{BACKTESTS}/{{job_id}}", "get", "200", tested.model_dump(mode="json")),
    ]


def _request() -> dict[str, Any]:
    """The first series of the contract's example job, as a prediction request."""
    job = example("forecast-job")
    series = job["series"][0]
    names = ("open", "high", "low", "close", "volume")
    rows = zip(*(series[name] for name in names), strict=True)
    return {
        "series_id": series["id"],
        "candles": [dict(zip(names, row, strict=True)) for row in rows],
        "timestamps": series["timestamps"],
        "prediction_timestamps": series["future_timestamps"],
        "overrides": {"temperature": 1.0, "top_p": 0.9, "sample_count": 20, "seed": 42},
        "quantiles": job["output"]["quantiles"],
    }
