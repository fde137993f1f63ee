"""The time of a causal forward pass against its length: the operator, a layer and a whole model.

Linear attention makes the operator much faster. A layer also has projections, and a model also has
feed-forward blocks; those cost the same with any attention, so their gain is smaller.

python benchmarks/levels.py          print the table, about five minutes
python benchmarks/levels.py --quick  short sequences, to see that it runs
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from language_model import SdpaAttention
from torch.nn import functional

import kerneltrick as kt
from kerneltrick.torch import Attention, LanguageModel

HEADS, HEAD_WIDTH, LAYERS, VOCABULARY = 8, 64, 4, 256
WIDTH = HEADS * HEAD_WIDTH
LENGTHS, QUICK_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384), (64, 128)
LEVELS = ("operator", "layer", "model")
BUDGET = 1.0  # seconds of turns for each level and length, at least

Pass = Callable[[], object]


def operators(n: int) -> tuple[Pass, Pass]:
    """Linear attention with `elu`, and PyTorch's fused softmax attention, on the same tensors."""
    q, k, v = (torch.randn(1, HEADS, n, HEAD_WIDTH) for _ in range(3))
    return (
        lambda: kt.linear_attention(q, k, v, "elu", causal=True),
        lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def softmax_layer(layer: int) -> SdpaAttention:
    return SdpaAttention(WIDTH, HEADS, feature_map="softmax", rotary=True, layer_idx=layer)


def layers(n: int) -> tuple[Pass, Pass]:
    """An attention layer with its four projections and rotary positions."""
    x = torch.randn(1, n, WIDTH)
    linear, softmax = Attention(WIDTH, HEADS, feature_map="elu", rotary=True), softmax_layer(0)
    return lambda: linear(x), lambda: softmax(x)


def models(n: int) -> tuple[Pass, Pass]:
    """A language model, from tokens to logits."""
    tokens = torch.randint(VOCABULARY, (1, n))
    linear, softmax = (
        LanguageModel(
            VOCABULARY, mixer=mixer, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS
        )
        for mixer in ("elu", softmax_layer)
    )
    return lambda: linear(tokens), lambda: softmax(tokens)


def seconds(passes: tuple[Pass, Pass], budget: float) -> tuple[float, float]:
    """CPU time of each pass, the least of three or more, so that others disturb it little."""
    best, start, turns = [math.inf, math.inf], time.process_time(), 0
    while turns < 3 or time.process_time() - start < budget:
        for place, call in enumerate(passes):
            before = time.process_time()
            call()
            best[place] = min(best[place], time.process_time() - before)
        turns += 1
    return best[0], best[1]


def measure(
    lengths: tuple[int, ...] = LENGTHS, budget: float = BUDGET
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of linear and of softmax attention, for each level and length, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        with torch.inference_mode():
            return {
                name: [seconds(make(n), budget) for n in lengths]
                for name, make in zip(LEVELS, (operators, layers, models), strict=True)
            }
    finally:
        torch.set_num_threads(threads)


def digits(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.01 else f"{1e3 * seconds:,.0f}"


def table(found: dict[str, list[tuple[float, float]]], lengths: tuple[int, ...]) -> str:
    core = kt.engines.core()
    code = "without the compiled core" if core is None else f"the core with {core.isa()}"
    lines = [
        f"Milliseconds of CPU time of a causal forward pass, one thread, float32, {code}: "
        f"{HEADS} heads of {HEAD_WIDTH}, {LAYERS} layers.\n",
        "| n | " + " | ".join(f"{name}: elu | softmax | ratio" for name in found) + " |",
        "|---" * (1 + 3 * len(found)) + "|",
    ]
    for place, n in enumerate(lengths):
        cells = [
            f"{digits(linear)} | {digits(softmax)} | {softmax / linear:.1f}×"
            for linear, softmax in (rows[place] for rows in found.values())
        ]
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short sequences, to see that it runs")
    quick = parser.parse_args().quick
    lengths, budget = (QUICK_LENGTHS, 0.0) if quick else (LENGTHS, BUDGET)
    print(table(measure(lengths, budget), lengths))


if __name__ == "__main__":
    main()
