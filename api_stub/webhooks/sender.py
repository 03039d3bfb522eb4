"""Webhooks: sends one when its job ends, from whichever API process holds it, with a signature."""

import asyncio
import base64
import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2
from fastapi import Depends, Request
from pydantic import SecretStr
from pydantic_core import to_json
from redis.exceptions import RedisError

from api_stub.backend import Backend
from api_stub.job_state import problem_of, state_of
from api_stub.webhooks.address import AddressRefused, Network, checked_url, resolve, split
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import WEBHOOKS_KEY, webhook_key
from kronos_client.core.stored import Stored
from kronos_client.redis.queues import MAX_WAIT_S
from kronos_client.redis.scripts import read_script
from kronos_client.settings import SettingsError

SECRET_PREFIX: Final = "whsec_"
MIN_SECRET_BYTES: Final = 24
HOLD_S: Final = 60.0
"""Seconds after which another process takes the webhooks of one that died."""
RENEW_S: Final = 15.0
MAX_TAKEN: Final = 1000
TIMEOUT_S: Final = 10.0
PAUSES_S: Final = (2, 10, 60, 300, 900)
"""Seconds between the attempts to send one webhook."""
AWAY_PAUSE_S: Final = 5.0
MAX_SENDING: Final = 16


def read_secret(setting: SecretStr | None) -> bytes | None:
    """The key in ``KRONOS_WEBHOOK_SECRET``; None if it is not set. Raises SettingsError."""
    if setting is None:
        return None
    try:
        secret = base64.b64decode(setting.get_secret_value().removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if len(secret) < MIN_SECRET_BYTES:
        raise SettingsError(
            f"KRONOS_WEBHOOK_SECRET cannot be used: it must be {MIN_SECRET_BYTES} or more bytes in base64, "
            f"with or without {SECRET_PREFIX} before it. `openssl rand -base64 32` makes one"
        )
    return secret


def signed_headers(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers from which a receiver checks who sent the body, and when."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digest = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{digest}",
    }


log = logging.getLogger(__name__)


class Webhooks:
    """The webhooks that this process holds. Each is sent at least once, or given up after some attempts.

    Redis has the address of each, and until when a process holds it. Use it as an async context.

    Args:
        secret: None if webhooks are off.
        allowed: Networks that may be called in addition to public addresses.
    """

    def __init__(self, backend: Backend, secret: bytes | None, allowed: Sequence[Network]) -> None:
        self._backend = backend
        self._redis: Any = backend.dispatcher.redis
        self._secret = secret
        self._allowed = allowed
        self._hold = self._redis.register_script(read_script("hold_webhooks", Path(__file__).parent))
        self._held: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Semaphore(MAX_SENDING)
        # A kept connection was checked for one name, and another name may have the same address.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._http = httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=False, limits=limits)
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Webhooks":
        if self._secret is not None:
            self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Another process, or the next one, sends what is left."""
        tasks = [*self._held.values(), *([] if self._renewing is None else [self._renewing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    def checked(self, url: object) -> str | None:
        """The URL, if any. Raises JobError if webhooks are off, or it cannot be called."""
        if url is None:
            return None
        if self._secret is None:
            message = "webhook: this service sends none; it needs KRONOS_WEBHOOK_SECRET"
            raise JobError(ErrorCode.BAD_VALUE, message, "webhook")
        return checked_url(url, self._allowed)

    async def add(self, job_id: str, job_url: str, url: str | None) -> None:
        """Call ``url``, if any, when this job ends. ``job_url`` is the job's address. Raises JobError."""
        if url is None:
            return

        def note() -> None:
            self._redis.set(webhook_key(job_id), f"{job_url} {url}", ex=MAX_WAIT_S)
            self._redis.zadd(WEBHOOKS_KEY, {job_id: self._redis.time()[0] + HOLD_S})

        await self._backend.ask(note, job_id=job_id)
        self._start(job_id, self._follow(job_id, job_url, url))

    def _start(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        if before := self._held.get(job_id):
            before.cancel()
        task = self._held[job_id] = asyncio.create_task(work)
        task.add_done_callback(lambda ended: self._end(job_id, ended))

    def _end(self, job_id: str, task: asyncio.Task[None]) -> None:
        if self._held.get(job_id) is task:
            del self._held[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the webhook of job %s is tried again in %d s: %s", job_id, HOLD_S, error)

    async def _renew(self) -> None:
        """Keep what this process holds, and take what no process holds."""
        while True:
            try:
                taken = await self._backend.ask(self._take, list(self._held))
            except (JobError, RedisError) as error:
                log.warning("webhooks are not renewed: %s", error)
                taken = []
            for job_id in taken:
                if job_id not in self._held:
                    self._start(job_id, self._take_over(job_id))
            await asyncio.sleep(RENEW_S)

    def _take(self, held: list[str]) -> list[str]:
        taken: list[str] = self._hold([WEBHOOKS_KEY], [HOLD_S, MAX_TAKEN, *held])
        return taken

    async def _take_over(self, job_id: str) -> None:
        noted = await self._backend.ask(self._redis.get, webhook_key(job_id))
        job_url, _, url = str(noted or "").partition(" ")
        await self._follow(job_id, job_url, url)

    async def _follow(self, job_id: str, job_url: str, url: str) -> None:
        """Wait for the job's end, and send the webhook."""
        outcome = await self._outcome(job_id) if url else None
        if outcome is not None:
            await self._send(job_id, job_url, url, outcome)
        elif self._backend.events.is_released:
            return  # another process takes it

        def forget() -> None:
            self._redis.delete(webhook_key(job_id))
            self._redis.zrem(WEBHOOKS_KEY, job_id)

        with suppress(JobError):  # the webhook is sent again; receivers recognise it by its id
            await self._backend.ask(forget)

    async def _outcome(self, job_id: str) -> Stored | None:
        """The job's outcome; None if there will be none, or if this process stops."""
        while not self._backend.events.is_released:
            try:
                async with aclosing(self._backend.events.states(job_id)) as states:
                    async for stored in states:
                        if stored.has_ended:
                            return stored
            except JobError as error:
                if error.code in (ErrorCode.LOST, ErrorCode.RESULT_EXPIRED):
                    return None
                await asyncio.sleep(AWAY_PAUSE_S)
        return None

    async def _send(self, job_id: str, job_url: str, url: str, outcome: Stored) -> None:
        """Send one webhook, with further attempts if the receiver does not take it."""
        state = state_of(outcome)
        kind = job_url.split("/")[-2].removesuffix("s")
        error = None if state == "done" else problem_of(outcome.value)
        content = {"type": f"{kind}.{state}", "id": job_id, "state": state, "url": job_url, "error": error}
        body, message_id = to_json(content), f"msg_{uuid.uuid5(uuid.NAMESPACE_URL, job_url).hex}"
        for pause_s in (*PAUSES_S, None):
            try:
                async with self._sending:
                    status = await self._post(url, message_id, body)
                if 200 <= status < 300:
                    log.info("the webhook of job %s was sent", job_id)
                    return
                reason = f"its receiver answered {status}"
            except AddressRefused as refused:
                log.warning("the webhook of job %s is given up: %s", job_id, refused)
                return
            except (httpx2.HTTPError, OSError, TimeoutError) as failure:
                reason = f"{type(failure).__name__}: {failure}"
            if pause_s is None:
                log.warning(
                    "the webhook of job %s is given up after %d attempts: %s",
                    job_id,
                    len(PAUSES_S) + 1,
                    reason,
                )
                return
            log.info("the webhook of job %s is sent again in %d s: %s", job_id, pause_s, reason)
            await asyncio.sleep(pause_s)

    async def _post(self, url: str, message_id: str, body: bytes) -> int:
        """The status of the answer. Redirects are not followed, and the answer's body is not read.

        Raises:
            AddressRefused, OSError, TimeoutError, httpx2.HTTPError
        """
        assert self._secret is not None
        async with asyncio.timeout(TIMEOUT_S):
            parts = split(url)
            address = await resolve(parts, self._allowed)
            headers = signed_headers(self._secret, message_id, int(time.time()), body) | {
                "content-type": "application/json",
                "host": parts.netloc,
            }
            target = httpx2.URL(url).copy_with(host=address)
            names = {"sni_hostname": str(parts.hostname)}  # the certificate must be that of the name
            async with self._http.stream(
                "POST", target, content=body, headers=headers, extensions=names
            ) as answer:
                return int(answer.status_code)


# async, because FastAPI runs sync dependencies on threads.
async def _webhooks(request: Request) -> Webhooks:
    webhooks: Webhooks = request.app.state.webhooks
    return webhooks


WebhooksDependency = Annotated[Webhooks, Depends(_webhooks)]
