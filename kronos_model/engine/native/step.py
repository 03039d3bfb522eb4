"""A step of all layers in one call without Python: each thread computes its part of every product.

Where a product needs all of the one before, the threads meet at a barrier. How the work is divided changes no
result: each number is computed by one thread, in one order.
"""

import math
from typing import Any

import numpy as np
from numba import from_dtype, njit, types

from kronos_model.engine.native.attention import attend
from kronos_model.engine.native.layout import FILL, JOB, LAYER, ROW, STOP, TO_S2
from kronos_model.engine.native.products import (
    IS_CACHED,
    MAX_ROWS,
    OPTIONS,
    PANEL,
    ROW_SIZE,
    compiled,
    multiply,
)
from kronos_model.engine.native.threads import barrier, part_of, post_job, prepare, wait_for_job
from kronos_model.engine.native.vectors import (
    LANES,
    array_at,
    atomic_add,
    exp,
    load,
    multiply_add,
    repeat,
    store,
    sum_of,
    swap_pairs,
)

ONE, ZERO = np.float32(1), np.float32(0)
FIRST = np.int64(0)
"""Numba would compile a function once more for the literal 0."""
FLOATS, WHOLE = np.empty(0, np.float32), np.empty(0, np.int64)
ROWS, LAYERS = np.empty(0, ROW), np.empty(0, LAYER)


