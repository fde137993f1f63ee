"""The compiled engine in PyTorch: gradients against dense, and other ways to differentiate."""

import numpy as np
import pytest
from native_cases import (
    FUSED,
    ISAS,
    LEARNED,
    custom,
    each_isa,
    gradients,
    inputs,
    options_of,
    share,
)
from oracle import turns, ulp

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize("text", [*FUSED, *(f"learned {kind}" for kind in LEARNED)])
def test_gradients_equal_those_of_dense(text, monkeypatch):
    """For maps with weights, every case; the values of the others are drawn in random_calls."""
    cases = ["all", "by feature", "full grouped", "raw"]
    if text.startswith("cosformer"):
        cases.append("positions")
    elif text in FUSED:
        cases = share(cases, text, 4)
    for case in cases:
        if case == "by feature" and text in ("poly:degree=2", "taylor:order=2"):
            continue  # by the chunked engine: a decay per feature leaves no closed form
        gradients_equal_those_of_dense(text, case, monkeypatch)


def gradients_equal_those_of_dense(text, case, monkeypatch):
    arrays, options = options_of(case, text)
    heads, d, width = arrays[1].shape[-3], arrays[0].shape[-1], arrays[2].shape[-1]
    for x in arrays[:2]:
        x[..., 0] = np.abs(x[..., 0]) + 1  # no normaliser near 0
    options.pop("feature_map")
    if options.pop("state", None) is not None:
        options["before"] = inputs(
            9, d, width, (arrays[0].shape[-3], heads), arrays[0].shape[:-3], seed=5
        )
    double = dict(options)
    exact = gradients(arrays, text, heads, "dense", np.float64, **options)
    single = [x.astype(np.float32) for x in arrays]
    if "before" in options:
        options["before"] = [x.astype(np.float32) for x in options["before"]]
    exact32 = gradients(single, text, heads, "dense", np.float64, **options)
    naive = gradients(single, text, heads, "dense", np.float32, **options)
    for name in each_isa(monkeypatch):
        ours = gradients(arrays, text, heads, "native", np.float64, **double)
        for mine, theirs in zip(ours, exact, strict=True):
            size, told = float(theirs.abs().max()), f"{case}, {name}"
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10 * size, msg=told)
        ours = gradients(single, text, heads, "native", np.float32, **options)
        for i, (mine, plain, theirs) in enumerate(zip(ours, naive, exact32, strict=True)):
            floor = 8 * ulp(theirs.numpy())
            assert mine.dtype == torch.float32
            allowed = 3 * float((plain - theirs).abs().max()) + floor
            assert float((mine - theirs).abs().max()) <= allowed, (case, name, i)


