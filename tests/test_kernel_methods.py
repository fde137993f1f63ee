"""Ridge regression, Gaussian processes and descent agree between n×n matrices and features."""

import math
import sys

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import definite, exact, points, problem

from kerneltrick import _progress as progress_module
from kerneltrick.kernels import (
    RBF,
    EluDot,
    GaussianProcess,
    KernelRidge,
    Polynomial,
    RKHSFunction,
    Taylor,
    compare_solvers,
    is_positive_semidefinite,
    rkhs_descent,
)
from kerneltrick.kernels._linalg import Cholesky


class TestFunctions:
    @definite
    def test_value_is_the_inner_product_with_the_kernel_at_the_point(self, kernel):
        f = RKHSFunction(kernel, points(6), points(6, 1, seed=1)[:, 0])
        x = points(4, seed=2)
        expected = [f.inner(RKHSFunction.at(kernel, one)) for one in x]
        np.testing.assert_allclose(f(x), expected, rtol=1e-11, atol=1e-12)
        assert (np.abs(f(x)) <= f.norm * np.sqrt(kernel.diagonal(x)) * (1 + 1e-9)).all()

    @exact
    def test_weights_give_the_same_function_and_norm(self, kernel):
        f = RKHSFunction(kernel, points(6), points(6, 1, seed=1)[:, 0])
        x = points(5, seed=3)
        np.testing.assert_allclose(kernel.feature_map.phi(x) @ f.weights, f(x), atol=1e-10)
        assert np.linalg.norm(f.weights) == pytest.approx(f.norm, rel=1e-9, abs=1e-9)

    def test_functions_add_scale_and_obey_the_parallelogram_law(self):
        f = RKHSFunction("rbf", points(4), [1.0, -2.0, 0.5, 3.0])
        g = RKHSFunction("rbf", points(3, seed=1), [0.3, 0.4, -1.0])
        x = points(5, seed=2)
        np.testing.assert_allclose((f + 2 * g)(x), f(x) + 2 * g(x), rtol=1e-12)
        np.testing.assert_allclose((f - g)(x), f(x) - g(x), rtol=1e-12)
        assert f.inner(g) == pytest.approx(g.inner(f), rel=1e-12)
        assert (f + g).squared_norm == pytest.approx(
            f.squared_norm + 2 * f.inner(g) + g.squared_norm, rel=1e-12
        )
        assert f.norm == pytest.approx(math.sqrt(f.inner(f)), rel=1e-12)

    def test_norm_of_a_function_that_is_zero_is_zero_not_nan(self):
        x = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 1.0]])
        f = RKHSFunction("rbf:length=0.9", x, [0.1, -0.1, 0.0])
        assert f.norm == 0
        cancelling = RKHSFunction("linear", [[0.1], [0.3]], [3.0, -1.0])
        assert cancelling.norm < 1e-8

    def test_norm_in_the_space_of_an_indefinite_kernel_is_refused(self):
        x = [[-2.0], [-1.0], [1.0], [2.0]]
        bad = is_positive_semidefinite(EluDot(), x).eigenvector
        with pytest.raises(ValueError, match=r"not positive semi-definite: here ‖f‖² = -0\.011"):
            _ = RKHSFunction(EluDot(), x, bad).norm


