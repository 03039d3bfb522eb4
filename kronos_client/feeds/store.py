"""What Redis holds of feeds. Each step that others see is one atomic script.

Blocks are immutable, and no name is used twice. While no record lists them, yet or any longer, their names
are noted by time, so that later appends remove them and nothing stays of one that was cut off.
"""

import json
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.contract.names import CELERY_PRIORITIES, FORECAST_TASK, job_key
from kronos_client.feeds.adaptive import LIMIT
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.stored import (
    FEEDS_KEY,
    PARTS,
    Delivery,
    Ends,
    Read,
    Taken,
    TakenFeed,
    Unscored,
    Write,
    day_keys,
    feed_key,
    packed,
    part_key,
    part_keys,
    unpacked,
)
from kronos_client.redis.connection import connect, reachable, run_script
from kronos_client.redis.message import CONTENT, NO_TIMES, NOT_USED
from kronos_client.redis.queues import FEED, list_key
from kronos_client.redis.scripts import read_script
from kronos_client.settings import ClientSettings
from kronos_model.evaluation.windows import Array

UNSEEN_S: Final = 600
"""Seconds that a block without a record is kept: to upload the rest, or to read what has just changed."""
CHUNK: Final = 1000
CACHED_BLOCKS: Final = 60_000
"""With what is kept of forecasts: those of 2,000 series of 512 bars, 12 bars ahead."""
SCORES_KEPT_DAYS: Final = 31
"""Days whose scores can be read alone."""
MAX_UPDATES_READ: Final = 100


@dataclass(frozen=True)
class FeedLimits:
    """What Redis holds at most. A feed is deleted ``kept_s`` seconds after its last append."""

    max_feeds: int = 100
    max_series: int = 5000
    max_bytes: int = 2**30
    kept_s: float = 30 * 86_400.0


