"""Deep kernel learning: a Gaussian process on features learned by a network."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from kerneltrick import kernels, maps
from kerneltrick._progress import Progress, ProgressReport

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True)
class TrainingRecord:
    """The log marginal likelihood before each step and at the end of a training."""

    likelihoods: tuple[float, ...]
    stopped: str  # "steps" or "interrupted"


class DeepKernel(torch.nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """y = μ + f(x) + noise, f ~ GP(0, a²·φ(g(x))·φ(g(x′))), with a network g and a feature map φ.

    Wilson et al. 2016 ("Deep kernel learning"), with explicit features. The log marginal likelihood
    costs O(n·m²) because
    log|a²ΦΦᵀ + σ²I_n| = log|a²ΦᵀΦ + σ²I_m| + (n − m) log σ².
    `fit` maximises it over the weights of g and over a, σ and μ, in float64. By default φ are
    random Fourier features of an RBF kernel of length 1; with "identity" the outputs of the network
    are the features.

    >>> x = torch.linspace(-2, 2, 40)[:, None]
    >>> model = DeepKernel.mlp(1, hidden=(16,), outputs=2, seed=0)
    >>> record = model.fit(x, torch.sign(x[:, 0]), steps=50)
    >>> record.likelihoods[-1] > record.likelihoods[0]
    True
    >>> mean, variance = model.predict(x[:3])
    >>> mean.shape, bool((variance > 0).all())
    (torch.Size([3]), True)
    """

    def __init__(self, extractor: torch.nn.Module, feature_map: maps.MapLike | None = None) -> None:
        super().__init__()
        if not isinstance(extractor, torch.nn.Module):
            raise TypeError(
                "DeepKernel needs a torch.nn.Module (n, d) → (n, p), "
                f"not {type(extractor).__name__}"
            )
        self.extractor = extractor
        if feature_map is None:
            feature_map = kernels.RBF().random_features(128)
        self.feature_map = kernels.MapKernel(
            feature_map
        ).feature_map  # refuses maps that use positions
        for name in ("log_amplitude", "log_noise", "mean"):
            value = torch.zeros((), dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(value))
        self._posterior: tuple[Tensor, Tensor] | None = None

    @classmethod
    def mlp(
        cls,
        inputs: int,
        hidden: Sequence[int] = (64, 64),
        outputs: int = 2,
        *,
        feature_map: maps.MapLike | None = None,
        seed: int = 0,
    ) -> DeepKernel:
        """A deep kernel with a tanh network inputs → hidden → outputs in float64."""
        widths = [inputs, *hidden, outputs]
        if any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in widths):
            raise ValueError(
                f"DeepKernel.mlp needs widths that are whole numbers ≥ 1, not {widths}"
            )
        layers: list[torch.nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for a, b in itertools.pairwise(widths):
                layers += [torch.nn.Linear(a, b, dtype=torch.float64), torch.nn.Tanh()]
        return cls(torch.nn.Sequential(*layers[:-1]), feature_map)

    @property
    def noise_variance(self) -> float:
        """σ²."""
        return math.exp(2 * float(self.log_noise.detach()))

    def features(self, x: Tensor) -> Tensor:
        """The features a·φ(g(x)), (n, m) in float64; their inner products are the kernel."""
        hidden = self.extractor(x)
        if hidden.ndim != 2 or len(hidden) != len(x):
            raise ValueError(
                f"the network must map x {tuple(x.shape)} to ({len(x)}, outputs), "
                f"not {tuple(hidden.shape)}"
            )
        phi: Tensor = self.feature_map.phi(hidden.to(torch.float64))
        return torch.exp(self.log_amplitude) * phi

    def forward(self, x: Any, y: Any = None) -> Tensor:
        """The Gram matrix a²·φ(g(x))·φ(g(y)), (n_x, n_y). Without y, that of x with itself."""
        a = self.features(self._points("x", x))
        return a @ (a if y is None else self.features(self._points("y", y))).mT

    def log_marginal_likelihood(self, x: Any, y: Any) -> Tensor:
        """log N(y; μ, K + σ²I) for points (n, d) and targets (n,), differentiable, in O(n·m²)."""
        points = self._points("x", x)
        phi, residual = self.features(points), self._targets(y, len(points)) - self.mean
        n, m = phi.shape
        noise = torch.exp(2 * self.log_noise)
        factor, weights = self._solve(phi, residual, noise)
        # ‖r − Φw‖²/σ² + ‖w‖² is rᵀ(K + σ²I)⁻¹r as a sum of squares, so nothing cancels.
        misfit = torch.sum((residual - phi @ weights) ** 2) / noise + torch.sum(weights**2)
        log_det = 2 * torch.log(torch.diagonal(factor)).sum() + (n - m) * 2 * self.log_noise
        return -0.5 * (misfit + log_det + n * math.log(2 * math.pi))

    def fit(
        self,
        x: Any,
        y: Any,
        *,
        steps: int = 200,
        learning_rate: float = 0.01,
        train_extractor: bool = True,
        seed: int = 0,
        progress: ProgressReport | None = None,
    ) -> TrainingRecord:
        """Maximise the log marginal likelihood of (x, y) with Adam, then condition on (x, y).

        μ starts at the mean of y, a at its standard deviation and σ at a third of that. With
        `train_extractor=False` only these three are fitted and the network stays as it is. `seed`
        sets the random numbers of the network (dropout). Ctrl-C ends the training early; the model
        can be used as far as it got.
        """
        points = self._points("x", x)
        targets = self._targets(y, len(points))
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"fit needs steps to be a whole number ≥ 0, not {steps!r}")
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise ValueError(f"fit needs learning_rate > 0, not {learning_rate!r}")
        self._start(targets)
        trained = [self.log_amplitude, self.log_noise, self.mean]
        trained += list(self.extractor.parameters()) if train_extractor else []
        optimizer = torch.optim.Adam(trained, lr=learning_rate)
        likelihoods: list[float] = []
        meter, stopped = Progress("training the deep kernel", steps, progress), "steps"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.extractor.train(train_extractor)
            try:
                for step in range(steps):
                    optimizer.zero_grad()
                    likelihood = self.log_marginal_likelihood(points, targets)
                    (-likelihood / len(points)).backward()
                    optimizer.step()
                    likelihoods.append(float(likelihood.detach()))
                    meter(step + 1)
            except KeyboardInterrupt:
                stopped = "interrupted"
        meter.close(len(likelihoods))
        self.extractor.eval()
        self.condition(points, targets)
        with torch.no_grad():
            likelihoods.append(float(self.log_marginal_likelihood(points, targets)))
        return TrainingRecord(tuple(likelihoods), stopped)

    def condition(self, x: Any, y: Any) -> None:
        """Condition the predictions on (x, y), without changing the parameters.

        The data are not part of `state_dict`: call this again after loading one.
        """
        points = self._points("x", x)
        targets = self._targets(y, len(points))
        with torch.no_grad():
            noise = torch.exp(2 * self.log_noise)
            self._posterior = self._solve(self.features(points), targets - self.mean, noise)

    def predict(self, x: Any) -> tuple[Tensor, Tensor]:
        """The mean and variance, each (n,), of μ + f without noise at points (n, d)."""
        if self._posterior is None:
            raise ValueError("DeepKernel has no data yet: call fit or condition first")
        factor, weights = self._posterior
        with torch.no_grad():
            phi = self.features(self._points("x", x))
            half = torch.linalg.solve_triangular(factor, phi.mT, upper=False)
            variance = torch.exp(2 * self.log_noise) * torch.sum(half**2, dim=0)
            return self.mean + phi @ weights, variance

    def _solve(self, phi: Tensor, residual: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The Cholesky factor of A = ΦᵀΦ + σ²I, and w = A⁻¹Φᵀr."""
        identity = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
        factor, failed = torch.linalg.cholesky_ex(phi.mT @ phi + noise * identity)
        if bool(failed) or not bool(torch.isfinite(factor).all()):
            raise ValueError(
                f"the features of the deep kernel are not finite, or singular at "
                f"σ² = {float(noise.detach()):.3g}: use a smaller learning rate, or fewer features"
            )
        return factor, torch.cholesky_solve((phi.mT @ residual)[:, None], factor)[:, 0]

    def _start(self, targets: Tensor) -> None:
        deviation = float(targets.std(correction=0)) or 1.0
        with torch.no_grad():
            self.mean.fill_(float(targets.mean()))
            self.log_amplitude.fill_(math.log(deviation))
            self.log_noise.fill_(math.log(deviation / 3))

    def _points(self, name: str, x: Any) -> Tensor:
        like = next(self.extractor.parameters(), self.mean)
        points = _tensor(name, x)
        if points.is_complex() or points.ndim != 2 or points.shape[0] == 0:
            raise ValueError(
                f"DeepKernel needs {name} to be real points (n, d) with n ≥ 1, "
                f"not {points.dtype} {tuple(points.shape)}"
            )
        points = points.to(like.device, like.dtype)
        if not bool(torch.isfinite(points).all()):
            raise ValueError(f"DeepKernel needs finite numbers, but {name} holds NaN or inf")
        return points

    def _targets(self, y: Any, n: int) -> Tensor:
        targets = _tensor("y", y)
        if targets.is_complex() or targets.dtype == torch.bool or targets.shape != (n,):
            raise ValueError(
                f"DeepKernel needs one real target per point, ({n},), "
                f"not {targets.dtype} {tuple(targets.shape)}"
            )
        targets = targets.to(self.mean.device, torch.float64)
        if not bool(torch.isfinite(targets).all()):
            raise ValueError("DeepKernel needs finite numbers, but y holds NaN or inf")
        return targets


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"DeepKernel needs {name} to hold real numbers, not {array.dtype}")
    return torch.as_tensor(np.array(array))  # torch has no read-only tensors
