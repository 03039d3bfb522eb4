"""A feed's keys in Redis. Each step that others see is one atomic script.

Blocks are immutable and named by their content. They expire until a script makes a record visible that lists
them, and again once no record does, so that nothing stays of an append that was cut off.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import KEY_PREFIX
from kronos_client.feeds.window import Record
from kronos_client.redis.connection import connect, reachable, run_script
from kronos_client.redis.scripts import read_script

FEEDS_KEY: Final = f"{KEY_PREFIX}feeds"
"""The sorted set of feeds' names, by their last append."""
GONE_KEY: Final = f"{KEY_PREFIX}feeds_gone"
"""The set of deleted feeds whose series are still to be removed."""
UNSEEN_S: Final = 600
"""Seconds that a block without a record is kept: to upload the rest, or to read what has just changed."""
CHUNK: Final = 1000
CACHED_BLOCKS: Final = 20_000


@dataclass(frozen=True)
class FeedLimits:
    """What Redis holds at most. A feed is deleted ``kept_s`` seconds after its last append."""

    max_feeds: int = 100
    max_series: int = 5000
    max_bytes: int = 2**30
    kept_s: float = 30 * 86_400.0


class Read(NamedTuple):
    """A series as it was read. Without bars its version is 0 and it has no record."""

    version: int
    appended_at: float
    record: Record | None


class Write(NamedTuple):
    """A series' new record, the version that it replaces, and its blocks that come and go."""

    series_id: str
    version: int
    record: Record
    added: Mapping[str, bytes]
    old: Sequence[str]
    growth: int


