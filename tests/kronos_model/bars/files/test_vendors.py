"""The forms of vendors: each has a sample, and what is ambiguous or cut is never read in silence."""

import gzip
import re
from itertools import combinations
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.bars.files import csv_cells
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.lookback import CandleFile, Lookback
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.files.vendors import SIDE_BY_SIDE, VENDORS
from kronos_model.errors import BadRow, CandleFileError
from tests.kronos_model.bars.files.candle_files import FOLDER, READABLE, file_of, options_of

CUT = ["ccxt.csv", "fred.csv", "german_broker.csv"]


def read(path: Path, **options: object) -> Lookback:
    return CandleFile(path, ReadOptions(**options)).last(99)  # type: ignore[arg-type]


def attempt(path: Path) -> Lookback | str:
    """The bars, or the error."""
    try:
        return read(path)
    except CandleFileError as error:
        return error.message


def test_every_vendor_has_a_sample() -> None:
    forms = {CandleFile(file_of(name), options_of(name)).explanation()[0] for name in READABLE}
    for vendor in (*VENDORS, SIDE_BY_SIDE):
        assert any(form.startswith(f"form: {vendor.name}") for form in forms), vendor.name
        is_public = vendor.name.split()[0] not in ("plain", "columns", "one")
        assert bool(re.search(r", 20\d\d-\d\d$", vendor.source)) >= is_public, (
            f"{vendor.name}: end its source with the month in which you read it, such as ', 2026-11'"
        )


def test_an_explanation_names_columns_units_zone_and_what_is_left_out(tmp_path: Path) -> None:
    assert CandleFile(FOLDER / "tushare.csv").explanation() == [
        "form: Tushare (as in tushare.pro/document/2?doc_id=27, 2026-11), by its titles",
        "timestamps: column trade_date",
        "open: column open",
        "high: column high",
        "low: column low",
        "close: column close",
        "volume: column vol, in lots of 100 shares",
        "amount: column amount, in thousand yuan",
        "symbol: column ts_code",
        "columns not used: pre_close, change, pct_chg",
        "times: 2024-06-18 to 2024-06-20",
        "zone: none in the file; it is that of the exchange",
        "rows: 3",
    ]
    path = tmp_path / "a.csv"
    path.write_text((FOLDER / "fred.csv").read_text() + "soon,4.2")
    found = CandleFile(path, ReadOptions(drop_bad_rows=True))
    assert found.explanation()[-4:] == [
        "rows: 4",
        "rows left out: 1 unreadable time",
        "the last line has no line end: the file may be cut, and its last number too short",
        "rows without a value, left out: 2",
    ]
    assert found.last(9).warnings[1:] == found.explanation()[-2:]


def walk(seed: int, num_bars: int, price: float, volume: float) -> pd.DataFrame:
    """Bars that open near the close before, as on a market without a break."""
    rng = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(rng.normal(0, 0.01, num_bars)))
    opens = np.concatenate([[price], close[:-1]]) * np.exp(rng.normal(0, 0.001, num_bars))
    highs = np.maximum(opens, close) * np.exp(np.abs(rng.normal(0, 0.004, num_bars)))
    lows = np.minimum(opens, close) * np.exp(-np.abs(rng.normal(0, 0.004, num_bars)))
    volumes = volume * np.exp(rng.normal(0, 1, num_bars))
    frame = {"open": opens, "high": highs, "low": lows, "close": close, "volume": volumes}
    extras = {"amount": volumes * (highs + lows) / 2, "trades": rng.integers(1, 99, num_bars)}
    return pd.DataFrame({"time": 1718668800 + 300 * np.arange(num_bars), **frame, **extras})


