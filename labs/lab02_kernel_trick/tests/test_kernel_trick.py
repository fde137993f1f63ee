"""Lab 02. Any correct solution passes: loops, einsum or @, in float32 or float64."""

import tracemalloc

import kernel_trick as lab
import numpy as np
import pytest


def tensors(n, d, width, seed=0, dtype=np.float64):
    rng = np.random.default_rng([2, seed])
    Q, K = rng.standard_normal((2, n, d)).astype(dtype)
    return Q, K, rng.standard_normal((n, width)).astype(dtype)


def assert_near(found, expected):
    """Equal up to float32 arithmetic: to 1e-4 of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.max(np.abs(expected)))


def with_square(x):
    return np.concatenate([np.exp(x / 4), 1 + x * x], axis=-1)


def weighted_values(Q, K, V, feature_map, normalize):
    """The definition, one query at a time."""
    rows = []
    for q in feature_map(Q):
        similarity = np.array([np.dot(q, k) for k in feature_map(K)])
        total = np.sum(similarity) if normalize else 1.0
        rows.append(sum(s * v for s, v in zip(similarity, V, strict=True)) / total)
    return np.array(rows)


class TestAssociativity:
    def test_holds_exactly_for_whole_numbers(self):
        Q, K, V = np.random.default_rng(0).integers(-3, 4, (3, 20, 5)).astype(np.float32)
        assert lab.verify_associativity(Q, K, V)

    @pytest.mark.parametrize(("n", "d"), [(1, 1), (7, 3), (100, 64), (5, 40)])
    def test_holds_up_to_rounding(self, n, d):
        assert lab.verify_associativity(*tensors(n, d, d))

    @pytest.mark.parametrize("seed", range(3))
    def test_holds_in_float32_where_entries_near_zero_have_lost_digits(self, seed):
        Q, K, V = tensors(200, 64, 64, seed, np.float32)
        assert not np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))
        assert lab.verify_associativity(Q, K, V)

    def test_holds_for_values_of_another_width(self):
        assert lab.verify_associativity(*tensors(20, 8, 3))

    def test_answers_true_or_false(self):
        assert isinstance(lab.verify_associativity(*tensors(10, 4, 4)), (bool, np.bool_))

    @pytest.mark.filterwarnings("ignore")
    def test_fails_where_one_order_overflows(self):
        big, small = np.full((3, 3), 1e200), np.full((3, 3), 1e-300)
        assert not lab.verify_associativity(big, big, small)

    @pytest.mark.filterwarnings("ignore")
    def test_fails_where_neither_order_gives_numbers(self):
        Q, K, V = tensors(3, 2, 2)
        assert not lab.verify_associativity(Q, K, np.full_like(V, np.nan))


class TestStandardOrder:
    def test_small_example_by_hand(self):
        Q, K = np.array([[1.0, 0.0], [2.0, 1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
        output, weights = lab.standard_attention_order(Q, K, np.array([[1.0], [10.0]]))
        assert_near(weights, [[1, 3], [4, 10]])
        assert_near(output, [[31], [104]])

    def test_weights_are_all_pairs_of_queries_and_keys(self):
        Q, K, V = tensors(30, 8, 8)
        _, weights = lab.standard_attention_order(Q, K, V)
        assert_near(weights, [[np.dot(q, k) for k in K] for q in Q])

    def test_rows_are_queries_when_n_equals_d(self):
        Q, K, V = tensors(6, 6, 6)
        _, weights = lab.standard_attention_order(Q, K, V)
        assert_near(weights, [[np.dot(q, k) for k in K] for q in Q])

    def test_output_is_the_weighted_sum_of_values(self):
        Q, K, V = tensors(30, 8, 8)
        output, _ = lab.standard_attention_order(Q, K, V)
        assert_near(output, weighted_values(Q, K, V, lambda x: x, normalize=False))

    def test_values_may_have_another_width(self):
        Q, K, V = tensors(12, 4, 7)
        output, weights = lab.standard_attention_order(Q, K, V)
        assert np.shape(weights) == (12, 12)
        assert_near(output, weighted_values(Q, K, V, lambda x: x, normalize=False))

    def test_there_is_no_softmax_and_no_scale(self):
        Q, K, V = tensors(10, 4, 4)
        output, weights = lab.standard_attention_order(Q, K, V)
        doubled, double_weights = lab.standard_attention_order(2 * Q, K, V)
        assert_near(double_weights, 2 * np.asarray(weights))
        assert_near(doubled, 2 * np.asarray(output))
        assert np.min(weights) < 0

    def test_float32_inputs(self):
        Q, K, V = tensors(100, 64, 64, dtype=np.float32)
        output, _ = lab.standard_attention_order(Q, K, V)
        wide = (Q.astype(np.float64), K.astype(np.float64), V.astype(np.float64))
        assert_near(output, weighted_values(*wide, lambda x: x, normalize=False))

    def test_inputs_are_left_as_they_were(self):
        Q, K, V = tensors(10, 4, 4)
        copies = Q.copy(), K.copy(), V.copy()
        lab.standard_attention_order(Q, K, V)
        assert all(np.array_equal(a, b) for a, b in zip((Q, K, V), copies, strict=True))


class TestLinearOrder:
    @pytest.mark.parametrize("seed", range(3))
    def test_identity_gives_the_same_output_as_the_standard_order(self, seed):
        Q, K, V = tensors(40, 8, 8, seed)
        output = lab.linear_attention_order(Q, K, V, lambda x: x)
        assert_near(output, weighted_values(Q, K, V, lambda x: x, normalize=False))

    def test_feature_map_is_applied_to_queries_and_keys_only(self):
        Q, K, V = tensors(40, 8, 8)
        output = lab.linear_attention_order(Q, K, V, np.exp)
        assert_near(output, weighted_values(Q, K, V, np.exp, normalize=False))

    def test_feature_map_may_change_the_dimension(self):
        Q, K, V = tensors(20, 5, 3)
        output = lab.linear_attention_order(Q, K, V, feature_map=with_square)
        assert_near(output, weighted_values(Q, K, V, with_square, normalize=False))

    def test_is_not_normalised_by_default(self):
        Q, K, V = tensors(20, 4, 4)
        once = np.asarray(lab.linear_attention_order(Q, K, V, np.exp))
        twice = lab.linear_attention_order(
            np.concatenate([Q, Q]), np.concatenate([K, K]), np.concatenate([V, V]), np.exp
        )
        assert_near(twice[:20], 2 * once)

    def test_normalised_rows_are_averages_of_the_values(self):
        Q, K, _ = tensors(20, 4, 4)
        output = lab.linear_attention_order(Q, K, np.ones((20, 3)), np.exp, normalize=True)
        assert_near(output, np.ones((20, 3)))

    @pytest.mark.parametrize("feature_map", [np.exp, with_square])
    def test_normalised_output(self, feature_map):
        Q, K, V = tensors(20, 4, 6)
        output = lab.linear_attention_order(Q, K, V, feature_map, normalize=True)
        assert_near(output, weighted_values(Q, K, V, feature_map, normalize=True))

    def test_nothing_is_added_to_the_normaliser(self):
        Q, K, V = tensors(6, 3, 3)
        output = lab.linear_attention_order(Q, K, V, lambda x: 1e-8 * np.exp(x), normalize=True)
        assert_near(output, weighted_values(Q, K, V, np.exp, normalize=True))

    def test_a_negative_normaliser_keeps_its_sign(self):
        Q = np.array([[-1.0, 0.0], [-2.0, 1.0], [1.0, 1.0]])
        K, V = np.array([[1.0, 3.0], [3.0, 0.0], [2.0, 0.0]]), np.array([[1.0], [5.0], [-3.0]])
        output = lab.linear_attention_order(Q, K, V, lambda x: x, normalize=True)
        assert_near(output, weighted_values(Q, K, V, lambda x: x, normalize=True))

    def test_the_n_by_n_matrix_is_never_formed(self):
        n = 4000
        Q, K, V = tensors(n, 4, 4, dtype=np.float32)
        lab.linear_attention_order(Q[:10], K[:10], V[:10], np.exp)
        tracemalloc.start()
        try:
            lab.linear_attention_order(Q, K, V, np.exp)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < n * n, (
            f"{peak / 1e6:.0f} MB were used; (n, n) float32 takes {4 * n * n / 1e6}"
        )

    def test_float32_inputs(self):
        Q, K, V = tensors(100, 64, 64, dtype=np.float32)
        output = lab.linear_attention_order(Q, K, V, lambda x: x)
        wide = (Q.astype(np.float64), K.astype(np.float64), V.astype(np.float64))
        assert_near(output, weighted_values(*wide, lambda x: x, normalize=False))


class TestFeatureMaps:
    def test_simple_feature_map_changes_nothing(self):
        x = np.array([[-2.0, 0.0, 3.5], [1.0, -7.0, 2.0]])
        np.testing.assert_array_equal(lab.simple_feature_map(x), x)

    def test_elu_is_x_plus_one_above_zero(self):
        x = np.array([[0.5, 1.0, 3.0, 100.0]])
        np.testing.assert_allclose(lab.elu_feature_map(x), x + 1, rtol=1e-6)

    def test_elu_is_exp_below_zero(self):
        found = np.ravel(lab.elu_feature_map(np.array([[-0.5, -1.0, -3.0]])))
        np.testing.assert_allclose(found, [0.60653066, 0.36787944, 0.04978707], rtol=1e-6)

    def test_elu_of_zero_is_one(self):
        np.testing.assert_allclose(np.ravel(lab.elu_feature_map(np.zeros((1, 2)))), 1, rtol=1e-6)

    @pytest.mark.parametrize(("x", "dtype"), [(-20.0, np.float32), (-40.0, np.float64)])
    def test_elu_does_not_cancel_far_below_zero(self, x, dtype):
        found = float(np.ravel(lab.elu_feature_map(np.array([[x]], dtype=dtype)))[0])
        assert found == pytest.approx(np.exp(x), rel=1e-4), "(exp(x) - 1) + 1 loses every digit"

    @pytest.mark.filterwarnings("ignore")
    def test_elu_is_finite_for_large_float32(self):
        found = lab.elu_feature_map(np.array([[100.0, 1000.0]], dtype=np.float32))
        np.testing.assert_allclose(np.ravel(found), [101, 1001], rtol=1e-6)

    def test_elu_keeps_the_shape_and_the_input(self):
        x = np.linspace(-2, 2, 24).reshape(2, 3, 4)
        copy = x.copy()
        assert np.shape(lab.elu_feature_map(x)) == (2, 3, 4)
        np.testing.assert_array_equal(x, copy)

    def test_elu_in_linear_attention_gives_positive_weights(self):
        Q, K, _ = tensors(30, 8, 8)
        weights = lab.linear_attention_order(Q, K, np.eye(30), lab.elu_feature_map, normalize=True)
        assert np.min(weights) > 0
        assert_near(np.sum(weights, axis=1), np.ones(30))
