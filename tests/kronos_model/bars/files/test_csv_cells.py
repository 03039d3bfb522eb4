"""pyarrow gives the same cells as Python's csv module."""

import csv
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.bars.files import csv_cells
from kronos_model.bars.files.csv_cells import read_csv
from kronos_model.bars.files.header import Cells, Header, ReadHeader, read_header
from kronos_model.errors import CandleFileError
from tests.kronos_model.bars.files.candle_files import READABLE, file_of, options_of
from tests.waiting import await_true

cells = st.sampled_from(["", " ", "1", " 2.5 ", "a b", "ü", "x\ty", "'", "\\", "\\n", "#", "nan", "NULL"])
plain = st.sampled_from(['"1"', '""', '" 2 "', '"a,b"'])
quoted = st.sampled_from(['"1"', '" 2 "', ' "3" ', '"a,b"', '"a\nb"', '"a""b"', '5" wide'])
ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n  \n"])


def header_of(**places: int) -> ReadHeader:
    return lambda rows: Header(rows[0], places)


def read_both(path: Path, read_header: ReadHeader) -> tuple[Cells, Cells]:
    """By pyarrow if it can, and by the csv module."""
    by_pyarrow = read_csv(path, read_header)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_cells, "_read_plain", lambda *_: None)
        return by_pyarrow, read_csv(path, read_header)


def texts_of(cells: Cells) -> list[list[str]]:
    return [column.to_pylist() for column in cells.columns.values()]


@given(
    rows=st.lists(
        st.tuples(
            st.lists(cells | plain, min_size=3, max_size=3) | st.lists(cells | quoted, max_size=5), ends
        ),
        max_size=6,
    ),
    is_marked=st.booleans(),
)
@settings(max_examples=150)
def test_both_ways_of_reading_give_the_same_cells(
    tmp_path: Path, rows: list[tuple[list[str], str]], is_marked: bool
) -> None:
    text = "\ufeff" * is_marked + "a,b,c\n" + "".join(",".join(row) + end for row, end in rows)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())

    plain, by_rows = read_both(path, header_of(timestamps=0, close=2))

    assert texts_of(plain) == texts_of(by_rows)
    assert plain.overlong == by_rows.overlong
    assert plain.numbers.tolist() == by_rows.numbers.tolist()


@pytest.mark.parametrize("name", READABLE)
def test_both_ways_read_typical_files(name: str) -> None:
    path = file_of(name)
    plain, by_rows = read_both(path, partial(read_header, path, options=options_of(name)))
    assert texts_of(plain) == texts_of(by_rows)
    assert plain.numbers.tolist() == by_rows.numbers.tolist()


@pytest.mark.parametrize("cell", ['a/b, "c"', ' "a" , b', '" ,', 'x\t"', ', " ,"', '"', 'x\n" , y'])
def test_quoted_text_is_kept(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c"], ["1", cell, "3"], [cell, "2", cell]])

    cells = read_csv(path, header_of(a=0, b=1, c=2))

    stripped = cell.strip()
    assert texts_of(cells) == [["1", stripped], [stripped, "2"], ["3", stripped]]


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\na,b,"c\n"\n\n1,2,3\n4,"\n\n",6\n  \n7,8,9,10\n,,\n1,2,3\n')

    cells = read_csv(path, header_of(close=2))

    assert cells.numbers.tolist() == [5, 6, 10, 12]
    assert cells.overlong == {2: 4}
    assert cells.titles == {"close": "c"}


def test_a_cell_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b,c\n1,2,3\n1,2,\xff\n")
    with pytest.raises(CandleFileError, match="line 3: the text is not UTF-8") as caught:
        read_csv(path, header_of(close=2))
    assert caught.value.details == {"line": 3}
    assert len(read_csv(path, header_of(close=1)).columns["close"]) == 2


def test_no_signal_is_lost_while_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("timestamps,close\n" + "2024-06-18,1\n" * 2000)
    num_sent, received = 100, []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))

    def send() -> None:
        for number in range(num_sent):
            time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)
            await_true(lambda n=number: len(received) > n, "the signal is handled")

    try:
        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(send)
            while not sending.done():
                read_csv(path, header_of(timestamps=0, close=1))
            sending.result()
    finally:
        signal.signal(signal.SIGTERM, before)
