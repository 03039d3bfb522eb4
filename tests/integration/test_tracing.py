"""Traces, metrics and log lines of jobs, as a collector on this machine receives them by OTLP."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pandas as pd
import pytest
from celery import Celery
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FORECAST_TASK, job_key, result_key
from kronos_client.core.stored import encode_failure
from kronos_client.otel.setup import ENDPOINT, export_traces
from tests.integration.conftest import PACED, PARITY, StartWorker
from tests.waiting import WAIT_S, await_true

CANDLES = pd.read_csv(PARITY / "candles.csv")[:60]
PHASES = ("wait", "process", "take", "prefill", "decode", "store")
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Receives OTLP over HTTP; ``spans`` by name, ``metrics`` by name, of all that was exported."""

    def __init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.spans: list[tuple[str, Any]] = []
        self.metrics: dict[str, Any] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {each.key: each.value.string_value for each in resource.resource.attributes}[
                    "service.name"
                ]
                self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def of_job(self, job_id: str) -> dict[str, list[Any]]:
        """The spans of the worker for a job, by the first word of their names."""
        found: dict[str, list[Any]] = {}
        for _, span in list(self.spans):
            values = {each.key: each.value.string_value for each in span.attributes}
            if values.get("messaging.message.id") == job_id:
                found.setdefault(span.name.split()[0], []).append(span)
        return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    threading.Thread(target=collector.server.serve_forever, daemon=True).start()
    yield collector
    collector.server.shutdown()


@pytest.fixture(scope="module")
def sent() -> InMemorySpanExporter:
    """The spans of this process, which is the app."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def sent_for(job_id: str, sent: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The app's spans for a job."""
    found = [span for span in sent.get_finished_spans() if span.name == name]
    return [span for span in found if (span.attributes or {})["messaging.message.id"] == job_id]


@pytest.fixture(scope="module")
def traced(collector: Collector) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "KRONOS_VISIBILITY_TIMEOUT_S": "3",
        "KRONOS_LOG_FORMAT": "json",
        "PACE_S": "0.05",
    }


def test_an_attempt_whose_outcome_is_discarded_has_not_stored_it(
    redis: LocalRedis, start_worker: StartWorker, client: ForecastClient, collector: Collector, traced
):
    slow_to_renew = traced | {"KRONOS_VISIBILITY_TIMEOUT_S": "600"}  # only storing finds the other one
    worker = start_worker(*PACED, **slow_to_renew).wait_until_ready()
    try:
        job = client.submit(CANDLES, pred_len=30, sample_count=1)
        await_true(lambda: job.state().name != "PENDING", "a worker has the job")
        others = encode_failure(job.id, JobError(ErrorCode.WORKER_LOST, "another attempt stored this"))
        server = Redis.from_url(redis.url)
        server.hset(job_key(job.id), "holder", "another")
        server.set(result_key(job.id), others)
        await_true(lambda: "process" in collector.of_job(job.id), "its span arrives")
    finally:
        worker.process.kill()  # else it takes the jobs of the next test
        worker.process.wait(WAIT_S)
    spans = collector.of_job(job.id)
    (process,) = spans["process"]
    assert process.status.message == "Ignore"
    assert "take" in spans
    assert "store" not in spans


def test_a_job_is_one_trace_and_complete_after_a_kill(
    start_worker: StartWorker,
    client: ForecastClient,
    collector: Collector,
    sent: InMemorySpanExporter,
    traced,
):
    first = start_worker(*PACED, **traced).wait_until_ready()
    with trace.get_tracer("app").start_as_current_span("rebalance") as app_span:
        held = client.submit(CANDLES, pred_len=60, sample_count=1)
        await_true(lambda: held.state().name != "PENDING", "a worker has the job")
        first.process.kill()
        first.process.wait(WAIT_S)
        together = [client.submit(CANDLES, pred_len=2, sample_count=1) for _ in range(8)]
        second = start_worker(*PACED, **traced).wait_until_ready()
        for handle in (held, *together):
            handle.wait(WAIT_S)
    await_true(
        lambda: all("process" in collector.of_job(each.id) for each in (held, *together)),
        "the attempts' spans arrive",
    )
    spans = collector.of_job(held.id)
    (process,) = spans["process"]  # the killed one left none
    (send,) = sent_for(held.id, sent, "send cpu")
    (wait_for,) = sent_for(held.id, sent, "wait for job")
    trace_id = app_span.get_span_context().trace_id
    every = [span for named in spans.values() for span in named]
    assert {int.from_bytes(span.trace_id, "big") for span in every} == {trace_id}
    assert {send.context.trace_id, wait_for.context.trace_id} == {trace_id}
    assert int.from_bytes(process.parent_span_id, "big") == send.context.span_id
    for name in ("take", "prefill", "decode", "store"):
        (inside,) = spans[name]
        assert inside.parent_span_id == process.span_id
        assert process.start_time_unix_nano <= inside.start_time_unix_nano
        assert inside.end_time_unix_nano <= process.end_time_unix_nano
    (waited,) = spans["wait"]
    assert waited.parent_span_id == process.parent_span_id
    assert waited.end_time_unix_nano - waited.start_time_unix_nano > 1e9  # until the second worker had it
    assert process.kind == process.SPAN_KIND_CONSUMER
    lines = [json.loads(line) for line in second.log.read_text().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("outcome") == "done" and line["job_id"] == held.id]
    assert line["trace_id"] == f"{trace_id:032x}"

    await_true(lambda: any(span.name == "receive cpu" for _, span in collector.spans), "their batch arrives")
    (batch,) = [span for _, span in collector.spans if span.name == "receive cpu"]
    senders = {sent_for(each.id, sent, "send cpu")[0].context.span_id for each in together}
    assert senders <= {int.from_bytes(link.span_id, "big") for link in batch.links}
    for each in together:
        (attempt,) = collector.of_job(each.id)["process"]
        assert [link.span_id for link in attempt.links] == [batch.span_id]


