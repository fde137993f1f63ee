"""Lab 03. Any correct solution passes: loops, einsum or @, in float32 or float64."""

import math

import feature_maps as lab
import numpy as np
import pytest


def data(n, d, seed=0, dtype=np.float64):
    return np.random.default_rng([3, seed]).standard_normal((3, n, d)).astype(dtype)


def assert_map(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def near(expected):
    """Equal up to float32 arithmetic."""
    return pytest.approx(expected, rel=1e-3, abs=1e-6)


def positive(x):
    """A map that only the tests use, with three features."""
    return np.stack([np.ones(x.shape[:-1]), np.exp(x[..., 0]), 1 + x[..., 1] ** 2], axis=-1)


def similarities(Q, K, feature_map):
    return np.array([[np.dot(q, k) for k in feature_map(K)] for q in feature_map(Q)])


def implied(Q, K, feature_map):
    rows = similarities(Q, K, feature_map)
    return np.array([row / np.sum(row) for row in rows])


def softmax(Q, K, scale):
    rows = [[math.exp(scale * np.dot(q, k)) for k in K] for q in Q]
    return np.array([np.array(row) / math.fsum(row) for row in rows])


class TestELUPlusOne:
    def test_is_x_plus_one_above_zero(self):
        x = np.array([[0.5, 1.0, 3.0, 100.0]])
        assert_map(lab.elu_plus_one(x), x + 1)

    def test_is_exp_below_zero(self):
        found = lab.elu_plus_one(np.array([[-0.5, -1.0, -3.0]]))
        assert_map(found, [[0.60653066, 0.36787944, 0.04978707]])

    def test_of_zero_is_one(self):
        assert_map(lab.elu_plus_one(np.zeros((1, 2))), np.ones((1, 2)))

    @pytest.mark.parametrize(("x", "dtype"), [(-20.0, np.float32), (-40.0, np.float64)])
    def test_does_not_cancel_far_below_zero(self, x, dtype):
        found = float(np.ravel(lab.elu_plus_one(np.array([[x]], dtype=dtype)))[0])
        assert found == pytest.approx(math.exp(x), rel=1e-4), "(exp(x) - 1) + 1 loses every digit"

    @pytest.mark.filterwarnings("ignore")
    def test_is_finite_for_large_float32(self):
        found = lab.elu_plus_one(np.array([[100.0, 1000.0]], dtype=np.float32))
        assert_map(found, [[101, 1001]])

    def test_keeps_the_shape_and_the_input(self):
        x = np.linspace(-2, 2, 24).reshape(2, 3, 4)
        copy = x.copy()
        assert np.shape(lab.elu_plus_one(x)) == (2, 3, 4)
        np.testing.assert_array_equal(x, copy)


class TestReLU:
    def test_values(self):
        found = lab.relu_feature_map(np.array([[-2.0, -0.1, 0.0, 0.1, 3.0]]))
        assert_map(found, [[0, 0, 0, 0.1, 3]])

    def test_is_never_negative(self):
        assert np.min(lab.relu_feature_map(data(20, 8)[0])) == 0

    def test_keeps_the_input(self):
        x = data(20, 8)[0]
        copy = x.copy()
        lab.relu_feature_map(x)
        np.testing.assert_array_equal(x, copy)

    def test_is_exactly_0_below_0(self):
        assert np.max(np.abs(lab.relu_feature_map(np.array([[-3.0, -1e-9]])))) == 0
        assert_map(lab.relu_feature_map(np.array([[2e-12, 5e-12]])), [[2e-12, 5e-12]])


class TestSquaredReLU:
    def test_values(self):
        found = lab.squared_relu_feature_map(np.array([[-2.0, -0.1, 0.0, 0.5, 3.0]]))
        assert_map(found, [[0, 0, 0, 0.25, 9]])

    def test_keeps_the_input(self):
        x = data(20, 8)[0]
        copy = x.copy()
        lab.squared_relu_feature_map(x)
        np.testing.assert_array_equal(x, copy)

    def test_is_exactly_0_below_0(self):
        assert np.max(np.abs(lab.squared_relu_feature_map(np.array([[-3.0, -1e-9]])))) == 0


class TestExp:
    def test_values(self):
        found = lab.exp_feature_map(np.array([[-1.0, 0.0, 2.0]]))
        assert_map(found, [[0.36787944, 1, 7.3890561]])

    def test_x_is_not_clipped(self):
        x = np.array([[-60.0, 0.0, 60.0]])
        assert_map(lab.exp_feature_map(x), np.exp(x))

    def test_acts_on_each_coordinate_alone(self):
        x = data(5, 4)[0]
        moved = x.copy()
        moved[:, 0] += 100
        assert_map(lab.exp_feature_map(moved)[:, 1:], lab.exp_feature_map(x)[:, 1:])


class TestSoftmaxKernel:
    def test_one_feature_per_row_of_the_projection(self):
        found = lab.softmax_kernel_feature_map(data(7, 4)[0], lab.random_projection(10, 4))
        assert np.shape(found) == (7, 10)

    def test_of_zero_is_one_over_root_m(self):
        found = lab.softmax_kernel_feature_map(np.zeros((1, 4)), lab.random_projection(16, 4))
        assert_map(found, np.full((1, 16), 0.25))

    def test_by_hand(self):
        x, projection = np.array([[4.0, 0, 0, 0, 0, 0, 0, 0, 0, 2.0, 0, 0, 0, 0, 0, 0]]), np.eye(16)
        exponent = np.ravel(x) / 2 - (4.0**2 + 2.0**2) / 4 / 2  # 16^(-1/4) = 1/2
        found = lab.softmax_kernel_feature_map(x, projection[[0, 9, 1]])
        assert_map(np.ravel(found), np.exp(exponent[[0, 9, 1]]) / math.sqrt(3))

    def test_is_always_positive(self):
        found = lab.softmax_kernel_feature_map(data(50, 16)[0], lab.random_projection(64, 16))
        assert np.min(found) > 0

    def test_estimates_the_softmax_kernel(self):
        q, k = 0.5 * data(4, 16)[:2]
        projection = lab.random_projection(200_000, 16)
        phi_q = np.asarray(lab.softmax_kernel_feature_map(q, projection), dtype=np.float64)
        phi_k = np.asarray(lab.softmax_kernel_feature_map(k, projection), dtype=np.float64)
        np.testing.assert_allclose(phi_q @ phi_k.T, np.exp(q @ k.T / 4), rtol=0.03)


class TestImplicitAttention:
    @pytest.mark.parametrize("feature_map", [np.exp, positive])
    def test_weights(self, feature_map):
        Q, K, _ = data(12, 5)
        found = lab.compute_implicit_attention(Q, K, feature_map)
        np.testing.assert_allclose(found, implied(Q, K, feature_map), rtol=1e-4)

    def test_rows_add_up_to_one(self):
        Q, K, _ = data(30, 8, dtype=np.float32)
        found = lab.compute_implicit_attention(Q, K, np.exp)
        np.testing.assert_allclose(np.sum(found, axis=1), 1, rtol=1e-4)

    def test_rows_are_queries_and_columns_are_keys(self):
        Q, K, _ = data(12, 5)
        found = lab.compute_implicit_attention(Q[:4], K, np.exp)
        assert np.shape(found) == (4, 12)
        np.testing.assert_allclose(found, implied(Q[:4], K, np.exp), rtol=1e-4)

    def test_one_key_gets_all_the_weight(self):
        Q, K, _ = data(6, 5)
        assert_map(lab.compute_implicit_attention(Q, K[:1], np.exp), np.ones((6, 1)))

    def test_a_zero_weight_is_allowed(self):
        Q, K = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [1.0, 1.0]])
        found = lab.compute_implicit_attention(Q, K, lambda x: np.maximum(x, 0))
        assert_map(found, [[0.75, 0.25], [0, 1]])

    @pytest.mark.filterwarnings("ignore")
    def test_a_row_without_weight_is_an_error(self):
        Q, K = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])
        with pytest.raises((ArithmeticError, ValueError)):
            lab.compute_implicit_attention(Q, K, lambda x: np.maximum(x, 0))

    def test_a_negative_sum_is_no_error(self):
        Q, K = np.array([[1.0, 2.0], [-1.0, 3.0]]), np.array([[1.0, 0.0], [4.0, -1.0]])
        found = lab.compute_implicit_attention(Q, K, lambda x: x)
        assert_map(found, [[1 / 3, 2 / 3], [0.125, 0.875]])

    def test_tiny_weights_are_not_swallowed(self):
        Q, K, _ = data(12, 5)
        found = lab.compute_implicit_attention(Q, K, lambda x: 1e-8 * np.exp(x))
        np.testing.assert_allclose(found, implied(Q, K, np.exp), rtol=1e-3)


