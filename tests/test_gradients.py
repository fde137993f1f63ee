"""Gradients agree with finite differences, the dense engine and JAX, and are zero at pads."""

import subprocess
import sys

import numpy as np
import pytest
from oracle import DECAYS, MAPS, make_decay, turns

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

BOTH = [False, True]


def tensors(n=5, heads=(2, 1), seed=0):
    """Inputs whose first coordinate is large and positive, so that no normaliser is near 0."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((h, n, 3)) for h in (heads[0], heads[1], heads[1]))
    q[..., 0] = 1.5 + rng.random(q.shape[:-1])
    k[..., 0] = 1.5 + rng.random(k.shape[:-1])
    return [torch.asarray(x).requires_grad_() for x in (q, k, v)]


@pytest.mark.parametrize("text", MAPS)
def test_gradcheck(text):
    for causal, normalize, masked, with_state in turns(text, BOTH, BOTH, BOTH, BOTH):
        mask = torch.tensor([True, False, True, True, False]) if masked else None
        options = {"causal": causal, "normalize": normalize, "engine": "chunked", "chunk_size": 2}
        earlier = tensors(3, seed=1) if with_state else []

        def function(q, k, v, *before, options=options, mask=mask):
            state = None
            if before:
                _, state = kt.linear_attention(*before, text, return_state=True, **options)
            return kt.linear_attention(q, k, v, text, mask=mask, state=state, **options)

        assert torch.autograd.gradcheck(function, (*tensors(), *earlier), fast_mode=True)


@pytest.mark.parametrize(
    ("kind", "text"), [("head", "identity"), ("token", "favor:features=8"), ("feature", "elu")]
)
def test_gradcheck_of_log_decay(kind, text):
    q, k, v = tensors(heads=(2, 2))
    decay = make_decay(kind, np.random.default_rng(2), k.detach().numpy(), maps.get(text).dim(3))
    decay = torch.asarray(decay - 0.1).requires_grad_()
    ids = torch.tensor([0, 0, 0, 1, 1])

    def function(q, k, v, decay):
        return kt.linear_attention(
            q, k, v, text, causal=True, log_decay=decay, segment_ids=ids, engine="chunked",
            chunk_size=2,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, (q, k, v, decay), fast_mode=True)


@pytest.mark.parametrize("text", MAPS)
def test_gradients_equal_those_of_the_dense_engine(text):
    rng = np.random.default_rng(3)
    n = 37
    mask, ids = torch.asarray(rng.random(n) > 0.2), torch.asarray(np.sort(rng.integers(0, 3, n)))
    options = {"causal": True, "mask": mask, "segment_ids": ids, "chunk_size": 16}
    options["normalize"] = text not in ("identity", "favor:features=16,kind=trig")
    for engine, kind in turns(text, ["chunked", "recurrent", "auto"], DECAYS):
        results = []
        for name in ("dense", engine):
            q, k, v = tensors(n, heads=(4, 2))
            drawn = np.random.default_rng(4)
            decay = make_decay(kind, drawn, k.detach().numpy(), maps.get(text).dim(3))
            leaves = [q, k, v]
            if isinstance(decay, np.ndarray):
                decay = torch.asarray(decay).requires_grad_()
                leaves.append(decay)
            out = kt.linear_attention(q, k, v, text, log_decay=decay, engine=name, **options)
            weights = torch.asarray(np.random.default_rng(5).standard_normal(tuple(out.shape)))
            results.append(torch.autograd.grad((out * weights).sum(), leaves))
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(
                actual, expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max())
            )


@pytest.mark.parametrize("text", MAPS)
def test_gradients_at_pads_are_zero_whatever_is_there(text):
    causal = MAPS.index(text) % 2 > 0
    mask = torch.arange(20) % 3 > 0
    options = {"query_mask": mask} if not causal else {}
    results = []
    for filler in (0.0, float("nan"), float("inf")):
        q, k, v = (
            torch.where(mask[:, None], x.detach(), torch.tensor(filler, dtype=x.dtype))
            for x in tensors(20)
        )
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = kt.linear_attention(*leaves, text, causal=causal, mask=mask, **options)
        grads = torch.autograd.grad(out.sin().sum(), leaves)
        for g in grads:
            assert (g[:, ~mask] == 0).all()
        results.append(grads)
    for grads in results[1:]:
        for one, two in zip(results[0], grads, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("fill", ["nan", "zero"])
def test_rows_without_a_normaliser_have_zero_gradient(fill):
    q = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], requires_grad=True)
    k = torch.tensor([[-1.0, 1.0], [-1.0, 2.0]], requires_grad=True)
    v = torch.ones(2, 1, requires_grad=True)
    out = kt.linear_attention(q, k, v, "relu", on_zero=fill)
    torch.nan_to_num(out).sum().backward()
    assert torch.isfinite(q.grad).all()
    assert torch.isfinite(k.grad).all()
    assert (q.grad[0] == 0).all()


def test_learned_weights_receive_their_gradient():
    q, k, v = tensors(7)
    rng = np.random.default_rng(6)
    weight = torch.asarray(rng.standard_normal((3, 4))).requires_grad_()
    bias = torch.asarray(rng.random(4) + 1).requires_grad_()

    def hedgehog(w):
        return kt.linear_attention(q, k, v, maps.Hedgehog(w), causal=True, chunk_size=3)

    def t2r(w, b):
        return kt.linear_attention(q, k, v, maps.T2R(weight=w, bias=b), causal=True)

    assert torch.autograd.gradcheck(hedgehog, (weight,), fast_mode=True)
    assert torch.autograd.gradcheck(t2r, (weight, bias), fast_mode=True)


@pytest.mark.parametrize(
    "text",
    [
        "elu",
        pytest.param("favor:features=8", marks=pytest.mark.slow),
    ],
)
def test_jax_gradients_equal_torch_gradients(text):
    q, k, v = tensors(20, heads=(4, 2))
    decay = -np.random.default_rng(7).random((2, 20))

    def loss(q, k, v, decay):
        out = kt.linear_attention(q, k, v, text, causal=True, log_decay=decay, chunk_size=8)
        return (out**3).sum()

    t_decay = torch.asarray(decay).requires_grad_()
    expected = torch.autograd.grad(loss(q, k, v, t_decay), (q, k, v, t_decay))
    with jax.enable_x64(True):
        arrays = [jax.numpy.asarray(x.detach().numpy()) for x in (q, k, v)]
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))  # compiled once, as a whole
        actual = gradient(*arrays, jax.numpy.asarray(decay))
    for one, two in zip(expected, actual, strict=True):
        np.testing.assert_allclose(np.asarray(two), one.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_jax_gradient_of_a_decay_per_feature_with_grouped_queries_survives_float32(tmp_path):
    """Run in a separate process, because XLA once crashed on a product of seven axes."""
    rng = np.random.default_rng(9)
    q, k, v, decay = (rng.standard_normal((2, h, 20, 4)) for h in (4, 2, 2, 2))
    inputs = dict(zip("qkva", (q, k, v, -np.abs(decay)), strict=True))
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = """
import sys, jax, numpy as np, kerneltrick as kt
def loss(q, k, v, decay):
    return (kt.linear_attention(q, k, v, "elu", causal=True, log_decay=decay) ** 2).sum()
with np.load(sys.argv[1]) as file:
    arrays = [jax.numpy.asarray(file[name], dtype="float32") for name in "qkva"]
np.savez(sys.argv[2], *jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays))
"""
    paths = [str(tmp_path / name) for name in ("inputs.npz", "gradients.npz")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    tensors_ = [torch.asarray(x).requires_grad_() for x in inputs.values()]
    out = kt.linear_attention(
        *tensors_[:3], "elu", causal=True, log_decay=tensors_[3], engine="dense"
    )
    expected = torch.autograd.grad((out**2).sum(), tensors_)
    with np.load(paths[1]) as file:
        for got, want in zip(file.values(), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
