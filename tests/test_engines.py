"""Every engine agrees with a loop over tokens and with the other engines."""

import numpy as np
import pytest
from oracle import (
    DECAYS,
    MAPS,
    SIGNED_FEATURES,
    brute_force,
    make_decay,
    one_head_decay,
    turns,
)  # fmt: skip

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]
LONG = ["elu"]  # also at n = 1000
D, WIDTH = 4, 3


def inputs(rng, n, n_q=None, dtype=np.float64, heads=(4, 2)):
    q = rng.standard_normal((2, heads[0], n if n_q is None else n_q, D))
    k = rng.standard_normal((2, heads[1], n, D))
    v = rng.standard_normal((2, heads[1], n, WIDTH))
    v[..., -1] = 1  # without normalisation, this column is the normaliser
    return tuple(x.astype(dtype) for x in (q, k, v))


def true_state(state):
    scale = np.exp(state.log_scale)
    return state.U * scale[..., None, None], state.Z * scale[..., None]


def check_against_loop(text, q, k, v, results, kind, log_decay, initial=None, **options):
    """`results` has the output and state of each engine. The slow loop runs once."""
    feature_map = maps.get(text)
    root = np.sqrt(feature_map.default_scale(D))
    n, start = k.shape[-2], 0 if initial is None else initial.stop
    results = [(out, *true_state(state)) for out, state in results]
    U0, Z0 = (None, None) if initial is None else true_state(initial)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            own = {
                name: None if x is None else x[b] for name, x in options.items() if name != "causal"
            }
            expected, U1, Z1 = brute_force(
                feature_map.phi(q[b, h] * root, start + np.arange(q.shape[-2])),
                feature_map.phi(k[b, g] * root, start + np.arange(n)),
                v[b, g],
                causal=options["causal"],
                normalize=text not in SIGNED_FEATURES,
                log_decay=one_head_decay(log_decay, kind, b, g, n),
                U=None if U0 is None else U0[b, g],
                Z=None if Z0 is None else Z0[b, g],
                **own,
            )
            size = max(1.0, np.nanmax(np.abs(expected), initial=0.0))
            for out, U, Z in results:
                np.testing.assert_allclose(out[b, h], expected, rtol=1e-10, atol=1e-12 * size)
                np.testing.assert_allclose(U[b, g], U1, rtol=1e-10, atol=1e-11 * np.abs(U1).max())
                np.testing.assert_allclose(Z[b, g], Z1, rtol=1e-10, atol=1e-11 * np.abs(Z1).max())


@pytest.mark.parametrize("text", MAPS)
def test_causal_engines_equal_the_loop(text):
    n, m = 23, maps.get(text).dim(D)
    common = {"causal": True, "on_zero": "nan", "normalize": text not in SIGNED_FEATURES}
    for kind, masked, with_state in turns(text, DECAYS, [False, True], [False, True]):
        rng = np.random.default_rng(hash_of(text, kind, masked, with_state))
        state = None
        if with_state:
            q, k, v = inputs(rng, 9)
            decay = make_decay(kind, rng, k, m)
            _, state = kt.linear_attention(
                q, k, v, text, log_decay=decay, return_state=True, engine="dense", **common
            )
        q, k, v = inputs(rng, n)
        decay = make_decay(kind, rng, k, m)
        mask = rng.random((2, n)) > 0.3 if masked else None
        options = {"log_decay": decay, "mask": mask, "state": state, "chunk_size": 7, **common}
        results = [
            kt.linear_attention(q, k, v, text, return_state=True, engine=engine, **options)
            for engine in ENGINES
        ]
        check_against_loop(text, q, k, v, results, kind, decay, state, causal=True, mask=mask)


def hash_of(*parts):
    """Return a seed that is the same in every process."""
    import zlib

    return zlib.crc32(repr(parts).encode())


@pytest.mark.parametrize(
    ("kind", "text"),
    [*zip(DECAYS, ["elu", "favor:features=16", "identity", "exp", "elu"], strict=True)],
)
def test_segments_restart_the_state(text, kind):
    rng = np.random.default_rng(2)
    n = 40
    q, k, v = inputs(rng, n)
    ids = np.stack([np.sort(rng.integers(0, 5, n)), rng.integers(0, 2, n)])
    mask = rng.random((2, n)) > 0.2
    mask[:, -1] = True  # the state is that of the last segment
    decay = make_decay(kind, rng, k, maps.get(text).dim(D))
    options = {"causal": True, "log_decay": decay, "segment_ids": ids, "mask": mask}
    options |= {"on_zero": "nan", "normalize": text not in SIGNED_FEATURES, "chunk_size": 16}
    results = [
        kt.linear_attention(q, k, v, text, return_state=True, engine=engine, **options)
        for engine in ENGINES
    ]
    more = {"causal": True, "mask": mask, "segment_ids": ids}
    check_against_loop(text, q, k, v, results, kind, decay, **more)
    assert all((state.log_decay == -np.inf).all() for _, state in results)