@given(
    seed=st.integers(0, 2**32 - 1),
    num_bars=st.sampled_from([2, 3, 17, 60]),
    price=st.sampled_from([1e-4, 1.0, 60_000.0]),
    volume=st.sampled_from([1e-2, 1.0, 50.0, 1e7]),
    extra=st.sampled_from([[], ["amount"], ["trades"]]),
    unit=st.sampled_from([1, 1000]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_columns_without_titles_in_any_order_are_read_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int, num_bars: int, price: float, volume: float, extra: list[str], unit: int, data: st.DataObject,
) -> None:  # fmt: skip
    bars = walk(seed, num_bars, price, volume)
    names = data.draw(st.permutations(["time", "open", "high", "low", "close", "volume", *extra]))
    path = tmp_path_factory.mktemp("order") / "a.csv"
    bars.assign(time=bars["time"] * unit)[list(names)].to_csv(path, header=False, index=False)
    found = attempt(path)
    if isinstance(found, str):
        assert "name each column by its number" in found
        return
    for name in found.candles.columns.drop("timestamps"):
        np.testing.assert_array_equal(found.candles[name], bars[name])


@pytest.mark.parametrize(
    ("order", "unit"),
    [
        ("time open high low close volume", 1000),
        ("time low high open close volume", 1),
        ("time open high low close volume amount", 1000),
        ("time open high low close volume trades", 1),
    ],
)
def test_two_swapped_columns_are_refused(tmp_path: Path, order: str, unit: int) -> None:
    bars = walk(1, 60, 60_000.0, 10.0)
    bars.loc[30, "high"] /= 2
    first, *names = order.split()
    swapped = []
    for one, other in combinations(range(len(names)), 2):
        swapped.append(list(names))
        swapped[-1][one], swapped[-1][other] = names[other], names[one]
    for some in [names, *swapped]:
        frame = bars.assign(time=bars["time"] * unit)[[first, *some]]
        frame.to_csv(tmp_path / "a.csv", header=False, index=False)
        if some == names:
            found = read(tmp_path / "a.csv", drop_bad_rows=True).candles
            assert found["close"].tolist() == bars["close"].drop(30).tolist()
        else:
            with pytest.raises(CandleFileError, match="do not prove the order"):
                read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"open": "n/a"}, "column open: there is 'n/a' where a number is needed"),
        ({"high": "0.5"}, "column high: '0.5' is below the low of the same bar"),
        ({"time": "25:77"}, "there is '2024.06.18 25:77' where a time"),
    ],
)
def test_a_bad_row_of_a_file_without_titles_is_named(
    tmp_path: Path, change: dict[str, str], words: str
) -> None:
    bars, path = walk(1, 60, 1.1, 900.0), tmp_path / "a.csv"
    times = pd.to_datetime(bars["time"], unit="s").dt
    bars.insert(0, "date", times.strftime("%Y.%m.%d"))
    bars["time"] = times.strftime("%H:%M")
    bars = bars.drop(columns=["amount", "trades"]).astype(object)
    bars.loc[40, list(change)] = list(change.values())
    bars.to_csv(path, sep=";", header=False, index=False)
    with pytest.raises(BadRow, match=rf"a.csv, line 41, .*{words}"):
        read(path)
    assert len(read(path, drop_bad_rows=True).candles) == 59
    # Of so few bars it proves too much.
    bars[36:46].to_csv(path, sep=";", header=False, index=False)
    with pytest.raises(
        CandleFileError, match=r"line 5, '2024.06.18, .* of MetaTrader 4: .* timestamps=1, time=2, o"
    ):
        read(path)
    columns = {name: str(place) for place, name in enumerate(["timestamps", *bars.columns[1:]], 1)}
    assert len(read(path, columns=columns, drop_bad_rows=True).candles) == 9


def test_bars_without_a_range_do_not_prove_an_order(tmp_path: Path) -> None:
    """As few rows tell apart high and open as there may be mistakes."""
    bars, path = walk(1, 60, 60_000.0, 10.0), tmp_path / "a.csv"
    for name in ("open", "high", "low"):
        bars[name] = np.where(np.arange(60) % 20 == 1, bars[name], bars["close"])
    bars["time"] *= 1000
    bars[["time", "high", "open", "low", "close", "volume"]].to_csv(path, header=False, index=False)
    with pytest.raises(CandleFileError, match="do not prove the order"):
        read(path)


def test_a_long_file_without_titles_is_proved_by_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = walk(1, 400, 60_000.0, 10.0).drop(columns=["amount", "trades"])
    bars.assign(time=bars["time"] * 1000).to_csv(tmp_path / "a.csv", header=False, index=False)
    monkeypatch.setattr(csv_cells, "HEAD_BYTES", 10_000)
    pd.testing.assert_frame_equal(
        read(tmp_path / "a.csv").candles.iloc[:, 1:], bars.iloc[-99:, 1:].reset_index(drop=True)
    )


