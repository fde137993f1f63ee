"""The small hybrid that `kerneltrick inspect` shows by default, trained on text of this repository.

    python tools/make_inspected.py     train it and write src/kerneltrick/inspection/model

Runs `kerneltrick train` on the passages of Moby-Dick in tools/ and the chapters and how-tos of
docs/, which takes about ten minutes of one CPU. An interrupted run continues. Remove out/inspected
to start again. The weights are stored in float16.
"""

from __future__ import annotations

import subprocess
import sys

import torch
from generated import ROOT

from kerneltrick.torch import TrainedModel

FOLDER = ROOT / "out" / "inspected"
MODEL = ROOT / "src" / "kerneltrick" / "inspection" / "model"
SIZES = {"layers": 8, "width": 40, "heads": 4, "length": 256, "batch": 8, "steps": 2000, "seed": 0}
MOST = 500_000  # bytes of the file
SHOWN = 600  # characters of the text that is shown


def trained() -> TrainedModel:
    """Train the model, or continue."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = FOLDER / "text.txt"
    if not text.exists():
        pages = (ROOT / "docs").glob("0*.md"), (ROOT / "docs" / "howto").glob("*.md")
        paths = [ROOT / "tools" / "moby_dick_fit.txt", *(x for each in pages for x in sorted(each))]
        text.write_text("".join(path.read_text("utf-8") for path in paths), "utf-8")
    options = [part for name, value in SIZES.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "kerneltrick", "train", str(text), "--out", str(FOLDER)]
    mixer = ["--mixer", "gated_deltanet*3+softmax", "--bytes"]
    subprocess.run([*command, *mixer, *options], check=True)
    return TrainedModel.load(FOLDER)


def main() -> None:
    made = trained()
    with torch.no_grad():
        made.model.half()
    made.losses = []
    MODEL.mkdir(exist_ok=True)
    made.save(MODEL)
    size = (MODEL / "model.safetensors").stat().st_size
    if size > MOST:
        raise SystemExit(f"the model has {size:,} bytes, more than {MOST:,}")
    passage = (ROOT / "tools" / "moby_dick_judge.txt").read_text("utf-8")[:SHOWN]
    (MODEL / "text.txt").write_text(passage[: passage.rfind(".") + 1] + "\n", "utf-8")
    last = max(made.validation)
    print(f"{size:,} bytes; validation {made.validation[last]:.3f} nats per byte")


if __name__ == "__main__":
    main()
