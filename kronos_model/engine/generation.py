"""``SeriesRequest``, a series that is submitted to the engine, and ``Generation``, its handle. No torch."""

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES
from kronos_model.errors import InputError, KronosError, OutOfMemory, is_out_of_memory
from kronos_model.seeds import MAX_SEED

if TYPE_CHECKING:
    from kronos_model.engine.sequence import Sequence

ContextPolicy = Literal["exact", "rolling"]
"""What happens once the window slides.

``exact`` computes the window anew for each bar, as the reference does. ``rolling`` keeps the cached keys and
values and drops the oldest bar: an approximation that costs no more than any other step. The bars that are
left were computed with the dropped ones in view, and positions keep increasing.
"""

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
"""The priority classes, highest first."""

MIN_TEMPERATURE: Final = 1e-30
"""A lower temperature also picks the best token always, but would make logits infinite."""


@dataclass(frozen=True)
class SamplingParams:
    """How one series is sampled. ``top_k`` 0 and ``top_p`` 1 filter nothing; if both are set, both apply."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.9
    sample_count: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(
                f"temperature must be above 0 (top_k=1 always picks the best token), not {self.temperature}",
                field="temperature",
            )
        if self.top_k < 0:
            raise InputError(f"top_k must be 0 (off) or more, not {self.top_k}", field="top_k")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1 (off), not {self.top_p}", field="top_p")
        if self.sample_count < 1:
            raise InputError(
                f"sample_count must be at least 1, not {self.sample_count}", field="sample_count"
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed must be between 0 and 2**63 − 1, not {self.seed}", field="seed")


@dataclass(frozen=True, eq=False)
class SeriesRequest:
    """One series to forecast: T bars of lookback, H bars of horizon.

    ``bars`` (T, 6) float32 in the order of ``COLUMNS``, unscaled; ``stamps`` (T, 5) and ``future_stamps``
    (H, 5) int64 from ``columns.time_features``. ``deadline`` is on the clock of ``time.monotonic``. Series
    with the same ``job`` have one fair share of the engine together; without one, each has its own.
    ``streams``: bars are computed early, so that ``Generation.paths_so_far`` has them.
    """

    bars: NDArray[np.float32]
    stamps: NDArray[np.int64]
    future_stamps: NDArray[np.int64]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline: float | None = None
    context_policy: ContextPolicy = "exact"
    priority: Priority = "normal"
    job: Hashable = None
    streams: bool = False

    def __post_init__(self) -> None:
        lookback, horizon = len(self.bars), len(self.future_stamps)
        if lookback == 0:
            raise InputError("the lookback is empty; give at least one bar", field="bars")
        if horizon == 0:
            raise InputError("pred_len must be at least 1", field="pred_len")
        if self.bars.shape != (lookback, len(COLUMNS)):
            raise InputError(f"bars must be (T, {len(COLUMNS)}), not {self.bars.shape}", field="bars")
        for name, stamps, rows in (
            ("stamps", self.stamps, lookback),
            ("future_stamps", self.future_stamps, horizon),
        ):
            if stamps.shape != (rows, len(TIME_FEATURES)):
                raise InputError(
                    f"{name} must be ({rows}, {len(TIME_FEATURES)}), not {stamps.shape}", field=name
                )

    @property
    def lookback(self) -> int:
        return len(self.bars)

    @property
    def horizon(self) -> int:
        return len(self.future_stamps)


@dataclass
class GenerationTimings:
    """Moments of a generation, by ``time.monotonic``; None if not reached yet."""

    submitted: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_bar: float | None = None
    ended: float | None = None

    def durations_s(self) -> dict[str, float]:
        """Seconds waiting for slots, in prefill and in decoding."""
        ended = self.ended if self.ended is not None else time.monotonic()
        admitted = self.admitted if self.admitted is not None else ended
        first_bar = self.first_bar if self.first_bar is not None else ended
        return {
            "queued": admitted - self.submitted,
            "prefill": first_bar - admitted,
            "decode": ended - first_bar,
        }


class Generation:
    """The handle of one submitted series: its progress and, once ``done``, its paths or its error.

    Only the thread that steps the engine writes to it.

    Attributes:
        job: series with an equal one share its slots.
        rank: of its priority class; 0 is the highest.
        is_tokenized: whether the lookback's tokens are known. Until then only one sequence runs.
        sequences: of the paths that have started, until it ends.
    """

    def __init__(self, request: SeriesRequest) -> None:
        self.request = request
        self.rank = PRIORITIES.index(request.priority)
        self.job: Hashable = self if request.job is None else (request.job, self.rank)
        self.deadline = math.inf if request.deadline is None else request.deadline
        self.timings = GenerationTimings()
        self.error: KronosError | None = None
        self.done = False
        self.num_bars_done = 0
        self.is_tokenized = False
        self.sequences: list[Sequence] = []
        self._not_started = range(request.sampling.sample_count)
        self._accepted: set[int] = set()
        self._paths: NDArray[np.float32] | None = None
        self._early_bars: dict[int, NDArray[np.float32]] = {}  # by path: (n, 6), if the request streams

    @property
    def num_bars_total(self) -> int:
        """Bars to generate, over all paths."""
        return self.request.horizon * self.request.sampling.sample_count

    @property
    def num_paths_waiting(self) -> int:
        """Paths that have not started."""
        return len(self._not_started)

    def start_paths(self, most: int) -> range:
        """Take at most ``most`` neighbouring paths that have not started."""
        paths, self._not_started = self._not_started[:most], self._not_started[most:]
        return paths

    @property
    def paths(self) -> NDArray[np.float32]:
        """All sample paths (sample_count, H, 6), unscaled; raises the error if there was one."""
        if self.error is not None:
            raise self.error
        if not self.done or self._paths is None:
            raise RuntimeError("the generation is not done")
        return self._paths

    @property
    def paths_so_far(self) -> NDArray[np.float32] | None:
        """The first n bars of all sample paths (sample_count, n, 6), unscaled, as they will be in ``paths``.

        Bars that only some paths have are left out. None if there are none. Any thread may read it.
        """
        num_paths = self.request.sampling.sample_count
        if len(self._early_bars) < num_paths:
            return None
        early_bars = [self._early_bars[path] for path in range(num_paths)]
        num_bars = min(map(len, early_bars))
        return np.stack([bars[:num_bars] for bars in early_bars])

    def add_early_bars(self, first_path: int, paths: NDArray[np.float32]) -> None:
        """Take the bars (n, m, 6) that paths have so far, the first of them being path ``first_path``.

        Bars that a path has already stay: where rounding depends on a batch, they must not change.
        """
        for path, bars in enumerate(paths, first_path):
            known = self._early_bars.get(path, bars[:0])
            self._early_bars[path] = np.concatenate((known, bars[len(known) :]))

    def accept(self, first_path: int, paths: NDArray[np.float32]) -> None:
        """Take finished paths (n, H, 6), the first of them being path ``first_path``."""
        if self.request.streams:
            self.add_early_bars(first_path, paths)
            paths = np.stack([self._early_bars[path] for path in range(first_path, first_path + len(paths))])
        if self._paths is None:
            shape = (self.request.sampling.sample_count, *paths.shape[1:])
            self._paths = np.empty(shape, dtype=np.float32)
        self._paths[first_path : first_path + len(paths)] = paths
        accepted = set(range(first_path, first_path + len(paths)))
        if accepted & self._accepted:
            raise RuntimeError("a path was generated twice")
        self._accepted |= accepted
        if len(self._accepted) == self.request.sampling.sample_count:
            self._end()

    def fail(self, error: KronosError) -> None:
        """End with an error. Its traceback is dropped, because the frames would keep tensors alive."""
        self.error = error.with_traceback(None)
        self._end()

    def _end(self) -> None:
        self.timings.ended = time.monotonic()
        self.done = True


def as_kronos_error(error: Exception) -> KronosError:
    """The error that a failed series ends with."""
    if isinstance(error, KronosError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("the device has too little memory for this series; ask for fewer paths or bars")
    wrapped = KronosError(f"the model failed on this series ({type(error).__name__}); see the worker's log")
    wrapped.__cause__ = error.with_traceback(None)  # its frames hold tensors, and it has been logged
    return wrapped
