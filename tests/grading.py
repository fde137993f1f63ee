"""Grade answers in this process, and a right solution with a change: what the grader says."""

import sys
import textwrap
from dataclasses import replace

from answers import LABS, right_answers

from kerneltrick.labs import grader, walls
from kerneltrick.labs.grader._hints import GIVEN, quietly
from kerneltrick.labs.walls import _child, _wire

LAB = LABS["02"]
QUICK = replace(LAB, exercises=tuple(replace(e, growth=None) for e in LAB.exercises))
"""The lab without measuring how its costs grow, which takes most of the time."""
RIGHT = right_answers(LAB)["right_numpy"]


class Here:
    """A grader's server without processes: it runs the code here, behind no walls.

    What travels between two processes is packed and unpacked all the same. Nothing is limited.
    """

    walls = ("network", "processes", "files")

    def __init__(self, limits=None):
        self.limits = limits or grader.Limits()

    def worker(self):
        return _Worker(self.limits)

    def cancel(self):
        pass

    def close(self):
        pass


class _Worker:
    used = 0.0

    def __init__(self, limits):
        self.packages = list(limits.packages)

    def load(self, source, filename, without=None):
        self.student = student = _child.Student(source, filename, self.packages)
        with quietly():
            student.run(without, lambda line: None)
        return walls.Loaded.read({"functions": student.functions, "problems": student.problems})

    def call(self, name, arguments=(), options=None, trace=False, most=None):
        _, given = _travel({}, arguments=arguments, options=options or {})
        with quietly():
            answer = _child.call(self.student, name, *given.values(), trace, most)
        fields, values = _travel(answer[0], value=answer[1])
        return {**fields, "line": walls.whole(fields.get("line"))}, values["value"]

    def peak(self):
        return 0

    def stop(self):
        sys.modules.pop(self.student.module.__name__, None)
        return 0


def _travel(fields, **values):
    return _wire.unpack(_wire.pack(fields, **values))


_child.GIVEN.update(GIVEN)
HERE = Here()


def check(source, server=HERE, lab=QUICK):
    """{function: result} of a source text that follows a right solution, and the report."""
    report = grader.grade(lab, source.encode(), server=server)
    return {f.name: f for f in report.functions}, report


def changed(text, server=HERE, lab=QUICK):
    """Grade a right solution followed by `text`, and return the results."""
    return check(RIGHT + "\n\n" + textwrap.dedent(text), server, lab)


def small(lab):
    """The lab with peak memory measured at a quarter of the sizes."""
    exercises = (
        replace(e, growth=replace(e.growth, memory=(250, 1000))) if e.growth else e
        for e in lab.exercises
    )
    return replace(lab, exercises=tuple(exercises))


def only(lab, names):
    """The lab with these exercises alone: all others are those of the model, graded elsewhere."""
    return replace(lab, exercises=tuple(e for e in lab.exercises if e.name in names))


def only_wrong(found, name):
    """Return the hint of the only function that is wrong."""
    assert not found[name].right
    assert sum(f.right for f in found.values()) == len(found) - 1
    return found[name].hint
