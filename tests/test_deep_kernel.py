"""A deep kernel is a Gaussian process on learned features, and learning them pays."""

import copy
import math
import subprocess
import sys

import numpy as np
import pytest
from cases import each

torch = pytest.importorskip("torch")

from kerneltrick import _progress as progress_module  # noqa: E402
from kerneltrick import kernels, maps  # noqa: E402
from kerneltrick._install import install_command  # noqa: E402
from kerneltrick.torch import DeepKernel  # noqa: E402


def data(n=120, d=5, seed=0):
    """A wave along one direction, which a network can find and a plain RBF kernel cannot."""
    rng = np.random.default_rng(seed)
    direction = np.ones(d) / math.sqrt(d)
    x = rng.standard_normal((n, d))
    return x, np.sin(3 * x @ direction) + 0.1 * rng.standard_normal(n)


def model(d=5, **options):
    return DeepKernel.mlp(d, hidden=(24,), outputs=2, **options)


pytestmark = pytest.mark.xdist_group("deep_kernel")  # one model is trained


@pytest.fixture(scope="module")
def trained():
    x, y = data()
    deep = model()
    record = deep.fit(x, y, steps=150, learning_rate=0.02)
    return deep, record, x, y


class TestTraining:
    def test_training_raises_the_marginal_likelihood(self, trained):
        _, record, _, _ = trained
        assert record.stopped == "steps"
        assert len(record.likelihoods) == 151
        assert record.likelihoods[-1] > record.likelihoods[0] + 100
        assert record.likelihoods[-1] > 0.9 * max(record.likelihoods)

    def test_trained_kernel_beats_the_untrained_one_on_new_data(self, trained):
        deep, record, x, y = trained
        new, truth = data(400, seed=1)
        untrained = model()
        fixed = untrained.fit(x, y, steps=150, learning_rate=0.02, train_extractor=False)
        errors = [
            float(np.mean((m.predict(new)[0].numpy() - truth) ** 2)) for m in (deep, untrained)
        ]
        assert fixed.likelihoods[-1] > fixed.likelihoods[0]  # noise and amplitude were fitted
        assert record.likelihoods[-1] > fixed.likelihoods[-1] + 50
        assert errors[0] < 0.25 * errors[1]
        assert errors[0] < 0.2 * truth.var()

    def test_untrained_extractor_keeps_its_weights_and_the_trained_one_does_not(self):
        x, y = data(30)
        for train in (False, True):
            deep = model()
            before = copy.deepcopy(deep.extractor.state_dict())
            deep.fit(x, y, steps=3, train_extractor=train)
            same = [
                torch.equal(before[name], value)
                for name, value in deep.extractor.state_dict().items()
            ]
            assert all(same) != train

    def test_seed_decides_everything_and_touches_no_other_stream(self):
        x, y = data(30)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        runs, drawn = [], []
        for seed in (0, 0, 1):
            drawn.append(torch.rand(1))
            deep = model(seed=seed)
            deep.extractor.append(torch.nn.Dropout(0.5))
            runs.append(deep.fit(x, y, steps=5, seed=seed).likelihoods)
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]
        assert torch.equal(torch.cat(drawn), expected)

    def test_interruption_leaves_a_fitted_model(self, monkeypatch):
        monkeypatch.setattr(progress_module, "PAUSE", 0.0)
        x, y = data(30)

        def report(what, done, total):
            if done == 2 and not stopped:
                stopped.append(what)
                raise KeyboardInterrupt

        stopped = []
        deep = model()
        record = deep.fit(x, y, steps=50, progress=report)
        assert record.stopped == "interrupted"
        assert len(record.likelihoods) == 3
        assert deep.predict(x)[0].shape == (30,)


