"""On the CPU a cache takes memory as it is written to."""

import psutil
import pytest
import torch

from kronos_model.engine.transformer.kv_cache import KVCache

CPU, MIB = torch.device("cpu"), 2**20


def test_what_is_written_takes_memory():
    before = psutil.Process().memory_info().rss
    cache = KVCache(16, 128, 8, 512, 64, device=CPU)  # 4 GiB: 16 MiB for each slot
    cache.k[:, ::2, 0, 0] = 1  # in each part of 2 MiB
    assert psutil.Process().memory_info().rss - before < 64 * MIB
    assert cache.k[3, 2, 0, 0].eq(1).all()
    assert not cache.k[3, 1].any()


def test_a_cache_that_is_larger_than_any_memory_is_out_of_memory():
    with pytest.raises(MemoryError, match="bytes of keys or values"):
        KVCache(1, 2**30, 8, 2**14, 64, device=CPU)


def test_a_cache_without_bars_is_empty():
    assert KVCache(4, 1, 2, 0, 8, device=CPU).k.numel() == 0
