"""The OpenAPI description, with what FastAPI cannot derive: problems, keys and whole examples."""

from typing import Any, Final

from celery import states
from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api_stub.addresses import PROBES
from api_stub.problems import MEDIA_TYPE, Problem
from api_stub.routes.job_views import FINETUNES_URL, FORECASTS_URL, finetune_view, forecast_view
from api_stub.routes.prediction_jobs import PredictionJob
from api_stub.routes.predictions import SingleRequest
from kronos_client.contract.examples import JOB_ID, example
from kronos_client.contract.results import ForecastResult
from kronos_client.core.stored import Stored

SCHEME: Final = "key"
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
    components["securitySchemes"] = {
        SCHEME: {"type": "http", "scheme": "bearer", "description": "a key of KRONOS_API_KEYS"}
    }
    bodies, answers = _examples()
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if path not in PROBES:
                # The empty entry means that no key is needed.
                operation["security"] = [{SCHEME: []}] if needs_keys else [{}, {SCHEME: []}]
            if (method, path) in bodies:
                _set_example(operation["requestBody"], bodies[method, path])
            if (method, path) in answers:
                _set_example(operation["responses"]["200"], answers[method, path])


def _set_example(part: dict[str, Any], example: Any) -> None:
    part["content"]["application/json"]["example"] = example


def problem_response(description: str, **example: Any) -> dict[str, Any]:
    """A problem response for FastAPI. If given the model, FastAPI would declare application/json."""
    schema = {"$ref": TEMPLATE.format(model=Problem.__name__)}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema} | example}}


def _examples() -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], Any]]:
    """Examples of request bodies and of answers, by method and path."""
    request = _request()
    result = ForecastResult.model_validate(example("forecast-result"))
    item = SingleRequest.model_validate(request)
    job = PredictionJob([item], [0], "")
    (prediction,) = job.predictions(result.model_copy(update={"series": result.series[:1]}))
    answer = prediction.model_dump(mode="json")
    done = Stored(states.SUCCESS, example("forecast-result"))
    trained = Stored(states.SUCCESS, example("finetune-result"))
    bodies = {
        ("post", "/v1/predict/single"): request,
        ("post", "/v1/predict/batch"): {"items": [request]},
        ("post", FORECASTS_URL): example("forecast-job"),
        ("post", FINETUNES_URL): example("finetune-job"),
    }
    answers = {
        ("post", "/v1/predict/single"): answer,
        ("post", "/v1/predict/batch"): [answer],
        ("get", f"{FORECASTS_URL}/{{job_id}}"): forecast_view(JOB_ID, done).model_dump(mode="json"),
        ("get", f"{FINETUNES_URL}/{{job_id}}"): finetune_view(JOB_ID, trained).model_dump(mode="json"),
    }
    return bodies, answers


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
