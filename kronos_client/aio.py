"""AsyncForecastClient: the client for asyncio apps, without a thread for each job that is waited for.

Such as:

    async with AsyncForecastClient("redis://127.0.0.1:6379/0") as client:
        result = await client.forecast(df, pred_len=96, sample_count=20)
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self, Unpack

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import FinetuneResult
from kronos_client.contract.names import Priority
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.async_handle import AsyncFinetuneHandle, AsyncForecastHandle, AsyncHandle
from kronos_client.core.async_many import AsyncMany
from kronos_client.core.async_result_events import AsyncEndings, AsyncRedisEndings
from kronos_client.core.async_sending import sent
from kronos_client.core.base import BaseClient
from kronos_client.core.finetune_request import ConfigSource, DataSource
from kronos_client.core.forecast_request import ForecastOptions
from kronos_client.core.handle import FinetuneState, JobHandle, JobState
from kronos_client.core.job_ids import checked_job_id
from kronos_client.core.many import MAX_IN_FLIGHT, RETRY_FOR_S, ForecastOutcome, not_in_time
from kronos_client.core.retrying import Retries
from kronos_client.core.series import CandleSource
from kronos_client.settings import ClientSettings

__all__ = ["AsyncFinetuneHandle", "AsyncForecastClient", "AsyncForecastHandle", "AsyncHandle"]


class AsyncForecastClient:
    """Enqueues forecast and finetuning jobs and waits for their results, in one event loop.

    Jobs are checked and sent on a thread of asyncio's default executor. Waiting takes none: all jobs that are
    waited for share two connections.

    Args:
        url: the workers' Redis; ``KRONOS_REDIS_URL`` where left out.
        settings: limits and lifetimes, as the workers have them; from the environment where left out.
    """

    def __init__(self, url: str | None = None, *, settings: ClientSettings | None = None) -> None:
        client = ForecastClient(url, settings=settings)
        self._client: BaseClient = client
        self._endings: AsyncEndings = AsyncRedisEndings(client.redis_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give up the connections; handles that are left cannot be waited for any more."""
        await self._endings.close()
        await asyncio.to_thread(self._client.close)

    @property
    def redis_url(self) -> str:
        """The workers' Redis, password and all."""
        return self._client.redis_url

    async def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""
        return await asyncio.to_thread(self._client.workers)

    async def forecast(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobState], object] | None = None,
        forget: bool = False,
        job_id: str | None = None,
        retry_for_s: float = 0.0,
        **options: Unpack[ForecastOptions],
    ) -> ForecastResult:
        """``submit`` and ``wait`` in one; a job that is not done in time is cancelled.

        So is one that is no longer waited for, since this task of asyncio's was cancelled.
        """
        handle = await self._submit(candles, job_id, retry_for_s, may_stay=False, **options)
        try:
            return await handle.wait(timeout_s, on_progress=on_progress, forget=forget)
        except JobError as error:
            if error.code != ErrorCode.TIMEOUT:
                raise
            await handle.cancel()
            raise not_in_time(timeout_s, handle.id) from None
        except asyncio.CancelledError:
            with suppress(JobError):
                await asyncio.shield(handle.cancel())
            raise

    async def submit(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        job_id: str | None = None,
        retry_for_s: float = 0.0,
        **options: Unpack[ForecastOptions],
    ) -> AsyncForecastHandle:
        """Enqueue one job, as ``ForecastClient.submit`` does, with the same errors.

        Where this task is cancelled meanwhile, so is the job, unless ``job_id`` is given.
        """
        return await self._submit(candles, job_id, retry_for_s, may_stay=job_id is not None, **options)

    async def _submit(
        self,
        candles: CandleSource | Sequence[CandleSource],
        job_id: str | None,
        retry_for_s: float,
        *,
        may_stay: bool,
        **options: Unpack[ForecastOptions],
    ) -> AsyncForecastHandle:
        """``may_stay`` is whether the job stays where this task is cancelled before it is enqueued."""
        job_id = checked_job_id(job_id)

        def send() -> JobHandle[JobState, ForecastResult]:
            return self._client.submit(candles, job_id=job_id, **options)

        return AsyncHandle(await sent(send, Retries(retry_for_s), may_stay=may_stay), self._endings)

    async def submit_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> AsyncForecastHandle:
        """Enqueue one job in the contract's own form, as ``ForecastClient.submit_job`` does."""
        may_stay = job_id is not None
        job_id = checked_job_id(job_id)

        def send() -> JobHandle[JobState, ForecastResult]:
            return self._client.submit_job(payload, job_id=job_id)

        return AsyncHandle(await sent(send, Retries(retry_for_s), may_stay=may_stay), self._endings)

    async def finetune(
        self,
        config: ConfigSource,
        *,
        name: str,
        data: DataSource | None = None,
        device: str = "auto",
        allow_fallback: bool = True,
        deadline_s: float | None = None,
        priority: Priority = "normal",
        job_id: str | None = None,
        retry_for_s: float = 0.0,
    ) -> AsyncFinetuneHandle:
        """Enqueue one finetuning job, as ``ForecastClient.finetune`` does, with the same errors."""
        may_stay = job_id is not None
        job_id = checked_job_id(job_id)

        def send() -> JobHandle[FinetuneState, FinetuneResult]:
            return self._client.finetune(
                config,
                name=name,
                data=data,
                device=device,
                allow_fallback=allow_fallback,
                deadline_s=deadline_s,
                priority=priority,
                job_id=job_id,
            )

        return AsyncHandle(await sent(send, Retries(retry_for_s), may_stay=may_stay), self._endings)

    async def submit_finetune_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> AsyncFinetuneHandle:
        """Enqueue one finetuning job in the contract's own form, as ``ForecastClient`` does."""
        may_stay = job_id is not None
        job_id = checked_job_id(job_id)

        def send() -> JobHandle[FinetuneState, FinetuneResult]:
            return self._client.submit_finetune_job(payload, job_id=job_id)

        return AsyncHandle(await sent(send, Retries(retry_for_s), may_stay=may_stay), self._endings)

    def forecast_handle(self, job_id: str) -> AsyncForecastHandle:
        """The handle of a forecast job that was enqueued before, or elsewhere; its ``queue`` is not known."""
        return AsyncHandle(self._client.forecast_handle(job_id), self._endings)

    def finetune_handle(self, job_id: str) -> AsyncFinetuneHandle:
        """The handle of a finetuning job that was enqueued elsewhere; its ``queue`` is not known."""
        return AsyncHandle(self._client.finetune_handle(job_id), self._endings)

    def forecast_many(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        in_order: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        timeout_s: float | None = None,
        retry_for_s: float = RETRY_FOR_S,
        forget: bool = False,
        job_id_prefix: str | None = None,
        **options: Unpack[ForecastOptions],
    ) -> AsyncGenerator[ForecastOutcome, None]:
        """As ``ForecastClient.forecast_many``; items may come from an asynchronous iterable too.

        The next item is awaited beside the jobs under way: outcomes come as soon as they are there, however
        slow the items' source is.
        """

        def submit(job_id: str, one: Any) -> Awaitable[AsyncForecastHandle]:
            return self._submit(one, job_id, retry_for_s, may_stay=job_id_prefix is not None, **options)

        many = AsyncMany(
            submit,
            max_in_flight=max_in_flight,
            in_order=in_order,
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
            forget=forget,
            job_id_prefix=job_id_prefix,
        )
        return many.run(items)
