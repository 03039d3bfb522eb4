"""Kronos: the predictor of token pairs, one pair a bar."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.layers import MultiHeadAttention, RMSNorm, TransformerBlock

DEPENDENCY_HEADS = 4
TIME_TABLES = {"minute": 60, "hour": 24, "weekday": 7, "day": 32, "month": 13}
"""Rows of each time table, in the order of the columns of a stamp."""


class TokenEmbedding(nn.Module):
    """Both tokens of a bar, each scaled by √d_model, fused to one vector."""

    def __init__(self, s1_bits: int, s2_bits: int, d_model: int) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.emb_s1 = nn.Embedding(2**s1_bits, d_model)
        self.emb_s2 = nn.Embedding(2**s2_bits, d_model)
        self.fusion_proj = nn.Linear(2 * d_model, d_model)

    def forward(self, s1: Tensor, s2: Tensor) -> Tensor:
        """Tokens (B, T) → (B, T, d_model)."""
        both = torch.cat((self.emb_s1(s1) * self.scale, self.emb_s2(s2) * self.scale), dim=-1)
        return self.fusion_proj(both)  # type: ignore[no-any-return]


class SinusoidTable(nn.Module):
    """A fixed table of sinusoids: even columns sine, odd columns cosine. Stored, never trained."""

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(num_rows).float(), 10_000.0 ** (-torch.arange(0, dim, 2) / dim))
        table = torch.zeros(num_rows, dim)
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles.cos()[:, : dim // 2]
        self.emb = nn.Embedding(num_rows, dim, _weight=table, _freeze=True)


class TimeEmbedding(nn.Module):
    """The sum of minute, hour, weekday, day and month tables."""

    def __init__(self, d_model: int, learned: bool) -> None:
        super().__init__()
        table = nn.Embedding if learned else SinusoidTable
        for name, num_rows in TIME_TABLES.items():
            self.add_module(f"{name}_embed", table(num_rows, d_model))

    def tables(self) -> list[nn.Embedding]:
        """The tables, in the order of the columns of a stamp."""
        modules = (self.get_submodule(f"{name}_embed") for name in TIME_TABLES)
        return [cast(nn.Embedding, getattr(module, "emb", module)) for module in modules]

    def forward(self, stamp: Tensor) -> Tensor:
        """Stamps (B, T, 5), made by ``time_features``, → (B, T, d_model)."""
        stamp = stamp.long()
        parts = [table(stamp[..., column]) for column, table in enumerate(self.tables())]
        return torch.stack(parts).sum(0)


class DependencyAwareLayer(nn.Module):
    """Adds the chosen coarse token to the context, to predict the fine token.

    In training each position has a query of its own, with rotary position and a causal mask. In decoding one
    query sees the whole context unrotated. The published weights were trained and used this way: keep both.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.cross_attn = MultiHeadAttention(d_model, DEPENDENCY_HEADS)
        self.norm = RMSNorm(d_model)

    def forward(self, context: Tensor, sibling: Tensor, is_rotated: bool = True) -> Tensor:
        """Training: context and sibling (B, T, d_model) → (B, T, d_model)."""
        if is_rotated:
            return self.norm(context + self.cross_attn(sibling, context))  # type: ignore[no-any-return]
        attended = self.cross_attn.attend_unrotated(sibling, context, is_causal=True)
        return self.norm(context + attended)  # type: ignore[no-any-return]

    def decode(self, context: Tensor, sibling: Tensor) -> Tensor:
        """Decoding: one sibling (B, 1, d_model) for the newest position; only the newest row has meaning."""
        return self.norm(context + self.cross_attn.attend_unrotated(sibling, context))  # type: ignore[no-any-return]


class DualHead(nn.Module):
    """The two projections to logits."""

    def __init__(self, s1_bits: int, s2_bits: int, d_model: int) -> None:
        super().__init__()
        self.proj_s1 = nn.Linear(d_model, 2**s1_bits)
        self.proj_s2 = nn.Linear(d_model, 2**s2_bits)


