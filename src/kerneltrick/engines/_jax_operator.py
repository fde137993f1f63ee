"""Operators of the core as primitives of JAX's: compiled, differentiated, batched, sharded.

An operator has three primitives: `forward`; `tangent`, which is linear in the tangents of the
arguments; and `backward`, its transpose. On a CPU XLA calls the core for the first and the last.
The chunked engine does all else: `tangent`, derivatives of `backward`, calls on other devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.ffi
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir

from kerneltrick._arrays import Array
from kerneltrick.engines._jax_sharding import (
    manual_axes,
    partitioned,
    register_sharded,
    splits,
    varying_alike,
)
from kerneltrick.engines._xla_call import (
    REST,
    TARGET,
    ArrayShape,
    CallForm,
    Describe,
    XlaCall,
    xla_call,
)

Arrays = dict[str, Array]  # by the names of a form


class JaxOperator(NamedTuple):
    """What JAX must know of an operator."""

    describe: Describe
    # The results by the chunked engine, in the type of sums; those that are missing are zeros.
    plain: Callable[[CallForm, Arrays], Arrays]
    wide: dict[str, str]  # the types in which the core reads arguments, if always the same
    gradients: tuple[str, ...]  # the arguments that have a gradient
    state: str  # the result that has a tangent beside the output
    kept: tuple[str, ...]  # the results that the gradient needs
    shared: frozenset[str]  # arguments without leading axes
    broadcast: frozenset[str]  # those that may have fewer leading axes than others
    # The arguments as the core takes them, and `CallForm.heads`.
    stack: Callable[[CallForm, Arrays], tuple[Arrays, tuple[int, int]]]
    # The gradients of the arguments, from those that the core makes.
    unstack: Callable[[CallForm, Arrays, Arrays], Arrays]


OPERATORS: dict[str, JaxOperator] = {}


def _primitive(name: str) -> Any:
    made = jax.extend.core.Primitive(name)
    made.multiple_results = True
    made.def_impl(lambda *arrays, **form: _jitted(made)(*arrays, **form))
    return made


@functools.cache
def _jitted(primitive: Any) -> Any:
    return jax.jit(primitive.bind, static_argnames=("form", "moved"))


def _shapes(arrays: Any) -> tuple[ArrayShape, ...]:
    return tuple(ArrayShape(tuple(x.shape), x.dtype.name) for x in arrays)


def _struct(x: ArrayShape, arguments: Any) -> Any:
    """An array that is made of these arguments, without its values."""
    return jax.core.ShapedArray(
        x.shape, jnp.dtype(x.dtype), **manual_axes(arguments[0], len(x.shape))
    )


# The call itself.

call_p = _primitive("kerneltrick_call")


@functools.lru_cache(maxsize=256)
def _call(form: CallForm, shapes: tuple[ArrayShape, ...]) -> XlaCall:
    operator = OPERATORS[form.operator]
    return xla_call(operator.describe, form, shapes, operator.wide)


@call_p.def_abstract_eval  # type: ignore[untyped-decorator] # JAX\'s
def _call_results(*arrays: Any, form: CallForm) -> list[Any]:
    return [_struct(x, arrays) for x in _call(form, _shapes(arrays)).results.values()]


def _lower_call(ctx: Any, *arrays: Any, form: CallForm) -> Any:
    attribute = list(_call(form, _shapes(ctx.avals_in)).attribute)
    settings = {"call": ir.DenseI64ArrayAttr.get(attribute)}
    return jax.ffi.ffi_lowering(TARGET, backend_config=settings)(ctx, *arrays)


mlir.register_lowering(call_p, _lower_call, platform="cpu")


def by_core(form: CallForm, arrays: Arrays, split: bool = False) -> Arrays:
    """The results of the core by name; `split` over devices."""
    operator = OPERATORS[form.operator]
    arrays, heads = operator.stack(form, arrays)
    form = form._replace(names=tuple(arrays), heads=heads)
    names = _call(form, _shapes(arrays.values())).results
    call = partitioned(call_p, form, tuple(names)) if split else _bound(form)
    made = call(*arrays.values())
    return dict(zip(names, made, strict=True))


def _bound(form: CallForm) -> Callable[..., Any]:
    return functools.partial(call_p.bind, form=form)


# Forward.

forward_p = _primitive("kerneltrick_forward")


def forward(form: CallForm, arrays: Arrays) -> Arrays:
    """The results of a call by name."""
    form = form._replace(names=tuple(arrays))
    arrays = dict(zip(arrays, varying_alike(arrays.values()), strict=True))
    names = results(form, _shapes(arrays.values()))
    return dict(zip(names, forward_p.bind(*arrays.values(), form=form), strict=True))


@functools.lru_cache(maxsize=256)
def results(form: CallForm, shapes: tuple[ArrayShape, ...]) -> dict[str, ArrayShape]:
    """The results of a forward call."""
    names: tuple[str, ...] = ()

    def run(*arrays: Array) -> Any:
        nonlocal names
        made = by_core(form, dict(zip(form.names, arrays, strict=True)))
        names = tuple(made)
        return tuple(made.values())

    structs = (jax.ShapeDtypeStruct(x.shape, jnp.dtype(x.dtype)) for x in shapes)
    made = jax.eval_shape(run, *structs)
    return dict(zip(names, _shapes(made), strict=True))


@forward_p.def_abstract_eval  # type: ignore[untyped-decorator] # JAX\'s
def _forward_results(*arrays: Any, form: CallForm) -> list[Any]:
    return [_struct(x, arrays) for x in results(form, _shapes(arrays)).values()]


def _forward_native(*arrays: Array, form: CallForm, split: bool) -> list[Array]:
    return list(by_core(form, dict(zip(form.names, arrays, strict=True)), split).values())


def _forward_plain(*arrays: Array, form: CallForm) -> list[Array]:
    named = dict(zip(form.names, arrays, strict=True))
    made = OPERATORS[form.operator].plain(form, named)
    return [
        jnp.asarray(made[name], x.dtype) if name in made else jnp.zeros(x.shape, x.dtype)
        for name, x in results(form, _shapes(arrays)).items()
    ]


def _forward_jvp(primals: Any, tangents: Any, *, form: CallForm) -> tuple[list[Any], list[Any]]:
    operator, arrays = OPERATORS[form.operator], dict(zip(form.names, primals, strict=True))
    wanted = results(form, _shapes(primals))
    made = forward(form._replace(gradient=True), arrays)
    moves: Arrays = {}
    for name, tangent in zip(form.names, tangents, strict=True):
        main = name.removesuffix(REST)
        if main in operator.gradients and type(tangent) is not ad.Zero:
            moves[main] = moves[main] + tangent if main in moves else tangent
    found: Arrays = {}
    if moves:
        kept = (made[name] for name in operator.kept)
        full = form._replace(gradient=True)
        moved = tuple(moves)
        pair = tangent_p.bind(*kept, *primals, *moves.values(), form=full, moved=moved)
        found = dict(zip(("output", operator.state), pair, strict=False))
    out = [made[name].astype(x.dtype) for name, x in wanted.items()]
    changes = [
        found[name].astype(x.dtype) if name in found else ad.Zero(jax.typeof(x).to_tangent_aval())
        for name, x in zip(wanted, out, strict=True)
    ]
    return out, changes


# Tangents.

tangent_p = _primitive("kerneltrick_tangent")


def _split(form: CallForm, arrays: Any) -> tuple[Arrays, Arrays, tuple[Array, ...]]:
    """What was kept, the arguments, and what follows."""
    operator, count = OPERATORS[form.operator], len(form.names)
    kept = dict(zip(operator.kept, arrays, strict=False))
    rest = arrays[len(kept) :]
    return kept, dict(zip(form.names, rest, strict=False)), rest[count:]


def _moving(form: CallForm, arrays: Arrays) -> tuple[Array, ...]:
    """By the chunked engine: the output, and the state if there is one."""
    state, made = OPERATORS[form.operator].state, OPERATORS[form.operator].plain(form, arrays)
    if state not in form.names:
        return (made["output"],)
    last = made[state] + made[state + REST] if state + REST in made else made[state]
    return made["output"], last


def _like(form: CallForm, arrays: Any) -> list[Any]:
    """The output and the state that tangents belong to."""
    operator = OPERATORS[form.operator]
    arrays = list(arrays)
    found = results(form, _shapes(arrays))
    return [_struct(found[name], arrays) for name in ("output", operator.state) if name in found]


@tangent_p.def_abstract_eval  # type: ignore[untyped-decorator] # JAX\'s
def _tangent_results(*arrays: Any, form: CallForm, moved: tuple[str, ...]) -> list[Any]:
    _, given, _ = _split(form, arrays)
    return _like(form, given.values())


def _tangent_plain(*arrays: Array, form: CallForm, moved: tuple[str, ...]) -> list[Array]:
    _, given, moves = _split(form, arrays)

    def run(*changed: Array) -> tuple[Array, ...]:
        return _moving(form, {**given, **dict(zip(moved, changed, strict=True))})

    made = jax.jvp(run, tuple(given[name] for name in moved), tuple(moves))[1]
    like = _like(form, given.values())
    return [x.astype(y.dtype) for x, y in zip(made, like, strict=True)]


def _tangent_transpose(
    cotangents: Any, *arrays: Any, form: CallForm, moved: tuple[str, ...]
) -> list[Any]:
    kept, given, _ = _split(form, arrays)
    state = f"d_{OPERATORS[form.operator].state}"
    after = dict(zip(("d_output", state), cotangents, strict=False))
    if type(after["d_output"]) is ad.Zero:
        after["d_output"] = jnp.zeros(after["d_output"].aval.shape, after["d_output"].aval.dtype)
    after = {name: x for name, x in after.items() if type(x) is not ad.Zero}
    back = backward(form, {**after, **kept, **given})
    return [None] * (len(arrays) - len(moved)) + [back[name] for name in moved]


# Backward.

backward_p = _primitive("kerneltrick_backward")


def backward(form: CallForm, arrays: Arrays) -> Arrays:
    """The gradients of arguments by name."""
    form = form._replace(backward=True, names=tuple(arrays))
    arrays = dict(zip(arrays, varying_alike(arrays.values()), strict=True))
    made = backward_p.bind(*arrays.values(), form=form)
    return dict(zip(_graded(form), made, strict=True))


def _graded(form: CallForm) -> list[str]:
    return [name for name in OPERATORS[form.operator].gradients if name in form.names]


@backward_p.def_abstract_eval  # type: ignore[untyped-decorator] # JAX\'s
def _backward_results(*arrays: Any, form: CallForm) -> list[Any]:
    given = dict(zip(form.names, _shapes(arrays), strict=True))
    return [_struct(given[name], arrays) for name in _graded(form)]


def _backward_native(*arrays: Array, form: CallForm, split: bool) -> list[Array]:
    given = dict(zip(form.names, arrays, strict=True))
    made = OPERATORS[form.operator].unstack(form, by_core(form, given, split), given)
    return [made[name].astype(given[name].dtype) for name in _graded(form)]


def _backward_plain(*arrays: Array, form: CallForm) -> list[Array]:
    given = dict(zip(form.names, arrays, strict=True))
    names = _graded(form)
    state = OPERATORS[form.operator].state
    first = form._replace(
        backward=False,
        names=tuple(n for n in form.names if n not in ("d_output", f"d_{state}")),
    )

    def run(*changed: Array) -> tuple[Array, ...]:
        return _moving(first, {**given, **dict(zip(names, changed, strict=True))})

    made, pull = jax.vjp(run, *(given[name] for name in names))
    after = [given["d_output"].astype(made[0].dtype)]
    if len(made) > 1:
        after.append(given.get(f"d_{state}", jnp.zeros_like(made[1])).astype(made[1].dtype))
    back = pull(tuple(after))
    return [x.astype(given[name].dtype) for name, x in zip(names, back, strict=True)]


def _by_plain(plain: Callable[..., list[Array]]) -> Callable[..., Any]:
    """The derivative of a primitive whose own is not the core's."""

    def rule(primals: Any, tangents: Any, **form: Any) -> Any:
        moves = [ad.instantiate_zeros(t) if type(t) is ad.Zero else t for t in tangents]
        return jax.jvp(functools.partial(plain, **form), tuple(primals), tuple(moves))

    return rule


