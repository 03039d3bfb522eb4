"""A model's forecasts of the close on many windows, from the engine that serves jobs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kronos_model.bars.columns import CLOSE, time_features
from kronos_model.engine.build import build_engine
from kronos_model.engine.generation import Generation, SamplingParams, SeriesRequest
from kronos_model.evaluation.naive import CloseForecast
from kronos_model.evaluation.window_arrays import WindowArrays
from kronos_model.forecast import Forecast
from kronos_model.model import Kronos
from kronos_model.seeds import derive_series_seed
from kronos_model.tokenizer import KronosTokenizer

BATCH_WINDOWS: Final = 16
"""Windows whose paths are held at once."""

MEDIAN: Final = 0.5


class ModelForecaster:
    """Quantiles of each window's sampled futures; the point is the median, which minimises the MAE.

    The engine uses the weights as they are now, on their device. The same windows and seed give the same
    forecasts: window i is sampled with ``derive_series_seed(seed, i)``, so two models are compared on the
    same random numbers.

    Args:
        model, tokenizer: a pair that fits; both are put in eval mode.
        max_context: most bars that the model sees.
        clip: scaled values are clipped to ±clip.
        sampling: temperature, filters, paths a window, and the seed.
        max_slots: paths that run together.
        on_progress: called after each step with the bars done and the bars in all, over all paths. An error
            that it raises ends the forecast.
    """

    def __init__(
        self,
        model: Kronos,
        tokenizer: KronosTokenizer,
        *,
        max_context: int,
        sampling: SamplingParams,
        clip: float = 5.0,
        max_slots: int = 64,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        self._engine = build_engine(
            model.eval(), tokenizer.eval(), max_context=max_context, clip=clip, max_slots=max_slots
        )
        self._sampling = sampling
        self._on_progress = on_progress

    def __call__(self, windows: WindowArrays, levels: Sequence[float]) -> CloseForecast:
        """Forecasts of all windows; raises the engine's errors."""
        num_windows, horizon = len(windows), windows.horizon
        point = np.empty((num_windows, horizon))
        quantiles = np.empty((num_windows, len(levels), horizon))
        for first in range(0, num_windows, BATCH_WINDOWS):
            batch = range(first, min(first + BATCH_WINDOWS, num_windows))
            for window, generation in zip(batch, self._generate(windows, batch), strict=True):
                forecast = Forecast(generation.paths, generation.request.sampling.seed)
                closes = forecast.quantiles([MEDIAN, *levels])[..., CLOSE]  # (1 + num_levels, H)
                point[window], quantiles[window] = closes[0], closes[1:]
        return CloseForecast(point, quantiles)

    def _generate(self, windows: WindowArrays, batch: range) -> list[Generation]:
        bars_of_window = windows.horizon * self._sampling.sample_count
        num_done, num_total = batch.start * bars_of_window, len(windows) * bars_of_window
        generations: list[Generation] = []
        try:
            for window in batch:
                generations.append(self._engine.submit(self._request(windows, window)))
            while self._engine.has_work:
                self._engine.step()
                num_done += self._engine.last_step.num_bars
                if self._on_progress is not None:
                    self._on_progress(num_done, num_total)
        finally:
            for generation in generations:  # also those of a refused or interrupted batch
                self._engine.cancel(generation)
        return generations

    def _request(self, windows: WindowArrays, window: int) -> SeriesRequest:
        stamps = time_features(windows.wall[window])
        return SeriesRequest(
            bars=windows.bars[window, : windows.lookback],
            stamps=stamps[: windows.lookback],
            future_stamps=stamps[windows.lookback :],
            sampling=replace(self._sampling, seed=derive_series_seed(self._sampling.seed, window)),
        )
