"""What a series' paths say beyond their mean: chances of events, and statistics."""

import math
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.model_info import ResultModel
from kronos_model.forecast import (
    Event,
    Forecast,
    max_drawdown,
    path_quantiles,
    realised_volatility,
    standard_error,
    total_return,
    wilson_interval,
)

MIN_PATHS_OF_QUANTILES: Final = 20
MIN_PATHS_OF_EVENTS: Final = 25
"""The standard error of a chance is then at most 10 points, √(0.25 / 25)."""

Share = Annotated[float, Field(ge=0, le=1)]


class EventChance(ResultModel):
    """The chance of an event: the share of the paths in which it happens.

    Its error is that of drawing a limited number of paths. How far the model itself is wrong is not in it.
    """

    event: str = Field(description="as in the job")
    probability: Share = Field(description="num_hits / num_paths")
    standard_error: float | None = Field(
        description="of the binomial distribution; null if it happens in no path or in all of them"
    )
    low: Share = Field(description="lower end of the interval of 95 %, by Wilson's formula")
    high: Share = Field(description="its upper end")
    num_hits: int = Field(ge=0, description="paths in which it happens")
    num_paths: int = Field(ge=1)

    def in_words(self) -> str:
        """Such as "63.3 % ± 8.8 (19 of 30 paths)" or "fewer than 1 in 30 paths (95 %: at most 11.4 %)"."""
        if self.num_hits == 0:
            return f"fewer than 1 in {self.num_paths} paths (95 %: at most {100 * self.high:.1f} %)"
        if self.standard_error is None:
            return f"all of {self.num_paths} paths (95 %: at least {100 * self.low:.1f} %)"
        chance = f"{100 * self.probability:.1f} % ± {100 * self.standard_error:.1f}"
        return f"{chance} ({self.num_hits} of {self.num_paths} paths)"


class Distribution(ResultModel):
    """One number of each path, over the paths."""

    mean: float
    standard_error: float | None = Field(description="of the mean; null for a single path")
    quantiles: dict[str, float] = Field(description="by level, as the forecast's")

    def in_words(self) -> str:
        """Such as "1.2 % (-0.8 to 3.1)", with the outermost quantiles."""
        ends = sorted(self.quantiles.values())
        outer = f" ({100 * ends[0]:z.1f} to {100 * ends[-1]:z.1f})" if len(ends) > 1 else ""
        return f"{100 * self.mean:z.1f} %{outer}"


class PathStatistics(ResultModel):
    """Statistics of the closes over the whole horizon, as fractions: 0.02 is 2 %."""

    total_return: Distribution = Field(description="last close over the last one of the lookback, minus 1")
    realised_volatility: Distribution | None = Field(
        description="root of the sum of squared log returns from close to close, not annualised; null if no "
        "path stays above zero"
    )
    max_drawdown: Distribution = Field(
        description="deepest fall of the close below an earlier one, the lookback's last included; 0 or more"
    )


def event_chances(forecast: Forecast, last_close: float, events: Sequence[Event]) -> list[EventChance]:
    """The chance of each event, in the order given."""
    chances, num_paths = [], len(forecast.paths)
    for event in events:
        num_hits = int(event.happens(forecast.paths, last_close).sum())
        low, high = wilson_interval(num_hits, num_paths)
        chances.append(
            EventChance(
                event=event.text,
                probability=num_hits / num_paths,
                standard_error=standard_error(num_hits, num_paths),
                low=low,
                high=high,
                num_hits=num_hits,
                num_paths=num_paths,
            )
        )
    return chances


def path_statistics(
    forecast: Forecast, last_close: float, levels: Sequence[float]
) -> tuple[PathStatistics, list[str]]:
    """The statistics with quantiles at these levels, and warnings about them."""
    volatility = realised_volatility(forecast.paths, last_close)
    usable = volatility[~np.isnan(volatility)]
    statistics = PathStatistics(
        total_return=_distribution(total_return(forecast.paths, last_close), levels),
        realised_volatility=_distribution(usable, levels) if len(usable) else None,
        max_drawdown=_distribution(max_drawdown(forecast.paths, last_close), levels),
    )
    if len(usable) == len(volatility):
        return statistics, []
    left_out = f"{len(volatility) - len(usable)} of {len(volatility)} paths have a close at zero or below"
    return statistics, [f"{left_out}: they are left out of the realised volatility."]


def _distribution(values: NDArray[np.float64], levels: Sequence[float]) -> Distribution:
    quantiles = path_quantiles(values, levels).tolist() if levels else ()
    return Distribution(
        mean=float(values.mean()),
        standard_error=float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None,
        quantiles=dict(zip(map(quantile_key, levels), quantiles, strict=True)),
    )


def quantile_key(level: float) -> str:
    """The key of a level's quantile: its shortest decimal, such as 0.1."""
    return repr(float(level))


def sampling_warnings(job: ForecastJob) -> list[str]:
    """Warn of quantiles and chances over too few paths, with the number that would do."""
    num_paths, levels = job.sampling.sample_count, job.output.quantiles
    paths = "1 sample path" if num_paths == 1 else f"{num_paths} sample paths"
    warnings = []
    if levels and num_paths < MIN_PATHS_OF_QUANTILES:
        warnings.append(f"Quantiles of {paths} say little: draw {MIN_PATHS_OF_QUANTILES} or more.")
    outermost = min((min(level, 1 - level) for level in levels), default=0.5)
    needed = math.ceil(round(1 / outermost, 6)) - 1  # its position, level · (paths + 1), is then 1 or more
    if num_paths < needed and num_paths >= MIN_PATHS_OF_QUANTILES:
        level = next(level for level in levels if min(level, 1 - level) == outermost)
        text = f"The quantile {level:g} lies beyond the outermost of {paths}, which stands in for it"
        warnings.append(f"{text}: draw {needed} or more.")
    if job.output.events and num_paths < MIN_PATHS_OF_EVENTS:
        points = 50 / math.sqrt(num_paths)
        text = f"Chances from {paths} have a standard error of up to {points:.0f} points"
        warnings.append(f"{text}: draw {MIN_PATHS_OF_EVENTS} or more for 10, 100 or more for 5.")
    return warnings
