"""The OpenAPI description matches the service: problems, keys and examples."""

import re

import pytest
from pydantic import SecretStr

from api_stub.main import create_app
from api_stub.routes.job_views import FinetuneView, ForecastView
from api_stub.routes.predictions import Prediction
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


def test_problems_are_described_with_their_media_type(described):
    for _, _, operation in operations(described):
        for status in ("4XX", "5XX"):
            (content,) = operation["responses"][status]["content"].items()
            assert content[0] == "application/problem+json"
            assert content[1]["schema"] == {"$ref": "#/components/schemas/Problem"}
    problem = described["components"]["schemas"]["Problem"]["properties"]
    assert {"type", "title", "status", "detail", "code", "field"} <= problem.keys()


def test_keys_are_described_if_they_are_needed(settings, described):
    keys = SecretStr("a-key-of-sixteen-characters")
    guarded = create_app(settings.model_copy(update={"api_keys": keys})).openapi()
    (name,) = guarded["components"]["securitySchemes"]
    assert guarded["components"]["securitySchemes"][name]["scheme"] == "bearer"
    scopes = {}
    for (path, method, needed), (_, _, optional) in zip(
        operations(guarded), operations(described), strict=True
    ):
        if path in OPEN:
            assert "security" not in needed | optional
        else:
            ((key, scopes[method, path]),) = needed["security"][0].items()
            assert (key, optional["security"]) == (name, [{}, *needed["security"]])
    assert scopes["post", "/v1/finetunes"] == ["train"]
    assert scopes["get", "/v1/forecasts"] == ["admin", "predict"]
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
