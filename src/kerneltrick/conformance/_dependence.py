"""Checks of what an output depends on: tokens before it in its own text, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np

from kerneltrick.conformance._trial import Trial, Violation, at, listed


def past(trial: Trial) -> Violation | None:
    """Other tokens later on change no output."""
    before, value = trial.clean, trial.names[trial.kind.value]
    # Longer keys would let the delta rule itself diverge.
    others = [name for name in trial.kind.features if name not in ("k", "B")]
    changes = {"*= 0.5": trial.sequences, "*= -3": others, "= 1e30": [value]}
    for cut, (change, names) in itertools.product(trial.cuts, changes.items()):
        future = [x.copy() for x in trial.arrays]
        for name, x in zip(trial.names, future, strict=True):
            if name in names and change == "= 1e30":
                x[:, :, cut:] = 1e30
            elif name in names:
                x[:, :, cut:] *= float(change.removeprefix("*= "))
        after = trial.output(future)
        wrong = trial.differ(after[:, :, :cut], before[:, :, :cut], exact=True)
        if wrong:
            return Violation(
                f"outputs before token {cut} change with the tokens from {cut} on: {wrong}",
                (
                    f"before, _ = operator({trial.given})",
                    f"for x in ({', '.join(names)},): x[:, :, {cut}:] {change}",
                    f"after, _ = operator({trial.given})",
                    f"print(before[:, :, :{cut}], after[:, :, :{cut}])",
                    f"assert {trial.same(f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
                ),
            )
    return None


def padding(trial: Trial) -> Violation | None:
    """Masked tokens count for nothing: to the right, to the left, or between."""
    n, cuts = trial.n, trial.cuts
    masks = [np.arange(n) < cut for cut in cuts] + [np.arange(n) >= cut for cut in cuts]
    masks += [np.arange(n) % 3 != 1]
    for mask in masks[-2:] if trial.few else masks:
        whole, kept = trial.every_row(mask), at(trial.arrays, mask)
        alone = trial.output(kept)
        padded = trial.output(mask=whole)
        again = trial.output(trial.changed(trial.kind.features, ~mask, 7), mask=whole)
        chosen = np.flatnonzero(mask).tolist()
        lines = (
            f"keep = np.isin(np.arange({n}), {chosen})",
            f"mask = np.broadcast_to(keep, {whole.shape})",
            f"padded, _ = operator({trial.given}, mask=mask)",
        )
        wrong = trial.differ(padded[:, :, mask], alone, size=trial.kind.size(kept))
        if wrong:
            return Violation(
                f"tokens {listed(chosen)} have other outputs beside masked tokens: {wrong}",
                (
                    *lines,
                    f"kept = conformance.at([{trial.given}], keep)",
                    "alone, _ = operator(*kept)",
                    "print(alone, padded[:, :, keep])",
                    f"size = conformance.KINDS[{trial.kind.name!r}].size(kept)",
                    "assert conformance.close(alone, padded[:, :, keep], size)",
                ),
            )
        wrong = trial.differ(again[:, :, mask], padded[:, :, mask], exact=True)
        if wrong:
            return Violation(
                f"what masked tokens hold changes tokens {listed(chosen)}: {wrong}",
                (
                    *lines,
                    f"for x in ({', '.join(trial.kind.features)},): x[:, :, ~keep] = 7",
                    f"again, _ = operator({trial.given}, mask=mask)",
                    f"assert {trial.same('padded[:, :, keep]', 'again[:, :, keep]')}",
                ),
            )
    return None


def packed(trial: Trial) -> Violation | None:
    """Texts packed into one row have the outputs that they have alone."""
    edges = [0, *trial.cuts, trial.n]
    ids = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    packed = trial.output(segment_ids=trial.every_row(ids))
    for start, stop in itertools.pairwise(edges):
        own = trial.between(start, stop)
        alone = trial.output(own)
        wrong = trial.differ(packed[:, :, start:stop], alone, size=trial.kind.size(own))
        if wrong:
            here = f"{start}:{stop}"
            return Violation(
                f"the text of tokens {here} has other outputs in a pack: {wrong}",
                (
                    f"ids = np.broadcast_to(np.repeat({[*range(len(edges) - 1)]}, "
                    f"{np.diff(edges).tolist()}), ({trial.batch}, {trial.n}))",
                    f"packed, _ = operator({trial.given}, segment_ids=ids)",
                    f"own = conformance.at([{trial.given}], slice({start}, {stop}))",
                    "alone, _ = operator(*own)",
                    f"print(packed[:, :, {here}], alone)",
                    f"size = conformance.KINDS[{trial.kind.name!r}].size(own)",
                    f"assert conformance.close(packed[:, :, {here}], alone, size)",
                ),
            )
    return None


def batch(trial: Trial) -> Violation | None:
    """A row has the same outputs alone and beside others."""
    together = trial.clean
    for b in range(len(together)):
        alone = trial.output(at(trial.arrays, rows=slice(b, b + 1)))
        wrong = trial.differ(together[b : b + 1], alone, exact=True)
        if wrong:
            row = f"{b}:{b + 1}"
            return Violation(
                f"row {b} has other outputs alone than in a batch of {len(together)}: {wrong}",
                (
                    f"together, _ = operator({trial.given})",
                    f"row = conformance.at([{trial.given}], rows=slice({b}, {b + 1}))",
                    "alone, _ = operator(*row)",
                    f"print(together[{row}], alone)",
                    f"assert {trial.same(f'together[{row}]', 'alone')}",
                ),
            )
    return None


def masked_rows(trial: Trial) -> Violation | None:
    """The output of a masked token is 0, also where nothing before it counts."""
    n = trial.n
    for mask in (np.arange(n) >= (n + 1) // 2, np.arange(n) < n // 2, np.zeros(n, bool)):
        whole = trial.every_row(mask)
        hidden = trial.output(mask=whole)[:, :, ~mask]
        if hidden.any():  # NaN counts as something
            what = "NaN" if np.isnan(hidden).any() else f"up to {np.abs(hidden).max():.2g}"
            return Violation(
                f"masked tokens {listed(np.flatnonzero(~mask).tolist())} have an output: {what}",
                (
                    f"keep = np.isin(np.arange({n}), {np.flatnonzero(mask).tolist()})",
                    f"mask = np.broadcast_to(keep, {whole.shape})",
                    f"o, _ = operator({trial.given}, mask=mask)",
                    "print(o)",
                    "assert (o[:, :, ~keep] == 0).all()",
                ),
            )
    return None


def empty(trial: Trial) -> Violation | None:
    """A text of no tokens has no outputs, and leaves a state as it is."""
    none = trial.between(0, 0)
    has_state = "state" in trial.operator.abilities
    _, state = trial.operator(*none, **({"state": None} if has_state else {}))
    lines = (f"none = conformance.at([{trial.given}], slice(0, 0))", "o, state = operator(*none)")
    if has_state:
        after, wanted = trial.output(state=state), trial.output(state=None)
        wrong = trial.differ(after, wanted, exact=True)
        if wrong:
            return Violation(
                f"the state of no tokens is not that of a beginning: {wrong}",
                (
                    *lines,
                    f"after, _ = operator({trial.given}, state=state)",
                    f"before, _ = operator({trial.given}, state=None)",
                    f"assert {trial.same('after', 'before')}",
                ),
            )
    return None
