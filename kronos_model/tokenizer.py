"""KronosTokenizer: scaled bars to pairs of tokens and back, by binary spherical quantisation.

A vector on the unit sphere is quantised by reducing each component to its sign. D = s1_bits + s2_bits
components, so a bar becomes D bits: the coarse token s1 from the first ``s1_bits`` of them and the fine token
s2 from the rest.
"""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import wrap_torch_function

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.layers import TransformerBlock

ENTROPY_EPSILON = 1e-8
Tokens = tuple[Tensor, Tensor]
"""Coarse and fine tokens s1 and s2, each (B, T) int64."""


def bits_to_index(bits: Tensor) -> Tensor:
    """Bits (..., n) as one integer (...); the first component is bit 0."""
    weights = 2 ** torch.arange(bits.shape[-1], device=bits.device)
    return (bits.long() * weights).sum(-1)


def index_to_signs(index: Tensor, num_bits: int) -> Tensor:
    """Integers (...) as components ±1 (..., num_bits), float32; the inverse of ``bits_to_index``."""
    bits = (index.unsqueeze(-1) >> torch.arange(num_bits, device=index.device)) & 1
    return bits.float() * 2 - 1


def _binary_entropy(p: Tensor) -> Tensor:
    """Entropy of {p, 1 − p} in nats, per element."""
    q = 1 - p
    return -(p * torch.log(p + ENTROPY_EPSILON) + q * torch.log(q + ENTROPY_EPSILON))


@wrap_torch_function(lambda p: (p,))
def batch_mean(p: Tensor) -> Tensor:
    """The mean of p (B, T, D) over the batch, (D,). Training by several processes replaces it."""
    return p.mean(dim=(0, 1))


