"""The adapters follow scikit-learn's rules, and its own estimators agree with ours."""

import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import each
from kernel_cases import problem

from kerneltrick import kernels, maps
from kerneltrick._install import install_command

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import RidgeClassifier  # noqa: E402
from sklearn.metrics.pairwise import rbf_kernel  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.svm import SVC, LinearSVC  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from kerneltrick.sklearn import KernelFeatures, KernelSVC  # noqa: E402

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "digits.py"


def digits(n=300, classes=10):
    x, y = load_digits(return_X_y=True)
    keep = y < classes
    return x[keep][:n] / 16, y[keep][:n]


@pytest.mark.parametrize(
    "estimator",
    [
        KernelFeatures(),
        KernelFeatures("favor:features=16,kind=trig", normalize=True),
        KernelSVC("linear"),
        KernelSVC("polynomial", solver="dual"),
    ],
    ids=str,
)
def test_estimator_passes_the_checks_of_scikit_learn(estimator):
    results = check_estimator(estimator, on_skip=None)
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # it needs an environment variable
    assert len(results) - len(skipped) > 40


class TestKernelFeatures:
    @each("text", ["elu", "poly:degree=2", "taylor:order=2", "favor:features=32", "hedgehog"])
    def test_features_are_those_of_the_map_at_the_scale_of_linear_attention(self, text):
        x, _, _ = problem(12)
        feature_map = maps.get(text)
        scale = 1 / math.sqrt(3) if feature_map.approximates_softmax else 1.0
        transformer = KernelFeatures(text).fit(x)
        assert transformer.scale_ == scale
        assert transformer.n_components_ == feature_map.dim(3)
        expected = feature_map.phi(math.sqrt(scale) * x)
        np.testing.assert_allclose(transformer.transform(x), expected, rtol=1e-13)
        doubled = KernelFeatures(text, scale=4).fit_transform(x)
        np.testing.assert_allclose(doubled, feature_map.phi(2 * x), rtol=1e-13)

    def test_normalised_trigonometric_features_estimate_the_rbf_kernel(self):
        x, _, _ = problem(12)
        text = "favor:features=20000,kind=trig"
        phi = KernelFeatures(text, scale=2 * 0.3, normalize=True).fit_transform(x)
        np.testing.assert_allclose(np.sum(phi**2, axis=1), 1, rtol=1e-12)
        np.testing.assert_allclose(phi @ phi.T, rbf_kernel(x, gamma=0.3), atol=0.04)

    def test_normalised_features_do_not_overflow_where_the_features_do(self):
        x = np.full((2, 4), 50.0)
        assert np.isfinite(KernelFeatures("favor", scale=1, normalize=True).fit_transform(x)).all()
        with pytest.raises(ValueError, match=r"of sample 0 overflow.*StandardScaler"):
            KernelFeatures("favor:kind=trig", scale=1).fit_transform(x)

    @each("dtype", [np.float32, np.float64])
    def test_dtype_is_kept(self, dtype):
        x = problem(5)[0].astype(dtype)
        for text in ("poly:degree=2", "favor:features=8,kind=trig", "t2r"):
            for normalize in (False, True):
                found = KernelFeatures(text, normalize=normalize).fit_transform(x)
                assert found.dtype == dtype
        assert KernelFeatures("elu").fit_transform([[1, 2]]).dtype == np.float64

    def test_grid_search_goes_over_maps(self):
        x, y = digits(200)
        model = make_pipeline(KernelFeatures(), RidgeClassifier())
        choices = {"kernelfeatures__feature_map": ["identity", maps.get("t2r:features=8"), "elu"]}
        search = GridSearchCV(model, choices, cv=2).fit(x, y)
        assert len(search.cv_results_["params"]) == 3
        assert search.best_score_ > 0.8

    def test_clone_and_pickle_keep_the_parameters(self):
        transformer = KernelFeatures("favor:features=8", scale=0.5, normalize=True)
        assert clone(transformer).get_params() == transformer.get_params()
        x = problem(5)[0]
        expected = transformer.fit_transform(x)
        again = pickle.loads(pickle.dumps(transformer))
        np.testing.assert_array_equal(again.transform(x), expected)
        np.testing.assert_array_equal(clone(transformer).fit_transform(x), expected)

    @each(
        "text",
        [
            "poly:degree=2",
            "poly:degree=3,constant=0",
            "taylor:order=3",
        ],
    )
    def test_names_of_polynomial_features_are_their_monomials(self, text):
        x = np.abs(problem(7)[0]) + 0.5
        transformer = KernelFeatures(text, scale=1).fit(x)
        names = transformer.get_feature_names_out(["a", "b", "c"])
        values = dict(zip("abc", x.T, strict=True))
        phi = transformer.transform(x)
        assert len(set(names)) == len(names) == phi.shape[1]
        for name, column in zip(names, phi.T, strict=True):
            monomial = np.ones(7)
            for factor in [] if name == "1" else name.split(" "):
                variable, _, power = factor.partition("^")
                monomial = monomial * values[variable] ** int(power or 1)
            ratio = column / monomial
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12, err_msg=name)

    def test_other_names(self):
        x = problem(4)[0]
        assert KernelFeatures("relu2").fit(x).get_feature_names_out()[1] == "relu2(x1)"
        assert list(KernelFeatures("identity").fit(x).get_feature_names_out()) == ["x0", "x1", "x2"]
        assert KernelFeatures("hedgehog").fit(x).get_feature_names_out()[-1] == "hedgehog5"
        with pytest.raises(NotFittedError):
            KernelFeatures().get_feature_names_out()

    def test_pandas_goes_in_and_comes_out(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"height": [1.0, 2.0], "width": [3.0, 4.0]}, index=["p", "q"])
        transformer = KernelFeatures("poly:degree=2").set_output(transform="pandas")
        out = transformer.fit_transform(frame)
        assert list(out.index) == ["p", "q"]
        assert "height width" in out.columns
        assert out.loc["q", "height width"] == pytest.approx(math.sqrt(2) * 8)
        assert list(transformer.feature_names_in_) == ["height", "width"]
        with pytest.raises(ValueError, match="feature names"):
            transformer.transform(frame[["width", "height"]])

    @each(
        "options, error, message",
        [
            ({"feature_map": "eluu"}, ValueError, "did you mean 'elu'"),
            ({"feature_map": 3}, TypeError, "not int"),
            ({"feature_map": "cosformer:horizon=8"}, ValueError, "which samples do not have"),
            ({"scale": 0}, ValueError, "scale > 0 and finite, not 0"),
            ({"scale": math.inf}, ValueError, "not inf"),
            ({"feature_map": "relu", "normalize": True}, ValueError, "sample 1 .*normalised"),
        ],
    )
    def test_bad_parameters_are_refused(self, options, error, message):
        with pytest.raises(error, match=message):
            KernelFeatures(**options).fit_transform([[1.0], [-1.0]])


