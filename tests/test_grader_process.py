"""The student's process: started, asked, stopped, and its messages."""

import contextlib
import doctest
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from grading import changed

from kerneltrick.labs import grader, walls
from kerneltrick.labs.walls import Died, Slow, _wire


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

    def test_given_functions_are_those_of_a_file(self, tmp_path):
        path = tmp_path / "given.py"
        path.write_text("import math\n\ndef _own(x): return x\n\ndef half(x): return _own(x) / 2\n")
        with walls.Server(given=path) as server:
            worker = server.worker()
            worker.load(b"def apply(f, x): return f(x)", "answer.py")
            assert worker.call("apply", (walls.Given("half"), 3.0))[1] == 1.5
            assert worker.call("apply", (), {"f": walls.Given("half"), "x": 1.0})[1] == 0.5

    def test_the_door_is_documented_by_an_example(self):
        assert doctest.testmod(walls) == (0, 2)
