"""The comparison of a run's model with its start and with naive forecasts, on the test part."""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from kronos_model.bars.instrument import Instrument
from kronos_model.engine.generation import SamplingParams
from kronos_model.errors import TrainingStopped
from kronos_model.evaluation.comparison import START, Evaluation, evaluate
from kronos_model.evaluation.naive import infer_season
from kronos_model.evaluation.window_arrays import spread, window_arrays
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.model_forecaster import ModelForecaster
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
) -> Evaluation | None:
    """Compare the trained pair with its start on windows of the test part.

    Returns None if there is no test part, or if the config turns it off. Raises TrainingStopped if
    ``should_stop`` returns true.
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

    def report(num_bars: int) -> None:
        nonlocal bars_done
        if should_stop():
            raise TrainingStopped("the comparison was stopped on request: start it again to continue")
        bars_done += num_bars
        listener({"event": "evaluating", "bars_done": bars_done, "bars_total": bars_total})

    candidates = {
        name: ModelForecaster(
            model.to(device),
            tokenizer.to(device),
            max_context=trained.max_context,
            sampling=SamplingParams(sampled.temperature, 0, sampled.top_p, sampled.sample_count, config.seed),
            clip=config.clip,
            on_progress=report,
        )
        for name, (model, tokenizer) in pairs.items()
    }
    evaluation = evaluate(
        candidates,
        window_arrays(instruments, windows, data.lookbacks.max, data.pred_len),
        season=sampled.season or infer_season(*(one.wall for one in instruments)),
        seed=config.seed,
    )
    summary = "\n".join(evaluation.verdict())
    listener({"event": "evaluation", "evaluation": evaluation.as_dict(), "summary": summary})
    return evaluation
