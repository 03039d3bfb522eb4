"""Feed: series whose bars are kept current by appends. A preview: nothing forecasts them yet."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import tzinfo
from random import uniform
from time import sleep
from typing import Any, Final, Self, Unpack

import numpy as np

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import MAX_ID_CHARS, is_job_id
from kronos_client.core.long_frame import ID_COLUMN, TIMESTAMP_COLUMN, LongFrame
from kronos_client.core.series import series_payload
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.options import EXCHANGE_YEAR, NAMED_CALENDARS, FeedOptions, FeedSpec
from kronos_client.feeds.store import FeedLimits, FeedStore, Read, Write, gone
from kronos_client.feeds.window import Block, Change, Record, compare, cut, num_kept_blocks, trimmed
from kronos_client.settings import ClientSettings, settings_for
from kronos_model.bars.calendar.exchange import load_exchange
from kronos_model.bars.calendar.sessions import common_spacing
from kronos_model.bars.calendar.spacing import instants_of
from kronos_model.bars.columns import check_candles, check_price_columns
from kronos_model.bars.missing import Filled, is_missing
from kronos_model.bars.timestamps import load_timezone
from kronos_model.errors import KronosError

MAX_TRIES: Final = 20
"""Appends that lose a series to another append start over; each time one of them succeeds."""


@dataclass(frozen=True)
class Appended:
    """What an append changed. One that is repeated changes nothing.

    Attributes:
        num_new: Bars that were not known.
        num_corrected: Bars that were known with other values.
        num_held_back: Bars that have not ended yet: append them again later.
        changed: The ids of the series with new or corrected bars.
    """

    num_new: int
    num_corrected: int
    num_held_back: int
    changed: tuple[str, ...]


class Feed:
    """A feed in Redis; ``Feed.open`` gives it."""

    def __init__(self, store: FeedStore, name: str, uid: str, spec: FeedSpec) -> None:
        self.name, self.spec = name, spec
        self._store, self._uid = store, uid

    @classmethod
    def open(
        cls,
        name: str,
        *,
        url: str | None = None,
        settings: ClientSettings | None = None,
        limits: FeedLimits | None = None,
        **options: Unpack[FeedOptions],
    ) -> Self:
        """Create a feed, or open an existing one: without options, or with the same.

        Raises:
            JobError: FEED_NOT_FOUND, FEED_CONFLICT, LIMIT_EXCEEDED, or what a job with such options gets.
        """
        settings = settings_for(url, settings)
        if not name or len(name) > 100 or not name.isprintable():
            text = "the feed's name must be 1 to 100 printable characters"
            raise JobError(ErrorCode.BAD_VALUE, text, "name")
        wanted = FeedSpec.from_options(settings, **options) if options else None
        store = FeedStore(settings.redis_url.get_secret_value(), limits, settings.redis_min_replicas)
        try:
            found = store.create(name, wanted.to_json()) if wanted else store.find(name)
            if found is None:
                text = f"there is no feed {name!r}: create it by giving pred_len and other options"
                raise JobError(ErrorCode.FEED_NOT_FOUND, text, "name")
            spec = FeedSpec.from_json(found[1])
            if wanted and (option := spec.first_difference(wanted)):
                text = f"feed {name!r} has another {option}: open it without options, or delete it first"
                raise JobError(ErrorCode.FEED_CONFLICT, text, option)
        except BaseException:
            store.close()
            raise
        return cls(store, name, found[0], spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The feed stays."""
        self._store.close()

    def append(
        self, bars: Any, *, id_column: str = ID_COLUMN, timestamp_column: str = TIMESTAMP_COLUMN
    ) -> Appended:
        """Add bars of any number of series, all or none: whole windows or new bars, in any overlap.

        Args:
            bars: A long frame of pandas or polars, as ``predict_df`` takes it.
            id_column, timestamp_column: Its titles.

        Raises:
            JobError: Names the series and the row. FEED_BAR_CHANGED if a known bar differs too far back;
                FEED_GONE, FEED_BUSY, LIMIT_EXCEEDED, BROKER_UNREACHABLE.
        """
        return self._put(bars, id_column, timestamp_column, is_whole=False)

    def replace(
        self, bars: Any, *, id_column: str = ID_COLUMN, timestamp_column: str = TIMESTAMP_COLUMN
    ) -> Appended:
        """Exchange series whole, such as after a split. Arguments and errors as of ``append``."""
        return self._put(bars, id_column, timestamp_column, is_whole=True)

    def ids(self) -> list[str]:
        """The ids of all series, sorted."""
        return self._store.series_ids(self._uid)

    def bars(self, series_id: str) -> dict[str, Any]:
        """The window of a series, as candles that ``submit`` takes. Raises JobError FEED_GONE."""
        for _ in range(2):  # blocks of a record that was read may go after a while
            (read,) = self._store.read(self._uid, [series_id])
            if read.record is None:
                break
            found = self._store.blocks(self._uid, [block.name for block in read.record.blocks])
            contents = [content for content in found.values() if content is not None]
            if len(contents) == len(found):
                return Bars.from_blocks(read.record.form, contents)[-self.spec.max_bars :].as_columns()
        raise gone(self.name, series_id)

    def delete(self) -> None:
        """Remove the feed with all its bars."""
        self._store.delete(self.name, self._uid)

    def _put(self, bars: Any, id_column: str, timestamp_column: str, *, is_whole: bool) -> Appended:
        given = self._read(bars, id_column, timestamp_column)
        now, totals, changed = self._store.now(), [0, 0, 0], []
        for _ in range(MAX_TRIES):
            writes, totals = [], [0, 0, 0]
            reads = dict(zip(given, self._store.read(self._uid, list(given)), strict=True))
            tails = self._tails(reads, given)
            for name, (new, zone) in given.items():
                with _of_series(name):
                    held, write, change = self._plan(
                        name, new, zone, reads[name], tails.get(name), now, is_whole
                    )
                totals[2] += held
                if write is not None:
                    writes.append(write)
                    totals[0] += change.num_new
                    totals[1] += change.num_corrected
            changed = [write.series_id for write in writes]
            if not writes and self._store.find(self.name) is None:
                raise gone(self.name)
            if not writes or self._store.write(self.name, self._uid, writes):
                return Appended(totals[0], totals[1], totals[2], tuple(changed))
            sleep(uniform(0, 0.02))
        text = f"other appends changed the same series of feed {self.name!r} {MAX_TRIES} times: repeat it"
        raise JobError(ErrorCode.FEED_BUSY, text, None, {"feed": self.name})

    def _read(self, bars: Any, id_column: str, timestamp_column: str) -> dict[str, tuple[Bars, str | None]]:
        """The given bars by series, checked, each with its time zone."""
        titles: Any = {"id_column": id_column, "timestamp_column": timestamp_column}
        given: dict[str, tuple[Bars, str | None]] = {}
        for key, columns, times in LongFrame(bars, titles).items():
            name = str(key)
            if not is_job_id(name):  # the same rule as for ids of jobs
                text = f"an id of a series must be 1 to {MAX_ID_CHARS} printable characters"
                raise JobError(ErrorCode.BAD_VALUE, text, id_column)
            if name in given:
                text = f"two ids of the frame are both written {name!r}: give each series its own"
                raise JobError(ErrorCode.DUPLICATE_ID, text, id_column)
            with _of_series(name):
                payload = series_payload(columns, name, timezone=self.spec.timezone, **times)
                check_price_columns(payload)
                one, missing = Bars.from_payload(payload), self.spec.job["missing"]
                values = _columns(one)
                if missing == "error" or not is_missing(values).all():
                    check_candles(Filled.from_columns(values, missing).columns)
                given[name] = (one, payload.get("timezone"))
        return given

    def _tails(self, reads: dict[str, Read], given: dict[str, Any]) -> dict[str, tuple[int, Bars]]:
        """For each known series the bars before its tail, and the tail."""
        tails, firsts, names = {}, {}, list[str]()
        for name, read in reads.items():
            if read.record is not None:
                firsts[name] = read.record.tail_from(int(given[name][0].clock[0]))
                names += [block.name for block in read.record.blocks[firsts[name] :]]
        found = self._store.blocks(self._uid, names)
        for name, first in firsts.items():
            record: Any = reads[name].record
            before = sum(block.num_bars for block in record.blocks[:first])
            tails[name] = (
                before,
                Bars.from_blocks(record.form, self._contents(name, record.blocks[first:], found)),
            )
        return tails

    def _contents(self, name: str, blocks: Iterable[Block], found: Any) -> list[bytes]:
        contents = [found[block.name] for block in blocks]
        if None in contents:
            raise gone(self.name, name)
        return contents

    def _plan(
        self, name: str, new: Bars, zone: str | None, read: Read, tail: Any, now: float, is_whole: bool
    ) -> tuple[int, Write | None, Any]:
        """How many bars are held back, and what is to be written."""
        num_given, known = len(new), read.record
        new = new[: self._num_ended(new, tail[1] if tail else None, zone, now)]
        held = num_given - len(new)
        if not len(new):
            return held, None, None
        if known is not None and not is_whole:
            if known.form.columns != new.form.columns or known.form.is_aware != new.form.is_aware:
                text = (
                    "columns and offsets must be those of the bars before: replace() exchanges a series whole"
                )
                raise JobError(ErrorCode.FEED_BAR_CHANGED, text, "timestamps")
            is_cut = known.num_bars >= self.spec.max_bars
            change = compare(tail[1], tail[0], new, self.spec.corrections, is_cut=is_cut)
            if change is None:
                return held, None, None
        else:
            change, known = Change(0, new, len(new), 0), None
        added: dict[str, bytes] = {}
        kept: tuple[Block, ...] = known.blocks[: num_kept_blocks(known.blocks, change)] if known else ()
        rest = change.bars
        if known and (between := known.blocks[len(kept) :]):
            found = self._store.blocks(self._uid, [block.name for block in between])
            old = Bars.from_blocks(known.form, self._contents(name, between, found))
            rest = replace(change.bars, form=known.form)
            rest = old[: change.num_kept - sum(block.num_bars for block in kept)] + rest
        record = Record(
            known.form if known else new.form,
            (*kept, *cut(name, rest, lambda block, content: added.update({block: content}))),
            int(change.bars.clock[-1]),
            zone,
            (known.num_corrections if known else 0) + change.num_corrected,
            read.record.num_restarts + is_whole if read.record else 0,
        )
        record = trimmed(record, self.spec.max_bars)
        listed = {block.name for block in record.blocks}
        before = read.record.blocks if read.record else ()
        gone_now = [block.name for block in before if block.name not in listed]
        visible = {block: content for block, content in added.items() if block in listed}
        growth = record.num_bytes - (read.record.num_bytes if read.record else 0)
        return held, Write(name, read.version, record, visible, gone_now, growth), change

    def _num_ended(self, new: Bars, tail: Bars | None, zone: str | None, now: float) -> int:
        """How many of the bars have ended by now; all if their times are not known in UTC."""
        calendar = None if self.spec.calendar in NAMED_CALENDARS else self.spec.calendar
        if not self.spec.closed_only or not (new.form.is_aware or zone or calendar):
            return len(new)
        clock_of: tzinfo | None = load_timezone(zone) if zone else None
        if clock_of is None and calendar is not None and not new.form.is_aware:
            clock_of = load_exchange(calendar, EXCHANGE_YEAR, EXCHANGE_YEAR).zone
        clock = instants_of(new.timestamps(), clock_of)
        both = new.clock if tail is None else np.unique(np.concatenate([tail.clock, new.clock]))
        spacing = common_spacing(both) if len(both) > 1 and self.spec.bar_time == "start" else 0
        return int(np.searchsorted(clock + spacing, now * 1e6, side="right"))


def _columns(bars: Bars) -> dict[str, Any]:
    return {name: bars.rows["values"][:, at].astype(np.float64) for at, name in enumerate(bars.form.columns)}


@contextmanager
def _of_series(name: str) -> Iterator[None]:
    """Name the series in an error."""
    try:
        yield
    except (KronosError, JobError) as error:
        found = JobError.from_kronos(error) if isinstance(error, KronosError) else error
        text, details = f"series {name!r}: {found.message}", {**found.details, "series": name}
        raise JobError(found.code, text, found.field, details) from error
