"""The dial between linear and softmax attention: a map, the window beside it, and their units."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kerneltrick import _text, maps
from kerneltrick._arrays import (
    Array,
    as_numpy,
    astype,
    compute_dtype,
    constant,
    is_array,
    is_concrete,
    is_floating,
    namespace,
    space,
    stop_gradient,
    tree,
)
from kerneltrick.attention._arguments import Inputs, check_count, check_scale
from kerneltrick.attention._heads import (
    HeadKind,
    Windows,
    check_heads,
    check_sinks,
    check_windows,
    for_each,
    head_kinds,
    numbers_text,
    of_heads,
    read_heads,
    read_numbers,
    select,
)
from kerneltrick.engines import UNBOUNDED, Rule


@tree
@dataclasses.dataclass(frozen=True, eq=False)
class Far:
    """A far key weighs e^gain · φ(q)·φ(k), if `relative` times the largest near weight of its row.

    A near key weighs e^{s·q·k}. `gain` is a number, or an array (H_q,), one for each query head,
    which gradients reach. None: φ(q)·φ(k) is divided by the map's `unit(d)`, the size of it that
    stands for a weight of 1; relative weights are taken as they are, as LoLCATs does.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 16))
    >>> far = kt.Far(gain=np.array([-1.0, 0.5]), relative=True)
    >>> kt.linear_attention(q, k, v, "elu", causal=True, window=16, sinks=1, far=far).shape
    (2, 100, 16)
    """

    gain: Any = None
    relative: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.relative, bool):
            raise TypeError(f"Far needs relative to be True or False, not {self.relative!r}")
        if not (self.gain is None or _is_number(self.gain) or is_array(self.gain)):
            raise TypeError(
                f"Far needs gain to be a number or an array with one for each query head, not "
                f"{type(self.gain).__name__}"
            )


@tree
@dataclasses.dataclass(frozen=True, eq=False)
class Dial:
    """A map, and the window and sinks that are exact beside it.

    As text: that of the map, `@`, then what differs from linear attention. Understood wherever
    attention takes a map; `Dial.get` reads it, `str` writes it.

    >>> dial = Dial.get("hedgehog:activation=exp@window=16,sinks=1,gain=-4,relative")
    >>> dial.window, dial.sinks, dial.far.gain, dial.far.relative
    (16, 1, -4.0, True)
    >>> str(dial)
    'hedgehog:activation=exp@window=16,sinks=1,gain=-4,relative'

    Heads may differ. `whole` lists the key–value heads that see the whole text, which is exact
    softmax attention. `bare` lists heads that see the window and the sinks alone, without the map;
    they keep no sums. `window` and `sinks` are numbers for all other heads, or sequences with one
    for each key–value head; a window of None is the whole text.

    >>> dial = Dial.get("hedgehog@window=64,sinks=4,whole=0+5")
    >>> dial.whole, [group.heads for group in dial.groups(8)]
    ((0, 5), [(0, 5), (1, 2, 3, 4, 6, 7)])
    >>> str(Dial(dial.feature_map, window=(16, None, 64)))
    'hedgehog@window=16+whole+64'
    >>> [str(group.dial) for group in Dial.get("elu@window=64,whole=0,bare=2").groups(3)]
    ['softmax', 'elu@window=64', 'softmax@window=64']
    """

    feature_map: maps.FeatureMap
    window: Windows = 0
    sinks: int | Sequence[int] = 0
    far: Far | None = None
    whole: Sequence[int] = ()
    bare: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_map", maps.get(self.feature_map))
        object.__setattr__(self, "window", check_windows("Dial", self.window))
        object.__setattr__(self, "sinks", check_sinks("Dial", self.sinks))
        for name in ("whole", "bare"):
            object.__setattr__(self, name, check_heads("Dial", name, getattr(self, name)))
        if self.far is not None and not isinstance(self.far, Far):
            object.__setattr__(self, "far", Far(self.far))
        if self.far is not None and not self.near:
            raise ValueError("gain and units are those of far weights: give window or sinks too")
        if self.bare and not self.near:
            raise ValueError("bare heads see the window and the sinks alone: give window or sinks")
        both = sorted(set(self.whole) & set(self.bare))
        if both:
            raise ValueError(
                f"Dial got head {both[0]} in whole and in bare: a head sees the whole text, or the "
                "window alone"
            )

    @property
    def near(self) -> bool:
        """Whether there is a window or sinks, for some heads at least."""
        return bool(self.window or self.sinks)

    @property
    def by_head(self) -> bool:
        """Whether heads may differ."""
        return (
            bool(self.whole or self.bare)
            or self.window == UNBOUNDED
            or not (isinstance(self.window, int) and isinstance(self.sinks, int))
        )

    def alike(self, who: str) -> tuple[int, int]:
        """The window and the sinks of all heads; ValueError if heads may differ."""
        if not (isinstance(self.window, int) and isinstance(self.sinks, int)) or self.by_head:
            raise ValueError(f"{who} needs one window for all heads, not {self}")
        return self.window, self.sinks

    def at_head(self, head: int) -> tuple[int, int]:
        """The window and the sinks of a key–value head; for the whole text, the longest window."""
        for values in (self.window, self.sinks):
            if isinstance(values, tuple) and head >= len(values):
                raise ValueError(f"{self} has no key–value head {head}: it is for {len(values)}")
        if head in self.whole:
            return UNBOUNDED, 0
        window: Any = self.window[head] if isinstance(self.window, tuple) else self.window
        sinks: Any = self.sinks[head] if isinstance(self.sinks, tuple) else self.sinks
        return window, sinks

    def groups(self, heads: int, queries: int | None = None) -> tuple[HeadGroup, ...]:
        """The key–value heads that attend alike, each with a dial that is the same for all.

        `queries` counts the query heads, by default as many as there are key–value `heads`.
        """
        return head_groups("Dial.groups", self, heads, heads if queries is None else queries)

    @staticmethod
    def get(setting: maps.MapLike | Dial) -> Dial:
        """The dial for a text, a map or a function x → φ(x), or a dial itself."""
        if isinstance(setting, Dial):
            return setting
        if isinstance(setting, str):
            return _read(setting)
        return Dial(maps.get(setting))

    def __str__(self) -> str:
        near = (self.window, self.sinks, self.whole, self.bare)
        text = dial_text(str(self.feature_map), *near)
        if self.far is not None and self.far.gain is not None:
            gain = self.far.gain
            text += f",gain={gain:g}" if _is_number(gain) else f",gain={maps.digest(gain)}"
        if self.far is not None and self.far.relative:
            text += ",relative"
        return text


class HeadGroup(NamedTuple):
    """Key–value heads that attend alike, the query heads that use them, and how they attend."""

    heads: tuple[int, ...]
    queries: tuple[int, ...]
    dial: Dial  # with the weights and gains of these heads


def head_groups(who: str, dial: Dial, heads: int, queries: int) -> tuple[HeadGroup, ...]:
    """The kinds of heads of a call with so many key–value and query heads, by their first head."""
    windows = for_each(who, "windows", dial.window, heads)
    sinks = for_each(who, "numbers of sinks", dial.sinks, heads)
    if max((*dial.whole, *dial.bare), default=0) >= heads:
        raise ValueError(
            f"{who} got {dial}, but there are only {heads} key–value heads, 0 to {heads - 1}"
        )
    named = (tuple(dial.whole), tuple(dial.bare))
    kinds = head_kinds(windows, sinks, *named, dial.feature_map.has_features)
    if dial.far is None and not dial.feature_map.weighted:
        return _plain_groups(dial.feature_map, kinds, heads, queries)
    return tuple(_group(dial, kind, heads, queries) for kind in kinds)


@functools.lru_cache(maxsize=256)
def _plain_groups(
    feature_map: maps.FeatureMap, kinds: tuple[HeadKind, ...], heads: int, queries: int
) -> tuple[HeadGroup, ...]:
    """The groups of a dial without arrays; the same objects every time, as a call is short."""
    dial = Dial(feature_map)
    return tuple(_group(dial, kind, heads, queries) for kind in kinds)


def _group(dial: Dial, kind: HeadKind, heads: int, queries: int) -> HeadGroup:
    (own, window, sinks, bare), shared = kind, queries // heads
    own_queries = tuple(head * shared + i for head in own for i in range(shared))
    if window == UNBOUNDED:  # nothing is far, so the map does not matter and keeps no sums
        return HeadGroup(own, own_queries, Dial(maps.Softmax()))
    if bare:
        return HeadGroup(own, own_queries, Dial(maps.Softmax(), window, sinks))
    far, feature_map = dial.far if window or sinks else None, dial.feature_map
    if len(own) < heads:
        feature_map = of_heads(feature_map, own, heads)
        if far is not None and is_array(far.gain) and tuple(far.gain.shape) == (queries,):
            far = dataclasses.replace(far, gain=select(far.gain, own_queries, 0))
    return HeadGroup(own, own_queries, Dial(feature_map, window, sinks, far))


# Which attention: a map or its text, with its window, or what these were resolved to.
Setting: TypeAlias = maps.MapLike | Dial | Rule


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Dial:
    name, at, _ = text.partition("@")
    return Dial(maps.get(name), **read_tail(text)) if at else Dial(maps.get(text))


def read_tail(text: str) -> dict[str, Any]:
    """What stands after @ in a text, as keywords of `Dial`."""
    words = [word.strip() for word in text.partition("@")[2].split(",")]
    if not any(words):
        raise ValueError(f"{text!r}: nothing follows '@'; it takes window=16, sinks=1 and the like")
    relative = "relative" in words
    pairs = ",".join(word for word in words if word != "relative")
    given = _text.pairs(repr(text), "@", pairs)
    known: dict[str, Callable[[str], Any]] = {
        "window": read_numbers,
        "sinks": read_numbers,
        "gain": float,
        "whole": read_heads,
        "bare": read_heads,
    }
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise ValueError(
                f"{text!r} has no {key!r} after '@'; {_text.nearest(key, [*known, 'relative'])}"
            )
        try:
            values[key] = known[key](value)
        except ValueError:
            raise ValueError(
                f"{text!r} needs {key} to be {_EXPECTED[key]}, not {value!r}"
            ) from None
    gain = values.pop("gain", None)
    if relative or gain is not None:
        values["far"] = Far(gain, relative)
    return values


_EXPECTED = {
    "window": "a whole number, or one for each head, such as 64+whole+16",
    "sinks": "a whole number, or one for each head, such as 4+1+4",
    "gain": "a number",
    "whole": "key–value heads, such as 0+5+7",
    "bare": "key–value heads, such as 0+5+7",
}


def dial_text(map_text: str, window: Any, sinks: Any, whole: Any = (), bare: Any = ()) -> str:
    given = (("window", window), ("sinks", sinks), ("whole", whole), ("bare", bare))
    parts = [f"{name}={numbers_text(values)}" for name, values in given if values]
    return map_text + ("@" + ",".join(parts) if parts else "")


def combined(
    who: str, setting: maps.MapLike | Dial, window: Any, sinks: Any, far: Any = None
) -> tuple[maps.FeatureMap, Any, Any, Any, tuple[int, ...], tuple[int, ...]]:
    """The fields of the dial of a call: by keyword, or in the dial, but not twice."""
    window = window if isinstance(window, int) else check_windows(who, window)
    sinks = sinks if isinstance(sinks, int) else check_sinks(who, sinks)
    if not isinstance(setting, Dial) and not (isinstance(setting, str) and "@" in setting):
        return maps.get(setting), window, sinks, far, (), ()
    dial = Dial.get(setting)
    given = {"window": window or None, "sinks": sinks or None, "far": far}
    for name, value in given.items():
        own = getattr(dial, name)
        if own and value is not None:
            raise ValueError(f"{who} got {name} twice: in {str(dial)!r} and as a keyword")
    near = dial.window or window, dial.sinks or sinks
    return dial.feature_map, *near, dial.far or far, tuple(dial.whole), tuple(dial.bare)


def by_head(setting: Setting, window: Any, sinks: Any) -> bool:
    """Whether heads may differ under this setting and these keywords."""
    if not (isinstance(window, int) and isinstance(sinks, int)):
        return not isinstance(setting, Rule)  # which is taken as it is
    if isinstance(setting, str):
        return "@" in setting and _read(setting).by_head
    return isinstance(setting, Dial) and setting.by_head


def resolve(
    who: str,
    setting: Setting,
    inputs: Inputs,
    *,
    scale: float | None = None,
    window: Any = 0,
    sinks: Any = 0,
    far: Any = None,
) -> tuple[Rule, Any]:
    """Which attention a setting and these keywords mean for these inputs, and `far` as given.

    Everything below the public functions passes the rule on. A rule itself is taken as it is.
    """
    if isinstance(setting, Rule):
        return setting, far
    if by_head(setting, window, sinks):
        raise ValueError(f"{who} needs one window for all heads, not {setting}")
    chosen, window, sinks, far, *_ = combined(who, setting, window, sinks, far)
    if inputs.headless and isinstance(chosen, maps.Custom):
        chosen = maps.Custom(chosen.function, flat=True)
    d = inputs.k.shape[-1]
    if scale is None:
        scale, near_scale = chosen.default_scale(d), 1 / math.sqrt(d)
    else:
        scale = near_scale = check_scale(who, scale)
    window, sinks = check_window(who, chosen, window, sinks)
    return Rule(chosen, scale, window=window, sinks=sinks, near_scale=near_scale), far


def check_window(
    who: str, feature_map: maps.FeatureMap, window: Any, sinks: Any
) -> tuple[int, int]:
    """Window and sinks as given; the map without features is exact for all tokens by itself."""
    window = min(check_count(who, "window", window), UNBOUNDED)
    sinks = check_count(who, "sinks", sinks)
    if not (feature_map.has_features or window or sinks):
        return UNBOUNDED, 0
    return window, sinks


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, bool)


def _default_gain(feature_map: maps.FeatureMap, q: Array) -> Any:
    """−log unit: of a function in its own library, as it may know no other."""
    if not isinstance(feature_map, maps.Custom):
        return -math.log(feature_map.unit(q.shape[-1]))
    return -space(q).log(stop_gradient(maps.mean_similarity(feature_map, q)))


def check_far(far: Any, feature_map: maps.FeatureMap, inputs: Inputs) -> tuple[Array, bool]:
    """Far as given, as gains (H_q, 1, 1) and whether they are relative."""
    if far is None or _is_number(far) or is_array(far):
        far = Far() if far is None else Far(far)
    if not isinstance(far, Far):
        raise TypeError(
            f"far must be a number, an array with one for each query head or kerneltrick.Far, not "
            f"{type(far).__name__}"
        )
    heads, gain = inputs.q.shape[-3], far.gain
    if gain is None:
        gain = 0.0 if far.relative else _default_gain(feature_map, inputs.q)
    if _is_number(gain):
        gain = constant(np.asarray(float(gain)), inputs.q, compute_dtype(inputs.q))
    namespace(q=inputs.q, gain=gain)
    if not is_floating(gain):
        raise TypeError(f"far needs a floating-point gain, not {gain.dtype}")
    if tuple(gain.shape) not in ((), (heads,)):
        raise ValueError(
            f"far needs one gain, or one for each of the {heads} query heads, not an array "
            f"{tuple(gain.shape)}"
        )
    if is_concrete(gain) and not np.isfinite(as_numpy(gain)).all():
        raise ValueError("far needs a finite gain: its exponential multiplies far weights")
    xp = inputs.xp
    gain = xp.broadcast_to(astype(gain, compute_dtype(inputs.q)), (heads,))
    return xp.reshape(gain, (heads, 1, 1)), far.relative
