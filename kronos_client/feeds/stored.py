"""The keys of feeds in Redis, what ``FeedStore`` reads and writes there, and the forms that it has there."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Self, get_args

from kronos_client.contract.compressed import compressed, decompressed
from kronos_client.contract.feed import FeedUpdate
from kronos_client.contract.manifest import Manifest
from kronos_client.contract.names import KEY_PREFIX
from kronos_client.feeds.blocks import Record
from kronos_client.feeds.options import FeedSpec
from kronos_model.evaluation.windows import Array

FEEDS_KEY: Final = f"{KEY_PREFIX}feeds"
"""The sorted set of feeds' names, by their last append."""
Part = Literal[
    "series", "versions", "blocks", "unlisted", "due", "turns", "taken", "latest",
    "updates", "pending", "adaptive", "scores",
]  # fmt: skip
"""What a feed has under keys of its own; ``kronos_client/redis/lua/README.md`` says what they hold."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)


def feed_key(name: str) -> str:
    """The key of a feed's uid, options and size."""
    return f"{KEY_PREFIX}feed:{name}"


def part_key(part: Part, uid: str) -> str:
    """The key of a part of a feed."""
    return f"{KEY_PREFIX}feed_{part}:{uid}"


def part_keys(uid: str, *parts: Part) -> list[str]:
    """The keys of some parts."""
    return [part_key(part, uid) for part in parts]


def day_keys(uid: str, today: int, days: int) -> list[str]:
    """The keys of the sums of scores of the last days; ``part_key`` has that of all time."""
    return [f"{part_key('scores', uid)}:{day}" for day in range(today, today - days, -1)]


VERSION: Final = re.compile(rb"(\d+) (\d+\.?\d*)")
UNSCORED: Final = re.compile(rb"(\d+) (-?\d+)([ \d]*)\n(.*)", re.DOTALL)
"""The scripts read them by the same patterns. What another program wrote counts as nothing."""


class Read(NamedTuple):
    """A series as it was read. Without bars its version is 0 and it has no record.

    Attributes:
        appended_at: When its newest bar came, by Redis's clock.
    """

    version: int
    appended_at: float
    record: Record | None

    @classmethod
    def from_fields(cls, record: bytes | None, version: bytes | None) -> Self:
        """By its fields in ``kronos:feed_series`` and ``kronos:feed_versions``."""
        known = VERSION.fullmatch(version or b"")
        number, moment = (known[1], known[2]) if known else (0, 0)
        return cls(int(number), float(moment), Record.from_bytes(record))


class Unscored(NamedTuple):
    """What is still to be scored of a series.

    Attributes:
        version: Of its newest outcome; 0 if there is none.
        scored: The instant up to which its bars were scored.
        kept: Versions whose forecasts are kept for that.
        state: What jobs note of it: a ``SeriesState``, as JSON.
    """

    version: int
    scored: int
    kept: tuple[int, ...]
    state: str = ""

    @classmethod
    def from_bytes(cls, found: bytes | None) -> Self:
        """As ``kronos:feed_pending`` has it."""
        if (known := UNSCORED.match(found or b"")) is None:
            return cls(0, 0, ())
        kept = tuple(map(int, known[3].split()))
        return cls(int(known[1]), int(known[2]), kept, known[4].decode(errors="replace"))

    def to_text(self) -> str:
        """The reverse of ``from_bytes``."""
        return f"{' '.join(map(str, (self.version, self.scored, *self.kept)))}\n{self.state}"


class Delivery(NamedTuple):
    """A message of a feed, by its job, and the list that it was taken from."""

    name: str
    uid: str
    job_id: str
    source: str


class Taken(NamedTuple):
    """A series that a job computes, as it is now; without a record its bars are gone."""

    series_id: str
    read: Read
    unscored: Unscored


class TakenFeed(NamedTuple):
    """A job's series; the feed's options, the number of all its series, and by model what they share."""

    spec: FeedSpec
    num_series: int
    shared: Mapping[str, Array]
    series: Sequence[Taken]


class End(NamedTuple):
    """What became of a series.

    Attributes:
        before: The version whose outcome was the newest.
        unscored: What is still to be scored now.
        forecast: What is kept of its forecast until its bars come, or nothing.
        done: Versions whose forecasts need not be kept any longer.
    """

    update: FeedUpdate
    before: int
    unscored: Unscored
    forecast: bytes = b""
    done: Sequence[int] = ()


Ends = dict[str, End | None]
"""What became of a job's series; those without an end are due again."""


class Write(NamedTuple):
    """A series' new record, the version that it replaces, and its blocks that come and go.

    Attributes:
        appended_at: When its newest bar came, if that was known before.
    """

    series_id: str
    version: int
    appended_at: float | None
    record: Record
    added: Mapping[str, bytes]
    old: Sequence[str]
    growth: int


def packed(update: FeedUpdate) -> tuple[bytes, bytes]:
    """An update without its forecast's manifest, and the manifest, which Redis adds to what it keeps."""
    text = update.model_dump_json(exclude_defaults=True, exclude={"forecast": {"manifest"}})
    manifest = None if update.forecast is None else update.forecast.manifest
    return compressed(text), b"" if manifest is None else manifest.to_bytes()


def unpacked(packed: bytes, update_id: str = "") -> FeedUpdate:
    """The update of ``packed``, whose manifest Redis has added."""
    text, manifest_bytes = decompressed(packed)
    update = FeedUpdate.model_validate_json(text).model_copy(update={"id": update_id})
    if not (update.forecast and manifest_bytes):
        return update
    manifest = Manifest.from_bytes(manifest_bytes)
    forecast = update.forecast.model_copy(update={"manifest": manifest})
    return update.model_copy(update={"forecast": forecast})
