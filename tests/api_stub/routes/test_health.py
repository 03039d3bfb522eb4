"""Health and readiness, for probes and operators."""

import asyncio
import threading

import httpx2
import pytest
from fastapi.testclient import TestClient

import kronos_client
from api_stub import backend
from api_stub.main import create_app
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import JobError
from kronos_client.contract.schemas import example
from kronos_client.redis import connection
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker
from tests.api_stub.conftest import ADDRESS, STATUS
from tests.faults.proxy import FaultyProxy

QUEUES = ["cpu", "gpu", "cpu.finetune", "gpu.finetune"]


def test_the_service_is_alive(http):
    answer = http.get("/v1/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_the_service_names_its_version(http):
    assert http.get("/v1/version").json() == {"version": kronos_client.__version__, "schema_version": 1}


def test_the_service_is_not_ready_without_a_worker(http):
    answer = http.get("/v1/readyz")
    ready = answer.json()
    assert (answer.status_code, ready["status"], ready["model_loaded"]) == (503, "loading", False)
    assert (ready["device"], ready["device_warning"]) == (None, None)
    assert list(ready["queues"]) == QUEUES
    assert ready["detail"] == "no forecast worker is alive; start one with: kronos worker"
    assert "retry-after" in answer.headers


def test_the_queues_have_the_prefix_of_the_settings(settings, redis):
    announce(redis, fake_worker("app.cpu"))
    redis.lpush("app.cpu", "a job")
    prefixed = settings.model_copy(update={"queue_prefix": "app."})
    with TestClient(create_app(prefixed), base_url=ADDRESS) as http:
        queues = http.get("/v1/readyz").json()["queues"]
    assert list(queues) == [f"app.{queue}" for queue in QUEUES]
    assert (queues["app.cpu"]["ready"], queues["app.cpu"]["lengths"]["high"]) == (1, 1)


@pytest.mark.parametrize("state", ["loading", "draining"])
def test_the_service_is_not_ready_until_a_worker_is(http, redis, state):
    announce(redis, fake_worker(state=state))
    answer = http.get("/v1/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "loading")
    assert answer.json()["queues"]["cpu"] == {
        "workers": 1, "ready": 0, "lengths": {"high": 0, "normal": 0, "low": 0},
    }  # fmt: skip


def test_the_service_is_not_ready_while_its_worker_stores_nothing(http, redis):
    announce(redis, fake_worker(problem="Redis is full; make room"))
    answer = http.get("/v1/readyz")
    assert (answer.status_code, answer.json()["queues"]["cpu"]["ready"]) == (503, 0)
    assert "not ready: Redis is full; make room" in answer.json()["detail"]


def test_a_finetuning_worker_does_not_make_the_service_ready(http, redis):
    announce(redis, fake_worker("cpu.finetune"))
    assert http.get("/v1/readyz").status_code == 503


def test_one_ready_worker_is_enough_and_its_device_is_named(http, redis):
    warning = "CUDA device 'cuda:0' requested but CUDA not available. Falling back to CPU."
    held = STATUS.models[0].model_copy(update={"engine_warning": "no Numba"})
    announce(redis, STATUS.model_copy(update={"device_warning": warning, "models": (held,)}))
    answer = http.get("/v1/readyz")
    ready = answer.json()
    assert (answer.status_code, ready["status"], ready["model_loaded"]) == (200, "ok", True)
    assert (ready["device"], ready["device_warning"], ready["model"]) == ("cpu", warning, "kronos-tiny")
    assert (ready["engine"], ready["engine_warning"]) == ("torch", "no Numba")


def test_a_worker_on_a_gpu_is_named_before_one_on_the_cpu(http, redis):
    announce(redis, STATUS)
    announce(redis, fake_worker("gpu", model=example("worker-status")["model"]))
    assert http.get("/v1/readyz").json()["device"] == "cuda:0"


def test_the_limits_are_those_of_the_worker_that_accepts_least(http, redis):
    for node, limits in [("a@test", {"max_sample_count": 12, "max_bars": 10**6}), ("b@test", {})]:
        announce(redis, fake_worker(node=node, limits=limits))
    limits = http.get("/v1/workers").json()["limits"]
    assert (limits["max_sample_count"], limits["max_bars"]) == (12, 8192)
    assert limits["max_upload_bytes"] == 256 * 2**20


def test_the_detailed_answer_has_the_fields_of_the_reference(http, ready_worker):
    detailed = http.get("/v1/healthz/detailed").json()
    assert list(detailed) == ["status", "timestamp", "uptime_seconds", "checks"]
    assert detailed["status"] in ("healthy", "degraded")
    assert detailed["uptime_seconds"] >= 0
    checks = detailed["checks"]
    assert checks["model"] == {"status": "healthy", "loaded": True, "version": "kronos-tiny"}
    memory = checks["memory"]
    assert list(memory) == [
        "status", "process_mb", "system_total_mb", "system_available_mb", "system_percent",
    ]  # fmt: skip
    assert 0 < memory["process_mb"] < memory["system_total_mb"]
    assert list(checks["disk"]) == ["status", "total_gb", "free_gb", "percent"]
    assert checks["disk"]["free_gb"] > 0


def test_without_a_worker_the_detailed_answer_is_unhealthy(http):
    detailed = http.get("/v1/healthz/detailed").json()
    assert detailed["status"] == "unhealthy"
    assert detailed["checks"]["model"] == {"status": "unhealthy", "loaded": False, "version": None}


def test_workers_are_listed_with_the_fields_that_they_announce(http, redis):
    newer = STATUS.model_copy(update={"field_of_a_newer_worker": [1]})
    announced = [newer, fake_worker("cpu.finetune", node="z@test")]
    for worker in announced:
        announce(redis, worker)
    answer = http.get("/v1/workers").json()
    assert answer["workers"] == [worker.as_json() for worker in announced]
    assert "threads" not in answer["workers"][1]
    assert answer["queues"]["cpu"]["ready"] == 1


def test_many_requests_read_the_workers_once(http, redis, ready_worker, monkeypatch):
    monkeypatch.setattr("api_stub.backend.POOL_CACHE_S", 60.0)  # the requests may take long on a busy machine
    http.get("/v1/readyz")
    before = redis.info("commandstats")["cmdstat_zrange"]["calls"]
    for _ in range(20):
        assert http.get("/v1/readyz").status_code == 200
    assert redis.info("commandstats")["cmdstat_zrange"]["calls"] == before


def test_without_redis_the_service_lives_and_reports_the_cause(settings):
    with LocalRedis() as server:
        settings = settings.with_redis_url(server.url)
    with TestClient(create_app(settings), base_url=ADDRESS) as http:
        assert http.get("/v1/healthz").status_code == 200
        ready = http.get("/v1/readyz")
        assert (ready.status_code, ready.headers["content-type"]) == (503, "application/json")
        assert ready.json() == {
            "status": "loading", "model_loaded": False, "device": None, "device_warning": None, "model": None,
            "engine": None, "engine_warning": None, "queues": {},
            "detail": "Redis does not answer; check it, and KRONOS_REDIS_URL",
        }  # fmt: skip
        workers = http.get("/v1/workers")
        assert (workers.status_code, workers.json()["code"]) == (503, "BROKER_UNREACHABLE")
        assert http.get("/v1/healthz/detailed").json()["checks"]["model"]["loaded"] is False
        assert "kronos_redis_up 0.0" in http.get("/metrics").text
        job = http.get("/v1/forecasts/x")
        assert (job.status_code, job.json()["code"]) == (503, "BROKER_UNREACHABLE")


def test_a_silent_redis_does_not_hold_requests(settings, redis_server, monkeypatch):
    """One deadline covers all calls of a request; a single call may take longer."""
    monkeypatch.setitem(connection.OPTIONS, "socket_timeout", 1000.0)
    calls = [("GET", "/v1/forecasts/x"), ("DELETE", "/v1/forecasts/x"), ("GET", "/v1/finetunes/x/events")]
    num_calls = 3 * backend.MAX_THREADS

    async def ask(url: str, proxy: FaultyProxy) -> None:
        app = create_app(settings.with_redis_url(url))
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=ADDRESS) as http,
        ):
            assert (await http.get("/v1/readyz")).json()["queues"]
            proxy.is_silent = True
            for limit in ("POOL_TIMEOUT_S", "JOB_TIMEOUT_S", "THREAD_TIMEOUT_S"):
                monkeypatch.setattr(backend, limit, 0.2)
            await asyncio.sleep(backend.POOL_CACHE_S)
            async with asyncio.timeout(60):  # less than the timeout of one call
                ready = await http.get("/v1/readyz")
                assert (ready.status_code, ready.json()["status"]) == (503, "loading")
                assert "kronos_redis_up 0.0" in (await http.get("/metrics")).text
                asked = [http.request(*calls[number % 3]) for number in range(num_calls)]
                answers = await asyncio.gather(*asked)
                assert {(one.status_code, one.json()["code"]) for one in answers} == {
                    (503, "BROKER_UNREACHABLE")
                }
                assert (await http.get("/v1/healthz")).status_code == 200
            proxy.is_silent = False

    with FaultyProxy(redis_server.url) as proxy:
        asyncio.run(ask(proxy.url, proxy))


def test_a_call_that_waits_too_long_for_a_thread_never_starts(settings, monkeypatch):
    monkeypatch.setattr(backend, "THREAD_TIMEOUT_S", 0.05)
    free, called = threading.Event(), []

    async def ask() -> None:
        async with backend.Backend(settings) as ours:
            held = [asyncio.create_task(ours.call(free.wait)) for _ in range(backend.MAX_THREADS)]
            await asyncio.sleep(0)
            with pytest.raises(JobError) as error:
                await ours.call(called.append, 1)
            assert error.value.code == "BROKER_UNREACHABLE"
            free.set()
            assert await asyncio.gather(*held) == [True] * backend.MAX_THREADS
            await ours.call(called.append, 2)

    asyncio.run(ask())
    assert called == [2]
