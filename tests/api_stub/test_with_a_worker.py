"""The app with a real worker: forecasts equal to the reference, and clients of its HTTP service."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from api_stub.settings import ApiSettings
from kronos_cli.stack.local_redis import LocalRedis
from tests.api_stub.conftest import ADDRESS
from tests.integration.conftest import CASES, PARITY, StartWorker, candles, redis, start_worker  # noqa: F401

GREEDY = next(case for case in CASES if case["name"] == "greedy")


@pytest.fixture(scope="module")
def http(
    redis: LocalRedis,  # noqa: F811
    start_worker: StartWorker,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestClient]:
    settings = ApiSettings.model_construct().with_redis_url(redis.url)
    settings = settings.model_copy(update={"data_folder": tmp_path_factory.mktemp("data")})
    start_worker(KRONOS_MODELS="kronos-tiny", KRONOS_DEVICE="cuda:0").wait_until_ready()
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        yield client


@pytest.fixture(scope="module")
def greedy(candles: pd.DataFrame) -> dict:  # noqa: F811
    """The reference's greedy case as a request."""
    lookback, pred_len = GREEDY["lookback"], GREEDY["pred_len"]
    past, future = candles[:lookback], candles[lookback : lookback + pred_len]
    return {
        "series_id": "x",
        "candles": past[GREEDY["columns"]].to_dict("records"),
        "timestamps": past["timestamps"].tolist(),
        "prediction_timestamps": future["timestamps"].tolist(),
        "overrides": {"top_k": 1, "top_p": 1.0, "seed": 1},
    }


def assert_equals_reference(prediction: list[dict]) -> None:
    expected = pd.read_csv(PARITY / "greedy.0.csv")
    raised = {
        "high": expected[["open", "high", "close"]].max(axis=1),
        "low": expected[["open", "low", "close"]].min(axis=1),
    }
    for name in GREEDY["columns"]:
        values = raised.get(name, expected[name])
        if name in ("volume", "amount"):
            values = values.clip(lower=0)
        np.testing.assert_allclose([point[name] for point in prediction], values, rtol=1e-5)


def test_a_single_prediction_equals_the_reference(http, greedy):
    answer = http.post("/v1/predict/single", json=greedy)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert_equals_reference(content["prediction"])
    assert [datetime.fromisoformat(point["timestamp"]) for point in content["prediction"]] == [
        datetime.fromisoformat(text) for text in greedy["prediction_timestamps"]
    ]
    assert content["model_version"] == str(PARITY / "model")
    assert content["tokenizer_version"] == str(PARITY / "tokenizer")
    assert http.get(f"/v1/forecasts/{answer.headers['x-job-id']}").json()["state"] == "done"


def test_a_batch_equals_the_reference_in_order(http, greedy):
    other = greedy | {"series_id": "y", "overrides": greedy["overrides"] | {"sample_count": 2}}
    answer = http.post("/v1/predict/batch", json={"items": [greedy, other, greedy | {"series_id": None}]})
    assert answer.status_code == 200, answer.text
    assert [one["series_id"] for one in answer.json()] == ["x", "y", None]
    for one in answer.json():
        assert_equals_reference(one["prediction"])


def test_quantiles_and_paths_are_returned_on_request(http, greedy):
    body = greedy | {"overrides": {"sample_count": 4, "seed": 5}}
    plain = http.post("/v1/predict/single", json=body).json()
    assert (plain["quantiles"], plain["paths"]) == (None, None)
    rich = http.post("/v1/predict/single", json=body | {"quantiles": [0.1, 0.9], "paths": True}).json()
    assert rich["prediction"] == plain["prediction"]
    horizon = len(plain["prediction"])
    assert {level: len(table["close"]) for level, table in rich["quantiles"].items()} == {
        "0.1": horizon,
        "0.9": horizon,
    }
    assert np.shape(rich["paths"]["close"]) == (4, horizon)
    np.testing.assert_allclose(
        np.mean(rich["paths"]["close"], axis=0), [point["close"] for point in plain["prediction"]], rtol=1e-6
    )


def test_a_forecast_job_goes_from_202_to_its_result(http, greedy):
    series = {name: [candle[name] for candle in greedy["candles"]] for name in GREEDY["columns"]}
    series |= {
        "id": "x",
        "timestamps": greedy["timestamps"],
        "future_timestamps": greedy["prediction_timestamps"],
    }
    accepted = http.post("/v1/forecasts", json={"series": [series], "sampling": {"top_k": 1, "top_p": 1.0}})
    with http.stream("GET", f"{accepted.json()['url']}/events") as events:
        lines = list(events.iter_lines())
    assert lines[lines.index("event: end") + 1].startswith("data: ")
    view = http.get(accepted.json()["url"]).json()
    assert json.loads(lines[lines.index("event: end") + 1].removeprefix("data: ")) == view
    columns = view["result"]["series"][0]["mean"]
    assert_equals_reference(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    )


