"""Scores of a feed's forecasts: what is kept of one until its bars have come, and sums over scored bars.

A forecast is scored by time, against the bars that are there when a job first reads past that time. Its
quantiles of the close are compared with those of a bootstrap of the same lookback, of as many paths. Losses
are in mean changes of that lookback, so that series of different prices count alike. No Redis.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.results import SCORED_LEVELS, SeriesForecast
from kronos_client.feeds.bars import Bars
from kronos_model.bars.columns import CLOSE
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.evaluation.calibration import pinball_loss
from kronos_model.evaluation.naive import bootstrap_draws
from kronos_model.evaluation.windows import Array, one_bar_change
from kronos_model.forecast import Event, path_quantiles

NUM_LEVELS: Final = len(SCORED_LEVELS)
INTERVALS: Final = ("95", "80", "50")
"""Whose ends are the first and the last of ``SCORED_LEVELS``, the second and the last but one, and so on."""
STEP_SUMS: Final = ("num_scored", *(f"inside_{share}" for share in INTERVALS), "loss", "bootstrap_loss")
"""Sums over scored bars, of one step ahead or of all."""
SERIES_SUMS: Final = (*STEP_SUMS, "num_missing", "num_chances", "brier")
NUM_BINS: Final = 10
"""Of chances, for their reliability."""
PENDING_BYTES: Final = 64_000
"""The most that is kept of a series' forecasts."""
By = Literal["series", "horizon", "chance"]


@dataclass(frozen=True, eq=False)
class PendingForecast:
    """What is kept of a forecast until its H bars have come.

    Attributes:
        model: Id and revision.
        num_restarts: Of the series at that time; ``replace`` ends what is pending.
        times: Instants in µs, (H,).
        quantiles: Of the forecast and of the bootstrap, at ``SCORED_LEVELS``: (2, L, H).
        scale: The lookback's mean change from bar to bar; NaN if it has none.
        chances: Of the feed's events, (E,).
        manifest: A ``Manifest``'s bytes, which Redis has added.
    """

    model: str
    num_restarts: int
    times: NDArray[np.int64]
    quantiles: NDArray[np.float32]
    last_close: float
    scale: float
    chances: NDArray[np.float32]
    manifest: bytes = b""

    @classmethod
    def of(
        cls, forecast: SeriesForecast, model: ModelInfo, num_restarts: int, closes: Array, num_paths: int
    ) -> Self:
        """What is kept of a forecast; ``closes`` are the series' newest, (T,)."""
        closes = closes[np.isfinite(closes)]
        past = closes[closes > 0][-(forecast.lookback or 0) :][None]
        own = np.array(forecast.scoring, np.float32)  # (L, H)
        naive, scale = np.full(own.shape, np.nan), np.nan
        if past.shape[1] > 1:
            (samples,) = next(bootstrap_draws(past, num_paths, own.shape[1], forecast.seed))  # (S, H)
            naive, scale = path_quantiles(samples, SCORED_LEVELS), one_bar_change(past)[0]
        return cls(
            model=model.id if model.revision is None else f"{model.id}@{model.revision}",
            num_restarts=num_restarts,
            times=parse_timestamps(forecast.timestamps).clock,
            quantiles=np.stack([own, naive]).astype(np.float32),
            last_close=float(closes[-1]),
            scale=float(scale),
            chances=np.array([chance.probability for chance in forecast.events], np.float32),
        )

    def to_bytes(self) -> bytes:
        """As it stands in Redis: a line of text, then the numbers, compressed.

        The first bytes of all float32 come first, which are alike, then the second ones, and so on.
        """
        numbers = np.concatenate([[self.last_close, self.scale], self.quantiles.ravel(), self.chances])
        header = f"{self.num_restarts} {len(self.times)} {self.model}\n".encode()
        by_place = numbers.astype("<f4").view(np.uint8).reshape(-1, 4).T
        return header + zlib.compress(self.times.astype("<i8").tobytes() + by_place.tobytes(), level=1)

    @classmethod
    @lru_cache(maxsize=16_384)  # each is read at every bar until its own have come
    def from_bytes(cls, content: bytes) -> Self:
        """The reverse of ``to_bytes``."""
        header, _, packed = content.partition(b"\n")
        num_restarts, horizon, model = header.decode().split(" ", 2)
        num_steps, opened = int(horizon), zlib.decompressobj()
        rest = opened.decompress(packed)
        times = np.frombuffer(rest, "<i8", num_steps)
        by_place = np.frombuffer(rest, np.uint8, offset=times.nbytes).reshape(4, -1)
        numbers = np.ascontiguousarray(by_place.T).view("<f4").ravel()
        quantiles, chances = np.split(numbers[2:], [2 * NUM_LEVELS * num_steps])
        last_close, scale = map(float, numbers[:2])
        tables = quantiles.reshape(2, NUM_LEVELS, num_steps)
        facts = last_close, scale, chances, opened.unused_data
        return cls(model, int(num_restarts), times, tables, *facts)

    @classmethod
    def known(cls, contents: Mapping[int, bytes]) -> dict[int, Self]:
        """Those of ``from_bytes``. What another program wrote counts as lost."""
        found = {}
        for version, content in contents.items():
            with suppress(ValueError, zlib.error):
                found[version] = cls.from_bytes(content)
        return found


