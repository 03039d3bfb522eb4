"""One finetuning job on this worker, from its fields to a registered model. No Celery, no torch."""

import logging
import math
import os
import time
from contextlib import suppress
from itertools import chain
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import (
    FinetunedModel,
    FinetuneJob,
    FinetuneProgress,
    FinetuneResult,
    parse_finetune_job,
)
from kronos_client.contract.jobs import check_most
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.redis.routing import why_elsewhere
from kronos_model.checkpoints.names import NO_BACKTEST, caution_about, short_name_taken
from kronos_model.errors import CheckpointError
from kronos_model.finetuning.launching import training_command, training_environment
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.json_child import ChildEnded, Event, JsonChild
from kronos_model.text import escaped, without_paths
from worker.process import RetryLater
from worker.training.job_folder import CONFIG_FILE, RESULT_FILE
from worker.training.job_inputs import without_links, write_inputs
from worker.training.long_run import CLAIM_LOST, MAX_STARTS_AT_SAVE, LongRun

log = logging.getLogger(__name__)

STATUS_FIELDS: Final = ("stage", "epoch", "num_epochs", "step", "num_steps", "loss")
NICENESS: Final = 10
"""Lower priority than forecasts on the same machine."""
POLL_S: Final = 0.2
LOCK_RETRY_S: Final = 1.0
LOCK_WAIT_S: Final = 3600.0
"""Wait for the process of a worker that froze for longer than its claim; it ends when that worker resumes."""
EXIT_STOPPED: Final = 75  # as in kronos_model/finetuning/__main__.py
KILLED: Final = -9
MAX_MESSAGE_CHARS: Final = 500
"""Length of the training process's message, which may quote the job's config and candles."""
LACKS_MEMORY: Final = (
    "most likely for lack of memory: lower batch_size, lookback or num_workers, or give the worker more "
    "memory"
)


