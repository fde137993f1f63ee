"""The student's process: started, asked, stopped, and its messages."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kerneltrick.labs import grader, walls
from kerneltrick.labs.walls import Died, Slow, _count, _wire


class TestProcess:
    def test_a_server_that_was_killed_is_replaced(self):
        with grader.Server() as server:
            for _ in range(2):
                worker = server.worker()
                worker.load(b"def double(x): return 2 * x", "answer.py")
                assert worker.call("double", (21,))[1] == 42
                worker.stop()
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait()

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

    def test_damaged_messages_are_unreadable_or_data(self):
        rng = np.random.default_rng(0)
        whole = _wire.pack({"kind": "answer"}, value=[np.ones((2, 3)), {"a": 1.5}])
        for _ in range(20):
            message = bytearray(whole)
            for at in rng.integers(0, len(message), 3):
                message[at] = int(rng.integers(0, 256))
            with contextlib.suppress(_wire.Unreadable):
                _wire.unpack(bytes(message))

    def test_given_functions_are_those_of_a_file(self, tmp_path):
        path = tmp_path / "given.py"
        path.write_text("import math\n\ndef _own(x): return x\n\ndef half(x): return _own(x) / 2\n")
        with walls.Server(given=path) as server:
            worker = server.worker()
            worker.load(b"def apply(f, x): return f(x)", "answer.py")
            assert worker.call("apply", (walls.Given("half"), 3.0))[1] == 1.5
            assert worker.call("apply", (), {"f": walls.Given("half"), "x": 1.0})[1] == 0.5


LINEAR = {
    "matmul": lambda q, k, v: q @ (k.T @ v),
    "float32": lambda q, k, v: np.float32(q) @ (k.astype(np.float32).T @ np.array(v, np.float32)),
    "dot": lambda q, k, v: q.dot(np.dot(k.T, v)),
    "several at once": lambda q, k, v: np.linalg.multi_dot([q, k.T, v]),
    "tensordot": lambda q, k, v: np.tensordot(q, np.tensordot(k, v, axes=(0, 0)), axes=1),
    "einsum": lambda q, k, v: np.einsum("im,jm,jM->iM", q, k, v, optimize=True),
    "prefix sums": lambda q, k, v: np.cumsum(k[:, :, None] * v[:, None], axis=0) * q[:, :, None],
    "tokens": lambda q, k, v: (
        q @ sum(np.outer(key, value) for key, value in zip(k, v, strict=True))
    ),
    "rows that grow": lambda q, k, v: functools.reduce(lambda o, x: np.vstack([o, x @ k[:4]]), q),
    "blocks": lambda q, k, v: [q[i : i + 20] @ k[i : i + 20].T for i in range(0, len(q), 20)],
    "batches": lambda q, k, v: q.reshape(-1, 20, 4) @ np.swapaxes(k.reshape(-1, 20, 4), 1, 2),
    "a system": lambda q, k, v: np.linalg.solve(q.T @ q, q.T @ v) / np.linalg.norm(v[:, 0]),
    "plain numbers": lambda q, k, v: [sum(x * x for x in key) for key in k.tolist()],
}
QUADRATIC = {
    "matmul": lambda q, k, v: q @ k.T @ v,
    "copies": lambda q, k, v: np.asarray(q) @ np.ascontiguousarray(k).T @ np.array(v),
    "rows": lambda q, k, v: np.array([(k @ query) @ v for query in q]),
    "blocks": lambda q, k, v: [q[i : i + 64] @ k.T @ v for i in range(0, len(q), 64)],
    "prefixes": lambda q, k, v: [q[i] @ (k[: i + 1].T @ v[: i + 1]) for i in range(len(q))],
    "dot": lambda q, k, v: [k.dot(query).dot(v) for query in q],
    "einsum": lambda q, k, v: np.einsum("im,jm->i", q, k),
    "one array": lambda q, k, v: (q[:, None] * k).sum(axis=-1) @ v,
    "plain numbers": lambda q, k, v: [sum(x * y for x in q[:, 0]) for y in k[:, 0].tolist()],
}


def operations(function, n, most=0):
    counter = _count.OperationCounter(__file__, most)
    with contextlib.suppress(_count.TooMany):
        counter.call(function, tuple(np.random.default_rng(n).standard_normal((3, n, 4))), {})
    return counter.operations


def test_work_that_grows_as_n_is_counted_so():
    for style, function in LINEAR.items():
        few = operations(function, 100)
        assert few >= 100, style
        assert operations(function, 1600) <= 17 * few, style


def test_work_that_grows_as_the_square_is_stopped():
    for style, function in QUADRATIC.items():
        most = 80 * operations(function, 100)
        assert operations(function, 1600, most) > most, style


def test_counting_leaves_numpy_as_it_was():
    makers = {name: getattr(np, name) for name in _count._MAKERS}
    operations(QUADRATIC["rows"], 100, 1000)
    assert all(getattr(np, name) is make for name, make in makers.items())