@pytest.mark.parametrize("name", CUT)
def test_a_file_cut_at_any_byte_is_read_whole_or_named(tmp_path: Path, name: str) -> None:
    content = (FOLDER / name).read_bytes()
    whole = read(FOLDER / name).candles
    path = tmp_path / name
    num_read = 0
    for end in range(1, len(content)):
        path.write_bytes(content[:end])
        found = attempt(path)
        if isinstance(found, str):
            assert name in found
            continue
        if not any(note.startswith("the last line") for note in found.notes):
            num_read += 1
            assert content[:end].endswith((b"\n", b"\r"))
            rows = [whole["timestamps"].tolist().index(time) for time in found.candles["timestamps"]]
            pd.testing.assert_frame_equal(found.candles, whole.iloc[rows].reset_index(drop=True))
    assert num_read > 0


def test_cut_archives_and_parquet_are_named(tmp_path: Path) -> None:
    text = (FOLDER / "plain.csv").read_bytes() * 50
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text)[:-20])
    pd.read_csv(FOLDER / "plain.csv").to_parquet(tmp_path / "whole.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-20])
    for name, words in (("a.csv.gz", "cut before its end"), ("a.parquet", "is cut")):
        with pytest.raises(CandleFileError, match=words):
            read(tmp_path / name)


def test_a_workbook_is_named_with_what_to_do(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    content = (tmp_path / "a.xlsx").read_bytes()
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(content))
    for name in ("a.csv", "b.csv", "c.csv.gz", "a.xlsx"):
        with pytest.raises(
            CandleFileError, match=r"Excel workbook or a ZIP archive, not CSV\. Save an Excel"
        ):
            read(tmp_path / name)
        with pytest.raises(
            CandleFileError, match=r"Excel workbook or a ZIP archive, not CSV\. Save an Excel"
        ):
            read_instruments([str(tmp_path / name)])


@pytest.mark.parametrize(
    "text", ['{"candles": []}', '\ufeff[\n  {"date": 1}]', "[[1718668800000,1]]", '["a"]']
)
def test_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CandleFileError, match=r"a.json is JSON, not CSV\. Write its bars as CSV, such as by"):
        read_instruments([str(tmp_path / "a.json")])


def test_training_and_backtests_read_a_named_file_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_bytes((FOLDER / "plain.csv").read_bytes())
    (named,), _ = read_instruments([str(tmp_path / "plain.txt")])
    assert (named.name, len(named)) == ("plain", len(read_instruments([str(FOLDER / "plain.csv")])[0][0]))
    pd.read_csv(FOLDER / "plain.csv").to_parquet(tmp_path / "plain.dat")
    with pytest.raises(CandleFileError, match=r"is a Parquet file: its name must end in \.parquet or"):
        read_instruments([str(tmp_path / "plain.dat")])
    (tmp_path / "plain.txt").unlink()
    with pytest.raises(CandleFileError, match="has no files that end in"):
        read_instruments([str(tmp_path)])


def test_training_reads_forms_and_reports_what_is_odd(tmp_path: Path) -> None:
    for name in ("fred.csv", "interactive_brokers.csv", "yfinance_by_ticker.csv"):
        instruments, report = read_instruments([str(FOLDER / name)])
        assert len(instruments) == (2 if "yfinance" in name else 1)
        if name == "fred.csv":
            assert report.warnings[0].endswith("rows without a value, left out: 2")
            assert "Each bar has one value" in report.warnings[1]
        elif name == "interactive_brokers.csv":
            assert report.warnings[0].endswith("Interactive Brokers means that there is none: 3")