class FinetuneRun(LongRun):
    """One finetuning job."""

    parse = staticmethod(parse_finetune_job)
    continues = "training was stopped and continues from its last save"
    killed_too_often = (
        f"training was started {MAX_STARTS_AT_SAVE} times and killed each time before its next save, "
        f"perhaps together with its worker, {LACKS_MEMORY}",
        "config",
    )
    _job: FinetuneJob
    _child_warning: str | None = None
    _data_warnings: tuple[str, ...] = ()

    def _earlier_result(self) -> dict[str, object] | None:
        if (content := self._folder.read(RESULT_FILE)) is None:
            return None
        try:
            model = self.process.registry.resolve(content["model"]["id"])
        except CheckpointError as error:  # a damaged model does not count
            log.warning("job %s: its registered model is damaged, training it again: %s", self.job_id, error)
            return None
        ours = self.job_id, self.fingerprint
        if model is None or (model.metadata.job_id, model.metadata.job_fingerprint) != ours:
            return None
        self._folder.keep_result()
        return content

    def _prepare(self) -> None:
        job, process = self._job, self.process
        check_most(job.processes, process.max_processes, "processes", process.processes_limit)
        given = (job.device, process.device, process.device_warning)
        self._device_warning = why_elsewhere(*given, allow_fallback=job.allow_fallback, role="finetune")
        self._device = process.device
        self._notes = write_inputs(job, self._notes, self._folder, process)

    def _work(self) -> dict[str, object]:
        """Train, by one process after another while each saves before it is killed. Register the model."""
        killed_at_ns: int | None = None
        locked_until = time.monotonic() + LOCK_WAIT_S
        while True:
            if (stop := self._reason_to_stop()) is not None:
                raise stop
            self._count_start()
            event, exit_status = self._train()
            if event is None:
                if (saved_at_ns := self._folder.saved_at_ns()) == killed_at_ns:
                    raise _killed_error(exit_status)
                killed_at_ns = saved_at_ns
                log.warning("the training process ended with status %d, starting it again", exit_status)
            elif event["event"] == "done":
                return self._register(event)
            elif event["code"] == ErrorCode.RUN_LOCKED and time.monotonic() <= locked_until:
                log.warning("another training process still uses the run's folder, trying again")
                time.sleep(LOCK_RETRY_S)
            else:
                raise training_error(event, self._job)

    def _train(self) -> tuple[Event | None, int]:
        """Run one training process. It ends at the latest with this process (see ``JsonChild``).

        If the job must stop, the process gets the time to save, and does not count as killed.

        Returns:
            Its event ``done`` or ``error`` (see ``kronos_model/finetuning/reporting.py``), None if it ended
            without one; and its exit status, -N if signal N ended it.
        """
        settings = self.process.settings
        try:
            child = JsonChild(
                "training",
                self._command(),
                env=training_environment(settings.threads, self._job.processes),
                cwd=self._folder.root,
                error_sink=lambda name, line: log.info("%s: %s", name, line),
                grace_s=settings.finetune_grace_s,
            )
        except LocalStackError as error:
            raise self._handed_back(error) from error
        stop: JobError | RetryLater | None = None
        kill_at = math.inf
        last: Event | None = None
        try:
            with suppress(OSError):  # the process has already ended
                os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
            while True:
                if (event := child.next_event(POLL_S)) is not None:
                    last = event
                    self._on_event(event)
                if stop is None and (stop := self._reason_to_stop()) is not None:
                    log.info("stopping the training process: %s", stop)
                    self._uncount_start()  # now: this process may be killed before it has ended
                    child.terminate()
                    kill_at = time.monotonic() + settings.finetune_grace_s
                if self._claim.is_running_out or time.monotonic() > kill_at:
                    child.kill()
        except ChildEnded as ended:
            exit_status = ended.exit_status
        finally:
            child.stop()
        if last is not None and last["event"] not in ("done", "error"):
            last = None
        if stop is None and (last is not None or exit_status == EXIT_STOPPED):
            self._uncount_start()
        if not self._claim.is_safe:
            raise self._interrupted(CLAIM_LOST)
        if stop is not None and last is None:
            raise stop
        return last, exit_status

    def _command(self) -> list[str]:
        processes, device = self._job.processes, self.process.device
        if processes > 1:
            device = device.partition(":")[0]  # each process has its own GPU
        arguments = ["--config", CONFIG_FILE, "--output", self._folder.run.name, "--device", device]
        arguments += ["--progress", "json", "--supervised", "--engine", self.process.settings.engine]
        return training_command(arguments, processes=processes)

    def _on_event(self, event: Event) -> None:
        if event["event"] == "started":
            self._is_resumed = bool(event["resumed"])
            self._note(num_starts=self._notes.num_starts + 1)
            self._device, self._child_warning = str(event["device"]), event["device_warning"]
            self._announce({})
        elif event["event"] == "data":
            references = dict.fromkeys(self._notes.start.values())
            names = (short_name_taken(each.partition("@")[0], each) for each in references)
            self._data_warnings = (*event.get("warnings", ()), *chain.from_iterable(names))
        elif event["event"] == "progress":
            progress = {name: event.get(name) for name in FinetuneProgress.model_fields}
            self.progress = progress | {"device": self._device, "warnings": self._data_warnings or None}
            self._announce(event)

    def _announce(self, event: Event) -> None:
        facts = {name: event.get(name) for name in STATUS_FIELDS}
        self.process.training = TrainingStatus(job_id=self.job_id, name=self._job.name, **facts)

    def _register(self, done: Event) -> dict[str, object]:
        metadata = without_links(done["metadata"], self._job, self._notes)
        model = self.process.registry.register(
            self._folder.root / done["checkpoint"],
            self._job.name,
            job_id=self.job_id,
            fingerprint=self.fingerprint,
            metadata=metadata,
        )
        evaluation = metadata.get("evaluation") or {}
        verdict = [*evaluation.get("verdict", ())]
        advice = verdict.index(step) if (step := evaluation.get("next_step")) in verdict else len(verdict)
        verdict.insert(advice, caution_about(model.reference, model.metadata.model_dump()) or NO_BACKTEST)
        warning = self._device_warning or self._child_warning
        result = self._completed(
            FinetuneResult,
            model=FinetunedModel(name=model.name, version=model.version, id=model.reference),
            parent=metadata["parent"],
            metrics=metadata["metrics"],
            evaluation=evaluation,
            verdict=tuple(verdict),
            data=self._folder.read("run/data.json") or {},
            device=self._device,
            device_warning=warning,
            warnings=self._data_warnings if warning is None else (warning, *self._data_warnings),
        )
        self._folder.keep_result()
        return result

    def _failed(self, error: JobError) -> JobError:
        """Remove what only training needs, and add the best checkpoint to the error."""
        try:
            self._folder.keep_best()
            if self._notes.num_starts_at_save:  # if the job is sent again, it starts from zero
                self._note(num_starts_at_save=0)
        except OSError as failure:  # the job's own error matters more
            log.warning("job %s: its folder could not be cleaned up: %s", self.job_id, failure)
        best, message = self._folder.best_so_far(), error.message
        if best is not None:
            message += f"; the best checkpoint so far is kept as {best} in the model folder"
        return JobError(error.code, message, error.field, error.details | {"best_checkpoint": best})


def training_error(event: Event, job: FinetuneJob) -> JobError:
    """The training process's own error, with the job's name for its field."""
    field = event.get("field")
    if field == "data.path" and job.data.instruments is not None:
        field = "data.instruments"
    elif field is not None and field != "data.path":
        field = f"config.{field}"
    message = escaped(without_paths(event["message"]), MAX_MESSAGE_CHARS)
    return JobError(event["code"], message, field, without_paths(event.get("details")))


def _killed_error(exit_status: int) -> JobError:
    """The process ended twice at the same save, without an error of its own."""
    if exit_status == KILLED:
        text = f"the training process was killed twice in a row, {LACKS_MEMORY}"
        return JobError(ErrorCode.OUT_OF_MEMORY, text, "config")
    text = f"the training process ended twice in a row with status {exit_status}; see the worker's log"
    return JobError(ErrorCode.INTERNAL, text)
