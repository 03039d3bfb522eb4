"""Copies from the host to a device: as few as there are types of tensors."""

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = TypeVar("Tree")


def joined(arrays: Iterable[NDArray[Any]], *width: int, dtype: DTypeLike = np.int64) -> Tensor:
    """Any number of arrays (n, *width) as one tensor in the host's memory."""
    return torch.from_numpy(np.concatenate([np.empty((0, *width), dtype=dtype), *arrays]))


def to_device(tree: Tree, device: torch.device) -> Tree:
    """The same nested tuples with their tensors on the device, where those of a type lie in one memory."""
    if device.type == "cpu":
        return tree
    leaves, structure = pytree.tree_flatten(tree)
    moved: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [place for place, leaf in enumerate(leaves) if leaf.dtype is dtype]
        flat = torch.cat([leaves[place].flatten() for place in places])
        if not len(flat):
            flat = flat.new_empty(0, device=device)
        elif device.type == "cuda":  # only there PyTorch keeps pinned memory until it is copied
            flat = flat.pin_memory().to(device, non_blocking=True)
        else:
            flat = flat.to(device)
        parts = torch.split(flat, [leaves[place].numel() for place in places])
        moved |= {place: part.view(leaves[place].shape) for place, part in zip(places, parts, strict=True)}
    result: Tree = pytree.tree_unflatten([moved[place] for place in range(len(leaves))], structure)
    return result
