"""The grammar of events, and in which paths they happen."""

import numpy as np
import pytest

from kronos_model.bars.columns import CLOSE, HIGH, LOW
from kronos_model.forecast import Event, standard_error, wilson_interval

LAST = 100.0


def paths() -> np.ndarray:
    """Two paths of three bars."""
    bars = np.full((2, 3, 6), LAST, dtype=np.float32)
    bars[:, :, CLOSE] = [[101, 99, 103], [98, 100, 97]]
    bars[:, :, HIGH] = [[102, 101, 104], [100, 100, 99]]
    bars[:, :, LOW] = [[99, 98, 102], [95, 97, 96]]
    return bars


@pytest.mark.parametrize(
    ("text", "happens"),
    [
        ("close>last at 1", [True, False]),
        ("close>last at end", [True, False]),
        ("close>=last at 2", [False, True]),
        ("close > last at 2", [False, False]),
        ("close<99.5 at 2", [True, False]),
        ("close>last+2% at 3", [True, False]),
        ("close<last - 2.5% at end", [False, True]),
        ("high>=102 by 1", [True, False]),
        ("high>=104 by 2", [False, False]),
        ("high>=104 by end", [True, False]),
        ("low<=last-5% by end", [False, True]),
        ("close>100 by 3", [True, False]),
    ],
)
def test_an_event_happens_in_the_paths_that_reach_its_level(text: str, happens: list[bool]) -> None:
    event = Event.parse(f" {text} ")

    assert event.text == text
    assert event.happens(paths(), LAST).tolist() == happens


@pytest.mark.parametrize(
    "text",
    [
        "", "close>last", "close>last at 0", "close>last at -1", "close>last at", "close=1 at 2",
        "last>1 at 2",
        "volume>1 at 2", "close>last+2 at 2",  "close>+2% at 2", "close>-5 at 2", "close>1e3 at 2",
        "close>nan at 2", "close>last before 2", "close>last at 2 at 3", "close>١ at 2", "CLOSE>1 at 2",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="close>last at 24"):
        Event.parse(text)


@pytest.mark.parametrize(("num_hits", "num_paths"), [(0, 30), (30, 30), (19, 30), (1, 1), (1, 1000)])
def test_an_interval_ends_where_the_share_is_196_standard_errors_away(num_hits: int, num_paths: int) -> None:
    share, (low, high) = num_hits / num_paths, wilson_interval(num_hits, num_paths)

    assert (low, high)[num_hits == num_paths] == share or 0 < num_hits < num_paths
    for end in {low, high} - {share}:
        assert abs(share - end) == pytest.approx(1.959964 * (end * (1 - end) / num_paths) ** 0.5)


def test_a_share_of_none_or_all_has_no_standard_error() -> None:
    assert standard_error(25, 100) == pytest.approx(0.0433, abs=1e-4)
    assert standard_error(0, 100) is standard_error(100, 100) is None
