"""current_task: the Celery task in which an app uses this package. Imports no Celery."""

import sys
from typing import Any


def current_task() -> Any:
    """The task that a Celery worker runs on this thread; None if none, or if nothing imported Celery."""
    state: Any = sys.modules.get("celery._state")
    return state and state.get_current_worker_task()
