"""The compiled core for JAX's arrays on the CPU: the delta rule as an operator of JAX's."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from kerneltrick._arrays import compute_dtype, index_dtype
from kerneltrick.engines import _delta_native
from kerneltrick.engines._core_call import CoreCall
from kerneltrick.engines._delta_chunked import delta_chunked
from kerneltrick.engines._delta_native import DeltaArguments, DeltaGradients
from kerneltrick.engines._delta_problem import DeltaData, DeltaResult, DeltaRule, delta_rule_of
from kerneltrick.engines._jax_operator import OPERATORS, Arrays, JaxOperator, forward
from kerneltrick.engines._native import type_number
from kerneltrick.engines._xla_call import CallForm

ARRAYS = DeltaArguments._fields[: DeltaArguments._fields.index("rule")]


def jax_delta_rule(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    """A call on JAX's arrays."""
    given = _delta_native.delta_arguments(rule, data._replace(start=0))
    arrays = {name: x for name, x in zip(ARRAYS, given, strict=False) if x is not None}
    if data.state is not None:
        arrays["start"] = jnp.asarray(data.start, index_dtype(data.q))
    made = forward(CallForm("delta_rule", False, (), rule.text, False), arrays)
    return DeltaResult(made["output"], made["state"] if rule.wants_state else None)


def _describe(form: CallForm, arrays: Any, dtype: str) -> tuple[CoreCall, dict[str, Any]]:
    fields = {name: arrays.get(name) for name in ARRAYS}
    given = DeltaArguments(**fields, rule=form.rule, start=0, gradient=form.gradient)
    call = _delta_native.assemble(given, type_number(dtype))
    if form.backward:
        last = (arrays["d_output"], arrays.get("d_state"), arrays["states"])
        return call, _delta_native.give_gradients(given, call, *last)._asdict()
    return call, _delta_native.give_results(given, call)._asdict()


def _unstack(form: CallForm, made: Arrays, given: Arrays) -> Arrays:
    """Gradients of what value heads share are summed over them."""
    for name in ("q", "k", "erase", "read"):
        if name in given and made[name].shape != given[name].shape:
            heads, x = given[name].shape[-3], made[name].astype(compute_dtype(given[name]))
            made[name] = x.reshape(*x.shape[:-3], heads, -1, *x.shape[-2:]).sum(-3)
    return made


def _plain(form: CallForm, arrays: Arrays) -> Arrays:
    rule = dataclasses.replace(delta_rule_of(form.rule), wants_state=True)
    given = (arrays.get(name) for name in ARRAYS)
    made = delta_chunked(rule, DeltaData._make((*given, arrays.get("start", 0))))
    found = {"output": made.output, "state": made.state}
    return {name: x for name, x in found.items() if x is not None}


OPERATORS["delta_rule"] = JaxOperator(
    describe=_describe,
    plain=_plain,
    wide={},
    gradients=DeltaGradients._fields,
    state="state",
    kept=("states",),
    shared=frozenset({"start"}),
    broadcast=frozenset({"mask", "restart"}),
    stack=lambda form, arrays: (arrays, (0, 0)),
    unstack=_unstack,
)
