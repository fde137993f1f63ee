"""Windows in PyTorch, JAX and array-api-strict give NumPy's numbers in the caller's arrays."""

import array_api_strict
import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick._arrays import as_numpy

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

LIBRARIES = {
    "torch": torch.asarray,
    "jax": jax.numpy.asarray,
    "array-api-strict": array_api_strict.asarray,
}


def arrays(n=23, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, h, n, w)).astype(dtype) for h, w in ((4, 4), (2, 4), (2, 3))]


# Through XLA's compiler, or token by token, cases take seconds.
CASES = [
    ("torch", "dense", True),
    ("torch", "recurrent", False),
    ("torch", "chunked", False),
    ("torch", "chunked", True),
    ("array-api-strict", "dense", False),
    ("array-api-strict", "chunked", True),
    pytest.param("jax", "dense", False, marks=pytest.mark.slow),
    pytest.param("jax", "recurrent", True, marks=pytest.mark.slow),
    pytest.param("jax", "chunked", True, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("library", "engine", "causal"), CASES)
def test_every_library_agrees_with_numpy(library, engine, causal):
    """Masks, segments, grouped queries, a gain for each head, a state before and after."""
    convert = LIBRARIES[library]
    rng = np.random.default_rng(1)
    masks = [rng.random((2, 23)) < 0.8 for _ in range(2)]
    ids = np.sort(rng.integers(0, 3, 23))
    gain = rng.standard_normal(4).astype(np.float32)

    def run(convert, engine, text, relative):
        options = {"causal": causal, "window": 4, "sinks": 2, "chunk_size": 8, "engine": engine}
        options["far"] = kt.Far(convert(gain), relative)
        options["return_state"] = True
        q, k, v = (convert(x) for x in arrays())
        _, state = kt.linear_attention(q, k, v, text, mask=convert(masks[0]), **options)
        if causal:
            options["segment_ids"] = convert(ids)
        q, k, v = (convert(x) for x in arrays(seed=1))
        return kt.linear_attention(q, k, v, text, mask=convert(masks[1]), state=state, **options)

    for text, relative in (("favor:features=8", False), ("elu", True), ("softmax", False)):
        want, before = run(np.asarray, "dense", text, relative)
        out, after = run(convert, engine, text, relative)
        assert type(out) is type(convert(np.ones(1, np.float32)))
        np.testing.assert_allclose(as_numpy(out), want, atol=2e-5)
        np.testing.assert_array_equal(as_numpy(after.near.keep), before.near.keep)
        np.testing.assert_array_equal(as_numpy(after.near.count), before.near.count)
        keep = before.near.keep
        np.testing.assert_array_equal(
            np.where(keep, as_numpy(after.near.k), 0), np.where(keep, before.near.k, 0)
        )


def test_bfloat16_comes_back_in_kind():
    q, k, v = (torch.asarray(x).to(torch.bfloat16) for x in arrays())
    options = {"causal": True, "window": 4, "sinks": 1}
    out, state = kt.linear_attention(q, k, v, "elu", return_state=True, **options)
    assert out.dtype == state.near.k.dtype == torch.bfloat16
    want = kt.linear_attention(*(x.double() for x in (q, k, v)), "elu", engine="dense", **options)
    np.testing.assert_allclose(out.double(), want, atol=2e-2)
    half = kt.linear_attention(q, k, v, "elu", state=state.to(q), **options)
    assert torch.equal(half, kt.linear_attention(q, k, v, "elu", state=state, **options))


@pytest.mark.parametrize("text", ["elu", "favor:features=8"])
def test_jax_compiles_the_call(text):
    gain = np.linspace(-1, 1, 4, dtype=np.float32)
    ids = np.arange(23) // 9

    def run(*given):
        q, k, v, gain, ids = given
        options = {"causal": True, "window": 4, "sinks": 1, "far": gain, "segment_ids": ids}
        return kt.linear_attention(q, k, v, text, chunk_size=8, return_state=True, **options)

    want, before = run(*arrays(), gain, ids)
    out, after = jax.jit(run)(*(jax.numpy.asarray(x) for x in (*arrays(), gain, ids)))
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_array_equal(after.near.keep, before.near.keep)


def test_a_function_of_one_library_has_a_unit_in_it():
    q, k, v = (torch.asarray(x) for x in arrays())
    out = kt.linear_attention(q, k, v, torch.nn.functional.softplus, causal=True, window=4)
    assert torch.isfinite(out).all()