def by_panel(store_products):
    """A product of all rows with a matrix in panels, whose results ``store_products`` puts where they go.

    That is called with rows [first, first + count), the number of their first output, the products
    (rows, 32), and the last arguments.
    """

    @compiled
    def compute(job, thread, x, num_inputs, panels, num_panels, scratch, *arguments):
        num_blocks = -(-job.num_rows // MAX_ROWS)
        begin, end = part_of(num_panels * num_blocks, thread, job.num_threads)
        for item in range(begin, end):
            panel, number = item // num_blocks, item % num_blocks
            first = job.num_rows * number // num_blocks
            count = job.num_rows * (number + 1) // num_blocks - first
            place = panel * PANEL * num_inputs
            multiply(count, x, first * ROW_SIZE, panels, place, num_inputs, scratch)
            store_products(job, first, count, panel * PANEL, scratch, *arguments)

    return compute


@compiled
def _store_qkv(job, first, count, output, products, bias, rows, turns, q, k, v, layer):
    """Queries and keys turned by their position; keys and values into the cache."""
    cache = job.blocks
    size, width = cache.head_dim, cache.num_heads * cache.head_dim
    for column in range(output, min(output + PANEL, 3 * width), LANES):
        kind, head, element = column // width, column % width // size, column % size
        offset = load(bias, column)
        for number in range(count):
            row = rows[first + number]
            value = load(products, number * PANEL + column - output) + offset
            if kind < 2:
                turn = row.position * 2 * size + element
                turned = swap_pairs(value) * load(turns, turn + size)
                value = multiply_add(value, load(turns, turn), turned)
            if kind == 0:
                store(q, (first + number) * ROW_SIZE + head * size + element, value)
            else:
                heads = (layer * cache.num_slots + row.slot) * cache.num_heads + head
                place = (heads * cache.num_bars + row.bar) * size + element
                if kind == 1:
                    store(k, place, value)
                else:
                    store(v, place, value)


@compiled
def _store_dependency(job, first, count, output, products, bias, rows, k, v):
    """Keys and values of the dependency-aware layer into its cache."""
    cache = job.dependency
    size, width = cache.head_dim, cache.num_heads * cache.head_dim
    for column in range(output, min(output + PANEL, 2 * width), LANES):
        head, element = column % width // size, column % size
        offset = load(bias, column)
        for number in range(count):
            row = rows[first + number]
            value = load(products, number * PANEL + column - output) + offset
            place = ((row.slot * cache.num_heads + head) * cache.num_bars + row.bar) * size + element
            if column < width:
                store(k, place, value)
            else:
                store(v, place, value)


@compiled
def _store_sum(job, first, count, output, products, bias, added, out):
    """The products and what they are added to (rows, d_model)."""
    for column in range(output, min(output + PANEL, job.d_model), LANES):
        offset = load(bias, column)
        for number in range(count):
            place = (first + number) * ROW_SIZE + column
            value = load(products, number * PANEL + column - output) + offset
            store(out, place, load(added, place) + value)


@compiled
def _store_gated(job, first, count, output, products, hidden):
    """SwiGLU of 16 outputs of w1 and 16 of w3."""
    one = repeat(ONE)
    for number in range(count):
        value = load(products, number * PANEL)
        gated = value / (one + exp(repeat(ZERO) - value)) * load(products, number * PANEL + LANES)
        store(hidden, (first + number) * ROW_SIZE + output // 2, gated)


@compiled
def _store_logits(job, first, count, output, products, bias, logits, num_outputs):
    for column in range(output, output + PANEL, LANES):
        offset = load(bias, column)
        for number in range(count):
            value = load(products, number * PANEL + column - output) + offset
            store(logits, (first + number) * num_outputs + column, value)


project_qkv, project_dependency, project_sum = (
    by_panel(_store_qkv),
    by_panel(_store_dependency),
    by_panel(_store_sum),
)
project_gated, project_logits = by_panel(_store_gated), by_panel(_store_logits)


@compiled
def embed(job, thread, rows, x):
    """The sum of four rows of the embedding's table for each row."""
    table = array_at(job.embedding, FLOATS)
    first, last = part_of(job.num_rows, thread, job.num_threads)
    for number in range(first, last):
        row = rows[number]
        s1, s2 = row.s1 * job.d_model, row.s2 * job.d_model
        clock, date = row.clock * job.d_model, row.date * job.d_model
        for element in range(0, job.d_model, LANES):
            tokens = load(table, s1 + element) + load(table, s2 + element)
            time = load(table, clock + element) + load(table, date + element)
            store(x, number * ROW_SIZE + element, tokens + time)


@compiled
def normalise(job, thread, x, scale, out):
    """Root-mean-square norm of each row, times a scale (d_model,)."""
    first, last = part_of(job.num_rows, thread, job.num_threads)
    for at in range(first * ROW_SIZE, last * ROW_SIZE, ROW_SIZE):
        total = repeat(ZERO)
        for element in range(0, job.d_model, LANES):
            value = load(x, at + element)
            total = multiply_add(value, value, total)
        norm = repeat(ONE / np.float32(math.sqrt(sum_of(total) / np.float32(job.d_model) + job.epsilon)))
        for element in range(0, job.d_model, LANES):
            store(out, at + element, load(x, at + element) * norm * load(scale, element))


@compiled
def attend_all(job, cache, layer, k, v, rows, q, mixed, scratch, counter):
    """Whichever thread is free takes the next group and head; the last groups of a lookback take longest."""
    groups, counters = array_at(job.groups, WHOLE), array_at(job.counters, WHOLE)
    count = job.num_groups * cache.num_heads
    while True:
        item = count - 1 - atomic_add(counters, counter, 1)
        if item < 0:
            return
        group, head = item // cache.num_heads, item % cache.num_heads
        first, last = groups[2 * group], groups[2 * group + 1]
        attend(cache, layer, head, k, v, rows, first, last, q, mixed, scratch)


@compiled
def run_blocks(job, thread, sync, rows, scratch, weights, kept):
    """From the rows' tokens to what the transformer knows of them, in ``context``."""
    x, q, mixed = array_at(job.x, FLOATS), array_at(job.q, FLOATS), array_at(job.mixed, FLOATS)
    hidden, context = array_at(job.hidden, FLOATS), array_at(job.context, FLOATS)
    turns, ones = array_at(job.turns, FLOATS), array_at(job.ones, FLOATS)
    layers = array_at(job.layers, LAYERS)
    cache, d_model, d_ff, num_threads = job.blocks, job.d_model, job.d_ff, job.num_threads
    k, v = array_at(cache.k, kept), array_at(cache.v, kept)
    width = cache.num_heads * cache.head_dim
    embed(job, thread, rows, x)
    for number in range(job.num_layers):
        layer = layers[number]
        normalise(job, thread, x, ones, context)
        barrier(sync, num_threads)
        panels, bias = array_at(layer.qkv, weights), array_at(layer.qkv_bias, FLOATS)
        count = -(-3 * width // PANEL)
        project_qkv(job, thread, context, d_model, panels, count, scratch, bias, rows, turns, q, k, v, number)
        barrier(sync, num_threads)
        attend_all(job, cache, number, k, v, rows, q, mixed, scratch, number)
        barrier(sync, num_threads)
        panels, bias = array_at(layer.attention_out, weights), array_at(layer.attention_out_bias, FLOATS)
        count = -(-d_model // PANEL)
        project_sum(job, thread, mixed, width, panels, count, scratch, bias, x, x)
        barrier(sync, num_threads)
        normalise(job, thread, x, ones, context)
        barrier(sync, num_threads)
        panels = array_at(layer.gate, weights)
        project_gated(job, thread, context, d_model, panels, 2 * d_ff // PANEL, scratch, hidden)
        barrier(sync, num_threads)
        panels, bias = array_at(layer.ffn_out, weights), array_at(layer.ffn_out_bias, FLOATS)
        project_sum(job, thread, hidden, d_ff, panels, count, scratch, bias, x, x)
        barrier(sync, num_threads)
    normalise(job, thread, x, array_at(job.norm, FLOATS), context)
    barrier(sync, num_threads)


@compiled
def predict_s1(job, thread, rows, scratch, weights, kept):
    """Keys and values of the dependency-aware layer and, if asked for, logits of s1."""
    cache, context = job.dependency, array_at(job.context, FLOATS)
    panels, bias = array_at(job.dependency_kv, weights), array_at(job.dependency_kv_bias, FLOATS)
    count = -(-2 * cache.num_heads * cache.head_dim // PANEL)
    k, v = array_at(cache.k, kept), array_at(cache.v, kept)
    project_dependency(job, thread, context, job.d_model, panels, count, scratch, bias, rows, k, v)
    if job.task != FILL:
        panels, bias = array_at(job.s1_head, weights), array_at(job.s1_head_bias, FLOATS)
        count, logits = job.s1_outputs // PANEL, array_at(job.logits, FLOATS)
        project_logits(
            job, thread, context, job.d_model, panels, count, scratch, bias, logits, job.s1_outputs
        )


@compiled
def predict_s2(job, thread, sync, rows, scratch, weights, kept):
    """From the chosen s1 to the logits of s2."""
    x, q, mixed = array_at(job.x, FLOATS), array_at(job.q, FLOATS), array_at(job.mixed, FLOATS)
    context, ones = array_at(job.context, FLOATS), array_at(job.ones, FLOATS)
    s1, queries = array_at(job.s1, WHOLE), array_at(job.queries, FLOATS)
    cache, d_model, num_threads = job.dependency, job.d_model, job.num_threads
    width = cache.num_heads * cache.head_dim
    first, last = part_of(job.num_rows, thread, num_threads)
    for row in range(first, last):
        for element in range(0, width, LANES):
            store(q, row * ROW_SIZE + element, load(queries, s1[row] * width + element))
    barrier(sync, num_threads)
    k, v = array_at(cache.k, kept), array_at(cache.v, kept)
    attend_all(job, cache, FIRST, k, v, rows, q, mixed, scratch, FIRST)
    barrier(sync, num_threads)
    panels, bias = array_at(job.dependency_out, weights), array_at(job.dependency_out_bias, FLOATS)
    project_sum(job, thread, mixed, width, panels, -(-d_model // PANEL), scratch, bias, context, x)
    barrier(sync, num_threads)
    normalise(job, thread, x, ones, x)
    barrier(sync, num_threads)
    panels, bias = array_at(job.s2_head, weights), array_at(job.s2_head_bias, FLOATS)
    count, logits = job.s2_outputs // PANEL, array_at(job.logits, FLOATS)
    project_logits(job, thread, x, d_model, panels, count, scratch, bias, logits, job.s2_outputs)


@njit(cache=IS_CACHED, **OPTIONS)
def run(jobs, thread, sync, weights, kept):
    """Do the posted job as thread 0, or every job that is posted, until the one to stop, as another thread.

    ``weights`` and ``kept`` are empty arrays of the types of weights and of cached keys and values.
    """
    seen = FIRST
    while True:
        if thread:
            seen = wait_for_job(sync, seen)
        elif jobs[0].num_threads > 1:
            post_job(sync)
        job = jobs[0]
        if job.task == STOP:
            return
        if thread < job.num_threads:
            rows = array_at(job.rows, ROWS)
            scratch = array_at(job.scratch + thread * job.scratch_floats * 4, FLOATS)
            if job.task == TO_S2:
                predict_s2(job, thread, sync, rows, scratch, weights, kept)
            else:
                run_blocks(job, thread, sync, rows, scratch, weights, kept)
                predict_s1(job, thread, rows, scratch, weights, kept)
            barrier(sync, job.num_threads)
        if not thread:
            return


DTYPES: dict[str, type[Any]] = {"float32": np.float32, "bfloat16": np.uint16}
"""NumPy's types for those of weights, and of cached keys and values."""


def compile_for(weights: str, kept: str) -> None:
    """Compile ``run`` for two of the ``DTYPES``, or load it from the cache."""
    jobs, whole = (types.Array(kind, 1, "C") for kind in (from_dtype(JOB), types.int64))
    floats = (types.Array(from_dtype(np.dtype(DTYPES[name])), 1, "C") for name in (weights, kept))
    run.compile(types.void(jobs, types.int64, whole, *floats))
    prepare.compile(types.void(whole))
