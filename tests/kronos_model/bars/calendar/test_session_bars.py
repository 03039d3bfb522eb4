"""Which times an exchange's bars have, against a list of all of them."""

from datetime import UTC
from itertools import product

import numpy as np
import pytest

from kronos_model.bars.calendar.exchange import Exchange, SessionBars

# The second span follows the first without a break; no span is a whole number of bars of 7.
STARTS, ENDS = np.array([100, 150, 300, 500]), np.array([150, 181, 340, 503])
EXCHANGE = Exchange(UTC, np.arange(4), STARTS, ENDS)


@pytest.mark.parametrize(("spacing", "with_start", "with_end"), product((1, 7, 10, 60), *[(True, False)] * 2))
def test_bars_are_those_of_the_list(spacing: int, with_start: bool, with_end: bool) -> None:
    listed: set[int] = set()
    for start, end in zip(STARTS.tolist(), ENDS.tolist(), strict=True):
        listed |= set(range(start if with_start else start + spacing, end, spacing))
        listed |= {end} if with_end else set()
    bars = SessionBars(EXCHANGE, spacing, with_start, with_end)
    every = np.arange(90, 520)
    assert every[bars.contain(every)].tolist() == sorted(listed)
    for first, last in ((90, 519), (107, 150), (150, 310), (181, 181), (182, 299), (340, 503)):
        assert bars.count(first, last) == len([at for at in listed if first <= at <= last])
        later = sorted(at for at in listed if at > first)
        assert bars.after(first, 3).tolist() == later[:3]
        assert bars.after(first, 1000).tolist() == later
