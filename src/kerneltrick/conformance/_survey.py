"""Check all that is installed, whatever it does to the process."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from kerneltrick.conformance._checks import CHECKS
from kerneltrick.conformance._installed import KnownOperator, find
from kerneltrick.conformance._run import FAILED, Conformance, Result, check


def survey(operators: list[KnownOperator]) -> Iterator[tuple[KnownOperator, Conformance | None]]:
    """Each operator with its results; None for one that is not installed.

    Ours run here. Other packages run in a process of their own, which may die.
    """
    others = _Apart()
    try:
        for known in operators:
            if not known.installed:
                yield known, None
            elif known.package == "kerneltrick":
                yield known, check(known.operator())
            else:
                results = tuple(others.run(known, name) for name in CHECKS)
                yield known, Conformance(known.name, known.kind, results)
    finally:
        others.close()


class _Apart:
    """A process for checks, made anew when it dies."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def run(self, known: KnownOperator, name: str) -> Result:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, context)
        try:
            return self._pool.submit(_one, known.name, name).result()
        except BrokenProcessPool:
            self.close()
            message = "the process that ran it died"
            script = (
                "from kerneltrick import conformance\n"
                f"operator = conformance.find({known.name!r})\n"
                "trial = conformance.Trial.of(operator, operator.sizes)\n"
                f"conformance.CHECKS[{name!r}].find(trial)  # the process dies here\n"
            )
            return Result(known.name, known.kind, name, FAILED, False, message, script)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def _one(operator: str, name: str) -> Result:
    return check(find(operator), checks=[name])[name]
