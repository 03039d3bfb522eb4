"""Feed: series whose bars are kept current by appends, and which workers forecast at each new bar."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, get_args

from redis.exceptions import NoPermissionError

from kronos_client.contract.columns import shortest
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import Appended, FeedSeries, FeedUpdate
from kronos_client.core.options import FeedOptions, check_waiting
from kronos_client.core.predict_df import ID_COLUMN, TIMESTAMP_COLUMN
from kronos_client.feeds.appending import Append, Given, bars_by_id, bars_of_frame
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.blocks import Lost, Record
from kronos_client.feeds.latest import latest_columns, latest_rows, past_forecasts
from kronos_client.feeds.options import FeedSpec, plain_event
from kronos_client.feeds.scores import By, score_rows
from kronos_client.feeds.store import SCORES_KEPT_DAYS, FeedLimits, FeedStore, gone, reading
from kronos_client.feeds.stored import Read, feed_key, part_key
from kronos_client.redis.connection import AWAY, is_refused, reachable
from kronos_client.redis.routing import choose_queue, live_workers
from kronos_client.settings import ClientSettings, settings_for

if TYPE_CHECKING:
    import pandas as pd

    from kronos_client.contract.worker_status import AnyWorkerStatus

UPDATE_ID: Final = re.compile(r"\d+(-\d+)?", re.ASCII)
WAIT_S: Final = 2.0
"""How long Redis may wait with its answer for updates; it must be less than the connection's timeout."""
POLL_S: Final = 0.25
"""Seconds between two reads of updates that do not wait, and between two tries while Redis is away."""

log = logging.getLogger(__name__)


class Outage:
    """A ``with`` statement that passes over Redis's outages, for readers of updates. Each is logged once."""

    def __init__(self, name: str) -> None:
        self._name, self.is_on = name, False

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        is_away = isinstance(error, JobError) and error.code in AWAY
        cause = error.__cause__ if error is not None and is_away else None
        if cause is not None and (is_refused(cause) or isinstance(cause, NoPermissionError)):
            return False  # waiting does not help
        if is_away and not self.is_on:
            log.warning("updates of feed %r wait: %s", self._name, error)
        self.is_on = is_away
        return is_away


