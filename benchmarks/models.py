"""Measure whole models of transformers before and after `kerneltrick.hf.accelerate`.

python benchmarks/models.py                              print the table
python benchmarks/models.py --quick                      use tiny sizes, to check that it runs
python benchmarks/models.py --write docs/performance.md  write the table between its markers

The models have published shapes and random weights. Four layers of each run, without the head and
the loss over its vocabulary, which would dominate so few layers; the embedding is not trained for
the same reason. Every model runs in a process of its own; the two ways take turns, and the best of
several runs counts. Finished phases (prefill, decoding, training, what is left) are kept in
--results, so a second run continues where the first one stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench

from kerneltrick import __version__
from kerneltrick._files import write

START, END = "<!-- models:begin -->", "<!-- models:end -->"
THREADS, LAYERS, TOKENS, NEW = bench.THREADS, 4, 2048, 32
PATIENCE = 60.0  # seconds of a phase after which no further turn begins
PHASES = ("prefill", "decoding", "training", "left")
# Tokens of a training step where the reference does not manage 2,048. Kimi Linear's keeps over 6 GB
# a layer (by count), and the time of Mamba's backward pass grows with the square of the tokens.
FEWER = {"kimi_linear:48b": 512, "mamba:130m": 512}
RESULTS = Path(__file__).parents[1] / "build" / "models.json"
# The least ratios asked of prefill, training step, and their peak memory (before / after).
TARGETS: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("mamba2:130m", "float32"): (2.3, 2.0, 3.0),
    ("mamba2:1.3b", "float32"): (None, None, None),
    ("mamba:130m", "float32"): (3.5, 4.0, 1.0),
    ("qwen3_5:0.8b", "float32"): (1.18, 1.3, 1.5),
    ("qwen3_5:0.8b", "bfloat16"): (1.35, 1.3, 1.5),
    ("kimi_linear:48b", "float32"): (2.5, 3.0, 10.0),
    ("falcon_h1:0.5b", "float32"): (None, None, None),
    ("granitemoehybrid:1b", "float32"): (None, None, None),
}


class Bench:
    """A model with its prompt, and its phases: seconds and megabytes as [before, after]."""

    def __init__(self, name: str, dtype: str, layers: int, repeats: int) -> None:
        import torch
        import transformers

        from kerneltrick import hf

        transformers.logging.set_verbosity_error()
        self.model = hf.load_model(name, layers=layers, dtype=getattr(torch, dtype)).base_model
        self.model.get_input_embeddings().requires_grad_(False)
        self.cached = "cache_params" if name.startswith("mamba") else "past_key_values"
        self.repeats = repeats

    def prefill(self, tokens: int) -> dict[str, Any]:
        return self._compare([lambda: self._read(tokens)] * 2, tokens)

    def decoding(self, tokens: int) -> dict[str, Any]:
        from kerneltrick import hf

        before = self._read(tokens)
        with hf.accelerate(self.model):
            after = self._read(tokens)
        found = self._compare([lambda x=x: self._decode(x) for x in (before, after)], tokens)
        return {**found, "time": [x / NEW for x in found["time"]]}

    def training(self, tokens: int) -> dict[str, Any]:
        self.model.train()
        return self._compare([lambda: self._train(tokens)] * 2, tokens)

    def left(self, tokens: int) -> dict[str, Any]:
        """The shares of the operations that take most of an accelerated prefill."""
        import torch

        from kerneltrick import hf

        with hf.accelerate(self.model), torch.profiler.profile() as profile:
            self._read(tokens)
        events = profile.key_averages()
        whole = sum(x.self_cpu_time_total for x in events)
        largest = sorted(events, key=lambda x: -x.self_cpu_time_total)[:5]
        return {x.key: x.self_cpu_time_total / whole for x in largest}

    def _ids(self, tokens: int) -> Any:
        import torch

        return torch.arange(1, tokens + 1)[None] * 7 % self.model.config.vocab_size

    def _read(self, tokens: int) -> Any:
        import torch

        with torch.inference_mode():
            return self.model(self._ids(tokens), use_cache=True)[self.cached]

    def _decode(self, cache: Any) -> None:
        import torch

        with torch.inference_mode():
            for _ in range(NEW):
                self.model(self._ids(1), use_cache=True, **{self.cached: cache})

    def _train(self, tokens: int) -> None:
        made = self.model(self._ids(tokens), use_cache=False).last_hidden_state
        made.float().square().mean().backward()

    def _compare(self, runs: list[Callable[[], Any]], tokens: int) -> dict[str, Any]:
        """The best of several turns: at least one, and no more if they take very long."""
        from kerneltrick import hf
        from kerneltrick.hf._measure import _peak as peak_memory

        times: list[list[float]] = [[], []]
        peaks: list[list[float]] = [[], []]
        begun = time.perf_counter()
        while not times[1] or (
            len(times[1]) < self.repeats and time.perf_counter() - begun < PATIENCE
        ):
            for way, run in enumerate(runs):
                with hf.accelerate(self.model) if way else contextlib.nullcontext():
                    self._read(3)  # preparations are not timed
                    with peak_memory() as peak:
                        start = time.perf_counter()
                        run()
                        times[way].append(time.perf_counter() - start)
                    peaks[way] += peak
                    self.model.zero_grad(set_to_none=True)
        found = {"tokens": tokens, "turns": len(times[0]), "time": [min(x) for x in times]}
        return {**found, "memory": [min(x, default=math.nan) for x in peaks]}


def table(results: dict[str, Any], layers: int, tokens: int) -> str:
    lines = [
        f"Machine: {bench.machine()} {layers} layers, {tokens} tokens where nothing else is said, "
        "batch 1. Times and memory are of the layers, without head, loss and the gradient of the "
        "embedding. A ratio is before / after.",
        "",
        "| model | prefill | training step | a token of decoding | memory of the prefill "
        "| memory of the training step | targets: prefill, training, memory |",
        "|---|---|---|---|---|---|---|",
    ]
    cells = (
        ("prefill", "time"),
        ("training", "time"),
        ("decoding", "time"),
        ("prefill", "memory"),
        ("training", "memory"),
    )
    for name, dtype in TARGETS:
        row = results.get(f"{name} {dtype}")
        if row is not None:
            shown = [_cell(row.get(phase), what, tokens) for phase, what in cells]
            asked = [f"≥ {x:g} ×" for x in TARGETS[name, dtype] if x is not None]
            lines.append(f"| {name} {dtype} | {' | '.join(shown)} | {', '.join(asked) or '–'} |")
    lines += ["", "What takes the time of an accelerated prefill, by operation:", ""]
    for name, dtype in TARGETS:
        row = results.get(f"{name} {dtype}")
        if row is not None and "left" in row:
            parts = ", ".join(f"`{key}` {share:.0%}" for key, share in row["left"].items())
            lines.append(f"- {name} {dtype}: {parts}")
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None, what: str, tokens: int) -> str:
    if found is None:
        return "–"
    factor, unit = (1000, "ms") if what == "time" else (1, "MB")
    before, after = (x * factor for x in found[what])
    ratio = before / after if after > 0 else math.inf
    fewer = f", {found['tokens']} tokens" if found["tokens"] != tokens else ""
    return f"{ratio:.2f} × ({_figure(before)} → {_figure(after)} {unit}{fewer})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use tiny sizes")
    parser.add_argument("--models", nargs="*", help="only these, e.g. mamba2:130m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into FILE")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures are kept")
    parser.add_argument("--fresh", action="store_true", help="measure chosen models again")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        *of, phases = arguments.case
        model = Bench(*of)
        for phase, tokens in phases:
            print(json.dumps([phase, getattr(model, phase)(tokens)]), flush=True)
        return 0
    tokens, repeats, layers = (16, 1, 4) if arguments.quick else (TOKENS, arguments.repeats, LAYERS)
    bench.look_for_marks(arguments.write, START, END)
    settings = {"version": __version__, "tokens": tokens, "layers": layers}
    kept: dict[str, Any] = {"settings": settings, "models": {}}
    if arguments.results.exists():
        read = json.loads(arguments.results.read_text(encoding="utf-8"))
        kept = read if read["settings"] == settings else kept
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    chosen = [x for x in TARGETS if x[0] in (arguments.models or [x[0]])]
    for name, dtype in chosen if arguments.fresh else ():
        kept["models"].pop(f"{name} {dtype}", None)
    for name, dtype in chosen:
        row = kept["models"].setdefault(f"{name} {dtype}", {})
        fewer = {"training": min(tokens, FEWER.get(name, tokens))}
        phases = [(x, fewer.get(x, tokens)) for x in PHASES if x not in row]
        if not phases:
            continue
        print(f"measuring {name} {dtype} …", file=sys.stderr, flush=True)
        case = json.dumps([name, dtype, layers, repeats, phases])
        command = [sys.executable, __file__, "--case", case]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout or ():
                phase, row[phase] = json.loads(line)
                arguments.results.parent.mkdir(parents=True, exist_ok=True)
                write(arguments.results, json.dumps(kept, indent=1) + "\n")
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
    bench.report(table(kept["models"], layers, tokens), arguments.write, START, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
