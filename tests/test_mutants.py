"""Every seeded bug of tools/mutants.py still applies to the code, and its test still exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_mutant_applies_once_and_names_a_test_that_exists(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    mutants = importlib.import_module("mutants").MUTANTS
    assert len(mutants) > 50
    sources = {m.file: (ROOT / "src/kerneltrick" / m.file).read_text("utf-8") for m in mutants}
    stale = [m.name for m in mutants if sources[m.file].count(m.old) != 1 or m.old == m.new]
    assert stale == []
    lost = []
    for mutant in mutants:
        file, *_, name = mutant.test.partition("[")[0].split("::")
        text = (ROOT / "tests" / file).read_text("utf-8")
        if not re.search(rf"def {name}\(", text):
            lost.append(mutant.test)
    assert lost == []
