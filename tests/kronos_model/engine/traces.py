"""What a runner decided, token by token, and how close each decision was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from torch import Tensor

from kronos_model.engine import steps as steps_module
from kronos_model.engine.engine import Engine
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.running import Sequence
from kronos_model.engine.sampling import RowParams, filter_probabilities, sample
from kronos_model.engine.sequence import Generation, SeriesRequest

TOLERANCE = 1e-5
"""Of a column's range: what rounding may do to bars whose tokens are the same."""
MAX_MARGIN = 1e-4
"""In log p − log noise: decisions closer than this may fall either way."""


@dataclass
class Trace:
    """Of one path: its tokens, (steps, 2), and for each the distance to the second best."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    margins: list[tuple[float, float]] = field(default_factory=list)


class TracingRunner(ModelRunner):
    """Notes what each decode step chose, by generation and path."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.traces: dict[tuple[Generation, int], Trace] = {}

    def decode(self, sequences: tuple[Sequence, ...]) -> None:
        with margins_of_draws() as margins:
            super().decode(sequences)
        row = 0
        for sequence in sequences:
            tokens = self._own.tokens[list(sequence.slots), sequence.num_generated + 1].tolist()
            for path, pair in enumerate(tokens, start=sequence.first_path):
                trace = self.traces.setdefault((sequence.generation, path), Trace())
                trace.tokens.append(tuple(pair))
                trace.margins.append((margins[0][row], margins[1][row]))
                row += 1


@contextmanager
def margins_of_draws() -> Iterator[list[list[float]]]:
    """Of each draw inside, s1 and then s2: by row, how far the best is ahead of the second best."""
    margins: list[list[float]] = []

    def traced(logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
        p = filter_probabilities((logits / params.temperature).softmax(-1), params.top_k, params.top_p)
        best = (p / noise).log().topk(2, dim=-1).values
        margins.append((best[:, 0] - best[:, 1]).tolist())
        return sample(logits, params, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_module, "sample", traced)
        yield margins


def traces_of(runner: TracingRunner, generation: Generation) -> list[Trace]:
    paths = range(generation.request.sampling.sample_count)
    return [runner.traces[generation, path] for path in paths]


def finished(engine: Engine, request: SeriesRequest) -> Generation:
    """A series forecast alone."""
    generation = engine.submit(request)
    while engine.has_work:
        engine.step()
    return generation


def assert_same_forecast(
    ours: Generation, theirs: Generation, our_traces: list[Trace], their_traces: list[Trace]
) -> None:
    """Identical tokens and bars to 1e-5; a path may part only where its decision was as good as a tie."""
    for path, (one, other) in enumerate(zip(our_traces, their_traces, strict=True)):
        parted = next((i for i, pair in enumerate(one.tokens) if pair != other.tokens[i]), None)
        if parted is None:
            assert_same_bars(ours.paths[path : path + 1], theirs.paths[path : path + 1])
            continue
        which = int(one.tokens[parted][0] == other.tokens[parted][0])
        assert max(one.margins[parted][which], other.margins[parted][which]) < MAX_MARGIN


def assert_same_bars(actual: np.ndarray, expected: np.ndarray) -> None:
    """To 1e-5 of each column's range; one differing token moves a bar by far more."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(axis=(0, 1), keepdims=True)
    assert (np.abs(actual - expected) <= TOLERANCE * scale + 1e-9).all()
