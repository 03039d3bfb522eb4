"""The OpenAPI description, with what FastAPI cannot derive: problems, keys and whole examples."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json

from api_stub.addresses import PROBES, UPLOADS
from api_stub.keys import SCHEME
from api_stub.problems import MEDIA_TYPE, STATUSES, HttpCode, HttpError, Problem
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
from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.feed import FeedSeries, FeedUpdate, PastForecast
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import JOB_ID, example
from kronos_client.core.stored import Stored

TEMPLATE: Final = "#/components/schemas/{model}"
TAGS: Final = {
    "predict": "Forecast candles and wait for the result.",
    "forecasts": "Forecasts as jobs: submit, follow, read or cancel them.",
    "feeds": "Feeds: append bars of many series, and read the newest forecasts as a table.",
    "finetunes": "Finetuning a model on files of the data folder, as jobs.",
    "backtests": "Backtests of models on files of the data folder, as jobs, and their reports.",
    "models": "Models that jobs may name: load, promote or delete them.",
    "candles": "The bars that the service reads in a file. Nothing is kept.",
    "datasets": "Files in the data folder, for finetuning, backtests and forecasts.",
    "operation": "Workers, health and metrics, and why a job does not end.",
}
"""The groups of operations, in the order of docs/use/http.md."""
ABOUT: Final[dict[str, Any]] = {
    "title": "Kronos",
    "version": "1",
    "summary": "Candlestick forecasts as jobs",
    "description": "Forecasts, finetuning and backtests of candlesticks by Kronos models. Every error is a "
    "problem document (RFC 9457) whose `code` says what happened.",
    "contact": {"name": "Kronos worker contributors"},
    "license_info": {"name": "MIT", "identifier": "MIT"},
    "servers": [{"url": "/"}],
    "openapi_tags": [{"name": name, "description": text} for name, text in TAGS.items()],
}
"""What the description says of the whole service, as arguments of FastAPI."""


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
    components["responses"] = {
        f"Problem{status:d}": _problem(status) for status in set(STATUSES.values()) - {405}
    }
    for path, operations in description["paths"].items():
        for operation in operations.values():
            for status in _statuses(path, operation):
                operation["responses"][f"{status}"] = {"$ref": f"#/components/responses/Problem{status}"}
            if path not in PROBES:
                _describe_key(operation, needs_keys=needs_keys)
            for parameter in operation.get("parameters", ()):
                if parameter["required"] and "examples" in parameter["schema"]:  # Swagger UI fills these in
                    parameter["example"] = parameter["schema"]["examples"][0]
            for content in operation["responses"].get("200", {}).get("content", {}).values():
                if "itemSchema" in content:  # of an event; OpenAPI has that name for it since 3.2
                    content["schema"] = content.pop("itemSchema")
    for path, method, part, shown in _examples():
        operation = description["paths"][path][method]
        content = (operation | operation["responses"])[part]["content"]
        content["text/csv" if isinstance(shown, str) else "application/json"]["example"] = shown


def _describe_key(operation: dict[str, Any], *, needs_keys: bool) -> None:
    scopes = {scope for needed in operation.get("security", []) for scope in needed[SCHEME]}
    if scopes:
        scope = "admin" if "admin" in scopes else "` or `".join(sorted(scopes))
        operation["description"] += f"\n\nKeys need the scope `{scope}`."
    # The empty entry means that no key is needed. OpenAPI lists scopes only for OAuth.
    operation["security"] = [{SCHEME: []}] if needs_keys else [{}, {SCHEME: []}]


def _problem(status: HTTPStatus) -> dict[str, Any]:
    """The response of all problems with this status."""
    codes = [code for code in (*ErrorCode, *HttpCode) if STATUSES[code] == status]
    example = from_json(bytes(HttpError(codes[0], codes[0].meaning).response().body))
    content = {"schema": {"$ref": TEMPLATE.format(model=Problem.__name__)}, "example": example}
    listed = "\n".join(f"- `{code}`: {code.meaning}" for code in codes)
    return {"description": listed, "content": {MEDIA_TYPE: content}}


def _statuses(path: str, operation: dict[str, Any]) -> set[int]:
    """The statuses of an operation's problems."""
    has_body, answers = "requestBody" in operation, operation["responses"]
    found = {403, 422, 429} if path in PROBES else {401, 403, 422, 429, 500, 503}
    if has_body:
        found |= {400, 408, 415}
    if has_body or "{" in path:
        found |= {404, 410}
    if has_body or "text/csv" in answers.get("200", {}).get("content", {}):  # the job's error
        found |= {409, 413, 504, 507}
    return found


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
        ("/v1/models/load", "post", "requestBody", {"model": "kronos-tiny"}),
        ("/v1/models/{model_id}/promote", "post", "requestBody", {"backtest": JOB_ID}),
        *((path, "post", "requestBody", _file(request)) for path in UPLOADS),
        ("/v1/feeds/{name}", "put", "requestBody", {"pred_len": 12, "events": ["close>last at end"]}),
        ("/v1/feeds/{name}/bars", "post", "requestBody", {"series": [_bars()]}),
        ("/v1/feeds/{name}/series/{series_id}", "get", "200", _feed_series(result)),
        (FORECASTS, "post", "requestBody", example("forecast-job")),
        (f"{FORECASTS}/{{job_id}}", "get", "200", forecast.model_dump(mode="json")),
        (FINETUNES, "post", "requestBody", example("finetune-job")),
        (f"{FINETUNES}/{{job_id}}", "get", "200", trained.model_dump(mode="json")),
        (BACKTESTS, "post", "requestBody", example("backtest-job")),
        (f"{BACKTESTS}/{{job_id}}", "get", "200", tested.model_dump(mode="json")),
    ]


