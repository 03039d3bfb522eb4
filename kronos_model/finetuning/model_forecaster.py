"""Models' sampled closes of many windows, from the engine that serves jobs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from kronos_model.bars.columns import CLOSE, time_features
from kronos_model.engine.build import build_engine
from kronos_model.engine.choice import EngineChoice
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.errors import TrainingDiverged
from kronos_model.evaluation.report import WindowBatch
from kronos_model.evaluation.window_arrays import Array, WindowArrays
from kronos_model.model import Kronos
from kronos_model.seeds import derive_series_seed
from kronos_model.tokenizer import KronosTokenizer

BATCH_WINDOWS: Final = 16
"""Windows whose paths are held at once."""

MAX_SLOTS: Final = 64
"""Paths that run together."""


class ModelForecaster:
    """Samples the closes of windows.

    The engine uses the weights as they are now, on their device. The same windows and seed give the same
    forecasts: window i is sampled with ``derive_series_seed(seed, i)``, so two models are compared on the
    same random numbers.

    Args:
        model, tokenizer: a pair that fits; both are put in eval mode.
        sampling: ``sample_count`` paths a window are drawn.
        clip: scaled values are clipped to ±clip.
        engine: as ``kind`` of ``build_engine``.
        on_progress: called after each step with its bars, over all paths. Its errors end the forecast.
    """

    def __init__(
        self,
        model: Kronos,
        tokenizer: KronosTokenizer,
        *,
        max_context: int,
        sampling: SamplingParams,
        clip: float = 5.0,
        engine: EngineChoice = "auto",
        on_progress: Callable[[int], object] = lambda num_bars: None,
    ) -> None:
        self._engine = build_engine(
            model.eval(),
            tokenizer.eval(),
            max_context=max_context,
            clip=clip,
            max_slots=MAX_SLOTS,
            kind=engine,
        )
        self._sampling = sampling
        self._on_progress = on_progress

    def closes(self, windows: WindowArrays) -> Iterator[Array]:
        """Sampled closes, (W, S, H), of ``BATCH_WINDOWS`` windows at a time; raises the engine's errors."""
        for first in range(0, len(windows), BATCH_WINDOWS):
            batch = range(first, min(first + BATCH_WINDOWS, len(windows)))
            requests = (self._request(windows, window) for window in batch)
            generations = self._engine.run(requests, self._on_progress)
            yield np.stack([each.paths[..., CLOSE] for each in generations]).astype(np.float64)

    def _request(self, windows: WindowArrays, window: int) -> SeriesRequest:
        lookback, stamps = windows.lookback, time_features(windows.wall[window])
        sampling = replace(self._sampling, seed=derive_series_seed(self._sampling.seed, window))
        return SeriesRequest(windows.bars[window, :lookback], stamps[:lookback], stamps[lookback:], sampling)


def window_batches(
    forecasters: Mapping[str, ModelForecaster], windows: WindowArrays
) -> Iterator[WindowBatch]:
    """The windows with each model's closes, as a report reads them. Raises TrainingDiverged."""
    past, actual, first = windows.past_closes, windows.future_closes, 0
    for closes in zip(*(one.closes(windows) for one in forecasters.values()), strict=True):
        samples = dict(zip(forecasters, closes, strict=True))
        for name, values in samples.items():
            if not np.isfinite(values).all():
                raise TrainingDiverged(f"the forecasts of {name!r} are not finite", details={"model": name})
        end = first + len(closes[0])
        yield WindowBatch(past[first:end], actual[first:end], samples)
        first = end
