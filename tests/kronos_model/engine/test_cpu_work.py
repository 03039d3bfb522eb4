"""How many operations a decode step of one path calls on the CPU, where each costs microseconds."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.support.workload import random_pair, series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.transformer import linear


class Calls(TorchDispatchMode):
    """Counts operations by name, and views of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.num_views = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with self:
            decomposed = func.decompose(*args, **(kwargs or {}))
        if decomposed is not NotImplemented:
            return decomposed
        if func.is_view:
            self.num_views += 1
        else:
            self.operations[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 220), (torch.bfloat16, 275)])
def test_a_decode_step_of_one_path(dtype, most):
    if linear._reorder(torch.ones(1, 1), 1) is None:
        pytest.skip("PyTorch was built without oneDNN: run it on x86-64")
    engine = build_engine(*random_pair("small"), max_context=64, max_slots=2, dtype=dtype)
    engine.submit(series_request(0, 40, 10))
    for _ in range(4):
        engine.step()
    with Calls() as calls:
        engine.step()
    assert calls.operations.total() <= most
    assert calls.num_views <= 135
