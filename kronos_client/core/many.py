"""Many: forecasts of any number of items, each a job of its own, with a bounded number of them at a time."""

import math
import time
import uuid
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastResult
from kronos_client.core.handle import LOOK_INTERVAL_S, ForecastHandle
from kronos_client.core.job_ids import checked_job_id
from kronos_client.core.reading import readable
from kronos_client.core.result_events import Endings
from kronos_client.core.retrying import Retries

MAX_IN_FLIGHT: Final = 64
"""As many as a worker takes at once by default."""

RETRY_FOR_S: Final = 600.0

Submit = Callable[[str, Any], ForecastHandle]
"""Enqueues candles under an id."""


@dataclass(frozen=True)
class ForecastOutcome:
    """What became of one item: a result, or the error in its place.

    ``index`` counts the items from 0; ``key`` is the item's own, or that number.
    """

    index: int
    key: Hashable
    job_id: str
    result: ForecastResult | None = None
    error: JobError | None = None

    def unwrap(self) -> ForecastResult:
        """The result; raises the error where there is none."""
        if self.result is None:
            raise self.error or JobError(ErrorCode.INTERNAL, "an outcome without result and error")
        return self.result


def split_item(item: Any, index: int, prefix: str | None) -> tuple[ForecastOutcome, Any]:
    """The beginning of an item's outcome, and its candles; it has an error where they cannot be submitted."""
    is_pair = isinstance(item, tuple) and len(item) == 2
    key, candles = item if is_pair else (index, item)
    begun = ForecastOutcome(index, index, str(uuid.uuid4()))
    try:
        with readable("an item's key", "key"):
            if not _is_key(key):
                raise JobError(
                    ErrorCode.BAD_TYPE,
                    f"an item that is a tuple of two is (key, candles), and {type(key).__name__} cannot be a "
                    "key: give several series of one job as a list",
                    "key",
                )
            begun = replace(begun, key=key)
            if prefix is not None:
                begun = replace(begun, job_id=checked_job_id(f"{prefix}-{key}"))
    except JobError as error:
        return replace(begun, error=error), None
    return begun, candles


def _is_key(key: object) -> bool:
    """Whether it may be a mapping's key; candles may not, whatever they are."""
    try:
        hash(key)
    except TypeError:
        return False
    return not isinstance(key, Mapping) and not hasattr(key, "columns")


def not_in_time(timeout_s: float | None, job_id: str) -> JobError:
    """The error of a job that took longer, and was cancelled."""
    message = f"no result within {timeout_s} s; the job was cancelled"
    return JobError(ErrorCode.TIMEOUT, message, None, {"job_id": job_id})


@dataclass(eq=False)
class _Flight:
    """An item that was taken; it is enqueued once it has a handle. Moments are of the loop's clock.

    Attributes:
        look_at: when it is submitted, or looked at, next.
        ends_at: when it is given up.
    """

    item: ForecastOutcome
    candles: Any
    retries: Retries
    look_at: float
    ends_at: float = math.inf
    handle: ForecastHandle | None = None


class Many:
    """The loop of ``forecast_many``, on the caller's thread, as far as the caller goes on with it."""

    def __init__(
        self,
        submit: Submit,
        endings: Endings,
        *,
        max_in_flight: int,
        in_order: bool,
        timeout_s: float | None,
        retry_for_s: float,
        forget: bool,
        job_id_prefix: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._submit = submit
        self._endings = endings
        self._max_in_flight = checked_max_in_flight(max_in_flight)
        self._in_order = in_order
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._forget = forget
        self._prefix = job_id_prefix
        self._clock = clock
        self._flights: list[_Flight] = []
        self._done: dict[int, ForecastOutcome] = {}
        self._next_index = 0

    def run(self, items: Iterable[Any]) -> Generator[ForecastOutcome, None, None]:
        """Each item's outcome."""
        source = enumerate(items)
        is_exhausted = False
        try:
            while True:
                while not is_exhausted and self._has_room():
                    taken = next(source, None)
                    if taken is None:
                        is_exhausted = True
                    else:
                        self._take(*taken)
                yield from self._given()
                if is_exhausted and not self._flights:
                    return
                if not self._has_room() or is_exhausted:
                    self._wait()
        finally:
            self._leave()

    def _has_room(self) -> bool:
        """Whether another item may be taken: not while one is refused, which would be refused too."""
        if any(flight.handle is None for flight in self._flights):
            return False
        return len(self._flights) + len(self._done) < self._max_in_flight

    def _take(self, index: int, item: Any) -> None:
        outcome, candles = split_item(item, index, self._prefix)
        if outcome.error is not None:
            self._done[index] = outcome
            return
        flight = _Flight(outcome, candles, Retries(self._retry_for_s, clock=self._clock), self._clock())
        self._flights.append(flight)
        # Before it is enqueued, so that its end cannot be missed.
        self._endings.add(outcome.job_id)
        self._go_on(flight)

    def _go_on(self, flight: _Flight) -> None:
        """Submit an item, or look for its outcome; what is refused for now is tried again later."""
        try:
            if flight.handle is None:
                flight.handle = self._submit(flight.item.job_id, flight.candles)
                flight.candles = None
                flight.retries.succeeded()
                if self._timeout_s is not None:
                    flight.ends_at = self._clock() + self._timeout_s
            result = flight.handle.peek()
        except JobError as error:
            try:
                flight.look_at = self._clock() + flight.retries.pause_s(error)
            except JobError as last:
                self._end(flight, error=last)
            return
        flight.retries.succeeded()
        if result is not None:
            self._end(flight, result=result)
        elif self._clock() >= flight.ends_at:
            with suppress(JobError):  # it goes on then, and nobody looks for it
                flight.handle.cancel()
            self._end(flight, error=not_in_time(self._timeout_s, flight.item.job_id))
        else:
            flight.look_at = min(self._clock() + LOOK_INTERVAL_S, flight.ends_at)

    def _end(
        self, flight: _Flight, *, result: ForecastResult | None = None, error: JobError | None = None
    ) -> None:
        self._flights.remove(flight)
        self._endings.remove(flight.item.job_id)
        if result is not None and self._forget and flight.handle is not None:
            with suppress(JobError):  # what cannot be deleted now expires by itself
                flight.handle.forget()
        self._done[flight.item.index] = replace(flight.item, result=result, error=error)

    def _given(self) -> Iterator[ForecastOutcome]:
        """What may be given to the caller now."""
        while self._done:
            index = self._next_index if self._in_order else next(iter(self._done))
            if index not in self._done:
                return
            outcome = self._done.pop(index)
            self._next_index += 1
            yield outcome

    def _wait(self) -> None:
        """Until something is new of an item, or one is due."""
        due_at = min(flight.look_at for flight in self._flights)
        told = self._endings.wait(max(0.0, due_at - self._clock()))
        now = self._clock()
        for flight in list(self._flights):
            is_told = flight.handle is not None and flight.item.job_id in told
            if is_told or flight.look_at <= now:
                self._go_on(flight)

    def _leave(self) -> None:
        for flight in self._flights:
            if flight.handle is not None and self._prefix is None:
                with suppress(JobError):
                    flight.handle.cancel()
        self._flights.clear()
        self._endings.close()


def checked_max_in_flight(max_in_flight: int) -> int:
    """Raises JobError BAD_VALUE where it lets nothing through."""
    if max_in_flight < 1:
        raise JobError(ErrorCode.BAD_VALUE, "max_in_flight must be at least 1", "max_in_flight")
    return max_in_flight
