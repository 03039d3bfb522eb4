"""The text of a CSV file as UTF-8, unpacked if it is compressed."""

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import Final

from kronos_model.errors import CandleFileError

MAX_UNPACKED_BYTES: Final = 2**30
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: Path) -> bytes:
    """The file's text in UTF-8 without a byte order mark. Bytes that are no UTF-8 stay as they are.

    Raises:
        CandleFileError: It is a damaged archive, or a very large one.
        OSError: It cannot be read.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP):
        content = _unpacked(path, content)
    if content.startswith(_UTF_16):
        return content.decode("utf-16", "replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _unpacked(path: Path, content: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) as archive:
            unpacked = archive.read(MAX_UNPACKED_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise CandleFileError(f"{path} is a damaged gzip file: make it again") from None
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise CandleFileError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB: split it")
    return unpacked
