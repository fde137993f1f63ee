"""Measure the compiled core against its targets: rates, ratios, memory, decoding, size.

python benchmarks/native.py                              print the table
python benchmarks/native.py --quick                      use tiny sizes, to check that it runs
python benchmarks/native.py --write docs/performance.md  write the table between its markers
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench
import quiet

THREADS, HEADS, WIDTH = bench.THREADS, bench.HEADS, bench.WIDTH  # 2; B = 1, H = 8, D = M = 64
START, END = "<!-- native:begin -->", "<!-- native:end -->"
ROOT = Path(__file__).parents[1]
MIB = 1 << 20
WINDOW = 64
FUSED = (
    "identity", "elu", "relu", "relu2", "exp", "square", "cosformer:horizon=65536",
    "hedgehog", "hedgehog:separate=true", "hedgehog:activation=exp", "t2r", "favor:features=256",
    "favor:features=256,kind=hyperbolic", "favor:features=256,kind=trig", "taylor:order=2",
    "poly:degree=2",
)  # fmt: skip
WINDOWS = tuple(f"{name}@window={WINDOW}" for name in ("elu", "hedgehog", "softmax"))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the cases, and how long each call is repeated."""

    lengths: tuple[int, int] = (4096, 16384)
    gemm: int = 2048
    scan: tuple[int, ...] = tuple(range(64, 1025, 64))
    long: int = 65536
    positions: tuple[int, int] = (1000, 1_000_000)
    turns: int = 5  # the least number of turns for each call
    seconds: float = 1.5  # the time spent on each call


QUICK = Sizes((128, 256), 128, (64, 128), 512, (10, 100), turns=1, seconds=0.0)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    measured: str
    target: str
    met: bool | None = None  # None if it was not measured
    alone: bool = True

    def __str__(self) -> str:
        met = "–" if self.met is None else "yes" if self.met else "**no**"
        star = "" if self.alone else "*"
        return f"| {self.case} | {self.measured}{star} | {self.target} | {met} |"


class Quiet(quiet.Quiet):
    """Like `quiet.Quiet`, but child processes that have ended do not count as others."""

    @staticmethod
    def others() -> float:
        times = os.times()
        return quiet.Quiet.others() - times.children_user - times.children_system


Entry = tuple[Callable[[], Any], Callable[[], Any]]  # the timed call, and the call before a turn


class Bench:
    """Times calls in turns, next to a matrix product whose rate is the yardstick."""

    def __init__(self, sizes: Sizes, patience: float) -> None:
        import torch

        self.sizes, self.quiet = sizes, Quiet(patience)
        self.rates: list[float] = []  # of sgemm on all threads, in flop/s
        self.gemm, self.dgemm = (self.product(x) for x in (torch.float32, torch.float64))

    def product(self, dtype: Any) -> Callable[[], Any]:
        import torch

        a, b, c = (torch.randn(self.sizes.gemm, self.sizes.gemm, dtype=dtype) for _ in range(3))
        return lambda: torch.mm(a, b, out=c)

    def race(
        self, *entries: Callable[[], Any] | Entry, seconds: float | None = None
    ) -> tuple[list[float], bool]:
        """Return the best time of each entry, and whether all of them had an idle machine.

        The entries take turns, so that a slow moment affects all of them. Turns during which other
        processes were busy are repeated until the patience is used up.
        """
        seconds = self.sizes.seconds if seconds is None else seconds
        best = [(False, math.inf)] * len(entries)
        spent, count = 0.0, [0] * len(entries)
        while min(count) < self.sizes.turns or spent < seconds * len(entries):
            for i, entry in enumerate(entries):
                function, before = entry if isinstance(entry, tuple) else (entry, set_threads)
                before()
                time, took, alone = self.quiet.turn(function, [])
                if (alone, -time) > (best[i][0], -best[i][1]):
                    best[i] = alone, time
                if alone or self.quiet.patience <= 0:
                    spent += took
                    count[i] += 1
        set_threads()
        return [time for _, time in best], all(alone for alone, _ in best)

    def rate(
        self, case: str, call: Callable[[], Any], flops: float, least: float, wide: bool = False
    ) -> Row:
        """Make a row that compares the useful flop/s of a call with those of sgemm (dgemm)."""
        (ours, gemm), alone = self.race(call, self.dgemm if wide else self.gemm)
        rate = 2 * self.sizes.gemm**3 / gemm
        if not wide:
            self.rates.append(rate)
        share = flops / ours / rate
        target = f"≥ {least:.2f} of {'dgemm' if wide else 'sgemm'}"
        if case.startswith("causal ELU forward,"):
            target += " (stretch 0.80)"
        measured = f"{rounded(share, 2, least=least)} ({ms(ours)})"
        return Row(case, measured, target, share >= least, alone)

    def faster(
        self, case: str, ours: Callable[[], Any], theirs: Callable[[], Any], least: float
    ) -> Row:
        (a, b), alone = self.race(ours, theirs)
        measured = f"{rounded(b / a, 1, least=least)}× ({ms(a)} against {ms(b)})"
        return Row(case, measured, f"≥ {least:.0f}×", b / a >= least, alone)