@pytest.mark.parametrize("text", ["elu", "favor:features=16", "exp", "taylor:order=2", "hedgehog"])
def test_gradients_beside_nan_are_those_of_dense(text, monkeypatch):
    for isa, causal in turns(text, ISAS, [False, True]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        gradients_beside_nan(text, causal)


def gradients_beside_nan(text, causal):
    arrays = inputs(100, 5, 4, (2, 2))
    for x in arrays[:2]:
        x[..., 0] = np.abs(x[..., 0]) + 1
    arrays[0][0, 10, 2] = np.nan
    arrays[1][1, 70, 0] = np.inf
    arrays[2][0, 65, 1] = -np.inf
    results = []
    for engine in ("native", "dense"):
        leaves = [torch.tensor(x).requires_grad_() for x in arrays]
        out = kt.linear_attention(*leaves, text, causal=causal, engine=engine)
        results.append(torch.autograd.grad(torch.nan_to_num(out).sin().sum(), leaves))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize(
    ("text", "kind"), [("elu", "token"), ("elu", "feature"), ("poly:degree=2", "token")]
)
def test_gradients_of_decays_keep_float32_precision(text, kind, normalize):
    for strength in (0.01, 2, 15):
        gradients_of_decays(text, kind, strength, normalize)


def gradients_of_decays(text, kind, strength, normalize):
    """Relative to the largest one, however small decays make it, and values as large as may be."""
    rng = np.random.default_rng(0)
    q, k, v, cotangent = (rng.standard_normal((h, 101, 7)).astype("f4") for h in (4, 2, 2, 4))
    if text != "elu":  # keep its normaliser away from 0
        q, k = np.abs(q) + 0.5, np.abs(k) + 0.5
    v *= np.float32(1e30 if kind == "token" else 1e22)
    shape = (2, 101) if kind == "token" else (2, 101, 7)
    decay = (-strength * (rng.random(shape) + 0.5)).astype("f4")

    def gradient(engine, dtype):
        leaf = torch.tensor(decay, dtype=dtype).requires_grad_()
        tensors = (torch.tensor(x, dtype=dtype) for x in (q, k, v))
        out = kt.linear_attention(
            *tensors, text, causal=True, log_decay=leaf, normalize=normalize, engine=engine
        )
        (out * torch.tensor(cotangent, dtype=dtype)).sum().backward()
        return leaf.grad.numpy()

    exact = gradient("dense", torch.float64)
    error = np.abs(gradient("native", torch.float32) - exact).max()
    assert error < 3e-6 * np.abs(exact).max()


@pytest.mark.parametrize("strengths", [(40,), (1e7,), (0.01, 3, 40, 1e7)], ids=str)
def test_blocks_with_strong_decays_are_exact(strengths, isa):
    """Within a block decays may pass every exponent of float32, and weak ones may follow."""
    rng = np.random.default_rng(1)
    q, k, v, cotangent = (rng.standard_normal((h, 101, 7)).astype("f4") for h in (4, 2, 2, 4))
    decay = (-rng.choice(strengths, (2, 101)) * (rng.random((2, 101)) + 0.5)).astype("f4")
    masks = {
        "mask": rng.random((2, 101)) > 0.2,
        "segment_ids": np.arange(101)[None] // [[40], [29]],
    }

    def results(engine, dtype):
        leaves = [torch.tensor(x, dtype=dtype).requires_grad_() for x in (q, k, v, decay)]
        out = kt.linear_attention(
            *leaves[:3],
            "identity",
            causal=True,
            log_decay=leaves[3],
            normalize=False,
            engine=engine,
            **{name: torch.tensor(x) for name, x in masks.items()},
        )
        (out * torch.tensor(cotangent, dtype=dtype)).sum().backward()
        return [out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]

    exact = results("recurrent", torch.float64)
    for mine, theirs in zip(results("native", torch.float32), exact, strict=True):
        assert np.abs(mine - theirs).max() <= 2e-6 * np.abs(theirs).max() + 1e-15


def test_gradcheck_of_every_argument(isa):
    rng = np.random.default_rng(0)

    def leaf(*shape, add=0.0):
        return torch.asarray(rng.standard_normal(shape) / 2 + add).requires_grad_()

    q, k, v = leaf(2, 70, 3, add=0.5), leaf(1, 70, 3, add=0.5), leaf(1, 70, 2)
    weight, bias = leaf(3, 4), torch.asarray(rng.random(4) + 0.5).requires_grad_()
    before = leaf(1, 4, 3, add=0.5), leaf(1, 4, 2)
    decay = torch.asarray(-rng.random((1, 70)) - 0.01).requires_grad_()

    def attend(q, k, v, decay, weight, bias, k0, v0):
        phi = maps.T2R(weight=weight, bias=bias)
        _, state = kt.linear_attention(k0, k0, v0, phi, causal=True, return_state=True)
        out, after = kt.linear_attention(
            q, k, v, phi, causal=True, log_decay=decay, state=state, return_state=True,
            engine="native",
        )  # fmt: skip
        return out, after.U, after.Z

    assert torch.autograd.gradcheck(attend, (q, k, v, decay, weight, bias, *before), fast_mode=True)
    state = kt.State.empty("elu", k, v)

    def continued(sums):
        import dataclasses

        carry = state.carry._replace(sums=type(state.sums)(sums, None))
        mine = dataclasses.replace(state, carry=carry)
        return kt.linear_attention(
            q.detach(), k.detach(), v.detach(), causal=True, state=mine, engine="native"
        )

    sums = torch.asarray(rng.random((1, 3, 3)) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(continued, (sums,), fast_mode=True)


class TestOtherWaysToDifferentiate:
    """The chunked engine takes over automatically where the core cannot differentiate."""

    def arrays(self):
        return [torch.tensor(x) for x in inputs(20, 4, 3)]

    def weight(self):
        return torch.tensor(np.random.default_rng(0).standard_normal((4, 5)))

    def loss(self, engine="auto"):
        q, k, v = self.arrays()

        def of_weight(weight):
            phi = maps.Hedgehog(weight)
            return kt.linear_attention(q, k, v, phi, causal=True, engine=engine).sin().sum()

        return of_weight

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
    def test_forward_mode(self):
        import torch.autograd.forward_ad as fwad

        q, k, v = self.arrays()
        with fwad.dual_level():
            out = kt.linear_attention(fwad.make_dual(q, torch.ones_like(q)), k, v, causal=True)
            tangent = fwad.unpack_dual(out).tangent
        step = 1e-6
        ahead, behind = (kt.linear_attention(q + s, k, v, causal=True) for s in (step, -step))
        torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-8)

    def test_functions_of_q(self):
        q, k, v = self.arrays()

        def attend(q):
            return kt.linear_attention(q, k, v, causal=True, on_zero="nan")

        leaf = q.clone().requires_grad_()
        (expected,) = torch.autograd.grad(attend(leaf).sin().sum(), leaf)
        got = torch.func.grad(lambda q: attend(q).sin().sum())(q)
        torch.testing.assert_close(got, expected)
        both = torch.stack([q, 2 * q])
        got = torch.func.vmap(attend)(both)
        torch.testing.assert_close(got, torch.stack([attend(q), attend(2 * q)]))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
    def test_functions_of_weights(self):
        weight, loss, exact = self.weight(), self.loss(), self.loss("dense")
        leaf = weight.clone().requires_grad_()
        (expected,) = torch.autograd.grad(exact(leaf), leaf)
        torch.testing.assert_close(torch.func.grad(loss)(weight), expected)
        both = torch.stack([weight, 2 * weight])
        torch.testing.assert_close(
            torch.func.vmap(loss)(both), torch.stack([exact(weight), exact(2 * weight)])
        )
        _, tangent = torch.func.jvp(loss, (weight,), (weight,))
        torch.testing.assert_close(tangent, (expected * weight).sum())

    def test_weights_out_of_sight(self):
        """Parameters of a module that is used in a function, or in a map with a log-scale."""
        q, k, v = self.arrays()
        layer = torch.nn.Linear(4, 5).double()

        class Module(maps.FeatureMap):
            def dim(self, d):
                return 5

            def phi(self, x, positions=None):
                return layer(x).exp()

            def phi_query(self, x, positions=None):
                y = layer(x)
                top = y.max(-1, keepdim=True).values.detach()
                return (y - top).exp(), top[..., 0]

        for phi in (Module(), lambda x: layer(x).exp()):
            results = []
            for engine in ("auto", "dense"):
                out = kt.linear_attention(3 * q, 3 * k, v, phi, causal=True, engine=engine)
                results.append([out, *torch.autograd.grad(out.sin().sum(), layer.parameters())])
            for x, y in zip(*results, strict=True):
                torch.testing.assert_close(x, y)

    def test_no_grad_and_inference_mode(self):
        leaves = [x.requires_grad_() for x in self.arrays()]
        expected = kt.linear_attention(*leaves, causal=True)
        assert expected.requires_grad
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                out = kt.linear_attention(*leaves, causal=True, engine="native")
                phi = maps.Hedgehog(self.weight().requires_grad_())
                kt.linear_attention(*leaves, phi, causal=True, engine="native")
                kt.linear_attention(*leaves, custom, causal=True, engine="native")
            assert not out.requires_grad
            assert torch.equal(out, expected.detach())

    def test_autocast_changes_nothing(self):
        arrays = [x.float() for x in self.arrays()]
        leaves = [x.clone().requires_grad_() for x in arrays]
        expected = kt.linear_attention(*arrays, causal=True, engine="native")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = kt.linear_attention(*arrays, causal=True)
            recorded = kt.linear_attention(*leaves, causal=True)
        assert torch.equal(out, expected)
        assert torch.equal(recorded, expected)
        recorded.sum().backward()
        assert leaves[0].grad.dtype == torch.float32


def test_tensors_with_the_negative_bit(isa):
    def negative(x):
        made = torch.complex(torch.zeros_like(x), -x).conj().imag
        assert made.is_neg()
        return made

    q, k, v = (torch.tensor(x) for x in inputs(20, 4, 3))
    decay = -torch.rand(2, 20, dtype=torch.float64)
    weight = torch.randn(4, 5, dtype=torch.float64)
    for text in ("elu", "weights"):
        maps_ = (
            [text, text]
            if text == "elu"
            else [maps.Hedgehog(w) for w in (weight, negative(weight))]
        )
        options = {"causal": True, "engine": "native"}
        expected = kt.linear_attention(q, k, v, maps_[0], log_decay=decay, **options)
        arrays = [negative(x) for x in (q, k, v)]
        out = kt.linear_attention(*arrays, maps_[1], log_decay=negative(decay), **options)
        assert torch.equal(out, expected)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = kt.linear_attention(
            *(negative(x) for x in leaves), maps_[1], log_decay=decay, **options
        )
        (one,) = torch.autograd.grad((out * negative(v)).sum(), leaves[:1])
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = kt.linear_attention(*leaves, maps_[0], log_decay=decay, **options)
        (two,) = torch.autograd.grad((out * v).sum(), leaves[:1])
        assert torch.equal(one, two)
