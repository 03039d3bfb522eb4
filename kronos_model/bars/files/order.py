"""The order of the columns of a file without titles, proved by its values."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.bars.files.clock import read_clock
from kronos_model.bars.files.header import Cells, Header, unproved
from kronos_model.bars.files.vendors import TIME_OF_DAY, VENDORS, Vendor

NUM_ROWS: Final = 8_192
"""Rows that are looked at, from the first."""
MAX_RANGE: Final = 2.0
"""The usual high of bars, as a multiple of their low, above which a column is no price of the same bars."""
MIN_GAPS: Final = 16
"""From so many bars, openings near the closes before them prove which is which; below they must be equal."""

Numbers = dict[int, NDArray[np.float64]]
"""The columns of numbers by their place, (T,) each."""


def ordered(path: Path, cells: Cells) -> Cells:
    """The columns by our names. Raises CandleFileError if the values do not prove which is which."""
    columns = list(cells.columns.values())
    first = [column.slice(0, NUM_ROWS).cast(pa.string()) for column in columns]
    proved = [vendor for vendor in VENDORS if _proves(vendor, first)]
    if len(proved) != 1:
        raise unproved(path)
    places = {name: place for place, name in enumerate(proved[0].order) if name}
    titles = [name or title for name, title in zip(proved[0].order, cells.header.titles, strict=True)]
    header = Header(titles, places, cells.header.num_rows, proved[0])
    return replace(cells, header=header, columns={name: columns[place] for name, place in places.items()})


def _proves(vendor: Vendor, columns: Sequence[Any]) -> bool:
    """Whether the file has the vendor's columns, and its values fit no other order of them."""
    if len(vendor.order) != len(columns):
        return False
    num_times = 2 if TIME_OF_DAY in vendor.order else 1
    times = pc.binary_join_element_wise(*columns[:num_times], " ")
    are_times = [
        pc.all(pc.match_substring_regex(each, f"^({vendor.times})$")).as_py() for each in (times, *columns)
    ]
    if not are_times[0]:
        return False
    instants = read_clock(times).instants.astype(np.int64)
    forward = slice(None, None, -1 if instants[0] > instants[-1] else 1)
    first = num_times if num_times > 1 else 0
    try:
        floats = [column.cast(pa.float64()).to_numpy()[forward] for column in columns[first:]]
    except pa.ArrowInvalid:
        return False
    numbers = dict(enumerate(map(np.asarray, floats), first))
    if (np.diff(instants[forward]) < 0).any() or not np.isfinite(floats).all():
        return False
    ends = [place for place in numbers if place and are_times[1 + place]]  # of bars, such as Binance's
    if any(vendor.order[place] or (numbers[place] < numbers[0]).any() for place in ends):
        return False
    values = {place: each for place, each in numbers.items() if place >= num_times and place not in ends}
    opens, highs, lows, closes = (values[vendor.order.index(name)] for name in PRICE_COLUMNS)
    own = np.stack([lows, highs, np.minimum(opens, closes), np.maximum(opens, closes)])
    orders = list(_price_orders(values))
    is_alone = bool(orders) and all((own == each).all() for each in orders)
    rest = {place: each for place, each in values.items() if vendor.order[place] not in PRICE_COLUMNS}
    return is_alone and _opens_first(opens, closes) and _is_volume(vendor, rest, lows, highs, bool(ends))


def _price_orders(values: Numbers) -> Iterator[NDArray[np.float64]]:
    """Low, high, and the smaller and larger of open and close, of all columns that could be these."""
    at_most = {(a, b): bool((values[a] <= values[b]).all()) for a, b in permutations(values, 2)}
    for low, high in permutations(values, 2):
        is_price = at_most[low, high] and (values[low] > 0).all()
        if is_price and np.median(values[high] / values[low]) <= MAX_RANGE:
            within = [each for each in values if at_most.get((low, each)) and at_most.get((each, high))]
            for pair in combinations([values[each] for each in within], 2):
                yield np.stack([values[low], values[high], np.minimum(*pair), np.maximum(*pair)])


def _opens_first(opens: NDArray[np.float64], closes: NDArray[np.float64]) -> bool:
    """Whether bars open where the one before closed, and not the other way round."""
    gaps = float(np.abs(opens[1:] - closes[:-1]).sum())
    if_swapped = float(np.abs(closes[1:] - opens[:-1]).sum())
    is_sure = gaps == 0 or len(opens) > MIN_GAPS
    return (is_sure and 1.5 * gaps <= if_swapped and if_swapped > 0) or bool((opens == closes).all())


def _is_volume(
    vendor: Vendor, rest: Numbers, lows: NDArray[np.float64], highs: NDArray[np.float64], has_ends: bool
) -> bool:
    """Whether no other column can be the volume, or the amount: volume times a price."""

    def is_product(one: int, other: int) -> bool:
        traded = rest[one] > 0
        volumes, result = rest[one][traded], rest[other][traded]
        fits = (0.99 * lows[traded] * volumes <= result) & (result <= 1.01 * highs[traded] * volumes)
        return bool(traded.any() and fits.mean() > 0.95)

    products = {pair for pair in permutations(rest, 2) if is_product(*pair)}
    volume = vendor.order.index("volume")
    if "amount" not in vendor.order:  # further columns hold at most numbers of trades, which are whole
        are_whole = [bool((each % 1 == 0).all()) == (place != volume) for place, each in rest.items()]
        return len(rest) == 1 or (not products and all(are_whole))
    own = (volume, vendor.order.index("amount"))
    if own not in products:
        return not products and has_ends
    # What takers bought is a part of both.
    parts = [(rest[one] <= rest[own[0]], rest[other] <= rest[own[1]]) for one, other in products - {own}]
    return all(np.logical_and(*part).all() for part in parts) and not any(
        {*pair} & {*own} for pair in products - {own}
    )
