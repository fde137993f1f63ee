"""The check that NaN and inf reach only what depends on them."""

from __future__ import annotations

import itertools

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._trial import Trial, Violation

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def not_finite(trial: Trial) -> Violation | None:
    """NaN or inf makes NaN exactly the outputs that depend on it; the others keep their values."""
    return (
        _one_number(trial)
        or _future(trial)
        or _other_texts(trial)
        or (_pads(trial) if "mask" in trial.operator.abilities else None)
    )


def _one_number(trial: Trial) -> Violation | None:
    """What depends on a number is NaN in the definition where the number is."""
    rng = np.random.default_rng(trial.seed)
    first, *others = trial.cuts or (0,)
    places = [(first, text) for text in BAD] + [(token, "nan") for token in others]
    places = places[:1] if trial.few else places
    for name, (token, text) in itertools.product(trial.finite(), places):
        number = trial.names.index(name)
        shape = trial.arrays[number].shape
        place = tuple(int(rng.integers(size)) for size in shape)
        place = (*place[:2], token, *place[3:])
        poisoned = [x.copy() for x in trial.arrays]
        poisoned[number][place] = np.nan
        depends = np.isnan(trial.kind.definition(poisoned))
        poisoned[number][place] = BAD[text]
        out = trial.output(poisoned)
        wrong = _wrong(trial, out, depends, whole=text == "nan")
        if wrong:
            nan = "np.isnan(o) == depends" if text == "nan" else "~np.isnan(o) | depends"
            return Violation(
                f"{'NaN' if text == 'nan' else text} in {name} at token {token} {wrong}",
                (
                    f"clean, _ = operator({trial.given})",
                    f"{name}[{', '.join(map(str, place))}] = np.nan",
                    f"depends = np.isnan(conformance.KINDS[{trial.kind.name!r}].definition("
                    f"[{trial.given}]))",
                    f"{name}[{', '.join(map(str, place))}] = float({text!r})",
                    f"o, _ = operator({trial.given})",
                    f"assert ({nan}).all() and conformance.close(o[~depends], clean[~depends])",
                ),
            )
    return None


def _wrong(trial: Trial, out: Array, depends: Array, *, whole: bool) -> str:
    """What is wrong; an output that depends on NaN must be NaN, one on inf need not."""
    found = np.isnan(out)
    if (found & ~depends).any():
        count = int((found & ~depends).sum())
        return f"makes {count} outputs NaN that do not depend on it"
    if whole and (depends & ~found).any():
        count = int((depends & ~found).sum())
        return f"leaves {count} outputs without NaN that depend on it"
    wrong = trial.differ(out[~depends], trial.clean[~depends], exact=True)
    return f"changes outputs that do not depend on it: {wrong}" if wrong else ""


def _future(trial: Trial) -> Violation | None:
    places = [(cut, "nan") for cut in trial.cuts] + [(cut, "inf") for cut in trial.cuts[-1:]]
    for cut, text in places[:1] if trial.few else places:
        future = trial.changed(trial.finite(), slice(cut, None), BAD[text])
        wrong = trial.differ(trial.output(future)[:, :, :cut], trial.clean[:, :, :cut], exact=True)
        if wrong:
            return Violation(
                f"{text} from token {cut} on changes earlier outputs: {wrong}",
                (
                    f"before, _ = operator({trial.given})",
                    f"for x in ({', '.join(trial.finite())},): x[:, :, {cut}:] = float({text!r})",
                    f"after, _ = operator({trial.given})",
                    f"print(before[:, :, :{cut}], after[:, :, :{cut}])",
                    f"assert {trial.same(f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
                ),
            )
    return None


def _other_texts(trial: Trial) -> Violation | None:
    """The first text of a pack is NaN, and the second is as it was."""
    if "segment_ids" not in trial.operator.abilities or not trial.cuts:
        return None
    cut = trial.cuts[-1]
    ids = trial.every_row((np.arange(trial.n) >= cut).astype(np.int64))
    clean = trial.output(segment_ids=ids)[:, :, cut:]
    poisoned = trial.changed(trial.finite(), slice(cut), np.nan)
    out = trial.output(poisoned, segment_ids=ids)[:, :, cut:]
    wrong = trial.differ(out, clean, exact=True)
    if not wrong:
        return None
    return Violation(
        f"NaN before token {cut}, where another text begins, reaches it: {wrong}",
        (
            f"ids = np.tile(np.arange({trial.n}) >= {cut}, ({trial.batch}, 1)).astype(int)",
            f"for x in ({', '.join(trial.finite())},): x[:, :, :{cut}] = np.nan",
            f"o, _ = operator({trial.given}, segment_ids=ids)",
            f"assert np.isfinite(o[:, :, {cut}:]).all()",
        ),
    )


def _pads(trial: Trial) -> Violation | None:
    keep = np.arange(trial.n) >= trial.n // 2
    mask = trial.every_row(keep)
    clean = trial.output(mask=mask)[:, :, keep]
    poisoned = trial.changed(trial.finite(), ~keep, np.nan)
    wrong = trial.differ(trial.output(poisoned, mask=mask)[:, :, keep], clean, exact=True)
    if not wrong:
        return None
    return Violation(
        f"NaN in masked tokens reaches others: {wrong}",
        (
            f"keep = np.arange({trial.n}) >= {trial.n // 2}",
            f"for x in ({', '.join(trial.finite())},): x[:, :, ~keep] = np.nan",
            f"o, _ = operator({trial.given}, mask=np.broadcast_to(keep, {mask.shape}))",
            "print(o)",
            "assert np.isfinite(o[:, :, keep]).all()",
        ),
    )
