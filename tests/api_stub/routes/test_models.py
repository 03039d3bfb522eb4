"""Loading a model in advance, by the workers' answers, and which version a name means."""

import pytest
from celery.app.control import Control

from api_stub.routes.models import registered_models
from kronos_client.redis.routing import announce
from kronos_client.registry.model_registry import ModelRegistry, promote
from kronos_client.registry.registered_model import FILES, output_folder
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


def test_each_model_says_what_its_user_must_know(http, settings, redis, tmp_path):
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text("x")
    registry = ModelRegistry(tmp_path / "models")
    for name, parent in (("mine", "kronos-tiny"), ("desk", "NeoQuasar/Kronos-small"), ("new", "elsewhere")):
        metadata = {"max_context": 8, "parent": {"model": parent}, "lookback": 6, "pred_len": 2}
        registry.register(tmp_path / "checkpoint", name, job_id=name, fingerprint="f", metadata=metadata)
    for number, content in enumerate(('{"model_info": {"a": {"id": "desk", "revision": "1"}}}', "[]", "{")):
        report = output_folder(registry.folder, str(number)) / "report.json"
        report.parent.mkdir(parents=True)
        report.write_text(content)
    http.app.state.backend.settings = settings.model_copy(update={"model_folder": registry.folder})
    announce(redis, STATUS)
    models = {one["id"]: one for one in http.get("/v1/models").json()["models"]}
    windows = {name: (one["lookback"], one["pred_len"]) for name, one in models.items()}
    assert (windows["mine@1"], windows["kronos-tiny"]) == ((6, 2), (416, 96))
    found = {name: one["caution"] for name, one in models.items()}
    for name in (STATUS.models[0].id, "mine@1"):
        assert found[name].endswith("for trying the service, not for trading.")
    untested = "No backtest of this model is recorded here."
    assert (found["desk@1"], found["new@1"]) == (None, untested)


def test_one_version_of_a_name_is_current(tmp_path):
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text("x")
    registry, given = ModelRegistry(tmp_path / "models"), {"fingerprint": "f", "metadata": {"max_context": 8}}
    first, _ = (
        registry.register(tmp_path / "checkpoint", "desk", job_id=job_id, **given) for job_id in ("a", "b")
    )
    assert {one.id: one.current for one in registered_models(registry.folder)} == {
        "desk@2": True,
        "desk@1": False,
    }
    promote(first, forced=True)
    assert [one.id for one in registered_models(registry.folder) if one.current] == ["desk@1"]
