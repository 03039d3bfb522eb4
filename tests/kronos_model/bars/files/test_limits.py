"""Small files that unpack to very many bytes or rows are refused by every reader."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api_stub.uploads.file_child import read
from kronos_model.bars.files import content, parquet_cells
from kronos_model.bars.files.header import Header
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.lookback import CandleFile
from kronos_model.errors import CandleFileError

HEADER = b"timestamps,open,high,low,close\n"
ROW = b"2024-06-18 09:35:00,1.0,1.0,1.0,1.0\n"
READERS: list[Callable[[Path], object]] = [
    CandleFile,
    lambda path: read_instruments([str(path)]),
    lambda path: read(path, {}, None),
    lambda path: read(path, {}, {"max_bars": 8}),
]


def refusal(path: Path, reader: Callable[[Path], object] = CandleFile) -> str:
    with pytest.raises(CandleFileError) as refused:
        reader(path)
    return refused.value.message


def pack(path: Path, parts: Iterable[bytes]) -> Path:
    packer = zlib.compressobj(wbits=31)
    path.write_bytes(b"".join([*map(packer.compress, parts), packer.flush()]))
    return path


def many(line: bytes, num_bytes: int) -> Iterable[bytes]:
    """A header, and so many bytes of one line, in parts that take little memory."""
    yield HEADER
    block = line * (2**20 // len(line))
    yield from (block for _ in range(num_bytes // len(block) + 1))


def write_parquet(path: Path, num_rows: int, **columns: Any) -> Path:
    ones = pa.array(np.ones(num_rows))
    given = {
        "timestamps": pa.array(np.full(num_rows, 1_718_703_300)),
        **dict.fromkeys(("open", "high"), ones),
    }
    pq.write_table(pa.table(given | {"low": ones, "close": ones} | columns), path, compression="zstd")
    return path


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test if a row group is read: the footer alone must be enough."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("rows are read")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("line", [ROW, b"\n", b"\r", b",,,,,,,,\n", b'1,"a""b",1,1\n', b"\0", b"a"])
def test_a_gzip_bomb_is_refused_by_every_reader(
    tmp_path: Path, line: bytes, reader: Callable[[Path], object]
) -> None:
    path = pack(tmp_path / "a.csv.gz", many(line, 2 * content.FREE_BYTES))
    assert "unpacks to more than 100 times its size" in refusal(path, reader)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the file is no bomb."""
    noise = np.random.default_rng(0).integers(97, 122, 2**20, dtype=np.uint8).tobytes()
    parts = [noise, *many(b"\0", 2**28)]
    path = pack(tmp_path / "a.csv.gz", parts)
    most, check_unpacked = 0, content.check_unpacked

    def check(_: Path, unpacked_bytes: int, packed_bytes: int) -> None:
        nonlocal most
        most = max(most, unpacked_bytes)
        check_unpacked(path, unpacked_bytes, packed_bytes)

    monkeypatch.setattr(content, "check_unpacked", check)
    assert "unpacks to more than 100 times its size" in refusal(path)
    assert most < content.MAX_RATIO * path.stat().st_size + 1_100 * content.PIECE_BYTES


def test_a_file_above_the_limit_is_refused_at_any_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MAX_UNPACKED_BYTES", 2**20)
    path = pack(tmp_path / "a.csv.gz", many(ROW, 2**20))
    assert "unpacks to more than 1 MiB or 26,214 rows: split it" in refusal(path)
    plain = tmp_path / "a.csv"
    plain.write_bytes(HEADER + b"1\n" * 26_300)
    assert "unpacks to more than 1 MiB or 26,214 rows: split it" in refusal(plain)


@pytest.mark.parametrize("line", [b"\n", b"1\n", b"\r"])
def test_short_rows_count_as_whole_ones(tmp_path: Path, line: bytes) -> None:
    path = pack(tmp_path / "a.csv.gz", [HEADER, line * (content.FREE_BYTES // content.ROW_BYTES + 1)])
    assert "unpacks to more than 100 times its size" in refusal(path)


@pytest.mark.parametrize("times", [2, 3])
def test_a_file_that_is_packed_twice_is_refused(tmp_path: Path, times: int) -> None:
    data = HEADER + ROW
    for _ in range(times):
        data = gzip.compress(data)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    assert "is packed more than once" in refusal(path)


def test_a_file_of_very_many_archives_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(HEADER) + gzip.compress(b"") * content.MAX_MEMBERS)
    assert "in more than 65,536 parts" in refusal(path)


@pytest.mark.parametrize("padding", [0, 1, 3 * content.PIECE_BYTES])
def test_several_archives_and_zeros_after_them_are_read(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(HEADER) + b"\0" * padding + gzip.compress(ROW) + b"\0" * padding)
    assert len(read_instruments([str(path)])[0][0]) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:9]])
