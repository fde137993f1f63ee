"""Checks that a call depends on the values it is given alone, and changes nothing else."""

from __future__ import annotations

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._trial import Trial, Violation

REPEATS = 16


def unchanged(trial: Trial) -> Violation | None:
    """A call leaves its inputs as they are, and a state that it was given can be used again."""
    abilities, n = trial.operator.abilities, trial.n
    marks = {"mask": np.arange(n) % 3 != 1, "segment_ids": np.arange(n) // (n // 2 + 1)}
    marks = {name: x for name, x in marks.items() if name in abilities}
    arrays = [x.copy() for x in trial.arrays]
    tokens = {name: trial.every_row(x).copy() for name, x in marks.items()}
    trial.operator.on_these(*arrays, **tokens)
    before = [*trial.arrays, *map(trial.every_row, marks.values())]
    names = [*trial.names, *tokens]
    for name, x, left in zip(names, before, [*arrays, *tokens.values()], strict=True):
        if x.tobytes() != left.tobytes():
            lines = {
                "mask": f"mask = np.tile(np.arange({n}) % 3 != 1, ({trial.batch}, 1))",
                "segment_ids": f"segment_ids = np.tile(np.arange({n}) // {n // 2 + 1}, "
                f"({trial.batch}, 1))",
            }
            return Violation(
                f"a call changes {name}",
                (
                    *(lines[key] for key in marks),
                    f"before = {name}.copy()",
                    f"operator.on_these({', '.join([trial.given, *(f'{k}={k}' for k in marks)])})",
                    f"assert before.tobytes() == {name}.tobytes()",
                ),
            )
    if "state" not in abilities or trial.operator.consumes_state or not trial.cuts:
        return None
    cut = trial.cuts[0]
    _, state = trial.operator(*trial.between(0, cut), state=None)
    rest = trial.between(cut, None)
    first, second = (trial.output(rest, state=state) for _ in range(2))
    wrong = trial.differ(first, second, exact=True)
    if not wrong:
        return None
    return Violation(
        f"a call changes the state that it is given: the same call again differs: {wrong}",
        (
            f"x, y = (conformance.at([{trial.given}], i) for i in "
            f"(slice({cut}), slice({cut}, None)))",
            "_, state = operator(*x, state=None)",
            "(first, _), (second, _) = (operator(*y, state=state) for _ in range(2))",
            f"assert {trial.same('first', 'second')}",
        ),
    )


def repeated(trial: Trial) -> Violation | None:
    """The same call has the same bits, however often it is made."""
    first = trial.clean
    for count in range(1, REPEATS // 4 if trial.few else REPEATS):
        wrong = trial.differ(trial.output(), first, exact=True)
        if wrong:
            return Violation(
                f"call {count + 1} of the same inputs has another result: {wrong}",
                (
                    f"outputs = [operator({trial.given})[0] for _ in range({16 * REPEATS})]",
                    f"assert all({trial.same('o', 'outputs[0]')} for o in outputs)",
                ),
            )
    return None


def layouts(trial: Trial) -> Violation | None:
    """Arrays of any strides have the outputs of their values."""
    for name, lay_out in LAYOUTS.items():
        out = trial.output([lay_out(x) for x in trial.arrays])
        wrong = trial.differ(out, trial.clean)
        if wrong:
            return Violation(
                f"inputs that are {name} in memory have other outputs: {wrong}",
                (
                    f"o, _ = operator({trial.given})",
                    f"lay_out = conformance.LAYOUTS[{name!r}]",
                    f"other, _ = operator(*(lay_out(x) for x in ({trial.given},)))",
                    "assert conformance.close(o, other)",
                ),
            )
    return None


def _tokens_first(x: Array) -> Array:
    """(batch, n, heads, d) in memory, and parameters turned."""
    a, b = (1, 2) if x.ndim > 2 else (0, -1)
    return np.ascontiguousarray(x.swapaxes(a, b)).swapaxes(a, b)


def _features_first(x: Array) -> Array:
    """The last two axes turned, as in (batch, channels, n)."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim > 1 else x


def _spaced(x: Array) -> Array:
    """Every second number of a longer array, beginning at an odd place."""
    memory = np.full((*x.shape[:-1], 2 * x.shape[-1] + 1), np.nan, x.dtype)
    memory[..., 1::2] = x
    return memory[..., 1::2]


LAYOUTS = {
    "tokens first": _tokens_first,
    "features first": _features_first,
    "spaced": _spaced,
}


def threads(trial: Trial) -> Violation | None:
    """The number of threads changes no bit."""
    assert trial.operator.threads is not None
    for count in (1, 2, 3):
        with trial.operator.threads(count):
            out = trial.output()
        wrong = trial.differ(out, trial.clean, exact=True)
        if wrong:
            return Violation(
                f"with {count} threads outputs differ: {wrong}",
                (
                    f"o, _ = operator({trial.given})",
                    f"with operator.threads({count}):",
                    f"    other, _ = operator({trial.given})",
                    f"assert {trial.same('o', 'other')}",
                ),
            )
    return None
