"""Checks of arguments that the short convolution and the selective scan share."""

from __future__ import annotations

from kerneltrick._arrays import (
    Array,
    autocast,
    is_floating,
    is_overwritable,
    library,
    recorded,
    space,
)
from kerneltrick.attention._arguments import token_array


def check_tokens(who: str, arrays: dict[str, Array]) -> tuple[Array, ...]:
    """Arrays (..., n, width) of one floating-point dtype; under autocast in the widest."""
    for name, x in arrays.items():
        _check_floating(who, name, x)
        if x.ndim < 2:
            raise ValueError(f"{who} needs {name} (..., n, width), not {tuple(x.shape)}")
    given = tuple(arrays.values())
    if all(x.dtype == given[0].dtype for x in given):
        return given
    same = autocast(*given)
    if same is None:
        dtypes = ", ".join(f"{name}: {x.dtype}" for name, x in arrays.items())
        raise TypeError(f"{who} needs arrays of one dtype, but got {dtypes}; cast some of them")
    return same


def check_parameter(who: str, name: str, x: Array | None, shape: tuple[int, ...]) -> None:
    """Refuse numbers that all rows share if they have another shape."""
    if x is None:
        return
    _check_floating(who, name, x)
    if tuple(x.shape) != shape:
        raise ValueError(f"{who} needs {name} {shape}, not {tuple(x.shape)}")


def check_state(who: str, state: Array | None, shape: tuple[int, ...]) -> None:
    if state is None:
        return
    _check_floating(who, "state", state)
    if tuple(state.shape) != shape:
        raise ValueError(
            f"{who} needs state {shape} for these arrays, not {tuple(state.shape)}; "
            f"return_state=True returns such a state"
        )


def _check_floating(who: str, name: str, x: Array) -> None:
    if not is_floating(x):
        raise TypeError(
            f"{who} needs floating-point arrays, but {name} has dtype {x.dtype}; cast it to "
            f"float32 or float64"
        )


def restarts(segment_ids: Array | None, x: Array) -> Array | None:
    """True at tokens where a new text begins, as (..., n, 1); the first token never restarts."""
    ids = token_array("segment_ids", segment_ids, x, "integer")
    if ids is None:
        return None
    xp = space(ids)
    first = xp.zeros_like(ids[..., :1, :], dtype=xp.bool)
    return xp.concat([first, ids[..., 1:, :] != ids[..., :-1, :]], axis=-2)


def before_writing(who: str, state: Array | None, arrays: tuple[Array | None, ...]) -> Array:
    """A state that will be overwritten: a copy if a gradient will need what was there."""
    if state is None:
        raise ValueError(f"{who} with inplace=True needs a state to overwrite; give state=")
    if library(state) == "jax":
        raise ValueError(f"{who} cannot overwrite an array of JAX's; use return_state=True")
    if library(state) in ("numpy", "torch") and not is_overwritable(state):
        raise ValueError(
            f"{who} cannot overwrite a state that is read-only, or whose entries share their "
            f"memory, as those of an expanded array do; give a copy of it"
        )
    return state.clone() if recorded(state, *arrays) else state


def write_state(state: Array, after: Array) -> Array:
    """Overwrite the state by the one after a call."""
    if after is not state:
        state[...] = after
    return state