class TestKernelSVC:
    @each("kernel, classes", [("linear", 4), ("polynomial:degree=2", 2), ("taylor:order=2", 4)])
    def test_gram_matrix_and_features_give_one_machine(self, kernel, classes):
        x, y = digits(150, classes)
        dual, primal = (
            KernelSVC(kernel, C=0.05, solver=solver, tol=1e-6, max_iter=200_000).fit(x, y)
            for solver in ("dual", "primal")
        )
        a, b = dual.decision_function(x), primal.decision_function(x)
        assert a.shape == ((150,) if classes == 2 else (150, classes))
        np.testing.assert_allclose(a, b, atol=1e-4)
        assert (dual.predict(x) == primal.predict(x)).all()

    def test_coefficients_are_a_function_of_the_space(self):
        x, y = digits(150, 2)
        model = KernelSVC("rbf:length=2").fit(x, y)
        f = kernels.RKHSFunction("rbf:length=2", x, model.coefficients_[:, 0])
        np.testing.assert_allclose(f(x) + model.intercepts_, model.decision_function(x))
        assert np.abs(model.coefficients_).max() <= 1  # C

    def test_two_classes_are_those_of_svc_itself_which_takes_our_kernels(self):
        x, y = digits(150, 2)
        words = np.array(["zero", "one"])[y]  # labels may be text
        ours = KernelSVC(kernels.RBF(length=2), C=3, tol=1e-6).fit(x, words)
        theirs = SVC(gamma=1 / 8, C=3, tol=1e-6).fit(x, words)
        taken = SVC(kernel=kernels.RBF(length=2), C=3, tol=1e-6).fit(x, words)
        for machine in (ours, taken):
            np.testing.assert_allclose(
                machine.decision_function(x), theirs.decision_function(x), atol=1e-4
            )
            assert (machine.predict(x) == theirs.predict(x)).all()
        assert clone(taken).fit(x, words).score(x, words) == ours.score(x, words) > 0.95

    def test_auto_takes_features_where_they_are_fewer_than_samples(self):
        x, y = digits(100, 2)
        assert KernelSVC("linear").fit(x, y).solver_ == "primal"
        assert KernelSVC("polynomial").fit(x, y).solver_ == "dual"  # 2145 features
        assert KernelSVC("rbf").fit(x, y).solver_ == "dual"
        features = kernels.RBF(length=2).random_features(64)
        assert KernelSVC(features).fit(x, y).solver_ == "primal"

    @each(
        "options, labels, message",
        [
            ({"solver": "fast"}, [0, 1, 0], "auto, dual or primal, not 'fast'"),
            ({"kernel": "rbf", "solver": "primal"}, [0, 1, 0], "no finite feature map"),
            ({"kernel": "rfb"}, [0, 1, 0], "did you mean 'rbf'"),
            ({}, [1, 1, 1], "one class"),
            ({}, [0.5, 0.7, 0.1], "Unknown label type: continuous"),
            ({"kernel": lambda a, b: a @ b.T + a}, [0, 1, 0], "not symmetric"),
        ],
    )
    def test_bad_input_is_refused(self, options, labels, message):
        with pytest.raises(ValueError, match=message):
            KernelSVC(**options).fit([[1.0], [2.0], [3.0]], labels)