def set_threads(count: int = THREADS) -> None:
    """Give the core and PyTorch the same number of threads."""
    import torch

    import kerneltrick as kt
    from kerneltrick import _core

    getattr(kt, "set_num_threads", _core.set_threads)(count)
    torch.set_num_threads(count)


def ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds)} ms"


def significant(x: float, *, most: float | None = None) -> str:
    """Format x with three significant digits, or more if the comparison with `most` needs them."""
    return rounded(x, max(0, 2 - math.floor(math.log10(x))), most=most)


def rounded(x: float, digits: int, *, least: float | None = None, most: float | None = None) -> str:
    """Format x with `digits` decimals, or with more if fewer would contradict the verdict.

    A share of 0.597 misses a target of 0.60, but "0.60" would seem to meet it: it becomes "0.597".
    """
    for places in range(digits, 18):
        text = f"{x:.{places}f}"
        shown = float(text)
        if (least is None or (shown >= least) == (x >= least)) and (
            most is None or (shown <= most) == (x <= most)
        ):
            return text
    return repr(x)


def inputs(n: int, heads: int = HEADS, d: int = WIDTH, library: str = "torch") -> list[Any]:
    """Return q, k (1, H, n, d) and v (1, H, n, M) in float32. All their pages are in memory."""
    import numpy as np

    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal((1, heads, n, w), dtype=np.float32) for w in (d, d, WIDTH)]
    if library == "numpy":
        return arrays
    import torch

    return [torch.from_numpy(x) for x in arrays]


def forward(data: list[Any], feature_map: str = "elu", causal: bool = True) -> Callable[[], Any]:
    import torch

    import kerneltrick as kt

    def call() -> Any:
        with torch.inference_mode():
            return kt.linear_attention(*data, feature_map, causal=causal, engine="native")

    return call


def by_hand(function: Callable[..., Any], data: list[Any]) -> Callable[[], Any]:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return function(*data)

    return call


def with_gradients(function: Callable[..., Any], data: list[Any]) -> Callable[[], Any]:
    import torch

    leaves = [x.clone().requires_grad_() for x in data]
    cotangent = torch.randn_like(data[2])
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent)


def ours(q: Any, k: Any, v: Any) -> Any:
    import kerneltrick as kt

    return kt.linear_attention(q, k, v, "elu", causal=True, engine="native")


def causal_flops(n: int, m: int) -> int:
    return n * HEADS * (4 * m * WIDTH + 64 * (m + WIDTH))


def full_flops(n: int, m: int) -> int:
    return n * HEADS * 4 * m * WIDTH


def gradient_flops(n: int, m: int) -> int:
    """The operations of a causal forward and backward pass."""
    return n * HEADS * (14 * m * WIDTH + 64 * (4 * m + 3 * WIDTH))


def favor_flops(n: int, m: int) -> int:
    return causal_flops(n, m) + n * HEADS * 4 * WIDTH * m  # plus the projections of q and k


