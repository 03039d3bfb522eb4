"""Promotion over HTTP: what a backtest must say first, and who may force it."""

import json

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api_stub.main import create_app
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import FILES, output_folder
from tests.api_stub.conftest import ADDRESS

KEYS = {scope: f"{scope}-key-of-16-chars" for scope in ("promote", "admin")}


@pytest.fixture
def registry(http, settings, tmp_path):
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text("x")
    registry, given = ModelRegistry(tmp_path / "models"), {"fingerprint": "f", "metadata": {"max_context": 8}}
    for job_id in ("a", "b"):
        registry.register(tmp_path / "checkpoint", "desk", job_id=job_id, **given)
    http.app.state.backend.settings = settings.model_copy(update={"model_folder": registry.folder})
    return registry


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ({"verdict": "worse", "difference": -7.25, "low": -9.0}, "7.2 % worse than desk@2"),
        ({"verdict": "unclear", "difference": 1.0, "low": None}, "too few windows"),
        ({"verdict": "unclear", "difference": 1.0, "low": -1.0}, None),
    ],
)
def test_a_promotion_is_as_a_backtest_says_and_answers_its_verdict(http, registry, by, reason):
    folder = output_folder(registry.folder, "test")
    folder.mkdir(parents=True)
    info = {"n": {"id": "desk", "revision": "1"}, "p": {"id": "desk", "revision": "2"}}
    report = {"model_info": info, "models": {"n": {"against": {"p": by}}, "p": {"against": {}}}}
    report["num_windows"] = 30
    (folder / "report.json").write_text(json.dumps(report))
    answer = http.post("/v1/models/desk@1/promote", json={"backtest": "test"})
    if reason is None:
        assert answer.json() == {"id": "desk@1", "before": "desk@2", "verdict": by}
    else:
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["field"]) == (409, "NOT_PROMOTED", "backtest")
        assert (reason in problem["detail"], problem["details"]) == (True, {"verdict": by})
    assert registry.resolve("desk").version == (1 if reason is None else 2)


def test_what_cannot_be_promoted_is_refused(http, registry):
    for model, body, code in (
        ("desk@9", {}, "NOT_FOUND"),
        ("desk", {"force": True}, "NOT_FOUND"),
        ("desk@1", {}, "NOT_PROMOTED"),
        ("desk@1", {"backtest": "../../x"}, "NOT_PROMOTED"),
        ("desk@1", {"forced": True}, "UNKNOWN_FIELD"),
    ):
        assert http.post(f"/v1/models/{model}/promote", json=body).json()["code"] == code, (model, body)
    assert registry.resolve("desk").version == 2


def test_only_a_key_with_admin_forces(settings, registry):
    keys = SecretStr(",".join(f"{key}:{scope}" for scope, key in KEYS.items()))
    app = create_app(settings.model_copy(update={"api_keys": keys, "model_folder": registry.folder}))
    with TestClient(app, base_url=ADDRESS) as client:
        for scope, status in (("promote", 403), ("admin", 200)):
            headers = {"Authorization": f"Bearer {KEYS[scope]}"}
            answer = client.post("/v1/models/desk@1/promote", json={"force": True}, headers=headers)
            assert answer.status_code == status
            assert registry.resolve("desk").version == (2 if status == 403 else 1)
