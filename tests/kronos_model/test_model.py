"""Parts that the reference's data does not cover: fixed time tables, initialisation, both attentions."""

import math

import pytest
import torch

from kronos_model.layers import RMSNorm
from kronos_model.model import Kronos

SHAPE = {"s1_bits": 5, "s2_bits": 4, "n_layers": 2, "d_model": 32, "n_heads": 2, "ff_dim": 48}
NO_DROPOUT = {"ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0, "token_dropout_p": 0.0}


def make(learn_te: bool = True) -> Kronos:
    torch.manual_seed(0)
    return Kronos(**SHAPE, **NO_DROPOUT, learn_te=learn_te)


def test_fixed_time_tables_are_sinusoids_that_are_stored_and_not_trained():
    model = make(learn_te=False)
    table = model.state_dict()["time_emb.minute_embed.emb.weight"]
    assert table.shape == (60, 32)
    for position, pair in ((0, 0), (7, 3), (59, 15)):
        angle = position * 10_000 ** (-2 * pair / 32)
        assert table[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-5)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("time_emb") for name in trained)
    assert not any(name.startswith("time_emb") and ".emb." in name for name in make().state_dict())


def test_initialisation_from_scratch():
    model = make()
    assert all((block.norm1.weight == 1).all() for block in model.transformer)
    assert (model.head.proj_s1.bias == 0).all()
    assert model.embedding.emb_s1.weight.detach().std() == pytest.approx(32**-0.5, rel=0.1)
    fused = model.embedding.fusion_proj.weight.detach()  # Xavier normal: std² = 2 / (fan_in + fan_out)
    assert fused.std() == pytest.approx(math.sqrt(2 / (64 + 32)), rel=0.1)


def test_norm_is_computed_in_float32_for_any_type():
    x = torch.tensor([[300.0, 400.0]], dtype=torch.float16)  # their squares overflow float16
    root_mean_square = math.sqrt((300**2 + 400**2) / 2)
    normed = RMSNorm(2).half()(x)
    assert normed.dtype == torch.float16
    assert normed[0].tolist() == pytest.approx([300 / root_mean_square, 400 / root_mean_square], rel=1e-3)


@torch.inference_mode()
def test_decoding_sees_the_whole_context_and_training_only_the_past():
    model = make().eval()
    tokens = torch.randint(16, (2, 1, 6))
    stamp = torch.zeros(1, 6, 5, dtype=torch.long)
    _, context = model.decode_s1(tokens[0], tokens[1], stamp)
    sibling = torch.tensor([[3]])
    newest = model.decode_s2(context, sibling)[:, -1]
    changed = context.clone()
    changed[:, 0] += 1
    assert not torch.allclose(model.decode_s2(changed, sibling)[:, -1], newest)
    # One query attends unrotated: the order of earlier bars does not matter.
    shuffled = torch.cat((context[:, :-1].flip(1), context[:, -1:]), dim=1)
    assert torch.allclose(model.decode_s2(shuffled, sibling)[:, -1], newest, atol=1e-5)


@pytest.mark.parametrize("use_teacher_forcing", [True, False])
@torch.inference_mode()
def test_the_last_targets_are_trained_as_they_are_decoded(use_teacher_forcing):
    model, num_targets = make(), 3
    s1, s2, targets = (torch.randint(16, (2, 7)) for _ in range(3))
    stamp = torch.zeros(2, 7, 5, dtype=torch.long)
    # A coarse token that is certain is also the one that is sampled.
    model.head.proj_s1.bias[5] = 100
    targets[:, -num_targets:] = 5

    logits = model(s1, s2, stamp, use_teacher_forcing, targets, num_targets)

    assert logits[0].shape == (2, num_targets, 2**5)
    for step in range(num_targets):
        end = 7 - num_targets + 1 + step
        s1_logits, context = model.decode_s1(s1[:, :end], s2[:, :end], stamp[:, :end])
        decoded = s1_logits[:, -1], model.decode_s2(context, targets[:, end - 1 : end])[:, -1]
        for ours, theirs in zip(logits, decoded, strict=True):
            torch.testing.assert_close(ours[:, step], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"num_targets": 2}, {"use_teacher_forcing": True}])
def test_limited_targets_and_teacher_forcing_need_the_tokens(options):
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="s1_targets"):
        make()(tokens, tokens, **options)