class TestRidge:
    @exact
    @each("n", [8, 60])
    def test_dual_and_primal_agree_to_1e_10(self, kernel, n):
        x, y, _ = problem(n)
        new = points(20, seed=9)
        dual, primal = (
            KernelRidge(kernel, mean_penalty=0.05, solver=solver).fit(x, y)
            for solver in ("dual", "primal")
        )
        assert (dual.solver, primal.solver) == ("dual", "primal")
        assert np.abs(dual.predict(new) - primal.predict(new)).max() < 1e-10
        assert np.abs(dual.coefficients - primal.coefficients).max() < 1e-10
        np.testing.assert_allclose(dual.function.weights, primal.weights, atol=1e-10)
        assert dual.weights is None

    @definite
    def test_coefficients_solve_k_plus_n_lambda(self, kernel):
        x, y, _ = problem(25)
        fit = KernelRidge(kernel, mean_penalty=0.03).fit(x, y)
        system = kernel(x) + 25 * 0.03 * np.eye(25)
        np.testing.assert_allclose(system @ fit.coefficients, y, atol=1e-9)
        np.testing.assert_allclose(fit.function(x), fit.predict(x), atol=1e-9)
        assert fit.predict(x[:0]).shape == (0,)

    def test_penalties_of_mean_and_sum_differ_by_n(self):
        x, y, _ = problem(30)
        mean = KernelRidge("rbf", mean_penalty=0.02).fit(x, y)
        total = KernelRidge("rbf", sum_penalty=0.6).fit(x, y)
        np.testing.assert_allclose(mean.coefficients, total.coefficients, rtol=1e-12)
        assert mean.sum_penalty == pytest.approx(0.6)
        assert total.mean_penalty == pytest.approx(0.02)
        other = KernelRidge("rbf", sum_penalty=0.02).fit(x, y)
        assert not np.allclose(mean.coefficients, other.coefficients, rtol=0.1)

    def test_auto_takes_the_features_where_they_are_fewer(self):
        x, y, _ = problem(9)
        ridge = KernelRidge("polynomial:degree=2", mean_penalty=0.1)  # m = 10
        assert ridge.fit(x, y).solver == "dual"
        x, y, _ = problem(10)
        assert ridge.fit(x, y).solver == "primal"
        assert KernelRidge("rbf", mean_penalty=0.1).fit(x, y).solver == "dual"

    @each("solver", ["dual", "primal"])
    def test_several_targets_are_fitted_each_for_itself(self, solver):
        x, y, z = problem(30)
        ridge = KernelRidge("taylor:order=2", mean_penalty=0.1, solver=solver)
        both = ridge.fit(x, np.stack([y, z], axis=1))
        new = points(4)
        np.testing.assert_allclose(both.predict(new)[:, 0], ridge.fit(x, y).predict(new))
        np.testing.assert_allclose(both.functions[1](new), ridge.fit(x, z).predict(new), atol=1e-10)
        with pytest.raises(ValueError, match=r"2 targets; choose one of fit\.functions"):
            _ = both.function


class TestCholesky:
    @each("n", [1, 63, 64, 65, 150])
    def test_solves_and_determinant_equal_numpys(self, n):
        rng = np.random.default_rng(n)
        a = rng.standard_normal((n, n))
        a = a @ a.T + n * np.eye(n)
        factor = Cholesky.of(a)
        b = rng.standard_normal((n, 3))
        np.testing.assert_allclose(factor.solve(b), np.linalg.solve(a, b), atol=1e-12)
        np.testing.assert_allclose(factor.solve(b[:, 0]), np.linalg.solve(a, b[:, 0]), atol=1e-12)
        half = factor.half_solve(b)
        np.testing.assert_allclose(half.T @ half, b.T @ np.linalg.solve(a, b), atol=1e-12)
        assert factor.log_determinant() == pytest.approx(np.linalg.slogdet(a)[1])

    def test_singular_and_indefinite_matrices_have_no_factor(self):
        assert Cholesky.of(np.ones((3, 3))) is None
        assert Cholesky.of(np.ones((3, 3)) + 1e-17 * np.eye(3)) is None
        assert Cholesky.of(-np.eye(2)) is None