def test_all_jobs_of_a_universe_are_in_the_apps_trace(
    start_worker: StartWorker,
    client: ForecastClient,
    collector: Collector,
    sent: InMemorySpanExporter,
    traced,
):
    with trace.get_tracer("app").start_as_current_span("universe") as app_span:
        series = {f"S{number}": CANDLES for number in range(8)}
        results = list(client.forecast_many(series.items(), pred_len=2))
    assert len(results) == 8
    trace_id = app_span.get_span_context().trace_id
    own = [span for span in sent.get_finished_spans() if span.context.trace_id == trace_id]
    ids = [span.attributes["messaging.message.id"] for span in own if span.name == "send cpu"]
    await_true(lambda: all("process" in collector.of_job(job_id) for job_id in ids), "all spans arrive")
    attempts = [collector.of_job(job_id)["process"][0] for job_id in ids]
    assert {int.from_bytes(span.trace_id, "big") for span in attempts} == {trace_id}

    job = client.submit([CANDLES] * 4, pred_len=2, sample_count=1)
    assert len(job.wait(WAIT_S).series) == 4
    await_true(lambda: "process" in collector.of_job(job.id), "its spans arrive")
    named = collector.of_job(job.id)
    assert {name: len(spans) for name, spans in named.items()} == dict.fromkeys(PHASES, 1)


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "", ENDPOINT: "http://localhost:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://localhost:1"}, False),
        ({"OTEL_SDK_DISABLED": "true", ENDPOINT: "http://localhost:1"}, False),
    ],
)
def test_the_standard_variables_turn_it_on_and_off(monkeypatch, variables, is_on):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: provider.shutdown())
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")
    assert export_traces("test") is is_on


def test_a_plain_client_has_its_trace_and_a_failure_its_code(
    redis: LocalRedis, collector: Collector, start_worker: StartWorker, traced
):
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    kwargs = {"job": {"series": "none", "pred_len": 4}}
    result = app.send_task(FORECAST_TASK, kwargs=kwargs, queue="cpu", headers={"traceparent": FOREIGN})
    await_true(lambda: "process" in collector.of_job(result.id), "its span arrives")
    (process,) = collector.of_job(result.id)["process"]
    assert (process.trace_id.hex(), process.parent_span_id.hex()) == tuple(FOREIGN.split("-")[1:3])
    assert process.status.code == process.status.STATUS_CODE_ERROR
    assert process.status.message == "BAD_TYPE"


def test_metrics_are_those_of_prometheus(collector: Collector):
    await_true(lambda: "kronos_jobs" in collector.metrics, "metrics arrive")
    (done, *_) = [
        point.as_double
        for point in collector.metrics["kronos_jobs"].sum.data_points
        if {each.key: each.value.string_value for each in point.attributes}["outcome"] == "done"
    ]
    assert done >= 1
    (waits,) = collector.metrics["kronos_job_wait_seconds"].histogram.data_points
    assert sum(waits.bucket_counts) == waits.count >= 1
    assert len(waits.bucket_counts) == len(waits.explicit_bounds) + 1


def test_a_request_over_http_goes_on_with_the_senders_trace(redis: LocalRedis, collector: Collector, traced):
    script = """
import sys
from fastapi.testclient import TestClient
from api_stub.main import create_app
from api_stub.settings import ApiSettings
from kronos_client.otel.setup import export_traces
from opentelemetry import trace
assert export_traces("kronos-api")
with TestClient(create_app(ApiSettings.load()), base_url="http://localhost") as client:
    body = {"series": [{"id": "a", "open": [1, 2, 2], "high": [3] * 3, "low": [1] * 3, "close": [2] * 3,
            "timestamps": [f"2024-01-01T0{hour}:00:00" for hour in range(3)]}], "pred_len": 1}
    answer = client.post("/v1/forecasts", json=body, headers={"traceparent": sys.argv[1]})
    assert answer.status_code == 202, answer.text
trace.get_tracer_provider().shutdown()
"""
    environment = os.environ | traced | {"KRONOS_REDIS_URL": redis.url}
    subprocess.run([sys.executable, "-c", script, FOREIGN], env=environment, check=True, timeout=WAIT_S)
    of_api = {span.name: span for service, span in list(collector.spans) if service == "kronos-api"}
    request, endpoint, send = (
        of_api[name] for name in ("POST /v1/forecasts", "fastapi.endpoint", "send cpu")
    )
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == tuple(FOREIGN.split("-")[1:3])
    assert (send.parent_span_id, endpoint.parent_span_id) == (endpoint.span_id, request.span_id)


def test_without_variables_nothing_is_imported():
    script = """
import sys
import kronos_client.client, kronos_client.celery_app, worker.monitoring.tracing, api_stub.main
from kronos_client.otel.setup import export_traces
assert not export_traces("x")
parts = "opentelemetry.sdk.trace", "opentelemetry.exporter"
print([name for name in sys.modules if name.startswith(parts)])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
