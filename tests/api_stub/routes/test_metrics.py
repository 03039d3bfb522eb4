"""Metrics, with a bounded number of labels for any requests."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

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
