"""Right answers to the labs pass, and wrong ones get the hint that names the mistake."""

import ast

import pytest
from answers import LABS, ROOT, intended, right_answers, skeleton, wrong_answers
from grading import check, only

from kerneltrick.labs import grader
from kerneltrick.labs.grader import _compare
from kerneltrick.labs.grader._hints import of_mistake

WRONG = [(number, name) for number, lab in LABS.items() for name in wrong_answers(lab)]
# `make test` runs the first for each function, `make test-all` runs all.
FIRSTS = {(x, intended(LABS[x], name)[0]): (x, name) for x, name in reversed(WRONG)}.values()
WRONG_CASES = [
    pytest.param(number, name, marks=() if (number, name) in FIRSTS else pytest.mark.slow)
    for number, name in WRONG
]
OTHERS = [(number, name) for number, lab in LABS.items() for name in right_answers(lab)]


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
    @pytest.mark.parametrize(("number", "name"), OTHERS)
    def test_right_answers_pass(self, number, name, server):
        lab = LABS[number]
        found, report = check(right_answers(lab)[name], server, lab)
        assert report.right, [(f.name, f.hint) for f in found.values() if not f.right]
        assert report.score == 1

    @pytest.mark.parametrize(("number", "name"), WRONG_CASES)
    def test_wrong_answers_are_failed_with_the_intended_hint(self, number, name, server):
        lab = LABS[number]
        source = wrong_answers(lab)[name]
        function, hint = intended(lab, name)
        found, report = check(source, server, only(lab, {function, *reached(source, function)}))
        assert not found[function].right
        assert hint in " ".join(found[function].hint.split())
        assert report.score < 1
        own = (ROOT / "tests" / "answers" / f"lab{number}" / f"{name}.py").read_text("utf-8")
        defined = {x.name for x in ast.parse(own).body if isinstance(x, ast.FunctionDef)}
        assert defined & {e.name for e in lab.exercises} <= found.keys()
        for other in {f.name for f in found.values() if not f.right} - {function}:
            assert "which is not right yet" in found[other].hint

    def test_there_are_enough_of_them(self):
        assert len(WRONG) >= 40
        for number in LABS:
            assert sum(lab == number for lab, _ in WRONG) >= 6
            assert sum(lab == number for lab, _ in OTHERS) >= 2

    @pytest.mark.parametrize("number", LABS)
    def test_bare_skeleton_gets_nothing(self, number, server):
        found, report = check(skeleton(LABS[number]), server, LABS[number])
        assert report.score == 0
        assert {f.hint for f in found.values()} == {"not written yet"}

    @pytest.mark.parametrize("number", LABS)
    def test_mistakes_differ_from_the_right_answer(self, number):
        lab = LABS[number]
        for exercise in lab.exercises:
            assert exercise.cases
            right = grader.Mistake("", getattr(lab.reference, exercise.name))
            answers = [of_mistake(right, case) for case in exercise.cases]
            for mistake in exercise.mistakes:
                differs = runs = False
                for case, answer in zip(exercise.cases, answers, strict=True):
                    wrong = of_mistake(mistake, case)
                    differs = differs or not _same(exercise, case, answer, wrong)
                    runs = runs or not isinstance(wrong, Exception)
                    if differs and runs:
                        break
                assert differs, (exercise.name, mistake.hint)
                assert runs, (exercise.name, mistake.hint, wrong)


def _same(exercise, case, right, wrong):
    """Tell whether a mistake gives the right answer to a case."""
    if isinstance(right, Exception) or isinstance(wrong, Exception):
        return isinstance(right, Exception) and isinstance(wrong, Exception)
    if exercise.judge is not None:
        try:
            return exercise.judge(case, wrong) is None
        except Exception:
            return False
    return _compare.equal(wrong, right, exercise.tolerance)
