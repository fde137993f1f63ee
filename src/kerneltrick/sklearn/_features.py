"""A scikit-learn transformer for feature maps."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from kerneltrick import maps


class KernelFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc] # untyped bases
    """Transform samples by a feature map, φ(√s·x).

    A linear model on these features is the kernel machine of k(x, y) = φ(x)·φ(y). Its time is
    linear in the number of samples. The derivation is in docs/06_kernels_and_rkhs.md.

    Parameters
    ----------
    feature_map : text, map or function, default="poly:degree=2"
        The feature map, for example "favor:features=256,kind=trig". A random map is drawn from its
        own seed.
    scale : float or None, default=None
        The scale s > 0. x is multiplied by √s, so that x·y is multiplied by s. None selects the
        default of `linear_attention`: 1/√d for maps that approximate softmax, and 1 for others.
    normalize : bool, default=False
        Whether to divide φ(x) by its length, which gives the kernel k(x, y)/√(k(x, x)k(y, y)). For
        favor, with the kernel e^{s·x·y}, the result is the RBF kernel with gamma = s/2.

    Attributes
    ----------
    feature_map_ : FeatureMap
        The map that is used.
    scale_ : float
        The scale that is used.
    n_features_in_, feature_names_in_ :
        The number and the names of the input features, as in scikit-learn.
    n_components_ : int
        The number of features m.

    Examples
    --------
    >>> from sklearn.linear_model import RidgeClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0]
    >>> model = make_pipeline(KernelFeatures("poly:degree=2"), RidgeClassifier(alpha=1e-3))
    >>> model.fit(X, y).predict(X)
    array([0, 1, 1, 0])
    """

    def __init__(
        self,
        feature_map: maps.MapLike = "poly:degree=2",
        *,
        scale: float | None = None,
        normalize: bool = False,
    ) -> None:
        self.feature_map = feature_map
        self.scale = scale
        self.normalize = normalize

    def fit(self, X: Any, y: Any = None) -> KernelFeatures:
        """Read the width of X (n, d). The map itself learns nothing."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        found = maps.get(self.feature_map)
        if found.uses_positions:
            raise ValueError(f"{found} depends on positions, which samples do not have; use relu")
        self.feature_map_ = found
        self.scale_ = self._scale(found, X.shape[1])
        self.n_components_ = found.dim(X.shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """Compute φ(√s·x) as (n, m), in float32 if X is float32, else in float64."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        X = X * X.dtype.type(math.sqrt(self.scale_))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.normalize:
                phi, _ = self.feature_map_.phi_query(X)  # the scale of each sample cancels
                phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
            else:
                phi = self.feature_map_.phi(X)
        if not np.isfinite(phi).all():
            row = int(np.argwhere(~np.isfinite(phi))[0][0])
            raise ValueError(
                f"the features {self.feature_map_} of sample {row} overflow or cannot be "
                f"normalised; scale the samples with StandardScaler, or use a smaller scale"
            )
        return phi.astype(X.dtype, copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """The names of the features: monomials such as "x0 x1", "elu(x0)" or "favor0"."""
        check_is_fitted(self)
        given = _check_feature_names_in(self, input_features)
        return np.asarray(self.feature_map_.feature_names(list(given)), dtype=object)

    def _scale(self, found: maps.FeatureMap, d: int) -> float:
        if self.scale is None:
            return found.default_scale(d)
        wrong = isinstance(self.scale, bool) or not isinstance(self.scale, numbers.Real)
        if wrong or not 0 < self.scale < math.inf:
            raise ValueError(f"KernelFeatures needs scale > 0 and finite, not {self.scale!r}")
        return float(self.scale)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
