"""The check that NaN and inf reach only what depends on them."""

from __future__ import annotations

import itertools

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._trial import Trial, Violation

RATES = ("log_decay", "dt")  # which must be finite
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def not_finite(trial: Trial) -> Violation | None:
    """NaN or inf makes NaN exactly the outputs that depend on it; the others keep their values."""
    clean = trial.output()
    last = (len(clean) - 1, clean.shape[1] - 1)
    first, *others = trial.cuts
    places = [(first, value) for value in BAD.items()]
    places += [(token, ("nan", np.nan)) for token in others]
    for (number, name), (token, (text, bad)) in itertools.product(enumerate(trial.names), places):
        if name in RATES:
            continue
        dirty = [x.copy() for x in trial.arrays]
        place: tuple[int, ...] = (*last, token) if dirty[number].ndim == 3 else (*last, token, 0)
        dirty[number][place] = bad
        expected = np.zeros(clean.shape, bool)
        expected[_dependent(name, *last, token)] = True
        out = trial.output(dirty)
        wrong, shown = _stays(trial, out, clean, expected, whole=text == "nan")
        if wrong:
            here = _indices(name, *last, token)
            lines = {
                "depends": (f"assert np.isnan(o[{here}]).all()",),
                "others": (
                    f"depends = np.zeros(o.shape, bool); depends[{here}] = True",
                    "assert conformance.close(o[~depends], clean[~depends])",
                ),
            }
            return Violation(
                f"{'NaN' if text == 'nan' else text} in {name} at token {token} {wrong}",
                (
                    f"clean, _ = operator({trial.given})",
                    f"{name}[{', '.join(map(str, place))}] = float({text!r})",
                    f"o, _ = operator({trial.given})",
                    "print(o)",
                    *lines[shown],
                ),
            )
    for cut in trial.cuts:
        for text, bad in BAD.items():
            future = [x.copy() for x in trial.arrays]
            for name, x in zip(trial.names, future, strict=True):
                if name not in RATES:
                    x[:, :, cut:] = bad
            out = trial.output(future)[:, :, :cut]
            wrong = trial.differ(out, clean[:, :, :cut], exact=True)
            if wrong:
                poisoned = ", ".join(name for name in trial.names if name not in RATES)
                return Violation(
                    f"{text} from token {cut} on changes earlier outputs: {wrong}",
                    (
                        f"before, _ = operator({trial.given})",
                        f"for x in ({poisoned}): x[:, :, {cut}:] = float({text!r})",
                        f"after, _ = operator({trial.given})",
                        f"print(before[:, :, :{cut}], after[:, :, :{cut}])",
                        f"assert {trial.same(f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
                    ),
                )
    return _nan_in_pads(trial) if "mask" in trial.operator.abilities else None


def _nan_in_pads(trial: Trial) -> Violation | None:
    keep = np.arange(trial.n) >= trial.n // 2
    mask = np.broadcast_to(keep, (len(trial.arrays[0]), trial.n))
    clean = trial.output(mask=mask)[:, :, keep]
    dirty = [x.copy() for x in trial.arrays]
    for name, x in zip(trial.names, dirty, strict=True):
        if name not in RATES:
            x[:, :, ~keep] = np.nan
    wrong = trial.differ(trial.output(dirty, mask=mask)[:, :, keep], clean, exact=True)
    if not wrong:
        return None
    return Violation(
        f"NaN in masked tokens reaches others: {wrong}",
        (
            f"keep = np.arange({trial.n}) >= {trial.n // 2}",
            "for x in (q, k, v): x[:, :, ~keep] = np.nan",
            f"o, _ = operator({trial.given}, mask=np.broadcast_to(keep, {mask.shape}))",
            "print(o)",
            "assert np.isfinite(o[:, :, keep]).all()",
        ),
    )


def _dependent(name: str, batch: int, head: int, token: int) -> tuple[int | slice, ...]:
    """The outputs that depend on one number of an input."""
    if name == "q":
        return (batch, head, token)
    rest = (batch, head, slice(token, None))
    return (*rest, 0) if name == "v" else rest


def _indices(name: str, batch: int, head: int, token: int) -> str:
    shown = [
        f"{x.start}:" if isinstance(x, slice) else str(x)
        for x in _dependent(name, batch, head, token)
    ]
    return ", ".join(shown)


def _stays(
    trial: Trial, out: Array, clean: Array, expected: Array, *, whole: bool
) -> tuple[str, str]:
    """What is wrong, and where; an output that depends on NaN must be NaN, one on inf need not."""
    found = np.isnan(out)
    if (found & ~expected).any():
        count = int((found & ~expected).sum())
        return f"makes {count} outputs NaN that do not depend on it", "others"
    if whole and (expected & ~found).any():
        count = int((expected & ~found).sum())
        return f"leaves {count} outputs without NaN that depend on it", "depends"
    wrong = trial.differ(out[~expected], clean[~expected], exact=True)
    return (f"changes outputs that do not depend on it: {wrong}" if wrong else ""), "others"
