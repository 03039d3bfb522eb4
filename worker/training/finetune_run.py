"""One finetuning job on this worker, from its fields to a registered model. No Celery, no torch."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import (
    FinetunedModel,
    FinetuneJob,
    FinetuneProgress,
    FinetuneResult,
    FinetuneTimings,
    parse_finetune_job,
)
from kronos_client.contract.limits import check_most
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.redis.routing import why_elsewhere
from kronos_model.errors import CheckpointError, KronosError
from kronos_model.finetuning.launching import training_command, training_environment
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.json_child import Event
from worker.training.child import EXIT_STOPPED, Stop, Training, TrainingEnd
from worker.training.finetune_process import FinetuneProcess
from worker.training.job_errors import failed, killed, killed_too_often, with_best
from worker.training.job_files import JobFiles
from worker.training.long_run import Interrupted, LongRun

log = logging.getLogger(__name__)

FILES: Final = ("--config", "config.json", "--output", "run")
"""In the job's folder."""
SHOWN: Final = ("stage", "epoch", "num_epochs", "step", "num_steps", "loss")
START_RETRY_S: Final = 1.0
LOCK_WAIT_S: Final = 3600.0
"""Wait for the process of a worker that froze for longer than its claim; it ends when that worker resumes."""


class FinetuneRun(LongRun):
    """One finetuning job."""

    parse = staticmethod(parse_finetune_job)
    _job: FinetuneJob

    def __init__(self, process: FinetuneProcess, *args: Any, **kwargs: Any) -> None:
        super().__init__(process, *args, **kwargs)
        check_most(self._job.processes, process.max_processes, "processes", process.processes_limit)
        self._device = process.device
        self._child_warning: str | None = None
        self._data_warnings: list[str] = []
        given = (self._job.device, process.device, process.device_warning)
        fallback = self._job.allow_fallback
        self._device_warning = why_elsewhere(*given, allow_fallback=fallback, role="finetune")
        self._files = JobFiles(self._job, self._folder, process.data_folder, process.start_models)
        self._is_resumed = False

    def _work(self, *, is_first: bool) -> dict[str, Any]:
        """Train and register the model."""
        self._attempts.notes = self._files.place(self._attempts.notes, is_first=is_first)
        device = self._process.device
        if self._job.processes > 1:
            device = device.partition(":")[0]  # each process has its own GPU
        arguments = [*FILES, "--device", device, "--progress", "json", "--supervised"]
        training = Training(
            training_command(arguments, processes=self._job.processes),
            env=training_environment(self._process.settings.threads, self._job.processes),
            cwd=self._folder.root,
            grace_s=self._process.settings.finetune_grace_s,
            saved_at=self._folder.saved_at_ns,
            lock_wait_s=LOCK_WAIT_S,
            on_event=self._take_event,
            should_stop=self._should_stop,
            must_end=self._is_running_out,
            on_start=self._count_start,
            on_end=self._process_ended,
        )
        try:
            end = training.run()
        except LocalStackError as error:
            self._attempts.uncount_start()
            self._process.is_draining.wait(START_RETRY_S)  # else the job would come back at once
            raise Interrupted(str(error)) from error
        if not self._is_safe():
            raise Interrupted("the job's claim could not be renewed; training continues from its last save")
        return self._finish(end)

    def _earlier_result(self) -> dict[str, Any] | None:
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

    def _count_start(self) -> None:
        if not self._attempts.count_start():
            raise self._failed(killed_too_often())

    def _process_ended(self, end: TrainingEnd) -> None:
        if end.event is not None or end.exit_status == EXIT_STOPPED:
            self._attempts.uncount_start()
        self._attempts.keep_start()

    def _take_event(self, event: Event) -> None:
        if event["event"] == "started":
            self._is_resumed = bool(event["resumed"])
            self._attempts.update(num_starts=self._attempts.notes.num_starts + 1)
            self._device, self._child_warning = str(event["device"]), event["device_warning"]
            self._show({})
        elif event["event"] == "data":
            self._data_warnings = event.get("warnings", [])
        elif event["event"] == "progress":
            progress = {name: event.get(name) for name in FinetuneProgress.model_fields}
            self.progress = progress | {"device": self._device, "warnings": self._data_warnings or None}
            self._show(progress)

    def _show(self, progress: Mapping[str, Any]) -> None:
        shown = {name: progress.get(name) for name in SHOWN}
        self._process.training = TrainingStatus(job_id=self._job_id, name=self._job.name, **shown)

    def _finish(self, end: TrainingEnd) -> dict[str, Any]:
        if end.event is not None and end.event["event"] == "done":
            return self._registered(end.event)
        if end.event is not None:
            raise self._failed(failed(end.event, self._job))
        if end.stop in (Stop.DRAINED, Stop.CLAIM):
            raise Interrupted(f"training was stopped and continues from its last save: {end.stop}")
        if end.stop is not None:
            raise self._stopped(end.stop)
        raise self._failed(killed(end.exit_status))

    def _failed(self, error: JobError) -> JobError:
        """Remove what only training needs, and add the best checkpoint to the error."""
        try:
            self._folder.keep_best()
            if self._attempts.notes.num_starts_at_save:  # if the job is sent again, it starts from zero
                self._attempts.update(num_starts_at_save=0)
        except OSError as failure:  # the job's own error matters more
            log.warning("job %s: its folder could not be cleaned up: %s", self._job_id, failure)
        return with_best(error, self._folder.best_so_far())

    def _registered(self, done: Event) -> dict[str, Any]:
        metadata = self._files.without_links(done["metadata"], self._attempts.notes)
        try:
            ours: dict[str, Any] = {
                "job_id": self._job_id,
                "fingerprint": self._fingerprint,
                "metadata": metadata,
            }
            made = self._folder.root / done["checkpoint"]
            model = self._process.registry.register(made, self._job.name, **ours)
        except KronosError as error:
            raise self._failed(JobError.from_kronos(error)) from None
        evaluation = metadata.get("evaluation") or {}
        warning = self._device_warning or self._child_warning
        result = FinetuneResult(
            model=FinetunedModel(name=model.name, version=model.version, id=model.reference),
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
            timings_ms=FinetuneTimings(
                queued=self._queued_ms,
                training=round((self._receipt.worked_s + self._elapsed_s) * 1000, 3),
                total=self._total_ms,
            ),
            num_attempts=self._attempts.notes.num_starts,
            resumed=self._is_resumed,
        ).model_dump(mode="json")
        self._folder.write("result.json", result)
        self._folder.keep_result()
        return result
