"""The comparison of a run's model with its start and with naive forecasts, on the test part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from kronos_model.bars.columns import CLOSE, Instrument, time_features
from kronos_model.engine.build import build_engine
from kronos_model.engine.choice import EngineChoice
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.errors import TrainingDiverged, TrainingStopped
from kronos_model.evaluation.naive import infer_season, why_not_seasonal
from kronos_model.evaluation.report import START, WindowBatch, make_report, without_steps
from kronos_model.evaluation.windows import Array, WindowArrays, spread, window_arrays, window_times
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.reporting import Listener
from kronos_model.finetuning.split import Split, why_not_compared
from kronos_model.finetuning.starting_point import StartingPoint, untouched_pair, with_revisions
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
    for closes in zip(*(each.closes(windows) for each in forecasters.values()), strict=True):
        samples = dict(zip(forecasters, closes, strict=True))
        for name, values in samples.items():
            if not np.isfinite(values).all():
                raise TrainingDiverged(f"the forecasts of {name!r} are not finite", details={"model": name})
        end = first + len(closes[0])
        yield WindowBatch(past[first:end], actual[first:end], samples)
        first = end


FINETUNED: Final = "finetuned"


def evaluate_on_test(
    config: FinetuneConfig,
    trained: StartingPoint,
    instruments: Sequence[Instrument],
    split: Split,
    device: torch.device,
    *,
    listener: Listener,
    should_stop: Callable[[], bool],
    engine: EngineChoice = "auto",
) -> dict[str, Any] | None:
    """The report on the trained pair, its start and naive forecasts, on windows of the test part.

    It is that of a backtest, without the scores by bar ahead; ``verdict`` is the trained pair's. None without
    a test part, or if the config turns it off. Raises TrainingStopped if ``should_stop`` returns true.
    """
    data, sampled = config.data, config.evaluation
    if (reason := why_not_compared(split, config)) is not None:
        listener({"event": "evaluation", "evaluation": None, "summary": f"Not compared: {reason}."})
        return None
    windows = spread(split.test, sampled.windows)
    pairs = {FINETUNED: (trained.model, trained.tokenizer)}
    untouched = untouched_pair(with_revisions(config, trained.parent).start)
    if untouched is not None:
        pairs[START] = untouched
    bars_total = len(pairs) * len(windows) * data.pred_len * sampled.sample_count
    bars_done = 0

    def progress(num_bars: int) -> None:
        nonlocal bars_done
        if should_stop():
            raise TrainingStopped("the comparison was stopped on request: start it again to continue")
        bars_done += num_bars
        listener({"event": "evaluating", "bars_done": bars_done, "bars_total": bars_total})

    forecasters = {
        name: ModelForecaster(
            model.to(device),
            tokenizer.to(device),
            max_context=trained.max_context,
            sampling=SamplingParams(sampled.temperature, 0, sampled.top_p, sampled.sample_count, config.seed),
            clip=config.clip,
            engine=engine,
            on_progress=progress,
        )
        for name, (model, tokenizer) in pairs.items()
    }
    lookback, horizon = data.lookbacks.max, data.pred_len
    season = sampled.season or infer_season(*(instrument.wall for instrument in instruments))
    no_season = why_not_seasonal(lookback, season)
    arrays = window_arrays(instruments, windows, lookback, horizon)
    report = make_report(
        window_batches(forecasters, arrays),
        window_times(instruments, windows, lookback, horizon),
        season=None if no_season else season,
        seed=config.seed,
    )
    evaluation = {
        "lookback": lookback,
        "horizon": horizon,
        "season": season,
        "no_seasonal": no_season,
        **without_steps(report),
        "verdict": report["models"][FINETUNED]["verdict"],
    }
    summary = "\n".join(evaluation["verdict"])
    listener({"event": "evaluation", "evaluation": evaluation, "summary": summary})
    return evaluation
