"""Checks of arguments, shared by every kind of attention: say what was expected and what came."""

from __future__ import annotations

import math
import operator
from typing import Annotated, Any, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    Namespace,
    as_numpy,
    astype,
    autocast,
    compute_dtype,
    constant,
    is_concrete,
    is_floating,
    is_integer,
    namespace,
    space,
)


class VanishingNormalizerError(ZeroDivisionError):
    """The weights of a query sum to exactly 0, so its output does not exist."""


class Inputs(NamedTuple):
    """q, k and v, always with a head axis."""

    xp: Namespace
    q: Annotated[Array, "(..., H·g, n_q, d)"]
    k: Annotated[Array, "(..., H, n, d)"]
    v: Annotated[Array, "(..., H, n, M)"]
    headless: bool  # the caller gave (n, d) arrays

    @property
    def groups(self) -> int:
        """How many query heads share one key/value head."""
        return int(self.q.shape[-3] // self.k.shape[-3])

    def restore(self, x: Array) -> Array:
        """A result without the head axis if the caller had none."""
        return x[0, ...] if self.headless else x


def check_inputs(who: str, q: Array, k: Array, v: Array) -> Inputs:
    inputs = check_arrays(who, q, k, v)
    q, k, v = inputs.q, inputs.k, inputs.v
    if k.shape[:-2] != v.shape[:-2] or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(
            f"{who} needs the same leading dimensions for q, k and v; only the heads (axis -3) "
            f"of q may be a multiple of those of k and v ({shapes(inputs)})"
        )
    if k.shape[-3] == 0 or q.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"{who} needs the number of query heads to be a multiple of the number of key/value "
            f"heads, but there are {q.shape[-3]} and {k.shape[-3]} ({shapes(inputs)})"
        )
    return inputs


def check_arrays(who: str, q: Array, k: Array, v: Array) -> Inputs:
    """q, k and v of one library and dtype that fit each other but for their leading dimensions."""
    xp = namespace(q=q, k=k, v=v)
    arrays = {"q": q, "k": k, "v": v}
    for name, x in arrays.items():
        if not is_floating(x):
            raise TypeError(
                f"{who} needs floating-point arrays, but {name} has dtype {x.dtype}; "
                f"cast it to float32 or float64"
            )
        if x.ndim < 2:
            raise ValueError(
                f"{who} needs arrays (..., heads, n, d) or (n, d), but {name} is {tuple(x.shape)}"
            )
    if not q.dtype == k.dtype == v.dtype:
        same = autocast(q, k, v)
        if same is None:
            dtypes = ", ".join(f"{name}: {x.dtype}" for name, x in arrays.items())
            raise TypeError(f"{who} needs q, k and v of one dtype, but got {dtypes}")
        q, k, v = same
    if not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"{who} needs q, k and v with the same number of axes ({_shapes(arrays)})")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"keys have {k.shape[-1]} features but queries have {q.shape[-1]}; "
            f"{who} needs them equal ({_shapes(arrays)})"
        )
    if q.shape[-1] == 0:
        raise ValueError(
            f"{who} needs queries and keys with at least one feature ({_shapes(arrays)})"
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"there are {k.shape[-2]} keys but {v.shape[-2]} values; {who} needs a value for "
            f"each key ({_shapes(arrays)})"
        )
    headless = q.ndim == 2
    if headless:
        q, k, v = q[None, ...], k[None, ...], v[None, ...]
    return Inputs(xp, q, k, v, headless)


def shapes(inputs: Inputs) -> str:
    """The shapes of q, k and v as the caller gave them, for errors."""
    arrays = {name: inputs.restore(getattr(inputs, name)) for name in ("q", "k", "v")}
    return _shapes(arrays)


def _shapes(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name}: {tuple(x.shape)}" for name, x in arrays.items())


def check_causal(who: str, inputs: Inputs, causal: bool) -> None:
    n_q, n = inputs.q.shape[-2], inputs.k.shape[-2]
    if causal and n_q != n:
        raise ValueError(
            f"causal {who} needs as many queries as keys, but there are {n_q} and {n}; "
            f"the past of a stream comes from state="
        )


