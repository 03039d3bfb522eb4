"""Weights as the kernels read them: in panels of 32 outputs."""

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.native.layout import LAYER, WEIGHTS
from kronos_model.engine.native.products import PANEL, WIDTH
from kronos_model.engine.native.vectors import LANES
from kronos_model.engine.transformer.linear import Affine
from kronos_model.engine.transformer.network import BlockWeights, DependencyWeights
from kronos_model.layers import Rotary, TransformerBlock
from kronos_model.model import Kronos


class NativeWeights:
    """All weights of a model, held in this object's memory, and their ``addresses`` by name.

    Args:
        table: of the embedding.
        head_dim: of the dependency-aware layer's cache.
        num_positions: of the table by which queries and keys are turned.
        dtype: of the weights in panels, float32 or bfloat16; all else is float32.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Kronos, table: Tensor, *, head_dim: int, num_positions: int, dtype: torch.dtype
    ) -> None:
        self._dtype = dtype
        self._held: list[NDArray[Any]] = []
        layers = np.zeros(len(model.transformer), LAYER)
        for layer, block in zip(layers, model.transformer, strict=True):
            weights = BlockWeights.from_block(cast(TransformerBlock, block))
            q = weights.q.times(1 / math.sqrt(weights.heads[1]))  # the scale of scores
            layer["qkv"], layer["qkv_bias"] = self._matrix(q, weights.k, weights.v)
            layer["attention_out"], layer["attention_out_bias"] = self._matrix(weights.out)
            parts = [torch.unflatten(part.weight, 0, (-1, LANES)) for part in (weights.w1, weights.w3)]
            layer["gate"], _ = self._matrix(Affine(torch.stack(parts, dim=1).flatten(0, 2), None))
            layer["ffn_out"], layer["ffn_out_bias"] = self._matrix(weights.w2)
        dependency = DependencyWeights.from_model(model, head_dim)
        s2_head = Affine.from_linear(model.head.proj_s2).after_scale(dependency.norm_scale)
        rotary = cast(TransformerBlock, model.transformer[0]).self_attn.rotary
        matrices = {
            "s1_head": self._matrix(Affine.from_linear(model.head.proj_s1)),
            "dependency_kv": self._matrix(dependency.k, dependency.v),
            "dependency_out": self._matrix(dependency.out),
            "s2_head": self._matrix(s2_head),
        }
        self.addresses = {
            "embedding": self._hold(table.numpy()),
            "turns": self._hold(turns(rotary, weights.heads[1], num_positions)),
            "layers": self._hold(layers),
            "norm": self._hold(model.norm.weight.detach().numpy().copy()),
            "queries": self._hold((dependency.queries / math.sqrt(head_dim)).numpy()),
            "ones": self._hold(np.ones(model.d_model, np.float32)),
            **{name: panels for name, (panels, _) in matrices.items()},
            **{f"{name}_bias": bias for name, (_, bias) in matrices.items()},
        }
        assert self.addresses.keys() == set(WEIGHTS)

    def _matrix(self, *layers: Affine) -> tuple[int, int]:
        """The addresses of one matrix for several layers of the same input, and of its bias."""
        weight = torch.cat([layer.weight for layer in layers])
        missing = -len(weight) % PANEL
        weight = torch.cat((weight, weight.new_zeros(missing, weight.shape[1])))
        parts = torch.unflatten(
            weight, 0, (-1, 2 // WIDTH, WIDTH * LANES)
        )  # (panels, halves, outputs, inputs)
        panels = parts.transpose(2, 3).to(self._dtype).contiguous()
        if self._dtype is torch.bfloat16:
            panels = panels.view(torch.uint16)
        bias = np.zeros(len(weight), np.float32)
        if layers[0].bias is not None:
            bias[: len(weight) - missing] = torch.cat([cast(Tensor, layer.bias) for layer in layers]).numpy()
        return self._hold(panels.numpy()), self._hold(bias)

    def _hold(self, array: NDArray[Any]) -> int:
        self._held.append(array)
        return array.ctypes.data


def turns(rotary: Rotary, head_dim: int, num_positions: int) -> NDArray[np.float32]:
    """By position, for halves side by side: the cosines, then the sines by which neighbours are added."""
    cos, sin = rotary.tables(num_positions)
    size = cos.shape[1]
    table = np.zeros((num_positions, 2, head_dim), np.float32)
    table[:, 0, :size] = cos[:, : size // 2].repeat_interleave(2, dim=1).numpy()
    table[:, 1, :size:2] = -sin[:, : size // 2].numpy()
    table[:, 1, 1:size:2] = sin[:, : size // 2].numpy()
    return table
