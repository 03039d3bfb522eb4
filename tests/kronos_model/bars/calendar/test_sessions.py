"""Missing bars between others of a day."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kronos_model.bars.calendar.sessions import DAY, bridge_outages

HOUR = DAY // 24


def bridged_one_by_one(clock: list[int], shortest_break: int) -> list[int]:
    """What ``bridge_outages`` says, gap by gap, at a spacing of an hour."""
    seen = {at % DAY for at in clock}
    gaps = [range(before + HOUR, after, HOUR) for before, after in pairwise(clock) if after - before < DAY]
    added = []
    for missing in filter(None, gaps):
        first = missing[0]
        if first % DAY in seen:
            is_outage = all(at % DAY in seen for at in missing)
        else:
            others = range(first % DAY, clock[-1], DAY)
            is_shown = any(at in gap for at in others for gap in gaps if at != first)
            is_outage = len(missing) * HOUR < shortest_break and not is_shown
        if is_outage:
            added += missing
    return sorted(clock + added) if len(added) <= len(clock) else clock


@given(
    hours=st.sets(st.integers(0, 23), min_size=2),
    days=st.sets(st.integers(0, 12), min_size=1, max_size=8),
    removed=st.sets(st.tuples(st.integers(0, 12), st.integers(0, 23)), max_size=12),
    shortest_break=st.integers(1, 6),
)
def test_gaps_are_bridged_as_one_by_one(
    hours: set[int], days: set[int], removed: set[tuple[int, int]], shortest_break: int
) -> None:
    bars = sorted((day, hour) for day in days for hour in hours if (day, hour) not in removed)
    clock = [day * DAY + hour * HOUR for day, hour in bars]

    found = bridge_outages(np.array(clock, dtype=np.int64), HOUR, shortest_break * HOUR)

    assert found.tolist() == bridged_one_by_one(clock, shortest_break * HOUR)
