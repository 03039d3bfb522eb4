"""The drift alarm: whether a series' 80 % intervals hold much less or more than they should. No Redis.

The null hypothesis is that an interval holds each close with the expected probability, 5 points more or less,
given all before. That is 80 %, or what the model's recorded backtest found if nothing corrects the model. A
bet against it multiplies evidence by a factor whose mean is then at most 1 (an e-value: Arnold, Henzi and
Ziegel, Sequentially valid tests for forecast calibration, Annals of Applied Statistics 17, 2023). So that
drift is found whenever it begins, a little evidence is added with time (Shin, Ramdas and Rinaldo,
E-detectors, New England Journal of Statistics in Data Science 2, 2024). All that is added in a year, over a
feed's series and tests, is 1; so evidence reaches ``ALARM`` in that year with a probability of at most 1 %,
however the series depend on each other (Doob's inequality).

Forecasts one bar ahead and of the last bar ahead are tested, each only if its first bar comes after the last
one that was tested: then their errors do not overlap.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronos_client.feeds.scores import INTERVALS, Due, PendingForecast
from kronos_model.evaluation.windows import Array

KINDS: Final = ("too_narrow", "too_wide")
ALARM: Final = 100.0
MOST: Final = 10 * ALARM
"""Evidence grows no further, so that an alarm ends soon after its reason."""
YEAR_US: Final = 365.25 * 86_400e6
NOMINAL: Final = 0.8
TOLERANCE: Final = 0.05
BETS: Final = (1.0, 0.8)
"""Near those that gain most if intervals hold 55 % or 95 % where 80 % are expected."""


@dataclass
class SeriesState:
    """What jobs note of a series for the next one; begun anew with a model, and when the series is replaced.

    Attributes:
        own: Its part of an adaptive calibration, (3,).
        tests: For one bar ahead and the last one: evidence that intervals are too narrow, and too wide, and
            the instant of the last bar that was tested.
        drift: One of ``KINDS`` from an alarm until its evidence is below 1.
    """

    model: str
    num_restarts: int
    own: Sequence[float] = (0.0, 0.0, 0.0)
    tests: Sequence[Sequence[float]] = ((0.0, 0.0, 0), (0.0, 0.0, 0))
    drift: str | None = None

    @classmethod
    def read(cls, text: str, made: PendingForecast) -> Self:
        """That which was written, if it is of the same model and bars."""
        new = cls(made.model, made.num_restarts)
        with suppress(ValueError, TypeError):  # there is none, or another program wrote it
            known = cls(**json.loads(text))
            return known if (known.model, known.num_restarts) == (new.model, new.num_restarts) else new
        return new

    def to_json(self) -> str:
        """The text that stands in Redis."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def test(
        self,
        forecasts: Sequence[Due],
        clock: NDArray[np.int64],
        closes: Array,
        num_series: int,
        expected: float = NOMINAL,
    ) -> None:
        """Test forecasts of this model, in their order, by the bars that have come.

        Args:
            expected: The share of closes that intervals should hold.
        """
        evidence = []
        for at, (*known, until) in enumerate(self.tests):
            now = np.array(known)
            for forecast, first, end in forecasts:
                step = at * (len(forecast.times) - 1)
                if not first <= step < end or forecast.times[0] <= until:
                    continue
                place = int(np.searchsorted(clock, forecast.times[step]))
                if clock[place] != forecast.times[step] or np.isnan(closes[place]):
                    continue
                low, high = forecast.quantiles[0, [INTERVALS.index("80"), -1 - INTERVALS.index("80")], step]
                elapsed = (forecast.times[step] - until) / YEAR_US if until else 0.0
                now = grown(now, low <= closes[place] <= high, elapsed, num_series, expected)
                until = int(forecast.times[step])
            evidence.append((*(float(f"{each:.6g}") for each in now), until))
        self.tests = evidence
        largest = dict(zip(KINDS, np.array(evidence)[:, :2].max(axis=0), strict=True))
        kind = max(largest, key=lambda each: largest[each])
        if largest[kind] >= ALARM:
            self.drift = kind
        elif self.drift is not None and largest[self.drift] < 1:
            self.drift = None


def grown(
    evidence: Array, has_held: ArrayLike, elapsed_years: float, num_series: int, expected: float = NOMINAL
) -> Array:
    """Evidence (…, 2) that intervals are too narrow, and too wide, after one more outcome (…,)."""
    added = min(elapsed_years, 1.0) / (num_series * len(KINDS) * 2)
    held = np.asarray(has_held, float)
    gains = [BETS[0] * (expected - TOLERANCE - held), BETS[1] * (held - expected - TOLERANCE)]
    return np.asarray(np.minimum((evidence + added) * (1 + np.stack(gains, axis=-1)), MOST))
