"""Arguments in every dtype: the values count, not the dtype that they come in."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from oracle import turns

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick._arrays import as_numpy
from kerneltrick.engines import core

H, N, D, P = 2, 9, 4, 3
FLOATS = {
    "numpy": ["float16", "float32", "float64", "longdouble", ">f8", ">f4"],
    "torch": ["float16", "bfloat16", "float32", "float64"],
    "jax": ["float16", "bfloat16", "float32"],
}
INTEGERS = {
    "numpy": ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", ">i4"],
    "torch": ["int8", "uint8", "int16", "int32", "int64"],
    "jax": ["int8", "uint8", "int16", "int32"],
}
RUN = ["native"] * (core() is not None) + ["chunked", "recurrent"]
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, ">f4": 2e-6}


def make(library, values, dtype):
    if library == "numpy":
        return np.asarray(values).astype(dtype)
    if library == "torch":
        return torch.as_tensor(np.array(values)).to(getattr(torch, dtype))
    return jnp.asarray(values, dtype=getattr(jnp, dtype))


def tokens(library="numpy", dtype="float64", seed=0):
    values = np.random.default_rng(seed).standard_normal((3, H, N, D))
    return tuple(make(library, x, dtype) for x in values)


def hedgehog(cast):
    weight, own = np.random.default_rng(1).standard_normal((2, H, D, P))
    return {"feature_map": maps.Hedgehog(cast(weight), key_weight=cast(own))}


def t2r(cast):
    rng = np.random.default_rng(2)
    weight, bias = rng.standard_normal((H, D, P)), rng.random((H, 1, P))
    return {"feature_map": maps.T2R(weight=cast(weight), bias=cast(bias)), "on_zero": "zero"}


# What is given, for a function that casts arrays to the dtype under test.
FLOATING = {
    "hedgehog weights": hedgehog,
    "hedgehog weights beside a window": lambda cast: {**hedgehog(cast), "window": 3},
    "t2r weights and bias": t2r,
    "decay of each head": lambda cast: {"log_decay": cast(np.array([-0.125, -0.75]))},
    "decay of each token": lambda cast: {
        "log_decay": cast(-np.random.default_rng(3).random((H, N)))
    },
    "decay of each feature": lambda cast: {
        "log_decay": cast(-np.random.default_rng(3).random((H, N, D)))
    },
    "gain": lambda cast: {"window": 3, "far": cast(np.array([-1.3, 0.7]))},
    "positions": lambda cast: {
        "feature_map": "cosformer:horizon=64",
        "positions": cast(np.arange(N) * 5.5),
        "on_zero": "zero",
    },
    "positions beside a window": lambda cast: {
        "feature_map": "cosformer:horizon=64",
        "positions": cast(np.arange(N) * 5.5),
        "window": 2,
        "sinks": 1,
        "on_zero": "zero",
    },
}
WHOLE = {
    "positions": lambda cast: {
        "feature_map": "cosformer:horizon=64",
        "positions": cast(np.arange(N) * 5),
        "on_zero": "zero",
    },
    "segment ids": lambda cast: {"segment_ids": cast(np.arange(N) // 4)},
}


def check(library, dtype, arguments, engine):
    """The call, beside the same call with these very values in the widest dtype of the library."""
    wide = "float32" if library == "jax" else "float64"
    q, k, v = tokens(library, wide)
    keywords = arguments(lambda x: make(library, x, dtype))
    exact = arguments(lambda x: as_numpy(make(library, x, dtype)).astype(np.float64))
    for name in ("log_decay", "positions", "segment_ids", "far"):
        if name in exact:
            kind = "int32" if name == "segment_ids" else wide
            exact[name] = make(library, exact[name], kind)
    got = kt.linear_attention(q, k, v, causal=True, engine=engine, **keywords)
    expected = kt.linear_attention(q, k, v, causal=True, engine="dense", **exact)
    # Angles of positions are computed in the dtype of q in every library.
    close = 1e-5 if library == "jax" else 1e-12
    told = {"rtol": close, "atol": close, "err_msg": f"{dtype}, {engine}"}
    np.testing.assert_allclose(as_numpy(got), as_numpy(expected), **told)


# JAX compiles each call, which takes long.
LIBRARIES = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]


def calls(library, dtypes, number):
    """Every dtype of the library, the engines in turn."""
    engines = ["chunked"] if library == "jax" else RUN
    return turns(number, dtypes[library], engines)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("arguments", FLOATING)
def test_floating_arguments_count_by_their_values(arguments, library):
    for dtype, engine in calls(library, FLOATS, list(FLOATING).index(arguments)):
        check(library, dtype, FLOATING[arguments], engine)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("arguments", WHOLE)
def test_whole_numbers_count_by_their_values(arguments, library):
    for dtype, engine in calls(library, INTEGERS, list(WHOLE).index(arguments)):
        check(library, dtype, WHOLE[arguments], engine)


OPERATORS = {
    "linear_attention": lambda q, k, v: kt.linear_attention(q, k, v, "elu", causal=True),
    "linear_attention full": lambda q, k, v: kt.linear_attention(q, k, v, "favor:features=8"),
    "with a window": lambda q, k, v: kt.linear_attention(q, k, v, causal=True, window=3, sinks=1),
    "a stream": lambda q, k, v: stream(q, k, v),
    "attention_weights": lambda q, k, v: kt.attention_weights(q, k, "elu", causal=True),
    "softmax_attention": lambda q, k, v: kt.softmax_attention(q, k, v, causal=True),
    "kernel_attention": lambda q, k, v: kt.kernel_attention(q, k, v, "exp"),
    "hard_attention": lambda q, k, v: kt.hard_attention(q, k, v),
    "hard_attention soft": lambda q, k, v: kt.hard_attention(q, k, v, temperature=0.5),
}


def stream(q, k, v):
    _, state = kt.linear_attention(
        q[:, :4], k[:, :4], v[:, :4], causal=True, window=2, return_state=True
    )
    return kt.linear_attention(q[:, 4:], k[:, 4:], v[:, 4:], causal=True, window=2, state=state)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_as_good_as_the_dtype_of_their_arrays(operator, library):
    for dtype in FLOATS[library]:
        arrays = tokens(library, dtype)
        exact = [as_numpy(x).astype(np.float64) for x in arrays]
        got, expected = OPERATORS[operator](*arrays), OPERATORS[operator](*exact)
        assert got.dtype == arrays[2].dtype
        close = ROUNDING.get(dtype, 1e-12)
        limit = {"rtol": close, "atol": close * abs(expected).max(), "err_msg": dtype}
        np.testing.assert_allclose(as_numpy(got).astype(np.float64), expected, **limit)


@pytest.mark.parametrize("dtype", FLOATS["torch"])
@pytest.mark.parametrize("arguments", ["hedgehog weights", "t2r weights and bias", "gain"])
def test_gradients_reach_arguments_of_every_dtype(dtype, arguments):
    def gradients(engine, kind):
        leaves = []

        def leaf(x):
            rounded = torch.as_tensor(x).to(getattr(torch, dtype)).to(kind).requires_grad_()
            leaves.append(rounded)
            return rounded

        out = kt.linear_attention(
            *tokens("torch"), causal=True, engine=engine, **FLOATING[arguments](leaf)
        )
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
        return torch.autograd.grad((out * weights).sum(), leaves)

    got = gradients("native", getattr(torch, dtype))
    expected = gradients("dense", torch.float64)
    close = ROUNDING.get(dtype, 1e-10)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == getattr(torch, dtype)
        assert (ours.double() - theirs).norm() <= close * theirs.norm()
        assert theirs.norm() > 0


@pytest.mark.parametrize("dtype", FLOATS["torch"])
def test_a_decoder_takes_weights_of_every_dtype(dtype):
    for weights, window in ((hedgehog, 0), (hedgehog, 3), (t2r, 0), (t2r, 3)):
        weighted_steps(weights, window, dtype)


def weighted_steps(weights, window, dtype):
    keywords = weights(lambda x: make("torch", x, dtype))
    q, k, v = tokens("torch", "float64")
    decoder = kt.Decoder(**keywords, shape=(H,), d=D, dtype="float64", window=window)
    steps = [decoder.step(q[:, t], k[:, t], v[:, t]) for t in range(N)]
    whole = kt.linear_attention(q, k, v, causal=True, engine="dense", window=window, **keywords)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS["torch"])
@pytest.mark.parametrize("feature_map", ["elu", "elu@window=3,sinks=1", "softmax"])
def test_a_decoder_takes_tokens_of_every_dtype(feature_map, dtype):
    q, k, v = tokens("torch", dtype)
    decoder = kt.Decoder(feature_map, shape=(H,), d=D, dtype=q.dtype)
    steps = torch.stack([decoder.step(q[:, t], k[:, t], v[:, t]) for t in range(N)], 1)
    exact = kt.linear_attention(q.double(), k.double(), v.double(), feature_map, causal=True)
    assert steps.dtype == q.dtype
    close = ROUNDING.get(dtype, 1e-12)
    torch.testing.assert_close(steps.double(), exact, rtol=close, atol=close)


def test_maps_take_positions_of_every_integer():
    chosen, x = maps.get("cosformer:horizon=100"), np.ones((300, 2))
    expected = chosen.phi(x, np.arange(300) % 200)
    for dtype in (np.uint8, np.int16, np.float32):
        got = chosen.phi(x, (np.arange(300) % 200).astype(dtype))
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_sinks_beyond_the_tokens_take_no_memory():
    q, k, v = tokens()
    many = kt.linear_attention(q, k, v, causal=True, sinks=10**15)
    np.testing.assert_allclose(many, kt.softmax_attention(q, k, v, causal=True), rtol=1e-12)


def test_a_state_file_with_an_infinite_normaliser_is_refused(tmp_path):
    _, state = kt.linear_attention(*tokens(), causal=True, return_state=True)
    sums = state.sums.hi.copy()
    sums[..., 0, -1] = np.inf
    path = tmp_path / "state.safetensors"
    carry = state.carry._replace(sums=state.sums._replace(hi=sums))
    broken = dataclasses.replace(state, carry=carry)
    broken.save(path)
    with pytest.raises(ValueError, match="Z is infinite"):
        kt.State.load(path)


def test_positions_of_no_tokens_are_within_every_horizon():
    q, k, v = (x[None][:0] for x in tokens())
    positions = np.zeros((0, H, N))
    out = kt.linear_attention(q, k, v, "cosformer:horizon=4", causal=True, positions=positions)
    assert out.shape == (0, H, N, D)
