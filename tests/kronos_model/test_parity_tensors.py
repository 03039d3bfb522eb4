"""Every tensor that the reference computed, from the same checkpoint and the same inputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kronos_model.model import Kronos, token_loss
from kronos_model.tokenizer import KronosTokenizer

PARITY = Path(__file__).parents[1] / "data" / "parity" / "a"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in np.load(PARITY / "modules.npz").items()}


@pytest.fixture
def tokenizer() -> KronosTokenizer:
    return KronosTokenizer.from_pretrained(PARITY / "tokenizer")


@pytest.fixture
def model() -> Kronos:
    return Kronos.from_pretrained(PARITY / "model")


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-5 of the largest value: a single element near zero has no relative precision of its own."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()


@torch.inference_mode()
def test_encode_gives_the_reference_tokens(tokenizer, reference):
    s1, s2 = tokenizer.encode(reference["tok_x"])
    assert torch.equal(s1, reference["tok_s1"])
    assert torch.equal(s2, reference["tok_s2"])
    assert torch.equal(tokenizer.encode(reference["tok_x"], half=False), reference["tok_full"])


@torch.inference_mode()
def test_decode_gives_the_reference_bars_from_half_and_full_indices(tokenizer, reference):
    halves = tokenizer.decode((reference["tok_s1"], reference["tok_s2"]))
    assert_equal(halves, reference["tok_decode"])
    assert torch.equal(tokenizer.decode(reference["tok_full"], half=False), halves)


def test_tokenizer_training_pass_equals_the_reference(tokenizer, reference):
    (coarse, full), loss, quantized, indices = tokenizer(reference["tok_x"])
    assert_equal(coarse, reference["tok_z_pre"])
    assert_equal(full, reference["tok_z"])
    assert_equal(loss, reference["tok_bsq_loss"])
    assert_equal(quantized, reference["tok_quantized"])
    assert torch.equal(indices, reference["tok_full"])


@torch.inference_mode()
def test_decoding_logits_and_context_equal_the_reference(model, reference):
    s1_logits, context = model.decode_s1(reference["tok_s1"], reference["tok_s2"], reference["stamp"])
    assert_equal(s1_logits, reference["s1_logits"])
    assert_equal(context, reference["context"])
    s2_logits = model.decode_s2(context, reference["s1_pick"])
    assert_equal(s2_logits[:, -1], reference["s2_logits"][:, -1])


def without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module.train()


def training_inputs(reference: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    s1, s2, stamp = reference["tok_s1"], reference["tok_s2"], reference["stamp"]
    return (s1[:, :-1], s2[:, :-1], stamp[:, :-1]), (s1[:, 1:], s2[:, 1:])


def test_teacher_forced_training_pass_equals_the_reference(model, reference):
    inputs, targets = training_inputs(reference)
    s1_logits, s2_logits = without_dropout(model)(*inputs, use_teacher_forcing=True, s1_targets=targets[0])
    assert_equal(s1_logits, reference["teacher_forced_s1_logits"])
    assert_equal(s2_logits, reference["teacher_forced_s2_logits"])
    loss = torch.stack(token_loss(s1_logits, s2_logits, *targets))
    assert_equal(loss, reference["teacher_forced_loss"])


def test_sampled_sibling_equals_the_reference_under_its_seed(model, reference):
    inputs, _ = training_inputs(reference)
    torch.manual_seed(json.loads((PARITY / "cases.json").read_text())["sampled_sibling_seed"])
    _, s2_logits = without_dropout(model)(*inputs)
    assert_equal(s2_logits, reference["sampled_sibling_s2_logits"])


def test_the_forward_pass_is_causal_in_eval_mode_too(model, reference):
    inputs, targets = training_inputs(reference)
    changed = targets[0].clone()
    changed[:, -1] = (changed[:, -1] + 1) % 2**model.s1_bits
    model.eval()
    before = model(*inputs, use_teacher_forcing=True, s1_targets=targets[0])[1]
    after = model(*inputs, use_teacher_forcing=True, s1_targets=changed)[1]
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])
