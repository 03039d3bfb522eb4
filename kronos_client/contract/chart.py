"""A forecast as a picture: the last candles, the mean close with its quantile band, and the volume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kronos_client.contract.dataframes import plain_candles
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.options import VALUE
from kronos_model.bars.files.vendors import VALUES

if TYPE_CHECKING:
    from kronos_client.contract.results import SeriesForecast

RISING, FALLING, FORECAST, INK, FAINT = "#2a9d8f", "#e07a5f", "#3d5a98", "#2b2d35", "#9aa0ac"
NUM_TICKS = 8
MAX_LOOKBACK_BARS = 120
LOOK: Final[dict[str, Any]] = {
    "figsize": (12, 6.75),
    "dpi": 110,
    "layout": ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12),
    "facecolor": "white",
}


def draw_chart(
    lookback: pd.DataFrame, series: "SeriesForecast", path: Path, *, name: str, note: str = ""
) -> None:
    """Write a PNG to ``path``, as ``draw`` draws it."""
    figure = Figure(**LOOK)
    draw(figure, lookback, series, name, note)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def plot(candles: Any, series: "SeriesForecast", note: str = "") -> Axes:
    """Draw a forecast in a new figure of pyplot, after the last of these candles, if any. Returns the prices.

    ``candles`` are one source of a forecast, or several that include the series by its id.
    """
    from matplotlib import pyplot  # it chooses a backend

    candles = plain_candles(candles)
    if isinstance(candles, Mapping) and series.id in candles:
        candles = candles[series.id]
    frame = candles.to_pandas() if hasattr(candles, "to_pandas") else pd.DataFrame(candles)
    frame = frame.rename(columns=lambda title: str(title).lower())
    if not {*PRICE_COLUMNS} & {*frame} and (found := VALUES.found_in([*frame])):  # one value a bar
        frame = frame.assign(**dict.fromkeys(PRICE_COLUMNS, frame[found[VALUE]]))
    if missing := [name for name in PRICE_COLUMNS if len(frame) and name not in frame]:
        text = f"the candles to draw have no column {' and no column '.join(missing)}: rename what holds them"
        raise JobError(ErrorCode.MISSING_COLUMN, text, missing[0])
    times = next((frame[title] for title in (*TIME_COLUMNS, "ds") if title in frame), frame.index)
    shown = [*PRICE_COLUMNS, *(["volume"] if "volume" in frame else [])]
    lookback = frame.reindex(columns=shown).assign(timestamps=list(map(str, times)))
    name = "" if series.id == "0" else series.id  # "0" is that of candles without a name
    return draw(pyplot.figure(**LOOK), lookback, series, name, note)


def draw(figure: Figure, lookback: pd.DataFrame, series: "SeriesForecast", name: str, note: str) -> Axes:
    """Draw into an empty figure, with ``note`` in small print below the title. Returns the prices' axes.

    All bars are equally far apart, so nights and weekends leave no gaps. ``lookback`` has ``timestamps``
    (ISO 8601 strings), ``open high low close`` and optionally ``volume``; it may have no bars.
    """
    shown = lookback.tail(MAX_LOOKBACK_BARS).reset_index(drop=True)
    prices: Axes
    prices, volumes = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    _draw_candles(prices, shown)
    _draw_forecast(prices, series, shown)
    _draw_volume(volumes, shown, series)
    for axes in (prices, volumes):
        axes.axvline(len(shown) - 0.5, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        axes.margins(x=0.01)
    prices.set_ylabel("price", color=INK)
    volumes.set_ylabel("volume", color=INK)
    prices.legend(loc="upper left", frameon=False, fontsize=9)
    labels = tick_labels([*shown["timestamps"], *series.timestamps])
    ticks = np.unique(np.linspace(0, len(labels) - 1, NUM_TICKS).round().astype(int))
    volumes.set_xticks(ticks, [labels[tick] for tick in ticks])
    title = f"{name}: {len(series.timestamps)} bars ahead".removeprefix(": ")
    prices.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=24 if note else 8)
    if note:
        prices.text(0, 1.02, note, transform=prices.transAxes, color=INK, fontsize=9, va="bottom")
    return prices


def candle_colours(candles: pd.DataFrame) -> list[str]:
    """One colour per bar: rising if it closes no lower than it opens."""
    return [RISING if rises else FALLING for rises in candles["close"] >= candles["open"]]


def tick_labels(timestamps: Sequence[str]) -> list[str]:
    """Dates if every bar is at midnight, else month, day and time, all as written in the file."""
    texts = [text.replace("T", " ") for text in timestamps]
    daily = all(text[11:19] in ("", "00:00", "00:00:00") for text in texts)
    return [text[:10] if daily else text[5:16] for text in texts]


def _draw_candles(axes: Axes, candles: pd.DataFrame) -> None:
    colours = candle_colours(candles)
    axes.vlines(candles.index, candles["low"], candles["high"], colors=colours, linewidth=0.9)
    body = (candles["close"] - candles["open"]).abs()
    # A bar that closes at its open is drawn as a line.
    thinnest = 0.0015 * float(candles["high"].max() - candles["low"].min())
    bottom = candles[["open", "close"]].min(axis=1)
    axes.bar(candles.index, body.clip(lower=thinnest), bottom=bottom, width=0.65, color=colours)


def _draw_forecast(axes: Axes, series: "SeriesForecast", lookback: pd.DataFrame) -> None:
    last_close = lookback["close"].tolist()[-1:]
    close = [*last_close, *series.mean["close"]]  # from the last close on
    bars = range(len(lookback) - len(last_close), len(lookback) + len(series.mean["close"]))
    levels = sorted(series.quantiles, key=float)
    if len(levels) >= 2:  # the widest band
        low, high = ([*last_close, *series.quantiles[level]["close"]] for level in (levels[0], levels[-1]))
        label = f"close, {100 * float(levels[0]):g}–{100 * float(levels[-1]):g} %"
        axes.fill_between(bars, low, high, color=FORECAST, alpha=0.18, linewidth=0, label=label)
    axes.plot(bars, close, color=FORECAST, linewidth=1.8, label="close, mean of paths")


def _draw_volume(axes: Axes, lookback: pd.DataFrame, series: "SeriesForecast") -> None:
    if "volume" in lookback:
        axes.bar(lookback.index, lookback["volume"], width=0.65, color=candle_colours(lookback), alpha=0.8)
    volume = series.mean["volume"]
    bars = range(len(lookback), len(lookback) + len(volume))
    axes.bar(bars, volume, width=0.65, color=FORECAST, alpha=0.45)