def _bars() -> dict[str, Any]:
    """The same series, as bars to append to a feed."""
    series: dict[str, Any] = example("forecast-job")["series"][0]
    return {name: series[name] for name in ("id", "timestamps", "open", "high", "low", "close", "volume")}


def _feed_series(result: ForecastResult) -> dict[str, Any]:
    """The same series with its forecast, and with one that was made a bar before."""
    bars, forecast = _bars(), result.series[0]
    name, times = bars.pop("id"), bars["timestamps"]
    last = {"last_time": times[-1], "last": 1_718_150_400_000_000, "last_close": bars["close"][-1]}
    last["appended_at"] = 1_718_236_800.0
    newest = FeedUpdate(series=name, version=2, job_id=JOB_ID, **last, forecast=forecast, model=result.model)
    quantiles = {level: {"close": columns["close"]} for level, columns in forecast.quantiles.items()}
    shown = (times[-1], *forecast.timestamps[:-1])
    past = PastForecast(version=1, model=result.model.id, timestamps=shown, quantiles=quantiles)
    series = FeedSeries(bars=bars, newest=newest, past=(past,))
    return series.model_dump(mode="json", exclude_none=True)


def _request() -> dict[str, Any]:
    """The first series of the contract's example job, as a prediction request."""
    job = example("forecast-job")
    series = job["series"][0]
    names = ("open", "high", "low", "close", "volume")
    times, future = (
        [f"{time}T00:00:00Z" for time in series[name]] for name in ("timestamps", "future_timestamps")
    )
    rows = zip(*(series[name] for name in names), strict=True)
    return {
        "series_id": series["id"],
        "candles": [dict(zip(names, row, strict=True)) for row in rows],
        "timestamps": times,
        "prediction_timestamps": future,
        "overrides": {"temperature": 1.0, "top_p": 0.9, "sample_count": 20, "seed": 42},
        "quantiles": job["output"]["quantiles"],
    }


def _file(request: dict[str, Any]) -> str:
    """The candles of a request as a file."""
    bars = zip(request["timestamps"], request["candles"], strict=True)
    rows = [(time, *candle.values()) for time, candle in bars]
    head = ("timestamps", *request["candles"][0])
    return "".join(f"{','.join(map(str, row))}\n" for row in (head, *rows))
