"""Write docs/wrong_claims.md from the table of claims, with the verdict on each claim.

python tools/make_claims.py           write the page
python tools/make_claims.py --check   exit 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable

from generated import ROOT, update

from kerneltrick import proofs

PAGE = "docs/wrong_claims.md"
Decide = Callable[[str, str], proofs.Verdict]

INTRODUCTION = """\
# Wrong claims, refuted

These statements about attention and kernels were found in teaching material. Each one is refuted
here, and followed by the truth. Below every command is what it prints. The commands need the extra
`proofs` (`pip install 'kerneltrick[proofs]'`). `make claims` writes this page from
`src/kerneltrick/proofs/_claims.py`, and a test checks that it is up to date.

A claim is written in a small language and never run as code: `q·k` is the dot product, `x[i]` is a
coordinate, and `[1, √2*x, x[i]*x[j] for i<=j]` is a feature map. `kerneltrick prove --help` shows
an example of every kind. `prove` exits with 0 (true), 1 (false), 2 (undecided), 3 (error).
"""


def page(decide: Decide) -> str:
    """The whole page, with verdicts from `decide(kind, claim)`."""
    parts = [INTRODUCTION]
    for statement in proofs.STATEMENTS:
        parts.append(f"## {statement.number}. {statement.statement}\n")
        parts.append(textwrap.fill(f"**Wrong.** {statement.truth}", 100) + "\n")
        blocks = [_block(claim, decide) for claim in statement.claims]
        parts.append("```text\n" + "\n\n".join(blocks) + "\n```\n")
    parts.append("## Matters of history and arithmetic\n")
    parts.append("A program cannot decide these claims.\n")
    for number, (statement, truth) in proofs.PROSE.items():
        parts.append(textwrap.fill(f"**{number}. {statement}** {truth}", 100) + "\n")
    parts.append("## More claims, right and wrong\n")
    rows = [("Kind", "Claim", "Verdict", "Reason"), ("---",) * 4]
    for claim in proofs.FURTHER:
        verdict = decide(claim.kind, claim.text)
        reason = "; ".join((verdict.reason, *verdict.details[:1]))
        text = f"`{claim.text}`"
        rows.append((claim.kind, text, verdict.status, reason))
    parts.append("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows) + "\n")
    return "\n".join(parts)


def _block(claim: proofs.Claim, decide: Decide) -> str:
    return f'$ kerneltrick prove {claim.kind} "{claim.text}"\n{decide(claim.kind, claim.text)}'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the page of wrong claims.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    arguments = parser.parse_args(argv)
    wanted = page(lambda kind, text: proofs.prove(kind, text, timeout=None))
    return update({ROOT / PAGE: wanted}, arguments.check, "claims")


if __name__ == "__main__":
    raise SystemExit(main())
