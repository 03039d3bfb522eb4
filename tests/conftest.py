"""Fixtures that any test may use."""

import functools
import inspect
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

# The tests' models are tiny, and OpenMP's threads wait for each other by spinning: on a busy machine two
# take many times as long as one. Child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def no_cuda_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make every call into CUDA raise, and fail the test if there was one whose error was swallowed.

    Gives the list of the calls made so far.
    """
    import torch

    called: list[str] = []

    def refuse(name: str, *_args: object, **_kwargs: object) -> NoReturn:
        called.append(name)
        raise AssertionError(f"{name} was called on a path that must not touch CUDA")

    for module, prefix in ((torch.cuda, ""), (torch.accelerator, ""), (torch._C, "_cuda_")):
        for name, value in list(vars(module).items()):
            refusal = functools.partial(refuse, f"{module.__name__}.{name}")
            if name.startswith(prefix) and inspect.isroutine(value):
                monkeypatch.setattr(module, name, refusal)
            elif inspect.isclass(value) and value.__module__.startswith("torch.cuda."):
                # The class itself stays, for the isinstance checks that PyTorch makes on the CPU too.
                for constructor in {"__new__", "__init__"} & vars(value).keys():
                    monkeypatch.setattr(value, constructor, refusal)
    yield called
    assert called == []