class TestAgreement:
    """Our estimator and scikit-learn's solve the same problem, with different penalty names."""

    def test_hinge_descent_comes_to_their_machine_with_c_of_1_over_2_n_lambda(self):
        x, _, z = problem(40)
        penalty = 0.5
        run = kernels.rkhs_descent(
            "polynomial:degree=2", x, z, mean_penalty=penalty, loss="hinge", steps=20_000,
            record_every=5000,
        )  # fmt: skip
        theirs = LinearSVC(
            C=1 / (2 * penalty * 40), loss="hinge", fit_intercept=False, tol=1e-8, max_iter=10**6
        )
        phi = maps.get("poly:degree=2").phi(x)
        w = theirs.fit(phi, z).coef_[0]
        objective = np.maximum(0, 1 - z * (phi @ w)).mean() + penalty * w @ w
        assert 0 <= run.objectives[-1] - objective + 1e-9 <= run.gaps[-1] + 2e-9
        assert penalty * np.sum((run.function.weights - w) ** 2) <= run.gaps[-1] + 1e-9


def test_the_room_says_which_extra_it_needs():
    code = "import sys; sys.modules['sklearn'] = None; import kerneltrick.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert install_command("sklearn") in done.stderr


@pytest.mark.slow
def test_digits_benchmark_compares_at_equal_m():
    command = [sys.executable, str(BENCHMARK), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if " · " in line]
    assert rows[0].startswith("| kernel · method | m = 16 | m = 64 |")
    assert {"RBFSampler", "Nystroem", "PolynomialCountSketch"} <= set(done.stdout.split())
    accuracy = [float(row.split("|")[3].split("±")[0]) for row in rows[1:]]
    assert len(accuracy) == 6
    assert min(accuracy) > 80
