"""The bytes of a candle file, unpacked and as UTF-8, and the limits on what it unpacks to."""

import codecs
import re
import zlib
from pathlib import Path
from typing import IO, Final

from kronos_model.errors import CandleFileError

MAX_UNPACKED_BYTES: Final = 2**30
MAX_RATIO: Final = 100
"""Most bytes that one packed byte may unpack to. Candles whose times differ stay below 40."""
FREE_BYTES: Final = 2**23
"""Bytes that a file may unpack to at any ratio."""
ROW_BYTES: Final = 40
"""What a row counts at least: a time and four prices, of 8 bytes each. Short and blank rows take time too."""
MAX_LINE_BYTES: Final = 2**18
MAX_MEMBERS: Final = 2**16
"""Archives in one gzip file. Programs that pack blocks write one for every 64 KiB."""
MAX_FOOTER_BYTES: Final = 2**24
"""Largest footer of a Parquet file. 1,000 row groups of 20 columns take about 3 MiB."""
CUT: Final = "it was not written or downloaded to its end: get it again"
GZIP: Final = b"\x1f\x8b"
WORKBOOKS: Final = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""The first bytes of ZIP archives, which new workbooks of Excel are too, and of old ones."""
SAVE_AS_CSV: Final = "Save an Excel workbook as CSV, and unpack a ZIP archive"
_JSON: Final = re.compile(rb'\s*[\[{]\s*["\[{]')
PIECE_BYTES: Final = 2**14
"""Packed bytes that are unpacked at once: gzip makes up to 1,032 bytes of one."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_bomb(unpacked_bytes: int, packed_bytes: int) -> bool:
    """Whether so few bytes unpack to so many that no candles can be in them."""
    return unpacked_bytes > max(FREE_BYTES, MAX_RATIO * packed_bytes)


def check_unpacked(path: Path, unpacked_bytes: int, packed_bytes: int) -> None:
    """Raises CandleFileError for too many bytes; call it before they are stored or processed."""
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        limit = f"{MAX_UNPACKED_BYTES >> 20} MiB or {MAX_UNPACKED_BYTES // ROW_BYTES:,} rows"
        raise CandleFileError(f"{path} unpacks to more than {limit}: split it")
    if is_bomb(unpacked_bytes, packed_bytes):
        text = f"{path} unpacks to more than {MAX_RATIO} times its size"
        raise CandleFileError(f"{text}: write it as CSV, not packed")


def check_lines(path: Path, text: bytes, packed_bytes: int) -> None:
    """Raises CandleFileError for too many lines, or a line that is too long."""
    num_lines = max(text.count(b"\n"), text.count(b"\r"))
    check_unpacked(path, num_lines * ROW_BYTES, packed_bytes)
    start = 0
    while len(text) - start > MAX_LINE_BYTES:
        end = start + MAX_LINE_BYTES
        last = max(text.rfind(b"\n", start, end), text.rfind(b"\r", start, end))
        if last < 0:
            limit = f"{MAX_LINE_BYTES >> 10} KiB"
            raise CandleFileError(f"{path} has a line of more than {limit}: write each bar on its own line")
        start = last + 1


def read_text(path: Path) -> bytes:
    """The file's text in UTF-8 without a byte order mark. Bytes that are no UTF-8 stay as they are.

    Raises:
        CandleFileError: It is a damaged archive, or exceeds a limit of ``limits``.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        if file.peek(len(GZIP)).startswith(GZIP):  # a pipe cannot be read twice
            content, packed_bytes = _unpacked(path, file)
        else:
            content = file.read()
            packed_bytes = len(content)
    if content.startswith(WORKBOOKS):
        raise CandleFileError(f"{path} is an Excel workbook or a ZIP archive, not CSV. {SAVE_AS_CSV}")
    if content.startswith(b"PAR1"):
        raise CandleFileError(f"{path} is a Parquet file: its name must end in .parquet or .pq")
    if content.startswith(_UTF_16):
        content = content.decode("utf-16", "replace").encode()
    elif content.endswith(b"\0"):
        raise CandleFileError(f"{path} ends in zeros: {CUT}")
    check_lines(path, content, packed_bytes)
    content = content.removeprefix(codecs.BOM_UTF8)
    if _JSON.match(content):
        raise CandleFileError(
            f"{path} is JSON, not CSV. Write its bars as CSV, such as by read_json and to_csv of pandas"
        )
    return content


def _unpacked(path: Path, file: IO[bytes]) -> tuple[bytes, int]:
    """The content, and the number of bytes that it was packed in."""
    # Python's gzip module skips padding and reads names byte by byte: a file of them takes it half a minute.
    unpacked, packed_bytes, num_members, member = bytearray(), 0, 0, None
    damaged = CandleFileError(f"{path} is a damaged gzip file: make it again")
    try:
        while piece := file.read(PIECE_BYTES):
            packed_bytes += len(piece)
            while piece := piece if member else piece.lstrip(b"\0"):  # zeros may follow an archive
                if member is None:
                    member, num_members = zlib.decompressobj(wbits=31), num_members + 1
                unpacked += member.decompress(piece)
                check_unpacked(path, len(unpacked), packed_bytes)
                if unpacked.startswith(GZIP) or num_members > MAX_MEMBERS:
                    text = f"{path} is packed more than once, or in more than {MAX_MEMBERS:,} parts"
                    raise CandleFileError(f"{text}: unpack it, and pack it once")
                piece = member.unused_data
                member = None if member.eof else member
    except zlib.error:
        raise damaged from None
    if member is not None:
        text = f"{path} is a damaged gzip file, cut before its end: get it again"
        raise CandleFileError(text) if unpacked else damaged
    return bytes(unpacked), packed_bytes
