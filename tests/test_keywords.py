"""The keywords of linear attention are typed once; functions that take them show them all."""

import inspect

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick.attention import _keywords
from kerneltrick.attention._keywords import AttentionKeywords, LinearAttentionKeywords, Options


def keyword_defaults(function):
    found = inspect.signature(function).parameters.values()
    return {x.name: x.default for x in found if x.kind is x.KEYWORD_ONLY}


def test_linear_attention_has_the_keywords_that_are_typed_and_return_state():
    shown = keyword_defaults(kt.linear_attention)
    assert {*shown} - {"return_state"} == {*LinearAttentionKeywords.__annotations__}


def test_the_types_are_those_of_the_signature():
    shown = inspect.signature(kt.linear_attention).parameters
    for name, kind in LinearAttentionKeywords.__annotations__.items():
        assert shown[name].annotation == kind.__forward_arg__, name


def test_options_have_the_same_defaults():
    shown = keyword_defaults(kt.linear_attention)
    defaults = Options._field_defaults
    assert {*defaults} == {*shown} - {"engine"}
    assert {name: defaults[name] for name in shown if name not in ("engine", "return_state")} == {
        name: x for name, x in shown.items() if name not in ("engine", "return_state")
    }


def test_weights_and_ranks_show_the_keywords_of_linear_attention():
    distributed = pytest.importorskip("kerneltrick.torch.distributed")
    shown = keyword_defaults(kt.linear_attention)
    weights = {name: shown[name] for name in AttentionKeywords.__annotations__}
    assert keyword_defaults(kt.attention_weights) == {"rows": None, **weights}
    assert keyword_defaults(distributed.linear_attention) == {"group": None, **shown}


def test_other_keywords_are_refused_by_name():
    x = np.ones((3, 2))
    for name in ("chunk_size", "return_state", "colour"):
        with pytest.raises(TypeError, match=rf"attention_weights\(\) got .* '{name}'"):
            kt.attention_weights(x, x, "elu", **{name: 1})
    assert _keywords.read_options("f", {"causal": True}, AttentionKeywords) == Options(causal=True)
