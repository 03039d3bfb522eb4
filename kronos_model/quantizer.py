"""Binary spherical quantisation: a vector on the unit sphere, each component reduced to its sign.

D = s1_bits + s2_bits components, so a bar becomes D bits: the coarse token s1 from the first ``s1_bits``
of them and the fine token s2 from the rest.
"""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import wrap_torch_function

ENTROPY_EPSILON = 1e-8


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
