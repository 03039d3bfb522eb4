"""Each row of a decode step gets attention to its own window, for any way of reading the cache."""

from typing import Any

import numpy as np
import pytest
import torch

from kronos_model.engine.decoding.static_steps import (
    KernelSegment,
    Shape,
    StaticSegment,
    StepInputs,
    read_by_row,
    shape_for,
)
from kronos_model.engine.scheduling.path_table import plan_own_reads, plan_prompt_reads
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.kv_cache import DecodeSegment, KVCache
from tests.kronos_model.engine.conftest import MAX_CONTEXT, running_sequence, table_of, window_of

NUM_SLOTS, HEADS, HEAD_DIM = 12, 2, 8


def sequence(slots: tuple[int, ...], prompt: int | None = None, **given: Any) -> Sequence:
    return running_sequence(slots, slots[0] if prompt is None else NUM_SLOTS + prompt, **given)


STEPS = {
    "a single path": [sequence((0,), lookback=9, generated=3)],
    "single paths of several lengths": [
        sequence((0,), lookback=1, generated=0),
        sequence((1,), lookback=30, generated=1),
        sequence((3,), lookback=20, generated=5),
    ],
    "a shared prompt": [sequence((0, 1, 2), 0, lookback=12, generated=4)],
    "a shared prompt without bars": [sequence((0, 1), 0, lookback=1, generated=4)],
    "single paths and shared prompts": [
        sequence((0,), lookback=20, generated=2),
        sequence((2, 3, 4), 1, lookback=7, generated=6),
        sequence((5, 7), 3, lookback=25, generated=0),
        sequence((8,), lookback=3, generated=0),
    ],
    "windows that have slid or rolled": [
        sequence((0,), lookback=40, generated=6),
        sequence((1, 2), 0, lookback=40, generated=6),
        sequence((3,), lookback=40, generated=6, policy="rolling"),
        sequence((4, 5), 1, lookback=40, generated=6, policy="rolling"),
    ],
}


def expected(sequence: Sequence, slot: int, q: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Attention (H, head_dim) of a path's query to its window, bar by bar from each bar's slot."""
    slots, bars = zip(*window_of(sequence, slot), strict=True)
    keys, values = (x[0, list(slots), :, list(bars)].transpose(0, 1) for x in (cache.k, cache.v))
    weights = (keys @ q.unsqueeze(-1)).squeeze(-1) / np.sqrt(HEAD_DIM)  # (H, bars)
    return (weights.softmax(-1).unsqueeze(1) @ values).squeeze(1)


@pytest.mark.parametrize("running", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("kind", ["eager", "static", "kernel"])
def test_each_row_gets_attention_to_its_own_window(running, kind):
    generator = torch.Generator().manual_seed(1)
    num_slots = PLACES_PER_PATH * NUM_SLOTS
    cache = KVCache(1, num_slots, HEADS, MAX_CONTEXT + 1, HEAD_DIM, device=torch.device("cpu"))
    cache.k.normal_(generator=generator)
    cache.v.normal_(generator=generator)
    by_slot = torch.randn(NUM_SLOTS, HEADS, HEAD_DIM, generator=generator)
    table = table_of(running, NUM_SLOTS)
    batch = table.batch_of(table.sequences)
    if kind == "eager":
        slots, bars = (torch.from_numpy(rows) for rows in (batch.slots, table.columns["bar"][batch.slots]))
        segment = DecodeSegment(slots, bars, plan_own_reads(batch), plan_prompt_reads(batch))
        mixed = segment.read(cache, 0, by_slot[slots])
    else:
        shape = shape_for(batch)
        inputs = StepInputs(NUM_SLOTS, MAX_CONTEXT, torch.device("cpu"))
        inputs.fill(batch, shape)
        if kind == "kernel":
            columns = inputs.columns(shape)
            static = KernelSegment(columns, NUM_SLOTS, MAX_CONTEXT, read_by_row)
        else:
            static = StaticSegment(shape, inputs, torch.float32)
        mixed = static.read(cache, 0, by_slot[: shape.rows])[batch.slots]
    owners = [(paths, slot) for paths in running for slot in paths.slots]
    for row, (paths, slot) in enumerate(owners):
        torch.testing.assert_close(
            mixed[row], expected(paths, slot, by_slot[slot], cache), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("running", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("num_steps", [1, 3, 25])
def test_inputs_that_advanced_on_the_device_are_those_of_the_host(running, num_steps):
    table = table_of(running, NUM_SLOTS)
    batch = table.batch_of(table.sequences)
    shape = Shape(NUM_SLOTS, MAX_CONTEXT, NUM_SLOTS, MAX_CONTEXT, NUM_SLOTS)
    advanced, filled = (StepInputs(NUM_SLOTS, MAX_CONTEXT, torch.device("cpu")) for _ in range(2))
    advanced.fill(batch, shape)
    for _ in range(num_steps):
        advanced.advance(shape)
        table.advance(batch)
    assert table.batch_of(table.sequences) is batch
    filled.fill(batch, shape)
    for ours, theirs in zip(advanced.columns(shape).items(), filled.columns(shape).items(), strict=True):
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1]), ours[0]
    used = slice(1 + int(filled.columns(shape)["block"].max()))
    assert torch.equal(advanced.prompts(shape)[:, used], filled.prompts(shape)[:, used])


@pytest.mark.parametrize("running", [STEPS["single paths and shared prompts"]])
def test_a_part_of_what_decodes_leaves_the_other_rows_unused(running):
    table = table_of(running, NUM_SLOTS)
    inputs = StepInputs(NUM_SLOTS, MAX_CONTEXT, torch.device("cpu"))
    batch = table.batch_of((running[0], running[2]))
    shape = Shape(NUM_SLOTS, MAX_CONTEXT, NUM_SLOTS, MAX_CONTEXT, NUM_SLOTS)
    inputs.fill(batch, shape)
    assert inputs.columns(shape)["is_used"].nonzero().flatten().tolist() == [0, 5, 7]
    table.leave(running[0])
    inputs.fill(table.batch_of(table.sequences), shape)
    assert inputs.columns(shape)["is_used"].nonzero().flatten().tolist() == [2, 3, 4, 5, 7, 8]
    assert inputs.columns(shape)["bar"][0] == MAX_CONTEXT  # where nothing reads
