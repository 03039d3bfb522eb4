"""One finetuning job on this worker, from its checked fields to a registered model. No Celery, no torch."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import FinetuneJob, parse_finetune_job
from kronos_client.contract.finetune_results import (
    FinetunedModel,
    FinetuneProgress,
    FinetuneResult,
    FinetuneTimings,
)
from kronos_client.contract.instruments import prepare_instruments
from kronos_client.contract.names import CELERY_PRIORITIES
from kronos_client.redis.job_store import Receipt, fingerprint
from kronos_client.redis.routing import why_elsewhere
from kronos_model.devices.cores import intra_op_threads
from kronos_model.errors import CheckpointError, KronosError
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.environment import own_environment
from worker.training.child import (
    EXIT_STOPPED,
    Event,
    Stop,
    Training,
    TrainingEnd,
    training_command,
)
from worker.training.job_errors import (
    MAX_STARTS_AT_SAVE,
    failed,
    killed,
    killed_too_often,
    stopped,
    with_best,
)
from worker.training.job_folder import (
    CANDLES,
    DATA_LINK,
    INSTRUMENT_COLUMN,
    START_LINKS,
    JobFolder,
    JobNotes,
)
from worker.training.process import FinetuneProcess

log = logging.getLogger(__name__)

OF_A_GROUP: Final = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What tells a process that it is one of several; a job trains in one."""
SHOWN: Final = ("stage", "epoch", "num_epochs", "step", "num_steps", "loss")
START_RETRY_S: Final = 1.0


LOCK_WAIT_S: Final = 3600.0
"""For a process whose worker was held up for longer than its claim: it ends when that worker goes on."""


class Interrupted(Exception):
    """Training was stopped and saved for another worker to go on with."""


