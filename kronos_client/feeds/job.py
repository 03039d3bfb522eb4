"""FeedJob: the series of a feed that are due, as one forecast job. The series are bound when the job begins.

A feed's message names only the feed. So bars that arrive while it waits are read, and a pool that is too slow
leaves out ticks of a series instead of falling behind.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeGuard

import numpy as np

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.contract.results import SCORED_LEVELS, ForecastResult, SeriesForecast
from kronos_client.feeds.adaptive import changes, clipped, errors, factors, widened
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.drift import SeriesState
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.scores import INTERVALS, Due, PendingForecast, ScoreSums, due, is_kept
from kronos_client.feeds.store import End, FeedStore, Read, Taken, TakenFeed, Unscored, gone
from kronos_client.feeds.update import FeedUpdate
from kronos_model.bars.columns import CLOSE
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.evaluation.windows import Array
from kronos_model.forecast import Event
from kronos_model.seeds import seed_from_text

OF_SERIES: Final = re.compile(r"series\.(\d+)(\.|$)")
"""The field of an error that concerns one series of a job."""


def is_feed_job(job: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a message's job names a feed instead of series."""
    return isinstance(job, Mapping) and isinstance(job.get("feed"), Mapping)


class FeedJob:
    """One job of a feed.

    Args:
        source: The list that the job's message was taken from.
    """

    def __init__(self, store: FeedStore, job: Mapping[str, Any], job_id: str, source: str) -> None:
        name, uid = str(job["feed"].get("name")), str(job["feed"].get("uid"))
        self._store, self._given = store, (name, uid, job_id, source)
        self._submitted_at = job.get("submitted_at")
        self.name, self._uid, self._job_id = name, uid, job_id
        self._spec: FeedSpec | None = None
        self._feed: TakenFeed | None = None
        self._updates: dict[str, FeedUpdate] = {}  # of all series, complete when the job ends
        self._computed: list[str] = []  # the ids of the job's series, in its order
        self._taken: dict[str, Taken] = {}
        self._bars: dict[str, Bars] = {}
        self._forecasts: dict[str, PendingForecast] = {}
        self._scored: dict[str, Any] = {}  # the quantiles of the close at ``SCORED_LEVELS``
        self._shared: dict[str, Array] = {}  # changes of what series share, by model
        self.scores: dict[str, float] = {}
        """``SERIES_SUMS`` that its end has added."""
        self.drifts: list[str] = []
        """The kinds of the alarms that its end has raised."""

    def take(self) -> dict[str, Any] | None:
        """The job as other senders write it, with the series that are due now; None if none is.

        Raises:
            JobError: FEED_GONE, BROKER_UNREACHABLE.
        """
        found = self._store.take(*self._given)
        if found is None:
            raise gone(self.name)
        self._feed, self._spec = found, (spec := FeedSpec.from_json(found.options))
        self._taken = {taken.series_id: taken for taken in found.series}
        records = [taken.read.record for taken in found.series if taken.read.record]
        contents = self._store.blocks(
            self._uid, [block.name for record in records for block in record.blocks]
        )
        series = []
        for name, read, _ in found.series:
            self._updates[name] = FeedUpdate(
                series=name,
                version=read.version,
                job_id=self._job_id,
                last_time=None,
                last=None if read.record is None else read.record.last,
                appended_at=read.appended_at,
            )
            try:
                series.append(self._series(spec, name, read, contents))
                self._computed.append(name)
            except JobError as error:
                self._updates[name] = self._updates[name].with_error(error)
        if not series:
            return None
        known = {"schema_version": SCHEMA_VERSION, "submitted_at": self._submitted_at}
        return {**spec.job, **known, "series": series, "output": {**spec.job["output"], "scoring": True}}

    def _series(
        self, spec: FeedSpec, name: str, read: Read, contents: Mapping[str, bytes | None]
    ) -> dict[str, Any]:
        record = read.record
        found = [] if record is None else [contents[block.name] for block in record.blocks]
        blocks = [content for content in found if content is not None]
        if record is None or len(blocks) < len(found):
            raise gone(self.name, name)
        self._bars[name] = Bars.from_blocks(record.form, blocks)[-spec.max_bars :]
        payload = self._bars[name].payload(name)
        self._updates[name] = self._updates[name].model_copy(update={"last_time": payload["timestamps"][-1]})
        zones = {"calendar": spec.calendar, "timezone": record.timezone}
        payload |= {option: value for option, value in zones.items() if value is not None}
        seed = spec.job["sampling"].get("seed")
        own_seed = seed_from_text(f"{self._uid if seed is None else seed}:{name}:{record.last}")
        return {**payload, "seed": own_seed}

    def end(self, outcome: ForecastResult | dict[str, Any] | JobError | None) -> dict[str, Any] | JobError:
        """Store what became of the series; returns the job's own outcome, without forecasts.

        Args:
            outcome: None if no series was left to compute.

        Raises:
            JobError: BROKER_UNREACHABLE.
        """
        if self._spec is None and isinstance(outcome, JobError):  # it ended before it began
            try:
                self.take()
            except JobError as error:
                if error.code == ErrorCode.BROKER_UNREACHABLE:
                    raise
                return outcome
        updates: dict[str, FeedUpdate | None] = {**self._updates}
        facts: dict[str, Any] = {"timings_ms": {}}
        if isinstance(outcome, JobError):
            found = OF_SERIES.match(outcome.field or "")
            at_fault = self._computed[int(found[1]) : int(found[1]) + 1] if found else self._computed
            for name in self._computed:
                updates[name] = self._updates[name].with_error(outcome) if name in at_fault else None
        elif outcome is not None:
            result = outcome
            if isinstance(result, dict):
                result = ForecastResult.model_validate(result, strict=False)
            facts = result.model_dump(mode="json", exclude={"series"})
            updates |= {forecast.id: self._made(result, forecast) for forecast in result.series}
        unscored: dict[str, Unscored] | None = {name: taken.unscored for name, taken in self._taken.items()}
        while unscored is not None:  # others have ended series meanwhile
            ends, sums = self._ends(updates, unscored)
            unscored = self._store.end(*self._given, ends, sums.by_field, self._shared)
        self.scores = sums.totals
        if isinstance(outcome, JobError):
            return outcome
        failed = {name: update.failure.code for name, update in updates.items() if update and update.failure}
        return facts | {"feed": self.name, "num_series": len(updates), "failed": failed}

    def _ends(
        self, updates: Mapping[str, FeedUpdate | None], unscored: Mapping[str, Unscored]
    ) -> tuple[dict[str, End | None], ScoreSums]:
        """What becomes of series whose newest outcome is older, and the scores of their earlier forecasts."""
        ends: dict[str, End | None] = {}
        sums, events = ScoreSums(), [Event.parse(text) for text in self._spec.events] if self._spec else []
        self._shared, self.drifts = {}, []
        found = self._store.kept_forecasts(
            self._uid, {name: unscored[name].kept for name in self._forecasts.keys() & unscored.keys()}
        )
        for name, (newest, scored, kept, own) in unscored.items():
            update, made = updates[name], self._forecasts.get(name)
            if update is None:
                ends[name] = None
            elif newest >= update.version:
                continue
            elif made is None:
                ends[name] = End(update, newest, scored, own)
            else:
                known = {at: PendingForecast.from_bytes(content) for at, content in found[name].items()}
                current = [one for one in known.values() if one.num_restarts == made.num_restarts]
                bars, last = self._bars[name], int(self._bars[name].clock[-1])
                scored_now = due(current, bars, scored)
                by_model = sums.add(name, scored_now, bars, events)
                state = SeriesState.read(own, made)
                update, made = self._corrected(update, made, state, by_model, scored_now)
                waiting = {at for at, one in known.items() if one in current and one.times[-1] > last}
                content = made.to_bytes() if is_kept(update.version, len(made.times)) else b""
                ends[name] = End(update, newest, last, state.to_json(), content, sorted({*kept} - waiting))
        return ends, sums

    def _corrected(
        self,
        update: FeedUpdate,
        made: PendingForecast,
        state: SeriesState,
        sums: Mapping[str, Array],
        scored: Sequence[Due],
    ) -> tuple[FeedUpdate, PendingForecast]:
        """A forecast with the alarm and, if the feed is adaptive, its close's quantiles, after these scores.

        Changes ``state``.
        """
        assert self._feed is not None
        assert self._spec is not None
        forecast = update.forecast
        assert forecast is not None
        num_series, before = self._feed.num_series, state.drift
        bars, own = self._bars[update.series], [one for one in scored if one.forecast.model == made.model]
        state.test(own, bars.clock, bars.table()[:, CLOSE], num_series)
        self.drifts += [state.drift] if state.drift and state.drift != before else []
        update = update.model_copy(update={"drift": state.drift})
        if not self._spec.calibration:
            return update, made
        shape = len(INTERVALS), len(made.times)
        error = errors(sums[made.model]) if made.model in sums else np.zeros(shape)
        own_change, shared_change = changes(error, num_series)
        own_part = clipped(own_change + np.array(state.own))
        state.own = own_part.round(6).tolist()
        before_all = self._feed.shared.get(made.model, np.zeros(shape)).reshape(shape)
        by = np.round(factors(own_part, clipped(before_all + shared_change)), 6)
        self._shared[made.model] = self._shared.get(made.model, 0) + shared_change
        table = np.array(self._scored[update.series])
        median, levels = table[SCORED_LEVELS.index(0.5)], list(forecast.quantiles)
        quantiles = {}
        if levels:
            closes = np.array([forecast.quantiles[level]["close"] for level in levels])
            moved = widened([*map(float, levels)], closes, median, by).tolist()
            for level, row in zip(levels, moved, strict=True):
                quantiles[level] = {**forecast.quantiles[level], "close": tuple(row)}
        manifest = forecast.manifest and forecast.manifest.model_copy(
            update={"widened_by": tuple(map(tuple, by.tolist()))}
        )
        forecast = forecast.model_copy(update={"quantiles": quantiles, "manifest": manifest})
        tables = np.stack([widened(SCORED_LEVELS, table, median, by), made.quantiles[1]])
        made = replace(made, quantiles=tables.astype(np.float32))
        return update.model_copy(update={"forecast": forecast}), made

    def _made(self, result: ForecastResult, forecast: SeriesForecast) -> FeedUpdate:
        assert self._spec is not None
        facts = {name: getattr(result, name) for name in ("model", "device", "engine", "warnings")}
        keep = {*self._spec.keep}

        def kept(columns: Mapping[Any, Any]) -> dict[Any, Any]:
            return {name: values for name, values in columns.items() if name in keep}

        bars, record = self._bars[forecast.id], self._taken[forecast.id].read.record
        assert record is not None
        num_paths: int = self._spec.job["sampling"]["sample_count"]
        self._scored[forecast.id] = forecast.scoring
        self._forecasts[forecast.id] = PendingForecast.of(
            forecast, result.model, record.num_restarts, bars.table()[:, CLOSE], num_paths
        )
        quantiles = {level: kept(columns) for level, columns in forecast.quantiles.items()}
        manifest = forecast.manifest and forecast.manifest.model_copy(update={"feed": self.name})
        shown = {"mean": kept(forecast.mean), "quantiles": quantiles, "scoring": None, "manifest": manifest}
        forecast = forecast.model_copy(update=shown)
        facts |= {"forecast": forecast, "next_ends_at": _next_ends_at(self._spec, forecast)}
        return self._updates[forecast.id].model_copy(update=facts)


def _next_ends_at(spec: FeedSpec, forecast: SeriesForecast) -> float | None:
    """Unix time at which the first forecast bar ends, by the spacing and calendar of those ahead."""
    times = parse_timestamps(forecast.timestamps)
    instants = spec.instants(times, forecast.timezone)
    if instants is None:
        return None
    if spec.bar_time == "end":
        return float(instants[0] / 1e6)
    return None if len(instants) < 2 else float(instants[1] / 1e6)