def is_kept(version: int, horizon: int) -> bool:
    """Whether a version's forecast is scored: all, unless that would take more than ``PENDING_BYTES``."""
    num_bytes = horizon * (horizon * (8 + 8 * NUM_LEVELS) + 64)
    return version % max(1, -(-num_bytes // PENDING_BYTES)) == 0


class Due(NamedTuple):
    """The bars of one forecast that have come, or will not come any more: steps ``first`` to ``end``."""

    forecast: PendingForecast
    first: int
    end: int


def due(forecasts: Iterable[PendingForecast], bars: Bars, after: int) -> list[Due]:
    """What is to be scored by the bars after an instant."""
    limits = (after, bars.clock[-1])
    return [
        Due(forecast, *np.searchsorted(forecast.times, limits, side="right").tolist())
        for forecast in forecasts
    ]


class ScoreSums:
    """Sums of scores by field: of a model, or of a model and series; see ``docs/how-it-works/feeds.md``."""

    def __init__(self) -> None:
        self.by_field: dict[str, Array] = {}

    def add(
        self, series: str, forecasts: Sequence[Due], bars: Bars, events: Sequence[Event]
    ) -> dict[str, Array]:
        """Add the scores of forecasts of one series, all since it was last replaced.

        Returns:
            ``STEP_SUMS`` by model, (6, H).
        """
        (clock, table), by_model = (bars.clock, bars.table), dict[str, Array]()
        for model in {due.forecast.model for due in forecasts if due.first < due.end}:
            own = [due for due in forecasts if due.forecast.model == model]
            steps, num_missing = _step_sums(own, clock, table[:, CLOSE])
            by_model[model] = steps
            bins, brier = _chance_sums(own, clock, table, events)
            totals = np.array([*steps.sum(axis=1), num_missing, bins[0].sum(), brier])
            of_series = f"{model}\n{own[0].forecast.num_restarts}\n{series}"
            for field, sums in ((of_series, totals), (model, np.concatenate([bins, steps], axis=None))):
                self.by_field[field] = self.by_field.get(field, 0) + sums
        return by_model

    @property
    def totals(self) -> dict[str, float]:
        """``SERIES_SUMS`` over all series and models."""
        rows = [sums for field, sums in self.by_field.items() if "\n" in field]
        return dict(zip(SERIES_SUMS, np.sum(rows, axis=0).tolist(), strict=True)) if rows else {}


def _step_sums(forecasts: Sequence[Due], clock: NDArray[np.int64], closes: Array) -> tuple[Array, int]:
    """``STEP_SUMS`` by step ahead, (6, H), and the number of bars that never came."""
    horizon = len(forecasts[0].forecast.times)
    parts = [(due.forecast, slice(due.first, due.end)) for due in forecasts]
    times = np.concatenate([forecast.times[part] for forecast, part in parts])  # (N,)
    at = np.minimum(np.searchsorted(clock, times), len(clock) - 1)
    actual = closes[at]
    has_come = (clock[at] == times) & np.isfinite(actual)
    quantiles = np.concatenate([forecast.quantiles[..., part] for forecast, part in parts], axis=2)
    tables = quantiles.astype(np.float64).swapaxes(0, 1)  # (L, 2, N)
    scale = np.repeat([forecast.scale for forecast, _ in parts], [due.end - due.first for due in forecasts])
    losses = pinball_loss(SCORED_LEVELS, tables, actual).mean(axis=0) / scale  # (2, N)
    losses = np.where(np.isfinite(losses).all(axis=0), losses, 0)
    low, high = tables[: len(INTERVALS), 0], tables[: -len(INTERVALS) - 1 : -1, 0]
    is_inside = (low <= actual) & (actual <= high)
    rows = np.concatenate([np.ones((1, len(at))), is_inside, losses])[:, has_come]
    steps = np.concatenate([np.arange(part.start, part.stop) for _, part in parts])[has_come]
    sums = [np.bincount(steps, weights=row, minlength=horizon) for row in rows]
    return np.array(sums, np.float64), len(at) - len(steps)


def _chance_sums(
    forecasts: Sequence[Due], clock: NDArray[np.int64], table: Array, events: Sequence[Event]
) -> tuple[Array, float]:
    """Of chances by bin: their number, sum, and how many came true, (3, 10). The sum of squared errors."""
    bins, brier = np.zeros((3, NUM_BINS)), 0.0
    for forecast, first, end in forecasts:
        for event, chance in zip(events, forecast.chances.tolist(), strict=True):
            bar = event.bar or len(forecast.times)
            if not first < bar <= end or (event.is_any and forecast.times[0] < clock[0]):
                continue
            until = np.isin(clock, forecast.times[:bar])
            if not until[clock == forecast.times[bar - 1]].any():
                continue  # its last bar never came
            hit = float(event.happens(table[None, until], forecast.last_close)[0])
            bins[:, min(int(NUM_BINS * chance), NUM_BINS - 1)] += (1, chance, hit)
            brier += (chance - hit) ** 2
    return bins, brier


def score_rows(sums: Mapping[str, Array], by: By, num_restarts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Scores as rows, by model; of series the sum of all first, whose ``id`` is None."""
    rows = []
    if by == "series":
        series: dict[tuple[str, str], Array] = {}
        for field, values in sums.items():
            model, *rest = field.split("\n", 2)
            if rest and num_restarts.get(rest[1]) == int(rest[0]):
                series[rest[1], model] = values
                series["", model] = series.get(("", model), 0) + values
        for (name, model), values in sorted(series.items()):
            known = dict(zip(SERIES_SUMS, values.tolist(), strict=True))
            chances = {"brier": _ratio(known["brier"], known["num_chances"])}
            counts = {"num_missing": int(known["num_missing"])}
            rows.append({"id": name or None, "model": model, **_scores(known), **chances, **counts})
        return rows
    for model, values in sorted(sums.items()):
        if "\n" in model:
            continue
        bins, steps = np.split(values, [3 * NUM_BINS])
        if by == "horizon":
            for step, column in enumerate(steps.reshape(len(STEP_SUMS), -1).T.tolist(), 1):
                known = dict(zip(STEP_SUMS, column, strict=True))
                rows.append({"step": step, "model": model, **_scores(known)})
        else:
            for index, (number, chance, hits) in enumerate(bins.reshape(3, -1).T.tolist()):
                ends = {"from": index / NUM_BINS, "to": (index + 1) / NUM_BINS, "model": model}
                means = {"mean_chance": _ratio(chance, number), "share_true": _ratio(hits, number)}
                rows.append({**ends, "num_chances": int(number), **means})
    return rows


def _scores(sums: Mapping[str, float]) -> dict[str, Any]:
    number = sums["num_scored"]
    coverage = {f"coverage_{share}": _ratio(sums[f"inside_{share}"], number) for share in INTERVALS[::-1]}
    return {
        "num_scored": int(number),
        **coverage,
        "pinball_ratio": _ratio(sums["loss"], sums["bootstrap_loss"]),
    }


def _ratio(value: float, by: float) -> float | None:
    return value / by if by else None
