"""Predictions: from requests to jobs, and from results to answers."""

import asyncio
import itertools
import json
import threading

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from api_stub.routes.prediction_jobs import PredictionJob, prediction_jobs
from api_stub.routes.predictions import SingleRequest
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import result_key
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example
from kronos_client.core.stored import NOTHING, read_stored
from kronos_client.redis.routing import announce
from tests.api_stub.conftest import ADDRESS, STATUS, asgi_answer, series

SINGLE = "/v1/predict/single"
BATCH = "/v1/predict/batch"


def refused(response) -> tuple[int, str, str | None]:
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    return response.status_code, problem["code"], problem["field"]


def wait_for_results(http, settings):
    http.app.state.backend.settings = settings.model_copy(update={"api_wait_s": 20})
    del http.headers["Prefer"]


def test_a_request_becomes_a_job_with_its_options(http, jobs):
    body = series(overrides={"temperature": 0.7, "top_k": 3, "top_p": 0.8, "sample_count": 4, "seed": 11})
    output = {"quantiles": [0.1], "paths": True, "events": ["close>last at 2"], "statistics": True}
    answer = http.post(SINGLE, json=body | {"model": "kronos-tiny"} | output)
    assert answer.status_code == 202
    (job,) = jobs.sent()
    assert job["sampling"] == {"temperature": 0.7, "top_k": 3, "top_p": 0.8, "sample_count": 4}
    assert job["output"] == output
    assert (job["model"], job["pred_len"]) == ("kronos-tiny", 3)
    (one,) = job["series"]
    assert (one["id"], one["seed"]) == ("AAPL", 11)
    assert one["open"] == [candle["open"] for candle in body["candles"]]
    assert one["volume"] == [10.0] * 8
    assert "amount" not in one
    assert one["timestamps"] == body["timestamps"]
    assert one["future_timestamps"] == body["prediction_timestamps"]


def test_candles_without_prices_are_refused_unless_the_request_says_what_to_do(http, jobs):
    body = series()
    body["candles"][2]["close"] = None
    assert refused(http.post(SINGLE, json=body)) == (422, "NOT_FINITE", "candles.2.close")
    assert http.post(SINGLE, json=body | {"missing": "drop"}).status_code == 202
    (job,) = jobs.sent()
    assert (job["missing"], job["series"][0]["close"][2]) == ("drop", None)


UNSERVED = "No worker serves the queue cpu. Jobs wait until one does; start one with: kronos worker"


def test_an_unfinished_job_is_answered_with_its_address(http, jobs):
    answer = http.post(SINGLE, json=series())
    (job,) = jobs.sent()
    assert answer.json() == {
        "id": job["id"],
        "state": "queued",
        "url": f"/v1/forecasts/{job['id']}",
        "queue": "cpu",
        "waiting": UNSERVED,
    }
    assert answer.headers["x-job-id"] == job["id"]
    assert answer.headers["location"] == answer.json()["url"]
    assert http.get(answer.json()["url"]).json()["state"] == "queued"


def test_equal_requests_are_answered_with_the_address_of_their_one_job(settings, jobs, redis):
    model = STATUS.model.model_copy(update={"revision": "1"})
    announce(redis, STATUS.model_copy(update={"model": model}))
    own, body = settings.model_copy(update={"share_equal_jobs": True}), series(overrides={"seed": 1})
    with TestClient(create_app(own), base_url=ADDRESS, headers={"Prefer": "respond-async"}) as http:
        first, again = (http.post(SINGLE, json=body) for _ in range(2))
        assert first.json()["id"] == again.json()["id"] == again.headers["x-job-id"]
        assert http.get(again.headers["location"]).json()["id"] == first.json()["id"]
        batch = http.post(BATCH, json={"items": [body]})
        assert batch.headers["x-job-id"] == batch.json()["jobs"][0]["id"]


