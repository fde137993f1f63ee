"""Checks of the state: reading in parts, saving, going back."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kerneltrick.conformance._trial import Trial, Violation, at, listed


def splits(trial: Trial) -> Violation | None:
    """A text read in parts, or token by token, has the outputs of one call."""
    whole, size = trial.output(state=None), trial.kind.size(trial.arrays)
    plans = [[0, cut, trial.n] for cut in trial.cuts]
    plans += [[0, cut, *range(cut + 1, trial.n + 1)] for cut in trial.cuts[-2:]]
    plans += [[*range(min(trial.n, 9) + 1)]]
    for edges in plans:
        stop = edges[-1]
        parts = trial.in_parts(edges)
        wrong = trial.differ(parts, whole[:, :, :stop], size=size[:, :, :stop])
        if wrong:
            return Violation(
                f"reading in parts that begin at {listed(edges[:-1])} changes outputs: {wrong}",
                (
                    f"size = conformance.KINDS[{trial.kind.name!r}].size([{trial.given}])",
                    f"whole, _ = operator({trial.given}, state=None)",
                    "outputs, state = [], None",
                    f"for i, j in zip({edges[:-1]}, {edges[1:]}):",
                    f"    now = conformance.at([{trial.given}], slice(i, j))",
                    "    o, state = operator(*now, state=state); outputs.append(o)",
                    "assert conformance.close(np.concatenate(outputs, axis=2), "
                    f"whole[:, :, :{stop}], size[:, :, :{stop}])",
                ),
            )
    return None


def file(trial: Trial) -> Violation | None:
    """A state that was saved and loaded continues with the same bits."""
    save, load = trial.operator.save, trial.operator.load
    assert save is not None
    assert load is not None
    cut = trial.cuts[0] if trial.cuts else trial.n
    _, state = trial.operator(*trial.between(0, cut), state=None)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "state"))
        save(state, path)
        again = load(path)
    rest = trial.between(cut, None)
    a, b = trial.output(rest, state=state), trial.output(rest, state=again)
    wrong = "" if a.tobytes() == b.tobytes() else trial.differ(a, b) or "bits differ"
    if not wrong:
        return None
    return Violation(
        f"a saved state continues differently after token {cut}: {wrong}",
        (
            f"x, y = (conformance.at([{trial.given}], i) for i in "
            f"(slice({cut}), slice({cut}, None)))",
            "_, state = operator(*x, state=None)",
            "operator.save(state, 'state'); again = operator.load('state')",
            "(a, _), (b, _) = (operator(*y, state=each) for each in (state, again))",
            "assert np.array_equal(a, b)",
        ),
    )


def rollback(trial: Trial) -> Violation | None:
    """After tokens that are taken back, everything goes on as if they had never been read."""
    n, back = trial.n, trial.operator.rewind
    for cut in (x for x in trial.cuts if x < n):
        for draft in sorted({1, n - cut}):
            _, kept = trial.operator(*trial.between(0, cut), state=None)
            wanted = trial.output(trial.between(cut, None), state=kept)
            _, kept = trial.operator(*trial.between(0, cut), state=None)
            drafted = at(trial.arrays, slice(None, -1 - draft, -1))
            _, strayed = trial.operator(*drafted, state=kept)
            state = kept if back is None else back(strayed, draft)
            out = trial.output(trial.between(cut, None), state=state)
            wrong = trial.differ(out, wanted, exact=True)
            if wrong:
                way = "state" if back is None else f"operator.rewind(strayed, {draft})"
                return Violation(
                    f"after reading {draft} tokens too many at {cut} and going back: {wrong}",
                    (
                        f"x, y, draft = (conformance.at([{trial.given}], i) for i in (slice({cut}),"
                        f" slice({cut}, None), slice(None, {-1 - draft}, -1)))",
                        "wanted, _ = operator(*y, state=operator(*x, state=None)[1])",
                        "_, state = operator(*x, state=None)",
                        "_, strayed = operator(*draft, state=state)",
                        f"o, _ = operator(*y, state={way})",
                        "assert conformance.close(o, wanted)",
                    ),
                )
    return None