def test_tickers_of_parquet_with_titles_of_two_levels(tmp_path: Path) -> None:
    frame = pd.read_csv(FOLDER / "yfinance_by_ticker.csv", header=[0, 1], index_col=0)
    frame.index = pd.to_datetime(frame.index)
    for columns in (frame, frame.swaplevel(axis=1)):
        columns.to_parquet(tmp_path / "a.parquet")
        file, csv = CandleFile(tmp_path / "a.parquet"), CandleFile(FOLDER / "yfinance_by_ticker.csv")
        assert file.instruments == ("AAPL", "MSFT")
        pd.testing.assert_frame_equal(file.last(9, "MSFT").candles, csv.last(9, "MSFT").candles)
    frame.swaplevel(axis=1).rename(columns={"Volume": "Turnover"}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(CandleFileError, match="titles of two levels"):
        CandleFile(tmp_path / "a.parquet")


ROWS = "{},20241103 {} US/Eastern,1,2,0.5,1.5,10\n"
HOURS = ("00:30:00", "01:00:00", "01:30:00", "01:00:00", "01:30:00", "02:00:00")


@pytest.mark.parametrize(
    "rows",
    [
        [(name, hour) for name in "AB" for hour in HOURS],
        [(name, hour) for hour in HOURS for name in "AB"],
        [(name, hour) for name in "AB" for hour in HOURS[::-1]],
    ],
    ids=["one below the other", "by time", "newest first"],
)
def test_repeated_hours_are_told_apart_in_each_instrument(
    tmp_path: Path, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path / "two.csv"
    path.write_text("symbol,date,open,high,low,close,volume\n" + "".join(ROWS.format(*row) for row in rows))
    file = CandleFile(path, ReadOptions(id_column="symbol"))
    for name in file.instruments:
        offsets = [text[-6:] for text in file.last(10, name).candles["timestamps"]]
        assert offsets == ["-04:00"] * 3 + ["-05:00"] * 3


def test_a_zone_may_have_a_name_of_one_word(tmp_path: Path) -> None:
    path = tmp_path / "met.csv"
    rows = "".join(f"20240618 09:{minute:02}:00 MET,1,2,0.5,1.5\n" for minute in range(3))
    path.write_text("date,open,high,low,close\n" + rows)
    found = CandleFile(path, ReadOptions()).last(3)
    assert (found.timezone, found.candles["timestamps"][0]) == ("MET", "2024-06-18T09:00:00+02:00")


@pytest.mark.parametrize(
    ("header", "row", "field"),
    [
        ("Datum;Eröffnung;Hoch;Tief;Schluss", "{}.06.2024;18.402;18.450;18.380;18.430", "decimal"),
        ("date,NAV", "2024-06-{},1.5", "value"),
        ("date,close", "2024-06-{},1.5", "value"),
    ],
)
def test_what_two_readings_fit_is_refused_with_the_option_that_decides(
    tmp_path: Path, header: str, row: str, field: str
) -> None:
    path = tmp_path / "file.csv"
    path.write_text("\n".join([header, *(row.format(day) for day in range(10, 15))]) + "\n")
    with pytest.raises(CandleFileError) as refused:
        CandleFile(path, ReadOptions())
    assert refused.value.field == field
    options = ReadOptions(decimal=",") if field == "decimal" else ReadOptions(columns={"value": header[5:]})
    assert CandleFile(path, options).last(1).candles["close"].tolist() in ([18430.0], [1.5])


@pytest.mark.parametrize("ticker", ["LOW", "OPEN"])
def test_a_ticker_may_be_spelt_as_a_title(tmp_path: Path, ticker: str) -> None:
    text = f"Price,Close,High,Low,Open,Volume\nTicker{f',{ticker}' * 5}\nDate,,,,,\n2024-06-18,3,4,1,2,9\n"
    (path := tmp_path / "a.csv").write_text(text)
    assert read(path).candles[["open", "high", "low", "close"]].values.tolist() == [[2, 4, 1, 3]]


def test_a_vendors_prices_suffice_if_its_times_have_another_title(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(
        "Date;Eröffnung;Hoch;Tief;Schluss\n2024-06-18;2,5;4;1;3\n", encoding="utf-8"
    )
    assert read(path).candles[["open", "high", "low", "close"]].values.tolist() == [[2.5, 4, 1, 3]]


def test_a_volume_without_a_readable_number_gives_a_warning(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(
        "날짜,종가,시가,고가,저가,거래량\n2024-06-18,3,2,4,1,12.3M\n", encoding="utf-8"
    )
    assert read(path).notes == ("the column of volume, 거래량, is left out: it has no number",)
