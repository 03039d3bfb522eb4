"""Finetuning jobs and backtests. Their routes are made like those of forecasts, see test_forecasts.py."""

import pytest

from kronos_client.contract.schemas import example

FINETUNES, BACKTESTS = "/v1/finetunes", "/v1/backtests"
PROGRESS = {
    "finetune": {"stage": "predictor", "epoch": 2, "num_epochs": 10, "loss": 2.5},
    "backtest": {"stage": "forecasting", "forecasts_done": 8, "forecasts_total": 80, "seconds_left": 12.5},
}


@pytest.mark.parametrize(
    ("kind", "url", "other"), [("finetune", FINETUNES, BACKTESTS), ("backtest", BACKTESTS, FINETUNES)]
)
def test_a_job_is_enqueued_unchanged_listed_and_followed_to_its_result(http, jobs, kind, url, other):
    accepted = http.post(url, json=example(f"{kind}-job"))
    assert (accepted.status_code, accepted.json()["queue"]) == (202, "cpu.finetune")
    job_id = accepted.json()["id"]
    (sent,) = jobs.sent()
    assert {name: sent[name] for name in example(f"{kind}-job")} == example(f"{kind}-job")
    (listed,) = http.get(url).json()["jobs"]
    assert (listed["id"], listed["url"]) == (job_id, f"{url}/{job_id}")
    assert http.get(other).json()["jobs"] == []
    jobs.publish(job_id, "PROGRESS", PROGRESS[kind])
    view = http.get(f"{url}/{job_id}").json()
    assert view["state"] == "running"
    assert PROGRESS[kind].items() <= view["progress"].items()
    jobs.publish(job_id, "PROGRESS", {"stage": [], "epoch": "of another form"})
    assert http.get(f"{url}/{job_id}").json()["progress"] is None
    result = example(f"{kind}-result")
    jobs.finish(job_id, result)
    view = http.get(f"{url}/{job_id}").json()
    assert (view["state"], view["result"]) == ("done", result)
    with http.stream("GET", f"{url}/{job_id}/events") as events:
        assert events.read().startswith(b"event: end\n")
    assert http.get(f"{other}/{job_id}").json()["code"] == "LOST"


def test_an_invalid_job_is_refused_with_its_code(http, jobs):
    config = {"predictor": {"epochs": 0}}
    problem = http.post(FINETUNES, json=example("finetune-job") | {"config": config}).json()
    assert (problem["code"], problem["field"]) == ("INVALID_CONFIG", "config.predictor.epochs")
    outside = http.post(FINETUNES, json=example("finetune-job") | {"data": {"path": "../secret.csv"}})
    assert (outside.status_code, outside.json()["code"]) == (422, "DATA_NOT_ALLOWED")
    assert jobs.sent() == []
