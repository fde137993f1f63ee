"""Run random calls under sanitizers, or record them for native/replay: `make sanitize`.

The calls and what they must give are those of tests/random_calls.py: values, gradients, and steps
of decoders.

    python tools/sanitize.py address build/asan --cases 2000     # with the core of build/asan
    python tools/sanitize.py record build/calls.bin --cases 300  # for kt_replay
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tools")]
SEED = 10**6  # the seeds of the tests are others


def preload() -> None:
    """Start again with the sanitizer's library, which must come before all others."""
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    if os.environ.get("LD_PRELOAD") == ":".join(found):
        return
    environment = {
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",  # Python's own, and PyTorch's
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment)


def load_core(folder: Path) -> None:
    """Make the core of a folder the one that the package uses."""
    (path,) = folder.glob("_core*.so")
    spec = importlib.util.spec_from_file_location("kerneltrick._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["kerneltrick._core"] = module


def run(cases: int, recording: bool) -> None:
    """Values of all cases, gradients of one in four, and steps of one in eight.

    Calls are recorded only if their results may be compared with those of another processor.
    """
    import random_calls

    from kerneltrick.engines import core, set_num_threads

    core().wake_always(True)
    isas = core().isas()
    for case in range(cases):
        os.environ["KERNELTRICK_ISA"] = isas[case % len(isas)]
        set_num_threads(1 + case % 3)
        if recording and not random_calls.is_steady(
            random_calls.drawn(SEED + case, steady=True)[1]
        ):
            continue
        random_calls.check(SEED + case, "compiled", steady=True)
        if case % 4 == 0:
            random_calls.check_gradient(SEED + case)
        if case % 8 == 0:
            random_calls.check_steps(SEED + case)
        if (case + 1) % 500 == 0:
            print(f"{case + 1} cases", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("address", "record"))
    parser.add_argument("path", type=Path, help="the folder of the core, or the file to write")
    parser.add_argument("--cases", type=int, default=1000)
    options = parser.parse_args()
    if options.what == "address":
        preload()
        load_core(options.path)
        recording = contextlib.nullcontext()
    else:
        from record_calls import recorded

        recording = recorded(options.path)
    with recording:
        run(options.cases, options.what == "record")
    print(f"{options.cases} passed, 0 failed")


if __name__ == "__main__":
    main()
