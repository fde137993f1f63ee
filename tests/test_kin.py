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
    """Maps and uniform weights on two heads of the sample and on small synthetic data."""
    few = make_kin.analysis.sample().select(layers=[0], heads=[0, 1])
    little = dict.fromkeys(make_kin.SYNTHETIC, "gaussian:n=16,d=32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_kin.analysis, "sample", lambda: few)
        patch.setattr(make_kin, "SYNTHETIC", little)
        return make_kin.measure(("relu", "hedgehog", "elu@window=16,sinks=1"))


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
    names = [row.name for row in rows]
    assert names == ["relu", "hedgehog", "elu@window=16,sinks=1", "*uniform weights*"]
    assert math.isnan(rows[-1].cost)
    assert rows[0].cost == pytest.approx(1)
    assert rows[1].cost == pytest.approx(2)
    assert 2 < rows[2].cost < 3  # near pairs on both sides, and the sums of two sweeps


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
