"""When to submit a job again. The id stays the same, so that the job has one outcome."""

import random
import time
from collections.abc import Callable
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError

FIRST_PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 10.0

WORTH_ANOTHER_TRY: Final = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN, ErrorCode.QUEUE_FULL)


class Retries:
    """The retries of one job, for ``retry_for_s`` after its first refusal.

    A full queue's refusal gives the pause. If Redis does not answer, pauses double up to 10 s. Each pause
    varies by a fifth, so that clients refused at the same time do not return at the same time.
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
        self._ends_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._uncertain: JobError | None = None

    def pause_s(self, error: JobError) -> float:
        """Seconds until the next try. The last try comes at the end of ``retry_for_s``.

        Raises:
            JobError: There is no further try. ENQUEUE_UNCERTAIN if any try ended so, since the job may be
                under way.
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
