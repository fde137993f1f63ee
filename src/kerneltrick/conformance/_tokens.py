"""Random inputs of a kind of operator: their shapes, and values of every size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick._text import nearest
from kerneltrick.conformance._kinds import RATES, TAPS, OperatorKind, kind_named

RANGES = ("plain", "decays", "large", "small")
# Widths on both sides of every block size, and lengths on both sides of every chunk.
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)
LONG = (101, 127, 128, 129, 150, 193)


@dataclasses.dataclass(frozen=True)
class TrialSizes:
    """The shape of the inputs. `width` is that of the values, d unless given."""

    batch: int = 2
    heads: int = 2
    n: int = 70
    d: int = 4
    groups: int = 1
    width: int | None = None

    def __str__(self) -> str:
        usual = {"n": None, "width": None}
        given = dataclasses.asdict(self).items()
        return "".join(f", {name}={size}" for name, size in given if size != usual.get(name, 1))

    def within(self, other: TrialSizes) -> bool:
        """Whether inputs of these sizes are no larger than others in any way."""
        return all(
            (a or 0) <= (b or other.d)
            for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        )


USUAL_SIZES = TrialSizes()


def draw_sizes(
    rng: np.random.Generator, shape: str, most: int, *, grouped: bool, wide: bool
) -> TrialSizes:
    """Sizes of one of three shapes: "long" texts, "many" rows and heads, or "wide" heads.

    No text has more than `most` tokens.
    """

    def one(options: Sequence[int]) -> int:
        return int(rng.choice([size for size in options if size <= most] or [most]))

    n = one({"long": LONG, "many": LENGTHS[:9], "wide": LENGTHS[3:]}[shape])
    widths = WIDTHS[7:] if shape == "wide" else WIDTHS[:7]
    d, width = one(widths), one(widths)
    batch, heads = (one((3, 4)), 3) if shape == "many" else (1, one((1, 2)))
    groups = one((1, 2, 3)) if grouped else 1
    return TrialSizes(batch, heads, n, d, groups, width if wide and width != d else None)


def ranges_of(kind: OperatorKind) -> list[str]:
    """The ranges of values that a kind can take."""
    return [r for r in RANGES if r != "decays" or not {*RATES}.isdisjoint(kind.inputs)]


def tokens(
    kind: str,
    *,
    batch: int = 1,
    heads: int = 1,
    n: int = 3,
    d: int = 1,
    groups: int = 1,
    width: int | None = None,
    values: str = "plain",
    dtype: str = "float32",
    seed: int = 0,
) -> list[Array]:
    """Random inputs of a kind: q, k and v (batch, heads, n, d), and what else it takes.

    values
        "plain": keys are shorter than 1, beta lies between 0 and 1, and decays are of all ordinary
        strengths. "decays": from none to the largest number of the type, side by side. "large" and
        "small": results come near the largest or the smallest numbers of the type, or sums inside
        would if they were not formed with care.
    groups
        How many heads of queries share one of keys and values; for the delta rule, how many heads
        of values share one of queries and keys.
    width
        That of the values, d unless given.

    >>> [x.shape for x in tokens("delta_rule", n=5, d=2)]
    [(1, 1, 5, 2), (1, 1, 5, 2), (1, 1, 5, 2), (1, 1, 5), (1, 1, 5)]
    """
    if values not in RANGES:
        raise ValueError(f"unknown range of values {values!r}; {nearest(values, [*RANGES])}")
    rng = np.random.default_rng(seed)
    axes = {"h": heads, "g": heads * groups, "n": n, "d": d, "m": width or d, "t": TAPS}
    made = []
    for name, letters in kind_named(kind).inputs.items():
        shape = tuple(axes[letter] for letter in letters)
        shape = (batch, *shape) if "n" in letters else shape
        if name == "beta":
            x = rng.random(shape) * (2 if values == "decays" else 1)
        elif name == "A":
            x = -4 * rng.random(shape)
        elif name in RATES:
            sign = 1 if name == "dt" else -1
            x = rng.random(shape) ** 3 * 4 * sign
            if values == "decays":
                x = sign * _strengths(rng, np.abs(x), name, dtype)
        else:
            x = rng.uniform(-1, 1, shape) / math.sqrt(shape[-1])
            if values in ("large", "small"):
                x = _extreme(x, name, kind, values, np.finfo(dtype))
        made.append(x.astype(dtype))
    return made


def _strengths(rng: np.random.Generator, mild: Array, name: str, dtype: str) -> Array:
    """Mild decays, none, and some of any size: small ones follow the largest in the same chunk."""
    info = np.finfo(dtype)
    # A step multiplies values too, and gradients by its square.
    most = math.log10(info.max) * (0.4 if name == "dt" else 1) - 1e-3
    sizes = 10 ** rng.uniform(math.log10(info.tiny), most, mild.shape)
    strongest = float(info.max) if name != "dt" else 10**most
    choice = rng.random(mild.shape)
    return np.select(
        [choice < 0.75, choice < 0.85, choice < 0.97], [mild, np.zeros_like(mild), sizes], strongest
    )


def _extreme(x: Array, name: str, kind: str, values: str, info: np.finfo) -> Array:
    """Values near the limits of the type, and queries and keys whose weights are.

    Sums of `large` values have room for a few hundred tokens. Where a kind has features φ(x) = ELU
    + 1, `small` ones are so negative that any constant beside their sums would show.
    """
    exponential = kind in ("softmax_attention", "window_attention", "near_far_attention")
    if name in ("q", "k"):
        length = math.sqrt(x.shape[-1])
        if values == "large" and exponential:
            return 100 * length * x
        if kind == "linear_attention":
            return 8 * length * x if values == "large" else -10 + 2 * length * x
        return x
    if name in ("v", "x"):
        power = 0.5 if kind == "linear_attention" else 0.85
        return x * (float(info.max) ** 0.8 if values == "large" else float(info.tiny) ** power)
    return x
