"""The compiled engine: against dense, by every instruction set it has, and what it does to memory,
threads, signals and gradients."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from oracle import MAPS, SIGNED_FEATURES, make_decay, same_bits, ulp

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.engines import core

if core() is None:
    pytest.skip("kerneltrick was installed without its compiled core", allow_module_level=True)

torch = pytest.importorskip("torch")

ISAS = core().isas()
LENGTHS = [1, 63, 64, 65, 129, 1000]
LONG = ["elu", "exp", "favor:features=16", "taylor:order=2", "taylor:order=3", "hedgehog"]
FUSED = [text for text in MAPS if text.rpartition("=")[2] != "3" and "degree=3" not in text]


class Shifted(maps.Exp):
    """A map of somebody else's: with a log-scale, and another function for keys."""

    def phi_key(self, x, positions=None):
        features, log_scale = self.phi_query(x, positions)
        return features + 0.25, log_scale


def custom(x):
    return x * x + 0.25


def learned(kind, heads, d, seed=0, make=np.asarray):
    """Maps with weights: shared by all heads or one set for each, with and without a bias."""
    rng = np.random.default_rng([seed, heads, d])
    p = 7
    one, each = rng.standard_normal((d, p)) / 2, rng.standard_normal((heads, d, p)) / 2
    bias, biases = rng.random(p), rng.random((heads, 1, p))
    weight, offset = {
        "hedgehog": (one, None),
        "hedgehog each": (each, None),
        "hedgehog exp": (one, None),
        "hedgehog exp each": (each, None),
        "t2r": (one, None),
        "t2r bias": (one, bias),
        "t2r each": (each, bias),
        "t2r each bias": (each, biases),
        "t2r bias each": (one, biases),
    }[kind]
    if kind.startswith("t2r"):
        return maps.T2R(weight=make(weight), bias=None if offset is None else make(offset))
    return maps.Hedgehog(make(weight), activation="exp" if "exp" in kind else "softmax")


LEARNED = ["hedgehog", "hedgehog each", "hedgehog exp", "hedgehog exp each", "t2r", "t2r bias",
           "t2r each", "t2r each bias", "t2r bias each"]  # fmt: skip
EVERY = [*MAPS, *(f"learned {kind}" for kind in LEARNED), "subclass", "function"]


def make_map(text, heads, d, make=np.asarray):
    if text.startswith("learned "):
        return learned(text.removeprefix("learned "), heads, d, make=make)
    return {"subclass": Shifted(), "function": custom}.get(text, text)


@pytest.fixture(autouse=True)
def threads():
    """Two of ours; one of PyTorch's, whose many wait for each other on a busy machine."""
    before = core().get_threads(), torch.get_num_threads()
    kt.set_num_threads(2)
    torch.set_num_threads(1)
    yield
    kt.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture(params=ISAS)
def isa(request, monkeypatch):
    monkeypatch.setenv("KERNELTRICK_ISA", request.param)
    assert core().isa() == request.param
    return request.param


def each_isa(monkeypatch):
    """For tests whose reference takes longer than what they test."""
    for name in ISAS:
        monkeypatch.setenv("KERNELTRICK_ISA", name)
        yield name


def inputs(n, d, width, heads=(2, 2), lead=(), n_q=None, dtype=np.float64, seed=0, ones=True):
    rng = np.random.default_rng([seed, n, d, width])
    q = rng.standard_normal((*lead, heads[0], n if n_q is None else n_q, d))
    k, v = (rng.standard_normal((*lead, heads[1], n, w)) for w in (d, width))
    if ones and width:
        v[..., -1] = 1  # unnormalised, this column is the normaliser
    return [x.astype(dtype) for x in (q, k, v)]


