"""Feature maps: what φ(x) is, its dimension, its exact kernel, its sign."""

from kerneltrick.maps._base import Custom, FeatureMap, digest, feature_shape, mean_similarity
from kerneltrick.maps._cosformer import Cosformer
from kerneltrick.maps._elementwise import Elu, Exp, Identity, Relu, Relu2, Square
from kerneltrick.maps._favor import Favor, draw_projection, random_features
from kerneltrick.maps._file import load, save
from kerneltrick.maps._learned import T2R, Hedgehog
from kerneltrick.maps._polynomial import Poly, Taylor
from kerneltrick.maps._registry import MapLike, get, names
from kerneltrick.maps._softmax import Softmax

__all__ = [
    "T2R",
    "Cosformer",
    "Custom",
    "Elu",
    "Exp",
    "Favor",
    "FeatureMap",
    "Hedgehog",
    "Identity",
    "MapLike",
    "Poly",
    "Relu",
    "Relu2",
    "Softmax",
    "Square",
    "Taylor",
    "digest",
    "draw_projection",
    "feature_shape",
    "get",
    "load",
    "mean_similarity",
    "names",
    "random_features",
    "save",
]
