"""FeedJob: the series of a feed that are due, as one forecast job. The series are bound when the job begins.

A feed's message names only the feed. So bars that arrive while it waits are read, and a pool that is too slow
leaves out ticks of a series instead of falling behind.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

import numpy as np

from kronos_client.contract.columns import shortest
from kronos_client.contract.errors import JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.contract.results import ForecastResult, SeriesForecast
from kronos_client.feeds.adaptive import changes, clipped, errors, factors, widened_forecast
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.blocks import Lost
from kronos_client.feeds.drift import NOMINAL, SeriesState
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.scores import INTERVALS, PendingForecast, ScoreSums, due, is_kept
from kronos_client.feeds.store import FeedStore, gone
from kronos_client.feeds.stored import Delivery, End, Ends, Read, TakenFeed, Unscored
from kronos_client.redis.connection import AWAY
from kronos_model.bars.calendar.sessions import common_spacing
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


@dataclass
class _Series:
    """One series of a job. ``made`` is there once it has a forecast."""

    read: Read
    unscored: Unscored
    update: FeedUpdate
    bars: Bars | None = None
    made: PendingForecast | None = None


class FeedJob:
    """One job of a feed.

    Args:
        source: The list that the job's message was taken from.
        recorded_coverage: What a model's recorded backtest found its 80 % intervals to hold, if it has one.
    """

    def __init__(
        self,
        store: FeedStore,
        job: Mapping[str, Any],
        job_id: str,
        source: str,
        recorded_coverage: Callable[[ModelInfo], float | None] = lambda _: None,
    ) -> None:
        self.name, uid = str(job["feed"].get("name")), str(job["feed"].get("uid"))
        self._store, self._delivery = store, Delivery(self.name, uid, job_id, source)
        self._submitted_at = job.get("submitted_at")
        self._recorded_coverage, self._expected = recorded_coverage, NOMINAL
        self._feed: TakenFeed | None = None
        self._series: dict[str, _Series] = {}
        self._computed: list[str] = []  # the ids of the series that can be forecast, in the job's order
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
        found = self._store.take(self._delivery)
        if found is None:
            raise gone(self.name)
        self._feed, payloads = found, []
        blocks = [block.name for _, read, _ in found.series if read.record for block in read.record.blocks]
        contents = self._store.blocks(self._delivery.uid, blocks)
        for name, read, unscored in found.series:
            update = FeedUpdate(
                series=name,
                version=read.version,
                job_id=self._delivery.job_id,
                last_time=None,
                last=None if read.record is None else read.record.last,
                appended_at=read.appended_at,
            )
            series = self._series[name] = _Series(read, unscored, update)
            try:
                payloads.append(self._payload(found.spec, name, series, contents))
                self._computed.append(name)
            except Lost:
                series.update = series.update.with_error(gone(self.name, name))
        if not payloads:
            return None
        job = found.spec.job
        known = {"schema_version": SCHEMA_VERSION, "submitted_at": self._submitted_at}
        return {**job, **known, "series": payloads, "output": {**job["output"], "scoring": True}}

    def _payload(
        self, spec: FeedSpec, name: str, series: _Series, contents: Mapping[str, bytes | None]
    ) -> dict[str, Any]:
        record = series.read.record
        if record is None:
            raise Lost
        series.bars = record.bars(record.blocks, contents)[-spec.max_bars :]
        payload = series.bars.payload(name)
        last = {"last_time": payload["timestamps"][-1]}
        last["last_close"] = next(iter(shortest(series.bars.closes()[-1:])), None)
        series.update = series.update.model_copy(update=last)
        zones = {"calendar": spec.calendar, "timezone": record.timezone}
        seed = spec.job["sampling"].get("seed")
        seed = seed_from_text(f"{self._delivery.uid if seed is None else seed}:{name}:{record.last}")
        return {**payload, **{option: zone for option, zone in zones.items() if zone}, "seed": seed}

    def end(self, outcome: ForecastResult | dict[str, Any] | JobError | None) -> dict[str, Any] | JobError:
        """Store what became of the series; returns the job's own outcome, without forecasts.

        Args:
            outcome: None if no series was left to compute.

        Raises:
            JobError: BROKER_UNREACHABLE.
        """
        if self._feed is None and isinstance(outcome, JobError):  # it ended before it began
            try:
                self.take()
            except JobError as error:
                if error.code in AWAY:
                    raise
                return outcome
        assert self._feed is not None
        facts: dict[str, Any] = {"timings_ms": {}}
        put_back: Collection[str] = ()
        if isinstance(outcome, JobError):
            found = OF_SERIES.match(outcome.field or "")
            at_fault = self._computed[int(found[1]) : int(found[1]) + 1] if found else self._computed
            put_back = {*self._computed} - {*at_fault}
            for name in at_fault:
                self._series[name].update = self._series[name].update.with_error(outcome)
        elif outcome is not None:
            result = outcome
            if isinstance(result, dict):
                result = ForecastResult.model_validate(result, strict=False)
            facts = result.model_dump(mode="json", exclude={"series"})
            for forecast in result.series:
                self._made(self._feed.spec, self._series[forecast.id], result, forecast)
        has_ended = False
        while not has_ended:
            ends, sums = self._ends(self._feed, put_back)
            changed = self._store.end(self._delivery, ends, sums.by_field, self._shared)
            has_ended = changed is None
            for name, unscored in (changed or {}).items():  # others have ended series meanwhile
                self._series[name].unscored = unscored
        self.scores = sums.totals
        if isinstance(outcome, JobError):
            return outcome
        updates = {name: series.update for name, series in self._series.items()}
        failed = {name: update.failure.code for name, update in updates.items() if update.failure}
        return facts | {"feed": self.name, "num_series": len(updates), "failed": failed}

    def _made(
        self, spec: FeedSpec, series: _Series, result: ForecastResult, forecast: SeriesForecast
    ) -> None:
        """Note the forecast of a series, and what is kept of it."""
        assert series.bars is not None
        assert series.read.record is not None
        if result.calibration is None and spec.calibration is None:
            self._expected = self._recorded_coverage(result.model) or NOMINAL
        num_paths: int = spec.job["sampling"]["sample_count"]
        closes = series.bars.table[:, CLOSE]
        num_restarts = series.read.record.num_restarts
        series.made = PendingForecast.of(forecast, result.model, num_restarts, closes, num_paths)
        facts = {name: getattr(result, name) for name in ("model", "device", "engine", "warnings")}
        facts |= {"forecast": forecast, "next_ends_at": _next_ends_at(spec, forecast, series.bars)}
        series.update = series.update.model_copy(update=facts)

    def _shown(self, update: FeedUpdate, columns: Collection[str]) -> FeedUpdate:
        """An update with only these columns of its forecast."""
        forecast = update.forecast
        assert forecast is not None

        def kept(table: Mapping[Any, Any]) -> dict[Any, Any]:
            return {name: values for name, values in table.items() if name in columns}

        quantiles = {level: kept(table) for level, table in forecast.quantiles.items()}
        manifest = forecast.manifest and forecast.manifest.model_copy(update={"feed": self.name})
        shown = {"mean": kept(forecast.mean), "quantiles": quantiles, "scoring": None, "manifest": manifest}
        return update.model_copy(update={"forecast": forecast.model_copy(update=shown)})

    def _ends(self, feed: TakenFeed, put_back: Collection[str]) -> tuple[Ends, ScoreSums]:
        """What becomes of series whose newest outcome is older, and the scores of their earlier forecasts."""
        ends: Ends = {}
        sums, events = ScoreSums(), [Event.parse(text) for text in feed.spec.events]
        self._shared, self.drifts = {}, []
        kept = {name: series.unscored.kept for name, series in self._series.items() if series.made}
        found = self._store.kept_forecasts(self._delivery.uid, kept)
        for name, series in self._series.items():
            newest, scored, versions, own = unscored = series.unscored
            update, made, bars = series.update, series.made, series.bars
            if name in put_back:
                ends[name] = None
            elif newest >= update.version:
                continue
            elif made is None or bars is None:
                ends[name] = End(update, newest, unscored._replace(version=update.version))
            else:
                known = PendingForecast.known(found[name])
                current = {at: one for at, one in known.items() if one.num_restarts == made.num_restarts}
                scored_now = due(current.values(), bars, scored)
                by_model = sums.add(name, scored_now, bars, events)
                state = SeriesState.read(own, made)
                before = state.drift
                of_model = [each for each in scored_now if each.forecast.model == made.model]
                closes = bars.table[:, CLOSE]
                state.test(of_model, bars.clock, closes, feed.num_series, self._expected)
                self.drifts += [state.drift] if state.drift and state.drift != before else []
                update = update.model_copy(update={"drift": state.drift})
                if feed.spec.calibration:
                    update, made = self._calibrated(feed, update, made, state, by_model)
                last = int(bars.clock[-1])
                waiting = {at for at, forecast in current.items() if forecast.times[-1] > last}
                content = made.to_bytes() if is_kept(update.version, len(made.times)) else b""
                update = self._shown(update, feed.spec.keep)
                now_kept = sorted({*waiting, *([update.version] if content else [])})
                unscored = Unscored(update.version, last, tuple(now_kept), state.to_json())
                ends[name] = End(update, newest, unscored, content, sorted({*versions} - waiting))
        return ends, sums

    def _calibrated(
        self,
        feed: TakenFeed,
        update: FeedUpdate,
        made: PendingForecast,
        state: SeriesState,
        sums: Mapping[str, Array],
    ) -> tuple[FeedUpdate, PendingForecast]:
        """A forecast whose close's quantiles are widened after these scores, by model. Changes ``state``."""
        assert update.forecast is not None
        shape = len(INTERVALS), len(made.times)
        error = errors(sums[made.model]) if made.model in sums else np.zeros(shape)
        own_change, shared_change = changes(error, feed.num_series)
        own = clipped(own_change + np.array(state.own))
        state.own = own.round(6).tolist()
        shared = feed.shared.get(made.model, np.zeros(0))
        shared = shared.reshape(shape) if shared.size == error.size else np.zeros(shape)
        by = np.round(factors(own, clipped(shared + shared_change)), 6)
        self._shared[made.model] = self._shared.get(made.model, 0) + shared_change
        forecast = widened_forecast(update.forecast, by)
        quantiles = np.array([forecast.scoring, made.quantiles[1]], np.float32)
        made = replace(made, quantiles=quantiles)
        return update.model_copy(update={"forecast": forecast}), made


def _next_ends_at(spec: FeedSpec, forecast: SeriesForecast, bars: Bars) -> float | None:
    """Unix time at which the first forecast bar ends: after the spacing, or when the next one begins."""
    times = parse_timestamps(forecast.timestamps)
    instants = spec.instants(times, forecast.timezone)
    found = spec.ends(times, forecast.timezone, common_spacing(bars.clock) if len(bars) > 1 else 0)
    if instants is None or found is None:
        return None
    if spec.bar_time == "end":
        return float(found[0] / 1e6)
    ends = [*instants[1:2], *(found[:1] if len(bars) > 1 else [])]
    return float(min(ends) / 1e6) if ends else None
