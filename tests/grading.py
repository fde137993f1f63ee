"""Helpers that grade a right solution with a change, and return what the grader says."""

import textwrap
from dataclasses import replace

from answers import LABS, right_answers

from kerneltrick.labs import grader

LAB = LABS["02"]
QUICK = replace(LAB, exercises=tuple(replace(e, growth=None) for e in LAB.exercises))
"""The lab without measuring how its costs grow, which takes most of the time."""
RIGHT = right_answers(LAB)["right_numpy"]


def check(source, server, lab=LAB):
    """{function: result} of a source text that follows a right solution, and the report."""
    report = grader.grade(lab, source.encode(), server=server)
    return {f.name: f for f in report.functions}, report


def changed(text, server, lab=QUICK):
    """Grade a right solution followed by `text`, and return the results."""
    return check(RIGHT + "\n\n" + textwrap.dedent(text), server, lab)


def only(lab, names):
    """The lab with these exercises alone: all others are those of the model, graded elsewhere."""
    return replace(lab, exercises=tuple(e for e in lab.exercises if e.name in names))


def only_wrong(found, name):
    """Return the hint of the only function that is wrong."""
    assert not found[name].right
    assert sum(f.right for f in found.values()) == len(found) - 1
    return found[name].hint
