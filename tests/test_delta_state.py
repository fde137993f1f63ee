"""States and decoders of the delta rule: they stream, fork, move, are saved, and refuse others."""

import copy
import pickle

import numpy as np
import pytest
from oracle import make_decay
from test_delta_rule import agree, tokens, vectors

import kerneltrick as kt
from kerneltrick.attention import _delta_decode


def prompt(n=30, decay=1, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, k, v, beta = tokens(n, rng)
    more = vectors(rng, k)
    if decay:
        kind = "token" if decay == 1 else "feature"
        more["log_decay"] = make_decay(kind, rng, v.astype(dtype), 5)
    arrays = {"q": q, "k": k, "v": v, "beta": beta, **more}
    return {name: x.astype(dtype) for name, x in arrays.items()}


def at(arrays, t):
    """Token t of all arrays, or the tokens of a slice."""
    return {name: x[:, :, t] for name, x in arrays.items()}


class TestState:
    def test_a_state_is_a_value(self):
        arrays = prompt()
        _, state = kt.delta_rule(**arrays, return_state=True)
        before = state.S.copy()
        first = kt.delta_rule(**arrays, state=state)
        second = kt.delta_rule(**arrays, state=state)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(state.S, before)
        with pytest.raises(ValueError, match="read-only"):
            state.S[0] = 0
        mine = np.zeros((2, 4, 5, 3))
        kt.DeltaState(mine)
        mine[0] = 1  # the caller's array stays writable

    def test_it_is_copied_pickled_and_selected(self):
        _, state = kt.delta_rule(**prompt(), return_state=True)
        for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
            np.testing.assert_array_equal(other.S, state.S)
            assert (other.start, other.stop) == (0, 30)
        np.testing.assert_array_equal(state.select(np.array([1, 1, 0])).S, state.S[[1, 1, 0]])
        with pytest.raises(ValueError, match="select needs a state of a batch"):
            kt.DeltaState(np.zeros((4, 5, 3))).select(np.array([0]))
        assert state.nbytes == 2 * 4 * 5 * 3 * 8

    def test_files_that_are_no_states_are_refused(self, tmp_path):
        from kerneltrick.attention import encoded

        x = np.zeros((4, 3, 2))
        _, linear = kt.linear_attention(x, x, x, causal=True, return_state=True)
        linear.save(tmp_path / "linear")
        with pytest.raises(ValueError, match=r"expected format 'kerneltrick.DeltaState/1', found"):
            kt.DeltaState.load(tmp_path / "linear")
        kt.DeltaState(x).save(tmp_path / "delta")
        with pytest.raises(ValueError, match="expected format"):
            kt.State.load(tmp_path / "delta")
        good = {
            "format": "kerneltrick.DeltaState/1", "start": "0", "stop": "3",
            "fingerprint": "the delta rule (d = 3, M = 2)",
        }  # fmt: skip
        for tensors, metadata, message in (
            ({"S": x}, {**good, "stop": "-1"}, "0 ≤ start ≤ stop"),
            ({"S": x}, {**good, "stop": " 3"}, "malformed entry"),
            ({"S": x}, {**good, "fingerprint": "elu"}, "is of 'elu'"),
            ({"S": x.astype(np.float16)}, good, "S is float16"),
            ({"S": x, "T": x}, good, "unexpected tensors"),
            ({}, good, "missing"),
        ):
            (tmp_path / "bad").write_bytes(encoded(tensors, metadata))
            with pytest.raises(ValueError, match=message):
                kt.DeltaState.load(tmp_path / "bad")


@pytest.fixture(params=["compiled", "recurrent"])
def core_or_not(request, monkeypatch):
    if request.param == "recurrent":
        monkeypatch.setattr(_delta_decode, "delta_decoder", lambda *_: None)
    elif not kt.show_config("dicts")["compiled"]:
        pytest.skip("kerneltrick was installed without its compiled core")
    return request.param


class TestDecoder:
    @pytest.mark.parametrize("normalize_qk", [False, True])
    @pytest.mark.parametrize("decay", [0, 1, 5])
    def test_steps_are_the_rule(self, decay, normalize_qk, core_or_not):
        arrays = prompt(30, decay)
        options = {"scale": 0.3, "normalize_qk": normalize_qk}
        whole, end = kt.delta_rule(**arrays, return_state=True, engine="recurrent", **options)
        _, state = kt.delta_rule(**at(arrays, slice(0, 20)), return_state=True, **options)
        decoder = kt.DeltaDecoder(
            shape=(2, 4), d=5, value_width=3, groups=2, dtype="float64", decay=decay, state=state,
            **options,
        )  # fmt: skip
        assert decoder.compiled is (core_or_not == "compiled")
        for t in range(20, 30):
            agree(decoder.step(**at(arrays, t)), whole[:, :, t])
        after = decoder.snapshot()
        agree(after.S, end.S)
        assert (after.start, after.stop, decoder.stop) == (0, 30, 30)

    @pytest.mark.parametrize("erase", [False, True])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_looking_at_the_state_changes_no_bit_of_what_follows(self, dtype, erase, core_or_not):
        rng, heads, d, M = np.random.default_rng(3), 2, 19, 150
        make = {"shape": (heads,), "d": d, "value_width": M, "decay": 1, "dtype": dtype}
        plain, watched = (kt.DeltaDecoder(**make, normalize_qk=True) for _ in range(2))
        for _ in range(5):
            q, k, x = rng.standard_normal((3, heads, d)).astype(dtype)
            v = rng.standard_normal((heads, M)).astype(dtype)
            beta, decay = rng.random((2, heads)).astype(dtype)
            token = {"beta": beta, "log_decay": -decay} | ({"erase": x} if erase else {})
            wanted = plain.step(q, k, v, **token)
            watched.snapshot()
            np.testing.assert_array_equal(watched.step(q, k, v, **token), wanted)
        np.testing.assert_array_equal(plain.snapshot().S, watched.snapshot().S)

    def test_a_refused_step_changes_nothing(self, core_or_not):
        arrays = prompt(2)
        make = {"shape": (2, 4), "d": 5, "value_width": 3, "groups": 2, "dtype": "float64"}
        decoder, other = (kt.DeltaDecoder(**make, decay=1) for _ in range(2))
        decoder.step(**at(arrays, 0)), other.step(**at(arrays, 0))
        for wrong in (0.1, np.nan, -np.inf):
            decays = np.full((2, 4), wrong)
            with pytest.raises(ValueError, match="log_decay must be finite and ≤ 0"):
                decoder.step(**at(arrays, 1) | {"log_decay": decays})
        assert decoder.stop == 1
        np.testing.assert_array_equal(decoder.step(**at(arrays, 1)), other.step(**at(arrays, 1)))

    def test_arrays_with_other_strides_give_the_same_bits(self, core_or_not):
        arrays = prompt(2)
        make = {"shape": (2, 4), "d": 5, "value_width": 3, "groups": 2, "dtype": "float64"}
        decoder, other = (kt.DeltaDecoder(**make, decay=1) for _ in range(2))
        for t in range(2):
            whole = {name: np.ascontiguousarray(x) for name, x in at(arrays, t).items()}
            apart = {name: np.repeat(x, 2, axis=-1)[..., ::2] for name, x in whole.items()}
            np.testing.assert_array_equal(decoder.step(**apart), other.step(**whole))

    def test_a_fork_goes_on_by_itself(self, core_or_not):
        arrays = prompt(4)
        one = kt.DeltaDecoder(shape=(2, 4), d=5, value_width=3, groups=2, dtype="float64", decay=1)
        one.step(**at(arrays, 0))
        other = copy.copy(one)
        first = other.step(**at(arrays, 1))
        other.step(**at(arrays, 2))
        np.testing.assert_array_equal(one.step(**at(arrays, 1)), first)
        assert (one.stop, other.stop) == (2, 3)
        with pytest.raises(TypeError, match=r"snapshot\(\).save"):
            pickle.dumps(one)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    def test_other_libraries_and_half_types(self, dtype, core_or_not):
        torch = pytest.importorskip("torch")
        arrays = {name: torch.asarray(x) for name, x in prompt(3, dtype=np.float32).items()}
        kind = getattr(torch, dtype)
        own = {
            name: x if name in ("beta", "log_decay") else x.to(kind) for name, x in arrays.items()
        }
        whole = kt.delta_rule(**own)
        decoder = kt.DeltaDecoder(shape=(2, 4), d=5, value_width=3, groups=2, dtype=kind, decay=1)
        for t in range(3):
            out = decoder.step(**at(own, t))
            assert out.dtype == kind
            torch.testing.assert_close(out, whole[:, :, t], rtol=1e-2, atol=1e-2)
        assert decoder.snapshot().S.dtype == np.float32

    def test_nan_spoils_its_column_for_good(self, core_or_not):
        arrays = prompt(4)
        decoder = kt.DeltaDecoder(
            shape=(2, 4), d=5, value_width=3, groups=2, dtype="float64", decay=1
        )
        arrays["v"][0, 1, 1, 2] = np.nan
        for t in range(4):
            marks = np.zeros((2, 4, 3), bool)
            marks[0, 1, 2] = t >= 1
            np.testing.assert_array_equal(np.isnan(decoder.step(**at(arrays, t))), marks)
        np.testing.assert_array_equal(np.isnan(decoder.snapshot().S).all(-2), marks)

    def test_wrong_tokens_and_states_are_refused(self):
        token = at(prompt(1), 0)
        make = {"shape": (2, 4), "d": 5, "value_width": 3, "groups": 2, "dtype": "float64"}
        decoder = kt.DeltaDecoder(**make, decay=1)
        for changed, error, message in (
            ({"v": np.zeros((2, 4, 4))}, ValueError, r"v \(2, 4, 3\) of float64"),
            ({"q": token["q"].astype(np.float32)}, ValueError, "float32"),
            ({"beta": np.zeros((2, 2))}, ValueError, r"beta of shape \(2, 4\)"),
            ({"log_decay": 0.1}, ValueError, "finite and ≤ 0"),
            ({"log_decay": None}, ValueError, "every step needs a log_decay"),
        ):
            with pytest.raises(error, match=message):
                decoder.step(**{**token, **changed})
        assert decoder.stop == 0
        with pytest.raises(ValueError, match=r"of the delta rule \(d = 5, M = 4\)"):
            kt.DeltaDecoder(**make, state=kt.DeltaState(np.zeros((2, 4, 5, 4))))
        x = np.zeros((4, 3, 2))
        _, linear = kt.linear_attention(x, x, x, causal=True, return_state=True)
        with pytest.raises(TypeError, match="must be a DeltaState, not State"):
            kt.DeltaDecoder(**make, state=linear)
        with pytest.raises(ValueError, match="decay to be 0, 1 or 5"):
            kt.DeltaDecoder(**make, decay=3)
        with pytest.raises(ValueError, match="multiple of groups=3"):
            kt.DeltaDecoder(shape=(2, 4), d=5, groups=3)
