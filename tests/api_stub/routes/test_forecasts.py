"""The routes of forecast jobs: enqueue, read, follow, cancel."""

import json

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from kronos_client.contract.names import job_key
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example
from kronos_client.core.forecast_request import with_defaults
from kronos_client.redis.routing import announce
from tests.api_stub.conftest import ADDRESS, STATUS
from tests.api_stub.test_keys import KEY, OTHER_KEY, with_keys

URL = "/v1/forecasts"


def enqueue(http, **fields) -> str:
    answer = http.post(URL, json=example("forecast-job") | fields)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == answer.json()["url"]
    return str(answer.json()["id"])


def events(response) -> list[tuple[str, dict]]:
    found = []
    for block in response.read().decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_a_job_is_enqueued_as_it_was_posted(http, jobs):
    job_id = enqueue(http)
    (sent,) = jobs.sent()
    assert sent["id"] == job_id
    posted, read = with_defaults(example("forecast-job")), with_defaults(sent)
    assert {name: read[name] for name in posted} == posted


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"schema_version": 2}, 400, "UNSUPPORTED_VERSION", "schema_version"),
        ({"horizon": 3}, 422, "UNKNOWN_FIELD", "horizon"),
        ({"pred_len": 4}, 422, "LENGTH_MISMATCH", "series.0.future_timestamps"),
        ({"sampling": {"sample_count": 300}}, 413, "LIMIT_EXCEEDED", "sampling.sample_count"),
        ({"device": "cuda", "allow_fallback": False}, 503, "NO_GPU_WORKER", "device"),
    ],
)
def test_an_invalid_job_is_refused_with_its_code(http, jobs, change, status, code, field):
    answer = http.post(URL, json=example("forecast-job") | change)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (status, code, field)
    assert jobs.sent() == []


def test_a_view_follows_a_job(http, jobs):
    job_id = enqueue(http)
    assert http.get(f"{URL}/{job_id}").json()["state"] == "queued"
    jobs.publish(job_id, "STARTED", {})
    assert http.get(f"{URL}/{job_id}").json()["state"] == "running"
    jobs.publish(job_id, "PROGRESS", {"bars_done": 3, "bars_total": 120})
    view = http.get(f"{URL}/{job_id}").json()
    assert (view["state"], view["bars_done"], view["bars_total"]) == ("running", 3, 120)
    result = ForecastResult.model_validate(jobs.finish(job_id)).model_dump(mode="json")
    answer = http.get(f"{URL}/{job_id}")
    assert answer.headers["x-job-id"] == job_id
    assert answer.json() == {
        "id": job_id, "state": "done", "bars_done": None, "bars_total": None, "result": result, "error": None,
        "waiting": None, "jobs_before": None, "seconds_left": None,
    }  # fmt: skip


def test_an_estimate_says_what_comes_before_a_job(http, jobs, ready_worker):
    first, second = enqueue(http), enqueue(http)
    for job_id, before in ((first, 0), (second, 1)):
        assert http.get(f"{URL}/{job_id}?estimate=true").json()["jobs_before"] == before
    assert http.get(f"{URL}/{first}?estimate=true").json()["seconds_left"] == 0
    assert http.get(f"{URL}/{second}").json()["jobs_before"] is None
    jobs.finish(second)
    assert http.get(f"{URL}/{second}?estimate=true").json()["jobs_before"] is None


