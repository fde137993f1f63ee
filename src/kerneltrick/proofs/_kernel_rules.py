"""Prove by rules that a kernel is positive semi-definite (psd).

ψ is conditionally negative definite if Σ wᵢwⱼψ(xᵢ, xⱼ) ≤ 0 for all w with Σ wᵢ = 0. Then e^{−tψ}
is psd for every t > 0 (Schoenberg 1938), and so are mixtures of these, such as ψ⁻ᵖ for ψ > 0. Also
ψᵖ for ψ ≥ 0 and 0 < p < 1, and log ψ for ψ > 0, are conditionally negative definite (Bernstein
functions; Berg, Christensen and Ressel 1984, Chapter 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from kerneltrick.proofs._form import Form, NotNormalError
from kerneltrick.proofs._interval import same
from kerneltrick.proofs._normal import Space, scalar
from kerneltrick.proofs._psd_form import KERNEL, conditional_by_form, kernel_by_form
from kerneltrick.proofs._sign_of_form import sign_of_node
from kerneltrick.proofs._syntax import Node, names, renamed

_HALF = Fraction(1, 2)
NONE = Form({})
Signed = tuple[int, Node]


class _Where(NamedTuple):
    """Where an expression stands: the meaning of its names, and of the indices of sums."""

    space: Space
    labels: Mapping[str, str]  # of the indices of the sums around it

    @property
    def least(self) -> int:
        return 0 if self.space.places else 1

    def form(self, node: Node) -> Form | None:
        try:
            return scalar(node, self.space, self.labels)
        except (NotNormalError, ZeroDivisionError):
            return None

    def is_positive(self, node: Node, *, strictly: bool = True) -> bool:
        found = sign_of_node(node, self.space, {}, 1, self.labels).sign
        return found == "positive" or (found == "non-negative" and not strictly)

    def inside(self, indices: Node) -> _Where:
        """A sum over coordinates of kernels is one, for any coordinates that the indices mean."""
        own = {str(x.value): f"{x.value}{len(self.labels)}" for x in indices.parts}
        return _Where(Space({"q", "k"}, None, self.space.places), {**self.labels, **own})


def proof(node: Node, space: Space) -> list[str] | None:
    """The steps of a proof that an expression in q and k is psd; None if there is none."""
    steps: list[str] = []
    return list(dict.fromkeys(steps)) if _psd(node, _Where(space, {}), steps) else None


def _psd(node: Node, at: _Where, steps: list[str]) -> bool:
    """Whether rules or the coefficients of its normal form prove that an expression is psd.

    The steps of the proof are appended to `steps`."""
    return _tried(_by_rules, node, at, steps) or _by_form(node, at, steps)


def _tried(
    rule: Callable[[Node, _Where, list[str]], bool],
    node: Node,
    at: _Where,
    steps: list[str],
) -> bool:
    own: list[str] = []
    if not rule(node, at, own):
        return False
    steps += own
    return True


def _by_form(node: Node, at: _Where, steps: list[str]) -> bool:
    for x in (node, *_with_kernel_as_letter(node, at)):
        form = at.form(x)
        reason = None if form is None else kernel_by_form(form, at.least)
        if reason is not None:
            steps.append(reason)
            return True
    return _tried(_vanishing_at_zero, node, at, steps)


def _with_kernel_as_letter(node: Node, at: _Where) -> Iterator[Node]:
    """The expression with the letter K for a kernel in an exponent, as in e^K − 1 − K."""
    for exponent in _exponents(node):
        for x in (x for _, addend in _addends(exponent) for x in _factors(addend)):
            if names(x) >= {"q", "k"} and not is_dot(x) and _tried(_by_rules, x, at, []):
                yield _put(node, x, Node("name", x.at, KERNEL))


def _exponents(node: Node) -> Iterator[Node]:
    if node.kind == "call" and node.value in ("exp", "cosh", "sinh"):
        yield node.parts[0]
    for part in node.parts if node.kind != "sum" else ():  # a sum has its own place
        yield from _exponents(part)


def _put(node: Node, old: Node, new: Node) -> Node:
    if same(node, old) or node.kind == "sum":
        return new if same(node, old) else node
    return node._replace(parts=tuple(_put(part, old, new) for part in node.parts))


def _vanishing_at_zero(node: Node, at: _Where, steps: list[str]) -> bool:
    """K is psd if −K is conditionally negative definite and K(q, 0) is a constant ≥ 0."""
    space = Space({"q", "k"}, at.space.d, at.space.places)
    space.vectors["k"] = space.vectors["k"].each(lambda _: Form({}))
    form = _Where(space, at.labels).form(node) if not at.labels else None
    constant = None if form is None else form.constant
    steps.append(
        "K is psd if −K is conditionally negative definite and K(q, 0) is constant and ≥ 0"
    )
    return constant is not None and constant >= 0 and _conditional(node, 1, at, steps)


def _by_rules(node: Node, at: _Where, steps: list[str]) -> bool:
    name = str(node.value)
    if not names(node) & {"q", "k"}:
        steps.append("a constant ≥ 0 is a kernel")
        return at.is_positive(node, strictly=False)
    if is_dot(node):
        steps.append("q·k is a Gram matrix")
        return True
    if node.kind == "call" and name == "cosine":
        steps.append("the cosine is the dot product of unit vectors")
        return [str(x.value) for x in node.parts] in (["q", "k"], ["k", "q"])
    if node.kind == "call" and name in ("exp", "cosh", "sinh"):
        if _tried(_psd, node.parts[0], at, steps):
            steps.append(f"{name} has a power series with coefficients ≥ 0")
            return True
        steps.append("e^{−ψ} is psd if ψ is conditionally negative definite (Schoenberg)")
        return name == "exp" and _conditional(node.parts[0], 1, at, steps)
    if node.kind == "sum":
        steps.append("sums of kernels are kernels")
        return _psd(node.parts[1], at.inside(node.parts[0]), steps)
    if node.kind == "op" and name in "+-":
        return _is_sum_of_kernels(_addends(node), at, steps)
    if node.kind == "op" and name in "*/":
        return _is_product_of_kernels(_factors(node), at, steps)
    return _is_power(node, at, steps)


def _is_sum_of_kernels(addends: list[Signed], at: _Where, steps: list[str]) -> bool:
    """Whether addends are kernels, or some of them together make up for those that are not."""
    kernels = [x for x in addends if x[0] > 0 and _tried(_psd, x[1], at, steps)]
    left = [x for x in addends if x not in kernels]
    steps.append("sums of kernels are kernels")
    with_form = [x for x in kernels if kernel_by_form(at.form(x[1]) or NONE, at.least)]
    groups = [left + with_form, *(([x, *left]) for x in kernels)]
    proper = [x for x in groups if len(x) < len(addends)]  # the whole is left to its caller
    return not left or any(_tried(_by_form, _sum_of(x), at, steps) for x in proper)


def _is_product_of_kernels(factors: list[Node], at: _Where, steps: list[str]) -> bool:
    """Whether factors are kernels, or functions of q and the same functions of k."""
    mixed = [x for x in factors if len(names(x) & {"q", "k"}) != 1]
    alone = [(1, x) for x in factors if len(names(x) & {"q", "k"}) == 1]
    if not _mirrored(alone):
        return False
    if alone:
        steps.append("f(q)·f(k) is a Gram matrix with one feature")
    if mixed:
        steps.append("products of kernels are kernels (Schur)")
    return all(_psd(x, at, steps) for x in mixed)


def _is_power(node: Node, at: _Where, steps: list[str]) -> bool:
    """Whether a power with a whole exponent, or one < 0, is a kernel."""
    base, e = _as_power(node)
    if e.denominator == 1 and e >= 0 and base is not node:
        steps.append("products of kernels are kernels (Schur)")
        return _psd(base, at, steps)
    while e < 0 and _as_power(base)[1] > 1:  # 1/(ψ²) is ψ⁻²
        base, e = _as_power(base)[0], e * _as_power(base)[1]
    steps.append("ψ⁻ᵖ is a mixture of e^{−tψ}, psd if ψ > 0 is conditionally negative definite")
    return e < 0 and at.is_positive(base) and _conditional(base, -1, at, steps)


def _conditional(node: Node, sign: int, at: _Where, steps: list[str]) -> bool:
    """Whether −sign·node is conditionally negative definite."""
    form = at.form(node)
    if form is not None and conditional_by_form(form.times(Fraction(sign)), at.least):
        return True
    is_sum = node.kind == "neg" or (node.kind == "op" and node.value in ("+", "-"))
    if sign > 0 and not is_sum and _tried(_by_rules, node, at, steps):
        return True
    if node.kind == "sum":
        return _conditional(node.parts[1], sign, at.inside(node.parts[0]), steps)
    if is_sum:
        return _is_conditional_sum([(sign * s, x) for s, x in _addends(node)], at, steps)
    if node.kind == "op" and str(node.value) in "*/":
        factors = _factors(node)
        mixed = [x for x in factors if names(x) & {"q", "k"}]
        constants = [x for x in factors if x not in mixed]
        below = [x for x in constants if not at.is_positive(x)]
        if len(mixed) != 1 or not all(at.is_positive(_negated(x)) for x in below):
            return False
        return _conditional(mixed[0], sign * (-1) ** len(below), at, steps)
    base, e = _as_power(node)
    is_log = node.kind == "call" and node.value == "log"
    if sign > 0 or not (is_log or 0 < e < 1):
        return False
    base = node.parts[0] if is_log else base
    steps.append("roots and logarithms of ψ are conditionally negative definite if ψ is")
    return at.is_positive(base, strictly=is_log) and _conditional(base, -1, at, steps)


def _is_conditional_sum(addends: list[Signed], at: _Where, steps: list[str]) -> bool:
    """Whether addends are constants, f(q) + f(k), or each conditionally definite."""
    alone = [(s, x) for s, x in addends if len(names(x) & {"q", "k"}) == 1]
    mixed = [(s, x) for s, x in addends if len(names(x) & {"q", "k"}) == 2]
    return _mirrored(alone) and all(_conditional(x, s, at, steps) for s, x in mixed)


def _addends(node: Node, sign: int = 1) -> list[Signed]:
    if node.kind == "neg":
        return _addends(node.parts[0], -sign)
    if node.kind == "op" and node.value in ("+", "-"):
        second = sign if node.value == "+" else -sign
        return [*_addends(node.parts[0], sign), *_addends(node.parts[1], second)]
    return [(sign, node)]


def _factors(node: Node) -> list[Node]:
    """The factors of a product. Those that it is divided by have negative exponents."""
    if node.kind != "op" or node.value not in ("*", "/"):
        return [node]
    left, right = map(_factors, node.parts)
    return [*left, *(right if node.value == "*" else map(_inverse, right))]


def _inverse(node: Node) -> Node:
    return Node("op", node.at, "**", (node, Node("number", node.at, Fraction(-1))))


def _negated(node: Node) -> Node:
    return Node("neg", node.at, "-", (node,))


def _sum_of(addends: list[Signed]) -> Node:
    total = Node("number", 0, Fraction(0))
    for sign, x in addends:
        total = Node("op", x.at, "+" if sign > 0 else "-", (total, x))
    return total


def _as_power(node: Node) -> tuple[Node, Fraction]:
    """A root, a norm or an absolute value as a power of what is under the root."""
    square = Node("number", node.at, Fraction(2))
    if node.kind == "op" and node.value == "**":
        exponent = node.parts[1].value
        assert isinstance(exponent, Fraction)
        return node.parts[0], exponent
    if node.kind == "call" and node.value == "sqrt":
        return node.parts[0], _HALF
    if node.kind == "call" and node.value == "norm":
        return node._replace(value="norm2"), _HALF
    if node.kind == "call" and node.value == "abs":
        return Node("op", node.at, "**", (node.parts[0], square)), _HALF
    return node, Fraction(1)


def _mirrored(parts: list[Signed]) -> bool:
    """Whether the parts are functions of q and the same functions of k, with the same signs."""
    left = [(s, x) for s, x in parts if "k" in names(x)]
    for sign, x in parts:
        if "q" in names(x):
            twin = renamed(x, "q", "k")
            match = next((i for i, (s, y) in enumerate(left) if s == sign and same(twin, y)), None)
            if match is None:
                return False
            del left[match]
    return not left


def is_dot(node: Node) -> bool:
    dot = (node.kind == "op" and node.value == "·") or (node.kind == "call" and node.value == "dot")
    words = [str(part.value) for part in node.parts if part.kind == "name"]
    return dot and sorted(words) == ["k", "q"]
