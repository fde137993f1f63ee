"""Hints of the grader about files and answers that do not depend on the lab."""

import json

import numpy as np
import pytest
from answers import LABS, model
from grading import LAB, RIGHT, changed, check, only

from kerneltrick.labs import grader
from kerneltrick.labs.grader import _compare


class TestBadInput:
    def test_a_missing_function_is_named_and_the_others_are_graded(self, server):
        found, report = check(RIGHT.replace("def elu_feature_map", "def elu_map"), server)
        assert found["elu_feature_map"].hint == "the function is missing"
        assert sum(f.right for f in found.values()) == 4
        assert report.score == pytest.approx(4 / 5)

    def test_a_misspelt_function_is_found(self, server):
        found, _ = check(RIGHT.replace("def elu_feature_map", "def elu_featuremap"), server)
        assert found["elu_feature_map"].hint == (
            "the function is missing; did you mean elu_featuremap?"
        )

    def test_parameters_in_another_order_are_named(self, server):
        found, _ = changed(
            "def linear_attention_order(feature_map, Q, K, V, normalize=False): return V", server
        )
        assert found["linear_attention_order"].hint == (
            "its parameters are (feature_map, Q, K, V, normalize); the order must be "
            "(Q, K, V, feature_map, normalize)"
        )

    def test_further_parameters_with_defaults_do_no_harm(self, server):
        assert changed("def simple_feature_map(x, scale=1.0): return x * scale", server)[1].right

    @pytest.mark.parametrize("statement", ["result = endless()", "@endless()\ndef helper(): pass"])
    def test_a_statement_that_never_ends_stops_no_function(self, statement, hurried):
        text = f"def endless():\n    while True:\n        pass\n\n\n{statement}\n"
        found, report = changed(text, hurried)
        assert all(f.right for f in found.values())
        assert report.problems[0].hint.startswith("never ends, or takes too long while the file")

    def test_a_name_that_is_no_function(self, server):
        found, _ = changed("elu_feature_map = 3", server)
        assert found["elu_feature_map"].hint == "the function is missing"

    def test_a_wrong_signature_is_shown(self, server):
        found, _ = changed("def linear_attention_order(Q, K, V): return V", server)
        result = found["linear_attention_order"]
        assert result.hint.startswith(
            "linear_attention_order(Q, K, V) cannot be called with these arguments: "
        )
        assert result.line is not None
        assert sum(f.right for f in found.values()) == 4

    def test_an_exception_comes_with_its_line(self, server):
        found, _ = changed(
            """
            def elu_feature_map(x):
                y = np.exp(x)
                return y @ y @ undefined
            """,
            server,
        )
        result = found["elu_feature_map"]
        line = RIGHT.count("\n") + 6
        assert result.line == line
        assert f"(line {line}: return y @ y @ undefined)" in result.hint
        assert result.passed == 0
        assert sum(f.right for f in found.values()) == 4

    def test_a_syntax_error_is_held_against_its_function(self, server):
        found, _ = changed(
            """
            def elu_feature_map(x):
                return np.where(x > 0, x + 1, np.exp(x)
            """,
            server,
        )
        result = found["elu_feature_map"]
        assert result.hint.startswith("SyntaxError: '(' was never closed (line ")
        assert "return np.where(x > 0" in result.hint
        assert sum(f.right for f in found.values()) == 4

    @pytest.mark.parametrize(
        "body",
        [
            "def elu_feature_map(x)\n    return x",
            "def elu_feature_map(x):\nreturn x",
            "def elu_feature_map(x):\n    if x:\n  return x",
            "def elu_feature_map(x):\n    s = '''never closed\n    return x",
            "@np.vectorize\ndef elu_feature_map(x):\n    return x x",
            "def elu_feature_map(x):\n    return (x",
            "def elu_feature_map(x):\n    nonlocal y\n    return x",
            "def elu_feature_map(x):\n    x = 1 +",
            "def elu_feature_map(x):\n",
        ],
    )
    def test_other_syntax_errors(self, body, server):
        found, _ = check(f"import numpy as np\n\n\n{body}\n", server)
        assert "Error: " in found["elu_feature_map"].hint
        assert found["elu_feature_map"].line is not None
        found, _ = check(f"{RIGHT}\n\n\n{body}\n\n\ndef helper():\n    pass\n", server)
        assert not found["elu_feature_map"].right
        assert sum(f.right for f in found.values()) == 4

    def test_code_outside_the_functions_may_fail(self, server):
        found, report = changed(
            """
            import torch_that_nobody_has
            raise SystemExit
            print(undefined)
            """,
            server,
        )
        assert all(f.right for f in found.values())
        assert not report.right
        hints = [problem.hint for problem in report.problems]
        assert "torch_that_nobody_has" in hints[0]
        assert hints[1].startswith("calls sys.exit outside the functions (line ")
        assert "undefined" in hints[2]

    @pytest.mark.parametrize("line", ["import scipy.linalg", "from helpers import softmax"])
    def test_an_import_of_another_package_is_told_what_is_allowed(self, line, server):
        said = "cannot be imported here: use Python's own modules and numpy, matplotlib"
        _, report = changed(line, server)
        assert said in report.problems[0].hint
        found, _ = changed(f"def simple_feature_map(x):\n    {line}\n    return x\n", server)
        assert said in found["simple_feature_map"].hint
        more = "import math, dataclasses, collections.abc\nfrom numpy import linalg"
        assert changed(more, server)[1].right

    @pytest.mark.parametrize(
        "source", [b"\xff\xfe\x00", b"x = '\x00'", b"# coding: nonsense\n", b""]
    )
    def test_what_is_no_text(self, source, server):
        report = grader.grade(LAB, source, server=server)
        assert report.score == 0
        assert all(f.hint for f in report.functions)

    def test_a_file_that_is_too_large(self, server):
        report = grader.grade(LAB, b"#" * (2**20 + 1), server=server)
        assert report.score == 0
        assert "bytes" in report.problems[0].hint

    def test_lines_are_counted_as_python_does(self, server):
        found, _ = check("\x0c# \u2028\ndef elu_feature_map(x):\n    return x x\n", server)
        assert found["elu_feature_map"].hint.endswith("(line 3: return x x)")

    @pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
    def test_another_encoding_is_named(self, encoding, server):
        report = grader.grade(LAB, ("# é\n" + RIGHT).encode(encoding, "replace"), server=server)
        assert report.functions[0].hint.endswith("save it as UTF-8")

    def test_a_byte_order_mark(self, server):
        assert grader.grade(LAB, RIGHT.encode("utf-8-sig"), server=server).right

    def test_windows_line_ends(self, server):
        _, report = check(RIGHT.replace("\n", "\r\n"), server)
        assert report.right


