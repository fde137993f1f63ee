"""Student code that tries to cheat can change only its own answers."""

import textwrap

from grading import LAB, changed, only, only_wrong

BOTH = only(LAB, {"elu_feature_map", "verify_associativity"})
PATCHES = (
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
    "import sys; sys.modules['walls._wire'].pack = lambda *a, **k: b''",
    "import sys; sys.modules['walls._child'].call = lambda *a, **k: ({}, 1)",
    "import sys; sys.stdout = sys.stderr = None; sys.settrace(lambda *a: 1 / 0)",
    "import gc, threading; gc.disable(); threading.Thread(target=lambda: 1 / 0).start()",
)


class TestForgeries:
    def test_patches_fool_nobody(self, hurried):
        """A wrong answer stays wrong whatever was patched in its process."""
        wrong = (
            "def elu_feature_map(x):\n    return x\n"
            "def verify_associativity(Q, K, V):\n    return True\n"
        )
        for patch in PATCHES:
            found, _ = changed(wrong + patch + "\n", hurried, BOTH)
            assert not any(f.right for f in found.values()), patch

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
        wire = sys.modules["walls._wire"]
        def forge(message):
            for number in range(3, 64):
                try:
                    os.write(number, message)
                except OSError:
                    pass
        """

    def test_forged_messages_fool_nobody(self, hurried):
        for message in (
            "b'garbage' * 100",
            "b'\\xff' * 64",
            "wire.HEAD.pack(2, 0) + b'{}'",
            "wire.pack({'kind': 'answer', 'ticket': 'guess'}, value=True)",
            "wire.HEAD.pack(2**31, 2**31)",
        ):
            found, report = changed(
                textwrap.dedent(self.FORGERY)
                + f"def elu_feature_map(x):\n    forge({message})\n    return x\n",
                hurried,
            )
            assert not found["elu_feature_map"].right, message
            assert all(f.right for name, f in found.items() if name.endswith("order")), message
            assert report.score < 1

    def test_a_forged_answer_is_only_an_answer(self, hurried):
        """Code that knows everything about the child process can still only answer the question."""
        found, _ = changed(
            """
            import sys, gc
            child = sys.modules["walls._child"]
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
                sys.modules["walls._child"].call = lambda *a: ({fields}, a[2][0])
                """,
                hurried,
                only(LAB, {"elu_feature_map"}),
            )
            assert not found["elu_feature_map"].right, fields

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
        assert "peak memory grows as n²" in only_wrong(found, "linear_attention_order")

    def test_answers_that_are_huge_or_deep(self):
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
            "{i * (2**61 - 1): 0 for i in range(1500)}",
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
                lab=only(LAB, {"simple_feature_map", "elu_feature_map"}),
            )
            assert only_wrong(found, "elu_feature_map").startswith("returns "), answer

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