def rates(run: Bench) -> Iterator[Row]:
    """Compare the core with the sgemm rate and with hand-written formulas."""
    import baselines

    from kerneltrick import maps

    lengths, last = run.sizes.lengths, run.sizes.lengths[-1]
    for n in lengths:
        call, flops = forward(inputs(n)), causal_flops(n, WIDTH)
        yield run.rate(f"causal ELU forward, n = {n}", call, flops, 0.70)
    n = lengths[0]
    call, flops = forward([x.double() for x in inputs(n)]), causal_flops(n, WIDTH)
    yield run.rate(f"causal ELU float64 forward, n = {n}", call, flops, 0.50, wide=True)
    for n in lengths:
        call, flops = forward(inputs(n), causal=False), full_flops(n, WIDTH)
        yield run.rate(f"full ELU forward, n = {n}", call, flops, 0.60)
    for n in lengths:
        call, flops = with_gradients(ours, inputs(n)), gradient_flops(n, WIDTH)
        yield run.rate(f"causal ELU forward+backward, n = {n}", call, flops, 0.60)
    data = inputs(last)
    yield run.faster(
        f"causal forward+backward against the plain-torch chunk formula, n = {last}",
        with_gradients(ours, data),
        with_gradients(baselines.plain_chunk_torch, data),
        10,
    )
    yield run.faster(
        f"causal forward against the plain-torch chunk formula, n = {last}",
        forward(data),
        by_hand(baselines.plain_chunk_torch, data),
        10,
    )
    softmax = functools.partial(baselines.softmax_torch, causal=True)
    yield run.faster(
        f"causal forward against scaled_dot_product_attention, n = {last}",
        forward(data),
        by_hand(softmax, data),
        60,
    )
    yield break_even(run, softmax)
    for name, d, least, count in (
        ("taylor:order=2", 16, 0.60, causal_flops),
        ("poly:degree=2", 64, 0.60, causal_flops),
        ("favor:features=256", 64, 0.55, favor_flops),
    ):
        for n in lengths:
            call, flops = forward(inputs(n, d=d), name), count(n, maps.get(name).dim(d))
            yield run.rate(f"{name}, d = {d}, causal forward, n = {n}", call, flops, least)


def hybrid_flops(n: int, m: int, window: int = WINDOW) -> int:
    """The operations of a causal forward pass: the far part, and the keys of the window."""
    return causal_flops(n, m) + n * HEADS * 2 * window * 2 * WIDTH


def hybrid_gradient_flops(n: int, m: int, window: int = WINDOW) -> int:
    """The same with the backward pass. The window takes two products forward, five backward."""
    return gradient_flops(n, m) + n * HEADS * 7 * window * 2 * WIDTH


def near_rows(run: Bench) -> Iterator[Row]:
    """Compare softmax, and a map with a window, with PyTorch's fused softmax and with sgemm."""
    import baselines

    import kerneltrick as kt
    from kerneltrick import maps

    first, last = run.sizes.lengths
    softmax = functools.partial(baselines.softmax_torch, causal=True)
    ours = functools.partial(kt.softmax_attention, causal=True)
    for n in (first, last):
        data = inputs(n)
        case = f"softmax causal forward against scaled_dot_product_attention, n = {n}"
        yield run.faster(case, by_hand(ours, data), by_hand(softmax, data), 1)
    data = inputs(first)
    yield run.faster(
        f"softmax causal forward+backward against scaled_dot_product_attention, n = {first}",
        with_gradients(ours, data),
        with_gradients(softmax, data),
        1,
    )
    data = inputs(last)
    call = forward(data, f"elu@window={WINDOW}")
    case = f"ELU, window {WINDOW}, causal forward, n = {last}"
    yield run.rate(case, call, hybrid_flops(last, WIDTH), 0.55)
    yield run.faster(
        f"{case}, against scaled_dot_product_attention", call, by_hand(softmax, data), 40
    )
    weight = inputs(WIDTH, heads=1)[0][0, 0] / 8
    hedgehog = maps.Hedgehog(weight=weight)
    data = inputs(first)
    call = with_gradients(
        lambda q, k, v: kt.linear_attention(q, k, v, hedgehog, causal=True, window=WINDOW), data
    )
    yield run.rate(
        f"Hedgehog m = {2 * WIDTH}, window {WINDOW}, forward+backward, n = {first}",
        call,
        hybrid_gradient_flops(first, 2 * WIDTH) + 6 * first * HEADS * 2 * WIDTH * WIDTH,
        0.40,
    )


