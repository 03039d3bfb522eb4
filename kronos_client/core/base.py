"""What every client offers: on a real Redis (client.py) or in an app's tests (testing.py)."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, Unpack

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.jobs import ForecastJob, Limits, parse_job, prepare
from kronos_client.contract.names import (
    FINETUNE_TASK,
    FORECAST_TASK,
    SCHEMA_VERSION,
    Priority,
)
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.finetune_request import ConfigSource, DataSource, finetune_payload
from kronos_client.core.forecast_request import ForecastOptions, forecast_payload, plain
from kronos_client.core.handle import FinetuneHandle, ForecastHandle, JobState
from kronos_client.core.job_ids import checked_job_id
from kronos_client.core.many import (
    MAX_IN_FLIGHT,
    RETRY_FOR_S,
    ForecastOutcome,
    Many,
    not_in_time,
)
from kronos_client.core.result_events import Endings
from kronos_client.core.result_store import Outcome
from kronos_client.core.retrying import Retries
from kronos_client.core.series import CandleSource
from kronos_client.redis.routing import choose_finetune_queue, choose_queue
from kronos_client.redis.shown import shown_arguments
from kronos_client.settings import ClientSettings

NO_PRED_LEN_LIMIT: Final = 2**31

Handle = TypeVar("Handle")


class BaseClient(ABC):
    """Enqueues jobs and waits for their results; where to, its subclasses say."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def redis_url(self) -> str:
        """The workers' Redis, password and all."""
        return self._settings.redis_url.get_secret_value()

    @abstractmethod
    def close(self) -> None:
        """Give up the connections; handles that are left cannot be waited for any more."""

    @abstractmethod
    def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""

    @abstractmethod
    def _known_workers(self) -> list[AnyWorkerStatus]:
        """Likewise, at most a second old."""

    @abstractmethod
    def _enqueue(
        self, task: str, payload: dict[str, Any], job_id: str, queue: str, priority: Priority, shown: str
    ) -> None:
        """Send a job, unless it is known to have its outcome. ``shown`` stands for its arguments in Flower.

        Raises JobError: ID_CONFLICT, QUEUE_FULL, BROKER_UNREACHABLE, ENQUEUE_UNCERTAIN.
        """

    @abstractmethod
    def _outcome(self, job_id: str) -> Outcome:
        """What is stored of a job."""

    @abstractmethod
    def _endings(self) -> Endings:
        """Where the ends of several jobs are heard of."""

    def forecast(
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
        """``submit`` and ``wait`` in one; a job that is not done in time is cancelled."""
        handle = self.submit(candles, job_id=job_id, retry_for_s=retry_for_s, **options)
        try:
            return handle.wait(timeout_s, on_progress=on_progress, forget=forget)
        except JobError as error:
            if error.code != ErrorCode.TIMEOUT:
                raise
            handle.cancel()
            raise not_in_time(timeout_s, handle.id) from None

    def submit(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        job_id: str | None = None,
        retry_for_s: float = 0.0,
        **options: Unpack[ForecastOptions],
    ) -> ForecastHandle:
        """Enqueue one job.

        Args:
            candles: a DataFrame of pandas or polars, a mapping of columns, or a list of records; or a list of
                these for several series.
            job_id: the id to use. The same content may be submitted again under it: a job has one outcome.
            retry_for_s: for so long, submit it again with the same id where the queue is full, Redis is away,
                or its answer was lost.
            options: horizon, sampling, output, model, device and more: see ``forecast_payload``.

        Raises:
            JobError: what the worker would answer, as far as it can be known here; NO_GPU_WORKER;
                ID_CONFLICT where the id was used for other content; QUEUE_FULL, with ``retry_after_s`` in its
                details; BROKER_UNREACHABLE where nothing was enqueued; ENQUEUE_UNCERTAIN where that is not
                known.
        """
        return self.submit_job(forecast_payload(candles, **options), job_id=job_id, retry_for_s=retry_for_s)

    def submit_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> ForecastHandle:
        """Enqueue one job in the contract's own form, such as docs/examples/forecast-job.json.

        Raises JobError as ``submit`` does.
        """
        job_id = checked_job_id(job_id)
        job = self._checked(payload, job_id)

        def send() -> ForecastHandle:
            queue = choose_queue(job.device, job.allow_fallback, self._known_workers())
            self._enqueue(
                FORECAST_TASK, payload, job_id, queue, job.priority, shown_arguments({"job": payload})
            )
            return ForecastHandle(job_id, queue, self._outcome(job_id))

        return again(send, retry_for_s)

    def forecast_many(
        self,
        items: Iterable[Any],
        *,
        in_order: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        timeout_s: float | None = None,
        retry_for_s: float = RETRY_FOR_S,
        forget: bool = False,
        job_id_prefix: str | None = None,
        **options: Unpack[ForecastOptions],
    ) -> Generator[ForecastOutcome, None, None]:
        """Forecast thousands of items, each as a job of its own, and give each one's outcome.

        Items are taken from the iterable as there is room for them. At most ``max_in_flight`` are held at
        once, enqueued, or done and not yet given: so is memory bounded, here and in Redis. What befalls one
        item is in its outcome and ends nothing else. Leaving the loop early cancels what is under way, unless
        it has ids of the caller's.

        Args:
            items: candles as ``submit`` takes them, or pairs ``(key, candles)``; the key comes back. So
                several series of one job are a list, never a tuple of two.
            in_order: give outcomes in the items' order, or each as soon as it is there.
            timeout_s: of each item, from its submission; it is cancelled then, and TIMEOUT is its error.
            retry_for_s: for so long, an item is submitted again where the queue is full, which is asked again
                when it says, or where Redis is away.
            forget: delete each result from Redis once it was read.
            job_id_prefix: items have the ids ``<prefix>-<key>``, or their number where they have no key. What
                was broken off goes on under the same prefix: what was done already is not computed again, as
                long as results are kept, and what failed stays failed.
            options: the same for all items, as ``submit`` takes them.
        """
        many = Many(
            lambda job_id, candles: self.submit(candles, job_id=job_id, **options),
            self._endings(),
            max_in_flight=max_in_flight,
            in_order=in_order,
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
            forget=forget,
            job_id_prefix=job_id_prefix,
        )
        return many.run(items)

    def finetune(
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
    ) -> FinetuneHandle:
        """Enqueue one finetuning job.

        Args:
            config: a FinetuneConfig, a mapping like it, or the path of a YAML or JSON file.
            name: that the trained model is registered under, and forecasts name it by.
            data: paths of files or folders below the workers' data folder, one or a list; or the candles
                themselves, as ``submit`` takes them, or a mapping from instruments' names to them. Where left
                out, the config's ``data.path``, below the workers' data folder.
            device, allow_fallback: which pool, and whether the CPU will do where it has no GPU worker for
                finetuning. Where it is auto, the config's ``training_device`` is asked for.
            job_id, retry_for_s: as in ``submit``.

        Raises:
            JobError: as ``submit`` does; INVALID_CONFIG with the field, such as ``config.predictor.epochs``.
        """
        payload: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            **finetune_payload(config, data, device),
            "allow_fallback": allow_fallback,
            "priority": priority,
        }
        if deadline_s is not None:
            payload |= plain(deadline_s=deadline_s)
        return self.submit_finetune_job(payload, job_id=job_id, retry_for_s=retry_for_s)

    def submit_finetune_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> FinetuneHandle:
        """Enqueue one finetuning job in the contract's own form, such as docs/examples/finetune-job.json.

        Raises JobError as ``finetune`` does.
        """
        job_id = checked_job_id(job_id)
        limits = self._settings.limits(max_pred_len=NO_PRED_LEN_LIMIT)
        job = parse_finetune_job(payload, limits)
        _check_size(payload, limits, "data.instruments", "put the candles into the workers' data folder")
        shown = shown_arguments({"job": payload})

        def send() -> FinetuneHandle:
            queue = choose_finetune_queue(job.device, job.allow_fallback, self._known_workers())
            self._enqueue(FINETUNE_TASK, payload, job_id, queue, job.priority, shown)
            return FinetuneHandle(job_id, queue, self._outcome(job_id))

        return again(send, retry_for_s)

    def forecast_handle(self, job_id: str) -> ForecastHandle:
        """The handle of a forecast job that was enqueued before, or elsewhere; its ``queue`` is not known."""
        return ForecastHandle(job_id, None, self._outcome(job_id))

    def finetune_handle(self, job_id: str) -> FinetuneHandle:
        """The handle of a finetuning job that was enqueued elsewhere; its ``queue`` is not known."""
        return FinetuneHandle(job_id, None, self._outcome(job_id))

    def _checked(self, payload: dict[str, Any], job_id: str) -> ForecastJob:
        """What the worker would refuse is refused before it is sent; its model's limit only it knows."""
        limits = self._settings.limits(max_pred_len=NO_PRED_LEN_LIMIT)
        job = parse_job(payload, limits)
        _check_size(payload, limits, "series", "send fewer series")
        prepare(job, job_id, limits)
        return job


def again(send: Callable[[], Handle], retry_for_s: float) -> Handle:
    """What ``send`` gives, tried again as ``Retries`` says."""
    retries = Retries(retry_for_s)
    while True:
        try:
            return send()
        except JobError as error:
            time.sleep(retries.pause_s(error))


def _check_size(payload: Mapping[str, Any], limits: Limits, field: str, remedy: str) -> None:
    size = len(json.dumps(payload, separators=(",", ":")))
    if size > limits.max_message_bytes:
        raise JobError(
            ErrorCode.LIMIT_EXCEEDED,
            f"the job takes {size} bytes, the limit is {limits.max_message_bytes}; {remedy}",
            field,
            {"limit": limits.max_message_bytes, "actual": size},
        )
