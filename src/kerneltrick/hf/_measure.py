"""What `accelerate` gains for a model on this machine: speed and memory, before and after."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kerneltrick._progress import ProgressReport
from kerneltrick._text import shown
from kerneltrick.hf._accelerate import AccelerationError, Replacement, accelerate, is_accelerated
from kerneltrick.hf._capture import quiet

WORTH = 1.1  # a ratio below this is not worth the trouble
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Gain(NamedTuple):
    """A figure before and after `accelerate`."""

    what: str
    unit: str  # "tokens/s", "s" or "MB"
    before: float | None  # None where it cannot be measured
    after: float | None
    error: str = ""  # why there is no figure before

    @property
    def ratio(self) -> float | None:
        """How many times better the figure is now: faster, or less memory."""
        if not self.before or not self.after:
            return None
        return self.after / self.before if self.unit == "tokens/s" else self.before / self.after


class Gains(NamedTuple):
    """What `accelerate` gains for a model."""

    replaced: tuple[Replacement, ...]
    tokens: int
    rows: tuple[Gain, ...]
    advice: str


def measure_gains(
    model: Any,
    *,
    tokens: int = 2048,
    new: int = 64,
    train: bool = False,
    repeats: int = 2,
    progress: ProgressReport | None = None,
) -> Gains:
    """Time a language model and measure its memory, before and after `accelerate`.

    The two ways take turns, and the best of `repeats` counts. Peak memory is what a prefill or a
    training step needs beyond the weights; it is known on Linux only.

    model: a language model of transformers on the CPU, not accelerated.
    tokens: the number of tokens of the prompt.
    new: the number of tokens to decode after it.
    train: also run a training step: forward and backward over the tokens, without an optimiser.

    >>> import kerneltrick.hf
    >>> model = kerneltrick.hf.load_model("mamba2:130m", layers=1)
    >>> gains = kerneltrick.hf.measure_gains(model, tokens=64, new=2, repeats=1)
    >>> [(row.what, row.unit) for row in gains.rows][:2]
    [('prefill', 'tokens/s'), ('decoding', 'tokens/s')]
    """
    if is_accelerated(model):
        raise AccelerationError("the model is accelerated already; call kerneltrick.hf.restore()")
    with accelerate(model) as made:
        replaced = made.replaced
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(1, tokens + 1)[None] * 7 % vocabulary
    ways = (contextlib.nullcontext, lambda: accelerate(model))
    found: list[dict[str, list[float]]] = [{}, {}]
    errors: dict[str, str] = {}
    turns = [(i, turn) for turn in range(repeats) for i in (0, 1)]
    for done, (i, _) in enumerate(turns):
        if progress is not None:
            progress("accelerated" if i else "as it was", done, len(turns))
        with ways[i](), quiet():  # that the references are slow is what is measured here
            for what, value in _run(model, ids, new, train, errors if i == 0 else {}):
                found[i].setdefault(what, []).append(value)
    if progress is not None:
        progress("measured", len(turns), len(turns))
    rows = []
    for what, values in found[1].items():
        unit = "tokens/s" if what in ("prefill", "decoding") else "MB" if "memory" in what else "s"
        best = max if unit == "tokens/s" else min
        before = best(found[0][what]) if what in found[0] else None
        rows.append(Gain(what, unit, before, best(values), errors.get(what, "")))
    return Gains(replaced, tokens, tuple(rows), _advice(rows))


def _run(
    model: Any, ids: Any, new: int, train: bool, errors: dict[str, str]
) -> Iterator[tuple[str, float]]:
    """Run the model once, and name each figure."""
    cached = "cache_params" if "cache_params" in _parameters(model) else "past_key_values"
    with torch.inference_mode():
        how = {"use_cache": True, "logits_to_keep": 1}
        model(ids[:, :2], use_cache=True)  # preparations are not timed
        with _peak() as peak:
            start = time.perf_counter()
            made = model(ids, **how)
            yield "prefill", ids.shape[1] / (time.perf_counter() - start)
        token = made.logits[:, -1:].argmax(-1)
        if new:
            start = time.perf_counter()
            for _ in range(new):
                made = model(token, **{cached: getattr(made, cached)}, **how)
                token = made.logits[:, -1:].argmax(-1)
            yield "decoding", new / (time.perf_counter() - start)
        if peak:
            yield "memory of the prefill", peak[0]
    del made
    if train:
        yield from _train(model, ids, errors)


def _train(model: Any, ids: Any, errors: dict[str, str]) -> Iterator[tuple[str, float]]:
    training = model.training
    model.train()
    try:
        with _peak() as peak:
            start = time.perf_counter()
            model(ids, labels=ids, use_cache=False).loss.backward()
            took = time.perf_counter() - start
        yield "training step", took
        if peak:
            yield "memory of the training step", peak[0]
    except (RuntimeError, ValueError) as error:
        errors["training step"] = str(error).splitlines()[0]
    finally:
        model.zero_grad(set_to_none=True)
        model.train(training)


def _parameters(model: Any) -> tuple[str, ...]:
    code = type(model).forward
    while hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    return tuple(code.__code__.co_varnames)


@contextlib.contextmanager
def _peak() -> Iterator[list[float]]:
    """A list that holds, at the end, the megabytes that were needed at most; empty if not known."""
    found: list[float] = []
    gc.collect()
    trim: Callable[[int], int] | None = None
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
    if trim is not None:
        trim(0)  # so that memory that was freed does not count as in use
    try:
        RESET.write_text("5")  # the high-water mark starts anew
        start = _status("VmRSS")
    except OSError:
        yield found
        return
    yield found
    found.append((_status("VmHWM") - start) / 1000)


def _status(name: str) -> float:
    """A figure of this process in kB."""
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith(name))
    return float(line.split()[1])


def _advice(rows: list[Gain]) -> str:
    """One sentence that says whether it is worth it."""
    speeds = {row.what: row.ratio for row in rows if row.unit != "MB" and row.ratio is not None}
    won = {what: ratio for what, ratio in speeds.items() if ratio >= WORTH}
    enabled = [row.what for row in rows if row.before is None and row.error]
    said = ", ".join(
        f"{what} {shown(ratio, 2)} × as fast" for what, ratio in (won or speeds).items()
    )
    if won or enabled:
        more = "".join(f"; the {what} runs at all" for what in enabled)
        return f"Worth it: {said or 'no figure before'}{more}."
    return f"Do not bother on this machine: {said}. Weights and other layers take the time."