def decay_rows(run: Bench) -> Iterator[Row]:
    """Compare attention with a decay per token, or per token and feature, to attention without.

    Log-decays are uniform between 0 and −0.1, as in the gates of published models, or between 0
    and −2, where blocks have to be shorter.
    """
    import torch

    import kerneltrick as kt

    n = run.sizes.lengths[0]
    data = inputs(n)

    def attend(q: Any, k: Any, v: Any, *decay: Any) -> Any:
        log_decay = decay[0] if decay else None
        return kt.linear_attention(q, k, v, "elu", causal=True, log_decay=log_decay)

    for name, shape, most in (("token", (1, HEADS, n), 1.3), ("feature", (1, HEADS, n, WIDTH), 4)):
        for strongest in (0.1, 2.0):
            decay = -strongest * torch.rand(*shape, generator=torch.Generator().manual_seed(n))
            for kind, timed in (("forward", by_hand), ("forward+backward", with_gradients)):
                entries = timed(attend, [*data, decay]), timed(attend, data)
                (ours, none), alone = run.race(*entries)
                case = f"a decay per {name} of 0 … −{strongest:g} against none, {kind}, n = {n}"
                ratio = rounded(ours / none, 2, most=most)
                measured = f"{ratio}× ({ms(ours)} against {ms(none)})"
                yield Row(case, measured, f"≤ {most:g}×", ours / none <= most, alone)


def break_even(run: Bench, softmax: Callable[..., Any]) -> Row:
    """Find the smallest n from which on linear attention is never slower than SDPA."""
    scan, found, quiet_all = run.sizes.scan, 0, True
    for n in reversed(scan):
        data = inputs(n)
        (a, b), alone = run.race(
            forward(data), by_hand(softmax, data), seconds=run.sizes.seconds / 3
        )
        quiet_all &= alone
        if a > b:
            break
        found = n
    measured = f"n = {found}" if found else f"above n = {scan[-1]}"
    if found == scan[0]:
        measured = f"at or below n = {found}"
    return Row(
        f"break-even with scaled_dot_product_attention, n = {scan[0]} … {scan[-1]}",
        measured,
        "n ≤ 512",
        0 < found <= 512,
        quiet_all,
    )


def thread_rows(run: Bench) -> Iterator[Row]:
    data = inputs(run.sizes.long, heads=1)
    one, all_ = functools.partial(set_threads, 1), set_threads
    for name, call in (
        ("forward", forward(data)),
        ("forward+backward", with_gradients(ours, data)),
    ):
        (a, b, c, d), alone = run.race((call, one), (call, all_), (run.gemm, one), (run.gemm, all_))
        share = (a / b) / (c / d)
        yield Row(
            f"H = 1, causal ELU {name}, n = {run.sizes.long}: speed-up by {THREADS} threads",
            f"{rounded(share, 2, least=0.85)} of sgemm's "
            f"({a / b:.2f}×, {ms(b)}, against {c / d:.2f}×)",
            "≥ 0.85 of sgemm's own",
            share >= 0.85,
            alone,
        )


