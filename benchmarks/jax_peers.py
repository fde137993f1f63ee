"""Measure JAX arrays in the compiled core beside NumPy, PyTorch and the array-API path of JAX.

python benchmarks/jax_peers.py                              print the table
python benchmarks/jax_peers.py --quick                      use tiny sizes, to check that it runs
python benchmarks/jax_peers.py --write docs/performance.md  write the table between its markers
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import bench
import delta_peers

import native

START, END = "<!-- jax:begin -->", "<!-- jax:end -->"
CALLS = 200  # short calls that are timed together


def jitted(function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
    import jax

    run = jax.jit(function)
    jax.block_until_ready(run(*arrays))  # compiles
    return lambda: jax.block_until_ready(run(*arrays))


def slope(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    import jax

    return jax.grad(lambda *arrays: function(*arrays).sum(), tuple(range(count)))


def rows(run: native.Bench, n: int, delta: tuple[int, int, int]) -> Iterator[Any]:
    import jax.numpy as jnp
    import numpy as np
    import torch

    import kerneltrick as kt

    def attention(engine: str, text: str = "elu", **options: Any) -> Callable[..., Any]:
        return lambda q, k, v: kt.linear_attention(
            q, k, v, text, causal=True, engine=engine, on_zero="nan", **options
        )

    arrays = native.inputs(n, library="numpy")
    own = [jnp.asarray(x) for x in arrays]
    native.set_threads()
    yield delta_peers.ratio(
        run,
        "elu, forward, against the same on NumPy arrays",
        jitted(attention("native"), *own),
        lambda: attention("native")(*arrays),
        1.1,
    )
    leaves = [torch.asarray(x).requires_grad_() for x in arrays]
    yield delta_peers.ratio(
        run,
        "elu, forward+backward, against PyTorch",
        jitted(slope(attention("native"), 3), *own),
        lambda: torch.autograd.grad(attention("native")(*leaves).sum(), leaves),
        1.15,
    )
    near = {"text": "hedgehog", "window": min(64, n)}
    yield delta_peers.faster(
        run,
        "Hedgehog, window 64, forward+backward, against the array-API path",
        jitted(slope(attention("native", **near), 3), *own),
        jitted(slope(attention("chunked", **near), 3), *own),
        5,
    )
    heads, width, length = delta
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(x, jnp.float32) for x in rng.standard_normal((3, 1, heads, length, width))
    )
    beta, decay = (jnp.asarray(x, jnp.float32) for x in rng.random((2, 1, heads, length)))

    def gated(engine: str) -> Callable[..., Any]:
        return lambda q, k, v, beta, decay: kt.delta_rule(
            q, k, v, beta, log_decay=-decay / 10, normalize_qk=True, engine=engine
        )

    given = (q, k, v, beta, decay)
    yield delta_peers.faster(
        run,
        f"gated delta rule, H = {heads}, d = {width}, n = {length}, forward+backward, against the "
        "chunked path",
        jitted(slope(gated("native"), 5), *given),
        jitted(slope(gated("chunked"), 5), *given),
        4,
    )
    short = [jnp.asarray(x) for x in native.inputs(16, library="numpy")]
    call, double = jitted(attention("native"), *short), jitted(lambda x: 2 * x, short[0])

    def many(function: Callable[[], Any]) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(CALLS):
                function()

        return calls

    (a, b), alone = run.race(many(call), many(double))
    shown = [f"{native.significant(1e6 * x / CALLS)} µs" for x in (a, b)]
    measured = f"{native.rounded(a / b, 2, most=3)} ({shown[0]} against {shown[1]})"
    case = "a call of 16 tokens, against 2·x of its queries"
    yield native.Row(case, measured, "≤ 3", a / b <= 3, alone)


def measure(quick: bool, patience: float) -> str:
    run = native.Bench(native.QUICK if quick else native.Sizes(), patience)
    n, delta = (64, (2, 16, 64)) if quick else (4096, (16, 128, 2048))
    found = []
    for row in rows(run, n, delta):
        print(row, file=sys.stderr, flush=True)
        found.append(row)
    lines = [
        f"Compiled calls of JAX, {native.THREADS} threads, float32, (1, {native.HEADS}, {n}, "
        f"{native.WIDTH}) and causal where nothing else is said.",
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
    bench.look_for_marks(arguments.write, START, END)
    text = measure(arguments.quick, arguments.patience)
    bench.report(text, arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
