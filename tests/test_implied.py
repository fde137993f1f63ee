"""The weights that a mixer implies, times its values, are what its heads compute."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_mixers import NAMES, N, close, mixer, tokens  # noqa: E402
from torch.nn import functional  # noqa: E402

from kerneltrick.torch import Attention, HardAttention, mixers  # noqa: E402

ATTENTION = {
    "softmax": {"feature_map": "softmax"},
    "full softmax": {"feature_map": "softmax", "causal": False},
    "a map with a window and rotary": {"feature_map": "elu", "window": 7, "rotary": True},
    "grouped heads with sinks": {
        "feature_map": "softmax",
        "num_kv_heads": 1,
        "window": 5,
        "sinks": 2,
    },
}


def attention(**options):
    torch.manual_seed(0)
    return Attention(16, 2, output_norm=True, output_gate=True, **options).double()


def combined(module, x, o, **which):
    """What `forward` makes of the outputs of the heads."""
    told = {"mask": None, "key_padding_mask": None, "segment_ids": None, "cu_seqlens": None}
    given = module._check(x, None, **told | which)
    heads = module._heads(given, None)
    if o.shape[1] != module.num_heads or o.shape[-1] == 1:  # channels, not heads
        o = o[..., 0].mT
        o = o * functional.silu(heads.gate) if isinstance(module, mixers.Mamba) else o
    y = module._combine(heads, o)
    return y if given.mask is None else torch.where(given.mask[..., None], y, 0)


@pytest.mark.parametrize("name", [*NAMES, *ATTENTION])
def test_weights_times_values_are_the_output_before_norm_gate_and_projection(name):
    module = attention(**ATTENTION[name]) if name in ATTENTION else mixer(name)
    x = tokens(2, N)
    weights, values = module.weights(x)
    assert weights.shape[:1] + weights.shape[2:3] == (2, N)
    close(combined(module, x, weights @ values), module(x)[0])
    close(module.weights(x, rows=[3, -1]).weights, weights[:, :, [3, N - 1]])
    steps = values.shape[2] // N
    later = torch.ones(N, N).triu(1).repeat_interleave(steps, dim=1).bool()
    assert name == "full softmax" or not weights[..., later].any()


@pytest.mark.parametrize("name", [*NAMES, "softmax"])
def test_masked_tokens_have_no_weight_and_packed_texts_none_on_each_other(name):
    module = attention(**ATTENTION[name]) if name in ATTENTION else mixer(name)
    x, ids = tokens(2, 23), torch.tensor([0] * 9 + [4] + [0] * 13)
    mask = torch.ones(2, 23, dtype=torch.bool)
    mask[0, [2, 8, 10]] = mask[1, 0] = False
    which = {"mask": mask, "segment_ids": ids}
    weights, values = module.weights(x, **which)
    close(combined(module, x, weights @ values, **which), module(x, **which)[0])
    steps = values.shape[2] // 23
    assert not weights.transpose(0, 1)[:, ~mask].any()
    apart = (ids[:, None] != ids).repeat_interleave(steps, dim=1)
    assert not weights[..., apart].any()
    gone = (~mask).repeat_interleave(steps, dim=1)
    assert not weights.permute(1, 2, 0, 3)[:, :, gone].any()


@pytest.mark.parametrize("name", ["deltanet", "ssd", "rwkv", "mamba"])
def test_after_a_state_the_weights_are_those_of_the_whole_text_on_the_new_tokens(name):
    module, x = mixer(name), tokens(1, 30)
    _, state = module(x[:, :17])
    whole = module.weights(x).weights[:, :, 17:, 17:]
    close(module.weights(x[:, 17:], state).weights, whole)


def test_a_token_of_deltaproduct_has_a_column_for_each_step():
    torch.manual_seed(0)
    module = mixers.DeltaProduct(16, 2, steps=3).double()
    weights, values = module.weights(tokens(1, 11), rows=10)
    assert weights.shape == (1, 2, 1, 33)
    assert values.shape == (1, 2, 33, 8)


def test_the_weights_of_hyena_are_its_filter_and_those_of_mamba_decay_by_channel():
    module = mixer("hyena")
    weights = module.weights(tokens(1, 50), rows=49).weights[0, :, 0]
    taps = module.taps(50, torch.float64)
    close(weights, taps.flip(0).mT)
    assert not weights[:, :9].any()  # beyond the 40 taps of the filter
    assert mixer("mamba").weights(tokens(1, 50)).weights.shape == (1, 32, 50, 50)


def test_hard_attention_has_one_weight_of_one_in_each_row():
    torch.manual_seed(0)
    weights, values = HardAttention(16, 2).double().weights(tokens(1, 12), rows=[0, 11])
    assert (weights.sum(-1) == 1).all()
    assert ((weights == 0) | (weights == 1)).all()
    assert values.shape == (1, 2, 12, 8)


def test_rows_are_needed_for_long_texts_and_must_exist():
    module = mixer("retention")
    x = tokens(1, 4097)
    with pytest.raises(ValueError, match=r"select queries with rows=\[…\]"):
        module.weights(x)
    assert module.weights(x, rows=np.array([4096])).weights.shape == (1, 2, 1, 4097)
    with pytest.raises(IndexError, match="row 9 is outside the 5 queries"):
        module.weights(x[:, :5], rows=9)
