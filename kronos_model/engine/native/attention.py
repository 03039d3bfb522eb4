"""Attention of the rows of a batch, a head at a time, over the cache.

Rows that see bars of the same slot read them together. Each row's scores are in the order of its bars, in
whole blocks of 16 in which bars that it does not see count as zero: so its result is the same in any group.
"""

import numpy as np

from kronos_model.engine.native.products import (
    BARS_AHEAD,
    IS_WIDE,
    MAX_ROWS,
    MAX_WIDTH,
    PANEL,
    ROW_SIZE,
    average,
    average_one,
    compiled,
    multiply,
)
from kronos_model.engine.native.vectors import (
    LANES,
    exp,
    load,
    max_of,
    maximum,
    multiply_add,
    prefetch,
    repeat,
    store,
    sum_of,
    sums_of_four,
    transpose,
    zero_below,
)

MAX_GROUP_ROWS = 32
"""Rows that read shared bars at once."""
MIN_EXPONENT = np.float32(-87.0)


@compiled
def attend(cache, layer, head, k, v, rows, first, last, q, out, scratch):
    """Rows [first, last) of q and out, which have heads of head_dim.

    ``scratch`` has the products of some rows, a panel of keys, and each row's scores: of shared bars, then of
    own ones.
    """
    size, num_bars = cache.head_dim, cache.num_bars
    slot_size = cache.num_heads * num_bars * size
    base = (layer * cache.num_slots * cache.num_heads + head) * num_bars * size
    scores = (MAX_ROWS + size) * PANEL
    begin, end = _shared_span(rows, first, last)
    shared = base + rows[first].shared_slot * slot_size
    num_shared = -(-(end - begin) // PANEL) * PANEL
    q_at = first * ROW_SIZE + head * size
    for bar in range(begin, end, PANEL):
        _transpose_keys(k, shared, bar, num_bars, size, scratch)
        place = scores + bar - begin
        _score_shared(q, q_at, last - first, size, scratch, place)
    for row in range(first, last):
        spans = rows[row]
        place = scores + (row - first) * ROW_SIZE
        if num_shared:
            _hide(scratch, place, num_shared, spans.shared_first - begin, spans.shared_last - begin)
        own_begin = spans.own_first // LANES * LANES
        seen = spans.own_last - own_begin
        num_own = -(-seen // LANES) * LANES
        own = base + spans.slot * slot_size + own_begin * size
        at = row * ROW_SIZE + head * size
        _score_own(q, at, k, v, own, size, num_own, scratch, place + num_shared)
        _hide(scratch, place + num_shared, num_own, spans.own_first - own_begin, seen)
        share = _exponents(scratch, place, num_shared + num_own)
        for element in range(at, at + size, LANES):
            store(out, element, repeat(np.float32(0)))
        _average_row(scratch, place + num_shared, v, own, size, seen, out, at)
        scratch[row - first] = share  # the products are no longer needed
    if num_shared:
        value = shared + begin * size
        _average_shared(scratch, scores, v, value, size, end - begin, out, q_at, last - first)
    for row in range(first, last):
        share = repeat(scratch[row - first])
        at = row * ROW_SIZE + head * size
        for element in range(at, at + size, LANES):
            store(out, element, load(out, element) * share)


@compiled
def _shared_span(rows, first, last):
    """The shared bars that rows see: from the block of the first one, to the last one that any row sees."""
    end = 0
    if rows[first].shared_first < rows[first].shared_last:
        for row in range(first, last):
            end = max(end, rows[row].shared_last)
    return min(end, rows[first].shared_first // LANES * LANES), end


@compiled
def _score_shared(q, at, num_rows, size, scratch, place):
    """The scores of all rows for the panel of 32 keys."""
    for first in range(0, num_rows, MAX_ROWS):
        count = min(MAX_ROWS, num_rows - first)
        panel = MAX_ROWS * PANEL
        multiply(count, q, at + first * ROW_SIZE, scratch, panel, size, scratch)
        for row in range(count):
            for half in range(0, PANEL, LANES):
                target = place + (first + row) * ROW_SIZE + half
                store(scratch, target, load(scratch, row * PANEL + half))


@compiled
def _average_shared(scratch, scores, v, value, size, count, out, at, num_rows):
    """Add the shared values, times their exponents, to what all rows have of their own."""
    if num_rows == 1:
        _average_row(scratch, scores, v, value, size, count, out, at)
        return
    for first in range(0, num_rows, MAX_ROWS):
        number = min(MAX_ROWS, num_rows - first)
        weights, target = scores + first * ROW_SIZE, at + first * ROW_SIZE
        for element in range(0, size, LANES):
            average(number, scratch, weights, v, value + element, size, count, out, target + element)


@compiled
def _average_row(weights, place, v, value, size, count, out, at):
    """The same for one row, up to 64 elements at once."""
    for element in range(0, size, MAX_WIDTH * LANES):
        width = min(MAX_WIDTH, (size - element) // LANES)
        average_one(width, weights, place, v, value + element, size, count, out, at + element)


@compiled
def _transpose_keys(k, shared, bar, num_bars, size, scratch):
    """The keys of 32 bars as a panel of weights; a slot's last bars may be fewer."""
    panel = MAX_ROWS * PANEL
    for half in range(min(2, (num_bars - bar) // LANES)):
        source = shared + (bar + half * LANES) * size
        for element in range(0, size, LANES):
            for line in range(0, LANES * LANES, LANES):  # those of the next panel
                prefetch(k, source + PANEL * size + element * LANES + line, 3)
            if IS_WIDE:
                target, target_stride = panel + element * PANEL + half * LANES, PANEL
            else:
                target, target_stride = panel + (half * size + element) * LANES, LANES
            transpose(k, source + element, size, scratch, target, target_stride)


@compiled
def _score_own(q, at, k, v, own, size, num_own, scratch, place):
    """The scores of one row and its own bars, four at once."""
    for bar in range(0, num_own, 4):
        key = own + bar * size
        for line in range(0, 4 * size, LANES):
            ahead = bar + BARS_AHEAD
            if ahead < num_own:
                prefetch(k, key + BARS_AHEAD * size + line, 3)
            else:
                prefetch(v, own + (ahead - num_own) * size + line, 3)
        query = load(q, at)
        first = query * load(k, key)
        second = query * load(k, key + size)
        third = query * load(k, key + 2 * size)
        fourth = query * load(k, key + 3 * size)
        for element in range(LANES, size, LANES):
            query = load(q, at + element)
            first = multiply_add(query, load(k, key + element), first)
            second = multiply_add(query, load(k, key + size + element), second)
            third = multiply_add(query, load(k, key + 2 * size + element), third)
            fourth = multiply_add(query, load(k, key + 3 * size + element), fourth)
        sums_of_four(first, second, third, fourth, scratch, place + bar)


@compiled
def _hide(scores, place, count, first, last):
    """Let only the scores [first, last) count."""
    for number in range(first):
        scores[place + number] = -np.inf
    for number in range(last, count):
        scores[place + number] = -np.inf


@compiled
def _exponents(scores, place, count):
    """Turn scores into exponents; returns one divided by their sum."""
    top = repeat(np.float32(-np.inf))
    for number in range(place, place + count, LANES):
        top = maximum(top, load(scores, number))
    top = repeat(max_of(top))
    total = repeat(np.float32(0))
    for number in range(place, place + count, LANES):
        x = load(scores, number) - top
        exponent = zero_below(exp(x), x, MIN_EXPONENT)
        store(scores, number, exponent)
        total = total + exponent
    return np.float32(1) / sum_of(total)


def scratch_floats(head_dim: int) -> int:
    """The room that ``attend`` needs."""
    return (MAX_ROWS + head_dim) * PANEL + MAX_GROUP_ROWS * ROW_SIZE
