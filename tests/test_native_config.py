"""The compiled engine's settings, and what works without it."""

import os

import numpy as np
import pytest
from native_cases import ISAS, python

import kerneltrick as kt
from kerneltrick.engines import core

pytestmark = pytest.mark.usefixtures("two_threads")


def test_an_unknown_instruction_set_is_refused_with_those_there_are(monkeypatch):
    x = np.ones((5, 4))
    for wrong in ("avx1024", "AVX2", " "):
        monkeypatch.setenv("KERNELTRICK_ISA", wrong)
        for call in (
            lambda: kt.linear_attention(x, x, x),
            lambda: kt.Decoder("elu", shape=(1,), d=4),
            kt.show_config,
        ):
            with pytest.raises(ValueError, match=rf"KERNELTRICK_ISA is '{wrong}'.*baseline"):
                call()
    monkeypatch.setenv("KERNELTRICK_ISA", "")
    assert (kt.linear_attention(x, x, x) == 1).all()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, 2**31, 10**30])
def test_wrong_thread_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="set_num_threads needs a whole number from 1"):
        kt.set_num_threads(wrong)
    assert core().get_threads() == 2


def test_show_config_says_what_runs(capsys, isa):
    kt.set_num_threads(np.int64(3))
    assert kt.show_config() is None
    assert capsys.readouterr().out == (
        f"compiled core: yes\ninstruction set: {isa} of {', '.join(ISAS)}\nthreads: 3\n"
    )
    assert kt.show_config(mode="dicts") == {
        "compiled": True, "instruction_set": isa, "instruction_sets": ISAS, "threads": 3,
    }  # fmt: skip
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match='mode must be "stdout" or "dicts"'):
        kt.show_config("json")


def test_importing_the_package_does_not_load_the_core():
    code = "import sys, kerneltrick; print('kerneltrick._core' in sys.modules)"
    assert python(code) == "False"


def test_without_the_core_everything_else_works():
    code = """
        import sys
        sys.modules["kerneltrick._core"] = None
        import numpy as np, kerneltrick as kt
        from kerneltrick import engines

        used = []
        for name in ("chunked", "native"):
            run = engines.ENGINES[name]
            engines.ENGINES[name] = lambda *a, n=name, run=run: used.append(n) or run(*a)
        q, k, v = np.random.default_rng(0).standard_normal((3, 2, 50, 4))
        out = kt.linear_attention(q, k, v, causal=True)
        assert used == ["chunked"], used
        try:
            kt.linear_attention(q, k, v, engine="native")
        except RuntimeError as error:
            assert "compiled core is not installed" in str(error), error
            assert "show_config" in str(error), error
        else:
            raise AssertionError("no error")
        kt.set_num_threads(3)
        kt.show_config()
        found = kt.show_config(mode="dicts")
        assert found == {
            "compiled": False, "instruction_set": None, "instruction_sets": [], "threads": 1,
        }, found
        for text in ("elu", "favor:features=8"):
            decoder = kt.Decoder(text, shape=(2,), d=4, dtype="float64")
            whole = kt.linear_attention(q, k, v, text, causal=True)
            for t in range(50):
                step = decoder.step(q[:, t], k[:, t], v[:, t])
                np.testing.assert_allclose(step, whole[:, t], rtol=1e-9)
        np.save(sys.argv[1], out)
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.npy")
        said = python(code, path)
        without = np.load(path)
    assert said.startswith("compiled core: none")
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 50, 4))
    with_core = kt.linear_attention(q, k, v, causal=True, engine="native")
    np.testing.assert_allclose(without, with_core, rtol=1e-12)
