"""The comparison of a run's model with its start and with naive forecasts, on the test part."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from kronos_model.bars.instrument import Instrument
from kronos_model.engine.choice import EngineChoice
from kronos_model.engine.generation import SamplingParams
from kronos_model.errors import TrainingStopped
from kronos_model.evaluation.naive import infer_season, why_not_seasonal
from kronos_model.evaluation.report import START, make_report, without_steps
from kronos_model.evaluation.window_arrays import spread, window_arrays
from kronos_model.evaluation.window_times import window_times
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.model_forecaster import ModelForecaster, window_batches
from kronos_model.finetuning.reporting import Listener
from kronos_model.finetuning.split import Split, why_not_compared
from kronos_model.finetuning.starting_point import StartingPoint, untouched_pair, with_revisions

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
    season = sampled.season or infer_season(*(one.wall for one in instruments))
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