# Batches: one more leading axis, or one after the other where arguments have none.


def _named(primitive: Any, form: CallForm, moved: tuple[str, ...]) -> list[str]:
    """The arguments of a primitive by what they are like."""
    names = list(form.names)
    if primitive is tangent_p:
        names = [*OPERATORS[form.operator].kept, *names, *moved]
    state = OPERATORS[form.operator].state
    return [{"d_output": "output", f"d_{state}": state}.get(name, name) for name in names]


def _batched(primitive: Any) -> Callable[..., Any]:
    def rule(arrays: Any, dims: Any, *, form: CallForm, **moved: Any) -> tuple[Any, Any]:
        operator = OPERATORS[form.operator]
        names = _named(primitive, form, moved.get("moved", ()))
        length = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
        pairs = list(zip(names, dims, strict=True))
        alone = any(d is not None and name in operator.shared for name, d in pairs)
        if primitive is backward_p:  # would be summed over the batch
            alone = alone or bool({*operator.gradients} & operator.shared & {*names})
        if alone:
            return _one_by_one(functools.partial(primitive.bind, form=form, **moved), arrays, dims)
        given = []
        for (name, d), x in zip(pairs, arrays, strict=True):
            axis = 1 if name == "saved" else 0
            if d is not None:
                given.append(jnp.moveaxis(x, d, axis))
            elif name in operator.shared or name in operator.broadcast:
                given.append(x)
            else:
                shape = (*x.shape[:axis], length, *x.shape[axis:])
                given.append(jnp.broadcast_to(jnp.expand_dims(x, axis), shape))
        made = primitive.bind(*given, form=form, **moved)
        if primitive is forward_p:
            found = results(form, _shapes(given))
            return made, [1 if name == "saved" else 0 for name in found]
        return made, [0] * len(made)

    return rule


