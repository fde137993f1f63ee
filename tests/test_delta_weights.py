"""The attention that the delta rule implies: rows times values are the output."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import DECAYS
from test_delta_rule import agree, decay_of, tokens, vectors

import kerneltrick as kt
from kerneltrick._arrays import as_numpy


def case(draw_seed=0, n=40, kind="feature", general=True, heads=4):
    rng = np.random.default_rng(draw_seed)
    q, k, v, beta = tokens(n, rng, heads=heads)
    options = {"log_decay": decay_of(kind, rng, v, 5), "mask": rng.random((2, n)) > 0.2}
    options["segment_ids"] = np.arange(n) // 25
    return q, k, v, beta, {**options, **(vectors(rng, k) if general else {})}


@pytest.mark.parametrize("general", [False, True], ids=["keys", "erase-read"])
@pytest.mark.parametrize("kind", DECAYS)
def test_rows_times_values_are_the_output(kind, general):
    q, k, v, beta, options = case(kind=kind, general=general)
    weights = kt.delta_weights(q, k, beta, **options)
    assert weights.shape == (2, 4, 40, 40)
    agree(weights @ v, kt.delta_rule(q, k, v, beta, **options))
    assert (np.triu(weights, 1) == 0).all()
    rows = [3, -1, 17]
    agree(kt.delta_weights(q, k, beta, rows=rows, **options), weights[:, :, rows], 1e-15)
    agree(kt.delta_weights(q, k, beta, rows=5, **options), weights[:, :, [5]], 1e-15)


@given(seed=st.integers(0, 1000), n=st.integers(0, 30), kind=st.sampled_from(DECAYS))
def test_any_length(seed, n, kind):
    q, k, v, beta, options = case(seed, n, kind)
    weights = kt.delta_weights(q, k, beta, **options)
    agree(weights @ v, kt.delta_rule(q, k, v, beta, **options))


def test_models_of_the_family():
    """GDN-2 gates its values: those are what the weights are of. RWKV-7 reads before the decay."""
    rng = np.random.default_rng(1)
    q, k, v, _ = tokens(30, rng, heads=2)
    gate, log_decay = rng.random(k.shape), -0.6 * rng.random(k.shape)
    for options in (
        {"read": gate * k, "log_decay": log_decay},
        {"read": k / np.exp(log_decay), "erase": gate * k, "log_decay": log_decay},
        {"read": gate * k, "log_decay": log_decay[..., 0]},
        {"normalize_qk": True, "scale": 1.0},
    ):
        agree(kt.delta_weights(q, k, **options) @ v, kt.delta_rule(q, k, v, **options))


def test_arrays_without_heads_and_heads_of_the_decay_alone():
    rng = np.random.default_rng(2)
    q, k, v, _ = tokens(20, rng)
    one = kt.delta_weights(q[0, 0], k[0, 0], 0.5)
    agree(one @ v[0, 0], kt.delta_rule(q[0, 0], k[0, 0], v[0, 0], 0.5))
    decay = -np.arange(1.0, 5) / 10
    agree(
        kt.delta_weights(q, k, 0.5, log_decay=decay) @ v,
        kt.delta_rule(q, k, v, 0.5, log_decay=decay),
    )


def test_nan_marks_the_rows_that_depend_on_it():
    q, k, v, beta, options = case(general=False)
    del options["mask"]
    k[0, 1, 10, 0] = np.nan
    q[1, 0, 30, 0] = np.inf
    rows = np.isnan(kt.delta_weights(q, k, beta, **options)).any(-1)
    np.testing.assert_array_equal(rows, np.isnan(kt.delta_rule(q, k, v, beta, **options)).all(-1))


def test_other_libraries_agree():
    torch = pytest.importorskip("torch")
    q, k, _, beta, options = case()
    expected = kt.delta_weights(q, k, beta, **options)
    own = {name: torch.asarray(x) for name, x in options.items()}
    found = kt.delta_weights(*map(torch.asarray, (q, k, beta)), **own)
    agree(as_numpy(found), expected)


def test_rows_outside_are_refused():
    q, k, _, beta, _ = case()
    with pytest.raises(IndexError, match="row 40 is outside the 40 queries"):
        kt.delta_weights(q, k, beta, rows=[40])
