"""Hints of the grader about files and answers that do not depend on the lab."""

import json

import numpy as np
import pytest
from answers import LABS, model
from grading import HERE, LAB, QUICK, RIGHT, changed, check, only, only_wrong

from kerneltrick.labs import grader
from kerneltrick.labs.grader import _compare

FOUR = {e.name for e in LAB.exercises} - {"elu_feature_map"}


def of_elu(found):
    """The result of the only function that is wrong."""
    assert {name for name, result in found.items() if result.right} == FOUR
    return found["elu_feature_map"]


class TestBadInput:
    def test_a_missing_function_is_named_and_the_others_are_graded(self):
        for other, more in (("elu_map", ""), ("elu_featuremap", "; did you mean elu_featuremap?")):
            found, report = check(RIGHT.replace("def elu_feature_map", f"def {other}"))
            assert of_elu(found).hint == f"the function is missing{more}"
            assert report.score == pytest.approx(4 / 5)
        found, _ = changed("elu_feature_map = 3")
        assert of_elu(found).hint == "the function is missing"

    def test_parameters_in_another_order_are_named(self):
        text = "def linear_attention_order(feature_map, Q, K, V, normalize=False): return V"
        assert changed(text)[0]["linear_attention_order"].hint == (
            "its parameters are (feature_map, Q, K, V, normalize); the order must be "
            "(Q, K, V, feature_map, normalize)"
        )
        assert changed("def simple_feature_map(x, scale=1.0): return x * scale")[1].right

    def test_a_wrong_signature_is_shown(self):
        result = of_elu(changed("def elu_feature_map(): return V")[0])
        assert result.hint.startswith("elu_feature_map() cannot be called with these arguments: ")
        assert result.line == RIGHT.count("\n") + 3

    def test_an_exception_comes_with_its_line(self):
        text = "def elu_feature_map(x):\n    y = np.exp(x)\n    return y @ y @ undefined\n"
        result = of_elu(changed(text)[0])
        line = RIGHT.count("\n") + 5
        assert result.line == line
        assert f"(line {line}: return y @ y @ undefined)" in result.hint
        assert result.passed == 0

    def test_a_syntax_error_is_held_against_its_function(self):
        for body in (
            "def elu_feature_map(x)\n    return x",
            "def elu_feature_map(x):\nreturn x",
            "def elu_feature_map(x):\n    if x:\n  return x",
            "def elu_feature_map(x):\n    s = '''never closed\n    return x",
            "@np.vectorize\ndef elu_feature_map(x):\n    return x x",
            "def elu_feature_map(x):\n    return (x",
            "def elu_feature_map(x):\n    nonlocal y\n    return x",
            "def elu_feature_map(x):\n    x = 1 +",
            "def elu_feature_map(x):\n",
        ):
            found, _ = check(f"import numpy as np\n\n\n{body}\n")
            assert "Error: " in found["elu_feature_map"].hint, body
            assert found["elu_feature_map"].line is not None, body
            of_elu(check(f"{RIGHT}\n\n\n{body}\n\n\ndef helper():\n    pass\n")[0])
        hint = of_elu(changed("def elu_feature_map(x):\n    return np.exp(x\n")[0]).hint
        assert hint.startswith("SyntaxError: '(' was never closed (line ")
        assert hint.endswith(": return np.exp(x)")
        found, _ = check("\x0c# \u2028\ndef elu_feature_map(x):\n    return x x\n")
        assert found["elu_feature_map"].hint.endswith("(line 3: return x x)")  # as Python counts

    def test_code_outside_the_functions_may_fail(self):
        lines = "import torch_that_nobody_has\nraise SystemExit\nprint(undefined)\n"
        found, report = changed(lines)
        assert all(f.right for f in found.values())
        assert not report.right
        hints = [problem.hint for problem in report.problems]
        assert "torch_that_nobody_has" in hints[0]
        assert hints[1].startswith("calls sys.exit outside the functions (line ")
        assert "undefined" in hints[2]

    def test_an_import_of_another_package_is_told_what_is_allowed(self):
        said = "cannot be imported here: use Python's own modules and numpy, matplotlib"
        for line in ("import scipy.linalg", "from helpers import softmax"):
            assert said in changed(line)[1].problems[0].hint
            found, _ = changed(f"def elu_feature_map(x):\n    {line}\n    return x\n")
            assert said in of_elu(found).hint
        more = "import math, dataclasses, collections.abc\nfrom numpy import linalg"
        assert changed(more)[1].right

    def test_what_is_no_text_has_a_hint(self):
        nothing = (b"\xff\xfe\x00", b"x = '\x00'", b"# coding: nonsense\n", b"", b"#" * (2**20 + 1))
        for source in nothing:
            report = grader.grade(LAB, source, server=HERE)
            assert report.score == 0
            assert all(f.hint for f in report.functions)
        assert report.problems[0].hint == "the file has 1,048,577 bytes; at most 1,048,576 are read"

    def test_encodings_and_line_ends(self):
        for encoding in ("utf-16", "latin-1"):
            report = grader.grade(LAB, ("# é\n" + RIGHT).encode(encoding, "replace"), server=HERE)
            assert report.functions[0].hint.endswith("save it as UTF-8")
        assert grader.grade(QUICK, RIGHT.encode("utf-8-sig"), server=HERE).right
        assert check(RIGHT.replace("\n", "\r\n"))[1].right


