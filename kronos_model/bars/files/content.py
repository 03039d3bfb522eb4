"""The text of a CSV file as UTF-8, unpacked if it is compressed."""

import codecs
import zlib
from pathlib import Path
from typing import IO, Final

from kronos_model.bars.files.limits import MAX_MEMBERS, check_lines, check_unpacked
from kronos_model.errors import CandleFileError

GZIP: Final = b"\x1f\x8b"
PIECE_BYTES: Final = 2**14
"""Packed bytes that are unpacked at once: gzip makes up to 1,032 bytes of one."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
    if content.startswith(_UTF_16):
        content = content.decode("utf-16", "replace").encode()
    check_lines(path, content, packed_bytes)
    return content.removeprefix(codecs.BOM_UTF8)


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
        raise damaged
    return bytes(unpacked), packed_bytes
