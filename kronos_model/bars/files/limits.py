"""Limits on what a candle file unpacks to. A small file must not take much time or memory."""

from pathlib import Path
from typing import Final

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