@pytest.mark.parametrize(
    ("prefer", "query", "expected"),
    [
        (None, "", (60, False)),
        ("", "", (60, False)),
        ("respond-async", "", (0, True)),
        (None, "?respond_async=true", (0, True)),
        ("Respond-Async, wait=10", "", (10, True)),
        ("wait=10", "", (10, False)),
        ('handling=lenient; a=b, wait="5"', "?respond_async=1", (5, True)),
        ("wait=3600", "", (60, False)),
        ("wait=soon", "", (60, False)),
    ],
)
def test_a_request_says_how_long_it_waits(http, settings, monkeypatch, prefer, query, expected):
    http.app.state.backend.settings = settings.model_copy(update={"api_wait_s": 60})
    waited = []

    async def wait(job_id, timeout_s):
        waited.append(timeout_s)
        return NOTHING

    monkeypatch.setattr(http.app.state.backend.core, "wait", wait)
    del http.headers["Prefer"]
    headers = {} if prefer is None else {"Prefer": prefer}
    answer = http.post(SINGLE + query, json=series(), headers=headers)
    assert (waited, answer.status_code) == ([expected[0]], 202 if expected[1] else 504)
    assert answer.headers.get("preference-applied") == ("respond-async" if expected[1] else None)


@pytest.mark.parametrize("is_repeatable", [False, True])
def test_without_a_preference_an_unfinished_forecast_is_a_timeout(http, jobs, is_repeatable):
    """As clients of the Kronos HTTP service know it. They cannot ask for the job later."""
    del http.headers["Prefer"]
    headers = {"Idempotency-Key": "a"} if is_repeatable else {}
    answer = http.post(BATCH, json={"items": [series(), series(num_future=2)]}, headers=headers)
    assert refused(answer)[:2] == (504, "TIMEOUT")
    assert answer.json()["detail"].startswith(f"{UNSERVED}; the forecast was not done within 0 s")
    assert ("Idempotency-Key" in answer.json()["detail"]) == is_repeatable
    ids = [answer.headers["x-job-id"], *answer.json()["details"]["other_jobs"]]
    states = {http.get(f"/v1/forecasts/{job_id}").json()["state"] for job_id in ids}
    assert states == {"queued" if is_repeatable else "cancelled"}
    # A batch sends its jobs all at once: either may come first.
    assert {job["id"] for job in jobs.sent()} == set(ids)


def test_invalid_predictions_are_listed_as_by_fastapi(http):
    body = series(quantiles="all")
    body["candles"][3] = {"open": 1}
    answer = http.post(BATCH, json={"items": [series(), body]})
    assert refused(answer) == (422, "MISSING_FIELD", "items.1.candles.3.high")
    first, *others = answer.json()["detail"]
    assert first["loc"] == ["body", "items", 1, "candles", 3, "high"]
    assert (first["msg"], first["type"]) == ("items.1.candles.3.high: Field required", "missing")
    assert others[-1]["loc"] == ["body", "items", 1, "quantiles"]
    wrong = series()
    wrong["candles"][1]["high"] = 1.0
    (checked,) = http.post(SINGLE, json=wrong).json()["detail"]
    assert (checked["loc"], checked["type"]) == (["body", "candles", 1, "high"], "value_error")
    (empty,) = http.post(SINGLE, json=None, headers={"Content-Type": "application/json"}).json()["detail"]
    assert empty["loc"] == ["body"]


def test_columns_and_records_give_the_same_job(http, jobs):
    body = series()
    columns = {name: [candle[name] for candle in body["candles"]] for name in body["candles"][0]}
    assert http.post(SINGLE, json=body).status_code == 202
    assert http.post(SINGLE, json=body | {"candles": columns}).status_code == 202
    first, second = jobs.sent()
    assert first["series"] == second["series"]


