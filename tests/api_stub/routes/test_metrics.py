"""Metrics, with a bounded number of labels for any requests."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kronos_client.contract.names import DEAD_KEY, job_key, jobs_key
from kronos_client.contract.schemas import example
from kronos_client.redis.queues import large_key
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker
from tests.api_stub.conftest import STATUS, series


def read(http, path: str = "/metrics") -> dict[tuple[str, tuple[str, ...]], float]:
    answer = http.get(path)
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
def test_both_addresses_have_the_queues_and_workers(http, ready_worker, path):
    http.post("/v1/predict/single", json=series())
    http.post("/v1/predict/single", json=series(priority="low"))
    found = read(http, path)
    assert found["kronos_redis_up", ()] == 1
    assert found["kronos_queue_jobs", ("normal", "cpu")] == 1
    assert found["kronos_queue_jobs", ("low", "cpu")] == 1
    assert found["kronos_queue_jobs", ("high", "gpu.finetune")] == 0
    assert found["kronos_workers_ready", ("cpu",)] == 1
    assert found["kronos_workers", ("gpu",)] == 0


def test_delayed_old_and_dead_messages_are_counted(http, redis, ready_worker):
    http.post("/v1/predict/single", json=series())
    (job_id,) = redis.zrange(jobs_key("forecast"), 0, -1)
    redis.hincrbyfloat(job_key(job_id), "admitted_at", -500)
    redis.zadd(f"kronos:delayed:{large_key('cpu')}", {"due": 1, "not due": time.time() + 1000})
    redis.lpush(DEAD_KEY, "1", "2")
    found = read(http)
    assert found["kronos_queue_delayed_jobs", ("cpu",)] == 2
    assert found["kronos_queue_due_jobs", ("cpu",)] == 1
    assert found["kronos_queue_due_jobs", ("gpu",)] == 0
    assert found["kronos_queue_oldest_job_seconds", ("cpu",)] == pytest.approx(500, abs=60)
    assert found["kronos_queue_oldest_job_seconds", ("gpu",)] == 0
    assert found["kronos_dead_messages", ()] == 2


def test_training_jobs_are_counted_by_queue(http, redis):
    for node, queue, training in (
        ("a", "cpu.finetune", {"job_id": "1", "name": "mine", "step": None}),
        ("b", "cpu.finetune", {"job_id": "2", "name": "other", "step": 7}),
        ("c", "cpu.finetune", None),
        ("d", "gpu.finetune", None),
    ):
        announce(redis, fake_worker(queue, node=node, training=training))
    announce(redis, STATUS)
    found = read(http)
    assert found["kronos_jobs_training", ("cpu.finetune",)] == 2
    assert found["kronos_jobs_training", ("gpu.finetune",)] == 0
    assert found["kronos_workers", ("cpu.finetune",)] == 3
    assert {labels for name, labels in found if name == "kronos_jobs_training"} == {
        ("cpu.finetune",),
        ("gpu.finetune",),
    }


def test_requests_are_counted_by_route(http):
    for job_id in ("a", "b", "c"):
        http.get(f"/v1/forecasts/{job_id}")
    http.get("/v1/no/such/thing")
    http.request("BREW", "/v1/healthz")
    found = read(http)
    for name in ("kronos_http_requests_total", "kronos_requests_total"):
        assert found[name, ("GET", "/v1/forecasts/{job_id}", "404")] == 3
        assert found[name, ("GET", "", "404")] == 1
    others = [
        value
        for (name, labels), value in found.items()
        if name.endswith("_total") and labels[:1] == ("other",)
    ]
    assert others == [1, 1]
    for name in ("kronos_http_request_seconds_count", "kronos_request_duration_seconds_count"):
        assert found[name, ("GET", "/v1/forecasts/{job_id}")] == 3
    assert not any("such" in "".join(labels) for _, labels in found)


def test_cancelled_jobs_do_not_wait(http):
    job_ids = [http.post("/v1/forecasts", json=example("forecast-job")).json()["id"] for _ in range(2)]
    http.delete(f"/v1/forecasts/{job_ids[0]}")
    assert read(http)["kronos_queue_jobs", ("normal", "cpu")] == 1
