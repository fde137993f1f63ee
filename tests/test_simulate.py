"""Simulations: theory agrees with quadrature, numbers with theory; tables and pictures."""

import filecmp
import itertools
import math
import sys

import numpy as np
import pytest
from cases import each

from kerneltrick import _files, kernels, simulate
from kerneltrick._install import install_command
from kerneltrick.simulate import _features, _moments, _scaling, _svm

NAMES = ("moments", "scaling", "features", "representer", "svm")
SMALL = {
    "moments": {"widths": [16], "draws": 200},
    "scaling": {"widths": [16], "n": 32, "queries": 8},
    "features": {"counts": [32], "d": 4, "n": 8, "draws": 2},
    "representer": {"n": 8, "steps": 20},
    "svm": {"n": 40},
}


def small(name):
    """The same as options of the command."""
    called = {"widths": "d", "counts": "m"}
    for key, value in SMALL[name].items():
        yield f"--{called.get(key, key)}"
        yield value[0] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def path():
    return simulate.representer(steps=1000)


@pytest.fixture(scope="module")
def moons():
    pytest.importorskip("sklearn")
    return simulate.svm()


def quadrature(f, points=80):
    """E[f(ω)] for ω ~ N(0, 1), Gauss–Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return np.tensordot(weights / weights.sum(), f(nodes), axes=1)


class TestMoments:
    def test_theory_in_numbers(self):
        row = simulate.moments([16], mu=0.5, sigma=2.0, draws=10).rows[0]
        assert (row.theory_mean, row.theory_variance) == (4.0, 16 * (16 + 2))
        assert row.theory_scaled_variance == 18.0
        assert [row.d for row in simulate.moments([8, 2, 8], draws=10).rows] == [2, 8]

    @each("mu, sigma", [(0.0, 0.3), (2.0, 1.0), (-1.0, 2.0)])
    def test_measured_variance_is_that_of_the_theory(self, mu, sigma):
        found = simulate.moments([1, 7, 64], mu=mu, sigma=sigma, draws=20_000, seed=3)
        for row in found.rows:
            assert abs(row.z_score) < 4.5
            deviation = math.sqrt(row.theory_variance / found.draws)
            assert abs(row.mean - row.theory_mean) < 4.5 * deviation
            assert row.scaled_variance == row.variance / row.d

    def test_standard_error_is_the_spread_over_seeds(self):
        found = [simulate.moments([8], draws=400, seed=seed).rows[0] for seed in range(200)]
        spread = np.std([row.variance for row in found])
        assert np.mean([row.standard_error for row in found]) == pytest.approx(spread, rel=0.15)
        assert np.std([row.z_score for row in found]) == pytest.approx(1, abs=0.25)

    @each("block", [1, 7, 1000])
    def test_blocks_of_any_size_fill_every_draw(self, monkeypatch, block):
        monkeypatch.setattr(_moments, "_BLOCK", block)
        row = simulate.moments([3], draws=5_001, mu=5.0).rows[0]
        assert abs(row.z_score) < 4.5


class TestScaling:
    def test_gradient_is_the_trace_of_the_jacobian(self):
        scores = np.random.default_rng(0).standard_normal(6)

        def softmax(s):
            return np.exp(s) / np.exp(s).sum()

        step = 1e-6
        trace = sum(
            (softmax(scores + step * e)[i] - softmax(scores - step * e)[i]) / (2 * step)
            for i, e in enumerate(np.eye(6))
        )
        assert _scaling.focus(softmax(scores)[None]).gradient == pytest.approx(trace, rel=1e-7)
        assert _scaling.focus(np.full((3, 8), 1 / 8)) == pytest.approx((math.log(8), 1 / 8, 7 / 8))
        assert _scaling.focus(np.eye(8)) == (0.0, 1.0, 0.0)

    def test_entropy_is_that_of_softmax_over_the_keys(self):
        found = simulate.scaling([5], n=40, queries=3, seed=2).rows[0]
        rng = np.random.default_rng([2, 5])
        q, k = rng.standard_normal((3, 5)), rng.standard_normal((40, 5))
        for focus, scale in ((found.plain, 1.0), (found.scaled, 5**-0.5)):
            entropies = []
            for row in np.exp(scale * q @ k.T):
                p = row / row.sum()
                entropies.append(-sum(x * math.log(x) for x in p))
            assert focus.entropy == pytest.approx(np.mean(entropies), rel=1e-12)

    def test_scale_keeps_the_entropy_and_its_absence_collapses_it(self):
        found = simulate.scaling([1, 4, 16, 64, 256], n=1024, queries=128)
        plain = [row.plain for row in found.rows]
        assert found.rows[0].plain == found.rows[0].scaled
        for before, after in itertools.pairwise(plain):
            assert after.entropy < before.entropy
            assert after.gradient < before.gradient
            assert after.largest > before.largest
        assert plain[-1].entropy < 0.6
        assert plain[-1].gradient < 0.3
        for row in found.rows[1:]:
            assert row.scaled.entropy == pytest.approx(row.theory_scaled, abs=0.1)
            assert row.scaled.gradient > 0.99

    @each("variance", [0.25, 2.0])
    def test_theory_of_the_entropy_holds_for_gaussian_scores(self, variance):
        rng = np.random.default_rng(0)
        weights = np.exp(math.sqrt(variance) * rng.standard_normal((50, 20_000)))
        found = _scaling.focus(weights / weights.sum(axis=1, keepdims=True)).entropy
        assert found == pytest.approx(_scaling.gaussian_entropy(20_000, variance), abs=0.03)
        edge = 2 * math.log(100)  # there it freezes
        assert _scaling.gaussian_entropy(100, edge * 1.001) == 0
        assert _scaling.gaussian_entropy(100, edge * 0.999) > 0


class TestFeatures:
    @each("kind", _features.KINDS)
    @each("a, b", [(0.7, 0.4), (-0.5, 0.8), (1.0, 1.0), (0.3, -0.3)])
    def test_relative_variance_by_quadrature(self, kind, a, b):
        def product(omega):
            if kind == "trig":  # cos·cos + sin·sin of one draw, two features
                return np.exp((a * a + b * b) / 2) * np.cos(omega * (a - b))
            ends = [omega] if kind == "positive" else [omega, -omega]
            return np.mean([np.exp(w * (a + b) - (a * a + b * b) / 2) for w in ends], axis=0)

        mean, square = quadrature(product), quadrature(lambda w: product(w) ** 2)
        assert mean == pytest.approx(math.exp(a * b), rel=1e-9)
        per_feature = (1 if kind == "positive" else 2) * (square - mean**2) / mean**2
        found = _features._relative_variance(np.array([[a]]), np.array([[b]]), kind)
        assert found == pytest.approx(per_feature, rel=1e-7, abs=1e-12)

    def test_covariance_of_errors_by_quadrature(self):
        q, k = 0.6, np.array([0.5, -0.4, 0.1])
        p = np.exp(q * k) / np.exp(q * k).sum()

        def errors(omega):  # p_j(r_j − Σp_l r_l) for one draw
            r = np.exp(omega[:, None] * (q + k) - (q * q + k * k) / 2 - q * k) - 1
            return np.sum((p * (r - (r @ p)[:, None])) ** 2, axis=1)

        expected = quadrature(errors) / np.sum(p**2)
        found = _features._weights_limit(np.array([[q]]), k[:, None], p[None])
        assert found == pytest.approx(expected, rel=1e-9)

    def test_short_vectors_follow_the_theory(self):
        found = simulate.features([64, 256, 1024], d=8, n=24, size=0.3, draws=30)
        for row in found.rows:
            assert row.kernel == pytest.approx(row.theory, rel=0.12)
        for row in found.rows[1:3]:  # positive
            assert row.weights == pytest.approx(row.theory_weights, rel=0.12)
        assert all(row.theory_weights is None for row in found.rows[3:])

    def test_beside_it_stand_elu_and_uniform_weights(self):
        found = simulate.features([16], d=6, n=10, size=0.8, draws=1, seed=5)
        q, k = 0.8 * np.random.default_rng([5, 6, 10]).standard_normal((2, 10, 6))
        softmax = np.exp(q @ k.T / math.sqrt(6))
        softmax /= softmax.sum(axis=1, keepdims=True)
        phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
        elu = phi_q @ phi_k.T
        elu /= elu.sum(axis=1, keepdims=True)
        size = np.linalg.norm(softmax)
        assert found.elu == pytest.approx(np.linalg.norm(elu - softmax) / size, rel=1e-12)
        assert found.uniform == pytest.approx(np.linalg.norm(0.1 - softmax) / size, rel=1e-12)
        lengths = [np.sum((a + b) ** 2) / math.sqrt(6) for a in q for b in k]
        assert found.mean_square == pytest.approx(np.mean(lengths), rel=1e-12)

    @each(
        "errors, expected",
        [((3, 0.5, 0.4), 32), ((0.5, 3, 0.4), 64), ((3, 3, 3), None), ((0.4, 0.3, 0.2), 16),
         ((0.1, 0.1, 1.0), None)],
    )  # fmt: skip
    def test_overtakes_is_where_it_stays_better(self, errors, expected):
        rows = [
            simulate.FeatureRow("positive", m, 0, 0, error, 0)
            for m, error in zip((16, 32, 64), errors, strict=True)
        ]
        trig = simulate.FeatureRow("trig", 128, 0, 0, 99.0, None)
        found = simulate.FeatureErrors(4, 4, 1.0, 1, 0, 1.0, 1.0, 1.0, (*rows, trig))
        assert found.overtakes == expected

    def test_long_vectors_stay_finite_and_lose_to_elu(self):
        found = simulate.features([64], d=64, n=40, size=1.0, draws=3)
        assert found.overtakes is None
        huge = simulate.features([64], d=16, n=20, size=6.0, draws=2)
        assert all(math.isfinite(row.weights) for row in huge.rows if row.kind != "trig")


class TestRepresenter:
    def test_ridge_is_the_linear_system_with_n_lambda(self, path):
        K = np.exp(-((path.x[:, None] - path.x) ** 2) / (2 * path.length**2))
        n = len(path.x)
        alpha = np.linalg.solve(K + n * path.mean_penalty * np.eye(n), path.y)
        np.testing.assert_allclose(path.ridge_coefficients, alpha, rtol=1e-9)
        assert path.ridge.norm == pytest.approx(math.sqrt(alpha @ K @ alpha))
        assert path.ridge.loss == pytest.approx(np.mean((K @ alpha - path.y) ** 2))

    def test_descent_goes_down_to_it_within_its_bound(self, path):
        objectives = [row.objective for row in path.rows]
        assert objectives == sorted(objectives, reverse=True)
        best = path.ridge.loss + path.mean_penalty * path.ridge.norm**2
        assert objectives[-1] == pytest.approx(best, rel=1e-5)
        for row in path.rows:
            assert row.objective >= best * (1 - 1e-12)
            assert row.objective == pytest.approx(row.loss + path.mean_penalty * row.norm**2)
            assert row.distance <= row.bound * (1 + 1e-9)
        assert path.rows[0][:3] == (0, pytest.approx(np.mean(path.y**2)), 0.0)
        assert path.rows[0].distance == pytest.approx(path.ridge.norm)
        assert path.rows[-1].distance < 0.01 < path.rows[-2].distance
        assert [row.step for row in simulate.representer(n=5, steps=7).rows] == [0, 1, 3, 7]

    def test_curves_are_those_of_the_coefficients(self, path):
        f = kernels.RKHSFunction(kernels.RBF(path.length), path.x[:, None], path.coefficients)
        np.testing.assert_allclose(path.values[-1], f(path.grid[:, None]), rtol=1e-12)
        assert path.values.shape == (len(path.rows), len(path.grid))
        assert not path.values[0].any()
        gap = np.abs(path.values[-1] - path.ridge_values).max()
        assert gap <= path.rows[-1].distance * (1 + 1e-9)  # |f(x)| ≤ ‖f‖ where k(x, x) = 1

    def test_ridge_path_trades_loss_for_norm(self, path):
        norms = [point.norm for point in path.ridge_path]
        losses = [point.loss for point in path.ridge_path]
        assert norms == sorted(set(norms), reverse=True)
        assert losses == sorted(set(losses))
        K = np.exp(-((path.x[:, None] - path.x) ** 2) / (2 * path.length**2))
        for point in path.ridge_path[::7]:
            shift = len(path.x) * point.mean_penalty * np.eye(len(path.x))
            misfit = path.y - K @ np.linalg.solve(K + shift, path.y)
            assert point.loss == pytest.approx(np.mean(misfit**2), rel=1e-6)
        for row in path.rows:  # nothing has a smaller loss at a smaller norm
            assert all(p.loss <= row.loss for p in path.ridge_path if p.norm >= row.norm)


class TestSVM:
    def test_support_vectors_are_the_points_within_the_margin(self, moons):
        kernel = _svm.truncated_rbf(moons.length, moons.order)
        values = kernel(moons.x) @ moons.coefficients
        signed = moons.y * moons.coefficients
        free = (signed > 1e-6) & (signed < moons.C - 1e-6)
        b = np.mean(moons.y[free] - values[free])
        margins = moons.y * (values + b)
        np.testing.assert_allclose(margins[free], 1, atol=1e-4)
        assert (margins[signed == 0] > 1 - 1e-4).all()
        assert (margins[signed == moons.C] < 1 + 1e-4).all()
        assert (signed >= 0).all()
        assert moons.machines[0].carriers == np.count_nonzero(signed) < moons.n / 2

    def test_what_differs(self, moons):
        svm, attention = moons.machines
        assert (svm.name, attention.name) == ("SVM", "attention")
        assert svm.accuracy > 0.92
        assert 0.8 < attention.accuracy < svm.accuracy - 0.03
        assert moons.sharper > attention.accuracy + 0.03
        assert svm.without_one < 1e-5 < 1e-3 < attention.without_one
        assert attention.carriers == moons.n
        assert attention.largest <= 1 < svm.largest
        assert moons.coefficients[moons.left_out] == 0

    def test_gram_matrix_and_features_give_the_same_near_the_rbf(self, moons):
        svm, attention = moons.machines
        assert svm.by_features < 1e-4
        assert attention.by_features < 1e-12
        kernel = _svm.truncated_rbf(moons.length, moons.order)
        assert kernel.feature_map.dim(2) == moons.m == 153
        found = kernel(moons.x)
        exact = np.exp(-np.sum((moons.x[:, None] - moons.x) ** 2, axis=-1) / (2 * moons.length**2))
        assert (found > 0).all()
        assert np.abs(found - exact).max() == pytest.approx(moons.kernel_difference)
        assert moons.kernel_difference < 0.02

    def test_attention_averages_the_labels(self):
        kernel, x, y = kernels.RBF(), np.array([[0.0], [1.0]]), np.array([1.0, -1.0])
        weight = math.exp(-0.5 * 0.3**2), math.exp(-0.5 * 0.7**2)
        expected = (weight[0] - weight[1]) / (weight[0] + weight[1])
        assert _svm.attend(kernel, np.array([[0.3]]), x, y) == pytest.approx([expected])
        assert np.isnan(_svm.attend(kernels.RBF(0.001), np.array([[0.5]]), x, y)).all()

    def test_where_every_point_is_a_support_vector_none_can_be_left_out(self):
        pytest.importorskip("sklearn")
        found = simulate.svm(n=4)
        assert found.left_out is None
        assert all(math.isnan(machine.without_one) for machine in found.machines)
        assert _svm._surest(np.array([0.5, 0, 0]), np.array([9.0, 2, 3])) == 2

    def test_moons_lie_on_half_circles(self):
        x, y = _svm._moons(400, 1e-9, np.random.default_rng(0))
        centre = y[:, None] * np.array([-0.5, -0.25])
        np.testing.assert_allclose(np.linalg.norm(x - centre, axis=1), 1, atol=1e-6)
        assert (y * (x - centre)[:, 1] > -1e-6).all()
        assert y.sum() == 0


@each("name", NAMES)
def test_seed_decides_everything(name):
    if name == "svm":
        pytest.importorskip("sklearn")
    first, again, other = (getattr(simulate, name)(**SMALL[name], seed=s) for s in (4, 4, 5))
    assert repr(first) == repr(again)
    numbers = "machines" if name == "svm" else "rows"
    assert getattr(first, numbers) != getattr(other, numbers)


@each(
    "name, wrong, part",
    [
        ("moments", {"widths": []}, "at least one"),
        ("moments", {"widths": [0]}, "≥ 1"),
        ("moments", {"sigma": 0.0}, "sigma > 0"),
        ("moments", {"mu": math.nan}, "finite mu"),
        ("moments", {"draws": 2**28}, "at most"),
        ("scaling", {"n": 2**20, "queries": 2**10}, "at most"),
        ("scaling", {"seed": -1}, "seed"),
        ("features", {"counts": [15]}, "even"),
        ("features", {"size": -1.0}, "size > 0"),
        ("representer", {"mean_penalty": 0.0}, "mean_penalty > 0"),
        ("representer", {"noise": -1.0}, "noise"),
        ("svm", {"order": 15}, "even order"),
        ("svm", {"order": 62}, "60"),
        ("svm", {"n": 3}, "≥ 4"),
    ],
)
def test_errors_name_the_argument(name, wrong, part):
    with pytest.raises(ValueError, match=name) as error:
        getattr(simulate, name)(**wrong)
    assert part in str(error.value)


class TestPictures:
    @pytest.mark.parametrize("name", NAMES)
    def test_commands_print_numbers_and_write_the_picture_asked_for(
        self, run, tmp_path, monkeypatch, name
    ):
        pytest.importorskip("matplotlib")
        if name == "svm":
            pytest.importorskip("sklearn")
        monkeypatch.chdir(tmp_path)
        code, out, err = run("simulate", name, *small(name), "--out", f"{name}.png", "--seed", 3)
        assert (code, err) == (0, "")
        assert "seed 3" in out
        assert max(map(len, out.splitlines())) <= 100
        assert out.endswith(f"wrote {name}.png\n")
        assert [p.name for p in tmp_path.iterdir()] == [f"{name}.png"]
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    def test_without_a_picture_asked_for_nothing_is_written(self, run, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(_files, "check_writable", None)  # as in a read-only folder
        monkeypatch.setattr(simulate, "save_figure", None)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        code, out, err = run("simulate", "moments", *small("moments"))
        assert (code, err) == (0, "")
        assert "seed 0" in out
        assert "Var[q·k/√d]" in out
        assert not list(tmp_path.iterdir())

    def test_table_holds_the_numbers_of_the_function(self, run, tmp_path):
        pytest.importorskip("matplotlib")
        out = run("simulate", "moments", "--d", 4, "--mu", 1, "--out", tmp_path / "a.png")[1]
        rows = simulate.moments([1, 2, 4], mu=1.0).rows
        for row in rows:
            line = next(line for line in out.splitlines() if line.split()[:1] == [str(row.d)])
            cells = line.split()
            assert cells[2:5] == [f"{row.d}", f"{row.variance:.4g}", f"{3 * row.d}"]
            assert cells[6:] == [f"{row.scaled_variance:.3f}", "3"]

    def test_same_numbers_make_the_same_file_and_leave_the_style_of_others(self, tmp_path):
        matplotlib = pytest.importorskip("matplotlib")
        before = dict(matplotlib.rcParams)
        found = simulate.scaling([1, 4], n=16, queries=4)
        for name in ("a.svg", "b.svg"):
            simulate.save_figure(simulate.scaling_figure(found), tmp_path / name)
        assert filecmp.cmp(tmp_path / "a.svg", tmp_path / "b.svg", shallow=False)
        assert dict(matplotlib.rcParams) == before

    def test_a_picture_that_fails_leaves_what_was_there_and_the_table(
        self, run, tmp_path, monkeypatch
    ):
        matplotlib = pytest.importorskip("matplotlib")
        target = tmp_path / "a.png"
        target.write_bytes(b"before")

        def broken(figure, file, **_):
            file.write(b"half")
            raise OSError("no space left on device")

        monkeypatch.setattr(matplotlib.figure.Figure, "savefig", broken)
        code, out, err = run("simulate", "moments", *small("moments"), "--out", target)
        assert code == 1
        assert "Var[q·k/√d]" in out
        assert "no space left on device" in err
        assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
        assert target.read_bytes() == b"before"

    def test_without_a_name_all_are_listed(self, run):
        code, out, err = run("simulate")
        assert (code, err) == (0, "")
        assert all(f"\n  {name} " in out for name in NAMES)

    @each(
        "arguments, part",
        [
            (("moments", "--out", "a.txt"), ".png"),
            (("moments", "--out", "nowhere/a.png"), "nowhere"),
            (("moments", "--d", "0"), "--d"),
            (("moments", "--sigma", "-1"), "sigma"),
            (("scaling", "--seed", "-1"), "seed"),
            (("features", "--sizes", "small"), "0.5,1"),
            (("features", "--m", "8"), "16"),
            (("representer", "--penalty", "0"), "mean_penalty"),
            (("svm", "--length", "0"), "length"),
            (("unknown",), "unknown"),
            (("moments", "--steps", "3"), "--steps"),
        ],
    )
    def test_wrong_arguments_are_one_line_and_exit_2(
        self, run, tmp_path, monkeypatch, arguments, part
    ):
        pytest.importorskip("matplotlib")
        monkeypatch.chdir(tmp_path)
        code, out, err = run("simulate", *arguments)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert part in err
        assert not list(tmp_path.iterdir())

    def test_a_picture_asked_for_without_matplotlib_fails_before_the_work(
        self, run, tmp_path, monkeypatch
    ):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setattr(simulate, "moments", None)  # not reached
        code, out, err = run("simulate", "moments", "--out", tmp_path / "a.png")
        assert (code, out) == (1, "")
        assert install_command("plot") in err

    def test_missing_scikit_learn_is_named(self, run, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        monkeypatch.chdir(tmp_path)
        for name in [n for n in sys.modules if n.startswith("kerneltrick.sklearn")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "sklearn", None)
        code, out, err = run("simulate", "svm")
        assert (code, out) == (1, "")
        assert install_command("sklearn") in err