class FeedStore:
    """The feeds of one Redis. Threads may share it."""

    def __init__(self, url: str, limits: FeedLimits | None = None, min_replicas: int = 0) -> None:
        self.redis: Redis = connect(url, decode_responses=False, min_replicas=min_replicas)
        self.limits = limits or FeedLimits()
        self._blocks: OrderedDict[str, bytes] = OrderedDict()

    def close(self) -> None:
        """Close the connections."""
        self.redis.close()

    def find(self, name: str) -> tuple[str, str] | None:
        """A feed's uid and options."""
        with reachable():
            found: Any = self.redis.hmget(feed_key(name), "uid", "options")
        return None if found[0] is None else (found[0].decode(), found[1].decode())

    def create(self, name: str, options: str) -> tuple[str, str]:
        """The uid and options of the feed with this name, which is created if there is none."""
        self.sweep()
        args: list[Any] = [name, uuid.uuid4().hex, options, self.limits.max_feeds]
        found = self._run("feed_create", [feed_key(name), FEEDS_KEY], args)
        if not found:
            raise _exceeds("feeds", self.limits.max_feeds, self.limits.max_feeds + 1)
        return found[0].decode(), found[1].decode()

    def read(self, uid: str, ids: Sequence[str]) -> list[Read]:
        """The series, in the order of ``ids``."""
        read = []
        with reachable():
            for first in range(0, len(ids), CHUNK):
                part = list(ids[first : first + CHUNK])
                pipe: Any = self.redis.pipeline(transaction=True)  # both of one moment
                pipe.hmget(series_key(uid), part)
                pipe.hmget(versions_key(uid), part)
                for record, version in zip(*pipe.execute(), strict=True):
                    number, _, moment = (version or b"0 0").decode().partition(" ")
                    known = None if record is None else Record.from_json(record)
                    read.append(Read(int(number), float(moment), known))
        return read

    def series_ids(self, uid: str) -> list[str]:
        """The ids of all series, sorted."""
        with reachable():
            ids: Any = self.redis.hkeys(versions_key(uid))
        return sorted(name.decode() for name in ids)

    def blocks(self, uid: str, names: Iterable[str]) -> dict[str, bytes | None]:
        """Blocks by their names; None for one that is not there. Those that were read before cost nothing."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, bytes | None] = {name: self._blocks.get(name) for name in wanted}
        missing = [name for name in wanted if found[name] is None]
        with reachable():
            for first in range(0, len(missing), CHUNK):
                part = missing[first : first + CHUNK]
                contents: Any = self.redis.mget([block_key(uid, name) for name in part])
                found |= zip(part, contents, strict=True)
        self._remember({name: content for name in missing if (content := found[name]) is not None})
        return found

    def write(self, name: str, uid: str, writes: Sequence[Write]) -> bool:
        """Store blocks, then make all records visible. False, with nothing visible, if a series has changed.

        Raises:
            JobError: FEED_GONE, LIMIT_EXCEEDED, BROKER_UNREACHABLE.
        """
        with reachable():
            pipe: Any = self.redis.pipeline(transaction=False)
            for write in writes:
                for block, content in write.added.items():
                    # Never over a visible one, which would then expire.
                    pipe.set(block_key(uid, block), content, ex=UNSEEN_S, nx=True)
            pipe.execute()
        limits = self.limits
        args: list[Any] = [name, uid, limits.max_series, limits.max_bytes, sum(w.growth for w in writes)]
        args.append(UNSEEN_S)
        for write in writes:
            args += [write.series_id, write.version, write.record.to_json()]
            for blocks in (list(write.added), write.old):
                args += [len(blocks), *(block_key(uid, block) for block in blocks)]
        keys = [feed_key(name), FEEDS_KEY, series_key(uid), versions_key(uid)]
        answer, *number = self._run("feed_append", keys, args)
        if answer == b"gone":
            raise gone(name)
        if answer in (b"series", b"bytes"):
            what = answer.decode()
            most = limits.max_series if what == "series" else limits.max_bytes
            raise _exceeds(f"{what} of feed {name!r}", most, int(number[0]))
        if answer == b"done":
            for write in writes:
                self._remember(write.added)
        return bool(answer == b"done")

    def delete(self, name: str, uid: str, before: float | None = None) -> bool:
        """Remove a feed and all that belongs to it, if its last append was ``before`` a moment."""
        args: list[Any] = [name, uid, "" if before is None else before]
        is_deleted = self._run("feed_delete", [feed_key(name), FEEDS_KEY, GONE_KEY], args)
        self._remove_gone()
        return bool(is_deleted)

    def sweep(self) -> None:
        """Delete feeds that nobody appends to any more, and finish deletions that were cut off."""
        before = self.now() - self.limits.kept_s
        with reachable():
            old: Any = self.redis.zrangebyscore(FEEDS_KEY, "-inf", before)
        for name in old:
            if (found := self.find(name.decode())) is not None:
                self.delete(name.decode(), found[0], before)
        self._remove_gone()

    def now(self) -> float:
        """Redis's clock, Unix time in seconds."""
        with reachable():
            seconds, micros = self.redis.time()
        return float(seconds) + micros / 1e6

    def _remove_gone(self) -> None:
        with reachable():
            uids: Any = self.redis.smembers(GONE_KEY)
            for uid in (each.decode() for each in uids):
                for _, record in self.redis.hscan_iter(series_key(uid), count=100):
                    blocks = Record.from_json(record).blocks
                    self.redis.unlink(*(block_key(uid, block.name) for block in blocks))
                self.redis.unlink(series_key(uid), versions_key(uid))
                self.redis.srem(GONE_KEY, uid)

    def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        with reachable():
            return run_script(self.redis, self.redis.register_script(read_script(script)), keys, args)

    def _remember(self, blocks: Mapping[str, bytes]) -> None:
        self._blocks.update(blocks)
        while len(self._blocks) > CACHED_BLOCKS:
            try:
                self._blocks.popitem(last=False)
            except KeyError:  # another thread has removed them
                return


def feed_key(name: str) -> str:
    """The key of a feed's uid, options and size."""
    return f"{KEY_PREFIX}feed:{name}"


def series_key(uid: str) -> str:
    """The key of the records of a feed's series."""
    return f"{KEY_PREFIX}feed_series:{uid}"


def versions_key(uid: str) -> str:
    """The key of the versions of a feed's series."""
    return f"{KEY_PREFIX}feed_versions:{uid}"


def block_key(uid: str, block: str) -> str:
    """The key of a block."""
    return f"{KEY_PREFIX}feed_block:{uid}:{block}"


def gone(name: str, series_id: str | None = None) -> JobError:
    """The error for a feed, or bars of one of its series, that Redis no longer has."""
    what = f"feed {name!r}" if series_id is None else f"bars of series {series_id!r} of feed {name!r}"
    text = f"Redis no longer has {what}: create it again and append whole windows"
    return JobError(ErrorCode.FEED_GONE, text, None, {"feed": name})


def _exceeds(what: str, limit: int, actual: int) -> JobError:
    text = f"{actual} {what} would exceed the limit of {limit}: delete a feed, or keep fewer series or bars"
    return JobError(ErrorCode.LIMIT_EXCEEDED, text, None, {"limit": limit, "actual": actual})
