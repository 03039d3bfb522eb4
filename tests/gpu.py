"""The machine's GPUs, for tests that need one. Only these tests import torch through here."""

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@functools.cache
def why_absent() -> str | None:
    """Why PyTorch can use no GPU here; None if it can."""
    import torch

    from kronos_model.devices.probe import TorchProbe

    failure = TorchProbe().failure(torch.device("cuda", 0))
    return None if failure is None else f"{TorchProbe().platform('cuda')} is {failure}"


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def descriptions() -> Iterator[str]:
    """One line a GPU, with its memory and the versions."""
    import torch

    from kronos_model.devices.resolution import describe_device

    for index in range(num_gpus()):
        one = describe_device(torch.device("cuda", index))
        memory = f"{(one.memory_total_bytes or 0) / 2**30:.0f} GiB"
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items() if version)
        yield f"cuda:{index}: {one.name}, {memory}, {versions}"


@contextmanager
def computing_on(index: int) -> Iterator[None]:
    """Fail if what runs meanwhile allocates nothing on this GPU, or anything on another."""
    import torch

    torch.cuda.init()
    gc.collect()  # what an earlier test left must not be freed meanwhile
    before = {one: torch.cuda.memory_allocated(one) for one in range(num_gpus())}
    for one in before:
        torch.cuda.reset_peak_memory_stats(one)
    yield
    used = [one for one, num_bytes in before.items() if torch.cuda.max_memory_allocated(one) > num_bytes]
    assert used == [index], f"computed on the GPUs {used}"
