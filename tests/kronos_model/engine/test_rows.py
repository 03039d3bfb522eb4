"""On the CPU a path's logits and bars are the same, bit for bit, whatever else is computed with it.

Logits are compared, not tokens: most tokens stay the same if the logits' last bits change.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.support.workload import series_request
from kronos_model.engine.decoding.sampling import RowParams
from kronos_model.engine.decoding.steps import EagerSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SamplingParams, SeriesRequest
from kronos_model.engine.reports import EngineKind
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import Batch, PathTable
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.attention import attend
from kronos_model.engine.transformer.linear import MAX_ROWS, Affine, FusedLinear, num_rows_for
from kronos_model.model import Kronos
from kronos_model.model_pair import load_pair
from kronos_model.tokenizer import KronosTokenizer
from tests.kronos_model.engine.conftest import network_of

MAX_CONTEXT = 160

Pair = tuple[Kronos, KronosTokenizer]


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request) -> torch.dtype:
    return request.param


in_pairs = pytest.mark.parametrize(
    ("threads", "kind", "dtype"),
    [
        (1, "native", torch.float32),
        (2, "native", torch.bfloat16),
        (2, "torch", torch.float32),
        (1, "torch", torch.bfloat16),
    ],
    ids=["1-native-float32", "2-native-bfloat16", "2-torch-float32", "1-torch-bfloat16"],
    indirect=["threads"],
)
"""Any two of them together; all three together are tried with any number of rows."""


@pytest.fixture(scope="module")
def small_pair() -> Pair:
    """One block with the head size of the published models."""
    no_dropout = {"ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0}
    bits = {"s1_bits": 5, "s2_bits": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Kronos(n_layers=1, d_model=128, n_heads=2, ff_dim=208, token_dropout_p=0.0, learn_te=True,
                       **bits, **no_dropout)  # fmt: skip
        tokenizer = KronosTokenizer(
            d_in=6, d_model=24, n_heads=3, ff_dim=32, n_enc_layers=2, n_dec_layers=2, beta=0.05, gamma0=1.0,
            gamma=1.1, zeta=0.05, group_size=3, **bits, **no_dropout,
        )  # fmt: skip
    return model.eval(), tokenizer.eval()


class LoggingSteps(EagerSteps):
    """Keeps each step's rows, as (generation, path), with their logits of s1 and of s2."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[tuple[list[tuple[Generation, int]], list[Tensor]]] = []

    def decode(self, batch: Batch) -> None:
        rows = [(sequence.generation, path) for sequence in batch.sequences for path in sequence.paths]
        self.steps.append((rows, []))
        super().decode(batch)

    def choose(self, logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
        self.steps[-1][1].append(logits.clone())
        return super().choose(logits, params, noise)


def logging_runner(
    pair: Pair, kind: EngineKind, dtype: torch.dtype, num_slots: int
) -> tuple[ModelRunner, LoggingSteps]:
    steps: list[LoggingSteps] = []

    def new_steps(*args: Any) -> LoggingSteps:
        steps.append(LoggingSteps(*args))
        return steps[0]

    runner = ModelRunner(
        *pair,
        max_context=MAX_CONTEXT,
        num_slots=num_slots,
        dtype=dtype,
        steps=new_steps,
        network=network_of(kind, pair[0], dtype),
    )
    return runner, steps[0]


def forecast(
    pair: Pair,
    kind: EngineKind,
    dtype: torch.dtype,
    requests: list[SeriesRequest],
    *,
    num_slots: int = 64,
    max_chunk_bars: int = 512,
) -> list[tuple[list[Tensor], np.ndarray]]:
    """Each request's logits, path by path, and its bars; all requests run together."""
    runner, log = logging_runner(pair, kind, dtype, num_slots)
    engine = Engine(runner, max_chunk_bars=max_chunk_bars)
    generations = engine.run(requests)
    logits: dict[tuple[Generation, int], list[Tensor]] = defaultdict(list)
    for rows, both in log.steps:
        for row, path in enumerate(rows):
            logits[path] += [values[row] for values in both]
    return [
        (
            [torch.cat(logits[generation, path]) for path in range(generation.request.sampling.sample_count)],
            generation.paths,
        )
        for generation in generations
    ]


def assert_same_bits(ours: tuple[list[Tensor], np.ndarray], theirs: tuple[list[Tensor], np.ndarray]) -> None:
    for path, (row, other) in enumerate(zip(ours[0], theirs[0], strict=True)):
        assert torch.equal(row, other), path
    assert np.array_equal(ours[1], theirs[1])


@torch.inference_mode()
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(20, 48), (64, 192), (128, 64), (512, 1536), (1024, 512), (832, 2496), (2048, 832)],
)
def test_a_product_of_a_row_is_the_same_among_any_number_of_rows(threads, inputs, outputs, dtype):
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(MAX_ROWS, inputs // 2, generator=generator)
    weight = torch.randn(outputs, inputs // 2, generator=generator)
    order = torch.randperm(inputs, generator=generator)
    # Every term has its opposite: what is left is what rounding in this order leaves, and shows in bfloat16.
    x = torch.cat((half, -half), dim=1)[:, order]
    product = FusedLinear(Affine(torch.cat((weight, weight), dim=1)[:, order], None), dtype=dtype)
    together = product(x)
    assert torch.equal(torch.cat([product(row) for row in x[:64].split(1)]), together[:64])
    for rows in sorted({num_rows_for(n) for n in range(1, MAX_ROWS)}):
        first = MAX_ROWS - rows
        assert torch.equal(product(x[first:]), together[first:]), rows


@torch.inference_mode()
@pytest.mark.skipif(
    torch.cpu.get_capabilities().get("amx_bf16", False),
    reason="MKL_CBWR is not set with AMX: run it on a CPU without",
)
@pytest.mark.parametrize("head_dim", [20, 52, 64])
@pytest.mark.parametrize("num_queries", [1, 2, 3, 12])
def test_attention_is_the_same_in_each_thread(threads, head_dim, num_queries):
    """Each thread has scratch memory of its own, which begins elsewhere between two multiples of 64 bytes."""
    generator = torch.Generator().manual_seed(1)
    for num_bars in (*range(1, 18), 32, 47, 64, 448, 513):
        q, k, v = (
            torch.randn(1, 1, length, head_dim, generator=generator).expand(4, 2, -1, -1).contiguous()
            for length in (num_queries, num_bars, num_bars)
        )
        out = attend(q, k, v).out
        assert torch.equal(out, out[:1, :1].expand_as(out)), num_bars


def test_logits_are_the_same_among_any_number_of_rows(threads, small_pair, kind, dtype):
    """Of 56 series with 8 paths and 64 with one, as many as make each number of rows.

    Products see one of 56 numbers of rows, all tried here: each with no row added and with as many as may be.
    Other operations compute whole rows. No vector cuts one: all have a multiple of 16 numbers.
    """
    runner, log = logging_runner(small_pair, kind, dtype, MAX_ROWS)
    request = series_request(1, 30, 2)
    sequences: list[Sequence] = []
    for number, num_paths in enumerate([8] * 56 + [1] * 64):
        lookback = 6 + number * 7 % 23
        cut = SeriesRequest(
            request.bars[:lookback],
            request.stamps[:lookback],
            request.future_stamps,
            SamplingParams(sample_count=num_paths),
        )
        first = sum(sequence.num_paths for sequence in sequences)
        slots = tuple(range(first, first + num_paths))
        prompt_slot = first if num_paths == 1 else MAX_ROWS + number
        sequences.append(Sequence(Generation(cut), num_paths, MAX_CONTEXT, slots, prompt_slot))
    chunks = tuple(sequence.next_chunk(MAX_CONTEXT) for sequence in sequences)
    runner.compute(chunks)
    for sequence, chunk in zip(sequences, chunks, strict=True):
        sequence.complete(chunk)
    table = PathTable(MAX_ROWS, MAX_CONTEXT)
    for sequence in sequences:
        table.join(sequence)

    def logits(batch: list[Sequence]) -> list[Tensor]:
        """A step may be repeated."""
        runner.decode(table.batch_of(tuple(batch)))
        return log.steps.pop()[1]

    together = logits(sequences)
    padded = sorted({num_rows_for(n) for n in range(1, MAX_ROWS + 1)})
    for rows in {*padded, *(n + 1 for n in padded[:-1])}:
        of_eight = min((rows - 1) // 8, 56)
        first = 56 - of_eight
        batch = sequences[first : 56 + rows - 8 * of_eight]
        for ours, theirs in zip(logits(batch), together, strict=True):
            assert torch.equal(ours, theirs[8 * first : 8 * first + rows]), rows


@in_pairs
@pytest.mark.parametrize("lookback", [3, 65, 150, 230])
def test_chunks_change_nothing(threads, small_pair, kind, dtype, lookback):
    """The window slides in the last two cases."""
    request = series_request(2, lookback, 14, SamplingParams(sample_count=3, seed=4))
    (whole,) = forecast(small_pair, kind, dtype, [request])
    for max_chunk_bars in (1, 7, 64, 100) if lookback < 100 else (33, 100):
        (chunked,) = forecast(small_pair, kind, dtype, [request], max_chunk_bars=max_chunk_bars)
        assert_same_bits(chunked, whole)


@in_pairs
@pytest.mark.parametrize("sample_count", [5, 7])
def test_rounds_change_nothing(threads, small_pair, kind, dtype, sample_count):
    request = series_request(2, 100, 6, SamplingParams(sample_count=sample_count, seed=4))
    (at_once,) = forecast(small_pair, kind, dtype, [request])
    (in_rounds,) = forecast(small_pair, kind, dtype, [request], num_slots=2)
    assert_same_bits(in_rounds, at_once)


@in_pairs
def test_other_jobs_change_nothing(threads, kind, dtype):
    """The bundled model with jobs of other lengths and numbers of paths; in few slots, paths make room."""
    loaded = load_pair("kronos-tiny")
    pair = (loaded.model, loaded.tokenizer)
    ours = [
        series_request(0, 120, 24, SamplingParams(sample_count=num_paths, seed=1)) for num_paths in (1, 4)
    ]
    alone = [forecast(pair, kind, dtype, [request])[0] for request in ours]
    for num_others, num_slots in ((14, 64), (5, 7)):
        others = [
            series_request(
                seed, 60 + 9 * seed, 5 + 2 * seed, SamplingParams(sample_count=1 + seed % 5, seed=seed)
            )
            for seed in range(1, num_others + 1)
        ]
        first = others[::2]
        among = forecast(pair, kind, dtype, [*first, *ours, *others[1::2]], num_slots=num_slots)
        for ours_among, ours_alone in zip(among[len(first) :], alone, strict=False):
            assert_same_bits(ours_among, ours_alone)