def test_pred_len_takes_the_first_of_the_prediction_timestamps(http, jobs):
    body = series(overrides={"pred_len": 2})
    assert http.post(SINGLE, json=body).status_code == 202
    (job,) = jobs.sent()
    assert job["series"][0]["future_timestamps"] == body["prediction_timestamps"][:2]
    answer = http.post(SINGLE, json=series(overrides={"pred_len": 4}))
    assert refused(answer) == (422, "LENGTH_MISMATCH", "overrides.pred_len")


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"candles": []}, "BAD_VALUE", "candles"),
        ({"prediction_timestamps": []}, "BAD_VALUE", "prediction_timestamps"),
        ({"timestamps": ["2024-06-18T09:00:00"]}, "LENGTH_MISMATCH", "timestamps"),
        ({"candles": "AAPL"}, "BAD_TYPE", "candles"),
        ({"candles": [[1, 2, 3, 4]] * 8}, "BAD_TYPE", "candles.0"),
        ({"candles": [*series()["candles"][:7], {"open": 1}]}, "MISSING_FIELD", "candles.7.high"),
        ({"candles": {"open": [1.0]}}, "MISSING_FIELD", "candles.high"),
        ({"device": "tpu"}, "INVALID_DEVICE", "device"),
        ({"timezone": "Mars/Olympus"}, "TIMEZONE_UNKNOWN", "timezone"),
        ({"overrides": {"top_p": 0}}, "BAD_VALUE", "overrides.top_p"),
        ({"overrides": {"seed": -1}}, "BAD_VALUE", "overrides.seed"),
        ({"overrides": {"sample_count": 257}}, "LIMIT_EXCEEDED", "overrides.sample_count"),
        ({"quantiles": [2]}, "BAD_VALUE", "quantiles.0"),
        ({"events": ["close>last at 4"]}, "BAD_VALUE", "events.0"),
        (
            {"prediction_timestamps": ["2024-06-18T09:00:00"]},
            "TIMESTAMPS_NOT_ASCENDING",
            "prediction_timestamps",
        ),
    ],
)
def test_an_invalid_field_has_the_name_of_the_request(http, jobs, change, code, field):
    status, found, where = refused(http.post(SINGLE, json=series() | change))
    assert (found, where) == (code, field)
    assert status == (413 if code == "LIMIT_EXCEEDED" else 422)
    assert jobs.sent() == []


@pytest.mark.parametrize(
    ("row", "change", "code", "column"),
    [
        (5, {"high": 1.0}, "HIGH_BELOW_LOW", "high"),
        (2, {"low": -1.0}, "NON_POSITIVE_PRICE", "low"),
        (0, {"volume": -1.0}, "NEGATIVE_VOLUME", "volume"),
        (7, {"close": 1e30}, "VALUE_TOO_LARGE", "close"),
    ],
)
def test_an_invalid_candle_is_named_by_its_position(http, jobs, row, change, code, column):
    body = series()
    body["candles"][row] |= change
    answer = http.post(SINGLE, json=body)
    assert refused(answer) == (422, code, f"candles.{row}.{column}")
    assert answer.json()["details"]["row"] == row
    batch = http.post(BATCH, json={"items": [series(), body]})
    assert refused(batch) == (422, code, f"items.1.candles.{row}.{column}")
    assert jobs.sent() == []


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "1e400", "null", '"high"', "true"])
def test_a_price_that_is_not_finite_is_refused(http, literal):
    text = http.build_request("POST", SINGLE, json=series()).content.decode().replace("102.0", literal, 1)
    answer = http.post(SINGLE, content=text, headers={"content-type": "application/json"})
    assert refused(answer)[2] == "candles.0.high"


def test_times_can_be_numbers(http, jobs):
    """As seconds since 1970, as in the reference's service."""
    body = series()
    body["timestamps"] = list(range(1718703000, 1718703000 + 8 * 300, 300))
    body["prediction_timestamps"] = [1718703000 + 8 * 300]
    assert http.post(SINGLE, json=body).status_code == 202
    (job,) = jobs.sent()
    assert job["series"][0]["timestamps"][0] == "2024-06-18T09:30:00Z"


def test_2048_candles_and_512_timestamps_are_accepted_and_no_more(http):
    start, body = 1718703000, series()
    for num_candles, num_future, status in ((2048, 512, 202), (2049, 512, 422), (2048, 513, 422)):
        ends = [start + 60 * num for num in (0, num_candles, num_candles + num_future)]
        body["candles"] = body["candles"][:1] * num_candles
        body["timestamps"], body["prediction_timestamps"] = (
            list(range(first, end, 60)) for first, end in itertools.pairwise(ends)
        )
        assert http.post(SINGLE, json=body).status_code == status


