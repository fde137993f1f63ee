"""Mixers by name: `make("deltanet:head_dim=32", 64, 2)`."""

from __future__ import annotations

import inspect
from typing import Any

from kerneltrick import _text, maps
from kerneltrick.attention import Dial
from kerneltrick.torch._attention import Attention
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._mixer import Mixer
from kerneltrick.torch.mixers._based import Based
from kerneltrick.torch.mixers._comba import Comba
from kerneltrick.torch.mixers._delta_net import DeltaNet, GatedDeltaNet
from kerneltrick.torch.mixers._delta_product import DeltaProduct
from kerneltrick.torch.mixers._gated_delta_net_2 import GatedDeltaNet2
from kerneltrick.torch.mixers._gated_linear_attention import GatedLinearAttention
from kerneltrick.torch.mixers._hyena import Hyena
from kerneltrick.torch.mixers._kda import KDA
from kerneltrick.torch.mixers._mamba import Mamba
from kerneltrick.torch.mixers._mesa import Mesa
from kerneltrick.torch.mixers._power_retention import PowerRetention
from kerneltrick.torch.mixers._retention import Retention
from kerneltrick.torch.mixers._rwkv import RWKV
from kerneltrick.torch.mixers._rwkv7 import RWKV7
from kerneltrick.torch.mixers._ssd import SSD

MIXERS: dict[str, type[Mixer]] = {
    "based": Based,
    "retention": Retention,
    "mamba": Mamba,
    "ssd": SSD,
    "gla": GatedLinearAttention,
    "rwkv": RWKV,
    "power_retention": PowerRetention,
    "mesa": Mesa,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "kda": KDA,
    "gated_deltanet2": GatedDeltaNet2,
    "comba": Comba,
    "rwkv7": RWKV7,
    "deltaproduct": DeltaProduct,
    "hyena": Hyena,
}
PAPERS = {  # names that papers use
    "retnet": "retention",
    "mamba1": "mamba",
    "s6": "mamba",
    "mamba2": "ssd",
    "gatedlinearattention": "gla",
    "rwkv6": "rwkv",
    "gateddeltanet": "gated_deltanet",
    "powerattention": "power_retention",
    "powerretention": "power_retention",
    "mesanet": "mesa",
    "gdn": "gated_deltanet",
    "gdn2": "gated_deltanet2",
    "gateddeltanet2": "gated_deltanet2",
    "kimideltaattention": "kda",
    "deltarule": "deltanet",
    "lineartransformer": "elu",
    "performer": "favor",
    "attention": "softmax",
}


def make(
    mixer: str | Dial,
    hidden_size: int,
    num_heads: int,
    *,
    layer_idx: int | None = None,
    group: Any = None,
    **attention: Any,
) -> Mixer:
    """Make the mixer that a text `name:key=value,…` names, or `Attention` with the map it names.

    The weights of a map, and the gain of a window, are learned with the layer. `attention` holds
    options that only `Attention` takes, such as rotary. With a `group`, tokens are split over its
    ranks (`Attention.spread`).

    >>> make("deltanet:head_dim=16", 64, 2).extra_repr()
    '64, num_heads=2, head_dim=16, value_dim=16'
    >>> type(make("elu@window=16", 64, 2)).__name__
    'Attention'
    """
    if isinstance(mixer, str):
        name, given = _text.split("mixer", mixer.partition("@")[0])
        if name in MIXERS:
            if "@" in mixer:
                raise ValueError(f"{mixer!r}: only maps take a window, and {name} is not a map")
            return _build(name, given, hidden_size, num_heads, layer_idx, group)
        if name not in maps.names():
            told = _text.nearest(name, [*MIXERS, *maps.names()], PAPERS)
            raise ValueError(f"unknown mixer {name!r}; {told}")
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
    # A token whose weights are all 0, as can happen with relu, adds nothing.
    return Attention(
        hidden_size,
        num_heads,
        feature_map=_map(mixer, hidden_size // num_heads, num_heads),
        layer_idx=layer_idx,
        on_zero="zero",
        group=group,
        **attention,
    )


def _build(
    name: str,
    given: dict[str, str],
    hidden_size: int,
    num_heads: int,
    layer_idx: int | None,
    group: Any,
) -> Mixer:
    kind = MIXERS[name]
    known = [
        x.name
        for x in inspect.signature(kind).parameters.values()
        if x.kind is x.KEYWORD_ONLY and x.name not in ("layer_idx", "group")
    ]
    values: dict[str, int | bool] = {}
    for key, value in given.items():
        if key not in known:
            told = _text.nearest(key, known) if known else "it takes none"
            raise ValueError(f"{name} has no parameter {key!r}; {told}")
        if value.lower() in ("true", "false"):
            values[key] = value.lower() == "true"
        else:
            try:
                values[key] = int(value)
            except ValueError:
                raise ValueError(
                    f"{name} needs {key} to be a whole number, not {value!r}"
                ) from None
    return kind(hidden_size, num_heads, layer_idx=layer_idx, group=group, **values)


def _map(mixer: Any, head_dim: int, num_heads: int) -> Dial | LearnedMap:
    """The map, as a `LearnedMap` if it has matrices or the gain of a window to learn."""
    dial = Dial.get(mixer)
    hybrid = (dial.window or dial.sinks) and dial.feature_map.has_features
    if hybrid or dial.feature_map.learnable:
        return LearnedMap(dial, num_heads=num_heads, head_dim=head_dim)
    return dial
