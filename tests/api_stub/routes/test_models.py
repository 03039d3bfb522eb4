"""Loading a model in advance, by the workers' answers."""

import pytest
from celery.app.control import Control

from kronos_client.redis.routing import announce
from tests.api_stub.conftest import STATUS

URL = "/v1/models/load"
FULL = {"code": "MODEL_CAPACITY", "message": "no room", "field": "model", "details": {}}


@pytest.mark.parametrize(
    ("states", "status", "code"),
    [
        (["ready", "ready"], 200, None),
        (["ready", "failed"], 200, None),
        (["ready", "silent"], 202, None),
        (["ready", "loading"], 202, None),
        (["loading", "silent"], 202, None),
        (["loading", "failed"], 202, None),
        (["silent", "silent"], 504, "TIMEOUT"),
        (["silent", "failed"], 503, "MODEL_CAPACITY"),
        (["failed", "failed"], 503, "MODEL_CAPACITY"),
    ],
)
def test_the_status_depends_on_the_workers_answers(http, redis, monkeypatch, states, status, code):
    nodes = [f"{number}@test" for number in range(len(states))]
    for node in nodes:
        announce(redis, STATUS.model_copy(update={"node": node}))
    answers = {
        node: {"state": state, "device": "cpu", "error": FULL if state == "failed" else None}
        for node, state in zip(nodes, states, strict=True)
        if state != "silent"
    }
    monkeypatch.setattr(Control, "broadcast", lambda self, *_, **options: [answers])
    answer = http.post(URL, json={"model": "kronos-tiny"})
    content = answer.json()
    assert (answer.status_code, content.get("code")) == (status, code)
    if code is None:
        assert {one["worker"]: one["state"] for one in content["workers"]} == dict(
            zip(nodes, states, strict=True)
        )
    else:
        assert content["details"]["workers"] == nodes