def test_a_batch_with_equal_options_is_one_job(http, jobs):
    items = [series(series_id=name) for name in ("AAPL", "MSFT", "BTC-USD")]
    answer = http.post(BATCH, json={"items": items})
    (job,) = jobs.sent()
    assert [one["id"] for one in job["series"]] == ["AAPL", "MSFT", "BTC-USD"]
    assert answer.json()["jobs"][0]["items"] == [0, 1, 2]
    assert answer.headers["x-job-id"] == job["id"]


def test_series_with_equal_names_get_different_ids(http, jobs):
    assert http.post(BATCH, json={"items": [series(), series(series_id=None), series()]}).status_code == 202
    (job,) = jobs.sent()
    assert [one["id"] for one in job["series"]] == ["0", "1", "2"]


def test_a_batch_with_several_options_is_several_jobs(http, jobs):
    items = [series(), series(num_future=2), series(overrides={"seed": 3}), series(overrides={"top_k": 2})]
    answer = http.post(BATCH, json={"items": items})
    items_of = {job["id"]: job["items"] for job in answer.json()["jobs"]}
    assert sorted(items_of.values()) == [[0, 2], [1], [3]]
    assert {job["id"] for job in jobs.sent()} == set(items_of)
    assert set(answer.headers["x-job-id"].split(", ")) == set(items_of)


def test_an_answer_has_the_warnings_of_its_series_and_of_the_whole_job(settings):
    """A batch whose items carry each other's is mostly warnings."""
    items = [SingleRequest.model_validate(series(series_id=name)) for name in ("AAPL", "BTC-USD")]
    (job,) = prediction_jobs(items, "an id", "", settings)
    result = ForecastResult.model_validate(example("forecast-result") | {"warnings": ["of all"]})
    first, second = job.predictions(result)
    assert first.warnings == ["of all"]
    assert second.warnings == ["of all", *result.series[1].warnings]
    assert len(second.warnings) == 2
    assert (first.lookback, second.lookback) == (8, 8)


def test_a_batch_is_split_by_the_limits_of_a_job():
    settings = ApiSettings.model_construct().model_copy(update={"max_series": 3, "max_paths": 4})
    items = [SingleRequest.model_validate(series()) for _ in range(7)]
    assert [job.indices for job in prediction_jobs(items, "id", "", settings)] == [[0, 1, 2], [3, 4, 5], [6]]
    items = [SingleRequest.model_validate(series(overrides={"sample_count": 2})) for _ in range(3)]
    assert [job.indices for job in prediction_jobs(items, "id", "", settings)] == [[0, 1], [2]]
    settings = settings.model_copy(update={"max_message_bytes": 24 * 192})
    assert [job.indices for job in prediction_jobs(items[:3], "id", "", settings)] == [[0, 1], [2]]


def test_a_batch_is_split_by_the_size_of_the_result():
    settings = ApiSettings.model_construct().model_copy(update={"max_result_bytes": 2**22})
    given = series(num_future=92, overrides={"sample_count": 20}, paths=True)
    items = [SingleRequest.model_validate(given) for _ in range(64)]
    jobs = prediction_jobs(items, "id", "items.{index}.", settings)
    assert [index for job in jobs for index in job.indices] == list(range(64))
    assert 1 < len(jobs) < 64
    for job in jobs:
        job.checked(settings)
    one_more = PredictionJob("a", items[: len(jobs[0].indices) + 1], list(range(64)), "items.{index}.")
    with pytest.raises(JobError) as error:
        one_more.checked(settings)
    assert (error.value.code, error.value.field) == ("RESULT_TOO_LARGE", "items.0.paths")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"paths": True, "quantiles": [0.5]}, "paths"),
        ({"quantiles": [0.1, 0.5]}, "quantiles"),
        ({}, "prediction_timestamps"),
    ],
)
def test_a_too_large_result_names_the_field_that_causes_it(settings, fields, named):
    small = settings.model_copy(update={"max_result_bytes": 1024})
    with TestClient(create_app(small), base_url=ADDRESS) as http:
        answer = http.post(SINGLE, json=series(num_future=90, **fields))
    assert refused(answer) == (413, "RESULT_TOO_LARGE", named)
    assert answer.json()["detail"].startswith(f"{named}: ")