ANSWERS = {
    "print(x)": "returns None: is a `return` missing?",
    "return x.tolist()": "returns 6 values (a list); an array of shape (6, 4) is expected",
    "return x.T": "returns an array of shape (4, 6); (6, 4) is expected, its transpose",
    "return x[:, :2]": "returns an array of shape (6, 2); (6, 4) is expected",
    "return 1.0": "returns the number 1; an array of shape (6, 4) is expected",
    "return {'x': x}": "returns a dict with 'x'; an array",
    "return x + 0j": "real ones are expected",
    "return x > 0": "an array of bool",
    "return x.astype(object)": "returns an array of object",
    "return lambda: x": "returns an object of type function",
    "return 3 * x": "your answer is 3 times the right one",
    "return -x": "your answer is −1 times the right one",
    "return x / np.sqrt(x.shape[-1])": "your answer is 1/√d times the right one",
    "x *= 2\n    return x / 2": "changes its argument x in place",
    "return x * np.nan": "NaN in 24 of 24 entries",
    "return x / 0": "infinity in ",
    "return x + 1": "where",
    "raise ValueError('too bad')": "ValueError: too bad (line ",
    "import sys; sys.exit()": "calls sys.exit (line ",
    "raise KeyboardInterrupt": "raises KeyboardInterrupt (line ",
    "raise BaseException('no')": "BaseException: no (line ",
    "return simple_feature_map(x)": "RecursionError",
    "raise NotImplementedError": "not written yet",
    "return np.matrix(np.zeros((6, 4)))": "where",
}


def graded(number, text):
    """The result of the function that a text adds to the model answer of a lab."""
    lab, name = LABS[number], text.rpartition("\ndef ")[2].removeprefix("def ").partition("(")[0]
    found, _ = check(f"{model(lab)}\n\n{text}\n", lab=only(lab, {name}))
    return found[name]


