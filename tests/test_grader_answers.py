"""Right answers to the labs pass, and wrong ones get the hint that names the mistake."""

import ast
from dataclasses import replace

import numpy as np
import pytest
from answers import LABS, right_answers, skeleton, wrong_answers, wrong_file
from grading import check, only

from kerneltrick.labs import kernel_trick
from kerneltrick.labs.grader import _compare
from kerneltrick.labs.grader._hints import Outcome, answer_of, hint, of_mistake
from kerneltrick.labs.grader._mistakes import Mistake, read_mistakes

WRONG = {(x, name): wrong for x, lab in LABS.items() for name, wrong in wrong_answers(lab).items()}
# `make test` runs the first for each function, `make test-all` runs all.
FIRSTS = {(key[0], wrong.function): key for key, wrong in reversed(WRONG.items())}.values()
WRONG_CASES = [pytest.param(*x, marks=() if x in FIRSTS else pytest.mark.slow) for x in WRONG]
RIGHT = [(number, name) for number, lab in LABS.items() for name in right_answers(lab)]
EXERCISES = [(number, e.name) for number, lab in LABS.items() for e in lab.exercises]


def reached(source, name):
    """Return the functions of a source that use a function, directly or indirectly."""
    uses = {
        node.name: {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    found, waiting = set(), [name]
    while waiting:
        used = waiting.pop()
        new = {caller for caller, names in uses.items() if used in names} - found
        found |= new
        waiting += new
    return found


class TestAnswers:
    @pytest.mark.parametrize(("number", "name"), RIGHT)
    def test_right_answers_pass(self, number, name, server):
        lab = LABS[number]
        found, report = check(right_answers(lab)[name], server, lab)
        assert report.right, [(f.name, f.hint) for f in found.values() if not f.right]
        assert report.score == 1

    @pytest.mark.parametrize(("number", "name"), WRONG_CASES)
    def test_wrong_answers_are_failed_with_the_intended_hint(self, number, name, server):
        lab, wrong = LABS[number], WRONG[number, name]
        source = wrong_file(lab, wrong)
        graded = only(lab, {wrong.function, *reached(source, wrong.function)})
        found, report = check(source, server, graded)
        assert not found[wrong.function].right
        assert wrong.hint in " ".join(found[wrong.function].hint.split())
        assert report.score < 1
        for other in {f.name for f in found.values() if not f.right} - {wrong.function}:
            assert "which is not right yet" in found[other].hint

    def test_there_are_enough_of_them(self):
        for number in LABS:
            assert sum(lab == number for lab, _ in WRONG) >= 30
            assert sum(lab == number for lab, _ in RIGHT) >= 2

    @pytest.mark.parametrize("number", LABS)
    def test_bare_skeleton_gets_nothing(self, number, server):
        found, report = check(skeleton(LABS[number]), server, LABS[number])
        assert report.score == 0
        assert {f.hint for f in found.values()} == {"not written yet"}


class TestTables:
    @pytest.mark.parametrize(("number", "name"), EXERCISES)
    def test_every_mistake_is_told_from_all_others_by_the_cases(self, number, name):
        lab = LABS[number]
        (exercise,) = only(lab, {name}).exercises
        right = [answer_of(getattr(lab.reference, name), case) for case in exercise.cases]
        for mistake in exercise.mistakes:
            wrong = [of_mistake(mistake, case) for case in exercise.cases]
            assert not all(isinstance(x, Exception) for x in wrong), mistake.hint
            outcomes = [
                _outcome(exercise, *x) for x in zip(exercise.cases, wrong, right, strict=True)
            ]
            failed = [outcome for outcome in outcomes if not outcome.right]
            assert failed, f"right answers: {mistake.hint}"
            assert hint(exercise, outcomes, failed)[0] == mistake.hint

    @pytest.mark.parametrize(("number", "name"), EXERCISES)
    def test_no_mistake_answers_with_a_rounding_error(self, number, name):
        """Another CPU rounds otherwise: its answer to such a case, a singular system, is another.

        Truth values may hang on a rounding. A case whose right answer does is left out, and so are
        edge cases, without which a usual mistake is known.
        """
        (exercise,) = only(LABS[number], {name}).exercises
        right = getattr(LABS[number].reference, name)
        for case in (case for case in exercise.cases if not case.edge):
            rounded = replace(case, arguments=_rounded(case.arguments))
            if _same_numbers(exercise, answer_of(right, case), answer_of(right, rounded)):
                for mistake in exercise.mistakes:
                    answers = of_mistake(mistake, case), answer_of(mistake.answer, rounded)
                    assert _same_numbers(exercise, *answers), (case.about, mistake.hint)

    def test_every_table_names_exercises_alone(self):
        for lab in LABS.values():
            assert any(exercise.mistakes for exercise in lab.exercises)
            assert {m.model.__name__ for e in lab.exercises for m in e.mistakes} <= {
                e.name for e in lab.exercises
            }

    @pytest.mark.parametrize("old", ["x > 1", "x", ""])
    def test_a_replacement_that_does_not_match_is_named(self, old):
        mistake = Mistake("the branches are swapped", kernel_trick.elu_feature_map, (f"{old} → y",))
        said = (
            f"'the branches are swapped' of elu_feature_map replaces {old!r}, which must occur once"
        )
        with pytest.raises(ValueError, match=said):
            _ = mistake.source

    def test_a_table_is_replacements_bodies_and_families(self):
        table = """
# a comment
[elu_feature_map]
the bound is BOUND
    x > 0 → x > BOUND
    for BOUND in 1 | 2
your output is
a square
    for i in range(2):
        x = x * x
    return x
[simple_feature_map]
"""
        found = read_mistakes(table, kernel_trick)
        hints = [mistake.hint for mistake in found["elu_feature_map"]]
        assert hints == ["the bound is 1", "the bound is 2", "your output is a square"]
        assert "x > 2" in found["elu_feature_map"][1].source
        assert found["elu_feature_map"][2].answer(3.0) == 81
        assert found["simple_feature_map"] == ()


def _rounded(arguments):
    """The arguments with their last digits changed; sums of whole numbers are exact anyway."""
    rng = np.random.default_rng(24)

    def changed(x):
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            return x
        digits = 1 + rng.uniform(-4, 4, x.shape) * np.finfo(x.dtype).eps
        return np.where(x == np.round(x), x, x * digits).astype(x.dtype)

    return tuple(map(changed, arguments))


def _same_numbers(exercise, found, other):
    if isinstance(found, Exception) or isinstance(other, Exception):
        return type(found) is type(other)
    if isinstance(found, dict):
        found = {key: x for key, x in found.items() if not _compare.is_truth(x)}
    if _compare.is_truth(found):
        return True
    return _compare.equal(other, found, exercise.tolerance, exercise.entrywise)


def _outcome(exercise, case, wrong, right):
    """What the grader would see of an answer."""
    if isinstance(wrong, Exception):
        expected = case.raises is not None and isinstance(wrong, case.raises)
        return Outcome(case, expected, "exception", text=str(wrong), error=type(wrong).__name__)
    if case.raises is not None:
        return Outcome(case, False, answer=wrong)
    same = _compare.equal(wrong, right, exercise.tolerance, exercise.entrywise)
    return Outcome(case, same, answer=wrong, expected=right)