def test_a_message_names_only_fields_of_the_request(http):
    future = ["2024-06-18T12:00:00+02:00"]
    for url, prefix in ((SINGLE, ""), (BATCH, "items.0.")):
        one = series(prediction_timestamps=future)
        answer = http.post(url, json={"items": [one]} if prefix else one)
        assert refused(answer) == (422, "MIXED_TIMEZONES", f"{prefix}prediction_timestamps")
        (error,) = answer.json()["detail"]
        assert "prediction_timestamps" in error["msg"]
        assert "future_timestamps" not in error["msg"]


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("model: models of a model", "model", "items.3.model: models of a model"),
        ("no such model", "model", "no such model"),
        ("series.0.high and series.0.highest", "series.0.high", "items.3.candles.high and series.0.highest"),
        ("pred_len of max_pred_len", "pred_len", "items.3.overrides.pred_len of max_pred_len"),
    ],
)
def test_whole_words_of_a_message_are_renamed(message, field, expected):
    body = series()
    columns = {name: [candle[name] for candle in body["candles"]] for name in body["candles"][0]}
    item = SingleRequest.model_validate(body | {"candles": columns})
    job = PredictionJob("a", [item], [3], "items.{index}.")
    assert job.in_request(JobError("BAD_VALUE", message, field)).message == expected


def test_a_repeated_request_is_answered_with_the_current_state(http, jobs):
    key = {"Idempotency-Key": "once"}
    job_id = http.post(SINGLE, json=series(), headers=key).json()["id"]
    jobs.publish(job_id, "PROGRESS", {"bars_done": 1, "bars_total": 2})
    assert http.post(SINGLE, json=series(), headers=key).json()["state"] == "running"
    items = {"items": [series(), series(num_future=2)]}
    first = http.post(BATCH, json=items, headers=key).json()["jobs"]
    jobs.finish(first[0]["id"])
    again = http.post(BATCH, json=items, headers=key).json()["jobs"]
    assert [job["state"] for job in again] == ["done", "queued"]


@pytest.mark.parametrize("is_repeatable", [False, True])
def test_after_a_failed_job_the_others_are_cancelled_and_named(http, settings, jobs, is_repeatable):
    """With an Idempotency-Key they go on, because a repeated request finds them."""
    wait_for_results(http, settings)
    sent = []

    def work() -> None:
        while len(jobs.sent()) < 3:
            pass
        sent.extend(job["id"] for job in jobs.sent())
        jobs.fail(sent[1], "OUT_OF_MEMORY", "no room")

    worker = threading.Thread(target=work)
    worker.start()
    items = [series(num_future=num_future) for num_future in (1, 2, 3)]
    answer = http.post(
        BATCH, json={"items": items}, headers={"Idempotency-Key": "a"} if is_repeatable else {}
    )
    worker.join()
    first, failed, third = sent
    assert refused(answer)[:2] == (503, "OUT_OF_MEMORY")
    assert answer.headers["x-job-id"] == failed
    assert answer.json()["details"]["other_jobs"] == [first, third]
    states = {http.get(f"/v1/forecasts/{job_id}").json()["state"] for job_id in (first, third)}
    assert states == {"queued" if is_repeatable else "cancelled"}


def test_the_header_names_at_most_16_jobs(http, settings):
    for num_jobs, is_named in ((16, True), (17, False)):
        items = [series(overrides={"top_k": number}) for number in range(num_jobs)]
        answer = http.post(BATCH, json={"items": items})
        ids = [job["id"] for job in answer.json()["jobs"]]
        assert len(ids) == num_jobs
        assert answer.headers.get("x-job-id") == (", ".join(ids) if is_named else None)


def test_the_answer_keeps_the_order_of_the_request(http, settings, jobs):
    wait_for_results(http, settings)
    result = example("forecast-result")
    result["series"][0] |= {"quantiles": {}, "paths": None}

    def work() -> None:
        while not (sent := jobs.sent()):
            pass
        jobs.finish(sent[0]["id"], result)

    worker = threading.Thread(target=work)
    worker.start()
    items = [series(series_id="x"), series(series_id="y")]
    answer = http.post(BATCH, json={"items": items})
    worker.join()
    assert answer.status_code == 200
    first, second = answer.json()
    assert (first["series_id"], second["series_id"]) == ("x", "y")
    mean = result["series"][1]["mean"]
    assert [point["close"] for point in second["prediction"]] == mean["close"]
    assert [point["timestamp"] for point in second["prediction"]] == result["series"][1]["timestamps"]
    assert first["model_version"] == "NeoQuasar/Kronos-small@0123456789abcdef0123456789abcdef01234567"
    assert first["device"] == "cpu"


