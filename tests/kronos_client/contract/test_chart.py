"""The chart: size, position of the forecast, and labels."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from kronos_client.contract.chart import FALLING, RISING, candle_colours, draw_chart, tick_labels
from kronos_client.contract.results import SeriesForecast
from kronos_model.bars.synthetic import candles

HORIZON = 20


@pytest.fixture(scope="module")
def lookback() -> pd.DataFrame:
    return pd.DataFrame(candles(seed=3, bars=60).as_dict())


def forecast(close: np.ndarray, quantiles: dict[str, float]) -> SeriesForecast:
    return SeriesForecast(
        id="BTC",
        timestamps=tuple(f"2025-02-03T10:{minute:02d}:00" for minute in range(HORIZON)),
        mean={"close": tuple(close.tolist()), "volume": (500.0,) * HORIZON},
        quantiles={level: {"close": tuple((close * factor).tolist())} for level, factor in quantiles.items()},
        seed=1,
    )


@pytest.fixture(scope="module")
def series(lookback: pd.DataFrame) -> SeriesForecast:
    close = float(lookback["close"].iloc[-1]) * (1 + 0.001 * np.arange(HORIZON))
    return forecast(close, {"0.9": 1.002, "0.5": 1.0, "0.05": 0.998})


def test_a_png_is_written_with_candles_left_and_forecast_right(
    lookback: pd.DataFrame, series: SeriesForecast, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "chart.png"
    draw_chart(lookback, series, path, name="A title", note="a note")
    assert path.read_bytes().startswith(b"\x89PNG")
    pixels = imread(path)[:, :, :3]
    assert pixels.shape[1] == 1320
    green = np.all(np.abs(pixels - np.array([0x2A, 0x9D, 0x8F]) / 255) < 0.02, axis=2)
    blue = np.all(np.abs(pixels - np.array([0x3D, 0x5A, 0x98]) / 255) < 0.02, axis=2)
    right = blue[:, 900:]  # the legend, on the left, has a blue line too
    assert green.sum() > 500
    assert right.sum() > 200
    assert green[:, 1050:].sum() == 0


def test_the_chart_works_without_volume_and_band(
    lookback: pd.DataFrame, series: SeriesForecast, tmp_path: Path
) -> None:
    bare = series.model_copy(update={"quantiles": {}})
    draw_chart(lookback.drop(columns=["volume", "amount"]), bare, tmp_path / "chart.png", name="bare")
    assert (tmp_path / "chart.png").stat().st_size > 5000


def test_a_flat_lookback_of_one_bar_can_be_drawn(series: SeriesForecast, tmp_path: Path) -> None:
    flat = pd.DataFrame(
        {"timestamps": ["2025-02-03"], "open": [5.0], "high": [5.0], "low": [5.0], "close": [5.0]}
    )
    draw_chart(flat, series, tmp_path / "chart.png", name="flat")
    assert (tmp_path / "chart.png").exists()


@pytest.mark.parametrize(
    ("levels", "labels"),
    [
        (("0.9", "0.5", "0.05"), ["close, 5–90 %", "close, mean of paths"]),
        (("0.5",), ["close, mean of paths"]),
    ],
)
def test_the_band_is_the_widest_pair_of_quantiles(
    lookback: pd.DataFrame,
    series: SeriesForecast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    levels: tuple[str, ...],
    labels: list[str],
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(Axes, "legend", lambda axes, **_: drawn.append(axes.get_legend_handles_labels()[1]))
    quantiles = {level: series.quantiles[level] for level in levels}
    one = series.model_copy(update={"quantiles": quantiles})
    draw_chart(lookback, one, tmp_path / "chart.png", name="band")
    assert drawn == [labels]


@pytest.mark.parametrize(
    ("timestamps", "labels"),
    [
        (["2025-02-03", "2025-02-04"], ["2025-02-03", "2025-02-04"]),
        (["2025-02-03T00:00:00Z"], ["2025-02-03"]),
        (["2025-02-03T10:35:00+08:00", "2025-02-03 10:40"], ["02-03 10:35", "02-03 10:40"]),
    ],
)
def test_times_are_labelled_as_they_are_written(timestamps: list[str], labels: list[str]) -> None:
    assert tick_labels(timestamps) == labels


def test_a_bars_colour_shows_whether_it_rises() -> None:
    bars = pd.DataFrame({"open": [1.0, 2.0, 2.0], "close": [2.0, 1.0, 2.0]})
    assert candle_colours(bars) == [RISING, FALLING, RISING]
