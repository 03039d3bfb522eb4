"""Products of some rows with weights in panels of 32 outputs, a panel at a time.

A panel of a matrix of n inputs is [n][32] where registers have room for 14 rows of it (AVX-512), else two
halves [n][16] for 6 rows. Each output is one sum in the order of the inputs, whatever rows are computed with
it, on every CPU.
"""

from numba import config, njit

from kronos_model.engine.native.vectors import LANES, add_outer, load_rows, prefetch, store_rows, zeros

IS_CACHED = bool(config.CACHE_DIR)
"""Without a folder Numba would choose one that nobody checked."""
OPTIONS = {"error_model": "numpy", "nogil": True}
# Only kernels call these. Wrappers for Python and C are a third of the compilation.
compiled = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)

PANEL = 32
"""Outputs of a panel."""
ROW_SIZE = 8192 + LANES
"""Floats from one row of a matrix of rows to the next, whatever it has of them: so the addresses of some rows
are one register and constants. Not a power of two, for which a cache has few places."""


IS_WIDE = "+avx512f" in config.CPU_FEATURES
WIDTH = 2 if IS_WIDE else 1
"""Vectors of a row that are computed at once."""
MAX_ROWS = 14 if IS_WIDE else 6
"""Rows that are computed at once: as many as registers hold the sums of."""
AHEAD = 48
"""How many inputs earlier weights are fetched into the cache."""
BARS_AHEAD = 24
"""How many bars earlier keys and values are."""


def by_number(make, last, first=1):
    """A function of a number from ``first`` to ``last`` that calls what ``make`` compiled for it."""
    if first == last:
        return make(first)
    middle = (first + last) // 2
    lower, upper = by_number(make, middle, first), by_number(make, last, middle + 1)

    @compiled
    def call(number, *arguments):
        if number <= middle:
            lower(number, *arguments)
        else:
            upper(number, *arguments)

    return call


def _multiply(num_rows):
    num_sums = num_rows * WIDTH

    @compiled
    def multiply(_, x, at, weights, panel, num_inputs, out):
        """Rows of x from ``at`` on, times a panel, into out (rows, 32)."""
        for half in range(0, 2, WIDTH):
            sums = zeros(num_sums)
            first = panel + half * num_inputs * LANES
            for number in range(num_inputs):
                place = first + number * WIDTH * LANES
                prefetch(weights, place + AHEAD * WIDTH * LANES, 3)
                if WIDTH == 2:
                    prefetch(weights, place + AHEAD * WIDTH * LANES + LANES, 3)
                sums = add_outer(sums, x, at + number, ROW_SIZE, load_rows(weights, place, 0, 1, WIDTH))
            store_rows(sums, out, half * LANES, PANEL, WIDTH)

    return multiply


multiply = by_number(_multiply, MAX_ROWS)


def _average(num_rows):
    @compiled
    def average(_, weights, at, values, place, size, count, out, out_at):
        """Add to 16 elements of each row of out those of values (count, size), times the row's weights."""
        sums = load_rows(out, out_at, ROW_SIZE, num_rows, 1)
        for number in range(count):
            value = load_rows(values, place + number * size, 0, 1, 1)
            sums = add_outer(sums, weights, at + number, ROW_SIZE, value)
        store_rows(sums, out, out_at, ROW_SIZE, 1)

    return average


average = by_number(_average, MAX_ROWS)


def _average_one(width):
    @compiled
    def average_one(_, weights, at, values, place, size, count, out, out_at):
        """The same for one row and ``width`` times 16 elements."""
        sums = load_rows(out, out_at, 0, 1, width)
        for number in range(count):
            bar = place + number * size
            for vector in range(width):
                prefetch(values, bar + BARS_AHEAD * size + vector * LANES, 3)
            sums = add_outer(sums, weights, at + number, 0, load_rows(values, bar, 0, 1, width))
        store_rows(sums, out, out_at, 0, width)

    return average_one


MAX_WIDTH = 4
average_one = by_number(_average_one, MAX_WIDTH)
