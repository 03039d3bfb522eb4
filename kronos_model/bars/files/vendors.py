"""How vendors write candle files, as data: a row for each. Files and frames are recognised by it.

To add a vendor, add a row here and a sample to the tests. Titles are in lower case.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kronos_model.bars.columns import AMOUNT, COLUMNS, PRICE_COLUMNS, TIME_COLUMNS, VOLUME
from kronos_model.bars.files.options import TIMES, VALUE
from kronos_model.errors import CandleFileError

TIME_OF_DAY: Final = "time"
"""The column of times of day, if ``TIMES`` has only dates."""
INSTRUMENT: Final = "instrument"
TIME_TITLES: Final = (*TIME_COLUMNS, "open_time", "open time", "ds")
ANY: Final = "*"
"""Any title that has no other meaning."""
VALUE_TITLES: Final = ("value", "y", "target")
_ENGLISH: Final = {name: (name,) for name in PRICE_COLUMNS} | {
    COLUMNS[VOLUME]: ("volume", "tickvol", "vol"),  # MetaTrader has two; that of ticks is never blank
    COLUMNS[AMOUNT]: ("amount", "quote_asset_volume", "quote_volume"),
}
_HANDS: Final = "lots of 100 shares"
_LOCAL: Final = "of the exchange"


@dataclass(frozen=True)
class Vendor:
    """How one vendor writes candles.

    Attributes:
        name: of the vendor or program.
        source: the documentation, and when it was read.
        titles: the file's possible titles of our columns, the likeliest first. Without ``TIMES`` among them,
            the time has a usual title. A column of values is one value a bar.
        marks: further titles that the vendor's files have, which tell them from others.
        order: our names of the columns of a file without titles, in their order; "" for those not used.
            Its first column holds times of ``digits``.
        digits: of the times of such a file, which give their unit; 0 for dates.
        units: of our columns, where they are not plain numbers of shares or coins and of money.
        date_format: in which day and month have a fixed order, although both may be below 13.
        encoding: of its files that are not UTF-8.
        rewrites: patterns in cells of numbers, and what replaces them, in order.
        zone: of the times, for people.
    """

    name: str
    source: str = ""
    titles: Mapping[str, Sequence[str]] = field(default_factory=lambda: _ENGLISH)
    marks: Sequence[str] = ()
    order: Sequence[str] = ()
    digits: Collection[int] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None
    encoding: str = "utf-8"
    rewrites: Sequence[tuple[str, str]] = ()
    zone: str = ""

    @property
    def is_value(self) -> bool:
        """Whether each bar has one value."""
        return VALUE in self.titles

    def found_in(self, titles: Sequence[str], given: Collection[str]) -> dict[str, str]:
        """The titles of our columns among those of a file, without those of ``given`` columns.

        Raises CandleFileError if several could be the values.
        """
        known = {each for name in self.titles for each in self.titles[name]}
        found: dict[str, str] = {}
        for name in self.titles.keys() - given:
            fits = [title for title in titles if title and title not in known] if name == VALUE else []
            fits = [title for title in self.titles[name] if title in titles] or fits * (ANY in known)
            if name == VALUE and len(fits) > 1:
                text = f"several columns that may hold the values, {', '.join(fits)}: name one of them"
                raise CandleFileError(text, field=VALUE)
            found |= {name: fits[0]} if fits else {}
        return found


PLAIN: Final = Vendor("plain columns")
SIDE_BY_SIDE: Final = Vendor("yfinance, several tickers", "ranaroussi.github.io/yfinance, download, 2026-11")
VALUES: Final = Vendor("one value a bar", titles={VALUE: VALUE_TITLES})
VENDORS: Final = (
    PLAIN,
    Vendor(
        "MetaTrader 5", "metatrader5.com/en/terminal/help/trading_advanced/custom_instruments, 2026-11",
        marks=("tickvol", "spread"), units={"volume": "ticks"}, zone="of the broker",
    ),
    Vendor(
        "AkShare or Eastmoney", "akshare.akfamily.xyz, stock_zh_a_hist and stock_zh_a_hist_min_em, 2026-11",
        {TIMES: ("日期", "时间"), INSTRUMENT: ("股票代码",), "open": ("开盘",), "high": ("最高",),
         "low": ("最低",), "close": ("收盘",), "volume": ("成交量",), "amount": ("成交额",)},
        units={"volume": _HANDS, "amount": "yuan"}, encoding="gb18030", zone=_LOCAL,
    ),
    Vendor(
        "Tushare", "tushare.pro/document/2?doc_id=27, 2026-11",
        _ENGLISH | {TIMES: ("trade_date",), INSTRUMENT: ("ts_code",)},
        units={"volume": _HANDS, "amount": "thousand yuan"}, date_format="%Y%m%d", zone=_LOCAL,
    ),
    Vendor(
        "Korea Exchange or a Korean broker", "data.krx.co.kr, 개별종목 시세 추이, 2026-11",
        {TIMES: ("일자", "날짜"), TIME_OF_DAY: ("시간",), "open": ("시가",), "high": ("고가",),
         "low": ("저가",), "close": ("종가",), "volume": ("거래량",), "amount": ("거래대금",)},
        units={"amount": "won"}, encoding="cp949", zone=_LOCAL,
    ),
    Vendor(
        "a German, Swiss or Austrian broker", "wienerborse.at and boerse.de, historical prices, 2026-11",
        {TIMES: ("datum",), TIME_OF_DAY: ("zeit", "uhrzeit"),
         "open": ("eröffnung", "eröffnungspreis", "eröffnungskurs", "erster"),
         "high": ("hoch", "tageshoch"), "low": ("tief", "tagestief"),
         "close": ("schluss", "schlusspreis", "schlusskurs"),
         "volume": ("volumen", "stückumsatz"), "amount": ("geldumsatz",)},
        encoding="cp1252", rewrites=(("^-$", ""),), zone=_LOCAL,
    ),
    Vendor(
        "Ariva", "ariva.de, historical prices as CSV, 2026-11",
        {TIMES: ("datum",), "open": ("erster",), "high": ("hoch",), "low": ("tief",),
         "close": ("schlusskurs", "schluss"), "volume": ("stuecke",), "amount": ("volumen",)},
        marks=("stuecke",), units={"volume": "shares", "amount": "money"}, encoding="cp1252", zone=_LOCAL,
    ),
    Vendor(
        "Polygon (Massive) aggregates", "massive.com/docs/rest/stocks/aggregates, 2026-11",
        {TIMES: ("t",), "open": ("o",), "high": ("h",), "low": ("l",), "close": ("c",), "volume": ("v",)},
        zone="UTC",
    ),
    Vendor(
        "Polygon (Massive) flat files", "massive.com/docs/flat-files/stocks/day-aggregates, 2026-11",
        _ENGLISH | {TIMES: ("window_start",), INSTRUMENT: ("ticker",)}, zone="UTC",
    ),
    Vendor(
        "Alpha Vantage", "alphavantage.co/documentation, 2026-11",
        {"open": ("1. open",), "high": ("2. high",), "low": ("3. low",), "close": ("4. close",),
         "volume": ("5. volume", "6. volume")},
        zone=_LOCAL,
    ),
    Vendor(
        "Nasdaq", "nasdaq.com/market-activity, historical data, 2026-11",
        _ENGLISH | {"close": ("close/last",)}, date_format="%m/%d/%Y",
        rewrites=((r"^\$", ""), ("^N/A$", "")), zone=_LOCAL,
    ),
    Vendor(
        "Interactive Brokers", "interactivebrokers.github.io/tws-api/historical_bars.html, 2026-11",
        marks=("average", "barcount"), rewrites=((r"^-1(\.0+)?$", ""),), zone="of the account",
    ),
    Vendor(
        "Investing.com", "investing.com, historical data, 2026-11",
        _ENGLISH | {"close": ("price",), "volume": ("vol.",)}, marks=("change %",),
        rewrites=(("^-$", ""), ("K$", "e3"), ("M$", "e6"), ("B$", "e9")), zone=_LOCAL,
    ),
    Vendor(
        "MetaTrader 4", "histdata.com and MetaTrader 4, History Center, 2026-11",
        order=(TIMES, TIME_OF_DAY, "open", "high", "low", "close", "volume"), digits=(0,),
        units={"volume": "ticks"}, zone="of the broker",
    ),
    Vendor(
        "Binance", "developers.binance.com, klines, 2026-11",
        order=(TIMES, "open", "high", "low", "close", "volume", "", "amount", "", "", "", ""),
        digits=(13, 16), zone="UTC",
    ),
    Vendor(
        "Kraken", "support.kraken.com, downloadable historical OHLCVT data, 2026-11",
        order=(TIMES, "open", "high", "low", "close", "volume", ""), digits=(10,), zone="UTC",
    ),
    Vendor(
        "Coinbase Exchange", "docs.cdp.coinbase.com, get product candles, 2026-11",
        order=(TIMES, "low", "high", "open", "close", "volume"), digits=(10,), zone="UTC",
    ),
    Vendor(
        "Bybit", "bybit-exchange.github.io/docs/v5/market/kline, 2026-11",
        order=(TIMES, "open", "high", "low", "close", "volume", "amount"), digits=(13,), zone="UTC",
    ),
    Vendor(
        "ccxt", "docs.ccxt.com, fetchOHLCV, 2026-11",
        order=(TIMES, "open", "high", "low", "close", "volume"), digits=(13,), zone="UTC",
    ),
    VALUES,
    Vendor(
        "FRED", "fred.stlouisfed.org/docs/api/fred/series_observations.html, 2026-11",
        {TIMES: ("observation_date",), VALUE: (ANY,)}, rewrites=((r"^\.$", ""),),
    ),
)  # fmt: skip
"""Plain columns come first, one value a bar last: it counts only for files without candles."""
ENCODINGS: Final = tuple(dict.fromkeys(each.encoding for each in VENDORS if each.encoding != "utf-8"))


def recognise(titles: Sequence[str], given: Collection[str] = ()) -> tuple[Vendor, dict[str, str]]:
    """The vendor whose titles these are, in lower case, and its titles of our columns.

    ``PLAIN`` if it is none. Of two vendors, the one that explains more of the titles counts.

    Args:
        given: our names of columns whose title is known.

    Raises:
        CandleFileError: two vendors read the file differently, or several columns may hold the values.
    """
    has_prices = any(name in titles or name in given for name in PRICE_COLUMNS)
    usual_time = next((title for title in TIME_TITLES if title in titles), "")
    fits: list[tuple[Vendor, dict[str, str]]] = []
    for vendor in VENDORS:
        if vendor.order or not {*vendor.marks} <= {*titles} or (VALUE in given) > vendor.is_value:
            continue
        if vendor.is_value and (has_prices or any(not each.is_value for each, _ in fits)):
            continue
        if TIMES not in given and not {*vendor.titles.get(TIMES, titles)} & {*titles}:
            continue
        times = {} if TIMES in vendor.titles or TIMES in given else {TIMES: usual_time}
        found = times | vendor.found_in(titles, given)
        wanted = (TIMES, VALUE) if vendor.is_value else (TIMES, *PRICE_COLUMNS)
        if all(name in found or name in given for name in wanted):
            fits.append((vendor, found))
    explained = [{*vendor.marks, *found.values()} - {""} for vendor, found in fits]
    best = [
        fit for fit, own in zip(fits, explained, strict=True) if not any(own < other for other in explained)
    ]
    for other in best[1:]:
        for name in (TIMES, *COLUMNS):
            if best[0][1].get(name) != other[1].get(name):
                forms = (
                    f"{form.name}, with {name} in {at.get(name, 'none')}" for form, at in (best[0], other)
                )
                raise CandleFileError(f"columns that fit two forms, {' and '.join(forms)}", field=name)
    return best[0] if best else (PLAIN, PLAIN.found_in(titles, given))