class TestShowAttention:
    @pytest.mark.parametrize(
        "A", [np.eye(3), np.ones((1, 1)), np.full((2, 5), 0.2), np.array([[1.5, -0.5], [0.0, 1.0]])]
    )
    @pytest.mark.filterwarnings("ignore")  # matplotlib's, of a picture without a screen
    def test_runs(self, A, monkeypatch):
        monkeypatch.setenv("MPLBACKEND", "agg")
        lab.show_attention(A)


class TestCompareToSoftmax:
    @pytest.mark.parametrize("scale", [None, 1, 0.01])
    @pytest.mark.parametrize("name", ["mse", "max_diff", "correlation"])
    def test_metric(self, name, scale):
        Q, K, _ = data(20, 4)
        A, S = implied(Q, K, positive), softmax(Q, K, 0.5 if scale is None else scale)
        expected = {
            "mse": math.fsum(np.ravel(A - S) ** 2) / 400,
            "max_diff": max(np.max(A - S), np.max(S - A)),
            "correlation": np.corrcoef(np.ravel(A), np.ravel(S))[0, 1],
        }
        arguments = {} if scale is None else {"scale": scale}
        found = lab.compare_to_softmax(Q, K, positive, **arguments)
        assert found[name] == near(expected[name])

    def test_difference_counts_on_both_sides(self):
        Q, K, _ = data(20, 4)
        A, S = implied(Q, K, lambda x: np.exp(2 * x)), softmax(Q, K, 0.01)
        assert np.max(A - S) > np.max(S - A)
        found = lab.compare_to_softmax(Q, K, lambda x: np.exp(2 * x), scale=0.01)
        assert found["max_diff"] == near(np.max(A - S))

    @pytest.mark.filterwarnings("ignore")
    def test_large_scores_do_not_overflow(self):
        Q, K = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
        found = lab.compare_to_softmax(Q, K, positive, scale=2000.0)
        assert found["mse"] == near(np.mean((implied(Q, K, positive) - np.eye(2)) ** 2))

    def test_float32_inputs(self):
        Q, K, _ = data(50, 16, dtype=np.float32)
        A, S = implied(Q, K, np.exp), softmax(Q, K, 0.25)
        found = lab.compare_to_softmax(Q, K, np.exp)
        assert found["mse"] == near(np.mean((A - S) ** 2))

    @pytest.mark.filterwarnings("ignore")
    def test_a_row_without_weight_is_an_error(self):
        Q, K = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])
        with pytest.raises((ArithmeticError, ValueError)):
            lab.compare_to_softmax(Q, K, lambda x: np.maximum(x, 0))


