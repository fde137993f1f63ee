"""Checks of what an output depends on: tokens before it in its own text, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._trial import Trial, Violation, listed


def past(trial: Trial) -> Violation | None:
    """Other tokens later on change no output."""
    before = trial.output()
    changes: dict[str, Callable[[list[Array], int], None]] = {
        f"for x in ({trial.given}): x[:, :, CUT:] *= 0.5": _halve,
        "for x in (q, v): x[:, :, CUT:] *= 1e2": _enlarge,
        "v[:, :, CUT:] = 1e30": _fill,
    }
    for cut, (line, change) in itertools.product(trial.cuts, changes.items()):
        future = [x.copy() for x in trial.arrays]
        change(future, cut)
        after = trial.output(future)
        wrong = trial.differ(after[:, :, :cut], before[:, :, :cut], exact=True)
        if wrong:
            return Violation(
                f"outputs before token {cut} change with the tokens from {cut} on: {wrong}",
                (
                    f"before, _ = operator({trial.given})",
                    line.replace("CUT", str(cut)),
                    f"after, _ = operator({trial.given})",
                    f"print(before[:, :, :{cut}], after[:, :, :{cut}])",
                    f"assert {trial.same(f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
                ),
            )
    return None


def _halve(arrays: list[Array], cut: int) -> None:
    for x in arrays:
        x[:, :, cut:] *= 0.5


def _enlarge(arrays: list[Array], cut: int) -> None:
    for x in (arrays[0], arrays[2]):  # longer keys would let the delta rule itself diverge
        x[:, :, cut:] *= 1e2


def _fill(arrays: list[Array], cut: int) -> None:
    arrays[2][:, :, cut:] = 1e30


def padding(trial: Trial) -> Violation | None:
    """Masked tokens count for nothing: to the right, to the left, or between."""
    n, cuts = trial.n, trial.cuts
    masks = [np.arange(n) < cut for cut in cuts] + [np.arange(n) >= cut for cut in cuts]
    masks += [np.arange(n) % 3 != 1]
    for mask in masks:
        if not mask.any():
            continue
        whole = np.broadcast_to(mask, (len(trial.arrays[0]), n))
        alone = trial.output([x[:, :, mask] for x in trial.arrays])
        padded = trial.output(mask=whole)
        other = [x.copy() for x in trial.arrays]
        for x in other[:3]:
            x[:, :, ~mask] = 7
        again = trial.output(other, mask=whole)
        chosen = np.flatnonzero(mask).tolist()
        lines = (
            f"keep = np.isin(np.arange({n}), {chosen})",
            f"mask = np.broadcast_to(keep, ({len(whole)}, {n}))",
            f"padded, _ = operator({trial.given}, mask=mask)",
        )
        wrong = trial.differ(padded[:, :, mask], alone)
        if wrong:
            return Violation(
                f"tokens {listed(chosen)} have other outputs beside masked tokens: {wrong}",
                (
                    *lines,
                    f"alone, _ = operator(*(x[:, :, keep] for x in ({trial.given})))",
                    "print(alone, padded[:, :, keep])",
                    "assert conformance.close(alone, padded[:, :, keep])",
                ),
            )
        wrong = trial.differ(again[:, :, mask], padded[:, :, mask], exact=True)
        if wrong:
            return Violation(
                f"what masked tokens hold changes tokens {listed(chosen)}: {wrong}",
                (
                    *lines,
                    "for x in (q, k, v): x[:, :, ~keep] = 7",
                    f"again, _ = operator({trial.given}, mask=mask)",
                    f"assert {trial.same('padded[:, :, keep]', 'again[:, :, keep]')}",
                ),
            )
    return None


def packed(trial: Trial) -> Violation | None:
    """Texts packed into one row have the outputs that they have alone."""
    edges = [0, *trial.cuts, trial.n]
    ids = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    packed = trial.output(segment_ids=np.broadcast_to(ids, (len(trial.arrays[0]), trial.n)))
    for start, stop in itertools.pairwise(edges):
        alone = trial.output(trial.between(start, stop))
        wrong = trial.differ(packed[:, :, start:stop], alone)
        if wrong:
            here = f"{start}:{stop}"
            return Violation(
                f"the text of tokens {here} has other outputs in a pack: {wrong}",
                (
                    f"ids = np.broadcast_to(np.repeat({[*range(len(edges) - 1)]}, "
                    f"{np.diff(edges).tolist()}), ({len(trial.arrays[0])}, {trial.n}))",
                    f"packed, _ = operator({trial.given}, segment_ids=ids)",
                    f"alone, _ = operator(*(x[:, :, {here}] for x in ({trial.given})))",
                    f"print(packed[:, :, {here}], alone)",
                    f"assert conformance.close(packed[:, :, {here}], alone)",
                ),
            )
    return None


def batch(trial: Trial) -> Violation | None:
    """A row has the same outputs alone and beside others."""
    together = trial.output()
    for b in range(len(together)):
        alone = trial.output([x[b : b + 1] for x in trial.arrays])
        wrong = trial.differ(together[b : b + 1], alone, exact=True)
        if wrong:
            row = f"{b}:{b + 1}"
            return Violation(
                f"row {b} has other outputs alone than in a batch of {len(together)}: {wrong}",
                (
                    f"together, _ = operator({trial.given})",
                    f"alone, _ = operator(*(x[{row}] for x in ({trial.given})))",
                    f"print(together[{row}], alone)",
                    f"assert {trial.same(f'together[{row}]', 'alone')}",
                ),
            )
    return None


def masked_rows(trial: Trial) -> Violation | None:
    """The output of a masked token is 0, also where nothing before it counts."""
    n = trial.n
    for mask in (np.arange(n) >= (n + 1) // 2, np.arange(n) < n // 2, np.zeros(n, bool)):
        out = trial.output(mask=np.broadcast_to(mask, (len(trial.arrays[0]), n)))
        hidden = out[:, :, ~mask]
        if hidden.any():  # NaN counts as something
            what = "NaN" if np.isnan(hidden).any() else f"up to {np.abs(hidden).max():.2g}"
            return Violation(
                f"masked tokens {listed(np.flatnonzero(~mask).tolist())} have an output: {what}",
                (
                    f"keep = np.isin(np.arange({n}), {np.flatnonzero(mask).tolist()})",
                    f"mask = np.broadcast_to(keep, ({len(trial.arrays[0])}, {n}))",
                    f"o, _ = operator({trial.given}, mask=mask)",
                    "print(o)",
                    "assert (o[:, :, ~keep] == 0).all()",
                ),
            )
    return None
