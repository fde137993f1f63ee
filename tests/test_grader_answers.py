"""Right answers to the labs pass, and wrong ones get the hint that names the mistake."""

import ast
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from answers import LABS, right_answers, skeleton, wrong_answers, wrong_file
from grading import check, only, small

from kerneltrick.labs import grader, kernel_trick
from kerneltrick.labs.grader import _compare
from kerneltrick.labs.grader._hints import Outcome, answer_of, hint, of_mistake
from kerneltrick.labs.grader._mistakes import Mistake, read_mistakes

each_lab = pytest.mark.parametrize("number", LABS)


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


def complaint(lab, wrong):
    """What is not as intended in the grading of a wrong answer, or None."""
    source = wrong_file(lab, wrong)
    found, report = check(source, lab=only(lab, {wrong.function, *reached(source, wrong.function)}))
    own = found.pop(wrong.function)
    hint = " ".join((own.hint or "").split())
    if own.right or report.score == 1 or wrong.hint not in hint:
        return f"{hint!r} where {wrong.hint!r} should be said"
    others = (f for f in found.values() if not f.right)
    return next((f.hint for f in others if "which is not right yet" not in f.hint), None)


def few(lab):
    """The wrong answers in files, and the first of the table for each function."""
    answers = wrong_answers(lab)
    firsts = {wrong.function: name for name, wrong in reversed(answers.items())}
    return {x: w for x, w in answers.items() if x.startswith("wrong_") or x in firsts.values()}


def others(lab):
    return {name: wrong for name, wrong in wrong_answers(lab).items() if name not in few(lab)}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Answers may draw pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")


@each_lab
class TestAnswers:
    def test_right_answers_pass(self, number):
        lab = small(LABS[number])
        assert len(right_answers(lab)) >= 2
        for name, source in right_answers(lab).items():
            found, report = check(source, lab=lab)
            assert report.right, (name, [(f.name, f.hint) for f in found.values() if not f.right])
            assert report.score == 1

    @pytest.mark.parametrize("some", [few, pytest.param(others, marks=pytest.mark.slow)])
    def test_wrong_answers_are_failed_with_the_intended_hint(self, some, number):
        lab = small(LABS[number])
        complaints = {name: complaint(lab, wrong) for name, wrong in some(lab).items()}
        assert {name: said for name, said in complaints.items() if said} == {}

    def test_there_are_enough_wrong_answers(self, number):
        assert len(wrong_answers(LABS[number])) >= 30

    def test_bare_skeleton_gets_nothing(self, number):
        found, report = check(skeleton(LABS[number]), lab=LABS[number])
        assert report.score == 0
        assert {f.hint for f in found.values()} == {"not written yet"}


@each_lab
class TestTables:
    def test_every_mistake_is_told_from_all_others_by_the_cases(self, number):
        lab = LABS[number]
        for exercise in lab.exercises:
            right = [answer_of(getattr(lab.reference, exercise.name), x) for x in exercise.cases]
            for mistake in exercise.mistakes:
                wrong = [of_mistake(mistake, case) for case in exercise.cases]
                assert not all(isinstance(x, Exception) for x in wrong), mistake.hint
                triples = zip(exercise.cases, wrong, right, strict=True)
                outcomes = [_outcome(exercise, *x) for x in triples]
                failed = [outcome for outcome in outcomes if not outcome.right]
                assert failed, f"right answers of {exercise.name}: {mistake.hint}"
                assert hint(exercise, outcomes, failed)[0] == mistake.hint, exercise.name

    def test_no_mistake_answers_with_a_rounding_error(self, number):
        """Another CPU rounds otherwise: its answer to such a case, a singular system, is another.

        Truth values may hang on a rounding. A case whose right answer does is left out, and so are
        edge cases, without which a usual mistake is known.
        """
        for exercise in LABS[number].exercises:
            right = getattr(LABS[number].reference, exercise.name)
            for case in (case for case in exercise.cases if not case.edge):
                rounded = replace(case, arguments=_rounded(case.arguments))
                if _same_numbers(exercise, answer_of(right, case), answer_of(right, rounded)):
                    for mistake in exercise.mistakes:
                        answers = of_mistake(mistake, case), answer_of(mistake.answer, rounded)
                        assert _same_numbers(exercise, *answers), (case.about, mistake.hint)

    def test_the_table_names_exercises_alone(self, number):
        table = resources.files(grader).joinpath(f"lab{number}.txt").read_text(encoding="utf-8")
        found = read_mistakes(table, LABS[number].reference)
        assert found
        assert found.keys() <= {exercise.name for exercise in LABS[number].exercises}


def test_a_replacement_that_does_not_match_is_named():
    for old in ("x > 1", "x", ""):
        mistake = Mistake("the branches are swapped", kernel_trick.elu_feature_map, (f"{old} → y",))
        said = f"'the branches are swapped' of elu_feature_map replaces {old!r}, which must occur"
        with pytest.raises(ValueError, match=said):
            _ = mistake.source


def test_a_table_is_replacements_bodies_and_families():
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
