"""The routes of finetuning jobs."""

from kronos_client.contract.schemas import example

URL = "/v1/finetunes"


def enqueue(http, **fields) -> str:
    answer = http.post(URL, json=example("finetune-job") | fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_a_job_is_enqueued_unchanged(http, jobs):
    job_id = enqueue(http)
    (sent,) = jobs.sent()
    assert sent["id"] == job_id
    assert {name: sent[name] for name in example("finetune-job")} == example("finetune-job")


def test_an_invalid_job_is_refused_with_its_code(http, jobs):
    config = {"predictor": {"epochs": 0}}
    problem = http.post(URL, json=example("finetune-job") | {"config": config}).json()
    assert (problem["code"], problem["field"]) == ("INVALID_CONFIG", "config.predictor.epochs")
    outside = http.post(URL, json=example("finetune-job") | {"data": {"path": "../secret.csv"}})
    assert (outside.status_code, outside.json()["code"]) == (422, "DATA_NOT_ALLOWED")
    assert jobs.sent() == []


def test_a_view_follows_training(http, jobs):
    job_id = enqueue(http)
    progress = {"stage": "predictor", "epoch": 2, "num_epochs": 10, "loss": 2.5}
    jobs.publish(job_id, "PROGRESS", progress)
    view = http.get(f"{URL}/{job_id}").json()
    assert view["state"] == "running"
    assert progress.items() <= view["progress"].items()
    jobs.publish(job_id, "PROGRESS", {"epoch": "of another form"})
    assert http.get(f"{URL}/{job_id}").json()["progress"] is None
    result = example("finetune-result")
    jobs.finish(job_id, result)
    view = http.get(f"{URL}/{job_id}").json()
    assert (view["state"], view["result"]) == ("done", result)
    with http.stream("GET", f"{URL}/{job_id}/events") as events:
        assert events.read().startswith(b"event: end\n")


def test_queued_training_is_cancelled_at_once(http):
    job_id = enqueue(http)
    assert http.delete(f"{URL}/{job_id}").json()["state"] == "cancelled"


def test_a_repeated_job_is_answered_with_its_state(http, jobs):
    key = {"Idempotency-Key": "once"}
    first = http.post(URL, json=example("finetune-job"), headers=key).json()
    assert first["state"] == "queued"
    job_id = first["id"]
    jobs.finish(job_id, example("finetune-result"))
    again = http.post(URL, json=example("finetune-job"), headers=key)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, job_id, "done")
