"""The compiled engine: changes that must not alter a bit of its results."""

import numpy as np
import pytest
from native_cases import CASES, FUSED, ISAS, gradients, inputs, make_map, options_of
from oracle import keeps, same_bits, turns

import kerneltrick as kt
from kerneltrick.engines import core

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("two_threads")

ARRAYS = ("mask", "query_mask", "log_decay", "segment_ids", "positions")
BOTH = [True, False]
SHARED = ["elu", "square", "cosformer:horizon=4000", "hedgehog"]
BITS = ["elu", "favor:features=16", "taylor:order=2", "learned t2r each bias", "poly:degree=3"]


def run_bits(arrays, text, heads, **options):
    out, state = kt.linear_attention(
        *arrays, make_map(text, heads, arrays[0].shape[-1]), on_zero="nan", engine="native",
        return_state=True, **options,
    )  # fmt: skip
    return [out, state.U, state.Z, state.log_scale]


@pytest.mark.parametrize("text", BITS)
def test_a_batch_of_one_is_bit_equal_to_its_row_in_a_batch(text, isa):
    """700 tokens: threads share them if alone, but not in a batch."""
    for dtype, causal in turns(BITS.index(text), [np.float32, np.float16, np.float64], BOTH):
        arrays = inputs(700, 6, 5, (2, 1), (3,), dtype=dtype)
        before = inputs(13, 6, 5, (2, 1), (3,), dtype=dtype, seed=1)
        options = {"causal": causal, "on_zero": "nan", "return_state": True, "engine": "native"}
        results = []
        for rows in (slice(0, 3), *(slice(b, b + 1) for b in range(3))):
            phi = make_map(text, 1, 6)
            _, state = kt.linear_attention(*(x[rows] for x in before), phi, **options)
            own = (x[rows] for x in arrays)
            out, state = kt.linear_attention(*own, phi, state=state, **options)
            results.append([out, state.U, state.Z, state.log_scale])
        for b, alone in enumerate(results[1:]):
            for one, whole in zip(alone, results[0], strict=True):
                assert same_bits(one, whole[b : b + 1]), (dtype, causal)


@pytest.mark.parametrize("text", BITS)
def test_thread_counts_do_not_change_bits(text, isa):
    """With one head, or one remaining head, all threads share a row."""
    for heads, causal in turns(BITS.index(text), [1, 3, 8], BOTH):
        arrays = inputs(3000 if heads == 1 else 1100, 5, 7, (heads, heads), dtype=np.float32)
        arrays[2][-1, 900, 2] = np.nan
        results = []
        for threads in (1, 2, 3, 8):
            kt.set_num_threads(threads)
            assert core().get_threads() == threads
            results.append(run_bits(arrays, text, heads, causal=causal))
        for other in results[1:]:
            assert all(same_bits(x, y) for x, y in zip(results[0], other, strict=True)), heads


def test_the_shared_row_is_the_row_by_one_thread(isa):
    """At edges of chunks and of groups of chunks, after a state, with pads and grouped heads."""
    for n, causal in turns(ISAS.index(isa), [1, 64, 511, 512, 513, 1030, 513], BOTH):
        q, k, v = inputs(n, 5, 7, (2, 1))
        mask = np.arange(n) % 5 > 0
        _, state = kt.linear_attention(
            *inputs(13, 5, 7, (2, 1), seed=2), causal=True, return_state=True
        )
        results = []
        for threads in (1, 2):
            kt.set_num_threads(threads)
            results.append(run_bits((q, k, v), "elu", 1, causal=causal, mask=mask, state=state))
        assert all(same_bits(x, y) for x, y in zip(*results, strict=True)), n
        expected = kt.linear_attention(
            q, k, v, causal=causal, mask=mask, state=state, engine="dense", on_zero="nan"
        )
        np.testing.assert_allclose(results[1][0], expected, rtol=1e-10)


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


@pytest.mark.parametrize("text", SHARED)
def test_the_gradient_of_a_shared_row_is_that_by_one_thread(text, isa):
    """At edges of groups of blocks, after a state, with pads; also for gradients of the state."""
    sizes = ((383, 1), (1030, 1), (3080, 1), (400, 3))
    for (n, heads), dtype in turns(SHARED.index(text), sizes, [np.float32, np.float64]):
        arrays = inputs(n, 5, 7, (heads, heads), dtype=dtype)
        options = {
            "causal": True, "mask": np.arange(n) % 5 > 0, "dtype": dtype,
            "before": inputs(13, 5, 7, (heads, heads), seed=2, dtype=dtype),
        }  # fmt: skip
        kt.set_num_threads(1)
        one = gradients(arrays, text, heads, **options)
        for threads in (2, 3):
            kt.set_num_threads(threads)
            shared = gradients(arrays, text, heads, **options)
            for x, y in zip(one, shared, strict=True):
                assert same_bits(x.numpy(), y.numpy()), (n, threads)


def test_250_repetitions_are_bit_equal(isa):
    kt.set_num_threads(3)
    arrays = inputs(800, 5, 7, (1, 1), dtype=np.float32)
    text = ["elu", "favor:features=16"][ISAS.index(isa) % 2]
    first = run_bits(arrays, text, 1, causal=True)
    for _ in range(250):
        again = run_bits(arrays, text, 1, causal=True)
        assert all(same_bits(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("text", BITS)
def test_past_is_bit_identical_when_the_future_changes(text, monkeypatch):
    """600 tokens of one head: with two threads the row is shared."""
    feature_map = make_map(text, 1, 6)

    def run(*arrays):
        options = {"causal": True, "on_zero": "zero", "engine": "native"}
        return kt.linear_attention(*arrays, feature_map, **options)

    arrays = [x[None] for x in inputs(600, 6, 5, (1, 1), dtype=np.float32)]
    checks = ["past keeps its bits", "NaN stays where it depends"]
    for isa, threads in turns(BITS.index(text), ISAS, [2, 1]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        kt.set_num_threads(threads)
        keeps(checks, run, "linear_attention", arrays, (1, 64, 500))


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if "state" not in case[-1]])
def test_asking_for_the_state_changes_no_bit_of_the_output(case, isa):
    """The core touches no state if there is none and nobody wants one; the sums are the same."""
    makes = [np.asarray, torch.as_tensor]
    for text, make, window in turns(ISAS.index(isa), FUSED, makes, [0, 5]):
        arrays, options = options_of(case, text, np.float32)
        if window and options["causal"] and "log_decay" not in options:
            options |= {"window": window, "sinks": 1}
        options |= {name: make(options[name]) for name in ARRAYS if name in options}
        arrays = [make(x) for x in arrays]
        alone = kt.linear_attention(*arrays, engine="native", **options)
        beside, _ = kt.linear_attention(*arrays, engine="native", return_state=True, **options)
        assert same_bits(np.asarray(alone), np.asarray(beside)), text