class Kronos(PretrainedModule):
    """Decoder-only transformer that predicts the next bar's coarse token, then its fine token.

    The arguments are the keys of a checkpoint's ``config.json``.
    """

    checkpoint_part = "model"

    def __init__(
        self,
        s1_bits: int,
        s2_bits: int,
        n_layers: int,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        ffn_dropout_p: float,
        attn_dropout_p: float,
        resid_dropout_p: float,
        token_dropout_p: float,
        learn_te: bool,
    ) -> None:
        super().__init__()
        self.s1_bits, self.s2_bits = s1_bits, s2_bits
        self.d_model = d_model
        self.embedding = TokenEmbedding(s1_bits, s2_bits, d_model)
        self.time_emb = TimeEmbedding(d_model, learn_te)
        self.token_drop = nn.Dropout(token_dropout_p)
        shape = (d_model, n_heads, ff_dim, ffn_dropout_p, attn_dropout_p, resid_dropout_p)
        self.transformer = nn.ModuleList(TransformerBlock(*shape) for _ in range(n_layers))
        self.norm = RMSNorm(d_model)
        self.dep_layer = DependencyAwareLayer(d_model)
        self.head = DualHead(s1_bits, s2_bits, d_model)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding) and module.weight.requires_grad:
            nn.init.normal_(module.weight, std=self.d_model**-0.5)

    def embed(self, s1: Tensor, s2: Tensor, stamp: Tensor | None = None) -> Tensor:
        """Tokens (B, T) and stamps (B, T, 5) → the first block's input (B, T, d_model)."""
        x: Tensor = self.embedding(s1, s2)
        return x if stamp is None else x + self.time_emb(stamp)

    def _context(self, s1: Tensor, s2: Tensor, stamp: Tensor | None) -> Tensor:
        x = self.token_drop(self.embed(s1, s2, stamp))
        for block in self.transformer:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(
        self,
        s1: Tensor,
        s2: Tensor,
        stamp: Tensor | None = None,
        use_teacher_forcing: bool = False,
        s1_targets: Tensor | None = None,
        num_targets: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The training pass: logits of s1 and s2, each (B, T, vocabulary), causal in eval mode too.

        The sibling is sampled from the model's own s1 distribution (one draw a bar from torch's
        default generator), or is ``s1_targets`` under teacher forcing.

        ``num_targets`` limits the logits to the last positions and computes them as in decoding, without
        rotation in the dependency-aware layer. Before these positions the sibling is ``s1_targets``.
        """
        first = 0 if num_targets is None else s1.shape[1] - num_targets
        if s1_targets is None and (use_teacher_forcing or first):
            raise ValueError("teacher forcing and num_targets need s1_targets")
        context = self._context(s1, s2, stamp)
        s1_logits = self.head.proj_s1(context[:, first:])
        if use_teacher_forcing:
            sibling = s1_targets
        else:
            # The same draws as torch.multinomial, number by number on the CPU. If a logit is not finite,
            # multinomial ends the process's use of a GPU; here only the loss shows it.
            probabilities = s1_logits.detach().softmax(-1)
            sibling = (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)
            if s1_targets is not None:
                sibling = torch.cat((s1_targets[:, :first], sibling), dim=1)
        informed = self.dep_layer(context, self.embedding.emb_s1(sibling), is_rotated=num_targets is None)
        return s1_logits, self.head.proj_s2(informed[:, first:])

    def decode_s1(self, s1: Tensor, s2: Tensor, stamp: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of s1 (B, T, vocabulary) and the context (B, T, d_model)."""
        context = self._context(s1, s2, stamp)
        return self.head.proj_s1(context), context

    def decode_s2(self, context: Tensor, s1: Tensor) -> Tensor:
        """Logits of s2 given the chosen s1 (B, 1): (B, T, vocabulary). Only the last row has meaning."""
        return self.head.proj_s2(self.dep_layer.decode(context, self.embedding.emb_s1(s1)))  # type: ignore[no-any-return]


def token_loss(
    s1_logits: Tensor, s2_logits: Tensor, s1_targets: Tensor, s2_targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, s1 and s2 cross-entropy of logits (B, T, vocabulary) against targets (B, T)."""
    s1_loss = F.cross_entropy(s1_logits.flatten(0, 1), s1_targets.flatten())
    s2_loss = F.cross_entropy(s2_logits.flatten(0, 1), s2_targets.flatten())
    return (s1_loss + s2_loss) / 2, s1_loss, s2_loss
