"""A request that the server ends is answered all the same."""

import asyncio
import json

import pytest

from api_stub.middleware.request_log import RequestLog
from api_stub.routes.metrics import HttpMetrics

SCOPE = {"type": "http", "method": "POST", "path": "/v1/datasets", "raw_path": b"/v1/datasets", "headers": []}


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_request_that_the_server_cancels_is_told_to_come_again(is_begun):
    """As uvicorn does with what takes longer than the service has when it is told to end."""
    told: list[dict] = []

    async def endless(scope, receive, send):
        if is_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message):
        told.append(message)

    async def run() -> None:
        request = asyncio.create_task(RequestLog(endless, HttpMetrics())(dict(SCOPE), None, send))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())
    if is_begun:
        assert len(told) == 1
    else:
        assert (told[0]["status"], json.loads(told[1]["body"])["code"]) == (503, "OVERLOADED")