def python(code, *arguments, timeout=120, **environment):
    """A program of its own, whose last line is the answer."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- Outputs ------------------------------------------------------------------------------------

CASES = {
    # name: (n, n_q, d, M, heads, lead, what else)
    "plain": (65, None, 5, 3, (2, 2), (), ""),
    "one token": (1, None, 5, 3, (2, 2), (), ""),
    "wide values": (63, None, 3, 19, (2, 2), (), "state"),
    "no values": (20, None, 4, 0, (2, 2), (), ""),
    "grouped": (129, None, 8, 8, (6, 2), (2,), "mask"),
    "all": (129, None, 7, 5, (4, 2), (2,), "mask decay segments state"),
    "by feature": (70, None, 6, 2, (2, 2), (), "feature state segments"),
    "raw": (65, None, 9, 1, (2, 1), (), "raw decay mask"),
    "full": (64, 33, 5, 3, (2, 2), (), "full"),
    "full grouped": (129, 70, 7, 9, (4, 2), (2,), "full mask state"),
    "full raw": (1, 65, 4, 4, (2, 2), (), "full raw"),
    "positions": (40, None, 5, 3, (2, 2), (2,), "positions"),
}


def options_of(case, text, dtype=np.float64):
    n, n_q, d, width, heads, lead, what = CASES[case]
    if text in ("learned t2r each bias", "learned t2r bias each"):
        heads = (heads[1], heads[1])  # grouped queries: test_weights_per_head_with_grouped_queries
    q, k, v = inputs(n, d, width, heads, lead, n_q, dtype)
    rng = np.random.default_rng(n + d)
    feature_map = make_map(text, heads[1], d)
    m = maps.get(feature_map).dim(d)
    options = {
        "feature_map": feature_map,
        "causal": "full" not in what,
        "normalize": "raw" not in what and text not in SIGNED_FEATURES,
        "on_zero": "zero",
    }
    if "mask" in what:
        options["mask"] = rng.random((*lead, heads[1], n)) > 0.3
        if "full" in what:
            options["query_mask"] = rng.random((*lead, n_q)) > 0.3
    if "decay" in what or "feature" in what:
        kind = "feature" if "feature" in what else "token"
        options["log_decay"] = make_decay(kind, rng, k, m).astype(dtype)
    if "segments" in what:
        options["segment_ids"] = np.sort(rng.integers(0, 4, (*lead, n)))
    if "positions" in what:
        options["positions"] = np.sort(rng.integers(0, 10**4, (*lead, n)), axis=-1)
    if "state" in what:
        before = inputs(9, d, width, heads, lead, None, dtype, seed=5)
        _, options["state"] = kt.linear_attention(
            *before, feature_map, causal=True, engine="dense", return_state=True, on_zero="zero"
        )
    return (q, k, v), options


def parts(state):
    scale = np.exp(state.log_scale)
    return state.U * scale[..., None, None], state.Z * scale[..., None], state.log_decay


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("text", EVERY)
def test_float64_equals_dense_with_every_option(text, case, monkeypatch):
    arrays, options = options_of(case, text)
    expected, end = kt.linear_attention(*arrays, engine="dense", return_state=True, **options)
    for name in each_isa(monkeypatch):
        out, after = kt.linear_attention(*arrays, engine="native", return_state=True, **options)
        size = np.max(np.abs(expected), initial=1.0)
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-11 * size, err_msg=name)
        for mine, theirs in zip(parts(after), parts(end), strict=True):
            size = np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0)
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-11 * size, err_msg=name)
        assert (after.start, after.stop) == (end.start, end.stop)
        assert after.fingerprint == end.fingerprint


def columns_of(text, width):
    """Numerator and normaliser apart where they may cancel."""
    if text in SIGNED_FEATURES:
        return [slice(0, width - 1), slice(width - 1, width)]
    return [slice(None)]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        pytest.param(text, n, marks=pytest.mark.slow if n == 1000 and text not in LONG else ())
        for text in EVERY
        for n in LENGTHS
    ],
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_float32_is_as_accurate_as_the_naive_formula(text, n, causal, monkeypatch):
    d, width, heads = 9, 11, {1: 64, 1000: 1}.get(n, 8)
    # Normalised, the dense engine divides a column of ones by itself: it would be compared with 0.
    q, k, v = inputs(
        n, d, width, (heads, heads), dtype=np.float32, seed=1, ones=text in SIGNED_FEATURES
    )
    options = {"causal": causal, "on_zero": "zero", "normalize": text not in SIGNED_FEATURES}
    feature_map = make_map(text, heads, d)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    exact = kt.linear_attention(*wide, feature_map, engine="dense", **options)
    naive = kt.linear_attention(q, k, v, feature_map, engine="dense", **options)
    size = exact
    if text in SIGNED_FEATURES:  # what cancels has been rounded before
        phi, root = maps.get(text).phi, np.sqrt(maps.get(text).default_scale(d))
        size = np.abs(phi(wide[0] * root)) @ np.abs(phi(wide[1] * root)).mT @ np.abs(wide[2])
    for name in each_isa(monkeypatch):
        ours = kt.linear_attention(q, k, v, feature_map, engine="native", **options)
        assert ours.dtype == np.float32
        for c in columns_of(text, width):
            allowed = 2 * np.abs(naive - exact)[..., c].max() + 3 * ulp(size[..., c])
            assert np.abs(ours - exact)[..., c].max() <= allowed, (name, c)


@pytest.mark.parametrize("case", ["all", "by feature", "full grouped", "raw"])
@pytest.mark.parametrize("text", EVERY)
def test_float32_is_as_accurate_with_every_option(text, case, monkeypatch):
    (q, k, v), options = options_of(case, text, np.float32)
    if options["normalize"]:
        v[..., -1:] = v[..., :1]  # not ones, see above
    wide = dict(options)
    if "log_decay" in wide:
        wide["log_decay"] = wide["log_decay"].astype(np.float64)
    exact = kt.linear_attention(*(x.astype(np.float64) for x in (q, k, v)), engine="dense", **wide)
    naive = kt.linear_attention(q, k, v, engine="dense", **options)
    for name in each_isa(monkeypatch):
        ours = kt.linear_attention(q, k, v, engine="native", **options)
        for c in columns_of(text, v.shape[-1]):
            if exact[..., c].size:
                allowed = 2 * np.abs(naive - exact)[..., c].max() + 4 * ulp(exact[..., c])
                assert np.abs(ours - exact)[..., c].max() <= allowed, (name, c)


@pytest.mark.parametrize("text", ["poly:degree=2", "taylor:order=2"])
def test_closed_form_of_many_features_equals_dense(text, isa):
    """d = 64: 2145 features, summed in longer blocks."""
    q, k, v = inputs(300, 64, 5, (2, 1))
    for causal in (True, False):
        options = {"causal": causal, "normalize": False}
        expected = kt.linear_attention(q, k, v, text, engine="dense", **options)
        out = kt.linear_attention(q, k, v, text, engine="native", **options)
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("kind", ["t2r each bias", "t2r bias each", "hedgehog each"])
def test_weights_per_head_with_grouped_queries(kind, isa):
    q, k, v = inputs(70, 6, 3, (6, 2))
    own = learned(kind, 2, 6)
    given = {"weight": own.weight, "bias": getattr(own, "bias", None)}
    repeated = {
        name: np.repeat(x, 3, 0) if x.ndim == 3 else x for name, x in given.items() if x is not None
    }
    spread = type(own)(**repeated)
    expected = kt.linear_attention(
        q, np.repeat(k, 3, 0), np.repeat(v, 3, 0), spread, causal=True, engine="dense"
    )
    out = kt.linear_attention(q, k, v, own, causal=True, engine="native")
    np.testing.assert_allclose(out, expected, rtol=1e-11)


def test_auto_is_native_where_it_can_be(monkeypatch):
    from kerneltrick.engines import ENGINES

    used = []
    for name, engine in list(ENGINES.items()):
        monkeypatch.setitem(
            ENGINES, name, lambda *a, name=name, engine=engine: used.append(name) or engine(*a)
        )
    arrays = inputs(10, 4, 3)
    kt.linear_attention(*arrays)
    kt.linear_attention(*map(torch.asarray, arrays))
    kt.linear_attention(*(torch.asarray(x).requires_grad_() for x in arrays))
    kt.linear_attention(*arrays, custom, causal=True)
    assert used == ["native"] * 4
    kt.linear_attention(*(torch.asarray(x).requires_grad_() for x in arrays), custom)
    kt.linear_attention(*(x.astype(x.dtype.newbyteorder()) for x in arrays))
    assert used[4:] == ["chunked"] * 2


def test_a_call_that_cannot_be_native_says_why():
    jnp = pytest.importorskip("jax").numpy
    arrays = inputs(10, 4, 3)
    with pytest.raises(ValueError, match=r"native engine cannot run.*jax.*engine=\"auto\""):
        kt.linear_attention(*(jnp.asarray(x, jnp.float32) for x in arrays), engine="native")
    leaves = [torch.asarray(x).requires_grad_() for x in arrays]
    with pytest.raises(ValueError, match=r"native engine cannot run.*gradients.*callable"):
        kt.linear_attention(*leaves, custom, engine="native")


# --- The same bits ------------------------------------------------------------------------------

BITS = ["elu", "favor:features=16", "taylor:order=2", "learned t2r each bias", "poly:degree=3"]


def run_bits(arrays, text, heads, **options):
    out, state = kt.linear_attention(
        *arrays, make_map(text, heads, arrays[0].shape[-1]), on_zero="nan", engine="native",
        return_state=True, **options,
    )  # fmt: skip
    return [out, state.U, state.Z, state.log_scale]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", BITS)
def test_a_batch_of_one_is_bit_equal_to_its_row_in_a_batch(text, causal, dtype, isa):
    """700 tokens: alone they are shared by the threads, in the batch they are not."""
    arrays = inputs(700, 6, 5, (2, 1), (3,), dtype=dtype)
    before = inputs(13, 6, 5, (2, 1), (3,), dtype=dtype, seed=1)
    options = {"causal": causal, "on_zero": "nan", "return_state": True}
    results = []
    for rows in (slice(0, 3), *(slice(b, b + 1) for b in range(3))):
        phi = make_map(text, 1, 6)
        _, state = kt.linear_attention(*(x[rows] for x in before), phi, engine="native", **options)
        out, state = kt.linear_attention(
            *(x[rows] for x in arrays), phi, engine="native", state=state, **options
        )
        results.append([out, state.U, state.Z, state.log_scale])
    for b, alone in enumerate(results[1:]):
        for one, whole in zip(alone, results[0], strict=True):
            assert same_bits(one, whole[b : b + 1])


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", BITS)
def test_thread_counts_do_not_change_bits(text, causal, heads, isa):
    """With one head, or one left over, all threads share a row."""
    arrays = inputs(3000 if heads == 1 else 1100, 5, 7, (heads, heads), dtype=np.float32)
    arrays[2][-1, 900, 2] = np.nan
    results = []
    for threads in (1, 2, 3, 8):
        kt.set_num_threads(threads)
        assert core().get_threads() == threads
        results.append(run_bits(arrays, text, heads, causal=causal))
    for other in results[1:]:
        assert all(same_bits(x, y) for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n", [1, 64, 511, 512, 513, 1030])
def test_the_shared_row_is_the_row_by_one_thread(n, causal, isa):
    """At the edges of chunks and of groups of chunks, after a state, with pads and groups."""
    q, k, v = inputs(n, 5, 7, (2, 1))
    mask = np.arange(n) % 5 > 0
    _, state = kt.linear_attention(
        *inputs(13, 5, 7, (2, 1), seed=2), causal=True, return_state=True
    )
    results = []
    for threads in (1, 2):
        kt.set_num_threads(threads)
        results.append(run_bits((q, k, v), "elu", 1, causal=causal, mask=mask, state=state))
    assert all(same_bits(x, y) for x, y in zip(*results, strict=True))
    expected = kt.linear_attention(
        q, k, v, causal=causal, mask=mask, state=state, engine="dense", on_zero="nan"
    )
    np.testing.assert_allclose(results[1][0], expected, rtol=1e-10)


def gradients(arrays, text, heads, engine="native", dtype=None, **options):
    """Gradients of a loss that sees the outputs and the state: of q, k, v, and of any weights."""
    leaves = [torch.tensor(np.asarray(x, dtype)).requires_grad_() for x in arrays]
    weights = []

    def leaf(x):
        weights.append(torch.tensor(np.asarray(x, dtype)).requires_grad_())
        return weights[-1]

    feature_map = make_map(text, heads, leaves[0].shape[-1], leaf)
    for name in ("mask", "query_mask", "segment_ids", "positions"):
        if options.get(name) is not None:
            options[name] = torch.asarray(options[name])
    if options.get("log_decay") is not None:
        options["log_decay"] = torch.tensor(
            np.asarray(options["log_decay"], dtype)
        ).requires_grad_()
        weights.append(options["log_decay"])
    before = options.pop("before", None)
    if before is not None:  # a stretch that leaves a state: its gradient is the state's
        before = [torch.tensor(np.asarray(x, dtype)).requires_grad_() for x in before]
        _, options["state"] = kt.linear_attention(
            *before, feature_map, causal=True, engine=engine, return_state=True, on_zero="zero"
        )
        weights += before[1:]
    options.setdefault("on_zero", "zero")
    out, state = kt.linear_attention(
        *leaves, feature_map, engine=engine, return_state=True, **options
    )
    rng = np.random.default_rng(7)

    def weigh(x):
        return (x * torch.asarray(rng.standard_normal(tuple(x.shape)), dtype=x.dtype)).sum()

    scale = torch.exp(state.log_scale)[..., None]
    loss = weigh(out).double() + 0.1 * (weigh(state.U * scale[..., None]) + weigh(state.Z * scale))
    return torch.autograd.grad(loss, [*leaves, *weights])


def test_gradients_are_bit_equal_by_threads_batches_and_repetition(isa):
    for text in BITS[:4]:
        arrays = inputs(300, 6, 5, (3, 3), (2,), dtype=np.float32)
        decay = -np.random.default_rng(0).random((2, 3, 300))
        kt.set_num_threads(1)
        first = gradients(arrays, text, 3, causal=True, log_decay=decay, dtype=np.float32)
        for threads in (1, 2, 3, 8):
            kt.set_num_threads(threads)
            again = gradients(arrays, text, 3, causal=True, log_decay=decay, dtype=np.float32)
            for x, y in zip(first, again, strict=True):
                assert same_bits(x.numpy(), y.numpy()), (text, threads)
    # Without the loss's own random weights, which differ between a batch and its row:
    whole = [torch.tensor(x).requires_grad_() for x in arrays]
    kt.linear_attention(*whole, causal=True, engine="native").sin().sum().backward()
    for b in range(2):
        row = [torch.tensor(x[b : b + 1]).requires_grad_() for x in arrays]
        kt.linear_attention(*row, causal=True, engine="native").sin().sum().backward()
        for one, all_ in zip(row, whole, strict=True):
            assert same_bits(one.grad.numpy(), all_.grad[b : b + 1].numpy())


@pytest.mark.parametrize("text", ["elu", "favor:features=16"])
def test_250_repetitions_are_bit_equal(text, isa):
    kt.set_num_threads(3)
    arrays = inputs(800, 5, 7, (1, 1), dtype=np.float32)
    first = run_bits(arrays, text, 1, causal=True)
    for _ in range(250):
        again = run_bits(arrays, text, 1, causal=True)
        assert all(same_bits(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", BITS)
def test_past_is_bit_identical_when_the_future_changes(text, threads, isa):
    """600 tokens of one head: with two threads the row is shared."""
    kt.set_num_threads(threads)
    arrays = inputs(600, 6, 5, (1, 1), dtype=np.float32)
    feature_map = make_map(text, 1, 6)
    options = {"causal": True, "on_zero": "nan", "engine": "native"}
    before = kt.linear_attention(*arrays, feature_map, **options)
    for cut in (1, 64, 500):
        for change in (1e4, np.nan, np.inf, -np.inf):
            future = [x.copy() for x in arrays]
            for x in future:
                x[:, cut:] = x[:, cut:] * change if change == 1e4 else change
            with np.errstate(all="ignore"):
                after = kt.linear_attention(*future, feature_map, **options)
            assert same_bits(before[:, :cut], after[:, :cut]), (cut, change)


# --- Memory of every kind -----------------------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in_memory_do_not_change_bits(layout, dtype, isa):
    arrange = LAYOUTS[layout]
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


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_zero_strides_are_repeated_values(causal, isa):
    rng = np.random.default_rng(0)
    shape = (3, 2, 100, 6)
    for part in ((1, 1, 100, 6), (3, 2, 1, 6), (3, 2, 100, 1), (1, 1, 1, 1)):
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
@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (2, 0, 4), (0, 1, 0, 4)], ids=str)
def test_empty_batches_and_sequences(text, shape, isa):
    for make in (np.asarray, torch.asarray, lambda x: torch.asarray(x).requires_grad_()):
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


@pytest.mark.parametrize("case", ["all", "full grouped"])
@pytest.mark.parametrize("text", FUSED)
def test_nan_and_inf_spoil_the_same_outputs_as_in_dense(text, case, isa):
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", ["elu", "favor:features=16", "taylor:order=2", "poly:degree=3"])
def test_half_precision_is_float32_rounded_once(text, causal, dtype, isa):
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
    """Rows, tokens and elements far apart in memory that is zeros until it is touched."""
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


# --- PyTorch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["all", "by feature", "full grouped", "raw", "positions"])
@pytest.mark.parametrize("text", [*FUSED, *(f"learned {kind}" for kind in LEARNED)])
def test_gradients_equal_those_of_dense(text, case, monkeypatch):
    if case == "by feature" and text in ("poly:degree=2", "taylor:order=2"):
        return  # by the chunked engine: a decay per feature leaves no closed form
    if case == "positions" and not text.startswith("cosformer"):
        return
    arrays, options = options_of(case, text)
    heads, d, width = arrays[1].shape[-3], arrays[0].shape[-1], arrays[2].shape[-1]
    for x in arrays[:2]:
        x[..., 0] = np.abs(x[..., 0]) + 1  # no normaliser near 0
    options.pop("feature_map")
    if options.pop("state", None) is not None:
        options["before"] = inputs(
            9, d, width, (arrays[0].shape[-3], heads), arrays[0].shape[:-3], seed=5
        )
    exact = gradients(arrays, text, heads, "dense", np.float64, **options)
    single = [x.astype(np.float32) for x in arrays]
    if "before" in options:
        options["before"] = [x.astype(np.float32) for x in options["before"]]
    exact32 = gradients(single, text, heads, "dense", np.float64, **options)
    naive = gradients(single, text, heads, "dense", np.float32, **options)
    double = dict(options)
    if "before" in options:
        double["before"] = inputs(
            9, d, width, (arrays[0].shape[-3], heads), arrays[0].shape[:-3], seed=5
        )
    for name in each_isa(monkeypatch):
        ours = gradients(arrays, text, heads, "native", np.float64, **double)
        for mine, theirs in zip(ours, exact, strict=True):
            size = float(theirs.abs().max())
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10 * size, msg=name)
        ours = gradients(single, text, heads, "native", np.float32, **options)
        for i, (mine, plain, theirs) in enumerate(zip(ours, naive, exact32, strict=True)):
            floor = 8 * ulp(theirs.numpy())
            assert mine.dtype == torch.float32
            allowed = 3 * float((plain - theirs).abs().max()) + floor
            assert float((mine - theirs).abs().max()) <= allowed, (name, i)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("text", ["elu", "favor:features=16", "taylor:order=2", "hedgehog"])
def test_gradients_at_lengths_around_the_chunk(text, n, monkeypatch):
    arrays = inputs(n, 9, 5, (1, 1), dtype=np.float32)
    for x in arrays[:2]:
        x[..., 0] = np.abs(x[..., 0]) + 1
    options = {"causal": True, "normalize": text not in SIGNED_FEATURES}
    exact = gradients(arrays, text, 1, "dense", np.float64, **options)
    naive = gradients(arrays, text, 1, "dense", np.float32, **options)
    size = max(float(x.abs().max()) for x in exact)  # of a single token some are exactly 0
    for name in each_isa(monkeypatch):
        ours = gradients(arrays, text, 1, "native", np.float64, **options)
        for mine, theirs in zip(ours, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10 * size, msg=name)
        ours = gradients(arrays, text, 1, "native", np.float32, **options)
        for mine, plain, theirs in zip(ours, naive, exact, strict=True):
            allowed = 3 * float((plain - theirs).abs().max()) + 8 * ulp(size)
            assert float((mine - theirs).abs().max()) <= allowed, name


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", ["elu", "favor:features=16", "exp", "taylor:order=2", "hedgehog"])
def test_gradients_beside_nan_are_those_of_dense(text, causal, isa):
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

        mine = dataclasses.replace(state, sums=type(state.sums)(sums, None))
        return kt.linear_attention(
            q.detach(), k.detach(), v.detach(), causal=True, state=mine, engine="native"
        )

    sums = torch.asarray(rng.random((1, 3, 3)) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(continued, (sums,), fast_mode=True)


def test_opcheck(isa):
    from torch.library import opcheck

    from kerneltrick.engines import _native, _native_torch  # noqa: F401  the operators

    seen = []
    real = torch.ops.kerneltrick.attend

    def record(text, **options):
        class Spy:
            attend = staticmethod(lambda *a: seen.append(a) or real(*a))

        x = [torch.tensor(y).requires_grad_() for y in inputs(6, 4, 3, (2, 1))]
        ops = torch.ops.kerneltrick
        torch.ops.kerneltrick = Spy
        try:
            kt.linear_attention(*x, text, engine="native", **options)
        finally:
            torch.ops.kerneltrick = ops

    record("elu", causal=True, log_decay=-0.1, segment_ids=torch.tensor([0, 0, 1, 1, 1, 2]))
    record("favor:features=8", mask=torch.arange(6) > 1, query_mask=torch.arange(6) > 0)
    record(learned("t2r each bias", 1, 4, make=lambda x: torch.tensor(x).requires_grad_()),
           causal=True, normalize=False)  # fmt: skip
    for arguments in seen:
        opcheck(torch.ops.kerneltrick.attend.default, arguments)
        with torch.no_grad():
            output, _, sums, *_, normalizer = real(*arguments)
        opcheck(
            torch.ops.kerneltrick.attend_backward.default,
            (torch.ones_like(output), torch.ones_like(sums), output, normalizer,
             *(x.detach() if torch.is_tensor(x) else x for x in arguments)),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip
    assert len(seen) == 3


def test_second_derivatives_are_refused_by_name():
    leaves = [torch.tensor(x).requires_grad_() for x in inputs(10, 4, 3)]
    out = kt.linear_attention(*leaves, causal=True)
    (gradient,) = torch.autograd.grad(out.sin().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match=r'first derivatives only.*engine="chunked"'):
        gradient.sum().backward()
    out = kt.linear_attention(*leaves, causal=True, engine="chunked")
    (again,) = torch.autograd.grad(out.sin().sum(), leaves[:1], create_graph=True)
    torch.testing.assert_close(again, gradient)
    again.sum().backward()
    assert torch.isfinite(leaves[1].grad).all()


class TestOtherWaysToDifferentiate:
    """What the core cannot do is done by the chunked engine, unasked."""

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
        """The parameters of a module in a function, or in a map with a log-scale."""
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

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_compiled(self):
        q, k, v = self.arrays()

        def attend(q, k, v):
            return kt.linear_attention(q, k, v, causal=True, on_zero="nan").sin()

        made = torch.compile(attend, backend="eager")(q, k, v)
        torch.testing.assert_close(made, attend(q, k, v))

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


# --- Threads, forks, signals, memory ------------------------------------------------------------


def test_memory_of_large_results_is_used_again_and_little_is_kept():
    n = 1 << 15
    x = np.broadcast_to(np.float32(1), (4, n, 64))  # an output of 32 MiB
    first = kt.linear_attention(x, x, x, causal=True, engine="native")
    place, copy = first.ctypes.data, first.copy()
    second = kt.linear_attention(x, x, 2 * x, causal=True, engine="native")
    places = {place, second.ctypes.data}
    assert len(places) == 2  # the first is still in use
    assert same_bits(first, copy)
    view = first[1:]
    del first
    third = kt.linear_attention(x, x, x, causal=True, engine="native")
    assert third.ctypes.data not in places  # its view is
    assert same_bits(view, copy[1:])
    del view, second
    again = kt.linear_attention(x, x, 3 * x, causal=True, engine="native")
    assert again.ctypes.data in places
    np.testing.assert_allclose(again, 3, rtol=1e-6)
    many = [kt.linear_attention(x, x, x, causal=True, engine="native") for _ in range(12)]
    del many, again, third
    gc.collect()
    assert 0 < core().kept_bytes() <= 256 << 20


def test_pytorch_lends_its_threads_where_it_has_some():
    """Results are the same bits by our own threads, by PyTorch's, and in a child of either."""
    code = """
        import hashlib, os, sys
        import numpy as np
        import kerneltrick as kt
        from kerneltrick.engines import core
        kt.set_num_threads(2)
        x = np.random.default_rng(0).standard_normal((3, 5, 3000, 16)).astype(np.float32)
        def digest():
            out = kt.linear_attention(*x, "elu", causal=True, engine="native")
            return hashlib.sha256(out.tobytes()).hexdigest()
        own = digest()
        import torch
        torch.ones(1 << 20).add_(1)
        shared = core().share_threads()
        assert shared or sys.platform != "linux"
        assert digest() == own
        child = os.fork()
        if not child:
            os._exit(0 if digest() == own else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert digest() == own
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120)
    assert done.returncode == 0


def test_a_map_whose_number_of_features_depends_on_the_tokens_is_refused():
    k, v = np.ones((12, 4)), np.ones((12, 3))
    with pytest.raises(ValueError, match="1 features for one token, but 12 for 12 keys"):
        kt.linear_attention(k, k, v, lambda x: np.eye(len(x)), normalize=False, engine="native")


def test_calls_from_several_threads_are_right_and_leave_the_interpreter_free():
    arrays = inputs(20_000, 32, 32, (2, 2), dtype=np.float32)
    others = [inputs(500, 8, 8, seed=seed) for seed in range(4)]
    texts = ["elu", "favor:features=16", "taylor:order=2", "poly:degree=3"]
    expected = [kt.linear_attention(*x, t, causal=True) for x, t in zip(others, texts, strict=True)]
    wrong, done = [], threading.Event()

    def repeat(x, text, y):
        while not done.is_set():
            if not same_bits(kt.linear_attention(*x, text, causal=True, engine="native"), y):
                wrong.append(text)

    workers = [
        threading.Thread(target=repeat, args=args)
        for args in zip(others, texts, expected, strict=True)
    ]
    for worker in workers:
        worker.start()
    long = [kt.linear_attention(*arrays, causal=True, engine="native") for _ in range(3)]
    done.set()
    for worker in workers:
        worker.join()
    assert not wrong
    assert all(same_bits(x, long[0]) for x in long)


def test_other_python_threads_run_during_a_call():
    """One that has its turn only when this one gives up the interpreter ends a long call."""
    code = """
        import os, signal, sys, threading, time
        import numpy as np, kerneltrick as kt

        def attend(n):
            x = np.broadcast_to(np.float32(1), (1, n, 64))
            kt.linear_attention(x[:, :1], x, x[..., :1], "favor:features=64", engine="native")

        attend(1)  # which imports, and gives up the interpreter for it
        sys.setswitchinterval(1e6)
        turns, begun = [], threading.Event()

        def other():
            begun.wait()
            while len(turns) < 1000:
                time.sleep(0)
                turns.append(None)
            os.kill(os.getpid(), signal.SIGINT)

        worker = threading.Thread(target=other)
        worker.start()
        try:
            begun.set()
            attend(1 << 28)
        except KeyboardInterrupt:
            worker.join()
            print(len(turns))
    """
    assert python(code) == "1000"


def test_a_fork_after_use_does_not_hang():
    """The child has none of the parent's threads."""
    code = """
        import multiprocessing, os, signal, sys, threading
        import numpy as np, kerneltrick as kt

        kt.set_num_threads(4)
        x = np.random.default_rng(0).standard_normal((5, 700, 8))

        def work(_=None):
            return kt.linear_attention(x, x, x, causal=True, engine="native")

        expected = work()
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                work()

        other = threading.Thread(target=busy)  # a call may be under way when the fork happens
        other.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                same = work().tobytes() == expected.tobytes()
                grand = os.fork()
                if grand == 0:
                    signal.alarm(60)
                    os._exit(0 if work().tobytes() == expected.tobytes() else 1)
                same &= os.waitstatus_to_exitcode(os.waitpid(grand, 0)[1]) == 0
                os._exit(0 if same else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        other.join()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for out in pool.map_async(work, range(4)).get(60):
                assert (out == expected).all()
        assert (work() == expected).all()
        print("done")
    """
    assert python(code) == "done"


