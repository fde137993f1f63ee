"""Compare the time and peak memory of linear attention with hand-written formulas.

python benchmarks/bench.py                              print the tables
python benchmarks/bench.py --quick                      use short lengths only
python benchmarks/bench.py --write docs/performance.md  write them between its markers
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kerneltrick._files import write

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tools"))
from generated import page_with

THREADS = 2
HEADS, WIDTH = 8, 64  # B = 1, D = M = 64, float32
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (128,)
LIMIT = 6 << 30  # bytes: larger cases are skipped
START, END = "<!-- bench:start -->", "<!-- bench:end -->"


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to compute attention: a row of the tables."""

    causal: bool
    library: str
    name: str
    squares: int = 0  # arrays of H·n·n numbers alive at once
    states: int = 0  # arrays of H·n·D·M numbers alive at once

    def bytes(self, n: int) -> int:
        return 4 * HEADS * n * (self.squares * n + self.states * WIDTH * WIDTH)


OURS = "kerneltrick"
CASES = (
    Case(True, "torch", OURS),
    Case(True, "torch", "chunk formula"),
    Case(True, "torch", "n×n formula", squares=2),
    Case(True, "torch", "cumulative sum", states=2),
    Case(True, "torch", "softmax (SDPA)"),
    Case(True, "numpy", OURS),
    Case(True, "numpy", "n×n formula", squares=2),
    Case(False, "torch", OURS),
    Case(False, "torch", "two products"),
    Case(False, "torch", "softmax (SDPA)"),
    Case(False, "numpy", OURS),
    Case(False, "numpy", "two products"),
    Case(False, "numpy", "softmax (n×n)", squares=3),
)
LIBRARIES = {"torch": "PyTorch", "numpy": "NumPy"}


def runs() -> dict[Case, Callable[..., Any]]:
    """Return the function of each case. It takes q, k, v of the library of its case."""
    import baselines as by_hand

    import kerneltrick as kt

    def ours(causal: bool) -> Callable[..., Any]:
        return lambda q, k, v: kt.linear_attention(q, k, v, "elu", causal=causal, engine="chunked")

    def softmax(causal: bool) -> Callable[..., Any]:
        return lambda q, k, v: by_hand.softmax_torch(q, k, v, causal)

    functions = (
        ours(True),
        by_hand.plain_chunk_torch,
        by_hand.naive_causal_torch,
        by_hand.cumsum_causal_torch,
        softmax(True),
        ours(True),
        by_hand.naive_causal_numpy,
        ours(False),
        by_hand.naive_full_torch,
        softmax(False),
        ours(False),
        by_hand.naive_full_numpy,
        by_hand.softmax_numpy,
    )
    return dict(zip(CASES, functions, strict=True))


def inputs(n: int, library: str) -> list[Any]:
    """Return q, k, v (1, H, n, D) in float32. All their pages are in memory."""
    import numpy as np
    import torch

    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal((1, HEADS, n, WIDTH), dtype=np.float32) for _ in range(3)]
    return [torch.from_numpy(x) for x in arrays] if library == "torch" else arrays


def measure_times(
    lengths: tuple[int, ...], seconds: float, patience: float
) -> dict[tuple[Case, int], tuple[float, bool]]:
    """Return the best time of each case in milliseconds, and whether the machine was idle then.

    The cases of a library take turns, at least twice each and until each has used its seconds.
    Turns during which other processes were busy are repeated until the patience is used up.
    """
    import torch
    from quiet import Quiet

    torch.set_num_threads(THREADS)
    functions, quiet = runs(), Quiet(patience)
    times: dict[tuple[Case, int], tuple[float, bool]] = {}
    for n in lengths:
        for library in LIBRARIES:  # separately: idle threads of one slow the other down
            data = inputs(n, library)
            cases = [c for c in CASES if c.library == library and c.bytes(n) < LIMIT]
            spent, count = dict.fromkeys(cases, 0.0), dict.fromkeys(cases, 0)
            while waiting := [c for c in cases if count[c] < 2 or spent[c] < seconds]:
                for case in waiting:
                    with torch.inference_mode():
                        best, took, alone = quiet.turn(functions[case], data)
                    so_far, was_alone = times.get((case, n), (math.inf, False))
                    if alone > was_alone or (alone == was_alone and 1e3 * best < so_far):
                        times[case, n] = 1e3 * best, alone
                    if alone or quiet.patience <= 0:
                        spent[case] += took
                        count[case] += 1
        print(f"n = {n}: timed", file=sys.stderr)
    return times