def test_errors_of_the_worker_have_their_code(http, greedy):
    start = datetime(2024, 3, 1)
    times = [str(start + timedelta(minutes=5 * bar)) for bar in range(400)]
    long = greedy | {
        "candles": greedy["candles"][:8],
        "timestamps": times[:8],
        "prediction_timestamps": times[8:208],
    }
    answer = http.post("/v1/predict/single", json=long)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
        422,
        "PRED_LEN_TOO_LONG",
        "overrides.pred_len",
    )
    other = http.post("/v1/predict/single", json=greedy | {"model": "unknown-model"})
    assert (other.status_code, other.json()["code"], other.json()["field"]) == (
        422,
        "MODEL_NOT_ALLOWED",
        "model",
    )


def test_a_missing_device_gives_a_warning(http, greedy):
    ready = http.get("/v1/readyz")
    assert ready.status_code == 200
    assert (ready.json()["status"], ready.json()["model_loaded"], ready.json()["device"]) == (
        "ok",
        True,
        "cpu",
    )
    assert "Falling back to CPU" in ready.json()["device_warning"]
    assert "Falling back to CPU" in http.post("/v1/predict/single", json=greedy).json()["device_warning"]


def test_a_model_is_loaded_before_a_job_names_it(http, greedy):
    answer = http.post("/v1/models/load", json={"model": "kronos-tiny"})
    assert answer.status_code == 200, answer.text
    (worker,) = answer.json()["workers"]
    assert (worker["state"], worker["device"], worker["error"]) == ("ready", "cpu", None)
    assert "Falling back to CPU" in worker["device_warning"]
    again = http.post("/v1/models/load", json={"model": "kronos-tiny", "device": "cpu"})
    assert again.json()["workers"][0]["state"] == "ready"
    forecast = http.post("/v1/predict/single", json=greedy | {"model": "kronos-tiny"})
    assert forecast.json()["model_version"] == "kronos-tiny"
    own = {"id": str(PARITY / "model"), "kind": "own"}
    assert own.items() <= http.get("/v1/models").json()["models"][0].items()


def test_a_model_that_no_worker_may_load_is_refused(http):
    answer = http.post("/v1/models/load", json={"model": "/etc"})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
        422,
        "MODEL_NOT_ALLOWED",
        "model",
    )
    missing = http.post("/v1/models/load", json={"model": "kronos-tiny", "device": "cuda"})
    assert (missing.status_code, missing.json()["code"]) == (503, "MODEL_CAPACITY")


def reference_times(num: int, start: datetime | None = None) -> list[str]:
    """Times as clients of the reference's service send them: local, with microseconds."""
    start = start or datetime(2024, 6, 18, 9, 30, 0, 123456)
    return [(start + timedelta(minutes=minute)).isoformat() for minute in range(num)]


def bars(num: int) -> list[dict]:
    prices = [95.0 + bar % 10 for bar in range(num)]
    return [
        {
            "open": price,
            "high": price + 1,
            "low": price - 1,
            "close": price + 0.5,
            "volume": 1000,
            "amount": 1e5,
        }
        for price in prices
    ]


def test_the_examples_of_the_documentation_run_as_they_stand(http):
    answers = {}
    paths = http.get("/openapi.json").json()["paths"]
    for method in ("put", "post"):
        for path in [path for path, operations in paths.items() if method in operations]:
            operation, given = paths[path][method], {"path": {}, "query": {}}
            for parameter in operation.get("parameters", []):
                if parameter["required"]:
                    given[parameter["in"]][parameter["name"]] = parameter["example"]
            kind, body = next(iter(operation["requestBody"]["content"].items()))
            shown = body["example"] if isinstance(body["example"], str) else json.dumps(body["example"])
            url, headers = path.format(**given["path"]), {"Content-Type": kind}
            asked = {"params": given["query"], "headers": headers, "content": shown}
            answers[path] = http.request(method, url, **asked)
    # Versions to promote come from training, which needs other workers.
    assert answers.pop("/v1/models/{model_id}/promote").json()["code"] == "NOT_FOUND"
    assert {path for path, answer in answers.items() if not answer.is_success} == set()
    job = answers["/v1/forecasts"].json()
    with http.stream("GET", f"{job['url']}/events") as events:
        assert "event: end" in list(events.iter_lines())
    assert http.get(job["url"]).json()["state"] == "done"


def test_a_client_of_the_references_service_gets_the_same_fields(http):
    times = reference_times(120)
    body = {
        "series_id": "test-series-1",
        "candles": bars(100),
        "timestamps": times[:100],
        "prediction_timestamps": times[100:],
    }
    answer = http.post("/v1/predict/single", json=body)
    content = answer.json()
    assert list(content)[:4] == ["series_id", "prediction", "model_version", "tokenizer_version"]
    assert content["series_id"] == "test-series-1"
    assert [point["timestamp"] for point in content["prediction"]] == times[100:]
    assert set(content["prediction"][0]) == {"timestamp", "open", "high", "low", "close", "volume", "amount"}
    items = [body | {"series_id": f"batch-series-{index}"} for index in range(3)]
    batch = http.post("/v1/predict/batch", json={"items": items}).json()
    assert [one["series_id"] for one in batch] == ["batch-series-0", "batch-series-1", "batch-series-2"]
    assert all(len(one["prediction"]) == 20 for one in batch)
