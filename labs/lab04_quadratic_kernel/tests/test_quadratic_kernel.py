"""Lab 04. Any correct solution passes: loops, einsum or @, features in any order."""

import tracemalloc

import numpy as np
import pytest
import quadratic_kernel as lab


def tensors(n, d, width, seed=0, keys=None):
    rng = np.random.default_rng([40, seed])
    keys = n if keys is None else keys
    return (
        rng.standard_normal((n, d)),
        rng.standard_normal((keys, d)),
        rng.standard_normal((keys, width)),
    )


def assert_near(found, expected):
    """Equal up to float32 arithmetic: to 1e-4 of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.max(np.abs(expected)))


def weighted_values(Q, K, V, causal=False):
    """The definition, one query at a time."""
    rows = []
    for i, q in enumerate(Q):
        seen = i + 1 if causal else len(K)
        weights = [(np.dot(q, k) + 1) ** 2 for k in K[:seen]]
        rows.append(sum(w * v for w, v in zip(weights, V, strict=False)) / sum(weights))
    return np.array(rows)


def peak_memory(function, *arguments):
    function(*(x[:10] for x in arguments))
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestConditions:
    def test_the_quadratic_kernel_meets_all_of_them(self):
        x = np.random.default_rng(0).standard_normal((5, 3))
        assert lab.similarity_conditions((x @ x.T + 1) ** 2) == {
            "finite_output": True,
            "non_negative": True,
            "symmetric": True,
            "positive_semidefinite": True,
        }

    def test_negative_entries_do_not_refute_semi_definite(self):
        found = lab.similarity_conditions(np.array([[2.0, -1.0], [-1.0, 2.0]]))
        assert not found["non_negative"]
        assert found["positive_semidefinite"]

    def test_positive_entries_do_not_prove_it(self):
        t = np.outer([-2.0, -1.0, 1.0, 2.0], [-2.0, -1.0, 1.0, 2.0])
        elu = np.where(t > 0, t + 1, np.exp(np.minimum(t, 0)))  # eigenvalue −0.0114
        found = lab.similarity_conditions(elu)
        assert found["non_negative"]
        assert not found["positive_semidefinite"]

    def test_more_points_than_features_give_a_singular_matrix_that_is_semi_definite(self):
        x = np.random.default_rng(1).standard_normal((30, 2))
        assert lab.similarity_conditions((x @ x.T + 1) ** 2)["positive_semidefinite"]

    def test_the_size_of_the_numbers_does_not_matter(self):
        x = np.random.default_rng(2).standard_normal((30, 2))
        assert lab.similarity_conditions(1e9 * (x @ x.T))["positive_semidefinite"]
        tiny = 1e-12 * np.array([[1.0, 2.0], [2.0, 1.0]])
        assert not lab.similarity_conditions(tiny)["positive_semidefinite"]

    def test_semi_definite_includes_symmetric(self):
        found = lab.similarity_conditions(np.array([[2.0, 1.0], [0.0, 2.0]]))
        assert not found["symmetric"]
        assert not found["positive_semidefinite"]

    def test_rounding_does_not_break_the_symmetry(self):
        S = np.array([[1.0, 0.3], [0.1 + 0.2, 1.0]])
        assert lab.similarity_conditions(S)["symmetric"]

    def test_similarities_that_cancel_have_no_finite_output(self):
        found = lab.similarity_conditions(np.array([[1.0, -1.0], [-1.0, 1.0]]))
        assert not found["finite_output"]

    def test_cancelling_up_to_rounding_counts(self):
        S = np.array([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
        assert not lab.similarity_conditions(S)["finite_output"]

    @pytest.mark.parametrize("size", [1e-12, 1e9])
    def test_every_tolerance_grows_with_the_numbers(self, size):
        S = size * np.array([[0.1, 0.2, -0.3], [0.2, 1.0, 0.0], [-0.1, 0.0, 2.0]])
        found = lab.similarity_conditions(S)
        assert not found["finite_output"]
        assert not found["non_negative"]
        assert not found["symmetric"]
        assert lab.similarity_conditions(size * np.eye(2))["finite_output"]

    def test_an_entry_that_is_zero_but_for_rounding_is_symmetric(self):
        assert lab.similarity_conditions(np.array([[1.0, 1e-13], [0.0, 1.0]]))["symmetric"]

    def test_negative_similarities_can_be_divided_by(self):
        assert lab.similarity_conditions(np.array([[-1.0, -2.0], [-2.0, -1.0]]))["finite_output"]

    def test_sums_run_over_the_keys(self):
        S = np.array([[1.0, 2.0], [-1.0, -2.0]])  # columns add up to 0, rows do not
        assert lab.similarity_conditions(S)["finite_output"]

    def test_zero_is_not_negative(self):
        assert lab.similarity_conditions(np.eye(3))["non_negative"]


class TestFactorises:
    def test_inner_products_do(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1, keys=9)
        assert lab.factorises(phi_Q @ phi_K.T, phi_Q, phi_K)

    def test_other_numbers_do_not(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1)
        assert not lab.factorises((phi_Q @ phi_K.T) ** 2, phi_Q, phi_K)

    def test_one_wrong_pair_is_enough(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1)
        S = phi_Q @ phi_K.T
        S[4, 1] += 0.1
        assert not lab.factorises(S, phi_Q, phi_K)

    def test_small_numbers_are_not_taken_for_equal(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1)
        assert not lab.factorises(1e-10 * (phi_Q @ phi_K.T), 1e-5 * phi_Q, 2e-5 * phi_K)

    def test_an_entry_that_cancels_may_be_rounded(self):
        phi_Q, phi_K = np.array([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0]]), np.ones((2, 3))
        assert lab.factorises(np.array([[0.0, 0.0], [3.0, 3.0]]), phi_Q, phi_K)

    def test_the_tolerance_is_a_millionth_of_the_largest(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1)
        S = phi_Q @ phi_K.T
        largest = np.max(np.abs(S))
        assert lab.factorises(S + 1e-7 * largest, phi_Q, phi_K)
        assert not lab.factorises(S + 1e-5 * largest, phi_Q, phi_K)

    def test_large_numbers_may_be_rounded(self):
        phi_Q, phi_K, _ = tensors(6, 4, 1)
        assert lab.factorises(1e12 * (phi_Q @ phi_K.T), 1e5 * phi_Q, 1e7 * phi_K)


class TestKernel:
    def test_small_example_by_hand(self):
        found = lab.quadratic_kernel(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
        assert_near(found, [[144, 1]])

    def test_every_pair_of_queries_and_keys(self):
        Q, K, _ = tensors(6, 3, 1, keys=8)
        assert_near(lab.quadratic_kernel(Q, K), [[(np.dot(q, k) + 1) ** 2 for k in K] for q in Q])

    @pytest.mark.parametrize("constant", [0.0, 0.5, 2.0])
    def test_constant(self, constant):
        Q, K = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
        assert_near(lab.quadratic_kernel(Q, K, constant=constant), [[(11 + constant) ** 2]])


class TestSquareMap:
    @pytest.mark.parametrize("d", [1, 2, 3, 6])
    def test_number_of_features(self, d):
        x, _, _ = tensors(5, d, 1)
        assert np.shape(lab.square_map(x)) == (5, d * (d + 1) // 2)

    @pytest.mark.parametrize("d", [1, 2, 3, 6])
    def test_inner_products_are_the_kernel(self, d):
        x, _, _ = tensors(20, d, 1)
        phi = np.asarray(lab.square_map(x))
        assert_near(phi @ phi.T, (x @ x.T) ** 2)

    def test_queries_and_keys_may_be_mapped_apart(self):
        Q, K, _ = tensors(6, 4, 1, keys=9)
        assert_near(np.asarray(lab.square_map(Q)) @ np.asarray(lab.square_map(K)).T, (Q @ K.T) ** 2)

    def test_one_and_two_give_all_coefficients_by_hand(self):
        phi = np.asarray(lab.square_map(np.array([[1.0, 2.0]])))
        np.testing.assert_allclose(np.sort(np.abs(phi[0])), [1, 2 * np.sqrt(2), 4], rtol=1e-5)


class TestQuadraticMap:
    @pytest.mark.parametrize("d", [1, 2, 3, 6])
    def test_number_of_features(self, d):
        x, _, _ = tensors(5, d, 1)
        assert np.shape(lab.quadratic_map(x)) == (5, (d + 1) * (d + 2) // 2)

    @pytest.mark.parametrize("d", [1, 2, 3, 6])
    def test_inner_products_are_the_kernel(self, d):
        x, _, _ = tensors(20, d, 1)
        phi = np.asarray(lab.quadratic_map(x))
        assert_near(phi @ phi.T, (x @ x.T + 1) ** 2)

    def test_queries_and_keys_may_be_mapped_apart(self):
        Q, K, _ = tensors(6, 4, 1, keys=9)
        found = np.asarray(lab.quadratic_map(Q)) @ np.asarray(lab.quadratic_map(K)).T
        assert_near(found, (Q @ K.T + 1) ** 2)

    def test_example_by_hand(self):
        phi = np.asarray(lab.quadratic_map(np.array([[1.0, 2.0], [3.0, 4.0]])))
        assert phi[0] @ phi[1] == pytest.approx(144, rel=1e-5)

    def test_zero_has_length_one(self):
        phi = np.asarray(lab.quadratic_map(np.zeros((1, 3))))
        assert np.sum(phi**2) == pytest.approx(1)

    def test_input_is_left_as_it_was(self):
        x, _, _ = tensors(5, 3, 1)
        copy = x.copy()
        lab.quadratic_map(x)
        np.testing.assert_array_equal(x, copy)


class TestAttention:
    def test_by_kernel_small_example_by_hand(self):
        Q, K, V = np.array([[1.0]]), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]])
        assert_near(lab.attention_by_kernel(Q, K, V), [[18]])  # (1·10 + 4·20)/5

    @pytest.mark.parametrize("function", ["attention_by_kernel", "attention_by_features"])
    @pytest.mark.parametrize(
        ("n", "d", "width", "keys"), [(9, 3, 3, 9), (7, 2, 5, 7), (4, 5, 2, 11)]
    )
    def test_is_the_weighted_mean_of_the_values(self, function, n, d, width, keys):
        Q, K, V = tensors(n, d, width, keys=keys)
        assert_near(getattr(lab, function)(Q, K, V), weighted_values(Q, K, V))

    @pytest.mark.parametrize(
        "function", ["attention_by_kernel", "attention_by_features", "causal_attention_by_features"]
    )
    def test_equal_values_stay_as_they_are(self, function):
        Q, K, _ = tensors(8, 3, 1)
        assert_near(getattr(lab, function)(Q, K, np.full((8, 2), 5.0)), np.full((8, 2), 5.0))

    def test_by_kernel_tiny_similarities_are_divided_by_their_sum_alone(self):
        K = 1 - 2.0**-22 * np.arange(1.0, 5.0)[:, None]  # q·k + 1 is 2⁻²² times 1, 2, 3, 4
        V = np.array([[30.0], [0.0], [0.0], [0.0]])
        assert_near(lab.attention_by_kernel(np.array([[-1.0]]), K, V), [[1.0]])

    def test_by_kernel_a_query_without_weight_is_an_error(self):
        Q, K, V = np.array([[1.0]]), np.array([[-1.0], [-1.0]]), np.array([[3.0], [4.0]])
        with pytest.raises(ZeroDivisionError):
            lab.attention_by_kernel(Q, K, V)

    def test_by_features_the_n_by_n_matrix_is_never_formed(self):
        n = 3000
        peak = peak_memory(lab.attention_by_features, *tensors(n, 2, 2))
        assert peak < n * n, f"{peak / 1e6:.0f} MB were used; (n, n) takes {8 * n * n / 1e6}"


class TestCausalAttention:
    @pytest.mark.parametrize(("n", "d", "width"), [(9, 3, 3), (12, 2, 5), (6, 4, 1)])
    def test_is_the_weighted_mean_of_the_values_so_far(self, n, d, width):
        Q, K, V = tensors(n, d, width)
        assert_near(
            lab.causal_attention_by_features(Q, K, V), weighted_values(Q, K, V, causal=True)
        )

    def test_the_first_output_is_the_first_value(self):
        Q, K, V = tensors(5, 3, 2)
        assert_near(lab.causal_attention_by_features(Q, K, V)[0], V[0])

    def test_the_last_output_is_that_of_full_attention(self):
        Q, K, V = tensors(10, 3, 2)
        found = lab.causal_attention_by_features(Q, K, V)
        assert_near(found[-1:], weighted_values(Q[-1:], K, V))

    def test_the_future_does_not_change_the_past(self):
        Q, K, V = tensors(10, 3, 2)
        before = np.array(lab.causal_attention_by_features(Q, K, V))
        K[7:], V[7:] = 5 * K[7:], -V[7:]
        np.testing.assert_array_equal(lab.causal_attention_by_features(Q, K, V)[:7], before[:7])

    def test_the_n_by_n_matrix_is_never_formed(self):
        n = 3000
        peak = peak_memory(lab.causal_attention_by_features, *tensors(n, 2, 2))
        assert peak < n * n, f"{peak / 1e6:.0f} MB were used; (n, n) takes {8 * n * n / 1e6}"


class TestCosts:
    def test_example_with_wide_values(self):
        assert lab.quadratic_multiply_adds(1000, 32, 80) == 89_760_000

    def test_one_coordinate_has_three_features(self):
        assert lab.quadratic_multiply_adds(10, 1, 1) == 60

    def test_is_linear_in_the_length(self):
        assert lab.quadratic_multiply_adds(3000, 8, 5) == 3 * lab.quadratic_multiply_adds(
            1000, 8, 5
        )

    @pytest.mark.parametrize(("D", "M", "n"), [(32, 80, 802), (16, 16, 154), (1, 1, 4), (2, 1, 5)])
    def test_crossover(self, D, M, n):
        assert lab.crossover(D, M) == n

    @pytest.mark.parametrize(("D", "M"), [(5, 7), (12, 3), (9, 9)])
    def test_crossover_is_where_the_counts_cross(self, D, M):
        n, m = lab.crossover(D, M), (D + 1) * (D + 2) // 2
        assert n * n * (D + M) > 2 * n * m * M
        assert (n - 1) ** 2 * (D + M) <= 2 * (n - 1) * m * M
