"""Kernels follow their formulas, have the features they claim, and are definite or not."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from cases import each
from kernel_cases import INDEFINITE, INFINITE, definite, every, exact, points

from kerneltrick import kernels, maps
from kerneltrick.kernels import (
    NTK,
    RBF,
    ArcCosine,
    Cosine,
    Custom,
    EluDot,
    Exponential,
    Linear,
    MapKernel,
    Normalized,
    Polynomial,
    ReluDot,
    Taylor,
    find_indefinite,
    gram,
    is_positive_semidefinite,
    nearest_psd,
)
from kerneltrick.kernels._linalg import squared_distances
from kerneltrick.kernels._network import _next_angle


class TestFormulas:
    def written_out(self):
        """Kernels for one pair of vectors, as in the specification."""
        relu = lambda t: max(t, 0.0)  # noqa: E731
        norm = np.linalg.norm

        def angle(x, y):
            return math.acos(x @ y / norm(x) / norm(y))

        def kappa0(x, y):
            return (math.pi - angle(x, y)) / (2 * math.pi)

        def kappa1(x, y):
            t = angle(x, y)
            return norm(x) * norm(y) * (math.sin(t) + (math.pi - t) * math.cos(t)) / (2 * math.pi)

        def kappa2(x, y):
            t = angle(x, y)
            s, c = math.sin(t), math.cos(t)
            inside = 3 * s * c + (math.pi - t) * (1 + 2 * c * c)
            return (norm(x) * norm(y)) ** 2 * inside / (2 * math.pi)

        return {
            "linear": lambda x, y: x @ y,
            "cosine": lambda x, y: x @ y / norm(x) / norm(y),
            "relu_dot": lambda x, y: relu(x @ y),
            "elu_dot": lambda x, y: x @ y + 1 if x @ y > 0 else math.exp(x @ y),
            "polynomial:degree=3,constant=0.5": lambda x, y: (x @ y + 0.5) ** 3,
            "rbf:length=0.7": lambda x, y: math.exp(-(norm(x - y) ** 2) / (2 * 0.49)),
            "exponential": lambda x, y: math.exp(x @ y / math.sqrt(len(x))),
            "exponential:scale=0.2": lambda x, y: math.exp(0.2 * (x @ y)),
            "taylor:order=3,scale=1": lambda x, y: sum(
                (x @ y) ** r / math.factorial(r) for r in range(4)
            ),
            "taylor:order=2": lambda x, y: 1 + x @ y / 2 + (x @ y / 2) ** 2 / 2,  # d = 4
            "arc_cosine:degree=0": kappa0,
            "arc_cosine:degree=1": kappa1,
            "arc_cosine:degree=2": kappa2,
            "ntk:variance=1": lambda x, y: kappa1(x, y) + (x @ y) * kappa0(x, y),
            "ntk": lambda x, y: 2 * (kappa1(x, y) + (x @ y) * kappa0(x, y)),
        }

    def test_every_kernel_equals_its_formula_for_each_pair(self):
        x, y = points(7, 4), points(5, 4, seed=1)
        for text, formula in self.written_out().items():
            expected = [[formula(a, b) for b in y] for a in x]
            np.testing.assert_allclose(
                kernels.get(text)(x, y), expected, rtol=1e-12, atol=1e-14, err_msg=text
            )
        assert {text.split(":")[0] for text in self.written_out()} == set(kernels.names())

    def test_sums_products_multiples_and_normalised_kernels(self):
        x, y = points(6), points(4, seed=2)
        a, b = RBF(length=2), Polynomial(degree=2)
        for found, expected in (
            (a + b, a(x, y) + b(x, y)),
            (a * b, a(x, y) * b(x, y)),
            (3 * a, 3 * a(x, y)),
            (a * 3, 3 * a(x, y)),
            (Normalized(Exponential(scale=1 / 1.3**2)), RBF(length=1.3)(x, y)),
            (Normalized(Linear()), Cosine()(x, y)),
        ):
            np.testing.assert_allclose(found(x, y), expected, rtol=1e-12, err_msg=str(found))

    @every
    def test_diagonal_is_that_of_the_gram_matrix(self, kernel):
        x = points(9)
        np.testing.assert_allclose(kernel.diagonal(x), np.diagonal(kernel(x)), rtol=1e-12)

    @every
    def test_gram_matrix_is_exactly_symmetric_and_equal_to_the_one_with_a_copy(self, kernel):
        x = points(9)
        matrix = gram(kernel, x)
        assert (matrix == matrix.T).all()
        np.testing.assert_allclose(kernel(x, x.copy()), matrix, rtol=1e-12, atol=1e-13)

    @every
    def test_kernel_of_pairs_does_not_depend_on_the_other_points(self, kernel):
        x, y = points(9), points(8, seed=5)
        np.testing.assert_allclose(
            kernel(x[2:4], y[3:5]), kernel(x, y)[2:4, 3:5], rtol=1e-12, atol=1e-14
        )

    def test_diagonal_of_a_function_is_computed_in_blocks(self):
        x = points(150)
        kernel = Custom(lambda a, b: np.exp(a @ b.T))
        np.testing.assert_allclose(kernel.diagonal(x), np.exp(np.sum(x**2, axis=1)), rtol=1e-13)
        assert kernel.diagonal(x[:0]).shape == (0,)

    def test_zero_vector_is_orthogonal_to_all_where_a_step_is_half_at_zero(self):
        x = np.array([[0.0, 0.0], [1.0, 2.0]])
        np.testing.assert_allclose(ArcCosine(degree=0)(x), [[0.25, 0.25], [0.25, 0.5]])
        for kernel in (ArcCosine(degree=1), ArcCosine(degree=2), NTK(hidden_layers=3)):
            assert (kernel(x)[0] == 0).all()
        features = ArcCosine(degree=0).random_features(6).phi(x)
        np.testing.assert_allclose(features[0], 0.5 / math.sqrt(6))


class TestText:
    def test_text_gives_the_kernel_and_the_kernel_its_text(self):
        for text in (f"rbf:length={1 / 3}", "polynomial:degree=3,constant=0", "taylor:order=4"):
            assert str(kernels.get(text)) == text
            assert kernels.get(str(kernels.get(text))) == kernels.get(text)
        assert kernels.get("ntk") == NTK()
        assert hash(kernels.get("ntk")) == hash(NTK())

    def test_algebra_is_written_with_its_brackets(self):
        assert str((Linear() + RBF()) * Linear()) == "(linear + rbf:length=1) * linear"
        assert str(0.5 * (Linear() + Linear())) == "0.5 * (linear + linear)"
        assert repr(Normalized(Linear())) == "<kernel normalized(linear)>"
        assert str(RBF().random_features(4)) == "unit(stretched(favor:features=4,kind=trig, 1.0))"

    def test_maps_and_functions_become_kernels(self):
        def overlap(x, y):
            return x @ y.T

        assert kernels.get(maps.get("elu")) == MapKernel("elu")
        assert str(kernels.get(overlap)) == "overlap"
        assert kernels.get(overlap).positive_semidefinite is None


class TestNetworks:
    @each("variance", [2.0, 1.0])
    def test_deep_ntk_is_the_recursion_over_gaussian_layers_by_monte_carlo(self, variance):
        a, b = points(2, 3, seed=6)
        rng = np.random.default_rng(7)
        sigma = np.array([[a @ a, a @ b], [a @ b, b @ b]])
        theta, layers = sigma[0, 1], 3
        for _ in range(layers):
            u, v = np.linalg.cholesky(sigma) @ rng.standard_normal((2, 400_000))
            r, s = np.maximum(u, 0), np.maximum(v, 0)
            step = variance * np.mean((u > 0) & (v > 0))
            sigma = variance * np.array([[r @ r, r @ s], [r @ s, s @ s]]) / len(u)
            theta = sigma[0, 1] + theta * step
        kernel = NTK(hidden_layers=layers, variance=variance)
        assert kernel([a], [b])[0, 0] == pytest.approx(theta, rel=0.02)

    def test_near_points_keep_their_angle(self):
        angle = np.array([1e-12, 1e-9, 1e-6, 1e-3, 1.0])
        for offset in (0.0, math.pi):
            y = np.stack([np.cos(angle + offset), np.sin(angle + offset)], axis=1)
            found = ArcCosine(degree=0)([[5.0, 0.0]], 7 * y)[0]
            theta = angle if offset == 0 else math.pi - angle
            np.testing.assert_allclose(found, (math.pi - theta) / (2 * math.pi), atol=3e-16)
        small = np.array([1e-8, 1e-7, 1e-6])
        series = small * (1 - small / (3 * math.pi))
        np.testing.assert_allclose(_next_angle(small), series, rtol=1e-7)

    @each("text", ["ntk:hidden_layers=8", "arc_cosine:degree=0", "rbf"])
    def test_gram_matrix_of_near_repeated_and_opposite_points_is_semidefinite(self, text):
        x = points(5)
        near = x + 1e-8 * points(5, seed=9)
        assert is_positive_semidefinite(text, np.concatenate([x, near, x * (1 + 1e-9), -x, x]))

    def test_distances_do_not_cancel_far_from_the_origin(self):
        x = 1e6 + points(8) * np.array([[1.0]] * 4 + [[1e-4]] * 4)
        exact = np.sum((x[:, None] - x[None]) ** 2, axis=-1)
        np.testing.assert_allclose(squared_distances(x, x), exact, rtol=1e-11)
        np.testing.assert_allclose(squared_distances(x, x[3:].copy()), exact[:, 3:], rtol=1e-11)
        long = np.array([[1e200, 0.0], [1e200, 1e200], [1e-200, 0.0]])
        np.testing.assert_allclose(Cosine()(long)[0], [1, 0.5**0.5, 1])


class TestFeatures:
    @exact
    def test_features_multiply_to_the_gram_matrix(self, kernel):
        x, y = points(9), points(7, seed=2)
        phi = kernel.feature_map
        assert phi.phi(x).shape == (9, phi.dim(3))
        np.testing.assert_allclose(phi.phi(x) @ phi.phi(y).T, kernel(x, y), rtol=1e-11, atol=1e-12)

    def test_kernels_of_infinite_dimension_have_no_finite_map(self):
        assert [kernel for kernel in INFINITE if kernel.feature_map is not None] == []

    @each(
        "kernel",
        [
            RBF(length=1.5),
            Exponential(scale=0.3),
            ArcCosine(degree=0),
            ArcCosine(degree=1),
            ArcCosine(degree=2),
            NTK(hidden_layers=1, variance=0.7),
            0.5 * RBF() + Linear(),
            RBF() * ArcCosine(degree=1),
        ],
    )
    def test_random_features_have_the_kernel_as_their_mean(self, kernel):
        x, y = 0.7 * points(3), 0.7 * points(3, seed=1)
        grams = []
        for seed in range(200):
            phi = kernel.random_features(6, seed)
            grams.append(phi.phi(x) @ phi.phi(y).T)
        error = np.std(grams, axis=0) / math.sqrt(len(grams)) + 1e-12
        assert (np.abs(np.mean(grams, axis=0) - kernel(x, y)) < 4.5 * error).all()

    def test_factors_of_a_product_have_draws_of_their_own(self):
        x, y = np.array([[1.0]]), np.array([[0.0]])
        kernel = RBF() * RBF(length=1.2)
        values = []
        for seed in range(800):
            phi = kernel.random_features(2, seed)  # one draw each: shared, it would show most
            values.append((phi.phi(x) @ phi.phi(y).T).item())
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - kernel(x, y).item()) < 4 * error

    def test_random_features_repeat_with_their_seed_and_have_the_size_asked_for(self):
        x = points(4)
        phi = RBF().random_features(10, seed=3)
        assert phi.dim(3) == phi.phi(x).shape[1] == 10
        assert (phi.phi(x) == RBF().random_features(10, seed=3).phi(x)).all()
        assert not np.allclose(phi.phi(x), RBF().random_features(10, seed=4).phi(x))
        np.testing.assert_allclose(np.sum(phi.phi(20 * x) ** 2, axis=1), 1, rtol=1e-14)

    def test_feature_maps_of_kernels_work_in_other_libraries(self):
        torch = pytest.importorskip("torch")
        kernel = 0.5 * Polynomial(degree=2) * Cosine() + Taylor(order=2, scale=1)
        x = points(5)
        np.testing.assert_allclose(
            kernel.feature_map.phi(torch.tensor(x)).numpy(), kernel.feature_map.phi(x), rtol=1e-12
        )


class TestPositiveSemidefinite:
    @definite
    def test_kernels_that_claim_it_pass_on_points(self, kernel):
        assert kernel.positive_semidefinite
        result = is_positive_semidefinite(kernel, points(30))
        assert result, str(result)
        assert result.eigenvalue >= -result.tolerance
        assert find_indefinite(kernel, 2, tries=5)

    def test_elu_of_the_product_is_refuted_by_four_points(self):
        result = is_positive_semidefinite(EluDot(), [[-2.0], [-1.0], [1.0], [2.0]])
        assert not result
        assert result.eigenvalue == pytest.approx(-0.0114, abs=5e-5)
        assert "eigenvalue -0.01141" in str(result)
        assert "(-2), (-1), (1), (2)" in str(result)

    @each(
        "kernel",
        [
            *INDEFINITE,
            Custom(lambda x, y: (x @ y.T - 1) ** 2),
            Custom(lambda x, y: -np.exp(x @ y.T)),
            Custom(lambda x, y: np.tanh(x @ y.T - 1)),
        ],
    )
    def test_search_finds_few_points_whose_eigenvector_proves_it(self, kernel):
        result = find_indefinite(kernel)
        assert not result
        assert len(result.points) <= 4
        v, matrix = result.eigenvector, kernel(result.points)
        assert v @ v == pytest.approx(1)
        assert v @ matrix @ v == pytest.approx(result.eigenvalue, rel=1e-9)
        assert result.eigenvalue < -1e-3 * np.abs(matrix).max()

    def test_a_search_that_finds_nothing_says_that_it_proves_nothing(self):
        result = find_indefinite(ReluDot(), 1)  # it is definite on a line, but not in the plane
        assert result
        assert "not a proof" in str(result)

    def test_rounding_is_not_taken_for_a_negative_eigenvalue(self):
        x = points(50, 2)
        result = is_positive_semidefinite(x @ x.T)
        assert result
        assert result.eigenvalue < 0  # rank 2 of 50
        assert not is_positive_semidefinite(x @ x.T - 1e-9 * np.eye(50))
        assert not is_positive_semidefinite(x @ x.T, tolerance=0)
        assert is_positive_semidefinite(x @ x.T - 1e-3 * np.eye(50), tolerance=1e-2)
        result = is_positive_semidefinite([[1.0, 0.5], [0.25, 1.0]])
        assert not result
        assert "entry (0, 1) is 0.5 and (1, 0) is 0.25" in str(result)

    def test_nearest_matrix_is_semidefinite_and_at_the_distance_of_the_negative_part(self):
        rng = np.random.default_rng(0)
        a = rng.standard_normal((6, 6))
        a = a + a.T
        near = nearest_psd(a)
        assert is_positive_semidefinite(near)
        values = np.linalg.eigvalsh(a)
        distance = np.linalg.norm(values[values < 0])
        assert np.linalg.norm(near - a) == pytest.approx(distance)
        np.testing.assert_allclose(nearest_psd(near), near, atol=1e-14)
        for _ in range(200):
            b = rng.standard_normal((6, 6))
            assert np.linalg.norm(near + 0.1 * b @ b.T - a) >= distance - 1e-12
        asymmetric = np.array([[1.0, 4.0], [0.0, 1.0]])  # nearest to its symmetric part
        np.testing.assert_allclose(nearest_psd(asymmetric), [[1.5, 1.5], [1.5, 1.5]])


def test_lists_whole_numbers_and_other_libraries_are_taken():
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(Linear()(torch.tensor([[1.0, 2.0]], requires_grad=True)), [[5.0]])
    assert Linear()([[1, 2]]).dtype == np.float64
    assert Linear()(np.ones((2, 2), np.float32)).dtype == np.float64


def test_room_imports_no_optional_library():
    code = (
        "import sys\n"
        "from kerneltrick import kernels\n"
        "kernels.KernelRidge('rbf', mean_penalty=1).fit([[1], [2], [3]], [1, 2, 3])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    heavy = {"torch", "jax", "scipy", "sklearn", "pandas", "sympy", "matplotlib"}
    assert not heavy & set(done.stdout.split())
