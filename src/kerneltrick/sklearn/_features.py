"""A feature map as a transformer."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from kerneltrick import maps
from kerneltrick.sklearn._names import feature_names


class KernelFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc] # untyped bases
    """φ(√s·x) of any feature map, for linear models that then act as kernel machines.

    A linear model on φ is the kernel machine of k(x, y) = φ(x)·φ(y), in time linear in the number
    of samples. Derivation: docs/06_kernels_and_rkhs.md.

    Parameters
    ----------
    feature_map : text, map or function, default "poly:degree=2"
        As everywhere in kerneltrick, for example "favor:features=256,kind=trig". The draws of a
        random map come from its own seed.
    scale : number > 0 or None
        x is multiplied by √scale, so that x·y is by scale. None means what it means to
        `linear_attention`: 1/√d for maps that stand for softmax, else 1.
    normalize : bool, default False
        Divide φ(x) by its length, for the kernel k(x, y)/√(k(x, x)k(y, y)). Of favor, whose kernel
        is e^{s·x·y}, this makes the RBF kernel with gamma = s/2.

    Attributes
    ----------
    feature_map_ : the map in use
    scale_ : the scale in use
    n_features_in_, feature_names_in_ : of the input, as in scikit-learn
    n_components_ : m, the number of features

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
        """Look at the width of X (n, d); the map itself learns nothing."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        found = maps.get(self.feature_map)
        if isinstance(found, maps.Cosformer):
            raise ValueError(f"{found} weighs by position, and samples have none; use relu")
        self.feature_map_ = found
        self.scale_ = self._scale(found, X.shape[1])
        self.n_components_ = found.dim(X.shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """φ(√s·x) as (n, m), in the dtype of X if that is float32 or float64."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        X = X * X.dtype.type(math.sqrt(self.scale_))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.normalize:
                phi, _ = self.feature_map_.phi_query(X)  # the scale of each sample drops out
                phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
            else:
                phi = self.feature_map_.phi(X)
        if not np.isfinite(phi).all():
            row = int(np.argwhere(~np.isfinite(phi))[0][0])
            raise ValueError(
                f"the features {self.feature_map_} of sample {row} overflow or cannot be "
                f"normalised; scale the samples, with StandardScaler or a smaller scale"
            )
        return phi.astype(X.dtype, copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the features: monomials such as "x0 x1", "elu(x0)", or "favor0"."""
        check_is_fitted(self)
        given = _check_feature_names_in(self, input_features)
        return np.asarray(feature_names(self.feature_map_, list(given)), dtype=object)

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
