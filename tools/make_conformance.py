"""Write the table of docs/howto/conformance.md: every operator that is installed here.

    python tools/make_conformance.py

The same results are printed by `kerneltrick conform --peers`.
"""

from __future__ import annotations

import platform
import re
import sys

from generated import ROOT

from kerneltrick import conformance
from kerneltrick._files import write

PAGE = ROOT / "docs" / "howto" / "conformance.md"
START, END = "<!-- conformance:begin -->", "<!-- conformance:end -->"


def table() -> str:
    rows, versions, broken, missing = [], {}, [], []
    for known, found in conformance.survey(conformance.known(peers=True)):
        print(known.name, file=sys.stderr, flush=True)
        if found is None:
            missing.append(f"- {known.name} is not installed: `{known.install}`")
            continue
        versions[known.package] = known.version
        rows.append(f"| {known.name} | {' | '.join(found.cells())} |")
        broken += [
            result for result in found.results if result.reproducer and result.holds is False
        ]
    names = [*conformance.CHECKS]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"Versions: {shown}; Python {platform.python_version()}.",
        "",
        f"| operator | {' | '.join(str(i + 1) for i in range(len(names)))} |",
        f"|---|{':-:|' * len(names)}",
        *rows,
        "",
        *missing,
        *([""] if missing else []),
        "### What does not hold, and a program that shows it",
        "",
    ]
    for result in broken:
        lines += [
            f"**{result.operator}: {result.check}** ({result.status}). {_sentence(result.detail)}",
            "",
            "```text",
            result.reproducer.rstrip(),
            "```",
            "",
        ]
    return "\n".join(lines).rstrip()


def _sentence(detail: str) -> str:
    text = detail.removeprefix("does not hold: ")
    return f"{text[0].upper()}{text[1:]}."


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(START)}.*{re.escape(END)}", re.S)
    if not pattern.search(page):
        raise SystemExit(f"{PAGE} has no {START} … {END}")
    made = f"{START}\n{table()}\n{END}"
    write(PAGE, pattern.sub(lambda _: made, page))


if __name__ == "__main__":
    main()
