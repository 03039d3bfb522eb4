"""The order of the columns of a file without titles, proved by its values."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.clock import ClockError, join_date_and_time, read_clock
from kronos_model.bars.files.header import Cells, Header
from kronos_model.bars.files.numbers import read_numbers
from kronos_model.bars.files.options import TIMES
from kronos_model.bars.files.vendors import VENDORS, Vendor
from kronos_model.errors import CandleFileError

NUM_ROWS: Final = 65_536
"""Rows that are looked at, from the first."""
MAX_RANGE: Final = 2.0
"""The usual high of bars, as a multiple of their low, above which a column is no price of the same bars."""
MIN_GAPS: Final = 16
"""From so many bars, openings near the closes before them prove which is which; below they must be equal."""

Numbers = dict[int, NDArray[np.float64]]
"""The columns of numbers by their place, (T,) each."""


def ordered(path: Path, cells: Cells, decimal: str | None) -> Cells:
    """The columns by our names. Raises CandleFileError if the values do not prove which is which."""
    columns = [column.cast(pa.string()) for column in cells.columns.values()]
    proven = [vendor for vendor in VENDORS if _proves(vendor, columns, cells.separator, decimal)]
    if len(proven) != 1:
        text = f"{path} has no header, line 1 holds numbers, and the values do not prove the order of the "
        text += "columns: add a line with the titles, or name each column by its number, timestamps=1, open=2"
        raise CandleFileError(text, field=TIMES)
    places = {name: place for place, name in enumerate(proven[0].order) if name}
    titles = [name or title for name, title in zip(proven[0].order, cells.header.titles, strict=True)]
    header = Header(titles, places, cells.header.num_rows, proven[0])
    given = list(cells.columns.values())
    return replace(cells, header=header, columns={name: given[place] for name, place in places.items()})


def _proves(vendor: Vendor, columns: list[Any], separator: str | None, decimal: str | None) -> bool:
    """Whether the file has the vendor's columns, and its values fit no other order of them."""
    if len(vendor.order) != len(columns):
        return False
    columns = [column.slice(0, NUM_ROWS) for column in columns]
    dates = vendor.digits == (0,)
    forms = ["[0-9]{4}[.][0-9]{2}[.][0-9]{2}" if dates else "|".join(f"[0-9]{{{n}}}" for n in vendor.digits)]
    forms += ["[0-9]{2}:[0-9]{2}(:[0-9]{2})?"] if dates else []
    for column, form in zip(columns, forms, strict=False):
        if not pc.all(pc.match_substring_regex(column, f"^({form})$")).as_py():
            return False
    try:
        instants = read_clock(join_date_and_time(*columns[:2]) if dates else columns[0]).instants
        numbers = {str(place): each for place, each in enumerate(columns) if not dates or place >= len(forms)}
        found = read_numbers(numbers, separator, decimal)
    except (ClockError, CandleFileError):
        return False
    steps = np.diff(instants).astype(np.int64)
    if np.isnat(instants).any() or not ((steps >= 0).all() or (steps <= 0).all()):
        return False
    order = np.argsort(instants, kind="stable")
    values = {place: found[str(place)][order] for place in range(len(forms), len(columns))}
    if not all(np.isfinite(each).all() for each in values.values()):
        return False
    own = {name: place for place, name in enumerate(vendor.order) if name}
    opens, highs, lows, closes, *_ = (values[own[name]] for name in COLUMNS if name in own)
    orders = list(_price_orders(values))
    same = (
        np.stack([lows, highs, np.minimum(opens, closes), np.maximum(opens, closes)]) == each
        for each in orders
    )
    rest = {place: each for place, each in values.items() if vendor.order[place] not in COLUMNS[:4]}
    times = found["0"][order] if not dates else None
    return (
        len(orders) > 0
        and all(each.all() for each in same)
        and _opens_first(opens, closes)
        and _is_volume(vendor, rest, own, lows, highs, times)
    )


def _price_orders(values: Numbers) -> Iterator[NDArray[np.float64]]:
    """Low, high, and the smaller and larger of open and close, of all columns that could be these."""
    at_most = {(a, b): bool((values[a] <= values[b]).all()) for a, b in permutations(values, 2)}
    for low, high in permutations(values, 2):
        if not at_most[low, high] or not (values[low] > 0).all():
            continue
        if np.median(values[high] / values[low]) > MAX_RANGE:
            continue
        within = [each for each in values if at_most.get((low, each)) and at_most.get((each, high))]
        for one, other in combinations(within, 2):
            pair = np.minimum(values[one], values[other]), np.maximum(values[one], values[other])
            yield np.stack([values[low], values[high], *pair])


def _opens_first(opens: NDArray[np.float64], closes: NDArray[np.float64]) -> bool:
    """Whether bars open where the one before closed, and not the other way round."""
    gaps = float(np.abs(opens[1:] - closes[:-1]).sum())
    gaps_if_swapped = float(np.abs(closes[1:] - opens[:-1]).sum())
    is_clear = 1.5 * gaps <= gaps_if_swapped and (len(opens) > MIN_GAPS or gaps == 0) and gaps_if_swapped > 0
    return is_clear or bool((opens == closes).all())


def _is_volume(
    vendor: Vendor, rest: Numbers, own: dict[str, int], lows: NDArray[np.float64],
    highs: NDArray[np.float64], times: NDArray[np.float64] | None,
) -> bool:  # fmt: skip
    """Whether no other column than the vendor's can be the volume, or the amount: volume times a price."""
    volume, amount = own["volume"], own.get("amount")
    ends = []
    if times is not None:
        ends = [place for place, each in rest.items() if 2 * each.min() > times.max()]
        if any((rest[place] < times).any() or vendor.order[place] for place in ends):
            return False
    others = {place: each for place, each in rest.items() if place not in ends}

    def is_product(one: int, other: int) -> bool:
        traded = others[one] > 0
        each, result = others[one][traded], others[other][traded]
        fits = (0.99 * lows[traded] * each <= result) & (result <= 1.01 * highs[traded] * each)
        return bool(traded.any() and fits.mean() > 0.95)

    products = {pair for pair in permutations(others, 2) if is_product(*pair)}
    if amount is None:
        whole = {place: bool((each % 1 == 0).all()) for place, each in others.items()}
        return len(others) == 1 or (
            not products and not whole[volume] and all(whole[each] for each in others if each != volume)
        )
    if (volume, amount) not in products:
        return not products and bool(ends)
    parts = products - {(volume, amount)}  # such as what takers bought, which is less
    return all(
        len({one, other, volume, amount}) == 4
        and (others[one] <= others[volume]).all()
        and (others[other] <= others[amount]).all()
        for one, other in parts
    )
