"""A job's explanation, and dead messages with their reasons."""

import json

from fastapi.testclient import TestClient
from pydantic import SecretStr

from api_stub.main import create_app
from kronos_client.contract.names import DEAD_KEY
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import ADDRESS


def test_a_job_is_explained_until_it_has_ended(http, jobs):
    job_id = http.post("/v1/forecasts", json=example("forecast-job")).json()["id"]
    url = f"/v1/jobs/{job_id}/explanation"
    found = http.get(url).json()
    assert (found["where"], found["num_before"], found["num_ready"]) == ("waiting", 0, 0)
    assert found["next"].endswith("Jobs wait until one does; start one with: kronos worker")
    jobs.fail(job_id, "HIGH_BELOW_LOW", "bad bar")
    found = http.get(url).json()
    assert (found["where"], found["error"]) == ("ended", ["HIGH_BELOW_LOW", "bad bar"])
    unknown = http.get("/v1/jobs/nothing/explanation")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "LOST")


def test_only_keys_with_admin_see_dead_messages(settings, redis):
    entry = {
        "at": 1.5,
        "reason": "no JSON",
        "queue": "cpu",
        "id": "a",
        "num_bytes": 999,
        "message": "x" * 999,
    }
    redis.lpush(DEAD_KEY, "another program's", json.dumps(entry))
    keys = {scope: f"{scope}-key-of-16-chars" for scope in ("predict", "admin")}
    secret = SecretStr(",".join(f"{key}:{scope}" for scope, key in keys.items()))
    with TestClient(create_app(settings.model_copy(update={"api_keys": secret})), base_url=ADDRESS) as client:
        headers = {scope: {"Authorization": f"Bearer {key}"} for scope, key in keys.items()}
        assert client.get("/v1/dead-messages", headers=headers["predict"]).status_code == 403
        found = client.get("/v1/dead-messages?limit=1", headers=headers["admin"]).json()
        assert found == {"messages": [entry | {"message": "x" * 200}], "total": 2}
        everything = client.get("/v1/dead-messages", headers=headers["admin"]).json()["messages"]
        assert everything[1]["message"] == "another program's"
        explained = {scope: client.get("/v1/jobs/a/explanation", headers=headers[scope]) for scope in headers}
        assert explained["predict"].status_code == 404
        assert explained["admin"].json()["dead_reason"] == "no JSON"
