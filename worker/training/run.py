"""One finetuning job on this worker, from its fields to a registered model. No Celery, no torch."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kronos_client.contract import finetune_results as results
from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import FinetuneJob, parse_finetune_job
from kronos_client.contract.names import CELERY_PRIORITIES
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.redis.job_store import Receipt, fingerprint
from kronos_client.redis.routing import why_elsewhere
from kronos_model.devices.cores import intra_op_threads
from kronos_model.errors import CheckpointError, KronosError
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.environment import own_environment
from kronos_model.processes.json_child import Event
from worker.training.child import EXIT_STOPPED, Stop, Training, TrainingEnd, training_command
from worker.training.finetune_process import FinetuneProcess
from worker.training.job_errors import failed, killed, killed_too_often, stopped, with_best
from worker.training.job_files import JobFiles
from worker.training.job_folder import JobFolder, JobNotes
from worker.training.job_notes import NoteBook

log = logging.getLogger(__name__)

OF_A_GROUP: Final = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of distributed training. They are removed: a job trains in one process."""
SHOWN: Final = ("stage", "epoch", "num_epochs", "step", "num_steps", "loss")
START_RETRY_S: Final = 1.0
LOCK_WAIT_S: Final = 3600.0
"""Wait for the process of a worker that froze for longer than its claim; it ends when that worker resumes."""


class Interrupted(Exception):
    """Training was stopped and saved, so that another worker can continue it."""


