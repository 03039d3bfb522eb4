"""When a submission that came to nothing is tried again: with the same id, so that a job has one outcome."""

import random
import time
from collections.abc import Callable
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError

FIRST_PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 10.0

WORTH_ANOTHER_TRY: Final = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN, ErrorCode.QUEUE_FULL)


class Retries:
    """The tries of one job within ``retry_for_s`` from its first refusal; none where that is 0.

    A full queue is asked again when its refusal says, a Redis that is away after pauses that double up to
    10 s. Each pause varies by a fifth, so that many who were refused at once do not come back at once.
    """

    def __init__(
        self,
        retry_for_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        vary: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock
        self._vary = vary
        self._retry_for_s = retry_for_s
        self.succeeded()

    def succeeded(self) -> None:
        """What is refused from now on is the first refusal again."""
        self._ends_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._uncertain: JobError | None = None

    def pause_s(self, error: JobError) -> float:
        """Seconds until the next try, never beyond the end; the last one is made then.

        Raises the error where it is not to be tried again: ENQUEUE_UNCERTAIN where an earlier try ended so,
        since the job may be under way for all that a later one says.
        """
        if error.code == ErrorCode.ENQUEUE_UNCERTAIN:
            self._uncertain = error
        if error.code not in WORTH_ANOTHER_TRY:
            raise error
        if self._ends_at is None:
            self._ends_at = self._clock() + self._retry_for_s
        remaining_s = self._ends_at - self._clock()
        if remaining_s <= 0:
            raise self._uncertain or error
        pause_s = float(error.details.get("retry_after_s", self._pause_s))
        if error.code != ErrorCode.QUEUE_FULL:
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return min(pause_s * self._vary(0.8, 1.2), remaining_s)