INTERRUPT = """
    import os, signal, sys, threading, time
    import numpy as np, kerneltrick as kt

    what, threads = sys.argv[1], int(sys.argv[2])
    kt.set_num_threads(threads)
    rows = 1 if what == "shared" else 2
    name = {"shared": "elu", "full": "elu", "features": lambda x: abs(x) + 0.5}.get(
        what, "favor:features=64"
    )

    def forward(n):
        x = np.broadcast_to(np.ones((1, 1, 64), np.float32), (rows, n, 64))
        q, v = x[:, :1] if what == "full" else x, x[..., :1]
        kt.linear_attention(q, x, v, name, causal=what != "full", engine="native")

    def timed(run, *a):
        first = time.perf_counter()
        run(*a)
        return time.perf_counter() - first

    if what == "backward":
        import torch
        leaves = [torch.ones(rows, 1 << 19, w).requires_grad_() for w in (64, 64, 1)]
        out = kt.linear_attention(*leaves, name, causal=True, engine="native").sum()
        run = out.backward
    else:
        forward(64)
        n, took = 4096, 0
        while took < 0.1:
            n, took = 2 * n, timed(forward, 2 * n)
        size = int(n / took * 15)  # what takes 15 seconds
        run = lambda: forward(size)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        run()
    except KeyboardInterrupt:
        answer = "interrupted"
    else:
        answer = "finished"
        time.sleep(1)
    small = np.ones((1, 100, 4))
    out = kt.linear_attention(small, small, small, causal=True, engine="native")
    np.testing.assert_allclose(out, 1, rtol=1e-12)
    print(answer)
"""