def test_a_damaged_archive_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(damage(gzip.compress(HEADER + ROW)))
    assert "is a damaged gzip file" in refusal(path)


@pytest.mark.parametrize("sign", [b",", b"a", b'"', b" "])
@pytest.mark.parametrize("start", [b"", HEADER, HEADER.replace(b"\n", b"\r") + ROW])
def test_a_huge_line_is_refused(tmp_path: Path, start: bytes, sign: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(start + sign * (content.MAX_LINE_BYTES + 1))
    assert "has a line of more than 256 KiB" in refusal(path)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_many_lines_of_usual_length_are_read(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "a.csv"
    rows = [b"%d,1.0,1.0,1.0,1.0" % (1_718_703_300 + row) for row in range(20_000)]
    path.write_bytes(end.join([HEADER.strip(), *rows]))
    assert path.stat().st_size > content.MAX_LINE_BYTES
    assert len(read_instruments([str(path)])[0][0]) == 20_000


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("limit", [None, 2**20])
def test_a_parquet_file_of_very_many_rows_is_refused_from_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, reader: Callable[[Path], object]
) -> None:
    path, match = write_parquet(tmp_path / "a.parquet", 250_000), "more than 100 times its size"
    if limit is not None:
        monkeypatch.setattr(content, "MAX_UNPACKED_BYTES", limit)
        match = "more than 1 MiB or 26,214 rows: split it"
    assert match in refusal(path, reader)


@pytest.mark.parametrize("is_category", [False, True])
@pytest.mark.parametrize("limit", [None, 2**22])
def test_a_text_that_a_dictionary_repeats_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, is_category: bool
) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 2_000]))
    column = texts if is_category else texts.cast(pa.string())
    path, match = write_parquet(tmp_path / "a.parquet", 20_000, timestamps=column), "more than 100 times"
    if limit is not None:
        monkeypatch.setattr(content, "MAX_UNPACKED_BYTES", limit)
        match = "more than 4 MiB or"
    assert match in refusal(path)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0] * 9], pa.list_(pa.field("element", pa.float64()))),
        pa.array([{"a": 1.0}]),
        pa.array([b"1" * 100], pa.binary(100)),
    ],
)
def test_a_column_whose_cells_may_hold_many_values_is_refused_unread(
    tmp_path: Path, column: pa.Array
) -> None:
    path = write_parquet(tmp_path / "a.parquet", 1, low=column)
    assert f"the column for low holds {column.type}, not numbers" in refusal(path)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_huge_cell_is_refused_from_the_footer(tmp_path: Path, kind: pa.DataType) -> None:
    cell = pa.array(["x" * (content.FREE_BYTES + 1)], kind)
    path = write_parquet(tmp_path / "a.parquet", 1, timestamps=cell, other=pa.array([[1.0]]))
    assert "unpacks to more than 100 times its size" in refusal(path)


def test_a_parquet_file_with_a_huge_footer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", 8)
    monkeypatch.setattr(parquet_cells, "MAX_FOOTER_BYTES", 100)
    assert "has a footer of more than" in refusal(path)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("num_rows", [0, 5, 150_000])
def test_texts_of_all_types_are_read_whole(tmp_path: Path, kind: pa.DataType, num_rows: int) -> None:
    texts = [f" 2024-06-{1 + row % 28:02}T{row // 28 % 24:02}:00 " for row in range(num_rows)]
    column = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
    path = write_parquet(tmp_path / "a.parquet", num_rows, timestamps=column)
    cells = parquet_cells.read_parquet(path, lambda rows: parquet_header(rows[0]))
    assert cells.columns["timestamps"].to_pylist() == [text.strip() for text in texts]


def parquet_header(titles: Sequence[str]) -> Header:
    return Header(titles, {"timestamps": 0, "close": 4})
