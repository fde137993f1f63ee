"""Engines behind one protocol, and the choice among them.

An operator (linear attention, the delta rule) has engines of its own. An engine says from a
signature whether it runs a call (`supports`), does once for each signature what needs no values
(`prepare`), and runs the call on its arrays (`run`). "auto" is the first engine of an order that
supports the call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from kerneltrick._arrays import Array, dtype_name, is_concrete, jit, library
from kerneltrick.engines._convolution import ConvolutionData, ConvolutionResult, ConvolutionRule
from kerneltrick.engines._delta_problem import DeltaData, DeltaResult, DeltaRule
from kerneltrick.engines._problem import Data, Result, Rule
from kerneltrick.engines._scan import ScanData, ScanResult, ScanRule

# How the host library treats the values of a call:
#   eager     they are at hand, and nobody asks for gradients;
#   recorded  gradients may be asked for, or the call is traced;
#   foreign   the core cannot have them: another device, another class of tensors, tangents;
#   onnx      the call is being written as ONNX, which does not know our operators.
Host = Literal["eager", "recorded", "foreign", "onnx"]


AnyRule: TypeAlias = Rule | DeltaRule | ConvolutionRule | ScanRule
AnyData: TypeAlias = Data | DeltaData | ConvolutionData | ScanData
AnyResult: TypeAlias = Result | DeltaResult | ConvolutionResult | ScanResult


class Signature(NamedTuple):
    """All about a call but the values of its arrays."""

    rule: Any  # an AnyRule
    library: str
    dtype: str
    decay_width: int
    has_log_scale: bool
    host: Host


def signature_of(rule: AnyRule, data: AnyData) -> Signature:
    """The signature of a call, whose library and dtype are those of its first array."""
    name, decay = library(data[0]), getattr(data, "log_decay", None)
    width = 0 if decay is None else int(decay.shape[-1])
    scaled = isinstance(data, Data) and data.carry.log_scale is not None
    return Signature(rule, name, dtype_name(data[0]), width, scaled, _host(name, rule, data))


def _host(name: str, rule: AnyRule, data: AnyData) -> Host:
    if name == "numpy" and not rule.weighted:
        return "eager"
    weights = rule.fused[1:] if isinstance(rule, Rule) and rule.fused is not None else ()
    if name == "jax":
        from kerneltrick.engines import _jax_host

        return _jax_host.host((*arrays_of(data), *weights))
    if name != "torch":
        return "eager" if all(x is None or is_concrete(x) for x in weights) else "foreign"
    from kerneltrick.engines import _torch_host

    tokens = data.k if isinstance(data, (Data, DeltaData)) else data.x
    if isinstance(rule, Rule) and rule.starts_empty:  # an empty state is ours, without a gradient
        given = [x for x in data if hasattr(x, "dtype")]
    else:
        given = arrays_of(data)
    return _torch_host.host(rule, (*given, *weights), tokens)


def arrays_of(parts: tuple[Any, ...]) -> list[Array]:
    """Every array of a call, which may hold numbers and tuples too."""
    found = []
    for x in parts:
        if isinstance(x, tuple):
            found += arrays_of(x)
        elif hasattr(x, "dtype"):
            found.append(x)
    return found


def _anything(signature: Signature) -> bool:
    return True


def _the_rule(signature: Signature) -> Any:
    rule = signature.rule
    if isinstance(rule, Rule) and rule.starts_empty:  # one program serves with and without a state
        rule = dataclasses.replace(rule, starts_empty=False)
    return rule


def _no_reason(signature: Signature) -> Exception:
    return ValueError(f"no engine runs {signature}")


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
    """One way to run the recurrence of an operator."""

    name: str
    run: Callable[[Any, Any], Any]  # of what `prepare` made, and the arrays
    supports: Callable[[Signature], bool] = _anything
    prepare: Callable[[Signature], Any] = _the_rule
    reason: Callable[[Signature], Exception] = _no_reason  # why a call is not supported
    operator: str = "attention"  # or another key of ENGINES


# By operator, then by name.
ENGINES: dict[str, dict[str, Engine]] = {
    "attention": {},
    "delta_rule": {},
    "short_convolution": {},
    "selective_scan": {},
}
# What `engine=` may say beside a name: the engines to try, in order. "exact" is for attention whose
# weights are all exact.
ORDERS: dict[str, dict[str, list[str]]] = {
    "attention": {"auto": [], "exact": []},
    "delta_rule": {"auto": []},
    "short_convolution": {"auto": []},
    "selective_scan": {"auto": []},
}


def register(engine: Engine, *, orders: tuple[str, ...] = (), first: bool = False) -> Engine:
    """Make an engine known by its name, and try it in these orders: first of all, or last.

    >>> import kerneltrick as kt
    >>> list(kt.engines.ENGINES["attention"])
    ['native', 'onnx', 'chunked', 'recurrent', 'dense']
    >>> kt.engines.ORDERS["attention"]["auto"]
    ['native', 'onnx', 'chunked']
    """
    _prepared.cache_clear()
    ENGINES[engine.operator][engine.name] = engine
    for order in orders:
        names = ORDERS[engine.operator][order]
        names.insert(0 if first else len(names), engine.name)
    return engine


@overload
def run(engine: str, rule: Rule, data: Data) -> Result: ...


@overload
def run(engine: str, rule: DeltaRule, data: DeltaData) -> DeltaResult: ...


@overload
def run(engine: str, rule: ConvolutionRule, data: ConvolutionData) -> ConvolutionResult: ...


@overload
def run(engine: str, rule: ScanRule, data: ScanData) -> ScanResult: ...


def run(engine: str, rule: AnyRule, data: AnyData) -> AnyResult:
    """Run a checked call by an engine, or by the first engine of an order that supports it."""
    signature, keep = signature_of(rule, data), not rule.weighted
    # What can change behind our back is prepared each time.
    chosen, prepared = _prepared(engine, signature) if keep else _prepare(engine, signature)
    result: AnyResult = jit(chosen.run, prepared, data, like=data[0], keep=keep)
    return result


def _prepare(engine: str, signature: Signature) -> tuple[Engine, Any]:
    """The engine of this name, or the first of this order, and what it prepares for a call."""
    operator = signature.rule.operator
    engines, orders = ENGINES[operator], ORDERS[operator]
    if engine not in engines and engine not in orders:
        raise ValueError(f"unknown engine {engine!r}; use auto, {', '.join(engines)}")
    names = orders.get(engine, (engine,))
    for name in names:
        chosen = engines[name]
        if chosen.supports(signature):
            return chosen, chosen.prepare(signature)
    raise engines[names[0]].reason(signature)


_prepared = functools.lru_cache(maxsize=256)(_prepare)
