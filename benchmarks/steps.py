"""Measure one step of decoding: the functions of transformers, and what `hf.accelerate` puts there.

python benchmarks/steps.py                              print the table
python benchmarks/steps.py --quick                      use few runs, to check that it runs
python benchmarks/steps.py --write docs/performance.md  write the table between its markers

These are single operators with the sizes of published models, batch 1, one thread. The two ways
take turns, and the least CPU time of several runs counts, which other processes disturb little.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench

import native

START, END = "<!-- steps:begin -->", "<!-- steps:end -->"
STEPS = 100  # that are timed together
LEAST = 4.0  # times as fast as the reference


def cases() -> Iterator[tuple[str, Any, str, tuple[Any, ...]]]:
    """What a step is called, the file of its model, the name of the function, and its arguments."""
    import torch
    from transformers.models.mamba import modeling_mamba as mamba
    from transformers.models.mamba2 import modeling_mamba2 as mamba2
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    torch.manual_seed(0)
    make, uniform = torch.randn, torch.rand
    for model, channels in (("Mamba-130m", 1536), ("Qwen3.5-0.8B", 6144)):
        given = (make(1, channels, 1), make(1, channels, 4), make(channels, 4), make(channels))
        case = f"short convolution of {model} ({channels} channels)"
        yield case, mamba, "causal_conv1d_update", (*given, "silu")
    channels, states = 1536, 16
    x, dt, z = make(3, 1, channels)
    A, D, bias = -uniform(channels, states), make(channels), make(channels)
    B, C = make(2, 1, states)
    given = (make(1, channels, states), x, dt, A, B, C, D, bias, True, z)
    case = f"selective scan of Mamba-130m ({channels} channels, N = {states})"
    yield case, mamba, "mamba_selective_state_update", given
    heads, width, states = 24, 64, 128
    x, (B, C) = make(1, heads, width), make(2, 1, 1, states)
    dt, A = make(1, heads), -uniform(heads)
    A = A[:, None, None].expand(heads, width, states)
    D, bias = (y[:, None].expand(heads, width) for y in make(2, heads))
    dt = dt[..., None].expand(1, heads, width)
    given = (make(1, heads, width, states), x, dt, A, B, C, D, bias, True)
    case = f"state of Mamba-2-130m ({heads} heads of {width}, N = {states})"
    yield case, mamba2, "mamba2_selective_state_update", given
    heads, width = 16, 128
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = make(3, 1, 1, heads, width).to(dtype)
        decay, beta = -uniform(1, 1, heads), uniform(1, 1, heads).to(dtype)
        given = (q, k, v, decay, beta, make(1, heads, width, width), True, True)
        name = str(dtype).removeprefix("torch.")
        case = f"gated delta rule ({heads} heads of {width}, {name})"
        yield case, qwen, "torch_recurrent_gated_delta_rule", given


def race(runs: int, *calls: Callable[[], Any]) -> list[float]:
    """The least CPU seconds of one call of each, which take turns of STEPS calls."""
    import torch

    best = [float("inf")] * len(calls)
    with torch.inference_mode():
        for _ in range(runs):
            for which, call in enumerate(calls):
                start = time.thread_time()
                for _ in range(STEPS):
                    call()
                best[which] = min(best[which], (time.thread_time() - start) / STEPS)
    return best


def measure(quick: bool) -> str:
    from kerneltrick.hf._functions import FUNCTIONS

    native.set_threads(1)
    ours = {function.name: function.ours for function in FUNCTIONS}
    rows = []
    for case, file, name, given in cases():
        calls = (functools.partial(x, *given) for x in (ours[name], getattr(file, name)))
        a, b = race(2 if quick else 30, *calls)
        times = (f"{native.significant(1e6 * x)} µs" for x in (a, b))
        measured = f"{native.rounded(b / a, 1, least=LEAST)}× ({' against '.join(times)})"
        rows.append(native.Row(case, measured, f"≥ {LEAST:g}×", b / a >= LEAST))
        print(rows[-1], file=sys.stderr, flush=True)
    lines = [
        f"Machine: {bench.machine()} CPU time of one step of a single operator, against the "
        "PyTorch code of transformers, batch 1, one thread.",
        "",
        "| step | measured | target | met |",
        "|---|---|---|---|",
        *map(str, rows),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use few runs, to check that it runs")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into FILE")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    bench.look_for_marks(arguments.write, START, END)
    bench.report(measure(arguments.quick), arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