def test_a_failed_job_has_its_error(http, jobs):
    job_id = enqueue(http)
    jobs.fail(job_id, "DEADLINE", "too late", None, limit=3)
    answer = http.get(f"{URL}/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (200, "failed")
    assert answer.json()["error"] == {
        "code": "DEADLINE", "message": "too late", "field": None, "details": {"limit": 3},
    }  # fmt: skip


def test_a_foreign_error_is_answered_without_its_text(http, jobs):
    job_id = enqueue(http)
    jobs.publish(
        job_id, "FAILURE", {"exc_type": "OSError", "exc_message": ["/srv/secret"], "exc_module": "os"}
    )
    answer = http.get(f"{URL}/{job_id}")
    assert answer.json()["error"]["code"] == "INTERNAL"
    assert "secret" not in answer.text


def test_an_unknown_job_is_not_found(http):
    answer = http.get(f"{URL}/never-was")
    assert (answer.status_code, answer.json()["code"]) == (404, "LOST")
    assert answer.headers["x-job-id"] == "never-was"
    assert http.delete(f"{URL}/never-was").status_code == 404
    assert http.get(f"{URL}/never-was/events").status_code == 404


def test_an_expired_result_is_gone(http, redis):
    job_id = enqueue(http)
    redis.hset(job_key(job_id), "ended_at", "1")
    answer = http.get(f"{URL}/{job_id}")
    assert (answer.status_code, answer.json()["code"]) == (410, "RESULT_EXPIRED")


def test_a_job_of_another_kind_is_not_found(http, jobs):
    job_id = enqueue(http)
    jobs.finish(job_id, {"model": {"name": "x"}})
    assert http.get(f"{URL}/{job_id}").status_code == 404


def test_a_queued_job_is_cancelled_at_once(http):
    job_id = enqueue(http)
    answer = http.delete(f"{URL}/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert http.get(f"{URL}/{job_id}").json()["error"]["code"] == "CANCELLED"


def test_a_finished_job_cannot_be_cancelled(http, jobs):
    job_id = enqueue(http)
    jobs.finish(job_id)
    assert http.delete(f"{URL}/{job_id}").json()["state"] == "done"
    assert http.get(f"{URL}/{job_id}").json()["state"] == "done"


def test_a_finished_job_has_one_event(http, jobs):
    job_id = enqueue(http)
    result = ForecastResult.model_validate(jobs.finish(job_id)).model_dump(mode="json")
    with http.stream("GET", f"{URL}/{job_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-job-id"] == job_id
        ((kind, view),) = events(response)
    assert (kind, view["result"]) == ("end", result)


def test_events_follow_a_job_to_its_end(http, jobs):
    job_id = enqueue(http)
    found = []
    with http.stream("GET", f"{URL}/{job_id}/events") as response:
        for line in response.iter_lines():
            if line.startswith("event: "):
                found.append([line.removeprefix("event: ")])
            elif line.startswith("data: "):
                found[-1].append(json.loads(line.removeprefix("data: ")))
                # Publish each state after the one before it has arrived.
                if len(found) == 1:
                    jobs.publish(job_id, "PROGRESS", {"bars_done": 1, "bars_total": 2})
                elif len(found) == 2:
                    jobs.fail(job_id, "CANCELLED", "as asked")
    states = [(kind, view["state"], view["bars_done"]) for kind, view in found]
    assert states == [("progress", "queued", None), ("progress", "running", 1), ("end", "cancelled", None)]


def test_it_is_said_that_no_worker_takes_a_job_until_one_does(http, jobs, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.core.dispatcher.WORKERS_KNOWN_FOR_S", 0)
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 0.01)
    accepted = http.post(URL, json=example("forecast-job")).json()
    unserved = "No worker serves the queue cpu. Jobs wait until one does; start one with: kronos worker"
    assert accepted["waiting"] == http.get(accepted["url"]).json()["waiting"] == unserved
    found = []
    with http.stream("GET", f"{accepted['url']}/events") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == 1:
                    announce(redis, STATUS)
                elif len(found) == 2:
                    jobs.finish(accepted["id"])
    said = [(view["state"], view["waiting"]) for view in found]
    assert said == [("queued", unserved), ("queued", None), ("done", None)]


def test_events_have_the_bars_of_a_job_that_streams_as_they_grow(http, jobs):
    job_id = enqueue(http)
    found = []
    reports = iter([(1, None), (2, [{"id": "AAPL"}]), (3, [{"id": "AAPL"}]), (4, [{"id": "MSFT"}])])
    with http.stream("GET", f"{URL}/{job_id}/events") as response:
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                view = json.loads(line.removeprefix("data: "))
                found.append((kind, view.get("series", view.get("bars_done"))))
                if kind == "progress" and (report := next(reports, None)):
                    series = {} if report[1] is None else {"series": report[1]}
                    jobs.publish(job_id, "PROGRESS", {"bars_done": report[0], "bars_total": 9, **series})
                elif kind == "progress":
                    jobs.finish(job_id)
    assert found == [
        *(("progress", None), ("progress", 1)),
        *(("bars", [{"id": "AAPL"}]), ("progress", 2), ("progress", 3)),
        *(("bars", [{"id": "MSFT"}]), ("progress", 4), ("end", None)),
    ]


def test_every_unknown_id_is_not_found(http):
    for job_id in ("%00", "%0d%0aX-Evil:%201", "a" * 200, "%F0%9F%92%A9", "*", "..%2f..%2fetc"):
        answer = http.get(f"{URL}/{job_id}")
        assert answer.status_code == 404, job_id
        assert "x-evil" not in answer.headers
    assert http.get(f"{URL}/{'a' * 201}").status_code == 422


def test_a_repeated_job_is_answered_with_its_state(http, jobs):
    key = {"Idempotency-Key": "once"}
    first = http.post(URL, json=example("forecast-job"), headers=key).json()
    assert first["state"] == "queued"
    job_id = first["id"]
    jobs.finish(job_id)
    again = http.post(URL, json=example("forecast-job"), headers=key)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, job_id, "done")


def test_equal_jobs_of_one_key_are_one_job(settings, jobs, redis):
    model = STATUS.model.model_copy(update={"revision": "1"})
    announce(redis, STATUS.model_copy(update={"model": model}))
    own = with_keys(settings, share_equal_jobs=True)
    seeded = example("forecast-job") | {"sampling": {"seed": 1}, "model": None}
    other_key = {"Authorization": f"Bearer {OTHER_KEY}"}
    headers: list[dict[str, str]] = [
        {}, {"Authorization": f"bearer  {KEY}"}, other_key, {"Idempotency-Key": "mine"},
    ]  # fmt: skip
    with TestClient(create_app(own), base_url=ADDRESS) as http:
        http.headers["Authorization"] = f"Bearer {KEY}"
        first, again, keyed, repeatable = (http.post(URL, json=seeded, headers=one) for one in headers)
        assert first.json()["id"] == again.json()["id"]
        assert len({one.json()["id"] for one in (first, keyed, repeatable)}) == 3
        jobs.finish(first.json()["id"])
        assert http.post(URL, json=seeded).json()["state"] == "done"
        assert "kronos_jobs_shared_total 2.0" in http.get("/metrics").text
        other = http.post(URL, json=seeded | {"priority": "low"}).json()["id"]
        assert http.delete(f"{URL}/{other}", params={"forget": True}).json()["state"] == "queued"
