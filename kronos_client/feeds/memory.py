"""MemoryFeedStore: the feeds of a fake client, in memory. It answers as ``FeedStore`` does."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.store import FeedLimits, FeedStore, Read, Taken, Write, exceeds, gone
from kronos_client.feeds.update import FeedUpdate

NOT_KNOWN = Read(0, 0.0, None)


@dataclass
class _Feed:
    uid: str
    spec: FeedSpec
    reads: dict[str, Read] = field(default_factory=dict)
    blocks: dict[str, bytes] = field(default_factory=dict)
    due: dict[str, None] = field(default_factory=dict)  # ordered
    latest: dict[str, FeedUpdate] = field(default_factory=dict)
    updates: list[FeedUpdate] = field(default_factory=list)


class MemoryFeedStore(FeedStore):
    """Feeds by name. Threads may share it.

    Args:
        compute: Called with a feed's name and uid when series of it are due.
    """

    def __init__(self, compute: Callable[[str, str], object]) -> None:
        self.limits = FeedLimits()
        self._compute, self._feeds, self._num_made = compute, dict[str, _Feed](), 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def close(self) -> None:
        """Do nothing, so that tests can inspect feeds later."""

    def find(self, name: str) -> tuple[str, str] | None:
        feed = self._feeds.get(name)
        return None if feed is None else (feed.uid, feed.spec.to_json())

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
            for write in writes:
                feed.blocks |= write.added
                feed.reads[write.series_id] = Read(write.version + 1, time.time(), write.record)
                feed.due.setdefault(write.series_id)
        self._compute(name, uid)
        return True

    def take(self, name: str, uid: str, job_id: str, source: str) -> tuple[str, list[Taken]] | None:
        with self._lock:
            feed = self._of(uid)
            taken = [Taken(series_id, feed.reads[series_id]) for series_id in feed.due]
            feed.due.clear()
            return feed.spec.to_json(), taken

    def end(
        self, name: str, uid: str, job_id: str, source: str, updates: Mapping[str, FeedUpdate | None]
    ) -> None:
        with self._changed:
            feed = self._of(uid)
            for series_id, update in updates.items():
                if update is None:
                    feed.due.setdefault(series_id)
                elif series_id not in feed.latest or feed.latest[series_id].version < update.version:
                    feed.latest[series_id] = update
                    feed.updates.append(update.model_copy(update={"id": str(len(feed.updates) + 1)}))
            self._changed.notify_all()

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
