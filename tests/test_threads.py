"""How many threads the core uses, for which work, and how a process ends."""

import os
import subprocess
import sys
import textwrap

import pytest

import kerneltrick as kt
from kerneltrick.engines import core

torch = pytest.importorskip("torch")
AT_HAND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
pytestmark = pytest.mark.skipif(core() is None, reason="installed without the compiled core")


@pytest.fixture(autouse=True)
def nobody_has_said(monkeypatch):
    for name in ("KERNELTRICK_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    kt.set_num_threads(None)
    yield
    kt.set_num_threads(None)


def threads():
    return kt.show_config(mode="dicts")["threads"]


class Torch:
    """The part of PyTorch that the core asks for the number of threads."""

    def __init__(self, count):
        self.count = count

    def get_num_threads(self):
        return self.count


def test_the_processors_at_hand_by_default():
    assert threads() == AT_HAND


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("3", 3), ("5,2", 5), (" 4", 4)])
def test_openmp_has_a_say(text, count, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads() == count


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "99999999999999999999"])
def test_what_openmp_would_not_understand_is_not_ours_to_refuse(text, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads() == AT_HAND


def test_each_that_knows_more_of_this_library_goes_before(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads() == 2
    host = Torch(3)
    monkeypatch.setitem(sys.modules, "torch", host)
    assert threads() == 3
    host.count = 4  # torch.set_num_threads
    assert threads() == 4
    monkeypatch.setenv("KERNELTRICK_NUM_THREADS", "5")
    assert threads() == 5
    kt.set_num_threads(6)
    assert threads() == 6
    kt.set_num_threads(None)
    assert threads() == 5


def test_a_torch_that_is_not_there_yet_has_none(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for half in (None, object(), Torch(0), Torch("many")):
        monkeypatch.setitem(sys.modules, "torch", half)
        assert threads() == 2


def test_pytorchs_own_setting_is_followed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            assert threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("text", ["0", "-1", "two", "2 ", "1.5", "1025"])
def test_a_number_that_is_none_is_refused(text, monkeypatch):
    import numpy as np

    monkeypatch.setenv("KERNELTRICK_NUM_THREADS", text)
    x = np.ones((8, 4))
    for call in (kt.show_config, lambda: kt.linear_attention(x, x, x, engine="native")):
        with pytest.raises(ValueError, match=rf"KERNELTRICK_NUM_THREADS is '{text}'.*1 to 1024"):
            call()
    monkeypatch.setenv("KERNELTRICK_NUM_THREADS", "")
    assert threads() >= 1


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="cannot count threads here")
def test_small_work_wakes_nobody():
    code = """
        import os
        import numpy as np
        import kerneltrick as kt
        kt.set_num_threads(4)
        def count():
            return len(os.listdir("/proc/self/task"))
        before = count()
        small = np.ones((8, 64, 16), np.float32)
        for _ in range(3):
            kt.linear_attention(small, small, small, causal=True, engine="native")
        decoder = kt.Decoder("elu", shape=(4,), d=16)
        decoder.step(*np.ones((3, 4, 16), np.float32))
        assert count() == before
        large = np.ones((8, 8192, 64), np.float32)
        kt.linear_attention(large, large, large, causal=True, engine="native")
        assert count() == before + 3, (count(), before)
    """
    python(code)


def test_one_thread_is_one_thread():
    code = """
        import os
        import numpy as np, torch
        import kerneltrick as kt
        torch.set_num_threads(1)
        assert kt.show_config(mode="dicts")["threads"] == 1
        before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
        x = torch.ones(8, 8192, 64, requires_grad=True)
        kt.linear_attention(x, x, x, causal=True, engine="native").sum().backward()
        after = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
        assert after == before, (before, after)
    """
    python(code)


def test_a_script_that_used_gradients_ends_cleanly():
    """Also if its results are still alive when the process ends."""
    code = """
        import torch
        import kerneltrick as kt
        leaves = [torch.randn(2, 16, 8, requires_grad=True) for _ in range(3)]
        out = kt.linear_attention(*leaves, "elu", causal=True)
        out.retain_grad()
        out.sum().backward(retain_graph=True)
        decoder = kt.Decoder("elu", shape=(2,), d=8)
        class Keeps: pass
        keeps = Keeps()
        keeps.itself, keeps.out, keeps.decoder = keeps, out, decoder
    """
    assert python(code).stderr == ""
