"""Exact numbers and normal forms, the two small pieces behind every definite verdict."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

sympy = pytest.importorskip("sympy")

import mpmath  # noqa: E402

from kerneltrick.proofs import _form, _normal, _number, _statement  # noqa: E402
from kerneltrick.proofs._evaluate import Scope, evaluate, vector_names  # noqa: E402
from kerneltrick.proofs._syntax import read_expression  # noqa: E402

FUNCTIONS = ["exp", "sin", "cos", "tanh", "cosh", "sinh", "sigmoid", "elu", "relu", "abs"]
fractions = st.fractions(min_value=-5, max_value=5, max_denominator=20)


def number(text, **letters):
    """The exact value of an expression."""

    def value():
        scope = Scope(text, {}, lambda name: _number.Number(letters[name]), _number.EXACTLY,
                      _number.Number, lambda x, p: x**p)  # fmt: skip
        return evaluate(read_expression(text), scope)

    return _number.exactly(value)


@given(st.sampled_from(FUNCTIONS), fractions)
def test_an_enclosure_holds_the_value(name, x):
    found = number(f"{name}(a) + 100", a=x)[1]
    with mpmath.workdps(80):
        own = {
            "sigmoid": lambda t: 1 / (1 + mpmath.exp(-t)),
            "elu": lambda t: t if t > 0 else mpmath.expm1(t),
            "relu": lambda t: max(t, mpmath.mpf(0)),
            "abs": abs,
        }.get(name) or getattr(mpmath, name)
        true = own(mpmath.mpf(x.numerator) / x.denominator) + 100
        if found.exact:
            assert mpmath.almosteq(
                true, mpmath.mpf(found.value.numerator) / found.value.denominator
            )
        else:
            assert found.value.a <= true <= found.value.b


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("0.1 + 0.2 - 0.3", 0),
        ("exp(0) - 1", 0),
        ("√4 - 2", 0),
        ("1/3 + 1/3 + 1/3 - 1", 0),
        ("exp(-1000)", 1),
        ("exp(-1000) - exp(-1001)", 1),
        ("exp(1) - 2.7182818284590", 1),
        ("exp(1) - 2.7182818284591", -1),
        ("√2*√2 - 2.000000000001", -1),
        ("pi - 3.1415926535897", 1),
        ("relu(-5)", 0),
        ("C(5, 2) - factorial(3) - 4", 0),
    ],
)
def test_signs_of_numbers_are_exact(text, sign):
    assert number(text)[0] == sign


@pytest.mark.parametrize(
    "text", ["√2*√2 - 2", "1/(1 - 1)", "√(1 - 2)", "log(0)", "exp(exp(exp(9)))", "(1 - 1)**-1"]
)
def test_what_has_no_clear_sign_or_no_value_has_none(text):
    assert number(text) is None


def form(text, d=None, **signs):
    node = read_expression(text)
    space = _normal.Space(vector_names(node) | {"q", "k"}, d, 0, signs)
    return _form.cleared(_normal.scalar(node, space))


@given(st.data())
def test_forms_keep_the_value(data):
    """A form evaluated at a point is the expression there, to 50 digits."""
    leaves = ["a", "b", "2", "0.5", "3", "√2"]
    unary = ["exp({})", "relu({})", "elu({})", "cos({})", "tanh({})", "abs({})", "({})**2", "-({})"]
    binary = ["({}) + ({})", "({}) - ({})", "({})*({})", "max({}, {})", "({})/(1 + ({})**2)"]

    def build(depth):
        if depth == 0:
            return data.draw(st.sampled_from(leaves))
        if data.draw(st.booleans()):
            return data.draw(st.sampled_from(unary)).format(build(depth - 1))
        return data.draw(st.sampled_from(binary)).format(build(depth - 1), build(depth - 1))

    text = build(data.draw(st.integers(1, 3)))
    point = {"a": data.draw(fractions), "b": data.draw(fractions)}
    try:
        found = _normal.scalar(read_expression(text), _normal.Space(set(), None, 0))
    except _form.NotNormalError:
        return
    exact = number(text, **point)
    if exact is None:
        return
    with mpmath.workdps(50):
        own = _value(found, {k: mpmath.mpf(v.numerator) / v.denominator for k, v in point.items()})
        wanted = mpmath.mpf(float(exact[1]))
        assert abs(own - wanted) <= 1e-12 * (1 + abs(wanted)), text


def _value(form, point):
    """A form as a number, by mpmath."""
    total = mpmath.mpf(0)
    for monomial, c in form.terms.items():
        term = mpmath.mpf(c.numerator) / c.denominator
        for atom, e in monomial:
            term *= _atom(atom, point) ** (mpmath.mpf(e.numerator) / e.denominator)
        total += term
    return total.real


def _atom(atom, point):
    kind, *parts = atom
    if kind == "name":
        return point[parts[0]]
    if kind == "prime":
        return mpmath.mpf(parts[0])
    if kind in ("exp", "cos", "sin"):
        inner = _value(_form.Form({parts[0]: Fraction(1)}), point)
        return getattr(mpmath, kind)(inner / (parts[1] if kind != "exp" else 1))
    inner = _value(parts[0], point)
    return {"abs": abs, "power": lambda x: x, "log": mpmath.log}[kind](inner)


EQUAL = [
    ("(q·k + 1)**16", "((q·k + 1)**8)**2"),
    ("sum(i<=j<=l, 1)", "C(d + 2, 3)"),
    ("sum(i<j<l, q[i]*q[j]*q[l])", "(sum(q)**3 - 3*sum(q)*norm2(q) + 2*sum(i, q[i]**3))/6"),
    ("exp(q·k)", "exp(norm2(q)/2)*exp(norm2(k)/2)*exp(-norm2(q - k)/2)"),
    ("1/(a + b) + 1/(a - b)", "2*a/(a**2 - b**2)"),
    ("√6", "√2*√3"),
    ("√(1/2)", "√2/2"),
    ("cos(3*a)", "4*cos(a)**3 - 3*cos(a)"),
    ("sqrt((a + b)**2)", "abs(a + b)"),
]
DIFFERENT = [
    ("sqrt(a**2)", "a"),
    ("sqrt(a*b)", "sqrt(a)*sqrt(b)"),
    ("sum(i<=j, q[i]*q[j])", "sum(i<j, q[i]*q[j])"),
    ("sum(i<j, q[i]*k[j])", "sum(i<j, k[i]*q[j])"),
    ("d", "1"),
    ("(a + b)**2", "a**2 + b**2"),
    ("abs(a + b)", "abs(a) + abs(b)"),
    ("log(a*b)", "log(a) + log(b)"),
    ("√2", "1.4142135623"),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal_expressions_have_one_form(left, right):
    assert not form(f"({left}) - ({right})")


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_expressions_have_different_forms(left, right):
    assert form(f"({left}) - ({right})")


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "text",
    [
        "sum(i<j, q[i]*k[j])", "sum(i<=j, q[i]*q[j]**2)", "sum(i<j<l, q[i]*q[j]*q[l])",
        "sum(i<=j<=l, q[i]*q[j]*q[l])", "sum(i, j, q[i]*k[j])", "sum(i, q[i]*sum(j<l, k[j]*k[l]))",
        "norm2(q - 2*k)*sum(q)", "sum(i<j, (q[i] - q[j])**2)", "sum(i, j, l, q[i]*k[j]*q[l])",
    ],
)  # fmt: skip
def test_sums_in_all_dimensions_are_those_of_each(text, d):
    """The form for every d equals the form for this d once power sums are inserted."""
    node = read_expression(text)
    every = _normal.scalar(node, _normal.Space({"q", "k"}, None, 0))
    here = _normal.Space({"q", "k"}, d, d)

    def put(m, place):
        product = _form.number(1)
        for a, e in m:
            product = product * _form.power(_form.atom("at", a[1], place), e)
        return product

    def leaf(a):
        if a[0] == "rest":
            return _form.number(d)
        if a[0] == "sum":
            return sum((put(a[1], i) for i in range(d)), _form.Form({}))
        if a[0] == "ordered":
            pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
            return sum((put(a[1], i) * put(a[2], j) for i, j in pairs), _form.Form({}))
        return None

    assert _form.rebuilt(every, leaf, here.known) == _normal.scalar(node, here)


def test_too_large_a_form_is_refused_at_once():
    letters = " + ".join("abcefghmnop")
    with pytest.raises(_form.NotNormalError, match="more than"):
        form(f"({letters})**16")


def test_a_point_that_misses_a_condition_breaks_nothing():
    left, zero = read_expression("a"), read_expression("0")
    positive = _statement.Condition(left, ">", zero)
    statement = _statement.Statement("a = 0 where a > 0", left, "=", zero, (positive,))
    assert _statement.breaks(statement, 1, {"a": Fraction(2)}) is not None
    assert _statement.breaks(statement, 1, {"a": Fraction(-2)}) is None
    irrational = _statement.Condition(read_expression("a**2"), "=", read_expression("2"))
    statement = statement._replace(conditions=(irrational,))
    near = Fraction(math.isqrt(2 * 10**60), 10**30)
    assert _statement.breaks(statement, 1, {"a": near}) is None