class FinetuneRun:
    """One job. The task sets ``is_cancelled``, and reads ``progress``, training's last report."""

    def __init__(
        self,
        process: FinetuneProcess,
        job_id: str,
        payload: Any,
        receipt: Receipt,
        queue: str,
        time_limit_s: float = math.inf,
    ) -> None:
        self._process = process
        self._job_id = job_id
        self._receipt = receipt
        self._queue = queue
        self._time_limit_s = min(time_limit_s, process.settings.finetune_time_limit_s or math.inf)
        self._began = time.monotonic()
        self.is_cancelled = receipt.is_cancelled
        self.progress: dict[str, Any] | None = None
        self._device = process.device
        self._child_warning: str | None = None
        self._data_warnings: list[str] = []
        self._folder = JobFolder(process.model_folder, job_id)
        self._job: FinetuneJob = parse_finetune_job(payload, process.limits)
        self._waited_s = receipt.waited_s(self._job.submitted_at)
        self._fingerprint = fingerprint(payload)
        delivery = {"routing_key": queue, "priority": CELERY_PRIORITIES[self._job.priority]}
        process.metrics.observe_job_wait(delivery, self._job.submitted_at, receipt)
        given = (self._job.device, process.device, process.device_warning)
        fallback = self._job.allow_fallback
        self._device_warning = why_elsewhere(*given, allow_fallback=fallback, role="finetune")
        self._files = JobFiles(self._job, self._folder, process.data_folder, process.start_models)
        self._is_resumed = False

    def run(self, is_safe: Callable[[], bool], is_running_out: Callable[[], bool]) -> dict[str, Any]:
        """Train and register the model. Returns the result as JSON.

        Args:
            is_safe: Whether there is time to continue before another worker may begin the job.
            is_running_out: Whether this worker must stop at once.

        Raises:
            JobError: The job ends with this error.
            Interrupted: Another worker, or this one later, is to continue the job.
        """
        earlier = self._folder.notes(self._fingerprint)
        notes = earlier or JobNotes(self._fingerprint, {}, queued_s=max(0.0, self._waited_s))
        self._book = NoteBook(self._folder, notes, is_running_out)
        if earlier is not None and (result := self._earlier_result()) is not None:
            return result
        if (stop := self._own_stop()) is not None:
            raise self._stopped(stop)
        self._book.notes = self._files.place(notes, is_first=earlier is None)

        def should_stop() -> Stop | None:
            is_draining = self._process.is_draining.is_set()
            stop = (self._own_stop() or (Stop.DRAINED if is_draining else None)) if is_safe() else Stop.CLAIM
            if stop is not None:
                self._book.uncount_start()
            return stop

        training = Training(
            training_command("config.json", "run", self._process.device),
            env=self._environment(),
            cwd=self._folder.root,
            grace_s=self._process.settings.finetune_grace_s,
            saved_at=self._folder.saved_at_ns,
            lock_wait_s=LOCK_WAIT_S,
            on_event=self._take_event,
            should_stop=should_stop,
            must_end=is_running_out,
            on_start=self._count_start,
            on_end=self._process_ended,
        )
        try:
            end = training.run()
        except LocalStackError as error:
            self._book.uncount_start()
            self._process.is_draining.wait(START_RETRY_S)  # else the job would come back at once
            raise Interrupted(str(error)) from error
        if not is_safe():
            raise Interrupted("the job's claim could not be renewed; training continues from its last save")
        return self._finish(end)

    def _own_stop(self) -> Stop | None:
        """Why the job must end for good, if it must."""
        elapsed_s = time.monotonic() - self._began
        if self.is_cancelled:
            return Stop.CANCELLED
        if self._waited_s + elapsed_s >= (self._job.deadline_s or math.inf):
            return Stop.DEADLINE
        if self._receipt.worked_s + elapsed_s >= self._time_limit_s:
            return Stop.TIME_LIMIT
        return None

    def _earlier_result(self) -> dict[str, Any] | None:
        """The result of a worker that died before it stored the job's outcome."""
        if (content := self._folder.read("result.json")) is None:
            return None
        try:
            model = self._process.registry.resolve(content["model"]["id"])
        except CheckpointError as error:  # a damaged model does not count
            log.warning("job %s: its registered model is damaged, training it again: %s", self._job_id, error)
            return None
        ours = self._job_id, self._fingerprint
        if model is None or (model.metadata.job_id, model.metadata.job_fingerprint) != ours:
            return None
        self._folder.keep_result()
        return content

    def _environment(self) -> dict[str, str]:
        threads = intra_op_threads(self._process.settings.threads, 1)
        environment = own_environment({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        return {name: value for name, value in environment.items() if name not in OF_A_GROUP}

    def _count_start(self) -> None:
        if not self._book.count_start():
            raise self._with_best(killed_too_often())

    def _process_ended(self, end: TrainingEnd) -> None:
        if end.event is not None or end.exit_status == EXIT_STOPPED:
            self._book.uncount_start()
        self._book.keep_start()

    def _take_event(self, event: Event) -> None:
        if event["event"] == "started":
            self._is_resumed = bool(event["resumed"])
            self._book.update(num_starts=self._book.notes.num_starts + 1)
            self._device, self._child_warning = str(event["device"]), event["device_warning"]
            self._show({})
        elif event["event"] == "data":
            self._data_warnings = event.get("warnings", [])
        elif event["event"] == "progress":
            progress = {name: event.get(name) for name in results.FinetuneProgress.model_fields}
            self.progress = progress | {"device": self._device, "warnings": self._data_warnings or None}
            self._show(progress)

    def _show(self, progress: Mapping[str, Any]) -> None:
        shown = {name: progress.get(name) for name in SHOWN}
        self._process.training = TrainingStatus(job_id=self._job_id, name=self._job.name, **shown)

    def _finish(self, end: TrainingEnd) -> dict[str, Any]:
        if end.event is not None and end.event["event"] == "done":
            return self._registered(end.event)
        if end.event is not None:
            raise self._with_best(failed(end.event, self._job))
        if end.stop in (Stop.DRAINED, Stop.CLAIM):
            raise Interrupted(f"training was stopped and continues from its last save: {end.stop}")
        if end.stop is not None:
            raise self._stopped(end.stop)
        raise self._with_best(killed(end.exit_status))

    def _stopped(self, stop: Stop) -> JobError:
        return self._with_best(stopped(stop, self._job.deadline_s, self._time_limit_s))

    def _with_best(self, error: JobError) -> JobError:
        """Remove what only training needs, and add the best checkpoint to the error."""
        try:
            self._folder.keep_best()
            if self._book.notes.num_starts_at_save:  # if the job is sent again, it starts from zero
                self._book.update(num_starts_at_save=0)
        except OSError as failure:  # the job's own error matters more
            log.warning("job %s: its folder could not be cleaned up: %s", self._job_id, failure)
        return with_best(error, self._folder.best_so_far())

    def _registered(self, done: Event) -> dict[str, Any]:
        metadata = self._files.without_links(done["metadata"], self._book.notes)
        try:
            ours: dict[str, Any] = {
                "job_id": self._job_id,
                "fingerprint": self._fingerprint,
                "metadata": metadata,
            }
            made = self._folder.root / done["checkpoint"]
            model = self._process.registry.register(made, self._job.name, **ours)
        except KronosError as error:
            raise self._with_best(JobError.from_kronos(error)) from None
        evaluation = metadata.get("evaluation") or {}
        elapsed_s = time.monotonic() - self._began
        warning = self._device_warning or self._child_warning
        result = results.FinetuneResult(
            model=results.FinetunedModel(name=model.name, version=model.version, id=model.reference),
            parent=metadata["parent"],
            metrics=metadata["metrics"],
            evaluation=evaluation,
            verdict=tuple(evaluation.get("verdict", ())),
            data=self._folder.read("run/data.json") or {},
            device=self._device,
            device_warning=warning,
            queue=self._queue,
            worker=self._process.node,
            warnings=tuple(self._data_warnings if warning is None else [warning, *self._data_warnings]),
            timings_ms=results.FinetuneTimings(
                queued=round(self._book.notes.queued_s * 1000, 3),
                training=round((self._receipt.worked_s + elapsed_s) * 1000, 3),
                total=round((max(0.0, self._waited_s) + elapsed_s) * 1000, 3),
            ),
            num_attempts=self._book.notes.num_starts,
            resumed=self._is_resumed,
        ).model_dump(mode="json")
        self._folder.write("result.json", result)
        self._folder.keep_result()
        return result
