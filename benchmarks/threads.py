"""Measure the speed-up by a second thread for several sizes.

python benchmarks/threads.py            print the table
python benchmarks/threads.py --load 2   the same while two other processes are busy
python benchmarks/threads.py --quick    use tiny sizes and one turn each, to check that it runs

One thread and two threads take turns in one process. PyTorch's own number of threads (--torch) does
not change. A ratio compares the total times of all turns, so slow calls count fully. Two threads
are faster if it is above 1 and slower if it is below 1.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench

SHAPES = (
    (1, 1, 16, 16), (1, 4, 64, 16), (8, 4, 64, 16), (8, 4, 256, 16), (1, 8, 256, 64),
    (1, 8, 1024, 64), (1, 8, 4096, 64), (1, 1, 16384, 64),
)  # fmt: skip
STREAMS = ((1, 4, 16), (1, 8, 64), (8, 8, 64), (8, 32, 64))  # batch, heads, d
QUICK_SHAPES, QUICK_STREAMS = SHAPES[:2], STREAMS[:1]
TURN = 0.05  # seconds


def cases(shapes: Any, streams: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and calls: forward and gradients on tensors, forward and decoding on arrays."""
    import numpy as np
    import torch

    import kerneltrick as kt

    rng = np.random.default_rng(0)
    for shape in shapes:
        arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(3)]
        tensors = [torch.from_numpy(x) for x in arrays]
        leaves = [x.clone().requires_grad_() for x in tensors]

        def attend(data: list[Any]) -> Any:
            return kt.linear_attention(*data, "elu", causal=True, engine="native")

        def train(leaves: list[Any] = leaves, cotangent: Any = tensors[0]) -> Any:
            return torch.autograd.grad(attend(leaves), leaves, cotangent)

        yield f"NumPy, forward {shape}", lambda data=arrays: attend(data)
        yield f"PyTorch, forward {shape}", lambda data=tensors: attend(data)
        yield f"PyTorch, forward+backward {shape}", train
    for batch, heads, d in streams:
        decoder = kt.Decoder("elu", shape=(batch, heads), d=d)
        token = rng.standard_normal((batch, heads, d), dtype=np.float32)
        yield (
            f"decoding, a step of {(batch, heads, d)}",
            lambda decoder=decoder, x=token: decoder.step(x, x, x),
        )


def measure(call: Callable[[], Any], turns: int) -> tuple[float, float, float]:
    """Return the seconds per call with one thread and with two, and the median ratio."""
    import kerneltrick as kt

    seconds, calls, ratios = [0.0, 0.0], [0, 0], []
    for _ in range(turns):
        per_call = []
        for i in range(2):
            kt.set_num_threads(i + 1)
            call()
            start, count = time.perf_counter(), 0
            while (took := time.perf_counter() - start) < TURN or count < 2:
                call()
                count += 1
            seconds[i] += took
            calls[i] += count
            per_call.append(took / count)
        ratios.append(per_call[0] / per_call[1])
    return seconds[0] / calls[0], seconds[1] / calls[1], statistics.median(ratios)


@contextlib.contextmanager
def load(count: int) -> Iterator[None]:
    """Keep `count` processes busy."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes, to check that it runs"
    )
    parser.add_argument(
        "--load", type=int, default=0, help="number of other processes to keep busy (default 0)"
    )
    parser.add_argument(
        "--torch", type=int, default=1, help="threads that PyTorch itself uses (default 1)"
    )
    parser.add_argument(
        "--turns", type=int, default=20, help="number of turns of each case (default 20)"
    )
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.torch)
    turns = 1 if arguments.quick else arguments.turns
    shapes, streams = (QUICK_SHAPES, QUICK_STREAMS) if arguments.quick else (SHAPES, STREAMS)
    print(
        f"Machine: {bench.machine()} PyTorch's own threads: {arguments.torch}. "
        f"Other busy processes: {arguments.load}.\n"
    )
    print(
        "| case | one thread | two threads | ratio | median of turns |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    logs = []
    with load(arguments.load):
        for name, call in cases(shapes, streams):
            one, two, median = measure(call, turns)
            logs.append(math.log(one / two))
            print(
                f"| {name} | {1e3 * one:.3f} ms | {1e3 * two:.3f} ms | {one / two:.2f} | "
                f"{median:.2f} |",
                flush=True,
            )
    print(f"\nLeast {math.exp(min(logs)):.2f}, mean {math.exp(statistics.mean(logs)):.2f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
