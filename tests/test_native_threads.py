"""The compiled engine with threads, forks and signals, and the memory that it keeps."""

import gc
import os
import threading

import numpy as np
import pytest
from native_cases import custom, inputs, python
from oracle import same_bits

import kerneltrick as kt
from kerneltrick.engines import core

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("two_threads")


def test_memory_of_large_results_is_used_again_and_little_is_kept():
    n = 1 << 15
    x = np.broadcast_to(np.float32(1), (4, n, 64))  # an output of 32 MiB
    first = kt.linear_attention(x, x, x, causal=True, engine="native")
    place, copy = first.ctypes.data, first.copy()
    second = kt.linear_attention(x, x, 2 * x, causal=True, engine="native")
    places = {place, second.ctypes.data}
    assert len(places) == 2  # the first is still in use
    assert same_bits(first, copy)
    view = first[1:]
    del first
    third = kt.linear_attention(x, x, x, causal=True, engine="native")
    assert third.ctypes.data not in places  # its view is
    assert same_bits(view, copy[1:])
    del view, second
    again = kt.linear_attention(x, x, 3 * x, causal=True, engine="native")
    assert again.ctypes.data in places
    np.testing.assert_allclose(again, 3, rtol=1e-6)
    many = [kt.linear_attention(x, x, x, causal=True, engine="native") for _ in range(12)]
    del many, again, third
    gc.collect()
    assert 0 < core().kept_bytes() <= 256 << 20


def test_pytorch_lends_its_threads_where_it_has_some():
    """Results are bit-identical with our threads, with PyTorch's, and in child processes."""
    code = """
        import hashlib, os, sys
        import numpy as np
        import kerneltrick as kt
        from kerneltrick.engines import core
        kt.set_num_threads(2)
        core().wake_always(True)
        x = np.random.default_rng(0).standard_normal((3, 5, 3000, 16)).astype(np.float32)
        def digest():
            out = kt.linear_attention(*x, "elu", causal=True, engine="native")
            return hashlib.sha256(out.tobytes()).hexdigest()
        own = digest()
        import torch
        torch.set_num_threads(2)
        torch.ones(1 << 20).add_(1)
        shared = core().share_threads()
        assert shared or sys.platform != "linux"
        assert digest() == own
        child = os.fork()
        if not child:
            os._exit(0 if digest() == own else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert digest() == own
    """
    python(code)


def test_calls_from_several_threads_are_right_and_leave_the_interpreter_free():
    arrays = inputs(20_000, 32, 32, (2, 2), dtype=np.float32)
    others = [inputs(500, 8, 8, seed=seed) for seed in range(4)]
    texts = ["elu", "favor:features=16", "taylor:order=2", "poly:degree=3"]
    expected = [kt.linear_attention(*x, t, causal=True) for x, t in zip(others, texts, strict=True)]
    wrong, done = [], threading.Event()

    def repeat(x, text, y):
        while not done.is_set():
            if not same_bits(kt.linear_attention(*x, text, causal=True, engine="native"), y):
                wrong.append(text)

    workers = [
        threading.Thread(target=repeat, args=args)
        for args in zip(others, texts, expected, strict=True)
    ]
    for worker in workers:
        worker.start()
    long = [kt.linear_attention(*arrays, causal=True, engine="native") for _ in range(3)]
    done.set()
    for worker in workers:
        worker.join()
    assert not wrong
    assert all(same_bits(x, long[0]) for x in long)


def test_other_python_threads_run_during_a_call():
    """A thread that runs only when the call releases the interpreter ends a long call."""
    code = """
        import os, signal, sys, threading, time
        import numpy as np, kerneltrick as kt

        def attend(n):
            x = np.broadcast_to(np.float32(1), (1, n, 64))
            kt.linear_attention(x[:, :1], x, x[..., :1], "favor:features=64", engine="native")

        attend(1)  # which imports, and gives up the interpreter for it
        sys.setswitchinterval(1e6)
        turns, begun = [], threading.Event()

        def other():
            begun.wait()
            while len(turns) < 50:
                time.sleep(0)
                turns.append(None)
            os.kill(os.getpid(), signal.SIGINT)

        worker = threading.Thread(target=other)
        worker.start()
        try:
            begun.set()
            attend(1 << 28)
        except KeyboardInterrupt:
            worker.join()
            print(len(turns))
    """
    assert python(code) == "50"


def test_a_fork_after_use_does_not_hang():
    """A child process has none of the parent's threads."""
    code = """
        import multiprocessing, os, signal, sys, threading
        import numpy as np, kerneltrick as kt

        kt.set_num_threads(4)
        kt.engines.core().wake_always(True)
        x = np.random.default_rng(0).standard_normal((5, 700, 8))

        def work(_=None):
            return kt.linear_attention(x, x, x, causal=True, engine="native")

        expected = work()
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                work()

        other = threading.Thread(target=busy)  # a call may be under way when the fork happens
        other.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                same = work().tobytes() == expected.tobytes()
                grand = os.fork()
                if grand == 0:
                    signal.alarm(60)
                    os._exit(0 if work().tobytes() == expected.tobytes() else 1)
                same &= os.waitstatus_to_exitcode(os.waitpid(grand, 0)[1]) == 0
                os._exit(0 if same else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        other.join()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for out in pool.map_async(work, range(4)).get(60):
                assert (out == expected).all()
        assert (work() == expected).all()
        print("done")
    """
    assert python(code) == "done"


