"""Decide claims in a separate process, so that a time limit can be enforced."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from typing import Any

from kerneltrick.proofs._decide import KINDS, decide
from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Verdict

TIMEOUT = 30.0  # seconds
MEMORY = 4 << 30  # bytes that the other process may use


def prove(kind: str, claim: str, *, timeout: float | None = TIMEOUT) -> Verdict:
    """Decide a claim that is given as text.

    `kind` is map, identity, cost, einsum, sign, psd, moments, dimension, shapes, gradient or
    ranking. The claim is parsed by a small grammar and never run as code. It is decided in another
    process, which is stopped after `timeout` seconds; the claim is then undecided. With
    `timeout=None` it is decided in this process without a limit.

    >>> prove("identity", "1 + t + t**2/2 = ((1 + t)**2 + 1)/2", timeout=None).status
    'true'
    """
    if kind not in KINDS or timeout is None:
        return decide(kind, claim)
    if not 0 < timeout < math.inf:
        raise ValueError(
            f"timeout must be a number of seconds > 0, or None for no limit, not {timeout!r}"
        )
    command = [sys.executable, "-c", "from kerneltrick.proofs import _prove; _prove.answer()"]
    question = json.dumps({"kind": kind, "claim": claim})
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, encoding="utf-8", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return Verdict.undecided(claim, f"no decision within {timeout:g} s", basis="time limit")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Verdict.undecided(claim, f"the check failed: {last[0]}", basis="failure")
    return _read(json.loads(done.stdout))


def _read(found: dict[str, Any]) -> Verdict:
    if "verdict" in found:
        return Verdict.from_dict(found["verdict"])
    if "at" in found:
        raise ClaimError(found["text"], found["at"], found["error"])
    raise ValueError(found["error"])


def answer() -> None:
    """Run in the other process: read a question from standard input and print the answer."""
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr] # both are text files
    _limit_memory()
    question = json.load(sys.stdin)
    try:
        found: dict[str, Any] = {"verdict": decide(**question).to_dict()}
    except ClaimError as error:
        found = {"error": error.problem, "text": error.text, "at": error.at}
    except ValueError as error:
        found = {"error": str(error)}
    except (MemoryError, RecursionError) as error:
        reason = f"too large to decide ({type(error).__name__})"
        found = {"verdict": Verdict.undecided(question["claim"], reason).to_dict()}
    print(json.dumps(found, allow_nan=False))


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system supports it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
