"""What a job's folder keeps of its attempts, written while the job is this worker's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from worker.training.job_folder import JobFolder, JobNotes

MAX_STARTS_AT_SAVE: Final = 5
"""Starts of training at one save. A process that ends together with its worker leaves no trace but these."""


class NoteBook:
    """A job's notes: changed here, and written at once.

    Args:
        is_running_out: Whether the job may soon be another worker's, so that nothing is written any more.
    """

    def __init__(self, folder: JobFolder, notes: JobNotes, is_running_out: Callable[[], bool]) -> None:
        self.notes = notes
        self._folder = folder
        self._is_running_out = is_running_out
        self._is_start_counted = False

    def update(self, **changes: Any) -> None:
        """Replace fields of the notes."""
        self.notes = replace(self.notes, **changes)
        if not self._is_running_out():
            self._folder.write_notes(self.notes)

    def count_start(self) -> bool:
        """Count a start of training that is to come; False if there were too many at this save."""
        saved_at_ns = self._folder.saved_at_ns()
        num_starts = self.notes.num_starts_at_save if saved_at_ns == self.notes.saved_at_ns else 0
        if num_starts >= MAX_STARTS_AT_SAVE:
            return False
        self.update(saved_at_ns=saved_at_ns, num_starts_at_save=num_starts + 1)
        self._is_start_counted = True
        return True

    def uncount_start(self) -> None:
        """Take the count back: this worker ended the process, or none was started."""
        if self._is_start_counted:
            self._is_start_counted = False
            self.update(num_starts_at_save=self.notes.num_starts_at_save - 1)

    def keep_start(self) -> None:
        """The process has ended by itself: what happens from now on does not take its count back."""
        self._is_start_counted = False