class TestHints:
    """What needs no knowledge of the lab."""

    @pytest.mark.parametrize(
        ("body", "hint"),
        [
            ("print(x)", "returns None: is a `return` missing?"),
            (
                "return x.tolist()",
                "returns 6 values (a list); an array of shape (6, 4) is expected",
            ),
            ("return x.T", "returns an array of shape (4, 6); (6, 4) is expected, its transpose"),
            ("return x[:, :2]", "returns an array of shape (6, 2); (6, 4) is expected"),
            ("return 1.0", "returns the number 1; an array of shape (6, 4) is expected"),
            ("return {'x': x}", "returns a dict with 'x'; an array"),
            ("return x + 0j", "real ones are expected"),
            ("return x > 0", "an array of bool"),
            ("return x.astype(object)", "returns an array of object"),
            ("return lambda: x", "returns an object of type function"),
            ("return 3 * x", "your answer is 3 times the right one"),
            ("return -x", "your answer is −1 times the right one"),
            ("return x / np.sqrt(x.shape[-1])", "your answer is 1/√d times the right one"),
            ("x *= 2\n    return x / 2", "changes its argument x in place"),
            ("return x * np.nan", "NaN in 24 of 24 entries"),
            ("return x / 0", "infinity in "),
            ("return x + 1", "where"),
            ("raise ValueError('too bad')", "ValueError: too bad (line "),
            ("import sys; sys.exit()", "calls sys.exit (line "),
            ("raise KeyboardInterrupt", "raises KeyboardInterrupt (line "),
            ("raise BaseException('no')", "BaseException: no (line "),
            ("return simple_feature_map(x)", "RecursionError"),
            ("raise NotImplementedError", "not written yet"),
            ("return np.matrix(np.zeros((6, 4)))", "where"),
        ],
    )
    def test_of_an_answer(self, body, hint, server):
        found, _ = changed(f"def simple_feature_map(x):\n    {body}\n", server)
        result = found["simple_feature_map"]
        assert not result.right
        assert hint in result.hint
        assert sum(f.right for f in found.values()) == 4

    def test_of_values_that_are_swapped_or_too_few(self, server):
        head = "def standard_attention_order(Q, K, V):\n    w = Q @ K.T\n    "
        found, _ = changed(head + "return w @ V, w, 1\n", server)
        assert "3 values (a tuple); 2 values" in found["standard_attention_order"].hint
        found, _ = changed(head + "return w @ V, 2 * w\n", server)
        assert found["standard_attention_order"].hint == (
            "the second returned value is 2 times the right one"
        )

    def test_of_a_dict(self, server):
        lab = LABS["03"]
        right = model(lab)
        source = (
            f"{right}\n\ndef compare_to_softmax(Q, K, f, scale=None):\n    return {{'mse': 1}}\n"
        )
        found, _ = check(source, server, lab)
        assert found["compare_to_softmax"].hint.startswith("the key 'max_diff' is missing")

    def test_of_a_mistake_asks_that_right_answers_agree_too(self, server):
        """Twice the pairs of a causal layer, otherwise right: not floating-point operations."""
        lab = only(LABS["01"], {"softmax_multiply_adds"})
        found, _ = check(
            "def softmax_multiply_adds(n, D, M, causal=False):\n"
            "    return (n * (n + 1) if causal else n * n) * (D + M)\n",
            server,
            lab,
        )
        hint = found["softmax_multiply_adds"].hint
        assert hint.startswith("wrong ")
        assert hint.endswith("your answer is 2 times the right one")

    def test_of_the_wrong_exception(self, server):
        source = (
            "def compute_implicit_attention(Q, K, feature_map):\n"
            "    weights = feature_map(Q) @ feature_map(K).T\n"
            "    total = weights.sum(axis=AXIS, keepdims=True)\n"
            "    if (total == 0).any(): raise ValueError('no weight')\n"
            "    return weights / total\n"
        )
        lab = only(LABS["03"], {"compute_implicit_attention"})
        found, _ = check(source.replace("AXIS", "1"), server, lab)
        hint = found["compute_implicit_attention"].hint
        assert hint.startswith("ValueError: no weight (line 4")
        assert hint.endswith("for a query without weight, where ZeroDivisionError must be raised")
        found, _ = check(source.replace("AXIS", "0"), server, lab)
        assert found["compute_implicit_attention"].hint.startswith("the columns add up to 1")

    def test_a_weight_of_zero_or_below_is_no_reason_to_raise(self, server):
        source = (
            "def compute_implicit_attention(Q, K, feature_map):\n"
            "    weights = feature_map(Q) @ feature_map(K).T\n"
            "    if (weights BOUND).any(): raise ZeroDivisionError\n"
            "    return weights / weights.sum(axis=1, keepdims=True)\n"
        )
        lab = only(LABS["03"], {"compute_implicit_attention"})
        for bound in ("< 0", "== 0"):
            found, _ = check(source.replace("BOUND", bound), server, lab)
            assert not found["compute_implicit_attention"].right

    def test_of_a_part_of_a_returned_value(self, server):
        lab = LABS["07"]
        source = model(lab) + (
            "\n\n_right = recurrent_attention\n"
            "def recurrent_attention(*a, **k):\n"
            "    output, (U, Z) = _right(*a, **k)\n"
            "    return output, (Z, U)\n"
        )
        found, _ = check(source, server, only(lab, {"recurrent_attention"}))
        assert found["recurrent_attention"].hint.startswith(
            "part 1 of the second returned value is an array of shape (4,); (4, 3) is expected"
        )

    def test_several_numbers_may_come_as_an_array(self, server):
        lab = LABS["05"]
        text = "\n\n_right = dot_product_moments\ndef dot_product_moments(*a, **k):\n    "
        source = model(lab) + text + "return np.array(_right(*a, **k)) * "
        lab = only(lab, {"dot_product_moments"})
        assert check(source + "1\n", server, lab)[1].right
        found, _ = check(source + "[1, 1, 2]\n", server, lab)
        assert "third returned value is 2 times" in found["dot_product_moments"].hint

    @pytest.mark.parametrize(
        ("returned", "hint"),
        [
            ("np.sqrt(budget / (heads * np.dtype(dtype).itemsize))", "your n is not rounded"),
            ("1.001 * np.sqrt(budget)", "which is not a whole number, where 4096 is right"),
            ("longest(budget, heads, dtype) + 1", "wrong for 64 MiB in float32, which n = 4096"),
        ],
    )
    def test_never_says_that_an_answer_is_1_times_the_right_one(self, returned, hint, server):
        lab = LABS["01"]
        text = (
            "\n\nlongest = longest_context\ndef longest_context(budget, heads=1, dtype='float32'):"
        )
        source = model(lab) + text + f"\n    return {returned}\n"
        found, _ = check(source, server, only(lab, {"longest_context"}))
        assert hint in found["longest_context"].hint
        assert "times the right one" not in found["longest_context"].hint

    @pytest.mark.parametrize(
        ("first", "scores"),
        [
            ("", "Q @ K.T"),
            ("", "Q @ K.transpose()"),
            ("", "Q @ np.transpose(K)"),
            ("turned = K.T\n    ", "Q @ turned"),
        ],
    )
    def test_of_a_transpose_that_reverses_the_batch(self, first, scores, server):
        lab = LABS["05"]
        source = (
            model(lab)
            + "\n\ndef softmax_attention(Q, K, V, causal=False):\n    "
            + f"{first}scores = {scores} / np.sqrt(Q.shape[-1])\n"
            + "    if causal:\n"
            + "        scores = np.where(np.tri(len(Q)) > 0, scores, -np.inf)\n"
            + "    weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
            + "    return weights / weights.sum(-1, keepdims=True) @ V\n"
        )
        found, _ = check(source, server, only(lab, {"softmax_attention"}))
        hint = found["softmax_attention"].hint
        assert hint.startswith("the arrays can have batch dimensions in front, here (2, 3, 6, 8)")
        assert "np.swapaxes(x, -1, -2)" in hint
        assert "matmul" not in hint
        assert (first.strip() or scores) in hint  # the line with the transpose is quoted

    def test_of_two_lengths_where_there_are_more(self, server):
        found, _ = changed(
            "def elu_feature_map(x):\n    n, d = x.shape\n    return np.where(x > 0, x, x) + n\n",
            server,
        )
        hint = found["elu_feature_map"].hint
        assert hint.startswith("the arrays can have batch dimensions in front, here (2, 3, 4)")
        assert ".shape[-2:]" in hint

    def test_of_a_usual_mistake_is_given_although_an_edge_is_wrong_too(self, server):
        """Without the scale, and without the maximum: the scale comes first."""
        lab = LABS["05"]
        source = model(lab) + (
            "\n\ndef softmax_attention(Q, K, V, causal=False):\n"
            "    weights = np.exp(Q @ np.swapaxes(K, -1, -2))\n"
            "    weights = np.tril(weights) if causal else weights\n"
            "    return weights / weights.sum(-1, keepdims=True) @ V\n"
        )
        found, _ = check(source, server, only(lab, {"softmax_attention"}))
        assert found["softmax_attention"].hint == (
            "your output matches attention without the scale 1/√d"
        )

    @pytest.mark.parametrize("masked", ["np.tril(weights)", "weights * np.tri(Q.shape[-2])"])
    def test_of_an_overflow_does_not_depend_on_where_the_nan_is(self, masked, server):
        lab = LABS["05"]
        source = model(lab) + (
            "\n\ndef softmax_attention(Q, K, V, causal=False):\n"
            "    weights = np.exp(Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1]))\n"
            f"    weights = {masked} if causal else weights\n"
            "    return weights / weights.sum(-1, keepdims=True) @ V\n"
        )
        found, _ = check(source, server, only(lab, {"softmax_attention"}))
        assert found["softmax_attention"].hint.startswith("your softmax overflows: subtract")

    def test_what_a_terminal_would_obey_is_not_quoted(self, server):
        text = "def elu_feature_map(x):\n    raise ValueError('\\x1b[2J \\ud800 \\u202e \\0')\n"
        found, report = changed(text, server)
        assert found["elu_feature_map"].hint.isprintable()
        json.dumps(report.to_json(), ensure_ascii=False).encode()

    def test_is_short_whatever_was_returned(self, server):
        found, _ = changed(
            "def elu_feature_map(x):\n    return {'k' * 9000 + str(i): i for i in range(100)}\n",
            server,
        )
        assert len(found["elu_feature_map"].hint) <= 600

    def test_truth_is_no_number(self, server):
        found, _ = changed("def verify_associativity(Q, K, V): return 1\n", server)
        assert "True or False is expected" in found["verify_associativity"].hint

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
