"""KronosTokenizer: scaled bars to pairs of tokens and back."""

from torch import Tensor, nn

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.layers import TransformerBlock
from kronos_model.quantizer import BinarySphericalQuantizer, TokenQuantizer

Tokens = tuple[Tensor, Tensor]
"""Coarse and fine tokens s1 and s2, each (B, T) int64."""


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
