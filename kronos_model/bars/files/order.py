"""The order of the columns of a file without titles, proved by its values."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.bars.files.clock import read_clock
from kronos_model.bars.files.header import Cells, Header, misfit, unproved
from kronos_model.bars.files.options import TIME_OF_DAY
from kronos_model.bars.files.vendors import VENDORS, Vendor

NUM_ROWS: Final = 8_192
"""Rows that are looked at, from the first."""
MAX_RANGE: Final = 2.0
"""The usual high of bars, as a multiple of their low, above which a column is no price of the same bars."""
MAX_MISFITS: Final = 0.05
"""Rows with mistakes, as a share of the others, with which the order is still proved."""
MIN_LIKELY: Final = 0.8
"""The share of rows that fit a vendor's order from which the first other one is named as a mistake."""
MIN_GAPS: Final = 16
"""From so many bars, openings near the closes before them prove which is which; below they must be equal."""

Numbers = dict[int, NDArray[np.float64]]
"""The columns of numbers by their place, (T,) each."""


def ordered(path: Path, cells: Cells) -> Cells:
    """The columns by our names. Raises CandleFileError if the values do not prove which is which."""
    columns = list(cells.columns.values())
    first = [column.slice(0, NUM_ROWS).cast(pa.string()) for column in columns]
    vendors = [vendor for vendor in VENDORS if len(vendor.order) == len(columns)]
    fits = [_fits(vendor, first) for vendor in vendors]
    proved = [vendor for vendor, some in zip(vendors, fits, strict=True) if _proves(vendor, first, some)]
    if len(proved) != 1:
        likeliest = max(range(len(vendors)), key=lambda number: fits[number].sum(), default=None)
        if likeliest is None or not MIN_LIKELY <= fits[likeliest].mean() < 1:
            raise unproved(path)
        row = int(np.argmin(fits[likeliest]))
        cells_of_row = [column[row].as_py() for column in first]
        raise misfit(path, vendors[likeliest], int(cells.numbers[row]), cells_of_row)
    places = {name: place for place, name in enumerate(proved[0].order) if name}
    titles = [name or title for name, title in zip(proved[0].order, cells.header.titles, strict=True)]
    header = Header(titles, places, cells.header.num_rows, proved[0])
    return replace(cells, header=header, columns={name: columns[place] for name, place in places.items()})


def _fits(vendor: Vendor, columns: Sequence[Any]) -> NDArray[np.bool_]:
    """Which rows have times in the vendor's form, and possible numbers in its order."""
    times, numbers = _parts(vendor, columns)
    opens, highs, lows, closes = (numbers[vendor.order.index(name)] for name in PRICE_COLUMNS)
    fits: NDArray[np.bool_] = (
        (lows > 0) & (lows <= np.minimum(opens, closes)) & (np.maximum(opens, closes) <= highs)
    )
    for each in numbers.values():
        fits &= np.isfinite(each) & (each >= 0)
    return fits & _are_times(vendor, times)


def _parts(vendor: Vendor, columns: Sequence[Any]) -> tuple[Any, Numbers]:
    """The times, and the columns of numbers, NaN where a cell is none."""
    first = 2 if TIME_OF_DAY in vendor.order else 0  # a time of one column is a number
    floats = [pd.to_numeric(column.to_pandas(), errors="coerce") for column in columns[first:]]
    numbers = dict(enumerate((each.to_numpy(np.float64) for each in floats), first))
    return pc.binary_join_element_wise(*columns[: first or 1], " "), numbers


def _are_times(vendor: Vendor, texts: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.match_substring_regex(texts, f"^({vendor.times})$").to_numpy())


def _proves(vendor: Vendor, columns: Sequence[Any], fits: NDArray[np.bool_]) -> bool:
    """Whether the file has the vendor's columns, and its values fit no other order of them.

    A few rows need not fit. Bars without a range fit in any order.
    """
    times, numbers = _parts(vendor, [column.filter(fits) for column in columns])
    low, high = (numbers[vendor.order.index(name)] for name in ("low", "high"))
    if not fits.any() or (~fits).sum() > MAX_MISFITS * (low < high).sum():
        return False
    order = np.argsort(read_clock(times).instants, kind="stable")
    numbers = {place: each[order] for place, each in numbers.items()}
    # Ends of bars, such as Binance's, are times too.
    ends = [place for place in numbers if place and _are_times(vendor, columns[place].filter(fits)).all()]
    if any(vendor.order[place] or (numbers[place] < numbers[0]).any() for place in ends):
        return False
    values = {place: each for place, each in numbers.items() if place and place not in ends}
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
