"""The comparison of a run's model with its start and with naive forecasts, on the test part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from kronos_model.bars.columns import CLOSE, Instrument, time_features
from kronos_model.engine.build import build_engine
from kronos_model.engine.choice import EngineChoice
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.errors import TrainingDiverged, TrainingStopped
from kronos_model.evaluation.naive import BOOTSTRAP, infer_season, why_not_seasonal
from kronos_model.evaluation.report import START, WindowBatch, make_report, without_steps
from kronos_model.evaluation.windows import WindowArrays, spread, window_arrays, window_times
from kronos_model.finetuning.advice import next_step, why_not_compared
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.reporting import Listener
from kronos_model.finetuning.split import Split
from kronos_model.finetuning.starting_point import StartingPoint, untouched_pair, with_revisions
from kronos_model.seeds import derive_series_seed

BATCH_WINDOWS: Final = 16
"""Windows whose paths are held at once."""

MAX_SLOTS: Final = 64
"""Paths that run together."""
FINETUNED: Final = "finetuned"


def window_batches(
    engines: Mapping[str, Engine],
    windows: WindowArrays,
    sampling: SamplingParams,
    on_progress: Callable[[int], object] = lambda num_bars: None,
) -> Iterator[WindowBatch]:
    """The windows with each model's sampled closes, as a report reads them.

    The same windows and seed give the same forecasts: window i is sampled with
    ``derive_series_seed(seed, i)``, so all models are compared on the same random numbers.

    Args:
        engines: by the model's name.
        sampling: ``sample_count`` paths a window are drawn.
        on_progress: called after each step with its bars, over all paths. Its errors end the forecast.

    Raises TrainingDiverged, and the engine's errors.
    """
    past, actual = windows.past_closes, windows.future_closes
    for first in range(0, len(windows), BATCH_WINDOWS):
        batch = range(first, min(first + BATCH_WINDOWS, len(windows)))
        samples = {}
        for name, engine in engines.items():
            requests = (_request(windows, window, sampling) for window in batch)
            generations = engine.run(requests, on_progress)
            samples[name] = np.stack([each.paths[..., CLOSE] for each in generations]).astype(np.float64)
            if not np.isfinite(samples[name]).all():
                raise TrainingDiverged(f"the forecasts of {name!r} are not finite", details={"model": name})
        yield WindowBatch(past[batch], actual[batch], samples)


def _request(windows: WindowArrays, window: int, sampling: SamplingParams) -> SeriesRequest:
    lookback, stamps = windows.lookback, time_features(windows.wall[window])
    own = replace(sampling, seed=derive_series_seed(sampling.seed, window))
    return SeriesRequest(windows.bars[window, :lookback], stamps[:lookback], stamps[lookback:], own)


def evaluate_on_test(
    config: FinetuneConfig,
    trained: StartingPoint,
    instruments: Sequence[Instrument],
    split: Split,
    device: torch.device,
    *,
    losses: Sequence[float],
    listener: Listener,
    should_stop: Callable[[], bool],
    engine: EngineChoice = "auto",
) -> dict[str, Any] | None:
    """The report on the trained pair, its start and naive forecasts, on windows of the test part.

    It is that of a backtest, without the scores by bar ahead; ``verdict`` is the trained pair's, and
    ``next_step`` what to try if it is not better, for which ``losses`` has the last stage's curve. None
    without a test part, or if the config turns it off. Raises TrainingStopped if ``should_stop`` is true.
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

    engines = {
        name: build_engine(
            model.to(device).eval(),
            tokenizer.to(device).eval(),
            max_context=trained.max_context,
            clip=config.clip,
            max_slots=MAX_SLOTS,
            kind=engine,
        )
        for name, (model, tokenizer) in pairs.items()
    }
    sampling = SamplingParams(sampled.temperature, 0, sampled.top_p, sampled.sample_count, config.seed)
    lookback, horizon = data.lookbacks.max, data.pred_len
    season = sampled.season or infer_season(*(instrument.wall for instrument in instruments))
    no_season = why_not_seasonal(lookback, season)
    arrays = window_arrays(instruments, windows, lookback, horizon)
    report = make_report(
        window_batches(engines, arrays, sampling, progress),
        window_times(instruments, windows, lookback, horizon),
        season=None if no_season else season,
        seed=config.seed,
    )
    ours = report["models"][FINETUNED]
    advice = next_step(ours, report["naive"][BOOTSTRAP], losses, config)
    ours["verdict"] += filter(None, [advice])
    evaluation = {
        "lookback": lookback,
        "horizon": horizon,
        "season": season,
        "no_seasonal": no_season,
        **without_steps(report),
        "next_step": advice,
        "verdict": ours["verdict"],
    }
    summary = "\n".join(evaluation["verdict"])
    listener({"event": "evaluation", "evaluation": evaluation, "summary": summary})
    return evaluation
