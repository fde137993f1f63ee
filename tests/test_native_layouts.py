"""The compiled engine with all strides, dtypes and sizes, and with NaN."""

import gc

import numpy as np
import pytest
from native_cases import FUSED, ISAS, inputs, options_of
from oracle import MAPS, same_bits, turns

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("two_threads")


def misaligned(x):
    raw = bytearray(x.nbytes + 1)
    raw[1:] = x.tobytes()
    made = np.frombuffer(raw, dtype=x.dtype, offset=1).reshape(x.shape)
    assert not made.flags.aligned or x.dtype.itemsize == 1
    return made


def frozen(x):
    made = x.copy()
    made.flags.writeable = False
    return made


def spaced(x):
    made = np.full((*x.shape[:-1], x.shape[-1] * 3), np.nan if x.dtype.kind == "f" else 1, x.dtype)
    made[..., ::3] = x
    return made[..., ::3]


LAYOUTS = {
    "fortran": np.asfortranarray,
    "tokens last": lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2),
    "batch last": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0),
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ..., ::-1, ::-1])[::-1, ..., ::-1, ::-1],
    "spaced": spaced,
    "misaligned": misaligned,
    "read-only": frozen,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in_memory_do_not_change_bits(layout, monkeypatch):
    for isa, dtype in turns([*LAYOUTS].index(layout), ISAS, [np.float16, np.float32, np.float64]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        lay_out(LAYOUTS[layout], dtype)


def lay_out(arrange, dtype):
    arrays = inputs(150, 6, 5, (4, 2), (2,), dtype=dtype)
    rng = np.random.default_rng(0)
    extra = {
        "mask": rng.random((2, 2, 150)) > 0.2,
        "log_decay": -rng.random((2, 2, 150)),
        "segment_ids": np.sort(rng.integers(0, 3, (2, 2, 150))),
        "positions": rng.integers(0, 100, (2, 150)).astype(float),
    }
    per_head = maps.T2R(weight=rng.standard_normal((2, 6, 5)), bias=rng.random(5) + 0.1)
    for feature_map in ("elu", "cosformer:horizon=100", per_head):
        given, mine = dict(extra), feature_map
        if feature_map != "cosformer:horizon=100":
            del given["positions"]
        common = {"causal": True, "on_zero": "zero", "engine": "native"}
        expected = kt.linear_attention(*arrays, feature_map, **given, **common)
        copies = [x.copy() for x in arrays]
        moved = [arrange(x) for x in arrays]
        # The extra arrays have fewer axes: arranged with one more, which is then taken off.
        given = {name: arrange(x[None])[0] for name, x in given.items()}
        if feature_map is per_head:
            mine = maps.T2R(
                weight=arrange(per_head.weight), bias=arrange(per_head.bias[None, None])[0, 0]
            )
        out = kt.linear_attention(*moved, mine, **given, **common)
        assert same_bits(out, expected)
        assert all(same_bits(x, y) for x, y in zip(moved, copies, strict=True))


def test_zero_strides_are_repeated_values(isa):
    rng = np.random.default_rng(0)
    shape = (3, 2, 100, 6)
    parts = ((1, 1, 100, 6), (3, 2, 1, 6), (3, 2, 100, 1), (1, 1, 1, 1))
    for part, causal in turns(ISAS.index(isa), parts, [False, True]):
        one = [np.abs(rng.standard_normal(part)).astype(np.float32) for _ in range(3)]
        views = [np.broadcast_to(x, shape) for x in one]
        out = kt.linear_attention(*views, causal=causal, engine="native")
        full = [np.ascontiguousarray(x) for x in views]
        assert same_bits(out, kt.linear_attention(*full, causal=causal, engine="native"))
        tensors = [torch.tensor(x).expand(shape) for x in one]
        assert same_bits(kt.linear_attention(*tensors, causal=causal).numpy(), out)


def test_zero_strides_have_the_gradient_of_their_sum(isa):
    rng = np.random.default_rng(0)
    one = [torch.tensor(rng.standard_normal((1, 1, 6))).requires_grad_() for _ in range(3)]
    results = []
    for engine in ("native", "dense"):
        out = kt.linear_attention(*(x.expand(2, 50, 6) for x in one), causal=True, engine=engine)
        weights = torch.asarray(np.random.default_rng(1).standard_normal((2, 50, 6)))
        results.append(torch.autograd.grad((out * weights).sum(), one))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_swapped_bytes_are_right_or_refused():
    arrays = inputs(50, 4, 3)
    swapped = [x.astype(x.dtype.newbyteorder()) for x in arrays]
    expected = kt.linear_attention(*arrays, causal=True)
    np.testing.assert_allclose(kt.linear_attention(*swapped, causal=True), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"native engine cannot run this call.*[<>]f8"):
        kt.linear_attention(*swapped, engine="native")
    decay, where = -np.random.default_rng(0).random((2, 50)), np.arange(50.0) + 3
    for name, x, text in (
        ("log_decay", decay, "elu"),
        ("positions", where, "cosformer:horizon=99"),
    ):
        one, two = (
            kt.linear_attention(
                *arrays, text, causal=True, on_zero="nan", engine="native", **{name: y}
            )
            for y in (x, x.astype(x.dtype.newbyteorder()))
        )
        assert same_bits(one, two)
    weight = np.random.default_rng(1).standard_normal((4, 5))
    one, two = (
        kt.linear_attention(*arrays, maps.Hedgehog(w), engine="native")
        for w in (weight, weight.astype(weight.dtype.newbyteorder()))
    )
    assert same_bits(one, two)


@pytest.mark.parametrize("text", ["elu", "favor:features=16", "poly:degree=2", "poly:degree=3"])
def test_empty_batches_and_sequences(text, monkeypatch):
    shapes = [(0, 2, 5, 4), (2, 0, 4), (0, 1, 0, 4)]
    for isa, shape in turns(MAPS.index(text) if text in MAPS else 0, ISAS, shapes):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        attend_to_nothing(text, shape)


def attend_to_nothing(text, shape):
    def leaf(x):  # not through NumPy, whose empty arrays have strides of 0
        return torch.zeros(x.shape, dtype=torch.float64).requires_grad_()

    for make in (np.asarray, torch.asarray, leaf):
        x = make(np.zeros(shape))
        if text == "poly:degree=3" and torch.is_tensor(x) and x.requires_grad:
            continue
        for causal in (False, True):
            out, state = kt.linear_attention(
                x, x, x, text, causal=causal, engine="native", return_state=True
            )
            assert tuple(out.shape) == shape
            assert state.stop == shape[-2]
            if torch.is_tensor(out) and out.requires_grad:
                out.sum().backward()
                assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormal_numbers_are_numbers(dtype, isa):
    tiny = np.finfo(dtype).smallest_subnormal
    q, k, v = inputs(100, 4, 3, dtype=dtype)
    v = (np.random.default_rng(0).integers(1, 10**6, v.shape) * tiny).astype(dtype)
    for text in ("elu", "identity", "favor:features=16"):
        options = {"causal": True, "normalize": text != "identity"}
        out = kt.linear_attention(q, k, v, text, engine="native", **options)
        scaled = kt.linear_attention(
            q.astype(np.float64), k.astype(np.float64), v / tiny if dtype == np.float64
            else v.astype(np.float64) / float(tiny), text, engine="dense", **options,
        )  # fmt: skip
        ours = out.astype(np.float64) / float(tiny) if dtype == np.float32 else out / tiny
        np.testing.assert_allclose(ours, scaled, rtol=1e-3, atol=100)  # each product is rounded
        assert np.abs(ours).max() > 10**5


@pytest.mark.parametrize("text", FUSED)
def test_nan_and_inf_spoil_the_same_outputs_as_in_dense(text, monkeypatch):
    for isa, case in turns(text, ISAS, ["all", "full grouped"]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        spoil(text, case)


def spoil(text, case):
    (q, k, v), options = options_of(case, text)
    rng = np.random.default_rng(3)
    for x in (q, k, v):
        at = rng.random(x.shape) > 0.998
        x[at] = rng.choice([np.nan, np.inf, -np.inf], at.sum())
    expected, end = kt.linear_attention(q, k, v, engine="dense", return_state=True, **options)
    out, after = kt.linear_attention(q, k, v, engine="native", return_state=True, **options)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    size = np.nanmax(np.abs(expected), initial=1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-11 * size)
    np.testing.assert_array_equal(np.isnan(after.U), np.isnan(end.U))
    np.testing.assert_array_equal(np.isnan(after.Z), np.isnan(end.Z))


@pytest.mark.parametrize("text", ["elu", "favor:features=16", "taylor:order=2", "poly:degree=3"])
def test_half_precision_is_float32_rounded_once(text, isa):
    for dtype, causal in turns(ISAS.index(isa), ["float16", "bfloat16"], [False, True]):
        round_once(text, causal, dtype)


def round_once(text, causal, dtype):
    half = getattr(torch, dtype)
    arrays = [torch.asarray(np.abs(x)).to(half) for x in inputs(200, 6, 5, (4, 2))]
    out = kt.linear_attention(*arrays, text, causal=causal, engine="native")
    single = kt.linear_attention(*(x.float() for x in arrays), text, causal=causal, engine="native")
    assert out.dtype == half
    assert torch.equal(out, single.to(half))
    if dtype == "float16":
        plain = kt.linear_attention(
            *(x.numpy() for x in arrays), text, causal=causal, engine="native"
        )
        assert plain.dtype == np.float16
        assert same_bits(plain, out.numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gradients_are_those_of_float32_rounded(dtype, isa):
    half = getattr(torch, dtype)
    rounded = [torch.asarray(x).to(half) for x in inputs(100, 6, 5, (4, 2))]
    weights = torch.asarray(np.random.default_rng(1).standard_normal((4, 100, 5)))
    results = []
    for kind in (half, torch.float32):
        leaves = [x.to(kind).requires_grad_() for x in rounded]
        out = kt.linear_attention(*leaves, "elu", causal=True, engine="native")
        assert out.dtype == kind
        grads = torch.autograd.grad((out.float() * weights.to(half).float()).sum(), leaves)
        assert all(g.dtype == kind for g in grads)
        results.append([g.float() for g in grads])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=2**-6, atol=2**-7 * float(y.abs().max()))


def test_overflow_of_float16_is_inf_and_its_largest_number_is_not(isa):
    top = np.float16(65504)
    x, v = np.ones((3, 2), np.float16), np.full((3, 1), top)
    assert (kt.linear_attention(x, x, v, causal=True, engine="native") == top).all()
    out = kt.linear_attention(x, x, v, "identity", causal=True, normalize=False, engine="native")
    assert np.isinf(out).all()


@pytest.mark.slow
def test_offsets_beyond_two_to_the_31_elements(isa):
    """Rows, tokens and elements far apart in lazily allocated zero memory."""
    import mmap

    d, n, rows, far = 3, 4, 2, 2**31 + 16
    sizes = {"row": far, "token": far // 3, "element": far // 2}
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    expected = inputs(n, d, d, (rows, rows), dtype=np.float32)
    for axis, step in sizes.items():
        shape = (rows, n, d)
        strides = {
            "row": (step, d, 1), "token": (n * step, step, 1), "element": (n * 8, 8, step),
        }[axis]  # fmt: skip
        reach = sum((count - 1) * s for count, s in zip(shape, strides, strict=True)) + 1
        assert reach > 2**31
        memory = mmap.mmap(-1, reach * 4, flags=flags)
        flat = np.frombuffer(memory, np.float32)
        views = []
        for x in expected:
            view = np.lib.stride_tricks.as_strided(flat, shape, [4 * s for s in strides])
            view[...] = x
            views.append(view)
            one = [view if y is x else y for y in expected]
            for causal in (True, False):
                out = kt.linear_attention(*one, causal=causal, engine="native")
                same = kt.linear_attention(*expected, causal=causal, engine="native")
                assert same_bits(out, same), axis
        del views, view, one, flat
        gc.collect()
        memory.close()


@pytest.mark.slow
def test_more_than_two_to_the_31_numbers_of_keys_are_all_summed():
    """2²⁸ + 5 keys of 8 zeros in untouched memory, φ = 1; the last one is not zero."""
    import mmap

    n, d = 2**28 + 5, 8
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, n * d * 4, flags=flags)
    k = np.frombuffer(memory, np.float32).reshape(1, n, d)
    k[0, -1] = np.arange(d)
    v = np.broadcast_to(np.float32(2), (1, n, 1))
    out, state = kt.linear_attention(
        np.ones((1, 3, d), np.float32), k, v, "elu", engine="native", return_state=True
    )
    np.testing.assert_allclose(out, 2, rtol=1e-6)
    np.testing.assert_array_equal(state.Z[0], n + np.arange(d))
    assert state.stop == n
    del k
    gc.collect()
    memory.close()
