"""The delta rule: every engine agrees with a loop over tokens, in outputs, states and gradients."""

import numpy as np
import pytest
from oracle import DECAYS, delta_heads, keeps, make_decay, same_bits, turns

import kerneltrick as kt

ENGINES = ["recurrent", "chunked", "native"]
PAIRS = [("recurrent", "feature"), ("chunked", "token"), ("native", "feature")]
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 101]


def tokens(n, rng, *, lead=(2,), key_heads=2, heads=4, d=5, width=3):
    """q, k, v, β of length n, with keys of about unit length."""
    q, k = (rng.standard_normal((*lead, key_heads, n, d)) for _ in range(2))
    k /= np.sqrt(d)
    v = rng.standard_normal((*lead, heads, n, width))
    return q, k, v, rng.random((*lead, heads, n)) * 1.5


def vectors(rng, k):
    """Erase and read vectors that keep the state bounded."""
    x, e = (0.6 * rng.standard_normal(k.shape) / np.sqrt(k.shape[-1]) for _ in range(2))
    return {"erase": x, "read": e}


def decay_of(kind, rng, v, d, strength=2.0):
    return make_decay(kind, rng, v, d, strength)


def whole_decay(log_decay, v, d):
    """Any log_decay as (B, H, n, 1 or d)."""
    if log_decay is None or np.ndim(log_decay) == 4:
        return log_decay
    if np.ndim(log_decay) < 2:
        log_decay = np.broadcast_to(np.reshape(log_decay, (-1, 1)), v.shape[:-1])
    return log_decay[..., None]


def expected(q, k, v, beta, **options):
    options["log_decay"] = whole_decay(options.get("log_decay"), v, k.shape[-1])
    beta = np.broadcast_to(np.asarray(beta, float), v.shape[:-1])
    if options.get("mask") is not None:
        options["mask"] = np.broadcast_to(options["mask"], v.shape[:-1])
    return delta_heads(q, k, v, beta, **options)


def agree(got, wanted, tolerance=1e-12):
    size = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_the_loop(engine, kind):
    rng = np.random.default_rng(0)
    for n, general in turns(DECAYS.index(kind), LENGTHS, [False, True]):
        q, k, v, beta = tokens(n, rng)
        options = {"log_decay": decay_of(kind, rng, v, 5), **(vectors(rng, k) if general else {})}
        o, S = expected(q, k, v, beta, **options)
        out, state = kt.delta_rule(q, k, v, beta, engine=engine, return_state=True, **options)
        agree(out, o)
        agree(state.S, S)
        assert (state.start, state.stop) == (0, n)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_beta_of_0_1_and_2(engine, beta):
    """β = 0 writes nothing; β = 2 reflects, even where all keys are almost equal."""
    rng = np.random.default_rng(1)
    q, k, v, _ = tokens(70, rng)
    k = 1 + 0.1 * k
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    o, S = expected(q, k, v, beta)
    for given_beta in (beta, np.array(beta), np.full(v.shape[:-1], beta)):
        out, state = kt.delta_rule(q, k, v, given_beta, engine=engine, return_state=True)
        agree(out, o)
        agree(state.S, S)
    assert beta or not out.any()


