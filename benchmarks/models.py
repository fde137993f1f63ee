"""Measure whole models of transformers before and after `kerneltrick.hf.accelerate`.

python benchmarks/models.py                              print the table
python benchmarks/models.py --quick                      use tiny sizes, to check that it runs
python benchmarks/models.py --write docs/performance.md  write the table between its markers

The models have published shapes and random weights. Four layers of each run, without the head and
the loss over its vocabulary, which would dominate so few layers. Every model runs in a process of
its own; the two ways take turns, and the best of several runs counts. Finished models are kept in
--results, so a second run continues where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bench

from kerneltrick import __version__
from kerneltrick._files import write

START, END = "<!-- models:begin -->", "<!-- models:end -->"
THREADS, LAYERS, TOKENS, NEW = bench.THREADS, 4, 2048, 32
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


def measure(name: str, dtype: str, tokens: int, repeats: int, layers: int) -> dict[str, Any]:
    """The figures of one model: seconds and megabytes, as [before, after]."""
    import torch
    import transformers

    from kerneltrick import hf
    from kerneltrick.hf._measure import _peak as peak_memory

    transformers.logging.set_verbosity_error()
    model = hf.load_model(name, layers=layers, dtype=getattr(torch, dtype)).base_model
    ids = torch.arange(1, tokens + 1)[None] * 7 % model.config.vocab_size
    cached = "cache_params" if name.startswith("mamba") else "past_key_values"
    found: dict[str, Any] = {}

    def keep(what: str, way: int, value: float) -> None:
        values = found.setdefault(what, [None, None])
        values[way] = value if values[way] is None else min(values[way], value)

    def run(way: int) -> None:
        with torch.inference_mode():
            model(ids[:, :3], use_cache=True)
            with peak_memory() as peak:
                start = time.perf_counter()
                made = model(ids, use_cache=True)
                keep("prefill", way, time.perf_counter() - start)
            keep("prefill memory", way, peak[0])
            start = time.perf_counter()
            for _ in range(NEW):
                made = model(ids[:, :1], use_cache=True, **{cached: made[cached]})
            keep("token", way, (time.perf_counter() - start) / NEW)
        del made
        model.train()
        with peak_memory() as peak:
            start = time.perf_counter()
            model(ids, use_cache=False).last_hidden_state.float().square().mean().backward()
            keep("training", way, time.perf_counter() - start)
        keep("training memory", way, peak[0])
        model.zero_grad(set_to_none=True)
        model.eval()

    for _ in range(repeats):
        run(0)
        with hf.accelerate(model):
            run(1)
    with hf.accelerate(model), torch.inference_mode(), torch.profiler.profile() as profile:
        model(ids, use_cache=False)
    events = profile.key_averages()
    whole = sum(x.self_cpu_time_total for x in events)
    largest = sorted(events, key=lambda x: -x.self_cpu_time_total)[:5]
    found["left"] = {x.key: x.self_cpu_time_total / whole for x in largest}
    return found


def table(results: dict[str, Any], layers: int, tokens: int) -> str:
    lines = [
        f"Machine: {bench.machine()} {layers} layers, {tokens} tokens, batch 1. Times are of the "
        "layers, without head and loss. A ratio is before / after.",
        "",
        "| model | prefill | training step | a token of decoding | memory of the prefill "
        "| memory of the training step | targets: prefill, training, memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, dtype in TARGETS:
        row = results.get(f"{name} {dtype}")
        if row is not None:
            kinds = ("prefill", "training", "token", "prefill memory", "training memory")
            cells = [_cell(row[kind], "MB" if "memory" in kind else "ms") for kind in kinds]
            asked = [f"≥ {x:g} ×" for x in TARGETS[name, dtype] if x is not None]
            lines.append(f"| {name} {dtype} | {' | '.join(cells)} | {', '.join(asked) or '–'} |")
    lines += ["", "What takes the time of an accelerated prefill, by operation:", ""]
    for name, dtype in TARGETS:
        row = results.get(f"{name} {dtype}")
        if row is not None:
            parts = ", ".join(f"`{key}` {share:.0%}" for key, share in row["left"].items())
            lines.append(f"- {name} {dtype}: {parts}")
    return "\n".join(lines)


def _cell(values: list[float], unit: str) -> str:
    before, after = (x * 1000 if unit == "ms" else x for x in values)
    ratio = before / after if after > 0 else float("inf")
    return f"{ratio:.2f} × ({before:.3g} → {after:.3g} {unit})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use tiny sizes")
    parser.add_argument("--models", nargs="*", help="only these, e.g. mamba2:130m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into FILE")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures are kept")
    parser.add_argument("--fresh", action="store_true", help="forget figures that were kept")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(*arguments.case)))
        return 0
    tokens, repeats, layers = (32, 1, 4) if arguments.quick else (TOKENS, arguments.repeats, LAYERS)
    if arguments.write:
        bench.page_with(arguments.write.read_text(encoding="utf-8"), "", START, END)
    settings = {"version": __version__, "tokens": tokens, "layers": layers, "repeats": repeats}
    kept: dict[str, Any] = {"settings": settings, "models": {}}
    if arguments.results.exists() and not arguments.fresh:
        read = json.loads(arguments.results.read_text(encoding="utf-8"))
        kept = read if read["settings"] == settings else kept
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    for name, dtype in TARGETS:
        if f"{name} {dtype}" in kept["models"] or name not in (arguments.models or [name]):
            continue
        print(f"measuring {name} {dtype} …", file=sys.stderr, flush=True)
        case = json.dumps([name, dtype, tokens, repeats, layers])
        command = [sys.executable, __file__, "--case", case]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        kept["models"][f"{name} {dtype}"] = json.loads(done.stdout.splitlines()[-1])
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        write(arguments.results, json.dumps(kept, indent=1) + "\n")
    text = table(kept["models"], layers, tokens)
    print(text)
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8")
        write(arguments.write, bench.page_with(page, text, START, END))
    return 0


if __name__ == "__main__":
    sys.exit(main())
