"""Many waiting requests need few connections and no threads, and notice a lost job."""

import asyncio
import threading

import httpx2

from api_stub.backend import MAX_THREADS
from api_stub.main import create_app
from tests.api_stub.conftest import ADDRESS, series
from tests.waiting import WAIT_S

NUM_CLIENTS = 500


def test_500_waiting_requests_leave_health_and_threads_alone(settings, jobs, redis):
    app = create_app(settings.model_copy(update={"api_wait_s": WAIT_S}))

    num_threads = threading.active_count()  # threads of other tests

    async def ask() -> None:
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url=ADDRESS, timeout=WAIT_S) as http,
        ):
            waiting = [
                asyncio.create_task(http.post("/v1/predict/single", json=series()))
                for _ in range(NUM_CLIENTS)
            ]
            while app.state.backend.events.num_jobs < NUM_CLIENTS:
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
            assert app.state.backend.events.num_jobs == 0

    asyncio.run(ask())


def test_a_request_is_answered_if_redis_loses_its_job(http, settings, redis):
    del http.headers["Prefer"]
    http.app.state.backend.settings = settings.model_copy(update={"api_wait_s": WAIT_S})

    def forget() -> None:
        while not http.app.state.backend.events.num_jobs:
            pass
        redis.flushall()

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    answer = http.post("/v1/predict/single", json=series())
    forgetting.join()
    assert (answer.status_code, answer.json()["code"]) == (404, "LOST")


def test_a_request_ends_where_its_jobs_message_is_gone(http, settings, redis):
    del http.headers["Prefer"]
    http.app.state.backend.settings = settings.model_copy(update={"api_wait_s": WAIT_S})

    def lose() -> None:
        while not (keys := redis.keys("kronos:job:*")):
            pass
        while redis.hget(keys[0], "at") in (None, "none"):
            pass
        redis.hset(keys[0], "at", "none")

    losing = threading.Thread(target=lose)
    losing.start()
    answer = http.post("/v1/predict/single", json=series())
    losing.join()
    assert (answer.status_code, answer.json()["code"]) == (404, "LOST")
    assert "safe to submit again" in answer.json()["detail"]
