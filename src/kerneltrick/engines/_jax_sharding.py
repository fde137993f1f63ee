"""Calls of the core on sharded arrays: each device has a part of the batch and of the heads."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from kerneltrick.engines._xla_call import CallForm

Role = str | None  # of an axis: "b0", "b1", … of leading axes, "h" of heads, None of all others
WHOLE = ("start", "weight", "bias")  # arrays that each device has
# The axis of heads, counted from the end; −3 of those that are not here.
HEADS = {"states": -2, "d_gain": -1}


def _roles(name: str, shape: tuple[int, ...], lead: int) -> list[Role]:
    """What the axes of an array are, where calls have so many leading axes before heads."""
    roles: list[Role] = [None] * len(shape)
    if name in WHOLE:
        return roles
    heads = len(shape) + HEADS.get(name, -3)
    for i in range(lead + 1):
        at = heads - lead + i
        if at >= 0 and shape[at] > 1:
            roles[at] = "h" if i == lead else f"b{i}"
    return roles


@functools.lru_cache(maxsize=256)
def partitioned(call_p: Any, form: CallForm, results: tuple[str, ...]) -> Callable[..., Any]:
    """The call of a form, which XLA splits over devices along leading axes and heads."""
    made = tuple("d_gain" if form.backward and name == "gain" else name for name in results)
    several = max(form.heads) > 1  # matrices of the heads, which stay together

    def run(*arrays: Any) -> tuple[Any, ...]:
        return tuple(call_p.bind(*arrays, form=form))

    def roles_of(names: Iterable[str], shapes: Any) -> list[list[Role]]:
        lead = len(shapes[form.names.index("q")].shape) - 3
        return [_roles(name, tuple(x.shape), lead) for name, x in zip(names, shapes, strict=False)]

    def fewest_heads(shapes: Any) -> int:
        return min(int(shapes[form.names.index(name)].shape[-3]) for name in "qkv")

    def places(mesh: Any, shapes: Any) -> dict[Role, Any]:
        """The axes of the mesh along which each role is split."""
        found: dict[Role, Any] = {}
        for roles, x in zip(roles_of(form.names, shapes), shapes, strict=True):
            spec = getattr(x.sharding, "spec", ()) or ()
            for role, axes in zip(roles, spec, strict=False):
                taken = {a for other in found.values() for a in _axes(other)}
                if role and axes and role not in found and not taken & {*_axes(axes)}:
                    found[role] = axes
        parts = 1
        for axis in _axes(found.get("h")):
            parts *= mesh.shape[axis]
        if several or fewest_heads(shapes) % parts:
            found.pop("h", None)
        return found

    def shardings(mesh: Any, names: Iterable[str], shapes: Any, like: Any, where: Any) -> Any:
        lead = len(like[form.names.index("q")].shape) - 3
        roles = [_roles(n, tuple(x.shape), lead) for n, x in zip(names, shapes, strict=True)]
        return tuple(
            NamedSharding(mesh, PartitionSpec(*(where.get(role) for role in own))) for own in roles
        )

    def infer(mesh: Any, arguments: Any, outcome: Any) -> Any:
        return shardings(mesh, made, outcome, arguments, places(mesh, arguments))

    def partition(mesh: Any, arguments: Any, outcome: Any) -> Any:
        where = places(mesh, arguments)
        split = tuple(axis for axes in where.values() for axis in _axes(axes))

        def local(*arrays: Any) -> tuple[Any, ...]:
            own = run(*arrays)
            if not split:
                return own
            return tuple(
                jax.lax.psum(x, split) if name in WHOLE else x
                for name, x in zip(made, own, strict=True)
            )

        inputs = shardings(mesh, form.names, arguments, arguments, where)
        return mesh, local, shardings(mesh, made, outcome, arguments, where), inputs

    def rule(mesh: Any, arguments: Any, outcome: Any) -> Any:
        """For Shardy: which axes of arguments and results go together.

        Query heads and key heads that differ in number do not: Shardy would split both by a part
        of an axis of the mesh, which JAX cannot express. `partition` brings them together.
        """
        lead, count = len(arguments[form.names.index("q")].shape) - 3, 0

        def text(name: str, x: Any) -> str:
            nonlocal count
            parts = []
            for role, size in zip(_roles(name, tuple(x.shape), lead), x.shape, strict=True):
                if role is None or (role == "h" and several):
                    count += 1
                    parts.append(f"x{count}")
                else:
                    parts.append(f"h{size}" if role == "h" else role)
            return " ".join(parts)

        left = ", ".join(map(text, form.names, arguments))
        return f"{left} -> {', '.join(map(text, made, outcome))}"

    split = custom_partitioning(run)
    split.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    called: Callable[..., Any] = split
    return called


def splits(context: Any) -> bool:
    """Whether a program is for several devices that XLA shares its work among."""
    return bool(getattr(context, "device_assignment", None)) and context.num_devices > 1


def register_sharded(primitive: Any) -> None:
    """Let a primitive be used on sharded arrays and within `shard_map`.

    JAX has no public way to have it say which devices a program is for, as `splits` asks; it does
    so for its own `custom_partitioning`. Until version 0.6 `shard_map` had a list of primitives.
    """
    dispatch = importlib.import_module("jax._src.dispatch")
    getattr(dispatch, "prim_requires_devices_during_lowering", set()).add(primitive)
    if not hasattr(jax, "shard_map"):
        known = importlib.import_module("jax.experimental.shard_map")
        if hasattr(known, "register_standard_check"):
            known.register_standard_check(primitive)
            known.register_standard_rewrite(primitive)


def manual_axes(aval: Any, rank: int) -> dict[str, Any]:
    """Within `shard_map`: the axes of the mesh that results of a rank depend on, as `aval` does."""
    if not _varying(aval):
        return {}
    name = "vma" if hasattr(aval, "vma") else "manual_axis_type"  # up to JAX 0.9, and since
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*[None] * rank))
    return {name: getattr(aval, name), "sharding": sharding}


def varying_alike(arrays: Iterable[Any]) -> list[Any]:
    """Arrays of one call, which within `shard_map` all depend on the axes that one of them does."""
    arrays = list(arrays)
    axes = [_varying(jax.typeof(x)) for x in arrays]
    union: frozenset[Any] = frozenset().union(*axes)
    return [
        x if own == union else _vary(x, tuple(union - own))
        for x, own in zip(arrays, axes, strict=True)
    ]


def _varying(aval: Any) -> frozenset[Any]:
    found: Any = getattr(aval, "vma", None) or getattr(aval, "manual_axis_type", frozenset())
    axes: frozenset[Any] = getattr(found, "varying", found)
    return axes


def _vary(x: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)


def _axes(spec: Any) -> tuple[Any, ...]:
    """The axes of the mesh in an entry of a PartitionSpec."""
    return () if spec is None else tuple(spec) if isinstance(spec, tuple) else (spec,)
