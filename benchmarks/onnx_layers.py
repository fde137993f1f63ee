"""Measure layers written as ONNX in ONNX Runtime, by both ways to write them, beside PyTorch.

python benchmarks/onnx_layers.py                              print the table
python benchmarks/onnx_layers.py --quick                      one tiny layer, to check that it runs
python benchmarks/onnx_layers.py --write docs/performance.md  write the table between its markers
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench

import native

START, END = "<!-- onnx:begin -->", "<!-- onnx:end -->"
MIXERS = ("elu", "gla", "gated_deltanet", "kda")
WAYS = ("plain", "microsoft")
HIDDEN, HEADS = 512, 8
LENGTHS = (512, 2048)
STEPS = 20  # decoding steps that are timed together


class Layer:
    """A layer in PyTorch, and in a session of ONNX Runtime for each way to write it."""

    def __init__(self, mixer: str, hidden: int, heads: int, folder: Path) -> None:
        import onnxruntime
        import torch

        import kerneltrick.onnx
        from kerneltrick.torch.mixers import make

        torch.manual_seed(0)
        self.hidden = hidden
        self.layer = make(mixer, hidden, heads).eval()
        self.sessions, self.states = {}, {}
        for way in WAYS:
            path = folder / f"{way}.onnx"
            kerneltrick.onnx.export(self.layer, path, operators=way)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = native.THREADS, 1
            # Threads that wait awake would take the cores from PyTorch's.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self.sessions[way] = onnxruntime.InferenceSession(path, options)
            self.states[way] = kerneltrick.onnx.empty_state(path)

    def tokens(self, n: int) -> Any:
        import torch

        return torch.randn(1, n, self.hidden)

    def in_torch(self, n: int, steps: int = 1) -> Callable[[], Any]:
        import torch

        x = self.tokens(n)

        def call() -> None:
            state = None
            with torch.no_grad():
                for _ in range(steps):
                    _, state = self.layer(x, state)

        return call

    def in_onnx(self, way: str, n: int, steps: int = 1) -> Callable[[], Any]:
        x, session, start = self.tokens(n).numpy(), self.sessions[way], self.states[way]

        def call() -> None:
            state = start
            for _ in range(steps):
                _, *after = session.run(None, {"x": x, **state})
                state = dict(zip(start, after, strict=True))

        return call


def rows(
    run: native.Bench,
    mixers: tuple[str, ...],
    hidden: int,
    heads: int,
    lengths: tuple[int, ...],
    folder: Path,
) -> Iterator[str]:
    for mixer in mixers:
        layer = Layer(mixer, hidden, heads, folder)
        for n, steps in (*((n, 1) for n in lengths), (1, STEPS)):
            calls = [layer.in_torch(n, steps)]
            calls += [layer.in_onnx(way, n, steps) for way in WAYS]
            (ours, *theirs), alone = run.race(*calls)
            plain, fused = theirs
            case = f"prefill, n = {n}" if n > 1 else "a decoding step"
            times = " | ".join(native.ms(x / steps) for x in (ours, plain, fused))
            ratio = f"{native.rounded(plain / fused, 1)}× | {native.rounded(fused / ours, 1)}×"
            yield f"| `{mixer}`, {case} | {times} | {ratio}{'' if alone else '*'} |"


def measure(quick: bool, patience: float) -> str:
    import onnxruntime

    run = native.Bench(native.QUICK if quick else native.Sizes(), patience)
    hidden, heads, lengths = (16, 2, (32, 64)) if quick else (HIDDEN, HEADS, LENGTHS)
    mixers = MIXERS[:1] if quick else MIXERS
    native.set_threads()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(run, mixers, hidden, heads, lengths, Path(folder)):
            print(row, file=sys.stderr, flush=True)
            found.append(row)
    lines = [
        f"Whole layers, hidden size {hidden}, {heads} heads, batch 1, float32, {native.THREADS} "
        f"threads, ONNX Runtime {onnxruntime.__version__}. Times are of the layer in PyTorch, and "
        'of its files by `operators="plain"` and `"microsoft"` in ONNX Runtime.',
        "",
        "| case | PyTorch | plain | microsoft | plain over microsoft | microsoft over PyTorch |",
        "|---|---|---|---|---|---|",
        *found,
    ]
    if any(row.endswith("* |") for row in found):
        lines += ["", "*: measured while other processes were busy."]
    return "\n".join(lines)


def main() -> int:
    arguments = native.read_arguments(__doc__ or "")
    bench.look_for_marks(arguments.write, START, END)
    text = measure(arguments.quick, arguments.patience)
    bench.report(text, arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