@pytest.mark.parametrize(
    ("what", "threads"), [("rows", 2), ("shared", 1), ("shared", 2), ("full", 2), ("features", 2)]
)
def test_ctrl_c_ends_a_long_call_and_the_next_one_works(what, threads):
    """Calls that would take 15 seconds, interrupted after 0.3, do not come to their end."""
    assert python(INTERRUPT, what, threads) == "interrupted"


@pytest.mark.slow
def test_ctrl_c_ends_a_long_backward_call():
    assert python(INTERRUPT, "backward", 2) == "interrupted"


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def small_calls(count):
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    t = torch.tensor(x).requires_grad_()
    decoder = kt.Decoder("elu", shape=(2,), d=4, dtype="float64")
    for i in range(count):
        kind = i % 20
        if kind == 0:
            kt.linear_attention(t, t, t, causal=True, engine="native").sum().backward()
            t.grad = None
        elif kind == 1:
            kt.linear_attention(x, x, x, custom, engine="native")
        elif kind == 2:
            kt.linear_attention(x, x, x, "favor:features=8", causal=True, engine="native")
        elif kind == 3:
            kt.linear_attention(x, x, x, causal=True, return_state=True, engine="native")
        else:
            decoder.step(x[:, 0], x[:, 1], x[:, 2])
            decoder.snapshot()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_is_stable_over_many_calls(count):
    small_calls(count // 5)
    gc.collect()
    before = resident()
    small_calls(count)
    gc.collect()
    assert resident() - before < 4 << 20


def test_inputs_may_be_dropped_while_the_core_runs():
    """The core is given addresses: what they point at is kept alive."""
    for seed in range(50):
        out = kt.linear_attention(*inputs(200, 6, 5, seed=seed), causal=True, engine="native")
        again = kt.linear_attention(*inputs(200, 6, 5, seed=seed), causal=True, engine="native")
        assert same_bits(out, again)


# --- Configuration ------------------------------------------------------------------------------


def test_an_unknown_instruction_set_is_refused_with_those_there_are(monkeypatch):
    x = np.ones((5, 4))
    for wrong in ("avx1024", "AVX2", " "):
        monkeypatch.setenv("KERNELTRICK_ISA", wrong)
        for call in (
            lambda: kt.linear_attention(x, x, x),
            lambda: kt.Decoder("elu", shape=(1,), d=4),
            kt.show_config,
        ):
            with pytest.raises(ValueError, match=rf"KERNELTRICK_ISA is '{wrong}'.*baseline"):
                call()
    monkeypatch.setenv("KERNELTRICK_ISA", "")
    assert (kt.linear_attention(x, x, x) == 1).all()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, True, 2**31, 10**30])