@pytest.mark.parametrize(
    ("code", "field", "status", "named"),
    [
        ("PRED_LEN_TOO_LONG", "pred_len", 422, "overrides.pred_len"),
        ("MODEL_NOT_ALLOWED", "model", 422, "model"),
        ("DEADLINE", None, 504, None),
        ("CANCELLED", None, 409, None),
        ("OUT_OF_MEMORY", None, 503, None),
        ("A_CODE_OF_A_NEWER_WORKER", None, 500, None),
    ],
)
def test_a_failed_job_is_answered_with_its_code(http, settings, jobs, code, field, status, named):
    key = {"Idempotency-Key": "once"}
    job_id = http.post(SINGLE, json=series(), headers=key).headers["x-job-id"]
    jobs.fail(job_id, code, "so it is", field, row=1)
    wait_for_results(http, settings)
    answer = http.post(SINGLE, json=series(), headers=key)
    assert refused(answer) == (status, code, named)
    assert answer.headers["x-job-id"] == answer.json()["job_id"] == job_id
    assert ("retry-after" in answer.headers) == (status == 503)


def test_one_idempotency_key_gives_one_job(http, jobs):
    key = {"Idempotency-Key": "order-1"}
    first = http.post(SINGLE, json=series(), headers=key)
    second = http.post(SINGLE, json=series(), headers=key)
    assert first.json()["id"] == second.json()["id"] != "order-1"
    assert {job["id"] for job in jobs.sent()} == {first.json()["id"]}
    other = http.post(SINGLE, json=series(series_id="MSFT"), headers=key)
    assert refused(other)[:2] == (409, "ID_CONFLICT")
    # The same key at another address gives another job.
    batch = http.post(BATCH, json={"items": [series()]}, headers=key)
    assert batch.headers["x-job-id"] != first.json()["id"]


def test_a_full_queue_gives_a_time_to_retry(settings, jobs):
    small = settings.model_copy(update={"max_queue_jobs": 1})
    with TestClient(create_app(small), base_url=ADDRESS) as http:
        assert http.post(f"{SINGLE}?respond_async=true", json=series()).status_code == 202
        answer = http.post(SINGLE, json=series())
    assert refused(answer)[:2] == (429, "QUEUE_FULL")
    assert answer.headers["retry-after"] == str(answer.json()["details"]["retry_after_s"])


def test_a_missing_gpu_worker_is_reported_at_once(http):
    answer = http.post(SINGLE, json=series(device="cuda", allow_fallback=False))
    assert refused(answer) == (503, "NO_GPU_WORKER", "device")


@pytest.mark.parametrize(
    ("path", "content", "headers", "outcome"),
    [
        (SINGLE, series(), {}, "CANCELLED"),
        (BATCH, {"items": [series(), series(priority="low")]}, {}, "CANCELLED"),
        (SINGLE, series(), {"idempotency-key": "mine"}, None),
        (SINGLE, series(), {"prefer": "respond-async, wait=20"}, None),
    ],
)
def test_a_client_that_leaves_cancels_its_jobs_unless_it_can_ask_for_them(
    settings, jobs, redis, path, content, headers, outcome
):
    body = iter([{"type": "http.request", "body": json.dumps(content).encode()}])
    sent = []

    async def receive():
        for message in body:
            return message
        while len(jobs.sent()) < len(content.get("items", [0])):
            await asyncio.sleep(0.01)
        sent.extend(job["id"] for job in jobs.sent())
        return {"type": "http.disconnect"}

    messages = asgi_answer(settings.model_copy(update={"api_wait_s": 60}), path, receive, **headers)
    assert messages == []
    found = [read_stored(job_id, redis.get(result_key(job_id)) or "{}") for job_id in sent]
    assert [getattr(stored.value, "code", None) for stored in found] == [outcome] * len(sent)
