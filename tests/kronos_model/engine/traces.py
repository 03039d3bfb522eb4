"""What a runner decided, token by token, and how close each decision was."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from kronos_model.engine.decoding.sampling import RowParams, filter_probabilities
from kronos_model.engine.decoding.steps import EagerSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.engine.scheduling.path_table import Batch

TOLERANCE = 1e-5
"""Of a column's range: what rounding may do to bars whose tokens are the same."""
MAX_MARGIN = 1e-4
"""In log p − log noise: decisions closer than this may fall either way."""


@dataclass
class Trace:
    """Of one path: its tokens, (steps, 2), and for each the distance to the second best."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    margins: list[tuple[float, float]] = field(default_factory=list)


class TracingSteps(EagerSteps):
    """Notes what each step chose, by generation and path."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.traces: dict[tuple[Generation, int], Trace] = {}
        self._margins: list[list[float]] = []

    def decode(self, batch: Batch) -> None:
        self._margins = []
        super().decode(batch)
        s1_margins, s2_margins = self._margins
        row = 0
        for sequence in batch.sequences:
            tokens = self._own.tokens[list(sequence.slots), sequence.num_generated + 1].tolist()
            for path, pair in enumerate(tokens, start=sequence.first_path):
                trace = self.traces.setdefault((sequence.generation, path), Trace())
                trace.tokens.append(tuple(pair))
                trace.margins.append((s1_margins[row], s2_margins[row]))
                row += 1

    def choose(self, logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
        p = filter_probabilities((logits / params.temperature).softmax(-1), params.top_k, params.top_p)
        best = (p / noise).log().topk(2, dim=-1).values
        self._margins.append((best[:, 0] - best[:, 1]).tolist())
        return super().choose(logits, params, noise)


def traces_of(steps: TracingSteps, generation: Generation) -> list[Trace]:
    paths = range(generation.request.sampling.sample_count)
    return [steps.traces[generation, path] for path in paths]


def finished(engine: Engine, request: SeriesRequest) -> Generation:
    """A series forecast alone."""
    (generation,) = engine.run([request])
    return generation


def assert_same_forecast(
    ours: Generation, theirs: Generation, our_traces: list[Trace], their_traces: list[Trace]
) -> None:
    """Identical tokens and bars to 1e-5; a path may differ only after a decision that was nearly a tie."""
    for path, (trace, other) in enumerate(zip(our_traces, their_traces, strict=True)):
        parted = next((i for i, pair in enumerate(trace.tokens) if pair != other.tokens[i]), None)
        if parted is None:
            assert_same_bars(ours.paths[path : path + 1], theirs.paths[path : path + 1])
            continue
        which = int(trace.tokens[parted][0] == other.tokens[parted][0])
        assert max(trace.margins[parted][which], other.margins[parted][which]) < MAX_MARGIN


def assert_same_bars(actual: np.ndarray, expected: np.ndarray) -> None:
    """To 1e-5 of each column's range; one differing token moves a bar by far more."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(axis=(0, 1), keepdims=True)
    assert (np.abs(actual - expected) <= TOLERANCE * scale + 1e-9).all()