class Feed:
    """A feed in Redis; ``ForecastClient.feed`` and ``Feed.open`` give it.

    Args:
        queue: Returns the queue whose workers forecast it at the moment.
    """

    def __init__(
        self, store: FeedStore, name: str, uid: str, spec: FeedSpec, queue: Callable[[], str]
    ) -> None:
        self.name, self.spec = name, spec
        self._store, self._uid, self._queue = store, uid, queue

    @classmethod
    def open(
        cls,
        name: str,
        *,
        url: str | None = None,
        settings: ClientSettings | None = None,
        limits: FeedLimits | None = None,
        store: FeedStore | None = None,
        workers: Callable[[], list["AnyWorkerStatus"]] | None = None,
        **options: Unpack[FeedOptions],
    ) -> Self:
        """Create a feed, or open an existing one: without options, or with the same.

        Args:
            store: Where the feed is, if not in the Redis of the URL.
            workers: Returns the live workers, which decide on the queue; by default Redis is asked.

        Raises:
            JobError: FEED_NOT_FOUND, FEED_CONFLICT, LIMIT_EXCEEDED, or what a job with such options gets.
        """
        settings = settings_for(url, settings)
        if not name or len(name) > 100 or not name.isprintable():
            text = "the feed's name must be 1 to 100 printable characters"
            raise JobError(ErrorCode.BAD_VALUE, text, "name")
        wanted = FeedSpec.from_options(settings, **options) if options else None
        store = store or FeedStore.from_settings(settings, limits)
        try:
            if wanted:
                found: Any = store.create(name, wanted, wanted.max_series(settings.limits()))
            else:
                found = store.find(name)
            if found is None:
                text = f"there is no feed {name!r}: create it by giving pred_len and other options"
                raise JobError(ErrorCode.FEED_NOT_FOUND, text, "name")
            with reading(feed_key(name)):
                spec = FeedSpec.from_json(found[1])
            if wanted and (option := spec.first_difference(wanted)):
                has, given = (each.as_given().get(option) for each in (spec, wanted))
                text = f"feed {name!r} has {option}={has!r}, not {given!r}"
                text += ": open it without options, or delete it first"
                raise JobError(ErrorCode.FEED_CONFLICT, text, option)
        except BaseException:
            store.close()
            raise
        known = workers or partial(live_workers, store.redis)
        device, may_fall_back, names = spec.job["device"], spec.job["allow_fallback"], settings.queue_names

        def queue() -> str:
            if device != "auto" and not may_fall_back:
                return names.on_device(device)  # bars wait there, where a job would be refused
            with reachable():
                return choose_queue(device, may_fall_back, known(), names=names)

        return cls(store, name, found[0], spec, queue)

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

        Only series whose bars Redis has lost are left out: FEED_GONE, with ids in ``details["lost"]``.

        Args:
            bars: A long frame of pandas or polars, as ``predict_df`` takes it.
            id_column, timestamp_column: Its titles.

        Raises:
            JobError: Names the series and the row. FEED_BAR_CHANGED if a known bar differs too far back;
                FEED_GONE, FEED_BUSY, LIMIT_EXCEEDED, BROKER_UNREACHABLE.
        """
        return self._put(bars_of_frame(bars, self.spec, id_column, timestamp_column), is_whole=False)

    def replace(
        self, bars: Any, *, id_column: str = ID_COLUMN, timestamp_column: str = TIMESTAMP_COLUMN
    ) -> Appended:
        """Exchange series whole, such as after a split. Arguments and errors as of ``append``."""
        return self._put(bars_of_frame(bars, self.spec, id_column, timestamp_column), is_whole=True)

    def put_series(self, series: Mapping[str, Any], *, is_whole: bool = False) -> Appended:
        """As ``append``, or ``replace`` if ``is_whole``, by id.

        Columns may be base64, and there may be a ``timezone``.
        """
        return self._put(bars_by_id(series, self.spec), is_whole=is_whole)

    def ids(self) -> list[str]:
        """The ids of all series, sorted."""
        return self._store.series_ids(self._uid)

    def bars(self, series_id: str, *, all_kept: bool = False) -> dict[str, Any]:
        """The window of a series, as candles that ``submit`` takes.

        Args:
            all_kept: With earlier bars, which forecasts have read whose bars have not all come.

        Raises:
            JobError: FEED_NOT_FOUND if the feed has no such series; FEED_GONE, BROKER_UNREACHABLE.
        """
        _, bars = self._window(series_id)
        return (bars if all_kept else bars[-self.spec.max_bars :]).as_columns()

    def series(self, series_id: str) -> FeedSeries:
        """A series' window, its newest forecast, and earlier ones whose bars have not all come.

        Raises:
            JobError: FEED_NOT_FOUND if the feed has no such series; FEED_GONE, BROKER_UNREACHABLE.
        """
        kept, newest = self._store.pending(self._uid, series_id), self.forecast(series_id)
        record, bars = self._window(series_id)  # after the forecasts, so that it has the bars that they read
        bars = bars[-self.spec.max_bars :]
        past = past_forecasts(kept, record.num_restarts, bars, newest) if newest else ()
        return FeedSeries(bars=bars.as_lists(), newest=newest, past=tuple(past))

    def _window(self, series_id: str) -> tuple[Record, Bars]:
        for _ in range(2):  # blocks of a record that was read may go after a while
            (read,) = self._store.read(self._uid, [series_id])
            if read.record is None:
                self._check_series(series_id)
                break
            blocks = read.record.blocks
            with suppress(Lost):
                found = self._store.blocks(self._uid, [block.name for block in blocks])
                return read.record, read.record.bars(blocks, found)
        raise gone(self.name, series_id)

    def latest(self, *, max_age_s: float = math.inf) -> "pd.DataFrame":
        """A row for each series: its newest forecast, or why there is none. Needs pandas.

        Args:
            max_age_s: Leave out rows whose ``age_s`` is larger.

        Returns:
            Columns ``id``; ``last_time`` and ``last_close`` of the newest bar that was read; ``age_s``,
            seconds since that bar was appended; ``overdue_s``, by how much the next bar is late (NaN if times
            have no zone); ``is_current``, whether the newest bar is forecast and none is overdue; the close
            at the horizon as ``close_mean`` and quantiles such as ``close_q0.1``; the chance of each event;
            ``drift``, "too_narrow" or "too_wide" while past 80 % intervals held much less or more; ``error``,
            a code.
        """
        return self._frame(self.rows(), max_age_s)

    def rank(self, event: str, *, max_age_s: float = math.inf) -> "pd.DataFrame":
        """The rows of ``latest`` by the chance of an event, the largest first, without those that have none.

        Raises:
            JobError: BAD_VALUE if the feed has no such event.
        """
        return self._frame(self.rows(event), max_age_s)

    def rows(self, event: str | None = None, num_closes: int = 0) -> list[dict[str, Any]]:
        """The rows of ``latest``, or of ``rank``, without pandas; with ``closes`` of so many newest bars."""
        known_events = {plain_event(known): known for known in self.spec.events}
        event = None if event is None else known_events.get(plain_event(event), event)
        if event is not None and event not in self.spec.events:
            text = f"event must be one of the feed's events ({', '.join(self.spec.events)})"
            none = f"the feed has no events to rank by: create one with events=[{event!r}]"
            raise JobError(ErrorCode.BAD_VALUE, text if self.spec.events else none, "event")
        ids = self.ids()
        reads = dict(zip(ids, self._store.read(self._uid, ids), strict=True))
        if not ids:
            self._store.check_exists(self.name, self._uid)
        known = {
            name: (read.version, read.appended_at, None if read.record is None else read.record.last)
            for name, read in reads.items()
        }
        rows = list(latest_rows(known, self._store.latest(self._uid), self.spec, self._store.now()))
        if num_closes:
            self._add_closes(rows, reads, num_closes)
        if event is None:
            return rows
        with_chance = [row for row in rows if row[event] is not None]
        return sorted(with_chance, key=lambda row: (-row[event], row["id"]))

    def _add_closes(self, rows: list[dict[str, Any]], reads: Mapping[str, Read], num_bars: int) -> None:
        """Add the closes of each series' newest bars, the oldest first, without missing ones."""
        tails = {
            name: read.record.blocks[read.record.tail_from(read.record.last, num_bars) :]
            for name, read in reads.items()
            if read.record
        }
        found = self._store.blocks(self._uid, [block.name for tail in tails.values() for block in tail])
        for row in rows:
            row["closes"] = []
            with suppress(Lost):  # its bars are lost
                if record := reads[row["id"]].record:
                    bars = record.bars(tails[row["id"]], found)
                    row["closes"] = shortest(bars[-num_bars:].closes())

    def scores(self, by: By = "series", *, days: int | None = None) -> "pd.DataFrame":
        """How the feed's own past forecasts did, against bars as they were first read. Needs pandas.

        Args:
            by: "series" has a row for all, whose ``id`` is None, then one for each series since it was last
                replaced; "horizon" one for each number of bars ahead; "chance" one for each tenth of the
                chances of events. Each is by model.
            days: Only what was scored in so many last days of UTC, 1 to 31; by default all.

        Returns:
            Columns ``num_scored``, forecast bars that have come; ``coverage_50``, ``coverage_80`` and
            ``coverage_95``, the share of closes inside these intervals; ``pinball_ratio``, the loss of the
            quantiles, divided by that of a drift-free bootstrap of the same lookbacks; ``brier``, the mean
            squared error of the chances; ``num_missing``, forecast bars that never came.

        Raises:
            JobError: BAD_VALUE, FEED_GONE, BROKER_UNREACHABLE.
        """
        import pandas as pd

        return pd.DataFrame(self.score_rows(by, days=days))

    def score_rows(self, by: By = "series", *, days: int | None = None) -> list[dict[str, Any]]:
        """The rows of ``scores``, without pandas."""
        if by not in get_args(By):
            text = f"by must be one of {', '.join(get_args(By))}"
            raise JobError(ErrorCode.BAD_VALUE, text, "by")
        if days is not None and not 1 <= days <= SCORES_KEPT_DAYS:
            raise JobError(ErrorCode.BAD_VALUE, f"days must be 1 to {SCORES_KEPT_DAYS}", "days")
        sums = self._store.scores(self._uid, days)
        if not sums:
            self._store.check_exists(self.name, self._uid)
        ids = self.ids() if by == "series" else []
        reads = zip(ids, self._store.read(self._uid, ids), strict=True)
        num_restarts = {name: read.record.num_restarts for name, read in reads if read.record}
        with reading(part_key("scores", self._uid)):
            return score_rows(sums, by, num_restarts)

    def _frame(self, rows: Iterable[dict[str, Any]], max_age_s: float) -> "pd.DataFrame":
        import pandas as pd

        shown = [row for row in rows if row["age_s"] <= max_age_s]
        return pd.DataFrame(shown, columns=latest_columns(self.spec))

    def forecast(self, series_id: str) -> FeedUpdate | None:
        """The newest forecast of a series, or why there is none; None before the first.

        Raises:
            JobError: FEED_NOT_FOUND if the feed has no such series; FEED_GONE if it was deleted,
                BROKER_UNREACHABLE.
        """
        found = self._store.latest(self._uid, [series_id])
        if not found:
            self._check_series(series_id)
        return found.get(series_id)

    def _check_series(self, series_id: str) -> None:
        self._store.check_exists(self.name, self._uid)
        if series_id not in self.ids():
            text = f"feed {self.name!r} has no series {series_id!r}"
            raise JobError(ErrorCode.FEED_NOT_FOUND, text, "series_id")

    def updates(
        self, *, after: str | int | None = None, timeout_s: float | None = None
    ) -> Iterator[FeedUpdate]:
        """Yield each new forecast, or why there is none, in order for each series.

        The last updates are kept: about four for each series. While Redis is away it waits,
        which is logged once.

        Args:
            after: The ``id`` of the last update that was handled, to miss none; by default begin now. 0
                begins with the oldest that is kept.
            timeout_s: End after so many seconds without an update; None goes on for ever.

        Raises:
            JobError: BAD_VALUE if ``after`` is no such id; FEED_GONE if the feed was deleted;
                BROKER_UNREACHABLE if Redis refuses the user, the password or the command.
        """
        check_waiting(timeout_s=timeout_s)
        outage, last_at = Outage(self.name), time.monotonic()
        while timeout_s is None or time.monotonic() < last_at + timeout_s:
            left_s, found = math.inf if timeout_s is None else last_at + timeout_s - time.monotonic(), []
            with outage:
                after = self.last_update_id() if after is None else after
                found = self.next_updates(after, left_s)
            for update in found:
                after, last_at = update.id, time.monotonic()
                yield update
            if outage.is_on:
                time.sleep(min(POLL_S, left_s))

    def last_update_id(self) -> str:
        """The id of the newest update, for ``updates``; "0" before the first."""
        return self._store.last_update_id(self._uid)

    def next_updates(self, after: str | int, wait_s: float = WAIT_S) -> list[FeedUpdate]:
        """The updates after the one with this id. Waits up to so many seconds for the first."""
        last_id, ends_at = str(after), time.monotonic() + wait_s
        if not UPDATE_ID.fullmatch(last_id):
            raise JobError(
                ErrorCode.BAD_VALUE, f"after must be the id of an update or 0, not {after!r}", "after"
            )
        while True:
            left_s = ends_at - time.monotonic()
            found = self._store.updates(self._uid, last_id, min(WAIT_S, left_s))
            if not found:
                self._store.check_exists(self.name, self._uid)
            if found or left_s <= WAIT_S:
                return found

    def delete(self) -> None:
        """Remove the feed with all its bars and forecasts."""
        self._store.delete(self.name, self._uid)

    def _put(self, given: Mapping[str, Given], *, is_whole: bool) -> Appended:
        return Append(self._store, self.name, self._uid, self.spec, is_whole=is_whole).run(given, self._queue)