class TestQuality:
    NAMES = (
        "output_relative_error",
        "output_cosine",
        "mse",
        "max_diff",
        "correlation",
        "smallest_normalizer",
        "condition_number",
        "negative_fraction",
    )

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("sign", ["positive", "any"])
    def test_metric(self, name, sign):
        Q, K, V = data(20, 4)
        feature_map = positive if sign == "positive" else lambda x: x + 1.5
        B, S = similarities(Q, K, feature_map), softmax(Q, K, 0.5)
        A = implied(Q, K, feature_map)
        ours, theirs = A @ V, S @ V
        cosines = [
            np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b))
            for a, b in zip(ours, theirs, strict=True)
        ]
        expected = {
            "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
            "output_cosine": np.mean(cosines),
            "mse": np.mean((A - S) ** 2),
            "max_diff": np.max(np.abs(A - S)),
            "correlation": np.corrcoef(np.ravel(A), np.ravel(S))[0, 1],
            "smallest_normalizer": min(abs(np.sum(row)) for row in B),
            "condition_number": max(np.sum(np.abs(row)) / abs(np.sum(row)) for row in B),
            "negative_fraction": np.count_nonzero(A < 0) / A.size,
        }
        assert (expected["negative_fraction"] > 0) == (sign == "any")
        found = lab.analyze_feature_map_quality(feature_map, Q, K, V)
        assert found[name] == near(expected[name])

    def test_weights_of_a_row_with_a_negative_sum_can_be_positive(self):
        Q, K = np.array([[-1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 1.0], [2.0, 1.0]])
        found = lab.analyze_feature_map_quality(lambda x: x, Q, K, np.eye(2))
        assert found["negative_fraction"] == 0

    def test_condition_of_a_row_with_a_negative_sum(self):
        Q, K = np.array([[-1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 1.0], [-2.0, 1.0]])
        found = lab.analyze_feature_map_quality(lambda x: x, Q, K, np.eye(2))
        assert found["condition_number"] == near(5)  # |−3| + |2| over |−3 + 2|
        assert found["smallest_normalizer"] == near(1)

    def test_values_may_have_another_width(self):
        Q, K, V = data(20, 4)
        A, S = implied(Q, K, positive), softmax(Q, K, 0.5)
        found = lab.analyze_feature_map_quality(positive, Q, K, V[:, :3])
        expected = np.linalg.norm((A - S) @ V[:, :3]) / np.linalg.norm(S @ V[:, :3])
        assert found["output_relative_error"] == near(expected)

    @pytest.mark.filterwarnings("ignore")
    def test_a_row_without_weight_is_an_error(self):
        Q, K = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])
        with pytest.raises((ArithmeticError, ValueError)):
            lab.analyze_feature_map_quality(lambda x: np.maximum(x, 0), Q, K, np.eye(2))