def memory_rows(sizes: Sizes) -> Iterator[Row]:
    """Measure each map in its own process.

    This must run before anything large is imported here, since a new process inherits the peak
    memory of its parent.
    """
    cases = [(name, "numpy") for name in (*FUSED, *WINDOWS)] + [("elu", "torch")]
    for name, library in cases:
        d = 16 if name.startswith("taylor") else WIDTH
        command = [sys.executable, __file__, "--extra", json.dumps([name, d, sizes.long, library])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        extra, state = json.loads(done.stdout)
        yield Row(
            f"extra memory, {name}, d = {d}, causal forward, n = {sizes.long}, "
            f"{bench.LIBRARIES[library]}",
            f"{rounded(extra / MIB, 1, most=16)} MiB (state {state / MIB:.1f} MiB)",
            "≤ 16 MiB beyond inputs, output, state",
            extra <= 16 * MIB,
        )


def extra(name: str, d: int, n: int, library: str) -> tuple[int, int]:
    """Return the peak bytes of a call beyond inputs, output and state; and those of the state."""
    import numpy as np

    import kerneltrick as kt

    if library == "torch":
        set_threads()
    else:
        from kerneltrick import _core

        getattr(kt, "set_num_threads", _core.set_threads)(THREADS)

    def call(data: list[Any], **options: Any) -> Any:
        return kt.linear_attention(*data, name, causal=True, engine="native", **options)

    small = inputs(64, d=d, library=library)
    call(small)  # starts threads and loads what the libraries load late
    _, state = call(small, return_state=True)
    parts = [*state.sums, state.carry.log_scale]
    kept = sum(np.asarray(x).nbytes for x in parts if x is not None)
    before = resident()
    data = inputs(n, d=d, library=library)
    output = call(data)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given = sum(np.asarray(x).nbytes for x in [*data, output])
    return peak - before - given - kept, kept


def resident() -> int:
    """The resident bytes of this process, or its peak so far if they are not known."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # freed memory would be reused and so be missing from the peak
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def decode_rows(run: Bench) -> Iterator[Row]:
    """Decode one token at a time, in NumPy."""
    import kerneltrick as kt

    first, last = run.sizes.positions
    cases = (
        ("decode, batch 8, H = 32: a step", "≤ 1.4× reading and writing the state"),
        ("decode, batch 8, H = 32, window 64: a step", "≤ 1.6× reading and writing the state"),
        (f"decode, H = 8: a token at position {last} against one at {first}", "equal: ≤ 1.05×"),
        ("decode, batch 1, H = 1, d = 4: a call", "≤ 10 µs"),
    )
    if not hasattr(kt, "Decoder"):
        yield from (Row(case, "skipped: no kerneltrick.Decoder", target) for case, target in cases)
        return
    measures = (state_pass, functools.partial(state_pass, window=64), late_token, overhead)
    for (case, target), measure in zip(cases, measures, strict=True):
        measured, met, alone = measure(run)
        yield Row(case, measured, target, met, alone)


def stream(
    batch_shape: tuple[int, ...], d: int, at: int = 0, **options: int
) -> tuple[Any, list[Any]]:
    """Return a decoder that has seen `at` tokens, and the token that it sees in each step."""
    import numpy as np

    import kerneltrick as kt

    decoder = kt.Decoder("elu", shape=batch_shape, d=d, **options)
    rng = np.random.default_rng(d)
    token = [rng.standard_normal((*batch_shape, d), dtype=np.float32) for _ in range(3)]
    for _ in range(at):
        decoder.step(*token)
    return decoder, token


def state_pass(run: Bench, window: int = 0) -> tuple[str, bool, bool]:
    import torch

    decoder, token = stream((8, 32), WIDTH, at=window, **({"window": window} if window else {}))
    size = getattr(
        decoder, "nbytes", 8 * 32 * WIDTH * (WIDTH + 1) * 4
    )  # if unknown: a float32 state
    buffer = torch.zeros(size // 4)  # in PyTorch, which adds with all threads
    (step, once), alone = run.race(lambda: decoder.step(*token), lambda: buffer.add_(1.0))
    ratio, most = step / once, 1.6 if window else 1.4
    times = f"{ms(step)} against {ms(once)}, {size / MIB:.1f} MiB"
    return f"{rounded(ratio, 2, most=most)}× ({times})", ratio <= most, alone


def late_token(run: Bench) -> tuple[str, bool, bool]:
    """Compare steps at a late and an early position. The early decoder restarts in each turn."""
    first, last = run.sizes.positions
    early, late = [stream((1, 8), WIDTH)], [stream((1, 8), WIDTH, last)]

    def begin() -> None:
        early[:] = [stream((1, 8), WIDTH, first)]

    def steps(streams: list[tuple[Any, list[Any]]]) -> None:
        decoder, token = streams[0]
        for _ in range(50):
            decoder.step(*token)

    (a, b), alone = run.race((lambda: steps(early), begin), (lambda: steps(late), set_threads))
    times = f"{significant(b / 50 * 1e6)} µs against {significant(a / 50 * 1e6)}"
    return f"{rounded(b / a, 2, most=1.05)}× ({times})", b / a <= 1.05, alone


def overhead(run: Bench) -> tuple[str, bool, bool]:
    decoder, token = stream((1, 1), 4)

    def steps() -> None:
        for _ in range(100):
            decoder.step(*token)

    (time,), alone = run.race(steps)
    micro = time / 100 * 1e6
    return f"{significant(micro, most=10)} µs", micro <= 10, alone


def call_rows(run: Bench) -> Iterator[Row]:
    """Time calls with almost nothing to compute: 2 heads of 16 tokens, d = 16."""
    import numpy as np
    import torch

    import kerneltrick as kt

    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 16), dtype=np.float32)
    given = {"NumPy": (q, k, v), "PyTorch": tuple(torch.from_numpy(x) for x in (q, k, v))}
    for (name, arrays), target in zip(given.items(), (60, 120), strict=True):

        def calls(arrays: tuple[Any, ...] = arrays) -> None:
            for _ in range(100):
                kt.linear_attention(*arrays, causal=True)

        (time,), alone = run.race(calls)
        micro = time / 100 * 1e6
        measured = f"{significant(micro, most=target)} µs"
        yield Row(
            f"a call of 16 tokens, {name}", measured, f"≤ {target} µs", micro <= target, alone
        )


def install_rows(run: Bench) -> Iterator[Row]:
    """Measure the size of the wheel, and the time that the core adds to the import."""
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if wheels:
        size = wheels[-1].stat().st_size / 1e6
        yield Row("wheel", f"{rounded(size, 2, most=4)} MB", "≤ 4 MB", size <= 4)
    else:
        yield Row("wheel", "skipped: none in dist/ (make build)", "≤ 4 MB")
    hidden = "import sys; sys.modules['kerneltrick._core'] = None; import kerneltrick"
    programs = ("import kerneltrick, kerneltrick._core", hidden)
    (a, b), alone = run.race(*(functools.partial(python, program) for program in programs))
    added = 1e3 * (a - b)
    processes = f"a process with it: {ms(a)}, without: {ms(b)}"
    measured = f"{rounded(added, 1, most=20)} ms ({processes})"
    yield Row("import of the core", measured, "≤ 20 ms", added <= 20, alone)


def python(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def measure(sizes: Sizes, patience: float) -> str:
    rows: list[Row] = []

    def note(more: Iterator[Row]) -> None:
        for row in more:
            print(row, file=sys.stderr, flush=True)
            rows.append(row)

    note(memory_rows(sizes))  # first, while nothing large is imported
    memory, rows = rows, []
    run = Bench(sizes, patience)
    set_threads()
    for part in (rates, near_rows, decay_rows, thread_rows):
        note(part(run))
    rows += memory
    for part in (decode_rows, call_rows, install_rows):
        note(part(run))
    return table(rows, run)


def table(rows: list[Row], run: Bench) -> str:
    from kerneltrick import _core

    slow, fast = (x / 1e9 for x in (min(run.rates), max(run.rates)))
    lines = [
        f"Machine: {bench.machine()} The core runs its {_core.isa()} code.",
        f"B = 1, H = {HEADS}, D = M = {WIDTH}, float32. sgemm is PyTorch's product of two "
        f"{run.sizes.gemm}×{run.sizes.gemm} matrices, timed next to each case: "
        f"{significant(slow)}–{significant(fast)} Gflop/s.",
    ]
    if run.sizes == QUICK:
        lines.append("These are the tiny sizes of `--quick`. The targets do not apply to them.")
    lines += ["", "| case | measured | target | met |", "|---|---|---|---|", *map(str, rows)]
    if not all(row.alone for row in rows):
        lines += ["", "*: measured while other processes were busy."]
    return "\n".join(lines)


def read_arguments(description: str) -> argparse.Namespace:
    """The options of this benchmark and those beside it; sets the number of threads."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes, to check that it runs"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into FILE")
    parser.add_argument(
        "--patience", type=float, help="total seconds to wait for other processes to finish"
    )
    parser.add_argument("--extra", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.patience is None:
        arguments.patience = 0.0 if arguments.quick else 300.0
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    return arguments


def main() -> int:
    arguments = read_arguments(__doc__ or "")
    try:
        import kerneltrick._core  # noqa: F401
    except ImportError:
        print("kerneltrick was installed without its compiled core", file=sys.stderr)
        return 1
    if arguments.extra is not None:
        print(json.dumps(extra(*arguments.extra)))
        return 0
    bench.look_for_marks(arguments.write, START, END)
    text = measure(QUICK if arguments.quick else Sizes(), arguments.patience)
    bench.report(text, arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