class FinetuneRun:
    """One job.

    Args:
        left_s: for how long no other worker may begin the job.

    Attributes:
        is_cancelled: set from outside.
        progress: what is known of how far it is; None before training tells.
    """

    def __init__(
        self, process: FinetuneProcess, job_id: str, payload: Any, receipt: Receipt, queue: str
    ) -> None:
        self._process = process
        self._job_id = job_id
        self._receipt = receipt
        self._queue = queue
        self._began = time.monotonic()
        self.is_cancelled = receipt.is_cancelled
        self.progress: dict[str, Any] | None = None
        self._device = process.device
        self._child_warning: str | None = None
        self._folder = JobFolder(process.model_folder, job_id)
        self._job: FinetuneJob = parse_finetune_job(payload, process.limits)
        self._fingerprint = fingerprint(payload)
        delivery = {"routing_key": queue, "priority": CELERY_PRIORITIES[self._job.priority]}
        process.metrics.observe_job_wait(delivery, payload, receipt)
        self._device_warning = why_elsewhere(
            self._job.device,
            process.device,
            process.device_warning,
            allow_fallback=self._job.allow_fallback,
            role="finetune",
        )
        self._starts: dict[str, str] = {}
        self._notes = JobNotes("", {}, 0.0)
        self._is_running_out: Callable[[], bool] = lambda: False
        self._is_start_counted = False
        self._is_resumed = False

    def run(self, is_safe: Callable[[], bool], is_running_out: Callable[[], bool]) -> dict[str, Any]:
        """Train and register; the result as JSON.

        Args:
            is_safe: whether there is time to go on before another worker may begin the job.
            is_running_out: whether this worker's must be over at once.

        Raises:
            JobError: the job's own.
            Interrupted: it is for another worker, or this one later, to go on.
        """
        self._is_running_out = is_running_out
        notes = self._folder.notes(self._fingerprint)
        if notes is not None:
            self._notes = notes
            if (result := self._earlier_result()) is not None:
                return result
        if (stop := self._own_stop()) is not None:
            raise self._stopped(stop)
        self._place(notes)
        training = Training(
            training_command("config.json", "run", self._process.device),
            env=self._environment(),
            cwd=self._folder.root,
            grace_s=self._process.settings.finetune_grace_s,
            saved_at=self._folder.saved_at_ns,
            lock_wait_s=LOCK_WAIT_S,
            on_start=self._count_start,
            on_end=self._process_ended,
        )

        def should_stop() -> Stop | None:
            is_draining = self._process.is_draining.is_set()
            stop = (self._own_stop() or (Stop.DRAINED if is_draining else None)) if is_safe() else Stop.LEASE
            if stop is not None:
                self._uncount_start()
            return stop

        try:
            end = training.run(self._hear, should_stop, is_running_out)
        except LocalStackError as error:
            self._uncount_start()
            self._process.is_draining.wait(START_RETRY_S)  # else it comes straight back
            raise Interrupted(str(error)) from error
        if not is_safe():
            raise Interrupted("the job's claim could not be renewed; training goes on from its last save")
        return self._finish(end)

    def _own_stop(self) -> Stop | None:
        """What ends the job for good."""
        elapsed_s = time.monotonic() - self._began
        waited_s = self._receipt.waited_s(self._job.submitted_at) + elapsed_s
        limit_s = self._process.settings.finetune_time_limit_s
        if self.is_cancelled:
            return Stop.CANCELLED
        if waited_s >= (self._job.deadline_s or math.inf):
            return Stop.DEADLINE
        if self._receipt.worked_s + elapsed_s >= (limit_s or math.inf):
            return Stop.TIME_LIMIT
        return None

    def _earlier_result(self) -> dict[str, Any] | None:
        """Of a worker that ended before the job's outcome was stored."""
        content = self._folder.result()
        if content is None:
            return None
        try:
            model = self._process.registry.resolve(content["model"]["id"])
        except CheckpointError as error:  # a damaged one is nobody's
            log.warning("job %s: its model cannot be used, it is trained again: %s", self._job_id, error)
            return None
        ours = self._job_id, self._fingerprint
        if model is None or (model.metadata.job_id, model.metadata.job_fingerprint) != ours:
            return None
        self._folder.keep_result()
        return content

    def _place(self, notes: JobNotes | None) -> None:
        """Write what the training process reads. A config is the same whichever worker writes it."""
        job, folder = self._job, self._folder
        for path in _paths(job):
            self._process.data_folder.check(path)
        is_inline = job.data.instruments is not None
        config = job.finetune_config(
            CANDLES if is_inline else tuple(f"{DATA_LINK}/{path}" for path in _paths(job))
        )
        if is_inline:
            data = config.data.model_copy(update={"instrument_column": INSTRUMENT_COLUMN})
            config = config.model_copy(update={"data": data})
        pinned = {} if notes is None else notes.start
        config = config.model_copy(update={"start": config.start.model_copy(update=pinned)})
        config, registered = self._process.start_models.check(config)
        references: dict[str, str] = {part: model.reference for part, model in registered.items()}
        waited_s = max(0.0, self._receipt.waited_s(job.submitted_at))
        self._notes = notes or JobNotes(self._fingerprint, references, waited_s)
        folder.write_notes(self._notes)
        for part, model in registered.items():
            link = f"{START_LINKS}/{model.reference}"
            self._starts[link] = model.reference
            folder.link(link, model.folder)
            config = config.model_copy(update={"start": config.start.model_copy(update={part: link})})
            if part == "model" and config.max_context is None:
                config = config.model_copy(update={"max_context": model.metadata.max_context})
        if job.data.instruments is not None:
            folder.write_candles(prepare_instruments(job.data.instruments))
        elif self._process.data_folder.root is not None:
            folder.link(DATA_LINK, self._process.data_folder.root)
        folder.write_config(config)

    def _environment(self) -> dict[str, str]:
        threads = intra_op_threads(self._process.settings.threads, 1)
        given = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        environment = own_environment(given)
        return {name: value for name, value in environment.items() if name not in OF_A_GROUP}

    def _count_start(self) -> None:
        """Before it: what takes the worker down with it leaves no other trace."""
        saved_at_ns = self._folder.saved_at_ns()
        num_starts = self._notes.num_starts_at_save if saved_at_ns == self._notes.saved_at_ns else 0
        if num_starts >= MAX_STARTS_AT_SAVE:
            raise self._with_best(killed_too_often())
        self._note(saved_at_ns=saved_at_ns, num_starts_at_save=num_starts + 1)
        self._is_start_counted = True

    def _uncount_start(self) -> None:
        """It is ended from here, or did not come to training."""
        if self._is_start_counted:
            self._is_start_counted = False
            self._note(num_starts_at_save=self._notes.num_starts_at_save - 1)

    def _process_ended(self, end: TrainingEnd) -> None:
        if end.event is not None or end.exit_status == EXIT_STOPPED:
            self._uncount_start()
        self._is_start_counted = False  # what stops the job from now on did not end this one

    def _note(self, **changes: Any) -> None:
        self._notes = replace(self._notes, **changes)
        if not self._is_running_out():  # else they may be another worker's soon
            self._folder.write_notes(self._notes)

    def _hear(self, event: Event) -> None:
        if event["event"] == "started":
            self._is_resumed = bool(event["resumed"])
            self._note(num_starts=self._notes.num_starts + 1)
            self._device, self._child_warning = str(event["device"]), event["device_warning"]
            self._show({})
        elif event["event"] == "progress":
            told = {name: event.get(name) for name in FinetuneProgress.model_fields}
            self.progress = told | {"device": self._device}
            self._show(told)

    def _show(self, told: Mapping[str, Any]) -> None:
        """In the worker's announcement."""
        shown = {name: told.get(name) for name in SHOWN}
        self._process.training = {"job_id": self._job_id, "name": self._job.name} | shown

    def _finish(self, end: TrainingEnd) -> dict[str, Any]:
        if end.event is not None and end.event["event"] == "done":
            return self._registered(end.event)
        if end.event is not None:
            raise self._with_best(failed(end.event, self._job))
        if end.stop in (Stop.DRAINED, Stop.LEASE):
            raise Interrupted(f"training was stopped ({end.stop}) and goes on from its last save")
        if end.stop is not None:
            raise self._stopped(end.stop)
        raise self._with_best(killed(end.exit_status))

    def _stopped(self, stop: Stop) -> JobError:
        return self._with_best(
            stopped(stop, self._job.deadline_s, self._process.settings.finetune_time_limit_s)
        )

    def _with_best(self, error: JobError) -> JobError:
        """With the best checkpoint that the job leaves; what only training needs is removed."""
        try:
            self._folder.keep_best()
            if self._notes.num_starts_at_save:  # the job sent again begins anew
                self._note(num_starts_at_save=0)
        except OSError as failure:  # the job's own error says more
            log.warning("job %s: its folder cannot be tidied: %s", self._job_id, failure)
        return with_best(error, self._folder.best_so_far())

    def _registered(self, done: Event) -> dict[str, Any]:
        metadata = dict(done["metadata"])
        # A registered model was read by its link, and files below the link to the data folder.
        parent = self._without_links(metadata["parent"])
        config = dict(metadata["config"])
        config["start"] = self._without_links(config["start"])
        config["data"] = config["data"] | {"path": self._job.data.path}
        try:
            model = self._process.registry.register(
                self._folder.root / done["checkpoint"],
                self._job.name,
                job_id=self._job_id,
                fingerprint=self._fingerprint,
                metadata=metadata | {"parent": parent, "config": config},
            )
        except KronosError as error:
            raise self._with_best(JobError.from_kronos(error)) from None
        evaluation = metadata.get("evaluation") or {}
        elapsed_s = time.monotonic() - self._began
        waited_s = max(0.0, self._receipt.waited_s(self._job.submitted_at))
        warnings = [text for text in (self._device_warning or self._child_warning,) if text is not None]
        result = FinetuneResult(
            model=FinetunedModel(name=model.name, version=model.version, id=model.reference),
            parent=parent,
            metrics=metadata["metrics"],
            evaluation=evaluation,
            verdict=tuple(evaluation.get("verdict", ())),
            data=self._folder.data_report(),
            device=self._device,
            device_warning=self._device_warning or self._child_warning,
            queue=self._queue,
            worker=self._process.node,
            warnings=tuple(warnings),
            timings_ms=FinetuneTimings(
                queued=round(self._notes.queued_s * 1000, 3),
                training=round((self._receipt.worked_s + elapsed_s) * 1000, 3),
                total=round((waited_s + elapsed_s) * 1000, 3),
            ),
            num_attempts=self._notes.num_starts,
            resumed=self._is_resumed,
        ).model_dump(mode="json")
        self._folder.write_result(result)
        self._folder.keep_result()
        return result

    def _without_links(self, names: Mapping[str, Any]) -> dict[str, Any]:
        return {
            part: self._starts.get(name, name) if isinstance(name, str) else name
            for part, name in names.items()
        }


def _paths(job: FinetuneJob) -> tuple[str, ...]:
    """Below the data folder; none where the job carries its candles."""
    path = job.data.path
    return () if path is None else (path,) if isinstance(path, str) else path