class TestHints:
    """What needs no knowledge of the lab."""

    def test_of_an_answer(self):
        for body, hint in ANSWERS.items():
            found, _ = changed(f"def simple_feature_map(x):\n    {body}\n")
            assert hint in only_wrong(found, "simple_feature_map"), body

    def test_of_values_that_are_swapped_or_too_few(self):
        head = "def standard_attention_order(Q, K, V):\n    w = Q @ K.T\n    return "
        found, _ = changed(head + "w @ V, w, 1\n")
        assert "3 values (a tuple); 2 values" in found["standard_attention_order"].hint
        found, _ = changed(head + "w @ V, 2 * w\n")
        assert found["standard_attention_order"].hint == (
            "the second returned value is 2 times the right one"
        )
        found, _ = changed("def verify_associativity(Q, K, V): return 1\n")
        assert "True or False is expected" in found["verify_associativity"].hint

    def test_of_a_dict(self):
        text = "def compare_to_softmax(Q, K, f, scale=None):\n    return {'mse': 1}"
        assert graded("03", text).hint.startswith("the key 'max_diff' is missing")

    def test_of_a_mistake_asks_that_right_answers_agree_too(self):
        """Twice the pairs of a causal layer, otherwise right: not floating-point operations."""
        hint = graded(
            "01",
            "def softmax_multiply_adds(n, D, M, causal=False):\n"
            "    return (n * (n + 1) if causal else n * n) * (D + M)",
        ).hint
        assert hint.startswith("wrong ")
        assert hint.endswith("your answer is 2 times the right one")

    def test_of_the_wrong_exception(self):
        source = (
            "def compute_implicit_attention(Q, K, feature_map):\n"
            "    weights = feature_map(Q) @ feature_map(K).T\n"
            "    total = weights.sum(axis=AXIS, keepdims=True)\n"
            "    if (total == 0).any(): raise ValueError('no weight')\n"
            "    return weights / total"
        )
        hint = graded("03", source.replace("AXIS", "1")).hint
        assert hint.startswith("ValueError: no weight (line ")
        assert hint.endswith("for a query without weight, where ZeroDivisionError must be raised")
        hint = graded("03", source.replace("AXIS", "0")).hint
        assert hint.startswith("the columns add up to 1")

    def test_a_weight_of_zero_or_below_is_no_reason_to_raise(self):
        source = (
            "def compute_implicit_attention(Q, K, feature_map):\n"
            "    weights = feature_map(Q) @ feature_map(K).T\n"
            "    if (weights BOUND).any(): raise ZeroDivisionError\n"
            "    return weights / weights.sum(axis=1, keepdims=True)"
        )
        for bound in ("< 0", "== 0"):
            assert not graded("03", source.replace("BOUND", bound)).right

    def test_of_a_part_of_a_returned_value(self):
        found = graded(
            "07",
            "_right = recurrent_attention\n"
            "def recurrent_attention(*a, **k):\n"
            "    output, (U, Z) = _right(*a, **k)\n"
            "    return output, (Z, U)",
        )
        assert found.hint.startswith(
            "part 1 of the second returned value is an array of shape (4,); (4, 3) is expected"
        )

    def test_several_numbers_may_come_as_an_array(self):
        text = "_right = dot_product_moments\ndef dot_product_moments(*a, **k):\n    "
        text += "return np.array(_right(*a, **k)) * "
        assert graded("05", text + "1").right
        assert "third returned value is 2 times" in graded("05", text + "[1, 1, 2]").hint

    def test_never_says_that_an_answer_is_1_times_the_right_one(self):
        text = "_right = longest_context\n"
        text += "def longest_context(budget, heads=1, dtype='float32'):\n    return "
        for returned, hint in {
            "np.sqrt(budget / (heads * np.dtype(dtype).itemsize))": "your n is not rounded",
            "1.001 * np.sqrt(budget)": "which is not a whole number, where 4096 is right",
            "_right(budget, heads, dtype) + 1": "wrong for 64 MiB in float32, which n = 4096",
        }.items():
            found = graded("01", text + returned)
            assert hint in found.hint
            assert "times the right one" not in found.hint

    def test_of_a_transpose_that_reverses_the_batch(self):
        for first, scores in (
            ("", "Q @ K.T"),
            ("", "Q @ K.transpose()"),
            ("", "Q @ np.transpose(K)"),
            ("turned = K.T\n    ", "Q @ turned"),
        ):
            hint = graded(
                "05",
                f"def softmax_attention(Q, K, V, causal=False):\n    {first}scores = {scores}\n"
                "    scores = scores / np.sqrt(Q.shape[-1])\n"
                "    if causal:\n"
                "        scores = np.where(np.tri(len(Q)) > 0, scores, -np.inf)\n"
                "    weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
                "    return weights / weights.sum(-1, keepdims=True) @ V",
            ).hint
            said = "the arrays can have batch dimensions in front, here (2, 3, 6, 8)"
            assert hint.startswith(said)
            assert "np.swapaxes(x, -1, -2)" in hint
            assert "matmul" not in hint
            assert (first.strip() or scores) in hint  # the line with the transpose is quoted

    def test_of_two_lengths_where_there_are_more(self):
        body = "    n, d = x.shape\n    return np.where(x > 0, x, x) + n\n"
        hint = of_elu(changed(f"def elu_feature_map(x):\n{body}")[0]).hint
        assert hint.startswith("the arrays can have batch dimensions in front, here (2, 3, 4)")
        assert ".shape[-2:]" in hint

    def test_of_a_usual_mistake_is_given_although_an_edge_is_wrong_too(self):
        """Without the scale, and without the maximum: the scale comes first."""
        text = (
            "def softmax_attention(Q, K, V, causal=False):\n"
            "    weights = np.exp(Q @ np.swapaxes(K, -1, -2))\n"
            "    weights = np.tril(weights) if causal else weights\n"
            "    return weights / weights.sum(-1, keepdims=True) @ V"
        )
        assert graded("05", text).hint == "your output matches attention without the scale 1/√d"

    def test_of_an_overflow_does_not_depend_on_where_the_nan_is(self):
        for masked in ("np.tril(weights)", "weights * np.tri(Q.shape[-2])"):
            text = (
                "def softmax_attention(Q, K, V, causal=False):\n"
                "    weights = np.exp(Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1]))\n"
                f"    weights = {masked} if causal else weights\n"
                "    return weights / weights.sum(-1, keepdims=True) @ V"
            )
            assert graded("05", text).hint.startswith("your softmax overflows: subtract")

    def test_is_printable_and_short_whatever_was_returned(self):
        text = "def elu_feature_map(x):\n    raise ValueError('\\x1b[2J \\ud800 \\u202e \\0')\n"
        found, report = changed(text)
        assert of_elu(found).hint.isprintable()
        json.dumps(report.to_json(), ensure_ascii=False).encode()
        long = "{'k' * 9000 + str(i): i for i in range(100)}"
        assert len(of_elu(changed(f"def elu_feature_map(x):\n    return {long}\n")[0]).hint) <= 600

    def test_comparison(self):
        assert _compare.equal(np.float32(1), 1.0, 1e-4)
        assert not _compare.equal(True, 1.0, 1e-4)
        assert not _compare.equal(7, 8, 0.5)
        assert not _compare.equal(np.uint8(7), 1000, 0.5)
        assert not _compare.equal(np.int64(-(2**63)), 2**63, 0.5)
        assert _compare.equal(np.uint64(2**63), 2**63, 0.5)
        assert _compare.equal(8.0, 8, 1e-4)
        assert _compare.equal(np.array([np.nan, 1]), np.array([np.nan, 1]), 1e-4)
        assert not _compare.equal(np.array([0.0, 1]), np.array([np.nan, 1]), 1e-4)
        assert not _compare.equal(np.array([1e-5]), np.array([0.0]), 1e-4)
        assert not _compare.equal(np.ones((1, 3)), np.ones((2, 3)), 1e-4)  # not spread out to fit

    def test_comparison_entry_by_entry(self):
        right = np.array([3.0, 1e-6, 0.0, -np.inf])
        assert _compare.equal(np.float32(right), right, 1e-4, entrywise=True)
        for wrong in ([3.0, 2e-6, 0.0, -np.inf], [3.0, 1e-6, 1e-5, -np.inf], [3.0, 1e-6, 0.0, 9.0]):
            assert not _compare.equal(np.array(wrong), right, 1e-4, entrywise=True)
        zero = np.zeros(2)
        assert _compare.equal(zero + 1e-9, zero, 1e-4, entrywise=True)
        assert not _compare.equal(zero + 1e-4, zero, 1e-4, entrywise=True)
        assert _compare.equal((right, [1.0]), (right, [1.0]), 1e-4, entrywise=True)
