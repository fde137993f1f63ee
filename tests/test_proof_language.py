"""The language of claims: what is accepted, what is refused, and where errors point."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402
from kerneltrick.proofs import _syntax  # noqa: E402

HOSTILE = [
    "__import__('os').system('true')",
    "().__class__.__bases__",
    "q.k",
    "x.T",
    "9**9**9**9",
    "((x**9)**9)**9",
    "2**1000000000",
    "9" * 400,
    "(" * 400,
    "-" * 999 + "1",
    "1" + "+1" * 600,
    "x" * 5000,
    "√" * 200 + "2",
    "exp(" * 60 + "1" + ")" * 60,
    "lambda: 0",
    "[x for x in y]",
    "f'{1}'",
    "1e999",
    "a; b",
    "a\x00b",
    "😀",
    "",
    "   ",
    "=",
    "1 = = 2",
    "sum(i, )",
    "sum(i, i)",
    "sum(i<i, 1)",
    "q[1",
    "q[99] = 1",
    "q[0] = 1",
    "q[1.5] = 1",
    "factorial(999999999) = 1",
    "C(99999999, 9999999) = 1",
    "1/0 = 1",
    "open(1) = 1",
    "eval(1) = 1",
    "x**x = 1",
    "x**-(2**3**2) = 1",
    "²",
    "a = 1 where a = a",
    "a = 1 where a = b, b = a",
]


@pytest.mark.parametrize("kind", ["identity", "map", "sign", "psd", "moments", "cost", "dimension"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_after_little_work_and_never_called_true(kind, text):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        status = proofs.prove(kind, text, timeout=None).status
    except ValueError as error:
        status = str(error)
    finally:
        sys.setprofile(None)
    assert status != "true"
    assert calls < 500_000


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("1 + = 2", 4, "expected a number"),
        ("(1 + 2 = 3", 7, "expected ')'"),
        ("1 + 2 3 = 3", 6, "end or an operator"),
        ("foo(1) = 1", 0, "unknown function 'foo'"),
        ("q*k = 1", 1, "write q·k"),
        ("q + 1 = 2", 2, "this is a vector"),
        ("1 = q.k", 5, "no attributes"),
        ("9**9**9 = 1", 1, "exponents are numbers"),
        ("a**b = 1", 3, "an exponent must be a number"),
        ("exp = 1", 0, "is a function"),
        ("x[j] = 1", 2, "the index j has no sum"),
        ("sum(a, 1) = 1", 4, "the indices of a sum"),
        ("dot(q) = 1", 0, "takes 2 arguments"),
    ],
)
def test_errors_point_at_the_character(text, at, says):
    with pytest.raises(
        proofs.ClaimError, match=says.replace("(", r"\(").replace(")", r"\)")
    ) as caught:
        proofs.prove("identity", text, timeout=None)
    assert caught.value.at == at
    *_, shown, caret = str(caught.value).splitlines()
    assert shown[caret.index("^")] == (text + " ")[at]


def test_errors_in_a_part_point_into_the_whole_claim():
    for kind, text, sign in (
        ("map", "[1, foo(x)] gives q·k", "f"),
        ("map", "[x] gives q·k + bar(2)", "b"),
        ("cost", "softmax: O(n*z)", "z"),
        ("cost", "softmax memory: O(n*(D + ?)", "?"),
        ("dimension", "elu has d+y features", "y"),
    ):
        with pytest.raises(proofs.ClaimError) as caught:
            proofs.prove(kind, text, timeout=None)
        assert text[caught.value.at] == sign, str(caught.value)


@given(st.text(alphabet="qkx[]()+-*/·^=<>,.ij12 sumexp√²", max_size=40))
def test_any_text_is_read_or_refused(text):
    at = 0
    try:
        _syntax.read_relation(text)
    except proofs.ClaimError as error:
        at = error.at
    assert 0 <= at <= len(text)


@given(st.data())
def test_expressions_have_the_value_python_gives_them(data):
    """The grammar's precedence against Python's own, on arithmetic without names."""
    number = st.integers(0, 9).map(str)
    text = data.draw(number)
    for _ in range(data.draw(st.integers(1, 6))):
        sign = data.draw(st.sampled_from([" + ", " - ", "*", " + -", "*-"]))
        text += sign + data.draw(number)
        if data.draw(st.booleans()):
            text += "**" + data.draw(st.integers(0, 3).map(str))
        if data.draw(st.booleans()):
            text = f"({text})"
    found = proofs.check_identity(f"{text} = {eval(text)}")
    assert found, str(found)