def check_count(who: str, name: str, value: Any, least: int = 0) -> int:
    """A whole number ≥ least, NumPy's included."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if count < least or isinstance(value, bool):
        raise ValueError(f"{who} needs {name} to be a whole number ≥ {least}, not {value!r}")
    return count


def check_scale(who: str, scale: Any, name: str = "scale") -> float:
    if isinstance(scale, bool) or not isinstance(scale, (int, float, np.number)):
        raise TypeError(
            f"{who} needs {name} to be a number > 0, not {type(scale).__name__}; "
            f"to learn it, multiply q and k by its root"
        )
    value = float(scale)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{who} needs {name} > 0 and finite, not {value}")
    return value


def token_array(name: str, x: Array | None, like: Array, kind: str) -> Array | None:
    """One entry per token of `like` (..., H, n, d), as (..., H or 1, n, 1).

    Accepted: (..., H, n), (..., n) without heads, or (n,). kind: "bool", "integer" or "number".
    """
    if x is None:
        return None
    xp = namespace(**{"q, k, v": like, name: x})
    if kind == "bool" and x.dtype != xp.bool:
        raise TypeError(
            f"{name} must be boolean, True = keep, not {x.dtype}; "
            f"write {name} != 0 if that is what it means"
        )
    if kind == "integer" and not is_integer(x):
        raise TypeError(f"{name} must be whole numbers, not {x.dtype}")
    if kind == "number" and not (is_integer(x) or is_floating(x)):
        raise TypeError(f"{name} must be numbers, not {x.dtype}")
    shape, full = tuple(x.shape), tuple(like.shape[:-1])
    if shape == full:
        return x[..., None]
    if shape == (*full[:-2], full[-1]):
        return xp.expand_dims(x, axis=-2)[..., None]
    if shape == full[-1:]:
        return xp.reshape(x, (*(1,) * (len(full) - 1), full[-1], 1))
    raise ValueError(
        f"{name} must have one entry per token: {full}, {(*full[:-2], full[-1])} or {full[-1:]}, "
        f"not {shape}"
    )


def restarts(segment_ids: Array | None, like: Array) -> Array | None:
    """True at tokens where a new segment begins, (..., H or 1, n, 1); the first never restarts."""
    ids = token_array("segment_ids", segment_ids, like, "integer")
    if ids is None:
        return None
    xp = space(ids)
    changed = ids[..., 1:, :] != ids[..., :-1, :]
    first = xp.zeros_like(ids[..., :1, :], dtype=xp.bool)
    return xp.concat([first, changed], axis=-2) if ids.shape[-2] else first


def check_decay(
    log_decay: Any,
    like: Array,
    m: int,
    headless: bool,
    mask: Array | None = None,
    heads_of: str = "key head",
) -> Array | None:
    """log_decay as (..., H, n, 1 or m), for tokens `like` (..., H, n, ·); 0 where masked."""
    if log_decay is None:
        return None
    xp, dtype, per_token = space(like), compute_dtype(like), tuple(like.shape[:-1])
    if isinstance(log_decay, (int, float, np.number)):
        log_decay = constant(np.asarray(float(log_decay)), like, dtype)
    namespace(k=like, log_decay=log_decay)
    if not is_floating(log_decay):
        raise TypeError(f"log_decay must be floating-point, not {log_decay.dtype}")
    shape = tuple(log_decay.shape)
    known = per_token[1:] if headless else per_token
    heads = () if headless else (per_token[-2],)
    if shape in (known, (*known, m)):
        decay = log_decay[..., None] if shape == known else log_decay
        decay = decay[None, ...] if headless else decay
        if mask is not None:
            decay = xp.where(mask, decay, xp.zeros_like(decay))
        return _checked_decay(decay, dtype)
    if shape in ((), (1,), heads):
        decay = _checked_decay(log_decay, dtype)
        return xp.broadcast_to(decay[:, None, None] if shape else decay, (*per_token, 1))
    raise ValueError(
        f"log_decay must be a number, one per {heads_of} {heads}, one per token {known}, or one "
        f"per token and feature {(*known, m)}, not an array {shape}"
    )


def _checked_decay(decay: Array, dtype: Any) -> Array:
    """Log-decays in `dtype`; those below its numbers become the lowest: e^x is 0 for both."""
    xp = space(decay)
    if is_concrete(decay):
        values = as_numpy(decay)
        wrong = values[~(np.isfinite(values) & (values <= 0))]
        if wrong.size:
            raise ValueError(
                f"log_decay must be finite and ≤ 0 (the state is multiplied by its exponential), "
                f"but {wrong.flat[0]} is among its values"
            )
    lowest = float(xp.finfo(dtype).min)
    if float(xp.finfo(decay.dtype).min) < lowest:
        below = (decay < lowest) & xp.isfinite(decay)
        decay = xp.where(below, xp.full_like(decay, lowest), decay)
    return astype(decay, dtype)


def check_on_zero(on_zero: str | None) -> None:
    if on_zero not in (None, "raise", "nan", "zero"):
        raise ValueError(f'on_zero must be "raise", "nan", "zero" or None, not {on_zero!r}')
