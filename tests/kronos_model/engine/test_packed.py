"""Packed runs give each row the attention to its own window, and little of it is computed for nothing."""

import pytest
import torch
from torch.nn import functional as F

from kronos_model.engine.prefill import packed as packed_module
from kronos_model.engine.prefill.packed import MAX_KEYS, FlatSegment, PackedPlan, PackedSegment, group_spans
from kronos_model.engine.transformer.kv_cache import KVCache, PathsSegment, PromptSegment, RowSpan

HEADS = 2
SPANS = [
    RowSpan(0, 5, ((0, 0, 5),)),
    RowSpan(5, 3, ((0, 0, 5), (0, 5, 8))),
    RowSpan(8, 40, ((0, 8, 48),)),
    RowSpan(48, 1, ((0, 48, 49),)),
]


@pytest.fixture(params=[2, 512])
def max_rows(request, monkeypatch) -> None:
    monkeypatch.setattr(packed_module, "MAX_ROWS", request.param)


@pytest.fixture(params=[8, 12])
def qkv(request) -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 49, HEADS, request.param, generator=torch.Generator().manual_seed(0)).unbind()


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Of one row (H, hd) to keys (m, H, hd)."""
    return F.scaled_dot_product_attention(
        *(x.unsqueeze(0).transpose(1, 2) for x in (q.unsqueeze(0), keys, values))
    )[0, :, 0]


def test_each_row_sees_its_run_up_to_itself(max_rows, qkv):
    q, k, v = qkv
    mixed = FlatSegment(PackedPlan.from_row_spans(SPANS), torch.float32).attend(None, 0, q, k, v)
    for span in SPANS:
        rows = torch.cat([torch.arange(first, last) for _, first, last in span.seen])
        for row in range(span.num_rows):
            seen = rows[: span.num_keys - span.num_rows + row + 1]
            expected = attention(q[span.first_row + row], k[seen], v[seen])
            torch.testing.assert_close(mixed[span.first_row + row], expected)


def test_packed_segments_write_and_return_what_they_do_one_by_one(max_rows, qkv):
    segments = [PromptSegment(0, 0, 9), PromptSegment(1, 4, 24), PathsSegment(2, 10, 1, (0, 3), (2, 5), 1)]
    mixed, caches = [], []
    for kind in ("packed", "one by one"):
        cache = KVCache(1, 6, HEADS, 32, qkv[0].shape[-1], device=torch.device("cpu"))
        cache.k.normal_(generator=torch.Generator().manual_seed(1))
        cache.v.normal_(generator=torch.Generator().manual_seed(2))
        if kind == "packed":
            packed = PackedSegment(PackedPlan.from_segments(segments), torch.float32)
            mixed.append(packed.attend(cache, 0, *qkv))
        else:
            split = zip(segments, *(x.split([9, 20, 20]) for x in qkv), strict=True)
            mixed.append(torch.cat([segment.attend(cache, 0, *parts) for segment, *parts in split]))
        caches.append(cache)
    torch.testing.assert_close(*mixed)
    assert torch.equal(caches[0].k, caches[1].k)
    assert torch.equal(caches[0].v, caches[1].v)


@pytest.mark.parametrize(
    ("sizes", "most_groups"),
    [([400] * 20, 1), ([40] * 200 + [4096], 10), ([1] * 512, 1), (range(1, 512), 12), ([8192], 16)],
)
def test_runs_of_like_size_are_one_group_and_padding_at_most_doubles_the_work(sizes, most_groups):
    groups = group_spans([RowSpan(0, size, ((0, 0, size),)) for size in sizes])
    assert len(groups) <= most_groups
    assert sum(span.num_rows for group in groups for span in group) == sum(sizes)
    for group in groups:
        padded = len(group) * max(span.num_rows for span in group) * max(span.num_keys for span in group)
        scores = sum(span.num_rows * span.num_keys for span in group)
        assert padded <= max(2 * scores, scores + packed_module.MAX_WASTED_SCORES)
        assert padded <= packed_module.MAX_SCORES


def test_paths_that_read_a_long_prompt_each_are_not_all_in_one_group():
    """Their keys are copied, the prompt's once for each path."""
    spans = [RowSpan(16 * path, 16, ((600, 0, 496), (path, 0, 16))) for path in range(512)]
    groups = group_spans(spans)
    assert sorted(span.first_row for group in groups for span in group) == [span.first_row for span in spans]
    assert [sum(span.num_keys for span in group) for group in groups] == [MAX_KEYS] * 4