@pytest.mark.parametrize("normalize_qk", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_keys_of_length_zero(engine, normalize_qk):
    rng = np.random.default_rng(3)
    q, k, v, beta = tokens(40, rng)
    k[..., 3:9, :] = 0
    q[..., 5, :] = 0

    def unit(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) if normalize_qk else x

    o, _ = expected(unit(q), unit(k), v, beta, log_decay=-0.2)
    options = {"log_decay": -0.2, "normalize_qk": normalize_qk, "engine": engine}
    agree(kt.delta_rule(q, k, v, beta, **options), o)


def test_erase_and_read_default_to_the_normalised_key():
    rng = np.random.default_rng(4)
    q, k, v, beta = tokens(20, rng)
    own = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    out = kt.delta_rule(q, k, v, beta, normalize_qk=True)
    for name in ("erase", "read"):
        agree(kt.delta_rule(q, k, v, beta, normalize_qk=True, **{name: own}), out)


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_without_heads(engine):
    rng = np.random.default_rng(5)
    q, k, v, beta = tokens(40, rng, lead=(1,), key_heads=1, heads=1)
    log_decay = -rng.random((40, 5))
    o, S = expected(q, k, v, beta, log_decay=log_decay[None, None])
    options = {"log_decay": log_decay, "return_state": True, "engine": engine}
    out, state = kt.delta_rule(q[0, 0], k[0, 0], v[0, 0], beta[0, 0], **options)
    agree(out, o[0, 0])
    agree(state.S, S[0, 0])


class TestMembers:
    """The models of the family as their papers write them."""

    def test_gdn_2(self):
        rng = np.random.default_rng(6)
        q, k, v, _ = tokens(30, rng, key_heads=2, heads=2)
        b, c = rng.random(k.shape), rng.random(v.shape)
        log_decay = -rng.random(k.shape)
        out = kt.delta_rule(q, k, c * v, read=b * k, log_decay=log_decay, scale=1)
        S = np.zeros((2, 2, 5, 3))
        for t in range(30):
            S = np.exp(log_decay[:, :, t, :, None]) * S
            answer = np.einsum("bhd,bhdm->bhm", (b * k)[:, :, t], S)
            S = S + k[:, :, t, :, None] * ((c * v)[:, :, t] - answer)[:, :, None]
            agree(out[:, :, t], np.einsum("bhd,bhdm->bhm", q[:, :, t], S))

    def test_rwkv_7_reads_before_the_decay(self):
        rng = np.random.default_rng(7)
        q, k, v, _ = tokens(30, rng, key_heads=2, heads=2)
        kappa = rng.standard_normal(k.shape)
        kappa /= np.linalg.norm(kappa, axis=-1, keepdims=True)
        a, log_decay = rng.random(k.shape), -0.6 * rng.random(k.shape)
        out = kt.delta_rule(
            q, k, v, erase=a * kappa, read=kappa / np.exp(log_decay), log_decay=log_decay, scale=1
        )
        S = np.zeros((2, 2, 5, 3))
        for t in range(30):
            answer = np.einsum("bhd,bhdm->bhm", kappa[:, :, t], S)
            S = np.exp(log_decay[:, :, t, :, None]) * S
            S = S - (a * kappa)[:, :, t, :, None] * answer[:, :, None]
            S = S + k[:, :, t, :, None] * v[:, :, t, None]
            agree(out[:, :, t], np.einsum("bhd,bhdm->bhm", q[:, :, t], S))

    def test_without_erasing_it_is_linear_attention(self):
        rng = np.random.default_rng(8)
        q, k, v, _ = tokens(50, rng, key_heads=2, heads=2)
        log_decay = -rng.random((2, 2, 50))
        out = kt.delta_rule(q, k, v, erase=np.zeros_like(k), log_decay=log_decay, scale=1)
        linear = kt.linear_attention(
            q, k, v, "identity", causal=True, normalize=False, log_decay=log_decay
        )
        agree(out, linear)


class TestPromises:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_pads_and_splits_change_nothing(self, engine):
        rng = np.random.default_rng(13)
        q, k, v, beta = tokens(70, rng)
        arrays = [q, k, v, beta, decay_of("feature", rng, v, 5)]

        def run(q, k, v, beta, log_decay, *, mask=None, state=None):
            options = {"mask": mask, "state": state, "engine": engine, "return_state": True}
            return kt.delta_rule(q, k, v, beta, log_decay=log_decay, **options)

        checks = ["padding changes nothing", "prefill = decode at any split"]
        keeps(checks, run, "delta_rule_per_feature", arrays, (1, 31, 32, 40))
        keep = rng.random(70) > 0.3
        out, state = run(*arrays, mask=keep)
        left, after = run(*(x[:, :, keep] for x in arrays))
        agree(out[:, :, keep], left)
        agree(state.S, after.S)

    @pytest.mark.parametrize(("engine", "kind"), PAIRS)
    def test_packed_texts_do_not_see_each_other(self, engine, kind):
        rng = np.random.default_rng(14)
        q, k, v, beta = tokens(80, rng)
        decay = decay_of(kind, rng, v, 5)
        lengths = (7, 30, 1, 42)
        ids = np.repeat(np.arange(4), lengths)
        first = kt.DeltaState(rng.standard_normal((2, 4, 5, 3)))
        options = {"engine": engine, "return_state": True}
        packed, last = kt.delta_rule(
            q, k, v, beta, log_decay=decay, segment_ids=ids, state=first, **options
        )
        at = 0
        for number, length in enumerate(lengths):
            here = (slice(None), slice(None), slice(at, at + length))
            alone, state = kt.delta_rule(
                *(x[here] for x in (q, k, v, beta)),
                log_decay=None if decay is None else decay[here],
                state=None if number else first,
                **options,
            )
            agree(packed[here], alone)
            at += length
        agree(last.S, state.S)


class TestNotFinite:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_nan_marks_exactly_what_depends_on_it(self, engine):
        names = ["q", "k", "v", "beta", "erase", "read"]
        for name, bad in turns(ENGINES.index(engine), names, [np.nan, np.inf]):
            self.spoil(name, bad, engine)

    def spoil(self, name, bad, engine):
        rng = np.random.default_rng(16)
        q, k, v, beta = tokens(50, rng, lead=(1,))
        arrays = {"q": q, "k": k, "v": v, "beta": beta, **vectors(rng, k)}
        options = {"segment_ids": np.arange(50) // 45, "engine": engine, "return_state": True}
        clean, _ = kt.delta_rule(**arrays, **options)
        spoilt = {key: x.copy() for key, x in arrays.items()}
        marks = np.zeros(v.shape, bool)
        if name == "v":
            spoilt["v"][0, 1, 40, 2] = bad
            marks[0, 1, 40:45, 2] = True
        elif name == "beta":
            spoilt["beta"][0, 1, 40] = bad
            marks[0, 1, 40:45] = True
        else:
            spoilt[name][0, 1, 40, 0] = bad
            marks[0, 2:4, 40 : 41 if name == "q" else 45] = True  # key head 1 serves heads 2, 3
        out, state = kt.delta_rule(**spoilt, **options)
        np.testing.assert_array_equal(np.isnan(out), marks)
        assert same_bits(out[~marks], clean[~marks])
        assert np.isfinite(state.S).all()  # of the next segment
        out, state = kt.delta_rule(
            *(spoilt[x][:, :, :45] for x in ("q", "k", "v", "beta")),
            **{x: spoilt[x][:, :, :45] for x in ("erase", "read")},
            engine=engine, return_state=True,
        )  # fmt: skip
        lost = marks[:, :, 44:45] if name != "q" else np.zeros_like(marks[:, :, :1])
        np.testing.assert_array_equal(np.isnan(state.S), np.broadcast_to(lost, state.S.shape))
        later = kt.delta_rule(q, k, v, beta, state=state, engine=engine)
        np.testing.assert_array_equal(np.isnan(later), np.broadcast_to(lost, later.shape))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_an_overflow_stays_in_its_column(self, engine):
        rng = np.random.default_rng(17)
        q, k, v, beta = (x.astype(np.float32) for x in tokens(40, rng))
        clean = kt.delta_rule(q, k, v, beta, engine=engine)
        v[..., 20, 1] = 3e38
        with np.errstate(all="ignore"):
            out = kt.delta_rule(q, 20 * k, v, beta, engine=engine)
            other = kt.delta_rule(q, 20 * k, v[..., ::2].copy(), beta, engine=engine)
        agree(out[..., ::2], other, 1e-6)
        assert not np.isfinite(out[..., 30:, 1]).all()
        assert np.isfinite(clean).all()


def test_almost_equal_keys_with_beta_2_in_float32():
    """The worst case of the triangular system. Without refinement the error is 15 to 18 times."""
    rng = np.random.default_rng(19)
    q, k, v = rng.standard_normal((3, 200, 64, 2))
    sign = np.sign(rng.standard_normal((200, 64, 1)))
    k = sign * (1 + 0.01 * k)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    arrays = [x.astype(np.float32) for x in (q, k, v, k * rng.uniform(0.8, 1.2, (200, 64, 1)))]

    def outputs(engine, dtype):
        q, k, v, erase = (x.astype(dtype) for x in arrays)
        return kt.delta_rule(q, k, v, 2.0, erase=erase, engine=engine)

    exact = outputs("recurrent", np.float64)
    loop, chunks = (
        np.abs(outputs(engine, np.float32) - exact).max((-1, -2))
        for engine in ("recurrent", "chunked")
    )
    assert np.median(chunks / loop) < 11


class TestErrors:
    def arrays(self, **changed):
        rng = np.random.default_rng(20)
        q, k, v, beta = tokens(6, rng)
        return {"q": q, "k": k, "v": v, "beta": beta, **changed}

    @pytest.mark.parametrize(
        ("changed", "error", "message"),
        [
            ({"beta": np.ones((2, 2, 6))}, ValueError, r"\(2, 4, 6\), not an array \(2, 2, 6\)"),
            ({"beta": np.ones((2, 4, 6, 3))}, ValueError, "beta to be a number or one per token"),
            ({"beta": np.ones((2, 4, 6), int)}, TypeError, "floating-point beta, not int64"),
            ({"beta": np.inf}, ValueError, "finite beta"),
            ({"beta": "1"}, TypeError, "beta must be an array"),
            ({"log_decay": 0.1}, ValueError, "log_decay must be finite and ≤ 0"),
            ({"log_decay": -np.ones((2, 2, 6))}, ValueError, "one per value head"),
            ({"log_decay": np.full((2, 4, 6), -np.inf)}, ValueError, "must be finite"),
            ({"erase": np.ones((2, 4, 6, 5))}, ValueError, r"the shape of k, \(2, 2, 6, 5\)"),
            ({"read": np.ones((2, 2, 6, 5), np.float32)}, TypeError, "read: float32"),
            ({"v": np.ones((2, 3, 6, 3))}, ValueError, "value heads to be a multiple"),
            ({"q": np.ones((2, 4, 6, 5))}, ValueError, "of v may be a multiple of those"),
            ({"q": np.ones((2, 2, 5, 5))}, ValueError, "needs as many queries as keys"),
            ({"mask": np.ones(6)}, TypeError, "mask must be boolean"),
            ({"segment_ids": np.ones(6)}, TypeError, "whole numbers"),
            ({"scale": 0}, ValueError, "scale > 0"),
            ({"engine": "dense"}, ValueError, "unknown engine 'dense'; use auto, "),
        ],
    )  # fmt: skip
    def test_bad_input_is_refused_by_name(self, changed, error, message):
        with pytest.raises(error, match=message):
            kt.delta_rule(**self.arrays(**changed))

    def test_a_state_of_another_rule_or_shape_is_refused_by_name(self):
        arrays = self.arrays()
        x = arrays["v"][..., :2]
        _, linear = kt.linear_attention(x, x, x, causal=True, return_state=True)
        with pytest.raises(TypeError, match=r"must be a DeltaState, not State \(of elu"):
            kt.delta_rule(**arrays, state=linear)
        with pytest.raises(TypeError, match="state must be a State, not DeltaState"):
            kt.linear_attention(x, x, x, causal=True, state=kt.DeltaState(np.zeros((2, 4, 2, 2))))
        with pytest.raises(ValueError, match=r"of the delta rule \(d = 5, M = 4\).*needs .*M = 3"):
            kt.delta_rule(**arrays, state=kt.DeltaState(np.zeros((2, 4, 5, 4))))
        with pytest.raises(TypeError, match=r"float32, but these inputs compute in float64"):
            kt.delta_rule(**arrays, state=kt.DeltaState(np.zeros((2, 4, 5, 3), np.float32)))

    def test_mixed_devices_and_libraries_are_refused(self):
        torch = pytest.importorskip("torch")
        arrays = {name: torch.asarray(x) for name, x in self.arrays().items()}
        for name, x in arrays.items():
            with pytest.raises(ValueError, match="one device"):
                kt.delta_rule(**{**arrays, name: x.to("meta")})
            with pytest.raises(TypeError, match="one library"):
                kt.delta_rule(**{**arrays, name: x.numpy()})
        state = kt.DeltaState(np.zeros((2, 4, 5, 3)))
        with pytest.raises(TypeError, match=r"use state\.to\(q\)"):
            kt.delta_rule(**arrays, state=state)
        assert kt.delta_rule(**arrays, state=state.to(arrays["q"])).shape == (2, 4, 6, 3)
