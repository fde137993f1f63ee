"""The grader: right answers pass, wrong ones are named, hostile ones neither break nor fool it."""

import ast
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answers import LABS, ROOT, intended, right_answers, skeleton, wrong_answers
from pages import run_blocks

from kerneltrick.cli import main
from kerneltrick.labs import grader
from kerneltrick.labs.grader import _child, _compare, _wire
from kerneltrick.labs.grader._hints import of_mistake
from kerneltrick.labs.grader._process import Died, Slow

LAB = LABS["02"]
QUICK = replace(LAB, exercises=tuple(replace(e, memory=None) for e in LAB.exercises))
"""The lab without measuring memory, which takes most of the time."""
RIGHT = right_answers(LAB)["right_numpy"]
WRONG = [(number, name) for number, lab in LABS.items() for name in wrong_answers(lab)]
OTHERS = [(number, name) for number, lab in LABS.items() for name in right_answers(lab)]


@pytest.fixture(scope="module")
def server():
    with grader.Server(grader.Limits(call=10, total=60)) as found:
        yield found


@pytest.fixture(scope="module")
def hurried():
    """A server whose patience is short."""
    with grader.Server(grader.Limits(call=0.6, total=20, memory=2**28)) as found:
        yield found


def check(source, server, lab=LAB):
    """{function: result} of a source text that follows a right solution, and the report."""
    report = grader.grade(lab, source.encode(), server=server)
    return {f.name: f for f in report.functions}, report


def changed(text, server, lab=QUICK):
    """The results for a right solution with `text` behind it."""
    return check(RIGHT + "\n\n" + textwrap.dedent(text), server, lab)


def command(*arguments):
    """The exit code, what was printed, and what was complained about."""
    out, err = io.StringIO(), io.StringIO()
    caught = pytest.raises(SystemExit)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), caught as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, out.getvalue(), err.getvalue()


def only(lab, names):
    """The lab with these exercises alone: all others are those of right_numpy, graded elsewhere."""
    return replace(lab, exercises=tuple(e for e in lab.exercises if e.name in names))