class TestProcess:
    @each("feature_map, n", [(None, 150), ("identity", 20), ("poly:degree=2", 20)])
    def test_likelihood_and_prediction_are_those_of_the_numpy_process(self, feature_map, n):
        x, y = data(n)
        deep = model(feature_map=feature_map)
        deep.fit(x, y, steps=3)
        with torch.no_grad():
            hidden = deep.extractor(torch.tensor(x)).numpy()
            likelihood = float(deep.log_marginal_likelihood(x, y))
        kernel = kernels.MapKernel(deep.feature_map)
        scaled = math.exp(2 * float(deep.log_amplitude.detach())) * kernel
        mu = float(deep.mean.detach())
        for solver in ("dual", "primal"):
            process = kernels.GaussianProcess(
                scaled, noise_variance=deep.noise_variance, solver=solver
            ).fit(hidden, y - mu)
            assert likelihood == pytest.approx(process.log_marginal_likelihood, rel=1e-9)
            mean, variance = process.predict(hidden[:6])
            found = deep.predict(x[:6])
            np.testing.assert_allclose(found[0].numpy(), mean + mu, atol=1e-8)
            np.testing.assert_allclose(found[1].numpy(), variance, atol=1e-8)
        with torch.no_grad():
            np.testing.assert_allclose(deep(x).numpy(), scaled(hidden), atol=1e-11)
            np.testing.assert_allclose(deep(x, x[:3]).numpy(), scaled(hidden)[:, :3], atol=1e-11)

    def test_gradient_is_that_of_the_likelihood(self):
        x, y = data(12, 3)
        deep = model(3, feature_map="poly:degree=2")
        deep.log_marginal_likelihood(x, y).backward()
        for name, parameter in deep.named_parameters():
            flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
            for i in {0, len(flat) - 1}:
                ends = []
                for sign in (1, -1):
                    flat[i] += sign * 1e-5
                    ends.append(float(deep.log_marginal_likelihood(x, y).detach()))
                    flat[i] -= sign * 1e-5
                slope = (ends[0] - ends[1]) / 2e-5
                assert float(gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-6), name

    def test_noise_is_recovered_and_variance_grows_away_from_the_data(self, trained):
        deep, _, x, _ = trained
        assert 0.003 < deep.noise_variance < 0.03  # 0.01 in the data
        assert deep.predict(8 * x)[1].mean() > 3 * deep.predict(x)[1].mean()

    def test_condition_takes_new_data_without_training(self, trained):
        deep = copy.deepcopy(trained[0])
        before = copy.deepcopy(deep.state_dict())
        new, y = data(50, seed=7)
        deep.condition(new, y + 5)
        assert deep.predict(new)[0].mean() > 3
        assert all(torch.equal(before[k], v) for k, v in deep.state_dict().items())

    def test_network_in_float32_is_used_in_its_dtype(self):
        x, y = data(40)
        deep = DeepKernel(torch.nn.Linear(5, 2), "poly:degree=2")
        record = deep.fit(x.astype(np.float32), y, steps=5)
        assert np.isfinite(record.likelihoods).all()
        assert deep.predict(x)[0].dtype == torch.float64
        assert deep.extractor.weight.dtype == torch.float32

    def test_constant_targets_are_fitted_and_no_steps_only_condition(self):
        x, _ = data(20)
        for steps in (0, 2):
            deep = model()
            record = deep.fit(x, np.full(20, 3.0), steps=steps)
            assert len(record.likelihoods) == 1 + steps
            assert deep.predict(x)[0].numpy() == pytest.approx(np.full(20, 3.0), abs=1e-6)


x, y = data(8)
BAD = {
    "no network": (lambda: DeepKernel(lambda x: x), TypeError, "torch.nn.Module"),
    "unknown map": (lambda: model(feature_map="eluu"), ValueError, "did you mean 'elu'"),
    "map of positions": (
        lambda: DeepKernel(torch.nn.Identity(), maps.Cosformer(8)), ValueError,
        "not a kernel of points alone",
    ),
    "width of zero": (lambda: DeepKernel.mlp(3, (0,)), ValueError, r"≥ 1, not \[3, 0, 2\]"),
    "prediction before data": (lambda: model().predict(x), ValueError, "call fit or condition"),
    "points that are one column": (
        lambda: model().fit(x[:, 0], y), ValueError, r"\(n, d\) with n ≥ 1, not .*\(8,\)",
    ),
    "NaN in points": (lambda: model().fit(x * math.nan, y), ValueError, "x holds NaN"),
    "too few targets": (lambda: model().fit(x, y[:3]), ValueError, r"\(8,\), not .* \(3,\)"),
    "learning rate of zero": (
        lambda: model().fit(x, y, learning_rate=0), ValueError, "learning_rate > 0",
    ),
    "network of another shape": (
        lambda: DeepKernel(torch.nn.Flatten(0)).fit(x, y), ValueError,
        r"\(8, outputs\), not \(40,\)",
    ),
    "features that are not finite": (
        lambda: DeepKernel(torch.nn.Identity(), "exp").fit(1e4 * np.abs(x), y), ValueError,
        "not finite, or singular",
    ),
}  # fmt: skip


@each("name", BAD)
def test_bad_input_is_refused(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_the_room_says_which_extra_it_needs():
    code = "import sys; sys.modules['torch'] = None; import kerneltrick.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert install_command("torch") in done.stderr