def measure_memory(lengths: tuple[int, ...]) -> dict[tuple[Case, int], float]:
    """Return the peak memory of one call beyond its inputs, in MiB. Each case has a process."""
    todo = [(index, n) for n in lengths for index, c in enumerate(CASES) if c.bytes(n) < LIMIT]
    # Before anything large is imported here: a new process inherits the peak of its parent.
    command = [sys.executable, __file__, "--probe", json.dumps(todo)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    peaks = json.loads(done.stdout)
    print("memory measured", file=sys.stderr)
    return {(CASES[i], n): peak for (i, n), peak in zip(todo, peaks, strict=True)}


def probe(todo: list[tuple[int, int]]) -> None:
    """Print the peaks of these cases. Each runs in a fork, so this process stays small."""
    functions = runs()
    warnings.simplefilter("ignore", DeprecationWarning)  # the threads of BLAS survive a fork
    peaks = []
    for index, n in todo:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(_peak(functions[CASES[index]], CASES[index], n)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        if not text:
            raise RuntimeError(f"{CASES[index]} at n = {n} died while its memory was measured")
        peaks.append(json.loads(text))
    print(json.dumps(peaks))


def _peak(run: Callable[..., Any], case: Case, n: int) -> float:
    import torch

    torch.set_num_threads(THREADS)
    with torch.inference_mode():
        data = inputs(n, case.library)
        run(*inputs(64, case.library))  # warms up threads, buffers and code pages
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = run(*data)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert result.shape[-2] == n
    return (after - before) / 1024


def machine() -> str:
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    libraries = {"NumPy": "numpy", "PyTorch": "torch", "kerneltrick": "kerneltrick"}
    versions = ", ".join(f"{a} {version(b).partition('+')[0]}" for a, b in libraries.items())
    return (
        f"{processor}, {os.cpu_count()} cores, {THREADS} threads; "
        f"Python {platform.python_version()}, {versions}."
    )


def tables(
    lengths: tuple[int, ...],
    times: dict[tuple[Case, int], tuple[float, bool]],
    peaks: dict[tuple[Case, int], float],
) -> str:
    """Write Markdown tables of times and memory, for causal and for full attention."""
    lines = [f"Machine: {machine()}", f"B = 1, H = {HEADS}, D = M = {WIDTH}, float32, φ = ELU+1."]
    for causal in (True, False):
        kind = "Causal" if causal else "Full"
        cases = [case for case in CASES if case.causal == causal]
        ours = {case.library: case for case in cases if case.name == OURS}

        def timed(case: Case, n: int, ours: dict[str, Case] = ours) -> str:
            if (case, n) not in times:
                return "–"
            (best, alone), (reference, _) = times[case, n], times[ours[case.library], n]
            digits = max(0, 2 - math.floor(math.log10(best)))
            return f"{best:.{digits}f}{'' if alone else '*'} (×{best / reference:.2f})"

        def held(case: Case, n: int) -> str:
            return f"{peaks[case, n]:.0f}" if (case, n) in peaks else "–"

        lines += ["", f"**{kind} attention, milliseconds (× the time of kerneltrick)**", ""]
        lines += _grid(cases, lengths, timed)
        lines += ["", f"**{kind} attention, peak memory beyond the inputs, MiB**", ""]
        lines += _grid(cases, lengths, held)
    notes = f"–: skipped because it would need more than {LIMIT >> 30} GiB."
    if not all(alone for _, alone in times.values()):
        notes += " *: measured while other processes were busy, so the time is too long."
    return "\n".join([*lines, "", notes])


def _grid(
    cases: list[Case], lengths: tuple[int, ...], cell: Callable[[Case, int], str]
) -> list[str]:
    rows = [["", *(f"n = {n}" for n in lengths)]]
    for case in cases:
        name = f"**{case.name}**" if case.name == OURS else case.name
        rows.append([f"{LIBRARIES[case.library]}, {name}", *(cell(case, n) for n in lengths)])
    rule = "|".join(["---", *["---:"] * len(lengths)])
    return (
        [f"| {' | '.join(row)} |" for row in rows[:1]]
        + [f"|{rule}|"]
        + [f"| {' | '.join(row)} |" for row in rows[1:]]
    )


def look_for_marks(path: Path | None, start: str, end: str) -> None:
    """Refuse a page without the marks of a table, before the work."""
    if path is not None:
        page_with(path.read_text(encoding="utf-8"), "", start, end)


def report(text: str, path: Path | None, start: str, end: str) -> None:
    """Print a table and, if there is a page, write it there between its marks."""
    print(text)
    if path is not None:
        write(path, page_with(path.read_text(encoding="utf-8"), text, start, end))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use short lengths only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables into FILE")
    parser.add_argument(
        "--patience", type=float, help="total seconds to wait for other processes to finish"
    )
    parser.add_argument("--probe", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    if arguments.probe is not None:
        return probe(arguments.probe)
    look_for_marks(arguments.write, START, END)
    lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
    peaks = measure_memory(lengths)
    seconds, patience = (0.0, 0.0) if arguments.quick else (1.5, 120.0)
    if arguments.patience is not None:
        patience = arguments.patience
    times = measure_times(lengths, seconds, patience)
    report(tables(lengths, times, peaks), arguments.write, START, END)
    return None


if __name__ == "__main__":
    main()
