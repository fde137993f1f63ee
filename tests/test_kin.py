"""The tool behind the pages "modern kin" and "choose a map": its table, its pictures."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "tools")
    make_kin = importlib.import_module("make_kin")


@pytest.fixture(scope="module")
def rows():
    """Two maps and uniform weights, on the sample's heads and on made-up data."""
    return make_kin.measure(("relu", "hedgehog"))


def test_table_of_the_page_has_the_measured_rows(rows):
    page = make_kin.PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in make_kin.table(rows).splitlines() if line not in page] == []


@pytest.mark.slow
def test_table_is_up_to_date():
    assert make_kin.main(["--check"]) == 0


def test_check_notices_a_stale_table(rows, monkeypatch, tmp_path, capsys):
    page = tmp_path / "choose_a_map.md"
    page.write_text(f"Before\n{make_kin.BEGIN}\nold\n{make_kin.END}\nAfter\n", encoding="utf-8")
    monkeypatch.setattr(make_kin, "ROOT", tmp_path)
    monkeypatch.setattr(make_kin, "PAGE", page)
    monkeypatch.setattr(make_kin, "measure", lambda: rows)
    assert make_kin.main(["--check"]) == 1
    assert "choose_a_map.md" in capsys.readouterr().err
    assert "old" in page.read_text(encoding="utf-8")
    assert make_kin.main(["--images", str(tmp_path)]) == 0
    assert make_kin.main(["--check"]) == 0
    written = page.read_text(encoding="utf-8")
    assert written.startswith("Before\n")
    assert written.endswith("After\n")
    for name in ("kin.png", "choose.png"):
        assert 10_000 < (tmp_path / name).stat().st_size < 150_000


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="choose:begin"):
        make_kin.page_with("no place", "table", make_kin.BEGIN, make_kin.END)


def test_uniform_weights_stand_last_and_cost_nothing(rows):
    assert [row.name for row in rows] == ["relu", "hedgehog", "*uniform weights*"]
    assert math.isnan(rows[-1].cost)
    assert rows[0].cost == pytest.approx(1)
    assert rows[1].cost == pytest.approx(2)


def test_weights_in_the_picture_are_causal_and_those_of_their_formulas():
    found = make_kin.weights()
    assert len(found) == 8
    assert all(np.allclose(np.triu(weights, 1), 0) for weights in found.values())
    for name in ("softmax", "ELU + 1", "RWKV-4, a channel"):
        assert np.allclose(found[name].sum(axis=1), 1)
        assert np.min(found[name]) >= 0
    retnet = found["RetNet, γ = 0.9"]
    q, k = np.random.default_rng(3).standard_normal((2, make_kin.N, make_kin.D))
    i, j = np.indices(retnet.shape)
    assert np.allclose(retnet, np.tril(q @ k.T * 0.9 ** np.maximum(i - j, 0)))
