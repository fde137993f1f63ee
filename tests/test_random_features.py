"""Random features of e^{q·k}: unbiased, with the variance of theory, and Haar where orthogonal."""

import numpy as np
import pytest
from cases import each

from kerneltrick import maps

D = 4
KINDS = ["positive", "hyperbolic", "trig"]


def pair(norm_of_sum=0.5, seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, D))
    factor = norm_of_sum / np.linalg.norm(q + k)
    return q * factor, k * factor


def estimates(kind, orthogonal, draws, count, q, k, seed=0):
    """Return `count` independent estimates of e^{q·k}, computed with the package's features."""
    omega = maps.draw_projection(count * draws, D, seed, orthogonal).reshape(count, draws, D)
    both = []
    for x in (q, k):
        features, log_scale = maps.random_features(np.broadcast_to(x, (count, D)), omega @ x, kind)
        both.append(features * np.exp(log_scale)[:, None])
    return (both[0] * both[1]).sum(-1)


def test_estimates_are_those_of_maps():
    q, k = pair()
    for kind in KINDS:
        favor = maps.Favor(features=D if kind == "positive" else 2 * D, kind=kind, seed=3)
        mine = estimates(kind, True, D, 1, q, k, seed=3)
        assert mine[0] == pytest.approx(favor.phi(q[None])[0] @ favor.phi(k[None])[0])


def theory_variance(kind, q, k):
    """Of the estimate of one draw (positive: m = 1; hyperbolic and trig: m = 2)."""
    t, plus, minus = q @ k, (q + k) @ (q + k), (q - k) @ (q - k)
    iid = np.exp(2 * t) * (np.exp(plus) - 1)
    return {
        "positive": iid,
        "hyperbolic": (1 - np.exp(-plus)) * iid / 2,
        "trig": np.exp(plus) * np.exp(-2 * t) * (1 - np.exp(-minus)) ** 2 / 2,
    }[kind]


@each("kind", KINDS)
def test_iid_features_are_unbiased_and_have_the_variance_of_theory(kind):
    q, k = pair(0.5)
    values = estimates(kind, False, 1, 500_000, q, k, seed=100)
    error = values.std() / np.sqrt(values.size)
    assert abs(values.mean() - np.exp(q @ k)) < 4 * error
    centred = (values - values.mean()) ** 2
    spread = centred.std() / np.sqrt(values.size)
    assert abs(centred.mean() - theory_variance(kind, q, k)) < 4 * spread
    assert spread < 0.02 * centred.mean()  # the test can tell a wrong factor


@each("kind", KINDS)
def test_orthogonal_features_are_unbiased_and_not_worse_than_iid(kind):
    q, k = pair(1.0, 3)
    exact = np.exp(q @ k)
    orthogonal, iid = (estimates(kind, x, D, 20_000, q, k) for x in (True, False))
    error = orthogonal.std() / np.sqrt(orthogonal.size)
    assert abs(orthogonal.mean() - exact) < 4 * error
    assert error < 0.01 * exact
    assert np.mean((orthogonal - exact) ** 2) <= 1.05 * np.mean((iid - exact) ** 2)


def test_projections_are_haar_with_chi_lengths():
    d, count = 3, 4000
    blocks = np.stack([maps.draw_projection(d, d, seed) for seed in range(count)])
    gram = blocks @ blocks.mT
    lengths2 = np.diagonal(gram, axis1=1, axis2=2)
    off = gram - lengths2[:, :, None] * np.eye(d)
    assert np.abs(off).max() < 1e-12  # rows are orthogonal
    # χ²_d: mean d, variance 2d, and independent between rows.
    assert abs(lengths2.mean() - d) < 4 * np.sqrt(2 * d / (d * count))
    assert abs(lengths2.var() - 2 * d) < 0.6
    assert abs(np.corrcoef(lengths2[:, 0], lengths2[:, 1])[0, 1]) < 4 / np.sqrt(count)
    # Each entry of a Haar matrix has mean 0; without sign(diag R) the diagonal does not.
    unit = blocks / np.sqrt(lengths2)[:, :, None]
    assert np.abs(unit.mean(axis=0)).max() < 4 / np.sqrt(d * count)


def test_blocks_beyond_d_are_orthogonal_within_and_cut_to_size():
    omega = maps.draw_projection(10, 4, 0)
    assert omega.shape == (10, 4)
    for block in (omega[:4], omega[4:8]):
        gram = block @ block.T
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-12)


def test_seed_decides_and_projection_is_float64_and_read_only():
    one, same, other = (maps.Favor(features=8, seed=s).projection(4) for s in (1, 1, 2))
    assert one.dtype == np.float64
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    with pytest.raises(ValueError, match="read-only"):
        one[0, 0] = 0


def test_projections_do_not_repeat_data_of_the_same_seed():
    """Many people create their data with default_rng(0)."""
    data = np.random.default_rng(0).standard_normal((64, 64))
    for orthogonal in (False, True):
        omega = maps.Favor(features=64, seed=0, orthogonal=orthogonal).projection(64)
        unit = omega / np.linalg.norm(omega, axis=1, keepdims=True)
        cosines = unit @ (data / np.linalg.norm(data, axis=1, keepdims=True)).T
        assert np.abs(cosines).max() < 0.7


def test_positive_features_survive_large_inputs_where_phi_underflows():
    m = maps.Favor(features=32)
    x = np.full((1, 16), 40.0)
    assert m.phi(x).max() == 0 or np.isfinite(m.phi(x)).all()
    features, log_scale = m.phi_key(x)
    assert features.max() > 0
    assert np.isfinite(log_scale).all()
