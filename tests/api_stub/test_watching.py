"""Many who wait for jobs need one connection, no threads, and find what was missed."""

import asyncio
import json
import threading

import httpx2
import pytest
from redis.asyncio import Redis as AsyncRedis

from api_stub import watching
from api_stub.backend import MAX_THREADS
from api_stub.main import create_app
from api_stub.watching import ResultWatch
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import job_key
from kronos_client.core.result_events import result_key
from tests.api_stub.conftest import ADDRESS, series

NUM_CLIENTS = 500


def test_500_who_wait_leave_health_and_threads_alone(settings, jobs, redis):
    app = create_app(settings.model_copy(update={"api_wait_s": 60}))

    num_threads = threading.active_count()  # others' in this process

    async def ask() -> None:
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url=ADDRESS, timeout=100) as http,
        ):
            waiting = [
                asyncio.create_task(http.post("/v1/predict/single", json=series()))
                for _ in range(NUM_CLIENTS)
            ]
            while app.state.backend.num_waiting < NUM_CLIENTS:
                assert (await http.get("/v1/healthz")).status_code == 200
                await asyncio.sleep(0.02)
            assert threading.active_count() - num_threads < 2 * MAX_THREADS
            clients = await asyncio.to_thread(redis.client_list)
            assert len(clients) < 5 * MAX_THREADS
            assert (await http.get("/v1/readyz")).status_code == 503
            assert "kronos_http_jobs_waited_for 500.0" in (await http.get("/metrics")).text
            await asyncio.to_thread(lambda: [jobs.fail(job["id"], "DEADLINE", "late") for job in jobs.sent()])
            answers = await asyncio.gather(*waiting)
            assert {answer.status_code for answer in answers} == {504}
            assert len({answer.headers["x-job-id"] for answer in answers}) == NUM_CLIENTS
            assert app.state.backend.num_waiting == 0

    asyncio.run(ask())


def store(redis, job_id: str, status: str, *, is_told: bool) -> None:
    meta = json.dumps({"status": status, "result": {}})
    redis.set(result_key(job_id), meta)
    if is_told:
        redis.publish(result_key(job_id), meta)


def watched(url: str, body) -> None:
    """Run ``body`` with a watch on that Redis."""

    async def run() -> None:
        watch = ResultWatch(AsyncRedis.from_url(url))
        await watch.start()
        try:
            async with asyncio.timeout(20):
                await body(watch)
        finally:
            await watch.stop()

    asyncio.run(run())


def test_what_was_stored_before_is_known_at_once(redis_server, redis):
    store(redis, "a", "SUCCESS", is_told=False)

    async def body(watch: ResultWatch) -> None:
        async with watch.follow("a") as followed:
            assert followed.has_ended

    watched(redis_server.url, body)


def test_what_nobody_told_is_found_by_looking(redis_server, redis, monkeypatch):
    monkeypatch.setattr(watching, "LOOK_INTERVAL_S", 0.01)
    redis.hset(job_key("a"), "fingerprint", "x")

    async def body(watch: ResultWatch) -> None:
        async with watch.follow("a") as followed:
            assert (followed.meta, followed.is_missing) == (None, False)
            store(redis, "a", "SUCCESS", is_told=False)
            assert await followed.change(15)
            assert followed.has_ended

    watched(redis_server.url, body)


def test_a_job_that_redis_forgot_is_missed(redis_server, redis, monkeypatch):
    monkeypatch.setattr(watching, "LOOK_INTERVAL_S", 0.01)
    redis.hset(job_key("a"), "fingerprint", "x")

    async def body(watch: ResultWatch) -> None:
        async with watch.follow("a") as followed:
            redis.flushall()
            assert await followed.change(15)
            assert followed.is_missing

    watched(redis_server.url, body)


def test_a_request_whose_job_redis_forgot_is_told_so(http, settings, redis):
    http.app.state.backend.settings = settings.model_copy(update={"api_wait_s": 60})

    def forget() -> None:
        while not http.app.state.backend.num_waiting:
            pass
        redis.flushall()

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    answer = http.post("/v1/predict/single", json=series())
    forgetting.join()
    assert (answer.status_code, answer.json()["code"]) == (404, "LOST")


def test_two_who_follow_one_job_both_hear_and_the_last_one_leaves(redis_server, redis):
    redis.hset(job_key("a"), "fingerprint", "x")

    async def body(watch: ResultWatch) -> None:
        async with watch.follow("a") as first:
            async with watch.follow("a") as second:
                assert watch.num_followed == 1
                store(redis, "a", "STARTED", is_told=True)
                assert await second.change(15)
            store(redis, "a", "SUCCESS", is_told=True)
            while not first.has_ended:
                assert await first.change(15)
        assert watch.num_followed == 0

    watched(redis_server.url, body)


def test_the_first_outcome_stands():
    followed = watching.Followed()
    followed.tell({"status": "SUCCESS", "result": 1})
    followed.tell({"status": "FAILURE", "result": 2})
    assert followed.meta == {"status": "SUCCESS", "result": 1}


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[]"])
def test_what_cannot_be_read_does_not_end_the_listening(redis_server, redis, text):
    redis.hset(job_key("a"), "fingerprint", "x")

    async def body(watch: ResultWatch) -> None:
        async with watch.follow("a") as followed:
            redis.publish(result_key("a"), text)
            store(redis, "a", "SUCCESS", is_told=True)
            while not followed.has_ended:
                assert await followed.change(15)

    watched(redis_server.url, body)


def test_a_redis_that_comes_back_is_heard_again(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "LOOK_INTERVAL_S", 0.05)
    with LocalRedis(data=tmp_path) as first:
        url, port = first.url, first._port

        async def body(watch: ResultWatch) -> None:
            async with watch.follow("a") as followed:
                await asyncio.to_thread(first.stop)
                await asyncio.to_thread(first._release)
                with LocalRedis(data=tmp_path, port=port) as second:
                    from kronos_client.redis.connection import connect

                    with connect(second.url) as redis:
                        store(redis, "a", "SUCCESS", is_told=True)
                    while not followed.has_ended:
                        assert await followed.change(15)

        watched(url, body)
