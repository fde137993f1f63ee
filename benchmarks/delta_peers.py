"""Measure the delta rule of the compiled core beside ONNX Runtime and transformers' references.

python benchmarks/delta_peers.py                              print the table
python benchmarks/delta_peers.py --quick                      use tiny sizes, to check that it runs
python benchmarks/delta_peers.py --write docs/performance.md  write the table between its markers
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench

import native

START, END = "<!-- delta:begin -->", "<!-- delta:end -->"
HEADS, WIDTH = 16, 128
LENGTHS = (512, 2048)
STEPS = 100  # decoding steps that are timed together


class Data:
    """Tensors (1, n, H, d) as the models have them, and the ways to compute their delta rule."""

    def __init__(self, n: int, *, heads: int, width: int, by_feature: bool = False) -> None:
        import torch

        torch.manual_seed(0)
        self.n, self.heads, self.width = n, heads, width
        q, k, self.v = torch.randn(3, 1, n, heads, width)
        self.q, self.k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        self.beta = torch.rand(1, n, heads)
        decay = torch.rand(1, n, heads, width) if by_feature else torch.rand(1, n, heads)
        self.log_decay = -0.1 * decay
        self.erase = 0.5 * self.k
        self.by_feature = by_feature

    @property
    def tensors(self) -> list[Any]:
        return [self.q, self.k, self.v, self.beta, self.log_decay]

    def ours(self, q: Any, k: Any, v: Any, beta: Any, log_decay: Any, erase: Any = None) -> Any:
        import kerneltrick as kt

        q, k, v, beta, log_decay = (x.transpose(1, 2) for x in (q, k, v, beta, log_decay))
        options = {} if erase is None else {"erase": erase.transpose(1, 2)}
        return kt.delta_rule(q, k, v, beta, log_decay=log_decay, engine="native", **options)

    def reference(self, q: Any, k: Any, v: Any, beta: Any, log_decay: Any) -> Any:
        """The PyTorch code of transformers, without a look for other kernels."""
        from transformers.models.kimi_linear import modeling_kimi_linear
        from transformers.models.qwen3_next import modeling_qwen3_next

        if self.by_feature:
            function = modeling_kimi_linear.chunk_kimi_delta_attention
        else:
            function = modeling_qwen3_next.torch_chunk_gated_delta_rule
        return function(q, k, v, g=log_decay, beta=beta, chunk_size=64)[0]

    def forward(self, function: Callable[..., Any], *more: Any) -> Callable[[], Any]:
        import torch

        def call() -> Any:
            with torch.no_grad():
                return function(*self.tensors, *more)

        return call

    def with_gradients(self, function: Callable[..., Any]) -> Callable[[], Any]:
        import torch

        leaves = [x.detach().requires_grad_() for x in self.tensors]
        return lambda: torch.autograd.grad(function(*leaves).sum(), leaves)

    def onnx_runtime(self, threads: int, state: Any = None) -> Callable[[], Any] | None:
        """ONNX Runtime's operator on the same numbers; None where it is not installed."""
        try:
            import onnxruntime
            from onnx import TensorProto, helper
        except ImportError:
            return None
        import numpy as np

        names = ["query", "key", "value", "past_state", "decay", "beta"]
        node = helper.make_node(
            "LinearAttention",
            names,
            ["output", "present_state"],
            domain="com.microsoft",
            q_num_heads=self.heads,
            kv_num_heads=self.heads,
            update_rule="gated_delta",
        )
        inputs, outputs = (
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in given]
            for given in (names, node.output)
        )
        model = helper.make_model(
            helper.make_graph([node], "delta", inputs, outputs),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=10,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        if state is None:
            state = np.zeros((1, self.heads, self.width, self.width), np.float32)
        arrays = (self.q, self.k, self.v, state, self.log_decay, self.beta)
        shapes = [(1, self.n, -1)] * 3 + [state.shape] + [(1, self.n, -1)] * 2
        given = {
            name: np.ascontiguousarray(np.asarray(x).reshape(shape))
            for name, x, shape in zip(names, arrays, shapes, strict=True)
        }
        return lambda: session.run(None, given)


def rows(run: native.Bench, heads: int, width: int, lengths: tuple[int, int]) -> Iterator[Any]:
    make = functools.partial(Data, heads=heads, width=width)
    for n in lengths:
        for threads in (1, native.THREADS):
            yield from forward_rows(run, make(n), threads)
    long = make(lengths[1])
    yield faster(
        run,
        f"gated, forward+backward, n = {long.n}, against the reference",
        long.with_gradients(long.ours),
        long.with_gradients(long.reference),
        4,
    )
    short = make(lengths[0], by_feature=True)
    for case, way, least in (
        ("forward", short.forward, 25),
        ("forward+backward", short.with_gradients, 15),
    ):
        theirs = way(short.reference)
        case = f"KDA, {case}, n = {short.n}, against the reference"
        yield faster(run, case, way(short.ours), theirs, least)
    yield memory_row(short)
    yield ratio(
        run,
        f"gated, forward, n = {long.n}, bfloat16 over float32",
        half(long),
        long.forward(long.ours),
        1.0,
    )
    yield ratio(
        run,
        f"general rule with erase vectors over gated, forward, n = {long.n}",
        long.forward(long.ours, long.erase),
        long.forward(long.ours),
        1.4,
    )
    yield from step_rows(run, make(1))


def forward_rows(run: native.Bench, data: Data, threads: int) -> Iterator[Any]:
    before = functools.partial(native.set_threads, threads)
    case = f"gated, forward, n = {data.n}, {threads} thread{'s' if threads > 1 else ''}"
    ours, theirs = data.forward(data.ours), data.onnx_runtime(threads)
    if theirs is None:
        yield native.Row(f"{case}, against ONNX Runtime", "skipped: not installed", "≥ 1.1×")
    else:
        name = f"{case}, against ONNX Runtime"
        yield faster(run, name, (ours, before), (theirs, before), 1.1)
    reference = data.forward(data.reference)
    yield faster(run, f"{case}, against the reference", (ours, before), (reference, before), 4)


def faster(run: native.Bench, case: str, ours: Any, theirs: Any, least: float) -> Any:
    (a, b), alone = run.race(ours, theirs)
    measured = f"{native.rounded(b / a, 1, least=least)}× ({native.ms(a)} against {native.ms(b)})"
    return native.Row(case, measured, f"≥ {least:g}×", b / a >= least, alone)


def ratio(run: native.Bench, case: str, ours: Any, other: Any, most: float) -> Any:
    (a, b), alone = run.race(ours, other)
    measured = f"{native.rounded(a / b, 2, most=most)} ({native.ms(a)} against {native.ms(b)})"
    return native.Row(case, measured, f"≤ {most:g}", a / b <= most, alone)


def half(data: Data) -> Callable[[], Any]:
    import torch

    given = [x.bfloat16() for x in (data.q, data.k, data.v)] + [data.beta, data.log_decay]

    def call() -> Any:
        with torch.no_grad():
            return data.ours(*given)

    return call


def step_rows(run: native.Bench, data: Data) -> Iterator[Any]:
    import numpy as np

    import kerneltrick as kt

    decoder = kt.DeltaDecoder(shape=(data.heads,), d=data.width, decay=1)
    token = [np.ascontiguousarray(x[0, 0]) for x in data.tensors]
    state = np.zeros((1, data.heads, data.width, data.width), np.float32)
    peer = data.onnx_runtime(1, state)
    one = np.float32(1)

    def ours() -> None:
        for _ in range(STEPS):
            decoder.step(*token[:4], log_decay=token[4])

    def theirs() -> None:
        for _ in range(STEPS):
            peer()

    def state_pass() -> None:
        for _ in range(STEPS):
            np.multiply(state, one, out=state)

    before = functools.partial(native.set_threads, 1)
    if peer is None:
        yield native.Row("a decoding step against ONNX Runtime", "skipped: not installed", "≥ 1.2×")
    else:
        (a, b), alone = run.race((ours, before), (theirs, before))
        measured = f"{native.rounded(b / a, 1, least=1.2)}× ({us(a)} against {us(b)})"
        yield native.Row(
            "a decoding step against ONNX Runtime", measured, "≥ 1.2×", b / a >= 1.2, alone
        )
    (a, b), alone = run.race((ours, before), (state_pass, before))
    measured = f"{native.rounded(a / b, 2, most=1.5)} ({us(a)} against {us(b)})"
    case = "a decoding step over reading and writing the state"
    yield native.Row(case, measured, "≤ 1.5", a / b <= 1.5, alone)


def us(seconds: float) -> str:
    return f"{native.significant(1e6 * seconds / STEPS)} µs"


def memory_row(data: Data) -> Any:
    numbers = [data.n, data.heads, data.width]
    command = [sys.executable, __file__, "--extra", json.dumps(numbers)]
    found = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    extra = max(found, 0) / native.MIB
    case = f"KDA, forward, n = {data.n}, extra memory"
    measured = f"{native.rounded(extra, 1, most=16)} MiB"
    return native.Row(case, measured, "≤ 16 MiB beyond inputs and output", extra <= 16)


def extra(n: int, heads: int, width: int) -> int:
    """Return the peak bytes of a forward pass beyond its inputs and its output."""
    native.set_threads()
    warm = Data(16, heads=heads, width=width, by_feature=True)
    warm.forward(warm.ours)()
    data = Data(n, heads=heads, width=width, by_feature=True)
    before = native.resident()
    forget_peak()
    output = data.forward(data.ours)()
    return int(peak() - before - output.nbytes)


def forget_peak() -> None:
    """Let the system count the peak anew, where it can: imports need more than they keep."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


def peak() -> int:
    """The largest number of resident bytes since."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(quick: bool, patience: float) -> str:
    run = native.Bench(native.QUICK if quick else native.Sizes(), patience)
    native.set_threads()
    heads, width, lengths = (2, 16, (32, 64)) if quick else (HEADS, WIDTH, LENGTHS)
    found = []
    for row in rows(run, heads, width, lengths):
        print(row, file=sys.stderr, flush=True)
        found.append(row)
    lines = [
        f"H = {heads}, d = M = {width}, float32, the layout (batch, token, head, feature) of the "
        "models. The references are the PyTorch code of transformers (`qwen3_next` and "
        "`kimi_linear`); ONNX Runtime runs `com.microsoft::LinearAttention`.",
        "",
        "| case | measured | target | met |",
        "|---|---|---|---|",
        *map(str, found),
    ]
    if not all(row.alone for row in found):
        lines += ["", "*: measured while other processes were busy."]
    return "\n".join(lines)


def main() -> int:
    arguments = native.read_arguments(__doc__ or "")
    if arguments.extra is not None:
        print(extra(*arguments.extra))
        return 0
    bench.look_for_marks(arguments.write, START, END)
    text = measure(arguments.quick, arguments.patience)
    bench.report(text, arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
