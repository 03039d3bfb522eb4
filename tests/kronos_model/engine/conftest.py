"""A model small enough to recompute everything for every bar."""

from collections.abc import Callable

import pytest
import torch

from kronos_model.engine.choice import native_network
from kronos_model.engine.reports import EngineKind
from kronos_model.engine.transformer.network import Network, TorchNetwork
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

MAX_CONTEXT = 32


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
