"""A model small enough to recompute everything for every bar."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.choice import native_network
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.reports import EngineKind
from kronos_model.engine.scheduling.path_table import PathTable
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.network import Network, TorchNetwork
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

MAX_CONTEXT = 32
TOLERANCE = 1e-5
"""Of a column's range: what rounding may do to bars whose tokens are the same."""


@pytest.fixture(scope="session")
def pair() -> tuple[Kronos, KronosTokenizer]:
    return random_pair()


def random_pair(d_model: int = 32, ff_dim: int = 48) -> tuple[Kronos, KronosTokenizer]:
    """A seeded random model and tokenizer whose logits are far from uniform."""
    no_dropout = {"ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0}
    bits = {"s1_bits": 5, "s2_bits": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = Kronos(
            n_layers=2,
            d_model=d_model,
            n_heads=2,
            ff_dim=ff_dim,
            token_dropout_p=0.0,
            learn_te=True,
            **bits,
            **no_dropout,
        )
        tokenizer = KronosTokenizer(
            d_in=6, d_model=24, n_heads=3, ff_dim=32, n_enc_layers=2, n_dec_layers=3, beta=0.05, gamma0=1.0,
            gamma=1.1, zeta=0.05, group_size=3, **bits, **no_dropout,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.7)
    return model.eval(), tokenizer.eval()


@pytest.fixture(params=["native", "torch"])
def kind(request) -> EngineKind:
    """What computes the model."""
    return request.param


def network_of(kind: EngineKind, model: Kronos, dtype: torch.dtype = torch.float32) -> Callable[..., Network]:
    """What makes the network of an engine of this kind."""
    return native_network(model, dtype) if kind == "native" else TorchNetwork


def running_sequence(
    slots: tuple[int, ...], prompt_slot: int, *, lookback: int, generated: int, policy: str = "exact"
) -> Sequence:
    """Paths in these slots that have so many bars, and whose window is cached."""
    request = series_request(0, lookback, MAX_CONTEXT, SamplingParams(sample_count=len(slots)))
    generation = Generation(replace(request, context_policy=policy))
    running = Sequence(generation, len(slots), MAX_CONTEXT, slots, prompt_slot, num_generated=generated)
    if policy == "exact":
        running.cached_from = running.window_start
    return running


def table_of(running: list[Sequence], num_slots: int) -> PathTable:
    """With these sequences, which decode."""
    table = PathTable(num_slots, MAX_CONTEXT)
    for sequence in running:
        table.join(sequence)
    return table


def window_of(sequence: Sequence, slot: int) -> list[tuple[int, int]]:
    """The slot and bar of each bar that a path of the sequence sees, the newest last."""
    prompt_length = sequence.cached_prompt_length
    newest = prompt_length + sequence.num_generated
    places = []
    for position in range(max(0, newest + 1 - MAX_CONTEXT), newest + 1):
        if not sequence.shares_prompt:
            places.append((slot, position % MAX_CONTEXT))
        elif position < prompt_length:
            places.append((sequence.prompt_slot, position))
        else:
            places.append((slot, position - prompt_length))
    return places


def assert_same_bars(actual: np.ndarray, expected: np.ndarray) -> None:
    """To 1e-5 of each column's range; one differing token moves a bar by far more."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(axis=(0, 1), keepdims=True)
    assert (np.abs(actual - expected) <= TOLERANCE * scale + 1e-9).all()
