"""Gradients with a window: to q, k, v, the gain and through the state, near and far."""

import itertools

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

ENGINES = ["dense", "recurrent", "chunked"]


def tensors(n=7, heads=(2, 1), seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(h, n, 3) for h in (heads[0], heads[1], heads[1])]
    return [torch.asarray(rng.standard_normal(s)).requires_grad_() for s in shapes]


USUAL = {"elu": "dense", "exp": "chunked", "favor:features=8": "chunked", "hedgehog": "dense",
         "softmax": "recurrent"}  # fmt: skip


@pytest.mark.parametrize(("text", "engine"), [*USUAL.items(), ("elu", "chunked")])
def test_gradcheck(text, engine):
    """Also masked and unnormalised; gradients include those of the largest near score."""
    mask = torch.tensor([True, True, False, True, True, True, False])
    gain = torch.tensor([-0.3, 0.4], dtype=torch.float64).requires_grad_()
    both = [False, True]
    for causal, relative, normalize in itertools.product(both, both, both):
        if (causal, relative, normalize).count(True) % 2 == ENGINES.index(engine) % 2:
            continue  # every pair of two of them is left

        def function(q, k, v, gain, how=(causal, relative, normalize)):
            return kt.linear_attention(
                q, k, v, text, causal=how[0], mask=mask, window=2, sinks=1, engine=engine,
                far=kt.Far(gain, how[1]), normalize=how[2], chunk_size=3,
            )  # fmt: skip

        assert torch.autograd.gradcheck(function, (*tensors(), gain), fast_mode=True)


@pytest.mark.parametrize("text", ["elu", "favor:features=8", "softmax"])
def test_gradcheck_through_the_state(text):
    """Tokens near the end of the first call are near, then far, in the second."""
    options = {"causal": True, "window": 3, "sinks": 1, "far": kt.Far(0.2, relative=True)}
    for engine in ENGINES:

        def function(q, k, v, *earlier, engine=engine):
            _, state = kt.linear_attention(
                *earlier, text, return_state=True, engine=engine, **options
            )
            return kt.linear_attention(q, k, v, text, state=state, engine=engine, **options)

        both = (*tensors(5), *tensors(4, seed=1))
        assert torch.autograd.gradcheck(function, both, fast_mode=True)


@pytest.mark.parametrize(
    "causal", [pytest.param(False, marks=pytest.mark.slow), True], ids=["full", "causal"]
)
def test_jax_has_the_gradients_of_torch(causal):
    q, k, v = tensors(9)
    gain = torch.tensor([-0.3, 0.4], dtype=torch.float64).requires_grad_()
    options = {"causal": causal, "window": 3, "sinks": 1, "chunk_size": 4}
    text = "favor:features=8"
    out = kt.linear_attention(q, k, v, text, far=kt.Far(gain, True), **options)
    wanted = torch.autograd.grad((out * out).sum(), (q, k, v, gain))

    def loss(q, k, v, gain):
        out = kt.linear_attention(q, k, v, text, far=kt.Far(gain, relative=True), **options)
        return (out * out).sum()

    inputs = [jax.numpy.asarray(x.detach().numpy()) for x in (q, k, v, gain)]
    gradient = jax.jit(jax.grad(loss, (0, 1, 2, 3)))  # compiled once, not operation by operation
    for ours, theirs in zip(gradient(*inputs), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def test_gradients_reach_learned_weights_in_the_window_and_beyond():
    q, k, v = (x.detach() for x in tensors(8))
    weight = torch.asarray(np.random.default_rng(3).standard_normal((3, 3))).requires_grad_()

    def function(weight):
        learned = maps.Hedgehog(weight, activation="exp")
        return kt.linear_attention(q, k, v, learned, causal=True, window=3, engine="chunked")

    assert torch.autograd.gradcheck(function, (weight,), fast_mode=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_padding_has_no_gradient_and_spoils_none(engine):
    q, k, v = (x.detach() for x in tensors(6))
    mask = torch.tensor([True, False, True, True, False, True])
    for x in (q, k, v):
        x[:, ~mask] = torch.nan
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = kt.linear_attention(
        *inputs, "elu", causal=True, mask=mask, window=2, sinks=1, engine=engine
    )
    for gradient in torch.autograd.grad(out.sum(), inputs, allow_unused=False):
        assert torch.isfinite(gradient).all()
        assert not gradient[:, ~mask].any()


@pytest.mark.parametrize("window", [0, 3])
def test_no_tokens_keep_the_graph(window):
    q, k, v = (x[:, :0].detach().requires_grad_() for x in tensors(3))
    for engine in ("auto", *ENGINES):
        options = {"causal": True, "window": window, "engine": engine}
        out, state = kt.linear_attention(q, k, v, "elu", return_state=True, **options)
        assert out.shape == (2, 0, 3)
        assert out.requires_grad
        (out.sum() + state.U.sum()).backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape


@pytest.mark.parametrize("engine", [*ENGINES, "native"])
def test_gradients_do_not_know_the_scale_of_a_far_part_that_is_not_there(engine):
    """φ(q) of e^{160} and no far key yet: inf · 0 would be NaN."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 5, 3)).astype(np.float32) for _ in range(3))
    q *= 18 / np.linalg.norm(q, axis=-1, keepdims=True)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    found = []
    far = {"window": 9, "far": 0.0}
    for text, window in (("favor:features=8,kind=trig", far), ("softmax", {})):
        inputs = [torch.asarray(x).requires_grad_() for x in (q, k, v)]
        out = kt.linear_attention(*inputs, text, causal=True, scale=1.0, engine=engine, **window)
        found.append(torch.autograd.grad((out * out).sum(), inputs))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
