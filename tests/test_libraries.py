"""NumPy, PyTorch, JAX and array-api-strict share one code path and get their own arrays back."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
from oracle import MAPS, SIGNED_FEATURES

import kerneltrick as kt
from kerneltrick._arrays import as_numpy

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

LIBRARIES = {
    "torch": (torch.asarray, torch.Tensor),
    "jax": (jax.numpy.asarray, jax.Array),
    "array-api-strict": (array_api_strict.asarray, type(array_api_strict.asarray(1.0))),
}


# One map in every library, the others in turn. XLA takes seconds per map: one for `make test`.
EVERYWHERE = "favor:features=16"
PAIRS = [
    pytest.param(
        text, library, marks=[pytest.mark.slow] if library == "jax" and text != EVERYWHERE else []
    )
    for number, text in enumerate(MAPS)
    for place, library in enumerate(LIBRARIES)
    if text == EVERYWHERE or number % len(LIBRARIES) == place
]
BUT_FOR_JAX = [
    pytest.param(library, marks=[pytest.mark.slow] if library == "jax" else [])
    for library in LIBRARIES
]


def arrays(n=70, dtype=np.float32, lead=(2, 2), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*lead, n, w)).astype(dtype) for w in (6, 6, 5)]


@pytest.mark.parametrize(("text", "library"), PAIRS)
def test_every_map_agrees_with_numpy(text, library):
    convert, kind = LIBRARIES[library]
    q, k, v = arrays()
    rng = np.random.default_rng(1)
    extra = {
        "mask": rng.random((2, 70)) > 0.2,
        "log_decay": -rng.random((2, 2, 70)).astype(np.float32),
        "segment_ids": np.sort(rng.integers(0, 3, 70)),
    }
    options = {"causal": True, "on_zero": "zero", "normalize": text not in SIGNED_FEATURES}
    expected, state = kt.linear_attention(q, k, v, text, return_state=True, **extra, **options)
    out, own = kt.linear_attention(
        *map(convert, (q, k, v)), text, return_state=True,
        **{name: convert(x) for name, x in extra.items()}, **options,
    )  # fmt: skip
    assert isinstance(out, kind)
    assert isinstance(own.U, kind)
    size = np.abs(expected).max()
    np.testing.assert_allclose(as_numpy(out), expected, rtol=2e-5, atol=3e-6 * size)
    reached = own.sums.numpy() * np.exp(as_numpy(own.log_scale))[..., None, None]
    target = state.sums.numpy() * np.exp(state.log_scale)[..., None, None]
    np.testing.assert_allclose(reached, target, rtol=2e-5, atol=1e-5 * np.abs(target).max())


@pytest.mark.parametrize("library", BUT_FOR_JAX)
def test_other_attention_agrees_with_numpy(library):
    convert, kind = LIBRARIES[library]
    q, k, v = arrays(20)
    mask = np.arange(20) % 4 > 0
    for call in (
        lambda q, k, v, m: kt.softmax_attention(q, k, v, causal=True, mask=m),
        lambda q, k, v, m: kt.hard_attention(q, k, v, mask=m),
        lambda q, k, v, m: kt.hard_attention(q, k, v, mask=m, substitute="gumbel", seed=3),
        lambda q, k, v, m: kt.kernel_attention(q, k, v, "taylor:order=2", mask=m),
        lambda q, k, v, m: kt.attention_weights(q, k, "elu", mask=m, rows=[3, 5]),
    ):
        out = call(*map(convert, (q, k, v, mask)))
        assert isinstance(out, kind)
        np.testing.assert_allclose(as_numpy(out), call(q, k, v, mask), rtol=1e-4, atol=1e-5)


class TestJax:
    def test_jit_agrees_and_compiles_once_for_a_stream(self):
        traces = 0

        def step(q, k, v, state):
            nonlocal traces
            traces += 1
            return kt.linear_attention(q, k, v, causal=True, state=state, return_state=True)

        jitted = jax.jit(step)
        q, k, v = (jax.numpy.asarray(x) for x in arrays(160))
        whole = kt.linear_attention(q, k, v, causal=True)
        state = kt.State.empty("elu", k, v)
        pieces = []
        for lo in range(0, 160, 20):
            out, state = jitted(*(x[..., lo : lo + 20, :] for x in (q, k, v)), state)
            pieces.append(out)
        streamed = jax.numpy.concatenate(pieces, axis=-2)
        np.testing.assert_allclose(streamed, whole, rtol=1e-5, atol=1e-6)
        assert int(state.stop) == 160
        assert traces <= 2  # the first state holds Python numbers, later ones arrays

    def test_compile_time_does_not_depend_on_n(self):
        def size(n):
            q, k, v = (jax.numpy.zeros((2, n, 8)) for _ in range(3))

            def call(q, k, v):
                return kt.linear_attention(
                    q, k, v, "favor:features=16", causal=True, engine="chunked"
                )

            return len(str(jax.make_jaxpr(call)(q, k, v)))

        small, large = size(64 * 64), size(64 * 4096)
        assert large < 1.02 * small

    def test_vanishing_normaliser_is_nan_when_traced_and_raises_when_not(self):
        q, k = jax.numpy.asarray([[1.0, -1.0]]), jax.numpy.asarray([[-1.0, 1.0]])
        v = jax.numpy.ones((1, 1))
        with pytest.raises(kt.VanishingNormalizerError):
            kt.linear_attention(q, k, v, "relu")
        assert jax.numpy.isnan(jax.jit(lambda *a: kt.linear_attention(*a, "relu"))(q, k, v)).all()

        def strict(*a):
            return kt.linear_attention(*a, "relu", on_zero="raise")

        with pytest.raises(ValueError, match="needs values that can be looked at"):
            jax.jit(strict)(q, k, v)

    def test_sums_without_float64_are_as_good_as_with(self):
        """A pair of float32 accumulates a long sum as exactly as float64."""
        n, piece = 400_000, 50_000
        rng = np.random.default_rng(2)
        state, exact = None, np.zeros(4)
        for _ in range(0, n, piece):
            k = rng.random((piece, 4)).astype(np.float32)
            x = jax.numpy.asarray(k)
            _, state = kt.linear_attention(
                x, x, x[:, :1], "identity", causal=True, state=state, return_state=True,
                engine="chunked",  # the core sums in float64
            )  # fmt: skip
            exact += k.astype(np.float64).sum(0)
        assert state.sums.lo is not None
        total = state.sums.numpy()[0, :, -1]
        assert (np.abs(total - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()

    def test_vmap(self):
        q, k, v = (jax.numpy.asarray(x) for x in arrays(50))
        mapped = jax.vmap(lambda q, k, v: kt.linear_attention(q, k, v, causal=True))(q, k, v)
        np.testing.assert_allclose(
            mapped, kt.linear_attention(q, k, v, causal=True), rtol=1e-5, atol=1e-6
        )


class TestTorch:
    def test_vmap_and_functional_grad(self):
        q, k, v = (torch.asarray(x) for x in arrays(50))
        call = torch.vmap(lambda q, k, v: kt.linear_attention(q, k, v, causal=True))
        torch.testing.assert_close(call(q, k, v), kt.linear_attention(q, k, v, causal=True))

        def loss(q):
            return kt.linear_attention(q, k, v, causal=True).sum()

        leaf = q.clone().requires_grad_()
        loss(leaf).backward()
        torch.testing.assert_close(torch.func.grad(loss)(q), leaf.grad)

    def test_fake_tensors_pass_through(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            q = torch.empty(2, 4, 100, 8)
            assert kt.linear_attention(q, q, q, causal=True).shape == (2, 4, 100, 8)

    def test_stays_on_its_device(self):
        q = torch.empty(2, 4, 100, 8, device="meta")
        out, state = kt.linear_attention(q, q, q, causal=True, return_state=True)
        assert out.device.type == "meta"
        assert state.U.device.type == "meta"

    def test_does_not_require_grad_without_need(self):
        q, k, v = (torch.asarray(x) for x in arrays(50))
        assert not kt.linear_attention(q, k, v, causal=True).requires_grad


class TestStateBetweenLibraries:
    @pytest.mark.parametrize("library", LIBRARIES)
    @pytest.mark.parametrize("text", ["favor:features=8"])
    def test_a_state_moves_and_goes_on(self, text, library, tmp_path):
        convert, _ = LIBRARIES[library]
        q, k, v = arrays(40, lead=(2,))
        options = {"causal": True}
        _, state = kt.linear_attention(q, k, v, text, return_state=True, **options)
        later = arrays(10, lead=(2,), seed=1)
        expected = kt.linear_attention(*later, text, state=state, **options)
        own = [convert(x) for x in later]
        out = kt.linear_attention(*own, text, state=state.to(own[0]), **options)
        np.testing.assert_allclose(as_numpy(out), expected, rtol=1e-4, atol=1e-5)
        state.to(own[0]).save(tmp_path / "s")
        back = kt.State.load(tmp_path / "s", like=own[0])
        again = kt.linear_attention(*own, text, state=back, **options)
        np.testing.assert_allclose(as_numpy(again), as_numpy(out), rtol=1e-5, atol=1e-6)


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout


def test_import_adds_little_to_numpy():
    """The import loads the subpackages for attention, one other package, and little of Python."""
    loaded = run(
        "import numpy, sys; before = {*sys.modules}\n"
        "import kerneltrick; kerneltrick.linear_attention; print(*{*sys.modules} - before)"
    ).split()
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages == {"kerneltrick", "array_api_compat"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("kerneltrick.")}
    assert {room for room in rooms if not room.startswith("_")} == {"attention", "engines", "maps"}
    assert "kerneltrick._core" not in loaded
    slow = {"asyncio", "concurrent", "ctypes", "email", "http", "inspect", "multiprocessing",
            "socket", "ssl", "subprocess", "tempfile", "unittest", "xml"}  # fmt: skip
    assert not slow & set(loaded)


def test_types_are_checked_without_optional_libraries():
    """`make lint` installs no extras, so mypy must know each package that is imported."""
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).resolve().parents[1]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in root.glob("src/**/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {x.name for node in nodes if isinstance(node, ast.Import) for x in node.names}
    names |= {x.module for x in nodes if isinstance(x, ast.ImportFrom) and x.module and not x.level}
    imported = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    told = {name for x in settings["tool"]["mypy"]["overrides"] for name in x["module"]}
    always = {re.split(r"\W", text)[0] for text in settings["project"]["dependencies"]}
    known = {name.removesuffix(".*") for name in told} | always
    assert imported - known == {"kerneltrick"}


def test_use_with_numpy_pulls_in_no_optional_library():
    loaded = run(
        "import kerneltrick as kt, numpy as np, sys\n"
        "x = np.ones((5, 4)); kt.linear_attention(x, x, x, causal=True)\n"
        "print(*sys.modules)"
    ).split()
    assert not {"torch", "jax", "sklearn"} & set(loaded)


class TestPitfalls:
    """Findings of a review, kept as a regression test."""

    def test_jax_sees_a_changed_function(self):
        class Phi:
            weight = jax.numpy.eye(6)

            def __call__(self, x):
                return jax.numpy.exp(x @ self.weight)

        q, k, v = (jax.numpy.asarray(x) for x in arrays(20))
        phi = Phi()
        before = kt.linear_attention(q, k, v, phi)
        phi.weight = -2 * phi.weight
        after = kt.linear_attention(q, k, v, phi)
        expected = kt.linear_attention(q, k, v, lambda x: jax.numpy.exp(-2 * x))
        np.testing.assert_allclose(after, expected, rtol=1e-5)
        assert float(abs(after - before).max()) > 0.1

    def test_equal_maps_are_one_compilation(self):
        one, two = (kt.maps.Favor(features=np.int64(16)) for _ in range(2))
        assert one == two
        assert hash(one) == hash(two) == hash(kt.maps.get("favor:features=16"))
        assert kt.maps.Poly(2, 1) == kt.maps.get("poly:degree=2,constant=1")
        weight = np.eye(3)
        assert kt.maps.Hedgehog(weight) != kt.maps.Hedgehog(weight)

    @pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
    def test_boolean_features_are_refused(self, library):
        convert = LIBRARIES[library][0] if library != "numpy" else np.asarray
        q, k, v = map(convert, arrays(10))
        with pytest.raises(TypeError, match="floating-point features, not"):
            kt.linear_attention(q, k, v, lambda x: x > 0)

    def test_autocast_does_not_sum_in_half_precision(self):
        q, k, v = (torch.asarray(x) for x in arrays(100))
        plain = kt.linear_attention(q, k, v, causal=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = kt.linear_attention(q, k, v, causal=True)
        assert torch.equal(plain, inside)

    def test_padding_never_reaches_a_map_as_zero(self):
        weight = torch.randn(6, 6, requires_grad=True)

        def direction(x):
            y = x @ weight
            return torch.exp(y / y.norm(dim=-1, keepdim=True))

        q, k, v = (torch.asarray(x) for x in arrays(70))
        mask = torch.arange(70) % 5 > 0
        kt.linear_attention(q, k, v, direction, causal=True, mask=mask).sum().backward()
        assert torch.isfinite(weight.grad).all()

    def test_only_values_traced(self):
        q, k, v = (jax.numpy.asarray(x) for x in arrays(20))
        traced = jax.jit(lambda v: kt.linear_attention(q, k, v, causal=True))(v)
        np.testing.assert_allclose(
            traced, kt.linear_attention(q, k, v, causal=True), rtol=1e-5, atol=1e-6
        )

    def test_state_is_a_carry_of_lax_scan(self):
        q, k, v = (jax.numpy.asarray(x) for x in arrays(8, lead=(2,)))

        def step(state, token):
            q, k, v = (x[:, None] for x in token)
            out, state = kt.linear_attention(
                q, k, v, causal=True, log_decay=-0.1, state=state, return_state=True
            )
            return state, out[:, 0]

        tokens = tuple(jax.numpy.moveaxis(x, 1, 0) for x in (q, k, v))
        first = kt.State.empty("elu", k, v, decay_width=1)
        last, outs = jax.lax.scan(step, first, tokens)
        expected = kt.linear_attention(q, k, v, causal=True, log_decay=-0.1)
        np.testing.assert_allclose(jax.numpy.moveaxis(outs, 0, 1), expected, rtol=1e-5, atol=1e-6)
        assert int(last.stop) == 8

    def test_cosformer_far_from_the_start_is_as_accurate_as_at_it(self):
        q, k, v = arrays(60, lead=(2,))
        text = "cosformer:horizon=128"
        near = kt.linear_attention(q, k, v, text, causal=True, on_zero="zero")
        empty = kt.State.empty(text, k, v, start=10**9)
        far = kt.linear_attention(q, k, v, text, causal=True, on_zero="zero", state=empty)
        np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-5)

    def test_cosformer_horizon_is_checked_by_segment_and_by_kernel(self):
        q = np.ones((40, 2))
        ids = np.arange(40) // 10
        kt.linear_attention(q, q, q, "cosformer:horizon=9", causal=True, segment_ids=ids)
        with pytest.raises(ValueError, match="up to 9 apart"):
            kt.linear_attention(q, q, q, "cosformer:horizon=8", causal=True, segment_ids=ids)
        with pytest.raises(ValueError, match="up to 39 apart"):
            kt.kernel_attention(q, q, q, "cosformer:horizon=8")
        start = kt.State.empty("cosformer:horizon=8", q, q, start=np.int64(0))
        with pytest.raises(ValueError, match="up to 39 apart"):
            kt.linear_attention(q, q, q, "cosformer:horizon=8", causal=True, state=start)

    def test_overflow_does_not_reach_masked_weights(self):
        q, k, _ = arrays(20, lead=(2,))
        with np.errstate(over="ignore"):
            weights = kt.attention_weights(q * 100, k * 100, "exp", causal=True, normalize=False)
        assert (np.triu(weights, 1) == 0).all()

    def test_numpy_numbers_are_numbers(self):
        q, k, v = (torch.asarray(x) for x in arrays(20))
        kt.linear_attention(
            q, k, v, causal=np.bool_(True), chunk_size=np.int64(16), scale=np.float32(0.5),
            log_decay=np.float32(-0.1),
        )  # fmt: skip
        kt.hard_attention(q, k, v, substitute="gumbel", temperature=np.float32(0.5))
        with pytest.raises(TypeError, match="to learn it"):
            kt.linear_attention(q, k, v, scale=torch.tensor(0.5, requires_grad=True))

    def test_weights_per_key_head_serve_grouped_queries(self):
        rng = np.random.default_rng(0)
        q, k = rng.standard_normal((4, 10, 3)), rng.standard_normal((2, 10, 3))
        weight = rng.standard_normal((2, 3, 5))
        out = kt.linear_attention(q, k, k, kt.maps.Hedgehog(weight))
        for head in range(4):
            one = kt.linear_attention(
                q[head], k[head // 2], k[head // 2], kt.maps.Hedgehog(weight[head // 2])
            )
            np.testing.assert_allclose(out[head], one, rtol=1e-12)
        with pytest.raises(ValueError, match="weights for 3 heads, but x has 2"):
            kt.linear_attention(q, k, k, kt.maps.Hedgehog(rng.standard_normal((3, 3, 5))))

    def test_half_precision_with_a_module_as_map(self):
        module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Softplus())
        q, k, v = (torch.asarray(x).bfloat16() for x in arrays(10))
        assert kt.linear_attention(q, k, v, module).dtype == torch.bfloat16

    def test_no_key_left_is_said(self):
        q, k, v = arrays(10)
        for call in (kt.softmax_attention, kt.linear_attention):
            with pytest.raises(kt.VanishingNormalizerError, match="no key that it may see"):
                call(q, k, v, mask=np.zeros(10, bool))