INTERRUPT = """
    import os, signal, sys, threading, time
    import numpy as np, kerneltrick as kt

    what, threads = sys.argv[1], int(sys.argv[2])
    kt.set_num_threads(threads)
    kt.engines.core().wake_always(True)
    rows = 1 if what == "shared" else 2
    name = {"shared": "elu", "full": "elu", "features": lambda x: abs(x) + 0.5}.get(
        what, "favor:features=64"
    )

    def forward(n):
        x = np.broadcast_to(np.ones((1, 1, 64), np.float32), (rows, n, 64))
        q, v = x[:, :1] if what == "full" else x, x[..., :1]
        kt.linear_attention(q, x, v, name, causal=what != "full", engine="native")

    def timed(run, *a):
        first = time.perf_counter()
        run(*a)
        return time.perf_counter() - first

    if what == "backward":
        import torch
        leaves = [torch.ones(rows, 1 << 19, w).requires_grad_() for w in (64, 64, 1)]
        out = kt.linear_attention(*leaves, name, causal=True, engine="native").sum()
        run = out.backward
    else:
        forward(64)
        n, took = 4096, 0
        while took < 0.1:
            n, took = 2 * n, timed(forward, 2 * n)
        size = int(n / took * 15)  # what takes 15 seconds
        run = lambda: forward(size)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        run()
    except KeyboardInterrupt:
        answer = "interrupted"
    else:
        answer = "finished"
        time.sleep(1)
    small = np.ones((1, 100, 4))
    out = kt.linear_attention(small, small, small, causal=True, engine="native")
    np.testing.assert_allclose(out, 1, rtol=1e-12)
    print(answer)
"""


@pytest.mark.parametrize(
    ("what", "threads"), [("rows", 2), ("shared", 1), ("shared", 2), ("full", 2), ("features", 2)]
)
def test_ctrl_c_ends_a_long_call_and_the_next_one_works(what, threads):
    """Calls of 15 seconds that are interrupted after 0.3 seconds stop early."""
    assert python(INTERRUPT, what, threads) == "interrupted"


@pytest.mark.slow
def test_ctrl_c_ends_a_long_backward_call():
    assert python(INTERRUPT, "backward", 2) == "interrupted"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("text", ["softmax", "elu@window=2100,sinks=3"])
def test_threads_that_share_a_long_window_give_the_bits_of_one(text, dtype):
    """Windows of more than a thousand tokens are read in parts, by whoever is free."""
    rng, n = np.random.default_rng(0), 3000
    q = rng.standard_normal((1, 6, n, 8)).astype(dtype)
    k, v = rng.standard_normal((2, 1, 2, n, 8)).astype(dtype)
    k[0, 1, n - 2, 0] = v[0, 0, n - 5, 3] = np.nan
    first = n - 6
    wide = [x.astype(np.float64) for x in (q, k, v)]
    want = kt.linear_attention(*wide, text, causal=True, engine="native")
    _, state = kt.linear_attention(
        *(x[:, :, :first] for x in (q, k, v)), text, causal=True, return_state=True
    )
    found = []
    for threads in (1, 2):
        kt.set_num_threads(threads)
        decoder = kt.Decoder(text, shape=(1, 2), d=8, groups=3, dtype=dtype, state=state)
        steps = [decoder.step(*(x[:, :, t] for x in (q, k, v))) for t in range(first, n)]
        found.append(np.stack(steps, axis=-2))
    assert same_bits(*found)
    assert np.isnan(found[0]).any()
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found[0], want[:, :, first:], atol=tolerance)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def small_calls(count):
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    t = torch.tensor(x).requires_grad_()
    decoder = kt.Decoder("elu", shape=(2,), d=4, dtype="float64")
    for i in range(count):
        kind = i % 20
        if kind == 0:
            kt.linear_attention(t, t, t, causal=True, engine="native").sum().backward()
            t.grad = None
        elif kind == 1:
            kt.linear_attention(x, x, x, custom, engine="native")
        elif kind == 2:
            kt.linear_attention(x, x, x, "favor:features=8", causal=True, engine="native")
        elif kind == 3:
            kt.linear_attention(x, x, x, causal=True, return_state=True, engine="native")
        else:
            decoder.step(x[:, 0], x[:, 1], x[:, 2])
            decoder.snapshot()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_is_stable_over_many_calls(count):
    small_calls(count // 5)
    gc.collect()
    before = resident()
    small_calls(count)
    gc.collect()
    assert resident() - before < 4 << 20


def test_inputs_may_be_dropped_while_the_core_runs():
    """The core gets addresses, so the arrays behind them must stay alive."""
    for seed in range(50):
        out = kt.linear_attention(*inputs(200, 6, 5, seed=seed), causal=True, engine="native")
        again = kt.linear_attention(*inputs(200, 6, 5, seed=seed), causal=True, engine="native")
        assert same_bits(out, again)