class FeedStore:
    """The feeds of one Redis. Threads may share it."""

    def __init__(self, url: str, limits: FeedLimits | None = None, min_replicas: int = 0) -> None:
        self.redis: Redis = connect(url, decode_responses=False, min_replicas=min_replicas)
        self.limits = limits or FeedLimits()
        self._blocks: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    @classmethod
    def from_settings(cls, settings: ClientSettings, limits: FeedLimits | None = None) -> "FeedStore":
        """The store of the settings' Redis."""
        return cls(settings.redis_url.get_secret_value(), limits, settings.redis_min_replicas)

    def close(self) -> None:
        """Close the connections."""
        self.redis.close()

    def find(self, name: str) -> tuple[str, str] | None:
        """A feed's uid and options."""
        with reading(feed_key(name)):
            found: Any = self.redis.hmget(feed_key(name), "uid", "options")
            return None if found[0] is None else (found[0].decode(), found[1].decode())

    def check_exists(self, name: str, uid: str) -> None:
        """Raise JobError FEED_GONE if the feed was deleted, or made anew."""
        found = self.find(name)
        if found is None or found[0] != uid:
            raise gone(name)

    def all(self) -> list[tuple[str, str, float]]:
        """Each feed's name, uid and last append, the newest append first."""
        with reading(FEEDS_KEY):
            known: Any = self.redis.zrevrange(FEEDS_KEY, 0, -1, withscores=True)
            found = [(name.decode(), self.find(name.decode()), at) for name, at in known]
        return [(name, feed[0], float(at)) for name, feed, at in found if feed is not None]

    def create(self, name: str, spec: FeedSpec, max_series: int) -> tuple[str, str]:
        """The uid and options of the feed with this name, which is created if there is none.

        Args:
            max_series: The most series of a job.
        """
        self.sweep()
        uid = uuid.uuid4().hex
        args: list[Any] = [name, uid, spec.to_json(), self.limits.max_feeds]
        args += [_message(name, uid, spec), max_series]
        found = self._run("feed_create", [feed_key(name), FEEDS_KEY], args)
        if not found:
            raise exceeds("feeds", self.limits.max_feeds, self.limits.max_feeds + 1)
        with reading(feed_key(name)):
            return found[0].decode(), found[1].decode()

    def read(self, uid: str, ids: Sequence[str]) -> list[Read]:
        """The series, in the order of ``ids``."""
        read: list[Read] = []
        with reachable():
            for first in range(0, len(ids), CHUNK):
                part = list(ids[first : first + CHUNK])
                # A full Redis refuses transactions. An append between both is found: the version is old then.
                pipe: Any = self.redis.pipeline(transaction=False)
                pipe.hmget(part_key("versions", uid), part)
                pipe.hmget(part_key("series", uid), part)
                versions, records = pipe.execute()
                read += map(Read.from_fields, records, versions)
        return read

    def series_ids(self, uid: str) -> list[str]:
        """The ids of all series, sorted."""
        with reading(part_key("versions", uid)):
            ids: Any = self.redis.hkeys(part_key("versions", uid))
            return sorted(name.decode() for name in ids)

    def blocks(self, uid: str, names: Iterable[str]) -> dict[str, bytes | None]:
        """Blocks by their names; None for one that is not there. Those that were read before cost nothing."""
        return self._fields(uid, part_key("blocks", uid), names)

    def write(self, name: str, uid: str, writes: Sequence[Write], queue: str, spec: FeedSpec) -> bool:
        """Store blocks, then make all records visible. False, with nothing visible, if a series has changed.

        Args:
            queue: The one whose workers forecast the series.

        Raises:
            JobError: FEED_GONE, LIMIT_EXCEEDED, BROKER_UNREACHABLE.
        """
        added = {block: content for write in writes for block, content in write.added.items()}
        uploads, old = _lines(added), _lines(block for write in writes for block in write.old)
        for names in uploads:
            contents = [added[block] for block in names.split()]
            keys = [feed_key(name), *part_keys(uid, "unlisted", "blocks")]
            if not self._run("feed_upload", keys, [uid, UNSEEN_S, names, *contents]):
                raise gone(name)
        limits = self.limits
        args: list[Any] = [name, uid, limits.max_series, limits.max_bytes, sum(w.growth for w in writes)]
        args += [len(writes), len(uploads)]
        for write in writes:
            known = "" if write.appended_at is None else f" {write.appended_at:.6f}"
            args += [write.series_id, write.record.to_bytes(), f"{write.version}{known}"]
        args += uploads + old
        keys = [feed_key(name), FEEDS_KEY]
        keys += part_keys(uid, "series", "versions", "due", "turns", "latest")
        keys += [
            list_key(f"{queue}{FEED}", CELERY_PRIORITIES[spec.job["priority"]]),
            part_key("unlisted", uid),
        ]
        answer, *number = self._run("feed_append", keys, args)
        if answer == b"gone":
            raise gone(name)
        if answer in (b"series", b"bytes"):
            what = answer.decode()
            most = limits.max_series if what == "series" else limits.max_bytes
            raise exceeds(f"{what} of feed {name!r}", most, int(number[0]))
        if answer == b"done":
            self._remember(uid, added)
        return bool(answer == b"done")

    def take(self, delivery: Delivery) -> TakenFeed | None:
        """The due series of a feed, for a job; None if the feed is gone."""
        name, uid, job_id, source = delivery
        keys = [feed_key(name), source, job_key(job_id)]
        keys += part_keys(uid, "due", "taken", "turns", "series", "versions", "adaptive", "pending")
        answer = self._run("feed_take", keys, [uid, job_id])
        if not answer:
            return None
        options, num_series, shared, *columns = answer
        with reading(feed_key(name)):
            spec = FeedSpec.from_json(options)
        series = [
            Taken(series_id.decode(), Read.from_fields(*both), Unscored.from_bytes(kept))
            for series_id, *both, kept in zip(*columns, strict=True)
        ]
        parts = zip(shared[::2], shared[1::2], strict=True)
        by_model = {model.decode(): np.frombuffer(part, "<f8") for model, part in parts if not len(part) % 8}
        return TakenFeed(spec, num_series, by_model, series)

    def kept_forecasts(self, uid: str, versions: Mapping[str, Sequence[int]]) -> dict[str, dict[int, bytes]]:
        """What is kept of forecasts, by series and version. Those made or read here before cost nothing."""
        kept = {name: {each: f"{name}\n{each}" for each in known} for name, known in versions.items()}
        names = [field for fields in kept.values() for field in fields.values()]
        found = self._fields(uid, part_key("pending", uid), names)
        return {
            name: {version: content for version, field in fields.items() if (content := found[field])}
            for name, fields in kept.items()
        }

    def pending(self, uid: str, series_id: str) -> dict[int, bytes]:
        """All that is kept of a series' forecasts, by version."""
        with reachable():
            found: Any = self.redis.hget(part_key("pending", uid), series_id)
        return self.kept_forecasts(uid, {series_id: Unscored.from_bytes(found).kept})[series_id]

    def end(
        self, delivery: Delivery, ends: Ends, sums: Mapping[str, Array], shared: Mapping[str, Array]
    ) -> dict[str, Unscored] | None:
        """Store what a job made of its series.

        Args:
            sums: Scores to add, by field.
            shared: What to add to the parts of adaptive calibrations that series share, by model.

        Returns:
            None; or, with nothing stored, what is unscored, because other jobs have ended series meanwhile.
        """
        name, uid, job_id, source = delivery
        keys = [feed_key(name), source, job_key(job_id)]
        keys += part_keys(uid, "due", "taken", "latest", "updates", "scores", "adaptive", "pending")
        args: list[Any] = [uid, job_id, SCORES_KEPT_DAYS * 86_400, LIMIT]
        for added in (sums, shared):
            args.append(len(added))
            for field, numbers in added.items():
                args += [field, numbers.astype("<f4").tobytes()]
        for series_id, end in ends.items():
            if end is None:
                args += [series_id, 0, "", "", 0, "", "", 0]
                continue
            args += [series_id, end.update.version, *packed(end.update), end.before, end.unscored.to_text()]
            args += [end.forecast, len(end.done), *end.done]
        answer = self._run("feed_end", keys, args)
        if answer is not None:
            return dict(zip(ends, map(Unscored.from_bytes, answer), strict=True))
        made = [end for end in ends.values() if end and end.forecast]
        self._remember(uid, {f"{end.update.series}\n{end.update.version}": end.forecast for end in made})
        return None

    def scores(self, uid: str, days: int | None) -> dict[str, Array]:
        """Sums of scores by field, of all time or of the last days by Redis's clock."""
        today = int(self.now() // 86_400)
        keys = [part_key("scores", uid)] if days is None else day_keys(uid, today, days)
        sums: dict[str, Array] = {}
        for key in keys:
            with reading(key):
                found: Any = self.redis.hgetall(key)
                for field, numbers in found.items():
                    name = field.decode()
                    sums[name] = sums.get(name, 0) + np.frombuffer(numbers, "<f8")
        return sums

    def latest(self, uid: str, ids: Sequence[str] | None = None) -> dict[str, FeedUpdate]:
        """The newest update of each series, or of these, that have one."""
        key = part_key("latest", uid)
        with reading(key):
            if ids is None:
                known: Any = self.redis.hgetall(key)
                found = {name.decode(): text for name, text in known.items()}
            else:
                found = dict(zip(ids, self.redis.hmget(key, list(ids)), strict=True)) if ids else {}
        return {name: _update(key, name, text.partition(b" ")[2]) for name, text in found.items() if text}

    def last_update_id(self, uid: str) -> str:
        """The id of the newest update; ``0`` if there is none."""
        with reachable():
            newest: Any = self.redis.xrevrange(part_key("updates", uid), count=1)
        return newest[0][0].decode() if newest else "0"

    def updates(self, uid: str, after: str, wait_s: float) -> list[FeedUpdate]:
        """The next updates after the one with this id. Waits for the first."""
        key = part_key("updates", uid)
        with reachable():
            wait_ms = max(1, int(wait_s * 1000)) if wait_s > 0 else None  # 0 would wait for ever
            streams: Any = self.redis.xread({key: after}, count=MAX_UPDATES_READ, block=wait_ms)
        found = []
        for entry_id, entry in streams[0][1] if streams else []:
            series, outcome = entry.get(b"series", b""), entry.get(b"outcome", b"")
            found.append(_update(key, series.decode(errors="replace"), outcome, entry_id.decode()))
        return found

    def delete(self, name: str, uid: str, before: float | None = None) -> bool:
        """Remove a feed and all that belongs to it, if its last append was ``before`` a moment."""
        keys = [feed_key(name), FEEDS_KEY, *part_keys(uid, *PARTS)]
        keys += day_keys(uid, int(self.now() // 86_400), SCORES_KEPT_DAYS)
        return bool(self._run("feed_delete", keys, [name, uid, "" if before is None else before]))

    def sweep(self) -> None:
        """Delete feeds that nobody appends to any more."""
        before = self.now() - self.limits.kept_s
        with reachable():
            old: Any = self.redis.zrangebyscore(FEEDS_KEY, "-inf", before)
        for name in old:
            if (found := self.find(name.decode())) is not None:
                self.delete(name.decode(), found[0], before)

    def now(self) -> float:
        """Redis's clock, Unix time in seconds."""
        with reachable():
            seconds, micros = self.redis.time()
        return float(seconds) + micros / 1e6

    def _fields(self, uid: str, key: str, names: Iterable[str]) -> dict[str, bytes | None]:
        """Fields of a hash of a feed that never change; None for one that is not there."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, bytes | None] = {name: self._blocks.get((uid, name)) for name in wanted}
        missing = [name for name in wanted if found[name] is None]
        with reachable():
            for first in range(0, len(missing), CHUNK):
                part = missing[first : first + CHUNK]
                contents: Any = self.redis.hmget(key, part)
                found |= zip(part, contents, strict=True)
        self._remember(uid, {name: content for name in missing if (content := found[name]) is not None})
        return found

    def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        with reachable():
            return run_script(self.redis, self.redis.register_script(read_script(script)), keys, args)

    def _remember(self, uid: str, fields: Mapping[str, bytes]) -> None:
        self._blocks.update({(uid, name): content for name, content in fields.items()})
        while len(self._blocks) > CACHED_BLOCKS:
            try:
                self._blocks.popitem(last=False)
            except KeyError:  # another thread has removed them
                return


@contextmanager
def reading(key: str) -> Iterator[None]:
    """As ``reachable``. Raise JobError KEY_UNREADABLE, too, if what the key holds has another form."""
    with reachable():
        try:
            yield
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            text = f"another program wrote the Redis key {key} ({type(error).__name__}): delete it"
            raise JobError(ErrorCode.KEY_UNREADABLE, text) from error


def _update(key: str, series: str, content: bytes, update_id: str = "") -> FeedUpdate:
    """An update, or an error in its place, so that it hides no other."""
    try:
        with reading(key):
            return unpacked(content, update_id)
    except JobError as error:
        nothing: Any = {"version": 0, "job_id": "", "last_time": None, "last": None, "appended_at": 0.0}
        return FeedUpdate(id=update_id, series=series, **nothing).with_error(error)


def gone(name: str, *lost: str) -> JobError:
    """The error for a feed, or bars of some of its series, that Redis no longer has."""
    if not lost:
        text = f"Redis no longer has feed {name!r}: create it again and append whole windows"
        return JobError(ErrorCode.FEED_GONE, text, None, {"feed": name})
    text = f"Redis no longer has all bars of series {lost[0]!r} of feed {name!r}"
    text += ": give its whole window to replace()"
    if len(lost) > 1:
        text += f", and those of {len(lost) - 1} more series, which details['lost'] names"
    return JobError(ErrorCode.FEED_GONE, text, None, {"feed": name, "series": lost[0], "lost": [*lost]})


def _lines(names: Iterable[str]) -> list[str]:
    """Names of blocks, some on each line."""
    known = list(names)
    return [" ".join(known[first : first + CHUNK]) for first in range(0, len(known), CHUNK)]


def _message(name: str, uid: str, spec: FeedSpec) -> str:
    """The message of a feed's jobs; ``lua/feed_send.lua`` replaces the words between two ``@``."""
    job = {"feed": {"name": name, "uid": uid, "num_series": -1}, "submitted_at": -1}
    job |= {"pred_len": spec.job.get("pred_len"), "sampling": spec.job["sampling"]}
    body = json.dumps([[], {"job": job}, {}]).replace("@", "\\u0040")
    # A name cannot contain these fields, since its quotes are escaped.
    for field, word in (("num_series", "NUM"), ("submitted_at", "TIME")):
        body = body.replace(f'"{field}": -1', f'"{field}": @{word}@')
    ids = {"id": "@ID@", "root_id": "@ID@", "parent_id": None, "retries": 0}
    headers = NO_TIMES | NOT_USED | ids | {"lang": "py", "task": FORECAST_TASK, "argsrepr": "()"}
    properties = {"correlation_id": "@ID@", "reply_to": "", "delivery_mode": 2, "delivery_tag": "@ID@"}
    properties["priority"] = CELERY_PRIORITIES[spec.job["priority"]]
    return json.dumps({"body": body, **CONTENT, "headers": headers, "properties": properties})


def exceeds(what: str, limit: int, actual: int) -> JobError:
    """The error for what is more than its limit."""
    text = f"{actual} {what} would exceed the limit of {limit}: delete a feed, or keep fewer series or bars"
    return JobError(ErrorCode.LIMIT_EXCEEDED, text, None, {"limit": limit, "actual": actual})
