"""A series' bars as blocks: its record, the blocks that an append adds, and those it no longer needs.

A window is a list of blocks of at most ``BLOCK_BARS`` bars. A new bar is a block of its own; three blocks of
a size and the next one become a larger one. So a bar is written four times at most, and a window of 512 bars
has at most 18 blocks.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_urlsafe
from typing import Final, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kronos_client.contract.compressed import compressed, decompressed
from kronos_client.feeds.bars import Bars, Form

BLOCK_BARS: Final = 64
NAME_BYTES: Final = 12
GROWTH: Final = 4
TAIL_BARS: Final = 8
"""The last known bars that each append reads: for corrections, and to find the spacing."""


class Lost(Exception):
    """Redis no longer has all bars of a series."""


class Block(NamedTuple):
    """A block's name, its number of bars, and the instant of its first one in µs."""

    name: str
    num_bars: int
    first: int


@dataclass(frozen=True)
class Record:
    """A series of a feed, as it stands in Redis.

    Attributes:
        blocks: In the order of time.
        last: The instant of the newest bar in µs.
        num_corrections: Bars that a later append changed.
        num_restarts: How often the series was replaced whole.
    """

    form: Form
    blocks: tuple[Block, ...]
    last: int
    timezone: str | None = None
    num_corrections: int = 0
    num_restarts: int = 0

    @property
    def num_bars(self) -> int:
        """Bars in all blocks; up to a block more than the feed keeps."""
        return sum(block.num_bars for block in self.blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes in all blocks."""
        return self.num_bars * self.form.dtype.itemsize

    def to_bytes(self) -> bytes:
        """The text that stands in Redis."""
        return compressed(json.dumps({**vars(self), "form": vars(self.form)}, separators=(",", ":")))

    @classmethod
    def from_bytes(cls, content: bytes | None) -> "Record | None":
        """The reverse of ``to_bytes``. None if there is nothing, or another program wrote it."""
        with suppress(ValidationError, zlib.error):
            return RECORD.validate_json(decompressed(content or b"")[0])
        return None

    def tail_from(self, instant: int, num_wanted: int = TAIL_BARS) -> int:
        """The number of blocks before those with the last ``num_wanted`` bars and all from ``instant`` on."""
        at, num_bars = len(self.blocks), 0
        while at and (num_bars < num_wanted or self.blocks[at].first > instant):
            at -= 1
            num_bars += self.blocks[at].num_bars
        return at

    def bars(self, blocks: Sequence[Block], found: Mapping[str, bytes | None]) -> Bars:
        """The bars of some of its blocks. Raises Lost, also if another program wrote one."""
        contents = [found[block.name] or b"" for block in blocks]
        sizes = [block.num_bars * self.form.dtype.itemsize for block in blocks]
        if sizes != [*map(len, contents)]:
            raise Lost
        return Bars(self.form, np.frombuffer(b"".join(contents), self.form.dtype))


RECORD: Final = TypeAdapter(Record)


def kept_blocks(blocks: tuple[Block, ...], num_kept: int, num_changed: int) -> tuple[Block, ...]:
    """The blocks that stay if these first bars do; the others are written anew, with the changed ones."""
    at, num_bars = 0, 0
    while at < len(blocks) and num_bars + blocks[at].num_bars <= num_kept:
        num_bars += blocks[at].num_bars
        at += 1
    size = num_kept - num_bars + num_changed
    while at:
        level = _level(size)
        before = [_level(block.num_bars) for block in blocks[max(at - GROWTH + 1, 0) : at]]
        if before[-1] < level:
            num_absorbed = 1
        elif level < _level(BLOCK_BARS) and before == [level] * (GROWTH - 1):
            num_absorbed = GROWTH - 1
        else:
            break
        size += sum(block.num_bars for block in blocks[at - num_absorbed : at])
        at -= num_absorbed
    return blocks[:at]


def _level(num_bars: int) -> int:
    """0 for 1 to 3 bars, 1 for 4 to 15, and so on; blocks of ``BLOCK_BARS`` are the largest."""
    return (min(num_bars, BLOCK_BARS).bit_length() - 1) // 2  # log to the base of GROWTH, which is 4


def cut(bars: Bars) -> dict[Block, bytes]:
    """Bars as blocks, with their contents. No other block ever has the same name."""
    parts = [bars[start : start + BLOCK_BARS] for start in range(0, len(bars), BLOCK_BARS)]
    return {
        Block(token_urlsafe(NAME_BYTES), len(part), int(part.clock[0])): part.rows.tobytes() for part in parts
    }


def trimmed(record: Record, num_kept: int) -> Record:
    """The record without the oldest blocks that its last ``num_kept`` bars do not need."""
    blocks, num_bars = record.blocks, record.num_bars
    while num_bars - blocks[0].num_bars >= num_kept:
        num_bars -= blocks[0].num_bars
        blocks = blocks[1:]
    return replace(record, blocks=blocks)
