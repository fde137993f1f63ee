"""The delta rule in NumPy, PyTorch, JAX and array-api-strict: outputs, gradients, states."""

import functools

import array_api_strict
import numpy as np
import pytest
from oracle import DECAYS, delta_heads, make_decay, turns
from test_delta_rule import LENGTHS, agree, tokens, vectors, whole_decay

import kerneltrick as kt

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

ENGINES = ["recurrent", "chunked"]
LIBRARIES = {
    "torch": (torch.asarray, torch.Tensor),
    "jax": (jax.numpy.asarray, jax.Array),
    "array-api-strict": (array_api_strict.asarray, type(array_api_strict.asarray(1.0))),
}


def problem(n, kind="token", general=False, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, k, v, beta = tokens(n, rng, lead=(1,))
    arrays = {"q": q, "k": k, "v": v, "beta": beta, **(vectors(rng, k) if general else {})}
    if kind != "none":
        arrays["log_decay"] = np.asarray(make_decay(kind, rng, v.astype(dtype), 5)) - 0.01
    return {name: x.astype(dtype) for name, x in arrays.items()}


# XLA takes seconds to compile each call, so `make test` runs few of them.
PAIRS = [
    pytest.param(library, engine, marks=[pytest.mark.slow] if library == "jax" else [])
    for library in LIBRARIES
    for engine in ENGINES
]


def numeric_gradients(arrays, first, weights, masks):
    """Central differences of Σ weights · (o, S) by the loop of the oracle, one number at a time."""

    def loss(arrays, first):
        decay = whole_decay(arrays.get("log_decay"), arrays["v"], 5)
        rest = {name: arrays[name] for name in ("erase", "read") if name in arrays}
        o, S = delta_heads(
            *(arrays[name] for name in ("q", "k", "v", "beta")),
            log_decay=decay, S=first, **rest, **masks,
        )  # fmt: skip
        return (o * weights[0]).sum() + (S * weights[1]).sum()

    found, step = {}, 1e-6
    everything = {**arrays, "state": first}
    for name, x in everything.items():
        gradient = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            sides = []
            for sign in (1, -1):
                moved = x.copy()
                moved[at] += sign * step
                changed = {**everything, name: moved}
                sides.append(loss({key: changed[key] for key in arrays}, changed["state"]))
            gradient[at] = (sides[0] - sides[1]) / (2 * step)
        found[name] = gradient
    return found


@pytest.mark.parametrize(("kind", "general"), [("none", True), ("token", False), ("feature", True)])
def test_gradients_of_the_recurrence_are_those_of_the_loop(kind, general):
    """To q, k, v, β, decays, erase, read and the state, with a mask and two segments."""
    arrays = problem(5, kind, general)
    rng = np.random.default_rng(2)
    first = rng.standard_normal((1, 4, 5, 3))
    weights = rng.standard_normal((1, 4, 5, 3)), rng.standard_normal((1, 4, 5, 3))
    ids, mask = np.array([0, 0, 0, 1, 1]), np.array([1, 0, 1, 1, 1], bool)
    masks = {"segment_ids": ids, "mask": np.broadcast_to(mask, (1, 4, 5))}
    expected = numeric_gradients(arrays, first, weights, masks)
    leaves = {name: torch.asarray(x).requires_grad_() for name, x in arrays.items()}
    S = torch.asarray(first).requires_grad_()
    o, state = kt.delta_rule(
        **leaves, state=kt.DeltaState(S), return_state=True, engine="recurrent",
        mask=torch.asarray(mask), segment_ids=torch.asarray(ids),
    )  # fmt: skip
    ((o * torch.asarray(weights[0])).sum() + (state.S * torch.asarray(weights[1])).sum()).backward()
    leaves["state"] = S
    for name, x in leaves.items():
        agree(x.grad.numpy(), expected[name], 1e-7)
    for name in ("q", "k", "v"):
        assert (leaves[name].grad[..., 1, :] == 0).all()
    assert (leaves["beta"].grad[..., 1] == 0).all()


def gradients(arrays, engine, n, convert=torch.asarray, **options):
    leaves = {name: convert(x).requires_grad_() for name, x in arrays.items()}
    rng = np.random.default_rng(3)
    S = convert(rng.standard_normal((1, 4, 5, 3))).requires_grad_()
    o, state = kt.delta_rule(
        **leaves, state=kt.DeltaState(S), return_state=True, engine=engine, **options
    )
    weights = rng.standard_normal((1, 4, n, 3)), rng.standard_normal((1, 4, 5, 3))
    ((o * convert(weights[0])).sum() + (state.S * convert(weights[1])).sum()).backward()
    return {name: x.grad for name, x in {**leaves, "state": S}.items()}


@pytest.mark.parametrize("kind", DECAYS)
def test_gradients_of_every_engine_are_those_of_the_recurrence(kind):
    for n, general in turns(DECAYS.index(kind), LENGTHS, [False, True]):
        arrays = problem(n, kind, general)
        expected = gradients(arrays, "recurrent", n)
        for engine in ("chunked", "native"):
            for name, x in gradients(arrays, engine, n).items():
                agree(x.numpy(), expected[name].numpy(), 1e-11)


@pytest.mark.parametrize("kind", ["token", "feature"])
def test_gradients_of_decays_keep_float32_precision(kind):
    """Relative to the largest one, however small decays make it."""
    for strength, general in turns(DECAYS.index(kind), [0.01, 2, 15], [False, True]):
        gradients_of_decays(kind, strength, general)


def gradients_of_decays(kind, strength, general):
    arrays = problem(101, kind, general, dtype=np.float32)
    drawn = np.random.default_rng(5).random(arrays["log_decay"].shape)
    arrays["log_decay"] = (-strength * (drawn + 0.5)).astype(np.float32)
    wide = {name: x.astype(np.float64) for name, x in arrays.items()}
    exact = gradients(wide, "recurrent", 101)["log_decay"].numpy()
    narrow = functools.partial(torch.asarray, dtype=torch.float32)
    for engine in ("chunked", "native"):
        found = gradients(arrays, engine, 101, narrow)["log_decay"].numpy()
        for head in range(exact.shape[1]):
            error = np.abs(found[:, head] - exact[:, head]).max()
            assert error < 3e-6 * np.abs(exact[:, head]).max(), (engine, head)


@pytest.mark.parametrize("engine", [*ENGINES, "native"])
def test_nan_in_a_pad_changes_no_gradient(engine):
    mask = torch.arange(40) % 7 > 0
    arrays = problem(40, "feature", general=True)
    expected = gradients(arrays, engine, 40, mask=mask)
    for name, x in arrays.items():
        pad = (..., ~mask.numpy()) if name == "beta" else (..., ~mask.numpy(), slice(None))
        x[pad] = np.nan
    for name, x in gradients(arrays, engine, 40, mask=mask).items():
        assert torch.equal(x, expected[name])


def test_a_scalar_beta_gets_the_gradient_of_all_tokens():
    arrays = problem(20)
    each = np.full(arrays.pop("beta").shape, 0.7)
    wanted = gradients({**arrays, "beta": each}, "native", 20)["beta"].sum()
    found = gradients({**arrays, "beta": np.array(0.7)}, "native", 20)["beta"]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["chunked", "native"])
