"""One delivery of one job, in what tasks of both kinds share: its lease, and how it goes back."""

import os
import time
from typing import Any

from celery import Task
from celery.exceptions import Ignore
from redis.exceptions import ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import refuses_writes
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.result_backend import lease_token_of
from worker.broker.lease import Lease, LeaseKeeper
from worker.tasks.delivery import HELD_MARGIN_S, REQUEUE_DELAY_S, HandedBack


class Attempt:
    """One worker's attempt at a job.

    Args:
        process: The WorkerProcess or FinetuneProcess.
        leases: Keeps the job's lease.
    """

    def __init__(self, task: "Task[Any, Any]", process: Any, leases: LeaseKeeper) -> None:
        self._process = process
        self._leases = leases
        self._request: Any = task.request
        self._backend: Any = task.backend
        self._job_id = str(task.request.id)
        self._token = lease_token_of(task.request)

    @property
    def _queue(self) -> str:
        """The queue that the job came by: a CPU worker may stand in for the gpu pool."""
        delivery = self._request.delivery_info or {}
        return str(delivery.get("routing_key") or self._process.queue)

    def _begin(self, content: str = "") -> tuple[Receipt, Lease]:
        """Take the lease.

        Args:
            content: The job's fingerprint, if another job under its id is to be dropped.

        Raises:
            HandedBack: Another worker holds the lease, or Redis takes no writes.
            Ignore: The job has its outcome.
        """
        asked_at = time.monotonic()
        try:
            receipt: Receipt | None = self._backend.begin(
                self._job_id,
                self._request,
                lease_s=self._leases.lease_s,
                content=content,
                pid=os.getpid(),
                hostname=self._process.node,
            )
        except ResponseError as error:
            if refuses_writes(error):  # as good as away
                raise self._handed_back(str(error), REQUEUE_DELAY_S) from error
            raise
        if receipt is None:
            # Delivered again after it was done, or submitted twice: the one outcome stands.
            raise Ignore
        if receipt.held_s > 0:
            raise HandedBack("another worker has it", delay_s=receipt.held_s + HELD_MARGIN_S)
        return receipt, self._leases.take(self._job_id, self._token, asked_at)

    def _handed_back(self, reason: str, delay_s: float = 0.0, *, is_lost: bool = False) -> HandedBack:
        """Release the lease; ``is_lost`` counts the attempt as one that ended with its process."""
        self._leases.release(self._job_id, self._token, is_lost=is_lost)
        return HandedBack(reason, delay_s=delay_s)


def defect() -> JobError:
    """What an error without a code becomes: its traceback stays in the worker's log."""
    return JobError(ErrorCode.INTERNAL, "a defect in the worker; report it with the job's id")
