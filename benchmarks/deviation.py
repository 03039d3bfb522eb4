"""How far do bfloat16 and the rolling cache move a forecast?

Each is compared with exact float32 twice: in a free run under the same noise, and in a run on the tokens that
float32 chose, which makes the distributions comparable bar by bar. Means over all bars, paths and series:

    |Δ log p|   of the chosen token, s1 and s2
    TV          total variation distance of the two distributions, s1 and s2
    tokens      share of bars with the same tokens in the free run
    mean path   difference of the mean paths' close, in standard deviations of the paths
    spread      the same between two different seeds, for comparison

    python -m benchmarks.deviation [--models small kronos-tiny FOLDER]

small, base and mini have random weights.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.support.harness import Table, options
from benchmarks.support.workload import MODELS, random_pair, series_request
from kronos_model.bars.columns import CLOSE
from kronos_model.engine.decoding.sampling import RowParams, filter_probabilities
from kronos_model.engine.decoding.steps import EagerSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import ContextPolicy, SamplingParams, SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.model import Kronos
from kronos_model.model_pair import load_pair
from kronos_model.tokenizer import KronosTokenizer

MAX_CONTEXT, NUM_SERIES, NUM_PATHS, HORIZON = 512, 4, 8, 48
CASES: list[tuple[str, int, torch.dtype, ContextPolicy]] = [
    ("bfloat16, 400 bars", 400, torch.bfloat16, "exact"),
    ("rolling, 512 bars", MAX_CONTEXT, torch.float32, "rolling"),
]


@dataclass
class Record:
    """The tokens and distributions of one run: one tensor per draw, in order."""

    tokens: list[Tensor] = field(default_factory=list)
    probabilities: list[Tensor] = field(default_factory=list)


class RecordingSteps(EagerSteps):
    """Records every draw. With ``forced`` it chooses the tokens of that run."""

    def __init__(self, record: Record, forced: Record | None, *args: Any) -> None:
        super().__init__(*args)
        self._record, self._forced = record, forced

    def choose(self, logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
        p = filter_probabilities((logits / params.temperature).softmax(-1), params.top_k, params.top_p)
        index = len(self._record.tokens)
        chosen = super().choose(logits, params, noise) if self._forced is None else self._forced.tokens[index]
        self._record.tokens.append(chosen)
        self._record.probabilities.append(p / p.sum(-1, keepdim=True))
        return chosen


def run(
    pair: tuple[Kronos, KronosTokenizer],
    requests: list[SeriesRequest],
    dtype: torch.dtype,
    forced: Record | None = None,
) -> tuple[Record, list[Any]]:
    """Forecast the series in one batch. Returns the record of all draws, and the paths."""
    record = Record()
    runner = ModelRunner(
        *pair,
        max_context=MAX_CONTEXT,
        num_slots=NUM_SERIES * NUM_PATHS,
        dtype=dtype,
        steps=lambda *args: RecordingSteps(record, forced, *args),
    )
    engine = Engine(runner, max_chunk_bars=1 << 30)  # all series start together, so draws correspond
    return record, [generation.paths for generation in engine.run(requests)]


def requests_for(lookback: int, seed: int, context_policy: ContextPolicy = "exact") -> list[SeriesRequest]:
    """The series, each with its own seed."""
    requests = []
    for index in range(NUM_SERIES):
        sampling = SamplingParams(sample_count=NUM_PATHS, seed=seed + index)
        request = series_request(index, lookback, HORIZON, sampling)
        requests.append(replace(request, context_policy=context_policy))
    return requests


def compared(exact: Record, forced: Record, free: Record, paths: tuple[list[Any], ...]) -> tuple[float, ...]:
    """The columns of the table."""

    def distances(first: int) -> tuple[float, float]:
        p, q = (torch.stack(run.probabilities[first::2]) for run in (exact, forced))  # (draws, rows, tokens)
        chosen = torch.stack(exact.tokens[first::2]).unsqueeze(-1)
        log_p, log_q = (values.gather(-1, chosen).clamp(min=1e-12).log() for values in (p, q))
        return float((log_p - log_q).abs().mean()), float((p - q).abs().sum(-1).mean()) / 2

    def shift(ours: list[Any], others: list[Any]) -> float:
        a, b = (np.stack(paths)[..., CLOSE] for paths in (ours, others))  # (series, paths, bars)
        return float((np.abs(a.mean(1) - b.mean(1)) / a.std(1).clip(min=1e-9)).mean())

    same = float((torch.stack(exact.tokens) == torch.stack(free.tokens)).float().mean())
    moved, spread = shift(paths[0], paths[1]), shift(paths[0], paths[2])
    (log_p_1, variation_1), (log_p_2, variation_2) = distances(0), distances(1)
    return log_p_1, log_p_2, variation_1, variation_2, same, moved, spread


def main() -> None:
    given = options(__doc__, models=["small", "kronos-tiny"])
    print(f"torch {torch.__version__}, {NUM_SERIES} series × {NUM_PATHS} paths, {HORIZON} bars ahead")
    table = Table(
        ":>28", "|Δ log p|:>9.1e", "(s2):>9.1e", "TV:>9.1e", "(s2):>9.1e", "tokens:>8.1%", "mean path:>10.3f",
        "spread:>8.3f",
    )  # fmt: skip
    for name in given.models:
        loaded = None if name in MODELS else load_pair(name)
        pair = random_pair(name) if loaded is None else (loaded.model, loaded.tokenizer)
        for case, lookback, dtype, policy in CASES:
            exact, paths = run(pair, requests_for(lookback, 1), torch.float32)
            _, other_seed = run(pair, requests_for(lookback, 1001), torch.float32)
            requests = requests_for(lookback, 1, policy)
            forced, _ = run(pair, requests, dtype, exact)
            free, moved = run(pair, requests, dtype)
            table.row(f"{name}: {case}", *compared(exact, forced, free, (paths, moved, other_seed)))


if __name__ == "__main__":
    main()