def test_second_derivatives(engine):
    arrays = problem(4, "token", general=engine == "native")
    leaves = [torch.asarray(x).requires_grad_() for x in arrays.values()]

    def call(*given):
        return kt.delta_rule(**dict(zip(arrays, given, strict=True)), engine=engine)

    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


class TestJax:
    @pytest.mark.slow
    def test_gradient_and_jit_agree_with_torch(self):
        arrays = problem(40, "feature", general=True, dtype=np.float32)
        own = {name: jax.numpy.asarray(x) for name, x in arrays.items()}

        def loss(own):
            return (kt.delta_rule(**own) ** 2).sum()

        found = jax.jit(jax.grad(loss))(own)
        leaves = {name: torch.asarray(x).requires_grad_() for name, x in arrays.items()}
        (kt.delta_rule(**leaves, engine="chunked") ** 2).sum().backward()
        for name, x in leaves.items():
            agree(np.asarray(found[name]), x.grad.numpy(), 2e-5)

    @pytest.mark.slow
    def test_a_stream_compiles_once(self):
        traces = 0

        @jax.jit
        def step(arrays, state):
            nonlocal traces
            traces += 1
            return kt.delta_rule(**arrays, state=state, return_state=True)

        arrays = {name: jax.numpy.asarray(x) for name, x in problem(60, dtype=np.float32).items()}
        whole = kt.delta_rule(**arrays)
        state, pieces = kt.DeltaState.empty(arrays["k"], arrays["v"]), []
        for low in range(0, 60, 20):
            here = slice(low, low + 20)
            part = {
                name: x[:, :, here] if x.ndim == 3 else x[:, :, here, :]
                for name, x in arrays.items()
            }
            out, state = step(part, state)
            pieces.append(out)
        agree(np.asarray(jax.numpy.concatenate(pieces, axis=-2)), np.asarray(whole), 2e-6)
        assert int(state.stop) == 60
        assert traces <= 2


class TestTorch:
    def test_vmap(self):
        arrays = {name: torch.asarray(x) for name, x in problem(40).items()}
        batch = {name: torch.stack([x, x * 0.5]) for name, x in arrays.items()}
        names = list(batch)
        call = torch.vmap(lambda *x: kt.delta_rule(**dict(zip(names, x, strict=True))))
        torch.testing.assert_close(call(*batch.values()), kt.delta_rule(**batch))

    def test_stays_on_its_device(self):
        q = torch.empty(2, 4, 100, 8, device="meta")
        out, state = kt.delta_rule(q, q, q, return_state=True)
        assert (out.device.type, state.S.device.type) == ("meta", "meta")

    def test_autocast_mixes_dtypes(self):
        arrays = {name: torch.asarray(x) for name, x in problem(40, dtype=np.float32).items()}
        half = {**arrays, "q": arrays["q"].bfloat16(), "k": arrays["k"].bfloat16()}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = kt.delta_rule(**half)
        own = {**arrays, "q": half["q"].float(), "k": half["k"].float()}
        torch.testing.assert_close(out, kt.delta_rule(**own))