class TestGaussianProcess:
    @exact
    @each("n", [6, 50])
    def test_features_and_gram_matrix_agree(self, kernel, n):
        x, y, _ = problem(n)
        new = points(15, seed=4)
        dual, primal = (
            GaussianProcess(kernel, noise_variance=0.3, solver=solver).fit(x, y)
            for solver in ("dual", "primal")
        )
        for a, b in zip(dual.predict(new), primal.predict(new), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        assert dual.log_marginal_likelihood == pytest.approx(
            primal.log_marginal_likelihood, rel=1e-11
        )

    @each("solver", ["dual", "primal"])
    def test_likelihood_is_the_gaussian_density_of_the_targets(self, solver):
        x, y, _ = problem(20)
        kernel = Polynomial(degree=2)
        fit = GaussianProcess(kernel, noise_variance=0.2, solver=solver).fit(x, y)
        covariance = kernel(x) + 0.2 * np.eye(20)
        expected = -0.5 * (
            y @ np.linalg.solve(covariance, y)
            + np.linalg.slogdet(covariance)[1]
            + 20 * math.log(2 * math.pi)
        )
        assert fit.log_marginal_likelihood == pytest.approx(expected, rel=1e-12)

    @each("solver", ["dual", "primal"])
    def test_mean_and_variance_are_those_of_the_conditional_gaussian(self, solver):
        x, y, _ = problem(12)
        kernel, new = Taylor(order=2, scale=1), points(5, seed=4)
        mean, variance = (
            GaussianProcess(kernel, noise_variance=0.4, solver=solver).fit(x, y).predict(new)
        )
        inverse = np.linalg.inv(kernel(x) + 0.4 * np.eye(12))
        across = kernel(new, x)
        np.testing.assert_allclose(mean, across @ inverse @ y, rtol=1e-9)
        full = kernel(new) - across @ inverse @ across.T
        np.testing.assert_allclose(variance, np.diagonal(full), rtol=1e-9)


class TestDescent:
    def test_squared_loss_comes_to_the_ridge_solution(self):
        x, y, _ = problem(30)
        run = rkhs_descent("rbf", x, y, mean_penalty=0.05, steps=5000, tolerance=1e-20)
        expected = KernelRidge("rbf", mean_penalty=0.05).fit(x, y).coefficients
        assert run.stopped == "tolerance"
        np.testing.assert_allclose(run.function.coefficients, expected, atol=1e-8)

    @each("loss", ["squared", "logistic", "hinge"])
    def test_first_steps_follow_the_functional_gradient(self, loss):
        x, _, z = problem(10)
        size = None if loss == "hinge" else 0.2
        run = rkhs_descent(
            "rbf", x, z, mean_penalty=0.1, loss=loss, steps=3, step_size=size, solver="dual"
        )
        matrix, alpha = RBF()(x), np.zeros(10)
        slope = {
            "squared": lambda f: 2 * (f - z),
            "logistic": lambda f: -z / (1 + np.exp(z * f)),
            "hinge": lambda f: np.where(z * f < 1, -z, 0),
        }[loss]
        for t in range(3):
            np.testing.assert_allclose(run.coefficients[t], alpha, atol=1e-14)
            eta = size or 1 / (0.1 * (t + 2))
            alpha = alpha - eta * (slope(matrix @ alpha) / 10 + 2 * 0.1 * alpha)
        np.testing.assert_allclose(run.coefficients[3], alpha, atol=1e-14)

    @each("loss", ["squared", "logistic", "hinge"])
    def test_recorded_norm_loss_and_objective_are_those_of_the_recorded_function(self, loss):
        x, _, z = problem(15)
        run = rkhs_descent("rbf", x, z, mean_penalty=0.1, loss=loss, steps=20, record_every=7)
        assert run.steps == (0, 7, 14, 20)
        for i in range(4):
            f = run.at(i)
            t = z * f(x)
            value = {
                "squared": (f(x) - z) ** 2,
                "logistic": np.log1p(np.exp(-t)),
                "hinge": np.maximum(0, 1 - t),
            }[loss]
            assert run.norms[i] == pytest.approx(f.norm, rel=1e-10)
            assert run.losses[i] == pytest.approx(value.mean(), rel=1e-10)
            assert run.objectives[i] == pytest.approx(value.mean() + 0.1 * f.norm**2, rel=1e-10)
        assert (run.function.coefficients == run.coefficients[-1]).all()
        assert (run.function.points == x).all()  # it never left the span

    @each("loss", ["squared", "logistic", "hinge"])
    def test_gap_bounds_the_distance_to_the_minimum_and_goes_to_zero(self, loss):
        x, _, z = problem(25)
        run = rkhs_descent("rbf", x, z, mean_penalty=0.02, loss=loss, steps=2000)
        best = run.objectives.min()
        assert (run.objectives - best <= run.gaps + 1e-12).all()
        assert run.gaps[-1] < (2e-3 if loss == "hinge" else 1e-12)
        final = run.function
        for i in (0, 3, 50):
            f = run.at(i)
            assert 0.02 * (f - final).squared_norm <= run.gaps[i] + run.gaps[-1] + 1e-9

    @each("loss", ["squared", "logistic", "hinge"])
    def test_features_and_gram_matrix_take_the_same_path(self, loss):
        x, _, z = problem(30)
        runs = [
            rkhs_descent(
                "polynomial:degree=2", x, z, mean_penalty=0.5, loss=loss, steps=50, solver=solver
            )
            for solver in ("dual", "primal")
        ]
        assert [run.solver for run in runs] == ["dual", "primal"]
        np.testing.assert_allclose(runs[0].coefficients, runs[1].coefficients, atol=1e-10)
        np.testing.assert_allclose(runs[0].gaps, runs[1].gaps, atol=1e-9)

    def test_large_margins_do_not_overflow(self):
        x = np.array([[-900.0], [900.0]])
        run = rkhs_descent("linear", x, [-1, 1], mean_penalty=1e-9, loss="logistic", steps=50)
        assert np.isfinite(run.objectives).all()

    def test_interruption_returns_what_there_is(self, monkeypatch):
        x, y, _ = problem(20)
        calls = []

        def report(what, done, total):
            calls.append((what, done, total))
            if len(calls) == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(progress_module, "PAUSE", 0.0)
        run = rkhs_descent("rbf", x, y, mean_penalty=0.1, steps=500, progress=report)
        assert run.stopped == "interrupted"
        assert run.steps[-1] == 1
        assert run.norms[-1] == pytest.approx(run.function.norm)
        assert "stopped by interrupted" in repr(run)
        assert calls[-1] == ("descent of the squared loss", 1, 500)

    def test_a_long_run_speaks_on_a_terminal_and_only_there(self, monkeypatch, capsys):
        monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
        monkeypatch.setattr(progress_module, "PAUSE", 0.0)
        x, y, _ = problem(10)
        rkhs_descent("rbf", x, y, mean_penalty=0.1, steps=3)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        rkhs_descent("rbf", x, y, mean_penalty=0.1, steps=3)
        assert capsys.readouterr().err.endswith("descent of the squared loss: 3/3\n")


class TestExperiment:
    def test_solvers_agree_and_each_wins_where_it_is_smaller(self):
        result = compare_solvers("polynomial:degree=2", (12, 300), d=8)
        few, many = result.rows
        assert few.m == many.m == math.comb(10, 2)
        assert max(few.difference, many.difference) < 1e-10
        assert few.winner == "dual"
        assert many.winner == "primal"

    def test_table_has_a_row_per_length(self):
        times = iter([4.0, 2.0, 1.0, 8.0])
        result = compare_solvers(
            "linear", (5, 7), d=3, milliseconds=lambda run: next(times), noise_variance=0.5
        )
        lines = result.table.splitlines()
        assert len(lines) == 4
        assert lines[2].startswith("| 5 | 3 | 4 | 2 | features ×2.0 |")
        assert lines[3].startswith("| 7 | 3 | 1 | 8 | n×n ×8.0 |")


@given(
    step=st.floats(0.05, 0.95),
    penalty=st.floats(1e-3, 10),
    n=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_any_step_below_the_limit_lowers_the_objective(step, penalty, n, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, 2)), rng.standard_normal(n)
    curvature = 2 * np.linalg.eigvalsh(RBF()(x))[-1] / n + 2 * penalty
    size = 2 * step / curvature
    run = rkhs_descent("rbf", x, y, mean_penalty=penalty, steps=5, step_size=size)
    assert (np.diff(run.objectives) <= 1e-15).all()
