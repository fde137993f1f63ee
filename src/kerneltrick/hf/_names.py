"""Names of attention functions: `attn_implementation="kerneltrick:MAP@window=…"` in transformers.

transformers looks attention functions up by name, in two tables that anybody can add to: one for
the functions, one for their masks. A name must be in both before a model is built. Models do not
ask us when they are built, and a few pick their attention from a table of their own, so the one
method that checks the name for every model, `PreTrainedModel.get_correct_attn_implementation`,
is wrapped: it compares the name with a list of registered ones, and has no hook for a prefix. It is
wrapped when the first name is added, not before. The wrapper acts on our names only, and
`unregister` removes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from kerneltrick import maps
from kerneltrick.attention import Dial
from kerneltrick.hf._attend import replacement_attention
from kerneltrick.hf._mask import AttentionError, make_mask
from kerneltrick.maps import is_ours

FAMILY = "kerneltrick"  # every name of ours begins with it
PREFIX = f"{FAMILY}:"  # the text of a dial follows


def register(setting: str | maps.FeatureMap | Dial) -> str:
    """Register a feature map as an attention function of transformers, and return its name.

    Pass the name as `attn_implementation`. After the first call, names of other settings can also
    be typed without calling this function: "kerneltrick:" followed by the text of the setting.

    Any model that uses transformers' attention interface accepts the name: encoders and decoders,
    with padding on either side, packed sequences and grouped queries. Nothing is trained. Models
    that do not use the interface raise `AttentionError` when they are built. Layers that do not
    compute softmax(s·QKᵀ)V (position biases, sliding windows, capped scores) and cross-attention
    raise it when they run.

    setting: the feature map, with its window. It can be a text such as
        "taylor:order=2@window=64,sinks=4", a `FeatureMap` or a `Dial`. "softmax" computes the
        attention that the model was trained with, using the compiled core.

    >>> import torch, transformers, kerneltrick.hf
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2,
    ... )
    >>> name = kerneltrick.hf.register("taylor:order=2@window=64,sinks=4")
    >>> name
    'kerneltrick:taylor:order=2@window=64,sinks=4'
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name)
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 50])
    """
    dial = Dial.get(setting)
    if not is_ours(dial.feature_map):
        raise TypeError(
            f"register needs a map that its text describes, such as 'elu', not {dial.feature_map}"
        )
    name = f"{PREFIX}{dial}"
    register_choice(name, lambda where, module: dial)
    return name


def register_choice(name: str, choose: Callable[[str, Any], Dial]) -> None:
    """Register a name whose dial depends on the layer: `choose(name of the layer, module)`."""
    add_function(name, functools.partial(replacement_attention, choose), make_mask)


def add_function(name: str, attend: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Add a name with its two functions to transformers, which asks us about our names from now on.

    A name without a mask function of its own would get no mask at all, not even a causal one.
    """
    _watch_names()
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def _check_routed(kind: type[Any]) -> None:
    """Raise AttentionError if a model of transformers never looks its attention function up."""
    ours = kind.__module__.startswith("transformers.")  # others' source may not be readable
    if ours and not kind._can_set_attn_implementation():
        raise AttentionError(
            f"{kind.__name__} does not route its attention through transformers' attention "
            "interface, so its attention cannot be replaced or captured. Load it without "
            'attn_implementation="kerneltrick…", or use a model that does, such as BERT, GPT-2, '
            "GPT-NeoX, Llama, OPT, Phi or Qwen"
        )


def unregister() -> None:
    """Forget all names of ours, and give transformers back its own check of names.

    This undoes what `register`, `capture`, `linearize` and loading a linearised model do to
    transformers, until one of them is called again. Models that were built with one of our names,
    linearised ones too, no longer run in this process.

    >>> import transformers, kerneltrick.hf
    >>> name = kerneltrick.hf.register("elu")
    >>> kerneltrick.hf.unregister()  # doctest: +SKIP
    >>> name in transformers.AttentionInterface()  # doctest: +SKIP
    False
    """
    for table in (AttentionInterface, AttentionMaskInterface):
        for name in [x for x in table._global_mapping if x.startswith(FAMILY)]:
            del table._global_mapping[name]
    check = transformers.PreTrainedModel.get_correct_attn_implementation
    if hasattr(check, "kerneltrick"):
        transformers.PreTrainedModel.get_correct_attn_implementation = check.__wrapped__


def _watch_names() -> None:
    """Let transformers know our names when it checks a model's `attn_implementation`."""
    check = transformers.PreTrainedModel.get_correct_attn_implementation
    if getattr(check, "kerneltrick", None) is _check_routed:
        return
    if hasattr(check, "kerneltrick"):  # this module was loaded again
        check = check.__wrapped__

    @functools.wraps(check)
    def checked(model: Any, requested: str | None, *more: Any, **keywords: Any) -> Any:
        if isinstance(requested, str) and requested.startswith(FAMILY):
            _check_routed(type(model))
            if requested.startswith(PREFIX) and requested not in AttentionInterface():
                dial = Dial.get(requested.removeprefix(PREFIX))
                register_choice(requested, lambda where, module: dial)
        return check(model, requested, *more, **keywords)

    checked.kerneltrick = _check_routed  # type: ignore[attr-defined]
    transformers.PreTrainedModel.get_correct_attn_implementation = checked
