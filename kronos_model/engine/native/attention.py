"""Attention of the rows of a batch, a head at a time, over the cache.

Rows that see bars of the same slot read them together. Each row's scores are in the order of its bars, in
whole blocks of 16 in which bars that it does not see count as zero: so its result is the same in any group.
"""

import numpy as np

from kronos_model.engine.native.products import (
    IS_WIDE,
    MAX_ROWS,
    MAX_WIDTH,
    PANEL,
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
NEAR, FAR = 24, 64
"""How many bars earlier keys and values are fetched into the caches."""


@compiled
def attend(cache, layer, head, k, v, rows, first, last, q, out, stride, scratch, score_floats):
    """Rows [first, last) of q and out (rows, heads, head_dim), ``stride`` apart."""
    size, num_bars = cache.head_dim, cache.num_bars
    slot_size = cache.num_heads * num_bars * size
    base = layer * cache.num_slots * slot_size + head * num_bars * size
    column = head * size
    products, panel = MAX_ROWS * PANEL, size * PANEL
    scores = products + panel  # where in scratch; the products are first, then a panel of keys
    num_rows = last - first

    begin = num_shared = end = 0
    shared = base + rows[first].shared_slot * slot_size
    if rows[first].shared_first < rows[first].shared_last:
        begin = rows[first].shared_first // LANES * LANES
        for row in range(first, last):
            end = max(end, rows[row].shared_last)
        num_shared = -(-(end - begin) // PANEL) * PANEL
        for bar in range(begin, end, PANEL):
            _transpose_keys(k, shared, bar, num_bars, size, scratch, products)
            for at in range(0, num_rows, MAX_ROWS):
                count = min(MAX_ROWS, num_rows - at)
                multiply(count, q, (first + at) * stride + column, stride, scratch, products, size, scratch)
                for row in range(count):
                    place = scores + (at + row) * score_floats + bar - begin
                    store(scratch, place, load(scratch, row * PANEL))
                    store(scratch, place + LANES, load(scratch, row * PANEL + LANES))
    for row in range(num_rows):
        spans = rows[first + row]
        place = scores + row * score_floats
        if num_shared:
            _hide(scratch, place, num_shared, spans.shared_first - begin, spans.shared_last - begin)
        own_begin = spans.own_first // LANES * LANES
        num_own = -(-(spans.own_last - own_begin) // LANES) * LANES
        own = base + spans.slot * slot_size + own_begin * size
        at = (first + row) * stride + column
        _score_own(q, at, k, v, own, size, num_own, scratch, place + num_shared)
        _hide(scratch, place + num_shared, num_own, spans.own_first - own_begin, spans.own_last - own_begin)
        share = _exponents(scratch, place, num_shared + num_own)
        for element in range(0, size, MAX_WIDTH * LANES):
            width = min(MAX_WIDTH, (size - element) // LANES)
            seen = spans.own_last - own_begin
            average_one(width, scratch, place + num_shared, v, own + element, size, seen, out, at + element)
        scratch[row] = share  # of the row's exponents: the products are no longer needed
    if num_shared:
        values = shared + begin * size
        for at in range(0, num_rows, MAX_ROWS):
            count = min(MAX_ROWS, num_rows - at)
            for element in range(0, size, LANES):
                average(
                    count,
                    scratch,
                    scores + at * score_floats,
                    score_floats,
                    v,
                    values + element,
                    size,
                    end - begin,
                    out,
                    (first + at) * stride + column + element,
                    stride,
                )
    for row in range(num_rows):
        share = repeat(scratch[row])
        at = (first + row) * stride + column
        for element in range(0, size, LANES):
            store(out, at + element, load(out, at + element) * share)


@compiled
def _transpose_keys(k, shared, bar, num_bars, size, scratch, panel):
    """The keys of 32 bars as a panel of weights; a slot's last bars may be fewer."""
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
    for bar in range(0, num_own, 4):
        key = own + bar * size
        for line in range(0, 4 * size, LANES):
            ahead = bar + NEAR
            if ahead < num_own:
                prefetch(k, key + NEAR * size + line, 3)
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


def scratch_floats(head_dim, score_floats):
    """The room that ``attend`` needs."""
    return (MAX_ROWS + head_dim) * PANEL + MAX_GROUP_ROWS * score_floats
