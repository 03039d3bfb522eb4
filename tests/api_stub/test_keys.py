"""Keys, local names, pages of other sites, and log lines."""

import itertools
import logging
import re

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount

from api_stub.keys import SCOPES, is_local, read_keys
from api_stub.main import create_app
from api_stub.settings import ApiSettings
from kronos_client.settings import SettingsError
from tests.api_stub.conftest import ADDRESS, series

KEY, OTHER_KEY = "a-key-of-sixteen-characters", "another-key-that-is-long-enough"


def with_keys(settings: ApiSettings, **fields: object) -> ApiSettings:
    keys = SecretStr(f"{KEY},{OTHER_KEY}")
    return settings.model_copy(update={"api_keys": keys, "api_host": "0.0.0.0", **fields})


@pytest.fixture
def guarded(settings):
    with TestClient(create_app(with_keys(settings)), base_url="http://api.example") as client:
        yield client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "api.example", ""])
def test_without_keys_an_address_that_others_reach_is_refused(settings, host):
    with pytest.raises(SettingsError, match="KRONOS_API_KEYS") as error:
        create_app(settings.model_copy(update={"api_host": host}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_without_keys_a_local_address_is_served(settings, host):
    assert is_local(host)
    create_app(settings.model_copy(update={"api_host": host}))


@pytest.mark.parametrize("keys", ["short", ",", "has-a-letter-beyond-ascii-ä", f"{KEY},short"])
def test_keys_that_are_weak_or_cannot_be_sent_are_refused(settings, keys):
    with pytest.raises(SettingsError, match="KRONOS_API_KEYS cannot be used") as error:
        read_keys(settings.model_copy(update={"api_keys": SecretStr(keys)}))
    assert "short" not in str(error.value)


def test_keys_can_be_read_from_a_file(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text(f"{KEY}\n{OTHER_KEY}\n")
    monkeypatch.delenv("KRONOS_API_KEYS", raising=False)
    monkeypatch.setenv("KRONOS_API_KEYS_FILE", str(tmp_path / "keys"))
    assert read_keys(ApiSettings.load()) == dict.fromkeys((KEY.encode(), OTHER_KEY.encode()), SCOPES)


CALLS = {
    "predict": [
        ("POST", "/v1/predict/single"),
        ("POST", "/v1/forecasts/file"),
        ("GET", "/v1/forecasts/x/events"),
    ],
    "train": [("POST", "/v1/finetunes"), ("GET", "/v1/finetunes/x"), ("POST", "/v1/datasets?name=a.csv")],
    "promote": [("POST", "/v1/models/desk@1/promote")],
    "metrics": [("GET", "/metrics"), ("GET", "/v1/metrics")],
    "admin": [
        *(("GET", "/v1/forecasts"), ("GET", "/v1/finetunes"), ("POST", "/v1/models/load")),
        *(("DELETE", "/v1/models/desk@1"), ("DELETE", "/v1/datasets/a.csv"), ("GET", "/v1/dead-messages")),
    ],
}


def test_a_key_with_scopes_allows_only_those(settings):
    keys = SecretStr(",".join(f"{scope}-{KEY}:{scope}" for scope in CALLS) + f",both-{KEY}:predict+train")
    app = create_app(settings.model_copy(update={"api_keys": keys}))
    with TestClient(app, base_url="http://api.example") as client:
        for held in ({"predict"}, {"train"}, {"promote"}, {"metrics"}, {"admin"}, {"predict", "train"}):
            name = "both" if len(held) == 2 else next(iter(held))
            headers = {"Authorization": f"Bearer {name}-{KEY}", "Content-Type": "application/json"}
            assert client.get("/v1/workers", headers=headers).status_code == 200
            for scope, calls in CALLS.items():
                for method, path in calls:
                    answer = client.request(method, path, headers=headers, content=b"{}")
                    is_allowed = bool(held & {scope, "admin"})
                    assert (answer.status_code == 403) != is_allowed, (name, method, path)
                    if not is_allowed:
                        assert answer.json()["code"] == "FORBIDDEN"


@pytest.mark.parametrize("scopes", ["", "predictt", "predict+", "predict:train", "all"])
def test_unknown_scopes_are_refused(settings, scopes):
    with pytest.raises(SettingsError, match=r"its scopes.* admin, metrics, predict, promote, train"):
        read_keys(settings.model_copy(update={"api_keys": SecretStr(f"{KEY}:{scopes}")}))


def test_a_request_without_a_valid_key_is_refused(guarded):
    paths = ("/v1/workers", "/v1/healthz/detailed", "/metrics", "/v1/nothing", "/openapi.json/")
    wrong = (None, "", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer", "Bearer é")
    for path, header in itertools.product(paths, wrong):
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        answer = guarded.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED"), (path, header)
        assert answer.headers["www-authenticate"] == "Bearer"
    for key, scheme in itertools.product((KEY, OTHER_KEY), ("Bearer", "bearer")):
        assert guarded.get("/v1/workers", headers={"Authorization": f"{scheme} {key}"}).status_code == 200


@pytest.fixture(params=["mounted", "mounted twice", "root_path", "root_path in the path"])
def below(request, settings):
    """A client of the app below the prefix /kronos, for each way to set a prefix."""
    app = create_app(with_keys(settings, api_max_body_bytes=1024, api_max_upload_bytes=2**20))
    outer = Starlette(
        routes=[Mount("/kronos", app=app)] if request.param == "mounted"
        else [Mount("/kronos", routes=[Mount("/v1", app=app)])],
        lifespan=lambda _: app.router.lifespan_context(app),
    )  # fmt: skip
    made = {
        "mounted": lambda: TestClient(outer, base_url="http://api.example/kronos"),
        "mounted twice": lambda: TestClient(outer, base_url="http://api.example/kronos/v1"),
        "root_path": lambda: TestClient(app, base_url="http://api.example", root_path="/kronos"),
        "root_path in the path": lambda: TestClient(
            app, base_url="http://api.example/kronos", root_path="/kronos"
        ),
    }
    with made[request.param]() as client:
        yield client


def test_below_a_prefix_requests_are_answered_as_without(below, caplog):
    key = {"Authorization": f"Bearer {KEY}"}
    for path in ("v1/workers", "v1", "v1/", "metrics", "v1/metrics", "v1/forecasts/x", "v1/version", "else"):
        answer = below.get(path)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED"), path
        assert below.get(path, headers=key).status_code in (200, 404), path
    with caplog.at_level(logging.INFO, "api_stub"):
        assert below.get("v1/healthz").status_code == 200
        assert below.get("").status_code == below.get("main.js").status_code == 200
    assert "/v1/healthz" not in caplog.text
    answer = below.put("v1/predict/single", headers=key)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    large = below.post(
        "v1/datasets?name=a.txt", content=b"x" * 4096, headers=key | {"Content-Type": "text/csv"}
    )
    assert large.status_code == 422  # not 413: a file may be larger than other bodies
    nothing = below.post("v1/nothing", headers=key)
    assert (nothing.status_code, nothing.json()["code"]) == (404, "NOT_FOUND")


def test_below_a_prefix_a_jobs_address_can_be_read(below):
    key = {"Authorization": f"Bearer {KEY}"}
    candles = {name: [1.0, 1.0] for name in ("open", "high", "low", "close")}
    series = {"id": "a", "timestamps": ["2024-06-18T09:30", "2024-06-18T09:35"], **candles}
    series["future_timestamps"] = ["2024-06-18T09:40"]
    job = {"schema_version": 1, "series": [series], "pred_len": 1}
    accepted = below.post("v1/forecasts", json=job, headers=key)
    assert accepted.status_code == 202, accepted.text
    assert accepted.headers["location"] == accepted.json()["url"]
    assert accepted.json()["url"].startswith("/kronos/")
    read = below.get(f"http://api.example{accepted.json()['url']}", headers=key)
    assert (read.status_code, read.json()["id"]) == (200, accepted.json()["id"])


def test_other_addresses_than_the_pages_need_a_key(guarded):
    assert guarded.get("/").status_code == guarded.get("/index.html").status_code == 200
    for path in ("/nothing.js", "/vendor", "/v2/workers", "//v1/workers", "/v1%2Fworkers", "/main.js/"):
        assert guarded.get(f"http://api.example{path}").status_code == 401, path


def test_the_documentation_needs_no_key(below):
    """A browser cannot send one with the address that it opens."""
    for path in ("docs", "openapi.json", "v1/openapi.json", "swagger-ui/swagger-ui.css"):
        assert below.get(path).status_code == 200


def test_probes_need_no_key(guarded):
    assert guarded.get("/v1/healthz").status_code == 200
    assert guarded.get("/v1/readyz").status_code == 503


def test_one_idempotency_key_from_two_callers_gives_two_jobs(guarded):
    ids = set()
    for key in (KEY, OTHER_KEY):
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "order-1"}
        ids.add(guarded.post("/v1/predict/single", json=series(), headers=headers).headers["x-job-id"])
    assert len(ids) == 2


def test_one_idempotency_key_gives_one_job_however_the_bearer_key_is_written(guarded):
    ids = set()
    for header in (f"Bearer {KEY}", f"bearer   {KEY}"):
        headers = {"Authorization": header, "Idempotency-Key": "order-1"}
        ids.add(guarded.post("/v1/predict/single", json=series(), headers=headers).headers["x-job-id"])
    assert len(ids) == 1


def test_without_keys_only_local_host_names_are_served(http):
    """A web page can point its own name at this machine. Its requests then contain that name."""
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "a b", "[::1", "10.0.0.1"):
        answer = http.get("/v1/workers", headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (403, "HOST_NOT_ALLOWED"), host
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:9", "[::1]:8000"):
        assert http.get("/v1/workers", headers={"Host": host}).status_code == 200, host


def test_without_keys_another_address_is_refused_under_any_server_command(settings):
    """For example `uvicorn --host 0.0.0.0`, which ignores the setting."""
    app = create_app(settings)

    async def elsewhere(scope, receive, send):
        if scope["type"] == "http":
            scope = scope | {"server": ("10.0.0.7", 8000)}
        await app(scope, receive, send)

    with TestClient(elsewhere, base_url=ADDRESS) as client:
        assert client.get("/v1/workers").json()["code"] == "HOST_NOT_ALLOWED"


def test_pages_of_other_sites_are_refused_unless_they_are_named(settings, http):
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/forecasts", headers=preflight).headers
    named = with_keys(settings, api_cors_origins="https://app.example, https://b.example")
    with TestClient(create_app(named), base_url="http://api.example") as guarded:
        allowed = guarded.options("/v1/forecasts", headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        # The page must be able to read a refusal, too.
        refused = guarded.get("/v1/workers", headers={"Origin": "https://app.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
            401,
            "https://app.example",
        )
        other = guarded.options("/v1/forecasts", headers=preflight | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_content_types_that_need_no_preflight_are_refused(http, jobs):
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")
    paths = ("/v1/predict/single", "/v1/forecasts", "/v1/finetunes", "/v1/models/load")
    for path, kind in itertools.product(paths, kinds):
        answer = http.post(path, content=b"{}", headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE"), (path, kind)
    assert jobs.sent() == []


def test_each_request_has_one_log_line_with_its_job(http, caplog):
    with caplog.at_level(logging.INFO, "api_stub"):
        job_id = http.post("/v1/predict/single", json=series()).headers["x-job-id"]
        answer = http.get(f"/v1/forecasts/{job_id}")
        http.get("/v1/healthz")
    lines = [record for record in caplog.records if record.name == "api_stub.middleware.request_log"]
    assert [record.job_id for record in lines] == [job_id, job_id]
    assert job_id in lines[0].getMessage()
    assert lines[1].request_id == answer.headers["x-request-id"]


def test_the_senders_own_request_id_is_kept(http, caplog):
    with caplog.at_level(logging.INFO, "api_stub"):
        answer = http.get("/v1/workers", headers={"X-Request-ID": "trace-7f3a.1"})
    assert answer.headers["x-request-id"] == "trace-7f3a.1"
    assert "request=trace-7f3a.1" in caplog.text


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\tb", "ä", "x job=other"])
def test_a_request_id_that_a_log_cannot_hold_is_replaced(http, given):
    answer = http.get("/v1/healthz", headers={"X-Request-ID": given.encode("latin-1")})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_a_log_line_cannot_be_forged(http, caplog):
    with caplog.at_level(logging.INFO, "api_stub"):
        http.get("/v1/forecasts/a%0aINFO%20forged")
    (line,) = [record for record in caplog.records if record.name == "api_stub.middleware.request_log"]
    assert "\n" not in line.getMessage()


def test_a_defect_is_answered_without_its_trace(http, monkeypatch, caplog):
    async def fail():
        raise RuntimeError("the secret of /srv/kronos")

    monkeypatch.setattr(http.app.state.backend, "pool", fail)
    answer = http.get("/v1/workers")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "the secret of /srv/kronos" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text
