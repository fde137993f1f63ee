"""The checks: what an operator on tokens should keep, whatever it computes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import kind_named
from kerneltrick.conformance._operator import HALVES
from kerneltrick.conformance._reference import by_head, derivative
from kerneltrick.conformance._trial import ROUNDING, Trial, Violation

RATES = ("log_decay", "dt")  # which must be finite
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


@dataclass(frozen=True)
class Check:
    """A property by name.

    find: returns how a trial violates it, or None.
    needs: the keywords and abilities without which there is nothing to check.
    implied: whether the definition and those keywords promise it. Otherwise only an operator that
        names the check in `promises` is judged by it.
    """

    name: str
    find: Callable[[Trial], Violation | None]
    needs: frozenset[str] = frozenset()
    implied: bool = True


def _definition(trial: Trial) -> Violation | None:
    """The outputs are those of a loop over tokens in float64."""
    kind = kind_named(trial.operator.kind)
    o, wanted = trial.output(), kind.definition(trial.arrays)
    wrong = trial.differ(o, wanted.astype(o.dtype))
    if not wrong:
        return None
    return Violation(
        f"the output is not {kind.formula}: {wrong}",
        (
            f"o, _ = operator({trial.given})",
            f"wanted = conformance.KINDS[{kind.name!r}].definition([{trial.given}])",
            "print(np.abs(o - wanted).max())",
            "assert conformance.close(o, wanted)",
        ),
    )


def _past(trial: Trial) -> Violation | None:
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
                    f"assert {_same(trial, f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
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


def _padding(trial: Trial) -> Violation | None:
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
                f"tokens {_short(chosen)} have other outputs beside masked tokens: {wrong}",
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
                f"what masked tokens hold changes tokens {_short(chosen)}: {wrong}",
                (
                    *lines,
                    "for x in (q, k, v): x[:, :, ~keep] = 7",
                    f"again, _ = operator({trial.given}, mask=mask)",
                    f"assert {_same(trial, 'padded[:, :, keep]', 'again[:, :, keep]')}",
                ),
            )
    return None


def _packed(trial: Trial) -> Violation | None:
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


def _split(trial: Trial) -> Violation | None:
    """A text read in parts, or token by token, has the outputs of one call."""
    whole = trial.output(state=None)
    plans = [[0, cut, trial.n] for cut in trial.cuts]
    plans += [[0, cut, *range(cut + 1, trial.n + 1)] for cut in trial.cuts[-2:]]
    plans += [[*range(min(trial.n, 9) + 1)]]
    for edges in plans:
        outputs, state = [], None
        for start, stop in itertools.pairwise(edges):
            out, state = trial.operator(*trial.between(start, stop), state=state)
            outputs.append(out)
        wrong = trial.differ(np.concatenate(outputs, axis=2), whole[:, :, : edges[-1]])
        if wrong:
            return Violation(
                f"reading in parts that begin at {_short(edges[:-1])} changes outputs: {wrong}",
                (
                    f"whole, _ = operator({trial.given}, state=None)",
                    "outputs, state = [], None",
                    f"for i, j in zip({edges[:-1]}, {edges[1:]}):",
                    f"    now = [x[:, :, i:j] for x in ({trial.given})]",
                    "    o, state = operator(*now, state=state); outputs.append(o)",
                    "assert conformance.close(np.concatenate(outputs, axis=2), "
                    f"whole[:, :, :{edges[-1]}])",
                ),
            )
    return None


def _batch(trial: Trial) -> Violation | None:
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
                    f"assert {_same(trial, f'together[{row}]', 'alone')}",
                ),
            )
    return None


def _nan(trial: Trial) -> Violation | None:
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
                        f"assert {_same(trial, f'before[:, :, :{cut}]', f'after[:, :, :{cut}]')}",
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


def _masked_rows(trial: Trial) -> Violation | None:
    """The output of a masked token is 0, also where nothing before it counts."""
    n = trial.n
    for mask in (np.arange(n) >= (n + 1) // 2, np.arange(n) < n // 2, np.zeros(n, bool)):
        out = trial.output(mask=np.broadcast_to(mask, (len(trial.arrays[0]), n)))
        hidden = out[:, :, ~mask]
        if hidden.any():  # NaN counts as something
            what = "NaN" if np.isnan(hidden).any() else f"up to {np.abs(hidden).max():.2g}"
            return Violation(
                f"masked tokens {_short(np.flatnonzero(~mask).tolist())} have an output: {what}",
                (
                    f"keep = np.isin(np.arange({n}), {np.flatnonzero(mask).tolist()})",
                    f"mask = np.broadcast_to(keep, ({len(trial.arrays[0])}, {n}))",
                    f"o, _ = operator({trial.given}, mask=mask)",
                    "print(o)",
                    "assert (o[:, :, ~keep] == 0).all()",
                ),
            )
    return None


def _gradient(trial: Trial) -> Violation | None:
    """Gradients are those of the loop in float64, along random directions of every input."""
    rng = np.random.default_rng(1)
    arrays = [x.astype(np.float64) for x in trial.arrays]
    cotangent = rng.uniform(-1, 1, trial.arrays[2].shape).astype(trial.arrays[2].dtype)
    gradients = trial.operator.gradients(trial.arrays, cotangent)
    loop = kind_named(trial.operator.kind).loop
    epsilon = float(np.finfo(trial.arrays[2].dtype).eps)
    # Where a gradient is 0, as that of a query that sees one key, what cancels is of this size.
    whole = float(np.abs(by_head(loop, arrays) * cotangent).sum())
    for number, name in enumerate(trial.names):
        way = rng.uniform(-1, 1, arrays[number].shape)
        ways = [way if i == number else None for i in range(len(arrays))]
        terms = derivative(loop, arrays, ways) * cotangent
        mine = gradients[number].astype(np.float64) * way
        size = max(np.abs(terms).sum(), np.abs(mine).sum(), whole)
        gap = abs(float(mine.sum() - terms.sum()))
        if not gap <= ROUNDING * epsilon * size:
            return Violation(
                f"the gradient of {name} along a direction is {mine.sum():.6g}, not "
                f"{terms.sum():.6g}",
                (
                    "rng = np.random.default_rng(1)",
                    f"cotangent = rng.uniform(-1, 1, v.shape).astype('{trial.arrays[2].dtype}')",
                    f"found = operator.gradients([{trial.given}], cotangent)[{number}]",
                    f"wanted = conformance.gradient({trial.operator.kind!r}, [{trial.given}], "
                    f"cotangent)[{number}]",
                    "print(found, wanted)",
                    "assert conformance.close(found, wanted)",
                ),
            )
    return None


def _file(trial: Trial) -> Violation | None:
    """A state that was saved and loaded continues with the same bits."""
    save, load = trial.operator.save, trial.operator.load
    assert save is not None
    assert load is not None
    cut = trial.cuts[0]
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
            f"_, state = operator(*(x[:, :, :{cut}] for x in ({trial.given})), state=None)",
            "operator.save(state, 'state'); again = operator.load('state')",
            f"a, _ = operator(*(x[:, :, {cut}:] for x in ({trial.given})), state=state)",
            f"b, _ = operator(*(x[:, :, {cut}:] for x in ({trial.given})), state=again)",
            "assert np.array_equal(a, b)",
        ),
    )


def _rollback(trial: Trial) -> Violation | None:
    """After tokens that are taken back, everything goes on as if they had never been read."""
    n, back = trial.n, trial.operator.rewind
    for cut in (x for x in trial.cuts if x < n):
        for draft in sorted({1, n - cut}):
            _, kept = trial.operator(*trial.between(0, cut), state=None)
            wanted = trial.output(trial.between(cut, None), state=kept)
            _, kept = trial.operator(*trial.between(0, cut), state=None)
            drafted = [x[:, :, ::-1][:, :, :draft] for x in trial.arrays]
            _, strayed = trial.operator(*drafted, state=kept)
            state = kept if back is None else back(strayed, draft)
            out = trial.output(trial.between(cut, None), state=state)
            wrong = trial.differ(out, wanted, exact=True)
            if wrong:
                way = "state" if back is None else f"operator.rewind(strayed, {draft})"
                return Violation(
                    f"after reading {draft} tokens too many at {cut} and going back: {wrong}",
                    (
                        f"x, y = ([a[:, :, i] for a in ({trial.given})] for i in "
                        f"(slice({cut}), slice({cut}, None)))",
                        "wanted, _ = operator(*y, state=operator(*x, state=None)[1])",
                        "_, state = operator(*x, state=None)",
                        f"_, strayed = operator(*(a[:, :, ::-1][:, :, :{draft}] for a in "
                        f"({trial.given})), state=state)",
                        f"o, _ = operator(*y, state={way})",
                        "assert conformance.close(o, wanted)",
                    ),
                )
    return None


def _half(trial: Trial) -> Violation | None:
    """In half precision outputs differ from the float64 loop by about one rounding of the type."""
    kind = kind_named(trial.operator.kind)
    for dtype in trial.operator.halves:
        arrays = [representable(x, dtype) for x in trial.arrays]
        wanted = kind.definition(arrays)
        o = trial.output(arrays, dtype=dtype).astype(np.float64)
        error = np.sqrt(np.square(o - wanted).mean() / np.square(wanted).mean())
        # Inputs and outputs are rounded once; twice the spacing leaves room for inner roundings.
        if not error <= 2 * HALVES[dtype]:
            return Violation(
                f"in {dtype} the relative error is {error:.2g}, over twice the spacing "
                f"{HALVES[dtype]:.2g}",
                (
                    f"x = [conformance.representable(a, {dtype!r}) for a in ({trial.given})]",
                    f"wanted = conformance.KINDS[{kind.name!r}].definition(x)",
                    f"o, _ = operator(*x, dtype={dtype!r})",
                    "error = np.sqrt(np.square(o - wanted).mean() / np.square(wanted).mean())",
                    "print(error)",
                    f"assert error <= 2 * {HALVES[dtype]}",
                ),
            )
    return None


def representable(x: Array, dtype: str) -> Array:
    """The nearest numbers that a type of 16 bits has, as float32.

    >>> representable(np.float32([1.001]), "bfloat16").tolist()
    [1.0]
    """
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).reshape(x.shape)


def gradient(kind: str, arrays: list[Array], cotangent: Array) -> list[Array]:
    """The gradients of (output · cotangent).sum() in float64, one number at a time.

    >>> q, k, v = (np.ones((1, 1, 2, 1)) for _ in range(3))
    >>> gradient("linear_attention", [q, k, v], np.ones((1, 1, 2, 1)))[2].ravel().tolist()
    [1.5, 0.5]
    """
    loop, wide = kind_named(kind).loop, [x.astype(np.float64) for x in arrays]
    found = []
    for number, x in enumerate(wide):
        slopes = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            one = np.zeros(x.shape)
            one[place] = 1
            ways = [one if i == number else None for i in range(len(wide))]
            slopes[place] = (derivative(loop, wide, ways) * cotangent).sum()
        found.append(slopes)
    return found


def _same(trial: Trial, a: str, b: str) -> str:
    equal = f"np.array_equal({a}, {b})"
    return equal if trial.operator.exact else f"conformance.close({a}, {b})"


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) < 7 else f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]}"


CHECKS = {
    check.name: check
    for check in (
        Check("equals its definition in float64", _definition),
        Check("past keeps its bits", _past),
        Check("padding changes nothing", _padding, frozenset({"mask"})),
        Check("packed = separate", _packed, frozenset({"segment_ids"})),
        Check("prefill = decode at any split", _split, frozenset({"state"})),
        Check("batch of one = batch of many", _batch),
        Check("NaN stays where it depends", _nan, implied=False),
        Check("masked rows", _masked_rows, frozenset({"mask"}), implied=False),
        Check("gradient against float64", _gradient, frozenset({"gradient"})),
        Check("state saves and loads", _file, frozenset({"state", "file"})),
        Check("rollback", _rollback, frozenset({"state"}), implied=False),
        Check("half precision within its error", _half, frozenset({"dtype"})),
    )
}
