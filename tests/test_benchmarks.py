"""The formulas that engines are measured against are right, and the script that measures runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kerneltrick as kt

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("n", [1, 64, 150])
def test_formulas_by_hand_equal_the_engines(n):
    import bench

    for case, function in bench.runs().items():
        q, k, v = bench.inputs(n, case.library)
        if "softmax" in case.name:
            expected = kt.softmax_attention(q, k, v, causal=case.causal)
        else:
            expected = kt.linear_attention(q, k, v, "elu", causal=case.causal)
        np.testing.assert_allclose(
            function(q, k, v), expected, rtol=2e-4, atol=2e-5, err_msg=str(case)
        )


def test_only_the_text_between_the_markers_is_replaced():
    import bench

    document = f"before\n{bench.START}\nold\n{bench.END}\nafter\n"
    assert bench.insert(document, "new") == f"before\n{bench.START}\nnew\n{bench.END}\nafter\n"
    with pytest.raises(ValueError, match="no place"):
        bench.insert("no markers", "new")


def test_cases_that_would_need_too_much_memory_are_known():
    import bench

    skipped = {(c.name, n) for c in bench.CASES for n in bench.LENGTHS if c.bytes(n) >= bench.LIMIT}
    assert ("n×n formula", 16384) in skipped
    assert not any(name in (bench.OURS, "chunk formula", "softmax (SDPA)") for name, _ in skipped)


def test_a_quick_run_writes_its_tables(tmp_path):
    import bench

    path = tmp_path / "performance.md"
    path.write_text(f"title\n{bench.START}\n{bench.END}\nend\n", encoding="utf-8")
    command = [sys.executable, str(FOLDER / "bench.py"), "--quick", "--write", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = path.read_text(encoding="utf-8")
    assert text.startswith("title\n")
    assert text.endswith("end\n")
    rows = [line for line in text.splitlines() if line.startswith("| PyTorch, **kerneltrick**")]
    assert len(rows) == 4
    assert all(len(row.split("|")) == 3 + len(bench.QUICK_LENGTHS) for row in rows)
    assert rows[0].count("(×1.00)") == len(bench.QUICK_LENGTHS)
    assert "–" not in rows[0]
    assert list(tmp_path.iterdir()) == [path]
    assert str(tmp_path) not in text
