"""The parts that tokenizer and predictor share: norm, rotary position, attention, feed-forward, block.

B = rows, T = positions, H = heads. Tensor names are those of the published checkpoints.
"""

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 for inputs of any type."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], eps=NORM_EPSILON).type_as(x) * self.weight


class FeedForward(nn.Module):
    """Gated feed-forward: ``w2(silu(w1 x) · w3 x)``."""

    def __init__(self, d_model: int, ff_dim: int, dropout_p: float = 0.0) -> None:
        super().__init__()
        self.w1 = nn.Linear(d_model, ff_dim, bias=False)
        self.w3 = nn.Linear(d_model, ff_dim, bias=False)
        self.w2 = nn.Linear(ff_dim, d_model, bias=False)
        self.ffn_dropout = nn.Dropout(dropout_p)

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn_dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """Rotary position embedding; the two halves of a head are rotated against each other."""

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2).float() / head_dim
        self.register_buffer("inv_freq", 1.0 / ROTARY_BASE**exponents)  # (head_dim / 2,)

    def tables(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of positions 0 … num_positions − 1, each (num_positions, head_dim)."""
        positions = torch.arange(num_positions, device=self.inv_freq.device, dtype=self.inv_freq.dtype)
        half = torch.outer(positions, self.inv_freq)
        angles = torch.cat((half, half), dim=-1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., head_dim) turned by the angles whose cosine and sine broadcast against it."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((-second, first), dim=-1), sin)


class MultiHeadAttention(nn.Module):
    """Causal attention of queries from one sequence on keys and values from another, rotary on both."""

    def __init__(
        self, d_model: int, n_heads: int, attn_dropout_p: float = 0.0, resid_dropout_p: float = 0.0
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.rotary = Rotary(self.head_dim)
        self.attn_dropout_p = attn_dropout_p
        self.resid_dropout = nn.Dropout(resid_dropout_p)

    def forward(self, query: Tensor, source: Tensor) -> Tensor:
        """query and source (B, T, d_model) → (B, T, d_model); position t sees positions 0 … t."""
        q, k, v = self.project(query, source)
        # Rotating before the heads move to the front works in memory order, and takes half the time.
        cos, sin = (table.unsqueeze(1) for table in self.rotary.tables(q.shape[1]))  # (T, 1, head_dim)
        dropout_p = self.attn_dropout_p if self.training else 0.0
        return self.merge(self._mix(rotate(q, cos, sin), rotate(k, cos, sin), v, True, dropout_p))

    def attend_unrotated(self, query: Tensor, source: Tensor, is_causal: bool = False) -> Tensor:
        """query (B, Q, d_model) attends to all of source (B, T, d_model), without rotation.

        If ``is_causal``, Q is T, and position t sees positions 0 … t.
        """
        return self.merge(self._mix(*self.project(query, source), is_causal))

    def project(self, query: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by heads, each (B, T, H, head_dim), not rotated."""
        projected = self.q_proj(query), self.k_proj(source), self.v_proj(source)
        q, k, v = (rearrange(x, "b t (h d) -> b t h d", h=self.n_heads) for x in projected)
        return q, k, v

    @staticmethod
    def _mix(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, dropout_p: float = 0.0) -> Tensor:
        """Attention by heads, (B, T, H, head_dim) in and out."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, dropout_p=dropout_p)
        return mixed.transpose(1, 2)

    def merge(self, mixed: Tensor) -> Tensor:
        """Heads (B, T, H, head_dim) put together and projected: (B, T, d_model)."""
        return self.resid_dropout(self.out_proj(rearrange(mixed, "b t h d -> b t (h d)")))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """``x + attention(norm1(x))``, then ``x + feed_forward(norm2(x))``."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        ffn_dropout_p: float = 0.0,
        attn_dropout_p: float = 0.0,
        resid_dropout_p: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(d_model)
        self.self_attn = MultiHeadAttention(d_model, n_heads, attn_dropout_p, resid_dropout_p)
        self.norm2 = RMSNorm(d_model)
        self.ffn = FeedForward(d_model, ff_dim, ffn_dropout_p)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.self_attn(normed, normed)
        return x + self.ffn(self.norm2(x))  # type: ignore[no-any-return]
