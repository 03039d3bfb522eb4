"""The reads of a decode step: each row sees all of its own bars and no others, in few reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.engine.scheduling import path_table
from kronos_model.engine.scheduling.path_table import (
    Batch,
    OwnRead,
    PromptRead,
    plan_own_reads,
    plan_prompt_reads,
)
from kronos_model.engine.sequence import Sequence
from tests.kronos_model.engine.conftest import MAX_CONTEXT, running_sequence, table_of, window_of

NUM_SLOTS = 100


def paths(
    slots: tuple[int, ...], *, lookback: int = 8, generated: int = 0, policy: str = "exact"
) -> Sequence:
    prompt_slot = slots[0] if len(slots) == 1 else NUM_SLOTS + slots[0]
    return running_sequence(slots, prompt_slot, lookback=lookback, generated=generated, policy=policy)


def batch(*running: Sequence) -> Batch:
    return table_of([*running], NUM_SLOTS).batch_of(running)


def test_neighbours_are_read_together_and_a_shared_prompt_once():
    running = batch(paths((0,)), paths((1,)), paths((2, 3, 4), generated=2))
    assert plan_own_reads(running) == [OwnRead(0, 5, 0, 16, (8, 8, 3, 3, 3))]
    assert plan_prompt_reads(running) == [PromptRead(2, 5, 102, (0, 7))]


def test_rows_that_see_all_they_read_need_no_mask():
    running = batch(paths((0,), lookback=16), paths((1,), lookback=16))
    assert plan_own_reads(running) == [OwnRead(0, 2, 0, 16, None)]


def test_a_read_ends_with_a_whole_block():
    assert plan_own_reads(batch(paths((0,), lookback=17))) == [OwnRead(0, 1, 0, 32, (17,))]


def test_scattered_slots_are_read_apart():
    assert [read.first_slot for read in plan_own_reads(batch(paths((0, 2, 3))))] == [0, 2]


def test_padding_that_costs_more_than_a_read_is_not_read(monkeypatch):
    monkeypatch.setattr(path_table, "MAX_PADDING_BARS", 10)
    running = batch(paths((0,), lookback=8), paths((1,), lookback=20), paths((2,), lookback=25))
    assert [(read.num_bars, read.first_row) for read in plan_own_reads(running)] == [(16, 0), (32, 1)]


@pytest.mark.parametrize("num_paths", [1, 3])
def test_a_cache_that_has_rolled_forgets_the_oldest_bars(num_paths):
    rolled = batch(paths(tuple(range(num_paths)), lookback=31, generated=4, policy="rolling"))
    # Positions 0 … 34 have been written; 35 − 32 = 3 of them are forgotten.
    (own,) = plan_own_reads(rolled)
    if num_paths == 1:
        assert (own.num_bars, own.seen) == (32, None)
        assert plan_prompt_reads(rolled) == []
        assert rolled.table.columns["bar"][0] == 2
    else:
        assert (own.num_bars, own.seen) == (16, (5, 5, 5))
        assert plan_prompt_reads(rolled) == [PromptRead(0, 3, 100, (3, 30))]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),  # paths
            st.integers(1, 40),  # lookback
            st.integers(0, MAX_CONTEXT - 1),  # generated
            st.integers(0, 2),  # slots left free before
            st.sampled_from(["exact", "rolling"]),
        ),
        max_size=6,
    ),
    st.sampled_from([0, 5, 256]),
)
def test_each_row_sees_its_window_once(series, max_padding):
    running, slot = [], 0
    for num_paths, lookback, generated, gap, policy in series:
        slots = tuple(range(slot + gap, slot + gap + num_paths))
        slot = slots[-1] + 1
        running.append(paths(slots, lookback=lookback, generated=generated, policy=policy))
    together = batch(*running)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_table, "MAX_PADDING_BARS", max_padding)
        own_reads, prompt_reads = plan_own_reads(together), plan_prompt_reads(together)
    seen: dict[int, list[tuple[int, int]]] = {}  # by row: slot, bar
    for read in own_reads:
        for index, row in enumerate(range(read.first_row, read.last_row)):
            num_bars = read.num_bars if read.seen is None else read.seen[index]
            seen[row] = [(read.first_slot + index, bar) for bar in range(num_bars)]
    for prompt in prompt_reads:
        for row in range(prompt.first_row, prompt.last_row):
            seen[row].extend((prompt.slot, bar) for bar in range(*prompt.bars))
    row = 0
    for sequence in running:
        for slot in sequence.slots:
            assert sorted(seen[row]) == sorted(window_of(sequence, slot))
            assert (slot, together.table.columns["bar"][slot]) in seen[row]
            row += 1