@pytest.mark.parametrize("text", MAPS)
def test_chunk_size_does_not_matter(text):
    rng = np.random.default_rng(3)
    q, k, v = inputs(rng, 130, heads=(2, 1))
    options = {"normalize": text not in SIGNED_FEATURES, "on_zero": "nan"}
    for chunk_size, causal in turns(text, (1, 2, 7, 63, 64, 65, 130), [False, True]):
        expected = kt.linear_attention(q, k, v, text, engine="dense", causal=causal, **options)
        close = {"rtol": 1e-11, "atol": 1e-11 * np.nanmax(abs(expected))}
        actual = kt.linear_attention(
            q, k, v, text, engine="chunked", causal=causal, chunk_size=chunk_size, **options
        )
        np.testing.assert_allclose(actual, expected, **close, err_msg=str(chunk_size))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_any_leading_dimensions(shape):
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, *shape, 20, 4))
    v = rng.standard_normal((*shape, 20, 6))
    expected = [
        brute_force(maps.get("elu").phi(one_q), maps.get("elu").phi(one_k), one_v, causal=True)[0]
        for one_q, one_k, one_v in zip(
            *(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)), strict=True
        )
    ]
    for engine in ENGINES:
        out = kt.linear_attention(q, k, v, causal=True, engine=engine, chunk_size=8)
        wanted = np.reshape(expected, (*shape, 20, 6))
        np.testing.assert_allclose(out, wanted, rtol=1e-12, err_msg=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_grouped_queries_share_key_heads_in_order(engine):
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((6, 30, 4)), *rng.standard_normal((2, 2, 30, 4))
    out = kt.linear_attention(q, k, v, causal=True, engine=engine)
    repeated = kt.linear_attention(q, np.repeat(k, 3, 0), np.repeat(v, 3, 0), causal=True)
    np.testing.assert_allclose(out, repeated, rtol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_scale_multiplies_the_products(engine):
    rng = np.random.default_rng(6)
    q, k, v = rng.standard_normal((3, 20, 4))
    texts = ("taylor:order=2", "elu", "favor:features=8")
    for text, causal in turns(ENGINES.index(engine), texts, [False, True]):
        out = kt.linear_attention(q, k, v, text, scale=0.3, causal=causal, engine=engine)
        root = np.sqrt(0.3)
        same = kt.linear_attention(q * root, k * root, v, text, scale=1.0, causal=causal)
        np.testing.assert_allclose(out, same, rtol=1e-12)
    default = kt.linear_attention(q, k, v, "taylor:order=2", engine=engine)
    half = kt.linear_attention(q, k, v, "taylor:order=2", scale=0.5)
    np.testing.assert_allclose(default, half, rtol=1e-12)  # 1/√4


@pytest.mark.parametrize("engine", ["chunked", "native"])
def test_a_million_float32_tokens_lose_nothing(engine):
    n, d, width, piece = 1_000_000, 8, 4, 1 << 17
    rng = np.random.default_rng(7)
    state, U, Z = None, np.zeros((d, width)), np.zeros(d)
    for first in range(0, n, piece):
        count = min(piece, n - first)
        k, v = (rng.standard_normal((count, w)).astype(np.float32) for w in (d, width))
        _, state = kt.linear_attention(
            k, k, v, "elu", causal=True, state=state, return_state=True, engine=engine
        )
        phi = maps.get("elu").phi(k.astype(np.float64))
        U, Z = U + phi.T @ v.astype(np.float64), Z + phi.sum(0)
    assert state.stop == n
    assert (np.abs(state.Z - Z) <= 2 * np.spacing(Z.astype(np.float32))).all()
    assert np.abs(state.U - U).max() <= 1e-6 * np.sqrt(np.mean(U**2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("engine", ENGINES)
def test_strong_decay_does_not_divide_by_underflow(engine, dtype):
    """Products of decays underflow to 0 within a chunk; their ratios would be 0/0."""
    rng = np.random.default_rng(10)
    n = 128
    q, k, v = (rng.standard_normal((n, 4)).astype(dtype) for _ in range(3))
    log_decay = np.full(n, -50.0, dtype)
    log_decay[::3] = -1e-3
    out = kt.linear_attention(q, k, v, "elu", causal=True, log_decay=log_decay, engine=engine)
    phi = maps.get("elu").phi
    exact, _, _ = brute_force(
        phi(q.astype(float)), phi(k.astype(float)), v.astype(float), causal=True,
        log_decay=log_decay[:, None].astype(float),
    )  # fmt: skip
    np.testing.assert_allclose(out, exact, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("text", ["favor:features=16", "exp", "hedgehog:activation=exp"])
def test_log_scales_survive_keys_of_very_different_size(text):
    """One huge key, then small ones: sums are scaled by what each row can see."""
    rng = np.random.default_rng(11)
    q, k, v = rng.standard_normal((3, 70, 4))
    k[35] += 200.0
    options = {"causal": True, "scale": 1.0}
    if text.startswith("favor"):
        k[35] -= 195.0
    weights = kt.attention_weights(q, k, text, **options)
    for engine in ENGINES:
        out = kt.linear_attention(q, k, v, text, engine=engine, chunk_size=16, **options)
        np.testing.assert_allclose(out, weights @ v, rtol=1e-9, atol=1e-12, err_msg=engine)
        if not text.startswith("favor"):  # the huge key takes all the weight from its token on
            np.testing.assert_allclose(out[35:], np.broadcast_to(v[35], (35, 4)), rtol=1e-6)


@pytest.mark.parametrize("engine", ["recurrent", "chunked", "native"])
def test_a_forgotten_scale_does_not_swallow_what_comes_later(engine):
    """A key of scale e^1500 decays away; later keys must not be stored relative to it."""
    n = 200
    k = np.zeros((n, 2))
    k[0] = 1500.0
    v = np.arange(n, dtype=float)[:, None]
    decay = np.full(n, -20.0)
    out = kt.linear_attention(k * 0, k, v, "exp", causal=True, log_decay=decay, engine=engine)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[150:, 0], v[150:, 0], atol=1e-6)


def test_empty_sequences_and_batches_are_not_errors():
    for engine in ENGINES:
        for shape in ((0, 4), (2, 0, 4), (0, 3, 5, 4), (2, 3, 0, 4)):
            x = np.zeros(shape)
            for causal in (False, True):
                out, state = kt.linear_attention(
                    x, x, x, causal=causal, engine=engine, return_state=True
                )
                assert out.shape == shape
                assert state.stop == shape[-2]
                assert (state.U == 0).all()
        q, k = np.ones((3, 4)), np.ones((0, 4))
        with pytest.raises(kt.VanishingNormalizerError):
            kt.linear_attention(q, k, k, engine=engine)
        assert np.isnan(kt.linear_attention(q, k, k, engine=engine, on_zero="nan")).all()
        assert kt.linear_attention(k, q, q, engine=engine).shape == (0, 4)
        one = kt.linear_attention(q[:1], q[:1], q[:1] * 7, causal=True, engine=engine)
        assert (one == 7).all()
        wide = kt.linear_attention(q, q, np.ones((3, 0)), engine=engine)
        assert wide.shape == (3, 0)


def test_forward_memory_does_not_grow_with_n():
    """Beyond inputs and outputs, the chunked engine allocates the same for n and 4n tokens."""
    import tracemalloc

    peaks = []
    for n in (4096, 16384):
        q, k, v = (np.random.default_rng(0).standard_normal((4, n, 32)) for _ in range(3))
        kt.linear_attention(q[:, :64], k[:, :64], v[:, :64], causal=True)
        tracemalloc.start()
        out = kt.linear_attention(q, k, v, causal=True)
        peaks.append(tracemalloc.get_traced_memory()[1] - out.nbytes)
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + 4 * 16384 * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lesser_key_does_not_stand_in_for_one_that_the_features_have_lost(engine):
    """e^−120 and e^−170 are 0 in float32: the output is right or reported, in every engine."""
    q, k = np.array([[[0.0, 0], [-60, 60]], [[170, 0], [0, 0]]])
    v = np.array([[1.0], [2.0]])
    options = {"causal": True, "engine": engine}
    np.testing.assert_allclose(kt.linear_attention(q, k, v, "exp", **options)[1], 1)
    narrow = [x.astype(np.float32) for x in (q, k, v)]
    with pytest.raises(kt.VanishingNormalizerError, match="features underflow"):
        kt.linear_attention(*narrow, "exp", **options)
