"""How vendors write candle files: ``vendors.json`` has a row for each, by which files are recognised.

To add a vendor, add a row there and a sample to the tests. Titles are in lower case, ``|`` separates those
that mean the same, and ``*`` is any title without another meaning.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kronos_model.bars.columns import AMOUNT, COLUMNS, PRICE_COLUMNS, TIME_COLUMNS, VOLUME
from kronos_model.bars.files.options import TIMES, VALUE
from kronos_model.errors import CandleFileError

INSTRUMENT: Final = "instrument"
SYMBOL: Final = "symbol"
"""A column that may name each row's instrument, if the options do not say which one does."""
TIME_TITLES: Final = (*TIME_COLUMNS, "open_time", "open time", "ds")
ENGLISH: Final = {name: name for name in PRICE_COLUMNS} | {
    COLUMNS[VOLUME]: "volume|tickvol|vol",  # MetaTrader has two; that of ticks is never blank
    COLUMNS[AMOUNT]: "amount|quote_asset_volume|quote_volume",
}
"""The titles of columns without others of their own."""


@dataclass(frozen=True)
class Vendor:
    """How one vendor writes candles.

    Attributes:
        name: of the vendor or program.
        source: the documentation, or the download whose public copies show the form; and when we looked.
        titles: the file's titles of our columns, the likeliest first. Without ``TIMES`` among them, the time
            has a usual title. A file with a column of values has one value a bar.
        marks: further titles that the vendor's files have, which tell them from others. Case counts only if
            they have capitals.
        above: the form of a line above the titles, as a regular expression.
        order: our names of the columns of a file without titles, in their order; "" for those not used.
        times: the form of the times of such a file, as a regular expression.
        units: of our columns, where they are not plain numbers of shares or coins and of money.
        date_format: where each day of a file may be a month too.
        encoding: of its files that are not UTF-8.
        decimal: the usual sign before decimals.
        rewrites: patterns in cells of numbers, and what replaces them, in order.
        zone: of the times, for people.
    """

    name: str
    source: str = ""
    titles: Mapping[str, str] = field(default_factory=dict)
    marks: Sequence[str] = ()
    above: str = ""
    order: Sequence[str] = ()
    times: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    rewrites: Sequence[tuple[str, str]] = ()
    zone: str = ""

    @property
    def is_value(self) -> bool:
        """Whether each bar has one value."""
        return VALUE in self.titles

    def found_in(self, titles: Collection[str], given: Collection[str] = ()) -> dict[str, str]:
        """The titles of our columns among those of a file, without those of ``given`` columns.

        Raises CandleFileError if several could be the values.
        """
        own = self.titles if self.is_value else ENGLISH | dict(self.titles)
        known = {name: text.split("|") for name, text in own.items()}
        found: dict[str, list[str]] = {}
        for name in known.keys() - given:
            found[name] = [title for title in known[name] if title in titles]
            if known[name] == ["*"]:
                found[name] = [title for title in titles if title and [title] not in known.values()]
        if len(values := found.get(VALUE, [])) > 1:
            text = f"several columns that may hold the values, {', '.join(values)}: name one of them"
            raise CandleFileError(text, field=VALUE)
        return {name: fits[0] for name, fits in found.items() if fits}


_ROWS: Any = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VENDORS: Final = tuple(Vendor(**row) for row in _ROWS)
PLAIN, VALUES, SIDE_BY_SIDE = (
    next(vendor for vendor in VENDORS if vendor.name == name)
    for name in ("plain columns", "one value a bar", "yfinance, several tickers")
)
EXCEL: Final = r'^\s*"?sep=[,;|\t]"?\s'
"""The line above the titles by which Excel knows the separator."""
ABOVE_TITLES: Final = re.compile("|".join([EXCEL, *(each.above for each in VENDORS if each.above)]).encode())
ENCODINGS: Final = tuple(dict.fromkeys(each.encoding for each in VENDORS if each.encoding != "utf-8"))


def recognise(titles: Collection[str], given: Collection[str] = ()) -> tuple[Vendor, dict[str, str]]:
    """The vendor whose titles these are, and its titles of our columns, in lower case.

    ``PLAIN`` if it is none. Of two vendors, the one that explains more of the titles counts. One value a bar
    counts for files without prices.

    Args:
        given: our names of columns whose title is known.

    Raises:
        CandleFileError: two vendors read the file differently, or several columns may hold the values.
    """
    spelt, titles = {*titles}, dict.fromkeys(map(str.lower, titles))  # a hostile file may have 100,000
    usual_time = next((title for title in TIME_TITLES if title in titles), "")
    has_prices = any(name in titles or name in given for name in PRICE_COLUMNS)
    fits: list[tuple[Vendor, dict[str, str], set[str]]] = []
    candidates = sorted(VENDORS, key=lambda each: each.is_value)
    own_prices = [each for each in candidates if {*PRICE_COLUMNS} <= each.titles.keys()]
    tries = [(each, False) for each in candidates] + [(each, True) for each in own_prices]
    for vendor, has_other_times in tries:  # the titles of all prices show a vendor without its title of times
        if has_other_times and fits:
            break
        time = vendor.titles.get(TIMES)
        is_other = (VALUE in given) > vendor.is_value or (vendor.is_value and has_prices)
        if vendor.order or is_other or not {*vendor.marks} <= spelt.union(titles):
            continue
        if time is not None and TIMES not in given and not {*time.split("|")} & {*titles}:
            if not has_other_times:
                continue
            time = None
        found = ({} if time or TIMES in given else {TIMES: usual_time}) | vendor.found_in(titles, given)
        if all(name in found or name in given for name in ((VALUE,) if vendor.is_value else PRICE_COLUMNS)):
            fits.append((vendor, found, {*vendor.marks, *found.values()} - {"", usual_time}))
            has_prices |= not vendor.is_value
    fits = [fit for fit in fits if not any(fit[2] < other[2] for other in fits)]
    for name in (TIMES, *COLUMNS):
        if len({found.get(name) for _, found, _ in fits}) > 1:
            forms = (
                f"{vendor.name}, with {name} in {found.get(name) or 'none'}" for vendor, found, _ in fits
            )
            raise CandleFileError(f"columns that fit two forms, {' and '.join(forms)}", field=name)
    vendor, found = fits[0][:2] if fits else (PLAIN, PLAIN.found_in(titles, given))
    is_own_time = found.get(TIMES) in vendor.titles.get(TIMES, "").split("|")
    return vendor, {name: title for name, title in found.items() if name != TIMES or (title and is_own_time)}