def reached(source, name):
    """The functions of a source that use a function, directly or not."""
    uses = {
        node.name: {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    found, waiting = set(), [name]
    while waiting:
        used = waiting.pop()
        new = {caller for caller, names in uses.items() if used in names} - found
        found |= new
        waiting += new
    return found


class TestAnswers:
    @pytest.mark.parametrize(("number", "name"), OTHERS)
    def test_right_answers_pass(self, number, name, server):
        lab = LABS[number]
        found, report = check(right_answers(lab)[name], server, lab)
        assert report.right, [(f.name, f.hint) for f in found.values() if not f.right]
        assert report.score == 1

    @pytest.mark.parametrize(("number", "name"), WRONG)
    def test_wrong_answers_are_failed_with_the_intended_hint(self, number, name, server):
        lab = LABS[number]
        source = wrong_answers(lab)[name]
        function, hint = intended(lab, name)
        found, report = check(source, server, only(lab, {function, *reached(source, function)}))
        assert not found[function].right
        assert hint in " ".join(found[function].hint.split())
        assert report.score < 1
        own = (ROOT / "tests" / "answers" / f"lab{number}" / f"{name}.py").read_text("utf-8")
        defined = {x.name for x in ast.parse(own).body if isinstance(x, ast.FunctionDef)}
        assert defined & {e.name for e in lab.exercises} <= found.keys()
        for other in {f.name for f in found.values() if not f.right} - {function}:
            assert "which is not right yet" in found[other].hint

    def test_there_are_enough_of_them(self):
        assert len(WRONG) >= 40
        for number in LABS:
            assert sum(lab == number for lab, _ in WRONG) >= 6
            assert sum(lab == number for lab, _ in OTHERS) >= 2

    @pytest.mark.parametrize("number", LABS)
    def test_bare_skeleton_gets_nothing(self, number, server):
        found, report = check(skeleton(LABS[number]), server, LABS[number])
        assert report.score == 0
        assert {f.hint for f in found.values()} == {"not written yet"}

    @pytest.mark.parametrize("number", LABS)
    def test_mistakes_differ_from_the_right_answer(self, number):
        lab = LABS[number]
        for exercise in lab.exercises:
            assert exercise.cases
            right = grader.Mistake("", getattr(lab.reference, exercise.name))
            for mistake in exercise.mistakes:
                outcomes = (_same(exercise, right, mistake, case) for case in exercise.cases)
                assert not all(outcomes), (exercise.name, mistake.hint)


def _same(exercise, reference, mistake, case):
    """Whether a mistake gives the right answer to a case."""
    right, wrong = of_mistake(reference, case), of_mistake(mistake, case)
    if isinstance(right, Exception) or isinstance(wrong, Exception):
        return isinstance(right, Exception) and isinstance(wrong, Exception)
    if exercise.judge is not None:
        try:
            return exercise.judge(case, wrong) is None
        except Exception:
            return False
    return _compare.equal(wrong, right, exercise.tolerance)


class TestBadInput:
    def test_a_missing_function_is_named_and_the_others_are_graded(self, server):
        found, report = check(RIGHT.replace("def elu_feature_map", "def elu_map"), server)
        assert found["elu_feature_map"].hint == "the function is missing"
        assert sum(f.right for f in found.values()) == 4
        assert report.score == pytest.approx(4 / 5)

    def test_a_misspelt_function_is_found(self, server):
        found, _ = check(RIGHT.replace("def elu_feature_map", "def elu_featuremap"), server)
        assert found["elu_feature_map"].hint == (
            "the function is missing; is elu_featuremap meant to be it?"
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
        assert result.hint.startswith("linear_attention_order(Q, K, V) cannot be called so: ")
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
        right = right_answers(lab)["right_numpy"]
        source = (
            f"{right}\n\ndef compare_to_softmax(Q, K, f, scale=None):\n    return {{'mse': 1}}\n"
        )
        found, _ = check(source, server, lab)
        assert found["compare_to_softmax"].hint.startswith("the key 'max_diff' is missing")

    def test_of_a_mistake_asks_that_right_answers_agree_too(self, server):
        """Twice the pairs of a causal layer, all else right: not floating-point operations."""
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
        assert hint.endswith("for a query without weight, where ZeroDivisionError is to be raised")
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
        source = right_answers(lab)["right_numpy"] + (
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
        source = right_answers(lab)["right_numpy"] + text + "return np.array(_right(*a, **k)) * "
        lab = only(lab, {"dot_product_moments"})
        assert check(source + "1\n", server, lab)[1].right
        found, _ = check(source + "[1, 1, 2]\n", server, lab)
        assert "third returned value is 2 times" in found["dot_product_moments"].hint

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


class TestHostile:
    """Student code that misbehaves is reported, and nothing else suffers."""

    def only(self, found, name):
        assert not found[name].right
        assert sum(f.right for f in found.values()) == len(found) - 1
        return found[name].hint

    def test_an_endless_loop_is_held_against_its_function_and_line(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                while True:
                    x = x + 1
            """,
            hurried,
        )
        hint = self.only(found, "elu_feature_map")
        assert hint.startswith("never ends, or takes too long (line ")
        assert found["elu_feature_map"].line in (RIGHT.count("\n") + 5, RIGHT.count("\n") + 6)

    def test_an_endless_loop_outside_the_functions(self, hurried):
        found, report = changed("while True:\n    pass\n", hurried)
        assert all(f.right for f in found.values())
        assert report.problems[0].hint.startswith("never ends, or takes too long while the file")
        assert "while True:" in report.problems[0].hint

    def test_endless_loops_everywhere_end_after_the_total_time(self):
        with grader.Server(grader.Limits(call=0.3, total=0.5)) as server:
            source = "".join(
                f"def {e.name}(*a, **k):\n    while True: pass\n" for e in LAB.exercises
            )
            report = grader.grade(LAB, source.encode(), server=server)
        assert report.score == 0
        assert report.functions[-1].hint.startswith("not graded: the time")

    def test_loops_that_catch_everything(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                import signal
                for number in range(1, 65):
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        pass
            """,
            hurried,
        )
        assert "never ends" in self.only(found, "elu_feature_map")

    @pytest.mark.parametrize("where", ["elu_feature_map", None])
    @pytest.mark.parametrize("how", ["os._exit(0)", "os.abort()", "os.closerange(3, 100); 1 / 0"])
    def test_ending_the_process(self, where, how, hurried):
        text = f"import os\n{how}\n"
        if where:
            text = f"def {where}(x):\n    import os\n    {how}\n"
        found, report = changed(text, hurried)
        if where:
            hint = self.only(found, where)
            assert "ends the process" in hint
        else:
            assert all(f.right for f in found.values())
            assert "while the file is loaded" in report.problems[0].hint

    def test_a_crash_of_the_interpreter(self, hurried):
        found, _ = changed(
            "def elu_feature_map(x):\n    import ctypes\n    ctypes.string_at(0)\n", hurried
        )
        assert "signal 11" in self.only(found, "elu_feature_map")

    def test_megabytes_printed_do_no_harm(self, hurried):
        _, report = changed(
            """
            print("x" * 10**7)
            def simple_feature_map(x):
                for _ in range(100):
                    print("y" * 10**6)
                import sys
                sys.stderr.write("z" * 10**6)
                return x
            """,
            hurried,
        )
        assert report.right

    def test_memory_is_limited(self, hurried):
        found, _ = changed(
            "def elu_feature_map(x):\n    return np.ones((40_000, 40_000)) @ x\n", hurried
        )
        assert self.only(found, "elu_feature_map").startswith("takes too much memory (line ")

    def test_memory_taken_bit_by_bit(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                kept = []
                while True:
                    kept.append(b"x" * 2**20)
            """,
            hurried,
        )
        assert "takes too much memory" in self.only(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_processes_left_behind_are_ended(self, namespaces, tmp_path):
        with grader.Server(grader.Limits(call=2, namespaces=namespaces)) as server:
            found, _ = changed(
                """
                def simple_feature_map(x):
                    import os, time
                    if os.fork() == 0:
                        os.setsid()
                        if os.fork() == 0:
                            for number in range(256):
                                try:
                                    os.close(number)
                                except OSError:
                                    pass
                            time.sleep(7654.321)
                        os._exit(0)
                    return x
                """,
                server,
            )
            assert found["simple_feature_map"].right
            assert _sleepers() == []

    def test_a_fork_bomb(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                import os
                for _ in range(100):
                    if os.fork() == 0:
                        while True:
                            pass
            """,
            hurried,
        )
        self.only(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_there_is_no_network(self, namespaces):
        listener = __import__("socket").create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with grader.Server(grader.Limits(call=5, namespaces=namespaces)) as server, listener:
            found, _ = changed(
                f"""
                def elu_feature_map(x):
                    import socket
                    socket.create_connection(("127.0.0.1", {port}), 2).send(b"hello")
                """,
                server,
            )
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert "network" in self.only(found, "elu_feature_map")

    def test_files_cannot_be_changed(self, server, tmp_path):
        target = tmp_path / "precious.txt"
        target.write_text("kept")
        found, _ = changed(
            f"""
            def simple_feature_map(x):
                open("scratch.txt", "w").write("a folder of its own can be written to")
                return x

            def elu_feature_map(x):
                import os
                os.unlink({str(target)!r})
            """,
            server,
        )
        if "files" not in server.walls:
            pytest.skip("no mount namespaces here")
        self.only(found, "elu_feature_map")
        assert target.read_text() == "kept"

    @pytest.mark.parametrize(
        "attempt",
        [
            "import kerneltrick",
            "from kerneltrick.labs import kernel_trick",
            "import importlib; importlib.import_module('kerneltrick.labs.kernel_trick')",
            f"open({str(ROOT / 'src/kerneltrick/labs/kernel_trick.py')!r}).read()",
        ],
    )
    def test_the_reference_is_out_of_reach(self, attempt, server):
        found, _ = changed(f"def elu_feature_map(x):\n    {attempt}\n", server)
        hint = self.only(found, "elu_feature_map")
        refusals = ("ImportError: kerneltrick cannot be", "PermissionError", "ModuleNotFoundError")
        assert any(refusal in hint for refusal in refusals)

    REFERENCE = ROOT / "src" / "kerneltrick" / "labs" / "kernel_trick.py"

    @pytest.mark.parametrize(
        "attempt",
        [
            f"import subprocess; exec(subprocess.check_output(['cat', {str(REFERENCE)!r}]))",
            f"import ctypes; 1 / (1 + ctypes.CDLL(None).open({str(REFERENCE).encode()!r}, 0))",
            f"import os; at = os.open({str(REFERENCE.parent.parent)!r}, 0); "
            "os.open('labs/kernel_trick.py', 0, dir_fd=at)",
            f"import os; os.path.join = os.lstat = None; open({str(REFERENCE)!r})",
        ],
    )
    def test_the_reference_is_not_there_for_other_programs_either(self, attempt, server):
        found, _ = changed(
            f"_right = elu_feature_map\ndef elu_feature_map(x):\n    {attempt}\n"
            "    return _right(x)\n",
            server,
        )
        if "files" not in server.walls:
            pytest.skip("no mount namespaces here")
        self.only(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_other_processes_cannot_be_signalled(self, namespaces):
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            with grader.Server(grader.Limits(call=2, namespaces=namespaces)) as server:
                found, _ = changed(
                    f"""
                    def elu_feature_map(x):
                        import os
                        os.kill({bystander.pid}, 9)
                    def simple_feature_map(x):
                        import os
                        os.killpg({os.getpgid(bystander.pid)}, 0)
                    """,
                    server,
                )
            for name in ("elu_feature_map", "simple_feature_map"):
                assert "other processes cannot be signalled" in found[name].hint
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    @pytest.mark.parametrize(
        "patch",
        [
            "np.allclose = np.array_equal = np.all = lambda *a, **k: True",
            "np.testing.assert_allclose = lambda *a, **k: None",
            "np.matmul = np.dot = np.einsum = lambda *a, **k: a[0]",
            "np.ndarray.__eq__ = lambda a, b: True",
            "np.asarray = np.array = lambda *a, **k: None",
            "import builtins; builtins.isinstance = lambda *a: True",
            "import builtins; builtins.abs = builtins.max = builtins.all = lambda *a: 1",
            "import json; json.dumps = json.loads = lambda *a, **k: {}",
            "import time; time.monotonic = time.time = lambda: 0.0",
            "import os; os.write = lambda *a: 0",
            "import struct, sys; sys.modules['json'] = sys.modules['struct'] = None",
            "import sys; sys.modules['grader._wire'].pack = lambda *a, **k: b''",
            "import sys; sys.modules['grader._child'].call = lambda *a, **k: ({}, 1)",
            "import sys; sys.stdout = sys.stderr = None; sys.settrace(lambda *a: 1 / 0)",
            "import gc, threading; gc.disable(); threading.Thread(target=lambda: 1 / 0).start()",
        ],
    )
    def test_patches_fool_nobody(self, patch, hurried):
        """A wrong answer stays wrong whatever was patched in its process."""
        wrong = """
            def elu_feature_map(x):
                return x
            def verify_associativity(Q, K, V):
                return True
            """
        found, _ = changed(textwrap.dedent(wrong) + patch + "\n", hurried)
        assert not found["elu_feature_map"].right
        assert not found["verify_associativity"].right

    def test_objects_that_are_equal_to_everything(self, server):
        found, _ = changed(
            """
            class Always(np.ndarray):
                def __eq__(self, other): return True
                def __sub__(self, other): return 0
                def __array_ufunc__(self, *a, **k): return True
                def __array_function__(self, *a, **k): return True
            class Answer(float):
                def __eq__(self, other): return True
                def __bool__(self): return True
            def elu_feature_map(x):
                return np.zeros(x.shape).view(Always)
            def verify_associativity(Q, K, V):
                return Answer(1)
            """,
            server,
        )
        assert not found["elu_feature_map"].right
        assert "True or False" in found["verify_associativity"].hint

    FORGERY = """
        import os, sys
        wire = sys.modules["grader._wire"]
        def forge(message):
            for number in range(3, 64):
                try:
                    os.write(number, message)
                except OSError:
                    pass
        """

    @pytest.mark.parametrize(
        "message",
        [
            "b'garbage' * 100",
            "b'\\xff' * 64",
            "wire.HEAD.pack(2, 0) + b'{}'",
            "wire.pack({'kind': 'answer', 'ticket': 'guess'}, value=True)",
            "wire.HEAD.pack(2**31, 2**31)",
        ],
    )
    def test_forged_messages_fool_nobody(self, message, hurried):
        found, report = changed(
            textwrap.dedent(self.FORGERY)
            + f"def elu_feature_map(x):\n    forge({message})\n    return x\n",
            hurried,
        )
        assert not found["elu_feature_map"].right
        assert all(f.right for name, f in found.items() if name.endswith("order"))
        assert report.score < 1

    def test_a_forged_answer_is_only_an_answer(self, hurried):
        """Code that knows everything of the child's side can still only answer the question."""
        found, _ = changed(
            """
            import sys, gc
            child = sys.modules["grader._child"]
            child.call = lambda *a: ({"kind": "answer", "changed": [], "peak": 0}, True)
            """,
            hurried,
        )
        assert not any(f.right for f in found.values())

    def test_malformed_fields_do_not_break_the_grader(self, hurried):
        for fields in (
            "{'kind': []}",
            "{'kind': 'exception', 'bases': 3, 'line': 'x', 'type': None}",
            "{'kind': 'exception', 'bases': {}, 'line': 10**30}",
            "{'kind': 'signature', 'text': [], 'line': -5}",
            "{'kind': 'answer', 'changed': [{}], 'peak': 'none'}",
            "{'kind': 'answer', 'changed': {'a': 1}}",
        ):
            found, _ = changed(
                f"""
                import sys
                sys.modules["grader._child"].call = lambda *a: ({fields}, a[2][0])
                """,
                hurried,
            )
            assert not found["elu_feature_map"].right

    def test_memory_cannot_be_hidden(self, server):
        found, _ = changed(
            """
            import tracemalloc
            def linear_attention_order(Q, K, V, feature_map, normalize=False):
                tracemalloc.stop()
                weights = feature_map(Q) @ feature_map(K).T
                output = weights @ V
                if normalize:
                    output = output / weights.sum(axis=1, keepdims=True)
                tracemalloc.start()
                return output
            """,
            server,
            LAB,
        )
        assert "peak memory grows as n²" in self.only(found, "linear_attention_order")

    def test_answers_that_are_huge_or_deep(self, hurried):
        for answer in (
            "np.zeros(2**24)",
            "[x] * 10**6",
            "10**5000",
            "'x' * 10**6",
            "{1: {2: [(3, x)]}}",
            "Ellipsis",
            "(i for i in x)",
            "endless(())",
            "np.zeros(6 * 10**6)",
            "np.broadcast_to(0.0, (10**6, 10**6))",
            "{i * (2**61 - 1): 0 for i in range(5000)}",
            "Hostile([1])",
        ):
            found, _ = changed(
                f"""
                def endless(x):
                    for _ in range(10_000):
                        x = (x,)
                    return x
                class Hostile(list):
                    def __len__(self): raise RuntimeError
                    def __iter__(self): raise RuntimeError
                def elu_feature_map(x):
                    return {answer}
                """,
                hurried,
                only(LAB, {"simple_feature_map", "elu_feature_map"}),
            )
            assert self.only(found, "elu_feature_map").startswith("returns ")

    def test_answers_that_are_read_away(self, hurried):
        """The student's end of a pipe can be opened for reading."""
        found, _ = changed(
            """
            import os, threading
            def steal(number):
                try:
                    pipe = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
                except OSError:
                    return
                while True:
                    try:
                        os.read(pipe, 1)
                    except OSError:
                        pass
            def elu_feature_map(x):
                for number in range(3, 12):
                    threading.Thread(target=steal, args=(number,), daemon=True).start()
                return x
            """,
            hurried,
            only(LAB, {"elu_feature_map"}),
        )
        assert not found["elu_feature_map"].right

    def test_signals_and_exits_at_the_end(self, hurried):
        _, report = changed(
            """
            import atexit, os, signal, sys
            atexit.register(lambda: os._exit(7))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.setrecursionlimit(10**6)
            """,
            hurried,
        )
        assert report.right

    def test_the_grader_still_works_afterwards(self, hurried):
        assert changed("", hurried)[1].right


def _sleepers():
    """Processes that a student's file has left behind."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parent = int(words[1])
            name = (folder / "cmdline").read_bytes()
            if b"_child.serve" in name and parent in (1, 0):
                found.append(folder.name)
    return found


class TestProcess:
    def test_a_server_that_was_killed_is_replaced(self):
        with grader.Server() as server:
            assert changed("", server)[1].right
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            assert changed("", server)[1].right

    def test_nothing_is_left_when_the_grader_is_killed(self):
        code = (
            "from kerneltrick.labs import grader\n"
            "with grader.Server(grader.Limits(call=1000)) as s:\n"
            "    w = s.worker()\n"
            "    print(s.process.pid, w.pid, flush=True)\n"
            "    w.load(b'while True: pass', 'x.py')\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
        process.wait()
        process.stdout.close()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_slow_and_dead_workers(self):
        with grader.Server(grader.Limits(call=0.3)) as server:
            worker = server.worker()
            with pytest.raises(Slow):
                worker.load(b"while True: pass", "x.py")
            with pytest.raises(Died):
                server.worker().load(b"import os; os._exit(3)", "x.py")

    def test_messages(self):
        tree = {"a": [np.float32(1), (2, 3.5, None, True)], "b": "text", 3: 1j}
        _, values = _wire.unpack(_wire.pack({}, tree=tree))
        assert values["tree"] == tree
        assert type(values["tree"]["a"][0]) is np.float32
        for broken in (b"", b"123", b"\0" * 8, _wire.pack({}, x=np.ones(5))[:-1]):
            with pytest.raises(_wire.Unreadable):
                _wire.unpack(broken)
        keys = [[["value", i], ["value", 0]] for i in range(1001)]
        twice = [["array", "<f8", [2], 0]] * 2
        for tree in (["dict", keys], ["list", twice], ["array", "<f8", [2], -8]):
            head = json.dumps({"fields": {}, "values": {"x": tree}}).encode()
            with pytest.raises(_wire.Unreadable):
                _wire.unpack(_wire.HEAD.pack(len(head), 16) + head + bytes(16))
        with pytest.raises(_wire.Unreadable):
            _wire.size(_wire.HEAD.pack(5 * 2**20, 0))

    @pytest.mark.parametrize("seed", range(20))
    def test_damaged_messages_are_unreadable_or_data(self, seed):
        rng = np.random.default_rng(seed)
        message = bytearray(_wire.pack({"kind": "answer"}, value=[np.ones((2, 3)), {"a": 1.5}]))
        for at in rng.integers(0, len(message), 3):
            message[at] = int(rng.integers(0, 256))
        with contextlib.suppress(_wire.Unreadable):
            _wire.unpack(bytes(message))

    def test_given_functions_are_those_of_the_labs(self):
        x = np.random.default_rng(0).standard_normal((5, 3))
        assert set(_child.GIVEN) >= {"identity", "exp", "relu", "elu", "with_square"}
        assert _child.GIVEN["with_square"](x).shape == (5, 6)


def test_the_page_about_the_labs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks(ROOT / "docs" / "labs.md") >= 6


class TestStart:
    def test_copies_the_folder_and_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, _ = command("lab", "start", "2")
        assert code == 0
        folder = tmp_path / LAB.folder
        assert (folder / LAB.file).read_text() == skeleton(LAB)
        assert (folder / "tests" / "test_kernel_trick.py").exists()
        assert not list(folder.rglob("__pycache__"))
        assert "kerneltrick lab check" in out
        assert "](../" not in (folder / "README.md").read_text()

    @pytest.mark.parametrize("existing", ["README.md", "src/kernel_trick.py", "tests/conftest.py"])
    def test_never_overwrites_and_writes_nothing_half(self, existing, tmp_path):
        target = tmp_path / "mine"
        (target / existing).parent.mkdir(parents=True)
        (target / existing).write_text("mine")
        before = sorted(target.rglob("*"))
        code, _, err = command("lab", "start", "02", target)
        assert code == 2
        assert existing in err
        assert (target / existing).read_text() == "mine"
        assert sorted(target.rglob("*")) == before

    def test_a_link_that_leads_nowhere_is_not_overwritten(self, tmp_path):
        (tmp_path / "README.md").symlink_to(tmp_path / "nowhere")
        assert command("lab", "start", "02", tmp_path)[0] == 2
        assert not (tmp_path / "nowhere").exists()

    def test_an_interrupted_copy_leaves_nothing(self, tmp_path, monkeypatch):
        real = Path.read_text

        def read_text(self, *arguments, **options):
            if self.name == "kernel_trick.py":
                raise KeyboardInterrupt
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", read_text)
        with pytest.raises(KeyboardInterrupt):
            grader.start(LAB, tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_spaces_is_quoted(self, tmp_path):
        code, out, _ = command("lab", "start", "02", tmp_path / "my lab")
        assert code == 0
        assert f"kerneltrick lab check '{tmp_path / 'my lab'}'" in out

    @pytest.mark.parametrize("below", ["", "deeper"])
    def test_a_file_in_the_place_of_the_folder(self, below, tmp_path):
        (tmp_path / "taken").write_text("mine")
        code, _, err = command("lab", "start", "02", tmp_path / "taken" / below)
        assert code == 1
        assert "cannot write" in err
        assert (tmp_path / "taken").read_text() == "mine"

    def test_goes_beside_other_files(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        assert command("lab", "start", "lab02", tmp_path)[0] == 0
        assert (tmp_path / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("number", LABS)
    def test_every_lab_starts(self, number, tmp_path):
        code, _, err = command("lab", "start", number, tmp_path / "x")
        assert code == 0, err
        assert (tmp_path / "x" / LABS[number].file).exists()

    @pytest.mark.parametrize("typo", ["22", "0", "kernel_tric", "lab2x", ""])
    def test_typos_are_answered_with_what_exists(self, typo, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, _, err = command("lab", "start", typo)
        assert code == 2
        assert "known are 01, 02, 03" in err
        assert list(tmp_path.iterdir()) == []


class TestCheck:
    def test_list(self):
        code, out, _ = command("lab", "list")
        assert code == 0
        for lab in LABS.values():
            assert lab.title in out
            assert lab.file in out
            assert lab.exercises[-1].name in out
        found = json.loads(command("lab", "list", "--json")[1])
        assert [lab["lab"] for lab in found] == list(LABS)

    def test_a_started_lab_then_a_right_one(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        command("lab", "start", "02", "mine")
        code, out, _ = command("lab", "check", "mine")
        assert code == 1
        assert out.count("not written yet") == 5
        (tmp_path / "mine" / LAB.file).write_text(RIGHT, encoding="utf-8")
        monkeypatch.chdir(tmp_path / "mine")
        code, out, _ = command("lab", "check")
        assert code == 0
        assert "5 of 5 functions are right; score 100%" in out

    def test_json(self, tmp_path):
        path = tmp_path / "kernel_trick.py"
        path.write_text(RIGHT.replace("def elu_feature_map", "def other"), encoding="utf-8")
        code, out, _ = command("lab", "check", path, "--json")
        assert code == 1
        found = json.loads(out)
        assert found["format"] == "kerneltrick.lab/1"
        assert (found["lab"], found["file"], found["score"]) == ("02", "kernel_trick.py", 0.8)
        assert found["problems"] == []
        assert found["functions"][1] == {
            "name": "elu_feature_map", "passed": 0, "cases": len(LAB.exercises[1].cases),
            "hint": "the function is missing", "line": None,
        }  # fmt: skip

    def test_a_folder_of_submissions_of_several_labs(self, tmp_path):
        other = LABS["03"]
        (tmp_path / "ada.py").write_text(RIGHT, encoding="utf-8")
        (tmp_path / "bob.py").write_text("def elu_feature_map(x): return x\n", encoding="utf-8")
        command("lab", "start", "02", tmp_path / "carl")
        (tmp_path / "dora" / "work").mkdir(parents=True)
        solution = right_answers(other)["right_numpy"]
        (tmp_path / "dora" / "work" / "feature_maps.py").write_text(solution, encoding="utf-8")
        (tmp_path / "notes.py").write_text("x = 1\n")
        (tmp_path / "notes.txt").write_text("x")
        code, out, err = command("lab", "check", tmp_path)
        assert code == 1
        rows = [line.split() for line in out.splitlines() if ".py" in line]
        assert [(row[0], row[1], row[2]) for row in rows] == [
            ("ada.py", "02", "100%"),
            ("bob.py", "02", rows[1][2]),
            ("carl/src/kernel_trick.py", "02", "0%"),
            ("dora/work/feature_maps.py", "03", "100%"),
        ]
        assert "2 of 4 are right" in out
        assert "notes.py" in err
        found = json.loads(command("lab", "check", tmp_path, "--json")[1])
        assert [s["file"] for s in found["submissions"]] == [row[0] for row in rows]

    def test_what_cannot_be_read_is_left_out(self, tmp_path):
        (tmp_path / "Zoë Müller" / "sub folder").mkdir(parents=True)
        (tmp_path / "Zoë Müller" / "sub folder" / "kernel_trick.py").write_text(RIGHT)
        (tmp_path / "nowhere.py").symlink_to("/nowhere")
        (tmp_path / "circle").symlink_to(tmp_path)
        os.mkfifo(tmp_path / "pipe.py")
        (tmp_path / "wide.py").write_bytes(RIGHT.encode("utf-16"))
        found, unknown = grader.submissions(tmp_path, LABS)
        assert [s.name for s in found] == ["Zoë Müller/sub folder/kernel_trick.py", "wide.py"]
        assert [path.name for path in unknown] == ["nowhere.py", "pipe.py"]
        code, _, err = command("lab", "check", tmp_path / "pipe.py", "--lab", "02")
        assert code == 2
        assert "no Python file" in err

    def test_a_pipe_that_closes_early(self, tmp_path):
        (tmp_path / "kernel_trick.py").write_text("x = 1\n")
        check_it = f"{sys.executable} -m kerneltrick lab check {tmp_path} | true"
        done = subprocess.run(check_it, shell=True, capture_output=True, text=True)
        assert "Traceback" not in done.stderr

    def test_the_lab_can_be_told(self, tmp_path):
        path = tmp_path / "homework.py"
        path.write_text("x = 1\n")
        assert command("lab", "check", path)[0] == 2
        code, out, _ = command("lab", "check", path, "--lab", "3")
        assert code == 1
        assert "Lab 03" in out

    def test_nothing_to_grade(self, tmp_path):
        code, _, err = command("lab", "check", tmp_path)
        assert code == 2
        assert "kernel_trick.py" in err
        assert command("lab", "check", tmp_path / "nowhere")[0] == 2
        assert command("lab", "check", tmp_path, "--lab", "99")[0] == 2
        assert command("lab", "check", tmp_path, "--seconds", "-1")[0] == 2

    def test_ctrl_c(self, tmp_path):
        path = tmp_path / "kernel_trick.py"
        path.write_text("while True: pass\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "kerneltrick", "lab", "check", str(path), "--seconds", "600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "stopped" in err
