"""The names of a feed's keys in Redis; ``kronos_client/redis/lua/README.md`` says what they hold."""

from typing import Final

from kronos_client.contract.names import KEY_PREFIX

FEEDS_KEY: Final = f"{KEY_PREFIX}feeds"
"""The sorted set of feeds' names, by their last append."""


def feed_key(name: str) -> str:
    """The key of a feed's uid, options and size."""
    return f"{KEY_PREFIX}feed:{name}"


def series_key(uid: str) -> str:
    """The key of the records of a feed's series."""
    return f"{KEY_PREFIX}feed_series:{uid}"


def versions_key(uid: str) -> str:
    """The key of the versions of a feed's series."""
    return f"{KEY_PREFIX}feed_versions:{uid}"


def due_key(uid: str) -> str:
    """The key of the series whose newest bars wait for a forecast, by the moment since when."""
    return f"{KEY_PREFIX}feed_due:{uid}"


def turns_key(uid: str) -> str:
    """The key of all series, by when a job last took them."""
    return f"{KEY_PREFIX}feed_turns:{uid}"


def taken_key(uid: str) -> str:
    """The key of the series that jobs compute, by job."""
    return f"{KEY_PREFIX}feed_taken:{uid}"


def latest_key(uid: str) -> str:
    """The key of the newest update of each series."""
    return f"{KEY_PREFIX}feed_latest:{uid}"


def updates_key(uid: str) -> str:
    """The key of the stream of updates."""
    return f"{KEY_PREFIX}feed_updates:{uid}"


def adaptive_key(uid: str) -> str:
    """The key of the parts of adaptive calibrations that all series share, by model."""
    return f"{KEY_PREFIX}feed_adaptive:{uid}"


def pending_key(uid: str) -> str:
    """The key of what is still to be scored, by series, and of forecasts by series and version."""
    return f"{KEY_PREFIX}feed_pending:{uid}"


def scores_key(uid: str) -> str:
    """The key of the sums of scores; those of a day have its number since 1970 too."""
    return f"{KEY_PREFIX}feed_scores:{uid}"


def day_keys(uid: str, today: int, days: int) -> list[str]:
    """The keys of the sums of scores of the last days."""
    return [f"{scores_key(uid)}:{day}" for day in range(today, today - days, -1)]


def unlisted_key(uid: str) -> str:
    """The key of the names of blocks that no record lists, yet or any longer."""
    return f"{KEY_PREFIX}feed_unlisted:{uid}"


def blocks_key(uid: str) -> str:
    """The key of all blocks, by name."""
    return f"{KEY_PREFIX}feed_blocks:{uid}"


OF_A_FEED: Final = (
    series_key, versions_key, blocks_key, unlisted_key, due_key, turns_key, taken_key, latest_key,
    updates_key, pending_key, adaptive_key, scores_key,
)  # fmt: skip
"""All keys of a feed but those of days."""
