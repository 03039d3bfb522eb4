"""MemoryFeedStore: the feeds of a fake client, in memory. It answers as ``FeedStore`` does."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kronos_client.contract.errors import JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.feeds.adaptive import clipped
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.store import FeedLimits, FeedStore, exceeds, gone
from kronos_client.feeds.stored import Delivery, Ends, Read, Taken, TakenFeed, Unscored, Write, packed
from kronos_model.evaluation.windows import Array

NOT_KNOWN = Read(0, 0.0, None)
NONE_MADE = Unscored(0, 0, ())
DAY_S: Final = 86_400


@dataclass
class _Feed:
    uid: str
    spec: FeedSpec
    reads: dict[str, Read] = field(default_factory=dict)
    blocks: dict[str, bytes] = field(default_factory=dict)
    due: dict[str, None] = field(default_factory=dict)  # ordered
    latest: dict[str, FeedUpdate] = field(default_factory=dict)
    unscored: dict[str, Unscored] = field(default_factory=dict)
    kept: dict[tuple[str, int], bytes] = field(default_factory=dict)
    scores: dict[tuple[int, str], Array] = field(default_factory=dict)  # by day
    shared: dict[str, Array] = field(default_factory=dict)
    updates: list[FeedUpdate] = field(default_factory=list)
    appended_at: float = 0.0
    num_bytes: int = 0


class MemoryFeedStore(FeedStore):
    """Feeds by name. Threads may share it.

    Args:
        compute: Called with a feed's name and uid when series of it are due.
        refusals: Errors of the next appends.
    """

    def __init__(self, compute: Callable[[str, str], object], refusals: deque[JobError]) -> None:
        self.limits, self._refusals = FeedLimits(), refusals
        self._compute, self._feeds, self._num_made = compute, dict[str, _Feed](), 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def close(self) -> None:
        """Do nothing, so that tests can inspect feeds later."""

    def find(self, name: str) -> tuple[str, str] | None:
        feed = self._feeds.get(name)
        return None if feed is None else (feed.uid, feed.spec.to_json())

    def all(self) -> list[tuple[str, str, float]]:
        found = [(name, feed.uid, feed.appended_at) for name, feed in self._feeds.items()]
        return sorted(found, key=lambda feed: feed[2], reverse=True)

    def create(self, name: str, spec: FeedSpec, max_series: int) -> tuple[str, str]:
        with self._lock:
            if name not in self._feeds:
                if len(self._feeds) >= self.limits.max_feeds:
                    raise exceeds("feeds", self.limits.max_feeds, self.limits.max_feeds + 1)
                self._num_made += 1
                self._feeds[name] = _Feed(f"{self._num_made}", spec)
            return self._feeds[name].uid, self._feeds[name].spec.to_json()

    def read(self, uid: str, ids: Sequence[str]) -> list[Read]:
        reads = self._of(uid).reads
        return [reads.get(name, NOT_KNOWN) for name in ids]

    def series_ids(self, uid: str) -> list[str]:
        return sorted(self._of(uid).reads)

    def blocks(self, uid: str, names: Iterable[str]) -> dict[str, bytes | None]:
        return {name: self._of(uid).blocks.get(name) for name in names}

    def write(self, name: str, uid: str, writes: Sequence[Write], queue: str, spec: FeedSpec) -> bool:
        with self._changed:
            feed = self._feeds.get(name)
            if feed is None or feed.uid != uid:
                raise gone(name)
            if any(feed.reads.get(write.series_id, NOT_KNOWN).version != write.version for write in writes):
                return False
            if self._refusals:
                raise self._refusals.popleft()
            num_series = len({*feed.reads, *(write.series_id for write in writes)})
            num_bytes, limits = feed.num_bytes + sum(write.growth for write in writes), self.limits
            if num_series > limits.max_series:
                raise exceeds(f"series of feed {name!r}", limits.max_series, num_series)
            if num_bytes > max(feed.num_bytes, limits.max_bytes):
                raise exceeds(f"bytes of feed {name!r}", limits.max_bytes, num_bytes)
            feed.num_bytes, feed.appended_at = num_bytes, time.time()
            for write in writes:
                feed.blocks |= write.added
                feed.reads[write.series_id] = Read(
                    write.version + 1, write.appended_at or time.time(), write.record
                )
                feed.due.setdefault(write.series_id)
        self._compute(name, uid)
        return True

    def take(self, delivery: Delivery) -> TakenFeed:
        with self._lock:
            feed = self._of(delivery.uid)
            taken = [
                Taken(series_id, feed.reads[series_id], feed.unscored.get(series_id, NONE_MADE))
                for series_id in feed.due
            ]
            feed.due.clear()
            return TakenFeed(feed.spec, len(feed.reads), dict(feed.shared), taken)

    def kept_forecasts(self, uid: str, versions: Mapping[str, Sequence[int]]) -> dict[str, dict[int, bytes]]:
        kept = self._of(uid).kept
        return {name: {each: kept[name, each] for each in known} for name, known in versions.items()}

    def pending(self, uid: str, series_id: str) -> dict[int, bytes]:
        kept = list(self._of(uid).kept.items())
        return {version: content for (name, version), content in kept if name == series_id}

    def end(
        self, delivery: Delivery, ends: Ends, sums: Mapping[str, Array], shared: Mapping[str, Array]
    ) -> dict[str, Unscored] | None:
        with self._changed:
            feed = self._of(delivery.uid)
            known = {series_id: feed.unscored.get(series_id, NONE_MADE) for series_id in ends}
            if any(end and end.before != known[series_id].version for series_id, end in ends.items()):
                return known
            for series_id, end in ends.items():
                if end is None:
                    feed.due.setdefault(series_id)
                    continue
                if end.forecast:
                    feed.kept[series_id, end.update.version] = end.forecast + packed(end.update)[1]
                for done in end.done:
                    feed.kept.pop((series_id, done), None)
                feed.unscored[series_id] = end.unscored
                feed.latest[series_id] = end.update
                feed.updates.append(end.update.model_copy(update={"id": str(len(feed.updates) + 1)}))
            for score, numbers in sums.items():
                key = (int(self.now() // DAY_S), score)
                feed.scores[key] = feed.scores.get(key, 0) + numbers
            for model, numbers in shared.items():
                feed.shared[model] = clipped(feed.shared.get(model, 0) + numbers)
            self._changed.notify_all()
            return None

    def scores(self, uid: str, days: int | None) -> dict[str, Array]:
        sums, today = dict[str, Array](), int(self.now() // DAY_S)
        for (day, name), numbers in self._of(uid).scores.items():
            if days is None or day > today - days:
                sums[name] = sums.get(name, 0) + numbers
        return sums

    def latest(self, uid: str, ids: Sequence[str] | None = None) -> dict[str, FeedUpdate]:
        known = self._of(uid).latest
        return {name: known[name] for name in (known if ids is None else ids) if name in known}

    def last_update_id(self, uid: str) -> str:
        return str(len(self._of(uid).updates))

    def updates(self, uid: str, after: str, wait_s: float) -> list[FeedUpdate]:
        with self._changed:
            feed = self._of(uid)
            self._changed.wait_for(lambda: len(feed.updates) > int(after), wait_s)
            return feed.updates[int(after) :]

    def delete(self, name: str, uid: str, before: float | None = None) -> bool:
        with self._lock:
            return self.find(name) is not None and self._feeds.pop(name) is not None

    def now(self) -> float:
        return time.time()

    def _of(self, uid: str) -> _Feed:
        found = [feed for feed in self._feeds.values() if feed.uid == uid]
        return found[0] if found else _Feed(uid, FeedSpec({}, None, None, "start", True, 3, 512, ["close"]))
