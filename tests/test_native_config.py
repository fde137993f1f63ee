"""The compiled engine's settings, and what works without it."""

import os
from pathlib import Path

import numpy as np
import pytest
from native_cases import ISAS, python

import kerneltrick as kt
from kerneltrick.engines import _core_call, core
from kerneltrick.engines._core_call import layout

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
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "compiled core: yes",
        f"instruction set: {isa} of {', '.join(ISAS)}",
        "threads: 3",
    ]
    found = kt.show_config(mode="dicts")
    assert lines[3].startswith("compiled core for JAX arrays on the CPU: ")
    assert lines[3].endswith("by XLA" if found["jax"] == "core" else found["jax"])
    del found["jax"]
    assert found == {
        "compiled": True,
        "instruction_set": isa,
        "instruction_sets": ISAS,
        "threads": 3,
    }
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match='mode must be "stdout" or "dicts"'):
        kt.show_config("json")


def test_importing_the_package_does_not_load_the_core():
    code = "import sys, kerneltrick; print('kerneltrick._core' in sys.modules)"
    assert python(code) == "False"


def test_without_the_core_everything_else_works():
    code = """
        import dataclasses, sys
        sys.modules["kerneltrick._core"] = None
        import numpy as np, kerneltrick as kt
        from kerneltrick import engines

        used = []
        for name in ("chunked", "native"):
            engine = engines.ENGINES["attention"][name]
            run = lambda *a, n=name, run=engine.run: used.append(n) or run(*a)
            engines.ENGINES["attention"][name] = dataclasses.replace(engine, run=run)
        q, k, v = np.random.default_rng(0).standard_normal((3, 2, 50, 4))
        out = kt.linear_attention(q, k, v, causal=True)
        assert used == ["chunked"], used
        try:
            kt.linear_attention(q, k, v, engine="native")
        except RuntimeError as error:
            assert "no compiled core: no compiler worked" in str(error), error
        else:
            raise AssertionError("no error")
        kt.set_num_threads(3)
        kt.show_config()
        found = kt.show_config(mode="dicts")
        assert found.pop("jax").startswith("there is no compiled core")
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


def test_a_core_is_known_by_the_checksum_of_the_list_of_fields():
    assert _core_call.interface() == core().INTERFACE


CALLS = Path(_core_call.__file__).with_name("calls")
LIST = (CALLS / "attention.def").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KT_FIELD(int64_t, window, 0)", "KT_FIELD(int64_t, window, 0)\nKT_FIELD(double, heat, 1)"),
        ("KT_FIELD(View, k, {})", "KT_FIELD(View, keys_of, {})"),
        ("KT_FIELD(double, near_scale, 1)", "KT_FIELD(int64_t, near_scale, 1)"),
        ("KT_FEATURE(double, root_scale, 1)", "KT_FEATURE(double, root_scale, 2)"),
        ("KT_MAP(relu)\nKT_MAP(relu2)", "KT_MAP(relu2)\nKT_MAP(relu)"),
        ("KT_GRADIENT(double*, d_bias, nullptr)", ""),
    ],
)
def test_every_change_of_a_field_changes_the_checksum(old, new):
    assert old in LIST
    assert _core_call.read_layout(LIST.replace(old, new)).words != layout().words
    assert _core_call.read_layout(LIST + "\n// a remark\n").words == layout().words


def test_every_list_is_an_operator():
    assert {path.stem for path in CALLS.glob("*.def")} == set(_core_call.OPERATORS)


@pytest.mark.parametrize("operator", _core_call.OPERATORS)
def test_the_core_and_python_agree_on_the_fields(operator):
    made = layout(operator)
    defaults = getattr(core(), f"{operator}_defaults")()
    assert 8 * len(defaults) == made.backward.size
    assert made.backward.unpack(made.backward.pack(*defaults)) == tuple(defaults)


def test_fields_have_their_defaults():
    made, defaults = layout(), core().attention_defaults()
    assert defaults[made.slots["causal"]] == 1
    assert defaults[made.slots["root_scale"]] == 1.0
    assert defaults[made.slots["weight_heads"]] == 1


@pytest.mark.parametrize("operator", _core_call.OPERATORS)
def test_a_call_of_another_size_is_refused(operator):
    call = _core_call.CoreCall(operator=operator).packed()
    for wrong in (call[:-8], call + bytes(8), b""):
        with pytest.raises(RuntimeError, match="a call of another size"):
            getattr(core(), f"{operator}_forward")(wrong)


@pytest.mark.parametrize("other", ["0x12345678", "None"])
def test_a_core_of_another_interface_is_never_called(other):
    code = f"""
        import sys, types, warnings
        class Old(types.ModuleType):
            __file__ = "old.so"
            def __getattr__(self, name):
                if name == "INTERFACE" and {other} is not None:
                    return {other}
                raise AttributeError(name)
        sys.modules["kerneltrick._core"] = Old("kerneltrick._core")
        import numpy as np, kerneltrick as kt
        x = np.ones((5, 4))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                assert (kt.linear_attention(x, x, x) == 1).all()
                assert (kt.Decoder(shape=(5,), d=4, dtype="float64").step(x, x, x) == 1).all()
        assert len(said) == 1, said
        print(said[0].category.__name__, said[0].message)
        kt.show_config()
        try:
            kt.linear_attention(x, x, x, engine="native")
        except RuntimeError as error:
            print(error)
    """
    lines = python(code).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("RuntimeWarning the compiled core is not used: old.so")
    assert lines[1].startswith("compiled core: none (old.so")
    assert lines[1].endswith("is chunked")
    assert lines[2].startswith("there is no compiled core: old.so")
    for line in lines:
        assert f"{_core_call.interface():#010x}" in line
        assert "make native" in line
        assert ("none" if other == "None" else other) in line
