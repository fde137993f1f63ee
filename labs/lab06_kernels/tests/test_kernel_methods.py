"""Lab 06. Any correct solution passes: loops or @, any method for the machine."""

import tracemalloc

import kernel_methods as lab
import numpy as np
import pytest


def points(n, d, seed=0):
    return np.random.default_rng([60, seed]).standard_normal((n, d))


def rbf(X, Y, length=1.0):
    return np.exp(-((X[:, None] - Y[None]) ** 2).sum(-1) / (2 * length**2))


def elu_gram():
    """elu(x·y) + 1 on ±1, ±2: positive entries, an eigenvalue −0.0114."""
    t = np.outer([-2.0, -1.0, 1.0, 2.0], [-2.0, -1.0, 1.0, 2.0])
    return np.where(t > 0, t + 1, np.exp(np.minimum(t, 0)))


def assert_near(found, expected, part=1e-4):
    """Equal up to float32 arithmetic: to a part of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found, expected, rtol=0, atol=part * np.max(np.abs(expected)))


class TestGramMatrices:
    def test_polynomial_by_hand(self):
        found = lab.polynomial_gram(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
        assert_near(found, [[144, 1]])

    @pytest.mark.parametrize(("degree", "constant"), [(1, 0.0), (2, 0.0), (3, 0.5), (4, 2.0)])
    def test_polynomial_of_any_degree(self, degree, constant):
        X, Y = points(5, 3), points(7, 3, seed=1)
        expected = [[(np.dot(x, y) + constant) ** degree for y in Y] for x in X]
        assert_near(lab.polynomial_gram(X, Y, degree=degree, constant=constant), expected)

    def test_rbf_by_hand(self):
        X, Y = np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [3.0, 4.0]])
        assert_near(lab.rbf_gram(X, Y, length=5.0), [[1, np.exp(-0.5)]])

    @pytest.mark.parametrize("length", [0.5, 1.0, 3.0])
    def test_rbf_of_any_length(self, length):
        X, Y = points(5, 3), points(7, 3, seed=1)
        assert_near(lab.rbf_gram(X, Y, length=length), rbf(X, Y, length))

    def test_rbf_of_a_point_with_itself_is_one(self):
        X = points(20, 4)
        assert_near(np.diagonal(lab.rbf_gram(X, X, length=0.7)), np.ones(20))

    def test_rbf_sees_only_differences(self):
        X, Y = points(4, 2), points(6, 2, seed=1)
        assert_near(lab.rbf_gram(X + 3, Y + 3), rbf(X, Y))


class TestSemiDefinite:
    def test_by_hand(self):
        assert lab.is_gram_matrix(np.array([[2.0, 1.0], [1.0, 2.0]]))
        assert not lab.is_gram_matrix(np.array([[1.0, 2.0], [2.0, 1.0]]))

    def test_negative_entries_are_allowed(self):
        assert lab.is_gram_matrix(np.array([[1.0, -1.0], [-1.0, 1.0]]))

    def test_positive_entries_are_not_enough(self):
        assert not lab.is_gram_matrix(elu_gram())

    def test_a_positive_determinant_is_not_enough(self):
        assert not lab.is_gram_matrix(-np.eye(2))

    def test_singular_matrices_are_allowed(self):
        X = points(30, 2)
        assert lab.is_gram_matrix(X @ X.T)
        assert lab.is_gram_matrix(np.diag([1.0, 0.0]))

    @pytest.mark.parametrize("size", [1e-12, 1e12])
    def test_the_size_of_the_numbers_does_not_matter(self, size):
        X = points(30, 2)
        assert lab.is_gram_matrix(size * (X @ X.T))
        assert not lab.is_gram_matrix(size * elu_gram())

    def test_it_must_be_symmetric(self):
        assert not lab.is_gram_matrix(np.array([[2.0, 1.0], [0.0, 2.0]]))
        assert not lab.is_gram_matrix(1e-12 * np.array([[2.0, 1.0], [0.0, 2.0]]))

    def test_rounding_does_not_break_the_symmetry(self):
        assert lab.is_gram_matrix(np.array([[1.0, 0.3], [0.1 + 0.2, 1.0]]))
        assert lab.is_gram_matrix(np.array([[1.0, 1e-13], [0.0, 1.0]]))

    @pytest.mark.parametrize("seed", range(3))
    def test_a_direction_refutes_a_matrix(self, seed):
        A = points(7, 7, seed)
        K = A + A.T
        c = np.asarray(lab.negative_direction(K))
        assert c.shape == (7,)
        assert c @ K @ c < 0

    def test_a_direction_refutes_elu(self):
        c = np.asarray(lab.negative_direction(elu_gram()))
        assert c @ elu_gram() @ c < 0


class TestFunctionSpace:
    def test_norm_by_hand(self):
        assert lab.rkhs_norm(np.array([3.0, 2.0]), np.diag([1.0, 4.0])) == pytest.approx(5)

    def test_norm_of_one_kernel_function(self):
        assert lab.rkhs_norm(np.array([2.0]), np.array([[9.0]])) == pytest.approx(6)

    def test_norm_is_that_of_the_weights(self):
        X, alpha = points(6, 3), points(6, 1)[:, 0]
        found = lab.rkhs_norm(alpha, X @ X.T)
        assert found == pytest.approx(np.linalg.norm(X.T @ alpha), rel=1e-4)

    def test_representer_has_the_values_of_g(self):
        X, Z, gamma = 2 * points(5, 2), 2 * points(9, 2, seed=1), points(9, 1, seed=2)[:, 0]
        alpha = np.asarray(lab.representer(gamma, rbf(X, Z), rbf(X, X)))
        assert_near(rbf(X, X) @ alpha, rbf(X, Z) @ gamma)

    def test_representer_is_shorter(self):
        X, Z, gamma = 2 * points(5, 2), 2 * points(9, 2, seed=1), points(9, 1, seed=2)[:, 0]
        alpha = np.asarray(lab.representer(gamma, rbf(X, Z), rbf(X, X)))
        assert alpha @ rbf(X, X) @ alpha < gamma @ rbf(Z, Z) @ gamma

    def test_representer_of_a_function_in_the_span_is_itself(self):
        X, gamma = 2 * points(5, 2), points(5, 1, seed=2)[:, 0]
        assert_near(lab.representer(gamma, rbf(X, X), rbf(X, X)), gamma)


class TestRidge:
    def test_dual_by_hand(self):
        assert_near(lab.ridge_dual(np.eye(2), np.array([4.0, 8.0]), 0.5), [2, 4])

    def test_primal_by_hand(self):
        assert_near(lab.ridge_primal(np.array([[1.0], [1.0]]), np.array([4.0, 8.0]), 1.0), [3])

    @pytest.mark.parametrize("penalty", [0.01, 0.3])
    def test_dual_solves_its_equation(self, penalty):
        X, y = points(10, 2), points(10, 1, seed=1)[:, 0]
        alpha = np.asarray(lab.ridge_dual(rbf(X, X), y, penalty))
        assert_near(rbf(X, X) @ alpha + 10 * penalty * alpha, y)

    @pytest.mark.parametrize(("n", "m"), [(20, 4), (5, 8)])
    def test_both_forms_predict_the_same(self, n, m):
        Phi, y = points(n, m), points(n, 1, seed=1)[:, 0]
        w = np.asarray(lab.ridge_primal(Phi, y, 0.1))
        alpha = np.asarray(lab.ridge_dual(Phi @ Phi.T, y, 0.1))
        assert_near(Phi @ w, Phi @ (Phi.T @ alpha))
        assert_near(w, Phi.T @ alpha, part=1e-3)

    def test_no_other_function_is_better(self):
        X, y = points(8, 2), points(8, 1, seed=1)[:, 0]
        K, rng = rbf(X, X), np.random.default_rng(5)

        def objective(alpha):
            return np.mean((K @ alpha - y) ** 2) + 0.1 * alpha @ K @ alpha

        alpha = np.asarray(lab.ridge_dual(K, y, 0.1))
        best = objective(alpha)
        assert all(objective(alpha + 0.1 * rng.standard_normal(8)) > best for _ in range(20))

    def test_twice_the_data_change_nothing(self):
        Phi, y = points(15, 3), points(15, 1, seed=1)[:, 0]
        once = lab.ridge_primal(Phi, y, 0.2)
        twice = lab.ridge_primal(np.vstack([Phi, Phi]), np.concatenate([y, y]), 0.2)
        assert_near(twice, once)

    def test_primal_never_forms_the_gram_matrix(self):
        n = 2000
        Phi, y = points(n, 4), points(n, 1)[:, 0]
        lab.ridge_primal(Phi[:10], y[:10], 0.1)
        tracemalloc.start()
        try:
            lab.ridge_primal(Phi, y, 0.1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < n * n, f"{peak / 1e6:.0f} MB were used; (n, n) takes {8 * n * n / 1e6}"


class TestDescent:
    def test_no_step_is_zero(self):
        np.testing.assert_array_equal(lab.rkhs_descent(np.eye(3), np.ones(3), 0.1, 0.1, 0), 0)

    def test_one_step_by_hand(self):
        found = lab.rkhs_descent(np.eye(2), np.array([4.0, 8.0]), 0.5, 0.5, 1)
        assert_near(found, [2, 4])

    def test_the_first_step_does_not_depend_on_the_kernel(self):
        X, y = points(5, 2), points(5, 1, seed=1)[:, 0]
        assert_near(lab.rkhs_descent(rbf(X, X), y, 0.1, 0.5, 1), 2 * 0.5 / 5 * y)

    def test_two_steps_by_the_formula(self):
        X, y = points(5, 2), points(5, 1, seed=1)[:, 0]
        K, alpha = rbf(X, X), 0.2 * y  # after one step
        gradient = 2 / 5 * (K @ alpha - y) + 0.2 * alpha
        assert_near(lab.rkhs_descent(K, y, 0.1, 0.5, 2), alpha - 0.5 * gradient)

    def test_many_steps_reach_ridge(self):
        X, y = points(8, 2), points(8, 1, seed=1)[:, 0]
        K = rbf(X, X)
        ridge = np.linalg.solve(K + 8 * 0.2 * np.eye(8), y)
        assert_near(lab.rkhs_descent(K, y, 0.2, 0.5, 500), ridge, part=1e-3)

    def test_labels_are_left_as_they_were(self):
        K, y = np.eye(3), np.array([1.0, 2.0, 3.0])
        lab.rkhs_descent(K, y, 0.1, 0.1, 5)
        np.testing.assert_array_equal(y, [1, 2, 3])


def machine_data(n=20, seed=0):
    X = points(n, 2, seed)
    return rbf(X, X, 0.7), np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0)


class TestMachine:
    @pytest.mark.parametrize("C", [0.2, 1.0, 20.0])
    def test_multipliers_stay_between_0_and_C(self, C):
        beta = np.asarray(lab.svm_dual(*machine_data(), C))
        assert beta.shape == (20,)
        assert np.min(beta) >= -1e-5 * C
        assert np.max(beta) <= C * (1 + 1e-5)

    @pytest.mark.parametrize("C", [0.2, 1.0, 20.0])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_the_duality_gap_is_small(self, C, seed):
        K, y = machine_data(seed=seed)
        beta = np.asarray(lab.svm_dual(K, y, C))
        f = K @ (y * beta)
        loss = (y * beta) @ f / 2 + C * np.sum(np.maximum(0, 1 - y * f))
        assert loss - (np.sum(beta) - (y * beta) @ f / 2) <= 1.01e-3 * loss

    def test_two_points_by_hand(self):
        beta = lab.svm_dual(np.eye(2), np.array([1.0, -1.0]), 5.0)
        np.testing.assert_allclose(beta, [1, 1], atol=0.05)

    def test_separable_points_are_on_their_side(self):
        K, y = machine_data()
        beta = np.asarray(lab.svm_dual(K, y, 100.0))
        assert np.all(y * (K @ (y * beta)) > 0.5)
