"""An append to a feed: reads the given bars, compares them with those known, and writes what changes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import uniform
from time import sleep
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.columns import decode_column
from kronos_client.contract.dataframes import refuse_empty
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import Appended
from kronos_client.contract.names import MAX_ID_CHARS, is_job_id
from kronos_client.core.predict_df import LongFrame
from kronos_client.core.series import series_payload
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.blocks import Lost, Record, cut, kept_blocks, trimmed
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.store import FeedStore, gone
from kronos_client.feeds.stored import Read, Write
from kronos_model.bars.calendar.sessions import common_spacing
from kronos_model.bars.calendar.spacing import LAST_TIME
from kronos_model.bars.columns import COLUMNS, check_candles, check_price_columns, impossible_warning
from kronos_model.bars.missing import Filled, is_missing
from kronos_model.errors import KronosError

MAX_TRIES: Final = 20
"""Appends that lose a series to another append start over; each time one of them succeeds."""

Given = tuple[Bars, str | None]
"""The bars of a series, and their time zone."""


class Change(NamedTuple):
    """The bars after the first ``num_kept``, which stay as they are; ``num_new`` bars were not known."""

    num_kept: int
    bars: Bars
    num_new: int
    num_corrected: int


def compare(tail: Bars, num_before: int, given: Bars, corrections: int, *, is_cut: bool) -> Change | None:
    """What ``given`` changes in a window; None if it has all these bars.

    Args:
        tail: The window's bars from the first given one on, and some before.
        num_before: The window's bars before the tail.
        corrections: The last bars that may differ.
        is_cut: Whether the window has lost earlier bars, so that bars before it are left out.

    Raises:
        JobError: FEED_BAR_CHANGED, with the time.
    """
    if is_cut and num_before == 0:
        given = given[given.clock >= tail.clock[0]]
    known, clock = tail.clock, given.clock
    places = np.searchsorted(known, clock)
    at = np.minimum(places, len(known) - 1)
    is_known = known[at] == clock
    is_new = clock > known[-1]
    is_changed = ~is_new & ~(is_known & given.equal(tail[at]))
    reach = max(len(known) - corrections, 0)
    may_change = is_new if reach == len(known) else clock >= known[reach]
    if (is_changed & ~may_change).any():
        row = int((is_changed & ~may_change).argmax())
        what = (
            "differs from the bar that the feed has"
            if is_known[row]
            else "was not there when later ones came"
        )
        text = f"the bar at {given.texts()[row]} {what}: only the last {corrections} bars may change"
        text += "; replace() exchanges a series whole"
        raise JobError(ErrorCode.FEED_BAR_CHANGED, text, "timestamps", {"row": row})
    if not (is_changed | is_new).any():
        return None
    first = int(clock[is_changed | is_new][0])
    stays = int(np.searchsorted(known, first))
    rest = tail[stays:]
    rest = rest[~np.isin(rest.clock, clock)] + given[clock >= first]
    ordered = rest[np.argsort(rest.clock, kind="stable")]
    return Change(num_before + stays, ordered, int(is_new.sum()), int(is_changed.sum()))


class Append:
    """One append to a feed.

    Args:
        is_whole: Exchange the series whole.
    """

    def __init__(self, store: FeedStore, name: str, uid: str, spec: FeedSpec, *, is_whole: bool) -> None:
        self._store, self._name, self._uid, self._spec = store, name, uid, spec
        self._is_whole = is_whole

    def run(self, given: Mapping[str, Given], queue: Callable[[], str]) -> Appended:
        """Append. ``queue`` returns the queue whose workers forecast the feed at the moment."""
        now = self._store.now()
        for _ in range(MAX_TRIES):
            writes, counts = list[Write](), dict.fromkeys(("num_new", "num_corrected", "num_held_back"), 0)
            held_until, warnings, lost = 0, list[str](), list[str]()
            reads = dict(zip(given, self._store.read(self._uid, list(given)), strict=True))
            tails = {} if self._is_whole else self._tails(reads, given)
            for name, (new, zone) in given.items():
                try:
                    with _of_series(name):
                        held, write, change = self._plan(name, new, zone, reads[name], tails.get(name), now)
                except Lost:
                    lost.append(name)
                    continue
                counts["num_held_back"] += len(held)
                held_until = max([held_until, *held.tolist()])
                if write is not None:
                    writes.append(write)
                    counts["num_new"] += change.num_new
                    counts["num_corrected"] += change.num_corrected
                    if odd := impossible_warning(_columns(change.bars), change.bars.texts()):
                        warnings.append(f"series {name!r}: {odd}")
            if not writes:
                self._store.check_exists(self._name, self._uid)
            if not writes or self._store.write(self._name, self._uid, writes, queue(), self._spec):
                if lost:
                    raise gone(self._name, *lost)
                until = datetime.fromtimestamp(held_until / 1e6, UTC).isoformat() if held_until else None
                changed = tuple(write.series_id for write in writes)
                return Appended(changed=changed, held_until=until, warnings=tuple(warnings), **counts)
            sleep(uniform(0, 0.02))
        text = f"other appends changed the same series of feed {self._name!r} {MAX_TRIES} times: repeat it"
        raise JobError(ErrorCode.FEED_BUSY, text, None, {"feed": self._name})

    def _tails(self, reads: Mapping[str, Read], given: Mapping[str, Given]) -> dict[str, Bars]:
        """The last bars of each known series, with which its new ones are compared, unless they are lost."""
        records = {name: read.record for name, read in reads.items() if read.record}
        firsts = {name: int(given[name][0].clock[0]) for name in records}
        tails = {name: record.blocks[record.tail_from(firsts[name]) :] for name, record in records.items()}
        found = self._store.blocks(self._uid, [block.name for tail in tails.values() for block in tail])
        bars: dict[str, Bars] = {}
        for name, tail in tails.items():
            with suppress(Lost):
                bars[name] = records[name].bars(tail, found)
        return bars

    def _plan(
        self, name: str, new: Bars, zone: str | None, read: Read, tail: Bars | None, now: float
    ) -> tuple[NDArray[np.int64], Write | None, Any]:
        """When bars that are held back end, and what is to be written. Raises Lost."""
        known = None if self._is_whole else read.record
        if tail is None and not self._is_whole and (known or read.version):
            raise Lost
        held = self._held_back(new, tail, zone, now)
        new = new[: len(new) - len(held)]
        if not len(new):
            return held, None, None
        if known is not None and tail is not None:
            if known.form.columns != new.form.columns or known.form.is_aware != new.form.is_aware:
                text = (
                    "columns and offsets must be those of the bars before: replace() exchanges a series whole"
                )
                raise JobError(ErrorCode.FEED_BAR_CHANGED, text, "timestamps")
            is_cut = known.num_bars >= self._spec.max_bars  # who sends whole windows may send older bars
            num_before = known.num_bars - len(tail)
            change = compare(tail, num_before, new, self._spec.corrections, is_cut=is_cut)
            if change is None:
                return held, None, None
        else:
            change = Change(0, new, len(new), 0)
        kept = kept_blocks(known.blocks, change.num_kept, len(change.bars)) if known else ()
        rest = change.bars
        if known and (between := known.blocks[len(kept) :]):
            old = known.bars(between, self._store.blocks(self._uid, [block.name for block in between]))
            rest = replace(change.bars, form=known.form)
            rest = old[: change.num_kept - sum(block.num_bars for block in kept)] + rest
        added = cut(rest)
        record = Record(
            known.form if known else new.form,
            (*kept, *added),
            int(change.bars.clock[-1]),
            zone,
            (known.num_corrections if known else 0) + change.num_corrected,
            read.record.num_restarts + self._is_whole if read.record else 0,
        )
        record = trimmed(record, self._spec.num_kept)
        before = read.record.blocks if read.record else ()
        gone_now = [block.name for block in before if block not in record.blocks]
        visible = {block.name: content for block, content in added.items() if block in record.blocks}
        growth = record.num_bytes - (read.record.num_bytes if read.record else 0)
        appended_at = read.appended_at if read.version and known and known.last == record.last else None
        return held, Write(name, read.version, appended_at, record, visible, gone_now, growth), change

    def _held_back(self, new: Bars, tail: Bars | None, zone: str | None, now: float) -> NDArray[np.int64]:
        """The ends of the bars that have not ended by now; none if their times are not known in UTC."""
        both = new.clock if tail is None else np.unique(np.concatenate([tail.clock, new.clock]))
        spacing = common_spacing(both) if len(both) > 1 else 0
        ends = self._spec.ends(new.timestamps(), zone, spacing) if self._spec.closed_only else None
        if ends is None:
            return np.empty(0, np.int64)
        if ends.max() > LAST_TIME:
            row = int(ends.argmax())
            text = f"the bar at {new.texts()[row]} ends after the year 9999"
            raise JobError(ErrorCode.BAD_TIMESTAMP, text, "timestamps", {"row": row})
        return ends[ends > now * 1e6]


def bars_of_frame(bars: Any, spec: FeedSpec, id_column: str, timestamp_column: str) -> dict[str, Given]:
    """The bars of a long frame by series, checked."""
    titles: Any = {"id_column": id_column, "timestamp_column": timestamp_column}
    given: dict[str, Given] = {}
    for key, columns, times in LongFrame(bars, titles).items():
        _add(given, spec, str(key), columns, times, id_column)
    return given


def bars_by_id(series: Mapping[str, Any], spec: FeedSpec) -> dict[str, Given]:
    """The bars of columns by id, checked. Columns may be base64, and there may be a ``timezone``."""
    given: dict[str, Given] = {}
    for name, columns in series.items():
        zone = {"timezone": columns["timezone"]} if columns.get("timezone") else {}
        bars = {title: values for title, values in columns.items() if title != "timezone"}
        with _of_series(name):
            bars |= {
                title: decode_column(values, title)
                for title, values in bars.items()
                if title in COLUMNS and isinstance(values, str)
            }
        _add(given, spec, name, bars, zone, "id")
    return given


def _add(given: dict[str, Given], spec: FeedSpec, name: str, columns: Any, times: Any, field: str) -> None:
    """Add a series to those given. ``field`` is where its id stands."""
    if not is_job_id(name):  # the same rule as for ids of jobs
        text = f"an id of a series must be 1 to {MAX_ID_CHARS} printable characters"
        raise JobError(ErrorCode.BAD_VALUE, text, field)
    if name in given:
        text = f"two ids of the frame are both written {name!r}: give each series its own"
        raise JobError(ErrorCode.DUPLICATE_ID, text, field)
    with _of_series(name):
        payload = series_payload(columns, name, **{"timezone": spec.timezone} | times)
        check_price_columns(payload)
        refuse_empty(payload["timestamps"], "timestamps")
        bars, missing = Bars.from_payload(payload), spec.job["missing"]
        values = _columns(bars)
        if missing == "error" or not is_missing(values).all():
            check_candles(Filled.from_columns(values, missing).columns)
        given[name] = (bars, payload.get("timezone"))


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
