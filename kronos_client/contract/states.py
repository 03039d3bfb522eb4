"""Celery's names of a job's states, as they are stored. ``PROGRESS`` is ``names.PROGRESS_STATE``."""

from typing import Final

PENDING: Final = "PENDING"
STARTED: Final = "STARTED"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
READY_STATES: Final = frozenset({SUCCESS, FAILURE, REVOKED})