class BinarySphericalQuantizer(nn.Module):
    """Signs over √D, straight through for the gradient, with commitment and entropy losses."""

    basis: Tensor
    group_basis: Tensor

    def __init__(
        self, dim: int, *, beta: float, gamma0: float, gamma: float, zeta: float, group_size: int
    ) -> None:
        super().__init__()
        if dim % group_size:
            raise ValueError(f"group_size {group_size} does not divide the {dim} bits of a token")
        self.scale = 1 / sqrt(dim)
        self.beta, self.gamma0, self.gamma, self.zeta = beta, gamma0, gamma, zeta
        # Unused, but in every published checkpoint. Indices count bits in the opposite order.
        self.register_buffer("basis", 2 ** torch.arange(dim - 1, -1, -1))
        self.register_buffer("group_basis", 2 ** torch.arange(group_size - 1, -1, -1))

    def quantize(self, z: Tensor) -> Tensor:
        """Unit vectors z (..., D) → ±1/√D, a zero counting as −1; the gradient reaches z times 1/√D."""
        signs = torch.where(z > 0, 1.0, -1.0).to(z.dtype)
        return (z + (signs - z).detach()) * self.scale

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors z (B, T, D) → quantised vectors (B, T, D) and the loss (scalar)."""
        quantized = self.quantize(z)
        commitment = self.beta * (quantized.detach() - z).square().sum(-1).mean()
        p = torch.sigmoid(-4 * z * self.scale)
        sample_entropy = _binary_entropy(p).sum(-1).mean()
        codebook_entropy = _binary_entropy(batch_mean(p)).sum()
        entropy = self.gamma0 * sample_entropy - self.gamma * codebook_entropy
        return quantized, commitment + self.zeta * entropy


class TokenQuantizer(nn.Module):
    """From embeddings (B, T, D) to tokens. ``bsq`` is the quantiser's name in the checkpoints."""

    def __init__(self, s1_bits: int, s2_bits: int, bsq: BinarySphericalQuantizer) -> None:
        super().__init__()
        self.s1_bits, self.s2_bits = s1_bits, s2_bits
        self.bsq = bsq

    def forward(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised vectors (B, T, D) and the quantiser's loss."""
        quantized, loss = self.bsq(F.normalize(embedding, dim=-1))
        return quantized, loss

    def encode(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Half indices s1 and s2, each (B, T) int64."""
        bits = F.normalize(embedding, dim=-1) > 0
        return bits_to_index(bits[..., : self.s1_bits]), bits_to_index(bits[..., self.s1_bits :])

    def join(self, s1: Tensor, s2: Tensor) -> Tensor:
        """Half indices as full ones."""
        return s1 + (s2 << self.s1_bits)

    def split(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Full indices as half ones."""
        return index & (2**self.s1_bits - 1), index >> self.s1_bits

    def dequantize(self, s1: Tensor, s2: Tensor) -> Tensor:
        """Half indices (...) as quantised vectors (..., D)."""
        signs = torch.cat((index_to_signs(s1, self.s1_bits), index_to_signs(s2, self.s2_bits)), dim=-1)
        return signs * self.bsq.scale


class KronosTokenizer(PretrainedModule):
    """Causal encoder and decoder around a binary spherical quantiser.

    The arguments are the keys of a checkpoint's ``config.json``. ``encoder`` and ``decoder`` have one block
    less than ``n_enc_layers`` and ``n_dec_layers``, as in the published checkpoints.
    """

    checkpoint_part = "tokenizer"

    def __init__(
        self,
        d_in: int,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        n_enc_layers: int,
        n_dec_layers: int,
        ffn_dropout_p: float,
        attn_dropout_p: float,
        resid_dropout_p: float,
        s1_bits: int,
        s2_bits: int,
        beta: float,
        gamma0: float,
        gamma: float,
        zeta: float,
        group_size: int,
    ) -> None:
        super().__init__()
        self.d_in = d_in
        self.s1_bits, self.s2_bits = s1_bits, s2_bits
        codebook_dim = s1_bits + s2_bits

        def blocks(num_layers: int) -> nn.ModuleList:
            shape = (d_model, n_heads, ff_dim, ffn_dropout_p, attn_dropout_p, resid_dropout_p)
            return nn.ModuleList(TransformerBlock(*shape) for _ in range(num_layers - 1))

        self.embed = nn.Linear(d_in, d_model)
        self.encoder = blocks(n_enc_layers)
        self.quant_embed = nn.Linear(d_model, codebook_dim)
        bsq = BinarySphericalQuantizer(
            codebook_dim, beta=beta, gamma0=gamma0, gamma=gamma, zeta=zeta, group_size=group_size
        )
        self.tokenizer = TokenQuantizer(s1_bits, s2_bits, bsq)
        self.post_quant_embed_pre = nn.Linear(s1_bits, d_model)
        self.post_quant_embed = nn.Linear(codebook_dim, d_model)
        self.decoder = blocks(n_dec_layers)
        self.head = nn.Linear(d_model, d_in)

    def _embed(self, x: Tensor) -> Tensor:
        """Scaled bars (B, T, d_in) → vectors to quantise (B, T, D)."""
        z = self.embed(x)
        for block in self.encoder:
            z = block(z)
        return self.quant_embed(z)  # type: ignore[no-any-return]

    def _reconstruct(self, z: Tensor) -> Tensor:
        """Embedded tokens (B, T, d_model) → scaled bars (B, T, d_in)."""
        for block in self.decoder:
            z = block(z)
        return self.head(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, Tensor]:
        """The training pass over scaled bars x (B, T, d_in).

        Returns the reconstructions from s1 alone and from both tokens, each (B, T, d_in); the quantiser's
        loss (scalar); the quantised vectors (B, T, D); the full indices (B, T).
        """
        embedding = self._embed(x)
        quantized, loss = self.tokenizer(embedding)
        coarse = self._reconstruct(self.post_quant_embed_pre(quantized[..., : self.s1_bits]))
        full = self._reconstruct(self.post_quant_embed(quantized))
        return (coarse, full), loss, quantized, self.tokenizer.join(*self.tokenizer.encode(embedding))

    def encode(self, x: Tensor, half: bool = True) -> Tokens | Tensor:
        """Scaled bars (B, T, d_in) → (s1, s2), each (B, T), or the full indices if ``half`` is false."""
        s1, s2 = self.tokenizer.encode(self._embed(x))
        return (s1, s2) if half else self.tokenizer.join(s1, s2)

    def decode(self, tokens: Tokens | Tensor, half: bool = True) -> Tensor:
        """The inverse of ``encode``: tokens → scaled bars (B, T, d_in)."""
        s1, s2 = tokens if half else self.tokenizer.split(tokens)  # type: ignore[arg-type]
        return self._reconstruct(self.embed_tokens(s1, s2))

    def embed_tokens(self, s1: Tensor, s2: Tensor) -> Tensor:
        """Tokens (B, T) → the input of the decoder's blocks (B, T, d_model)."""
        quantized = self.tokenizer.dequantize(s1, s2)
        return self.post_quant_embed(quantized.to(self.post_quant_embed.weight.dtype))  # type: ignore[no-any-return]
