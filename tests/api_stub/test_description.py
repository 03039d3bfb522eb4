"""The OpenAPI description matches the service: problems, keys and examples."""

import json
import re
import shutil
import subprocess

import pytest
from pydantic import SecretStr

from api_stub.main import create_app
from api_stub.problems import STATUSES, Problem
from api_stub.routes.job_views import FinetuneView, ForecastView
from api_stub.routes.predictions import Prediction
from kronos_client.contract.feed import FeedSeries
from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.jobs import Limits, parse_job, prepare

JSON = "application/json"
OPEN = ("/v1/healthz", "/v1/readyz")


@pytest.fixture
def described(settings):
    return create_app(settings).openapi()


def operations(described):
    return [
        (path, method, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_documentation_is_made_of_own_files(http):
    page = http.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    addresses = re.findall(r'(?:src|href)="(.*?)"', page.text)
    assert len(addresses) >= 4
    for address in addresses:
        assert http.get(f"/{address}").status_code == 200
    assert http.get("/openapi.json").json() == http.get("/v1/openapi.json").json()


def test_problems_are_described_with_their_codes(described):
    found = {}
    for name, problem in described["components"]["responses"].items():
        ((media_type, content),) = problem["content"].items()
        assert media_type == "application/problem+json"
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
        Problem.model_validate(content["example"])
        found |= dict.fromkeys(re.findall(r"^- `(\w+)`: .", problem["description"], re.MULTILINE), name)
    assert found.keys() | {"METHOD_NOT_ALLOWED"} == {*STATUSES}
    for path, _, operation in operations(described):
        answers = operation["responses"]
        assert answers["422"] == {"$ref": f"#/components/responses/{found['UNKNOWN_FIELD']}"}
        assert path in OPEN or answers["401"] == {"$ref": f"#/components/responses/{found['UNAUTHORIZED']}"}
        assert ("404" in answers) or "{" not in path


def test_operations_have_names_for_the_methods_of_a_client(described):
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) for name in names)
    assert {"predict_single", "submit_forecast", "get_backtest", "cancel_finetune", "list_models"} < set(
        names
    )


def test_spectral_finds_no_fault(described, tmp_path):
    if shutil.which("spectral") is None:
        pytest.skip("spectral is not on PATH: npm install --global @stoplight/spectral-cli")
    (tmp_path / "openapi.json").write_text(json.dumps(described))
    (tmp_path / "rules.yml").write_text("extends: spectral:oas\n")
    found = subprocess.run(
        ["spectral", "lint", "openapi.json", "--ruleset", "rules.yml", "--fail-severity", "hint"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


def test_keys_are_described_if_they_are_needed(settings, described):
    keys = SecretStr("a-key-of-sixteen-characters")
    guarded = create_app(settings.model_copy(update={"api_keys": keys})).openapi()
    (name,) = guarded["components"]["securitySchemes"]
    assert guarded["components"]["securitySchemes"][name]["scheme"] == "bearer"
    scopes = {}
    for (path, method, needed), (_, _, optional) in zip(
        operations(guarded), operations(described), strict=True
    ):
        scopes[method, path] = re.findall(r"Keys need the scope (.*)\.", needed["description"])
        if path in OPEN:
            assert "security" not in needed | optional
        else:
            assert (needed["security"], optional["security"]) == ([{name: []}], [{}, {name: []}])
    assert scopes["post", "/v1/finetunes"] == ["`train`"]
    assert scopes["get", "/v1/forecasts"] == ["`admin`"]
    assert scopes["get", "/v1/jobs/{job_id}/explanation"] == ["`predict` or `train`"]
    assert scopes["get", "/v1/workers"] == []


def test_the_examples_are_complete_and_valid(http, jobs):
    described = http.get("/v1/openapi.json").json()["paths"]

    def body(path):
        return described[path]["post"]["requestBody"]["content"][JSON]["example"]

    def answer(path, method):
        return described[path][method]["responses"]["200"]["content"][JSON]["example"]

    jobs_of = ("/v1/forecasts", "/v1/finetunes", "/v1/backtests")
    for path in ("/v1/predict/single", "/v1/predict/batch", *jobs_of):
        assert http.post(path, json=body(path)).status_code == 202, path
    assert len(jobs.sent()) == 5
    prepare(parse_job(body("/v1/forecasts"), Limits()), "a", Limits())
    parse_finetune_job(body("/v1/finetunes"), Limits())
    Prediction.model_validate(answer("/v1/predict/single", "post"))
    assert answer("/v1/predict/batch", "post") == [answer("/v1/predict/single", "post")]
    assert ForecastView.model_validate(answer("/v1/forecasts/{job_id}", "get")).result is not None
    assert FinetuneView.model_validate(answer("/v1/finetunes/{job_id}", "get")).result is not None
    shown = FeedSeries.model_validate_json(json.dumps(answer("/v1/feeds/{name}/series/{series_id}", "get")))
    assert shown.past[0].timestamps[0] == shown.newest.last_time == shown.bars["timestamps"][-1]
