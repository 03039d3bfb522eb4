"""The notes about a job's attempts, written while this worker has the job."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from worker.training.job_folder import JobFolder, JobNotes

MAX_STARTS_AT_SAVE: Final = 5
"""Starts of training at one save. They are the only trace of a process that died with its worker."""


class AttemptLog:
    """A job's notes. Each change is written at once.

    Args:
        is_running_out: Whether another worker may soon have the job, so that this one must not write.
    """

    def __init__(self, folder: JobFolder, notes: JobNotes, is_running_out: Callable[[], bool]) -> None:
        self.notes = notes
        self._folder = folder
        self._is_running_out = is_running_out
        self._is_start_counted = False

    def update(self, **changes: Any) -> None:
        self.notes = replace(self.notes, **changes)
        if not self._is_running_out():
            self._folder.write_notes(self.notes)

    def count_start(self) -> bool:
        """Count the next start of training. Returns False if there were too many at this save."""
        saved_at_ns = self._folder.saved_at_ns()
        num_starts = self.notes.num_starts_at_save if saved_at_ns == self.notes.saved_at_ns else 0
        if num_starts >= MAX_STARTS_AT_SAVE:
            return False
        self.update(saved_at_ns=saved_at_ns, num_starts_at_save=num_starts + 1)
        self._is_start_counted = True
        return True

    def uncount_start(self) -> None:
        """Take back the last count: this worker ended the process, or no process was started."""
        if self._is_start_counted:
            self._is_start_counted = False
            self.update(num_starts_at_save=self.notes.num_starts_at_save - 1)

    def keep_start(self) -> None:
        """Keep the last count for good: the process ended by itself."""
        self._is_start_counted = False