def test_wrong_thread_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="set_num_threads needs a whole number from 1"):
        kt.set_num_threads(wrong)
    assert core().get_threads() == 2


def test_show_config_says_what_runs(capsys, isa):
    kt.set_num_threads(np.int64(3))
    assert kt.show_config() is None
    assert capsys.readouterr().out == (
        f"compiled core: yes\ninstruction set: {isa} of {', '.join(ISAS)}\nthreads: 3\n"
    )
    assert kt.show_config(mode="dicts") == {
        "compiled": True, "instruction_set": isa, "instruction_sets": ISAS, "threads": 3,
    }  # fmt: skip
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match='mode must be "stdout" or "dicts"'):
        kt.show_config("json")


def test_the_environment_chooses_the_threads():
    code = "import kerneltrick as kt; print(kt.show_config(mode='dicts')['threads'])"
    assert python(code, KERNELTRICK_NUM_THREADS="5") == "5"
    assert int(python(code, KERNELTRICK_NUM_THREADS="")) == len(os.sched_getaffinity(0))


def test_importing_the_package_does_not_load_the_core():
    code = "import sys, kerneltrick; print('kerneltrick._core' in sys.modules)"
    assert python(code) == "False"


def test_without_the_core_everything_else_works():
    code = """
        import sys
        sys.modules["kerneltrick._core"] = None
        import numpy as np, kerneltrick as kt
        from kerneltrick import engines

        used = []
        for name in ("chunked", "native"):
            run = engines.ENGINES[name]
            engines.ENGINES[name] = lambda *a, n=name, run=run: used.append(n) or run(*a)
        q, k, v = np.random.default_rng(0).standard_normal((3, 2, 50, 4))
        out = kt.linear_attention(q, k, v, causal=True)
        assert used == ["chunked"], used
        try:
            kt.linear_attention(q, k, v, engine="native")
        except RuntimeError as error:
            assert "compiled core is not installed" in str(error), error
            assert "show_config" in str(error), error
        else:
            raise AssertionError("no error")
        kt.set_num_threads(3)
        kt.show_config()
        found = kt.show_config(mode="dicts")
        assert found == {
            "compiled": False, "instruction_set": None, "instruction_sets": [], "threads": 1,
        }, found
        for text in ("elu", "favor:features=8"):
            decoder = kt.Decoder(text, shape=(2,), d=4, dtype="float64")
            whole = kt.linear_attention(q, k, v, text, causal=True)
            for t in range(50):
                step = decoder.step(q[:, t], k[:, t], v[:, t])
                np.testing.assert_allclose(step, whole[:, t], rtol=1e-9)
        np.save(sys.argv[1], out)
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.npy")
        said = python(code, path)
        without = np.load(path)
    assert said.startswith("compiled core: none")
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 50, 4))
    with_core = kt.linear_attention(q, k, v, causal=True, engine="native")
    np.testing.assert_allclose(without, with_core, rtol=1e-12)