def _one_by_one(call: Callable[..., Any], arrays: Any, dims: Any) -> tuple[Any, Any]:
    many = [jnp.moveaxis(x, d, 0) for x, d in zip(arrays, dims, strict=True) if d is not None]

    def one(parts: Any) -> Any:
        own = iter(parts)
        return call(*(x if d is None else next(own) for x, d in zip(arrays, dims, strict=True)))

    made = jax.lax.map(one, many)
    return made, [0] * len(made)


def _register() -> None:
    def lowered(function: Callable[..., Any]) -> Any:
        return mlir.lower_fun(function, multiple_results=True)

    def native(function: Callable[..., Any]) -> Any:
        def rule(ctx: Any, *arrays: Any, form: CallForm) -> Any:
            split = splits(ctx.module_context.axis_context)
            return lowered(functools.partial(function, split=split))(ctx, *arrays, form=form)

        return rule

    mlir.register_lowering(forward_p, native(_forward_native), platform="cpu")
    mlir.register_lowering(forward_p, lowered(_forward_plain))
    mlir.register_lowering(tangent_p, lowered(_tangent_plain))
    mlir.register_lowering(backward_p, native(_backward_native), platform="cpu")
    mlir.register_lowering(backward_p, lowered(_backward_plain))
    ad.primitive_jvps[forward_p] = _forward_jvp
    ad.primitive_jvps[tangent_p] = _by_plain(_tangent_plain)
    ad.primitive_jvps[backward_p] = _by_plain(_backward_plain)
    ad.primitive_transposes[tangent_p] = _tangent_transpose
    for primitive in (forward_p, tangent_p, backward_p):
        batching.primitive_batchers[primitive] = _batched(primitive)
        register_sharded(primitive)


_register()
