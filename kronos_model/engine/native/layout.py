"""What the kernels are given, as records: a job for all threads, its rows, and the weights of a layer.

Fields that are named for a tensor hold its address.
"""

import numpy as np

INT64 = np.int64

ROW = np.dtype(
    [
        ("s1", INT64),  # rows of the embedding's table
        ("s2", INT64),
        ("clock", INT64),
        ("date", INT64),
        ("position", INT64),  # in the window
        ("slot", INT64),  # where its keys and values go, and which own bars it sees
        ("bar", INT64),
        ("own_first", INT64),  # own bars that it sees
        ("own_last", INT64),
        ("shared_slot", INT64),  # bars that it sees of a slot that other rows see too
        ("shared_first", INT64),
        ("shared_last", INT64),
    ]
)
"""The newest bar of a path, or a bar of a lookback."""

LAYER_WEIGHTS = ["qkv", "qkv_bias", "attention_out", "attention_out_bias", "gate", "ffn_out", "ffn_out_bias"]
LAYER = np.dtype([(name, INT64) for name in LAYER_WEIGHTS])
"""``gate`` has 16 outputs of w1, then 16 of w3, and so on."""

CACHE = np.dtype([(name, INT64) for name in ["k", "v", "num_slots", "num_heads", "num_bars", "head_dim"]])
"""Keys and values (layers, slots, heads, bars, head_dim), the last two multiples of 16."""

NUMBERS = ("task", "num_threads", "num_rows", "num_groups", "num_layers", "d_model", "d_ff")
WEIGHTS = [
    "embedding",
    "turns",
    "layers",
    "norm",
    "ones",
    "s1_head",
    "s1_head_bias",
    "s2_head",
    "s2_head_bias",
    "dependency_kv",
    "dependency_kv_bias",
    "dependency_out",
    "dependency_out_bias",
    "queries",
]
ROWS = ["x", "q", "mixed", "hidden", "context"]
BUFFERS = [*ROWS, "logits", "s1", "rows", "groups", "counters", "scratch"]
SIZES = ["s1_outputs", "s2_outputs", "scratch_floats"]

JOB = np.dtype(
    [
        *((name, INT64) for name in (*NUMBERS, *WEIGHTS, *BUFFERS, *SIZES)),
        ("blocks", CACHE),
        ("dependency", CACHE),
        ("epsilon", np.float32),  # of the norms
    ]
)
"""``x``, ``context``, ``q``, ``mixed`` and ``hidden`` have rows of ``ROW_SIZE``, ``logits`` of the number of
outputs; ``s1`` is (rows,), ``groups`` (groups, 2): the first row, and the one after the last. Numbers of
outputs are multiples of 32."""

FILL, TO_S1, TO_S2, STOP = range(4)
"""Tasks: put keys and values into the cache; the same, and the logits of s1; the logits of s2; end."""
