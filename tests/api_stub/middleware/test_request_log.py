"""A request that the server cancels is answered."""

import asyncio
import json

import pytest

from api_stub.middleware.request_log import RequestLog
from api_stub.routes.metrics import HttpMetrics

SCOPE = {"type": "http", "method": "POST", "path": "/v1/datasets", "raw_path": b"/v1/datasets", "headers": []}


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_cancelled_request_is_answered_with_503(is_begun):
    """uvicorn cancels requests that are not done when its grace period is over."""
    messages: list[dict] = []

    async def endless(scope, receive, send):
        if is_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message):
        messages.append(message)

    async def run() -> None:
        request = asyncio.create_task(RequestLog(endless, HttpMetrics())(dict(SCOPE), None, send))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())
    if is_begun:
        assert len(messages) == 1
    else:
        assert (messages[0]["status"], json.loads(messages[1]["body"])["code"]) == (503, "OVERLOADED")
