"""Feature maps: what φ(x) is, its dimension, its exact kernel, its sign."""

from kerneltrick.maps._base import (
    CoreRecipe,
    Custom,
    FeatureMap,
    Fused,
    digest,
    feature_shape,
    mean_similarity,
)
from kerneltrick.maps._base import one_of as one_of
from kerneltrick.maps._base import seeded as seeded
from kerneltrick.maps._cosformer import Cosformer
from kerneltrick.maps._declared import KernelForm, Monomial, Operations
from kerneltrick.maps._elementwise import Elu, Exp, Identity, Relu, Relu2, Square
from kerneltrick.maps._favor import Favor, draw_projection, random_features
from kerneltrick.maps._file import load, save
from kerneltrick.maps._file import to_fields as to_fields
from kerneltrick.maps._focused import Focused
from kerneltrick.maps._learned import T2R, Hedgehog
from kerneltrick.maps._polynomial import Poly, Taylor
from kerneltrick.maps._registry import MapLike, classes, fused, get, names
from kerneltrick.maps._registry import from_fields as from_fields
from kerneltrick.maps._registry import is_ours as is_ours
from kerneltrick.maps._softmax import Softmax

# The public names. Imports of the form `x as x` are for other rooms of the package.
__all__ = [
    "T2R",
    "CoreRecipe",
    "Cosformer",
    "Custom",
    "Elu",
    "Exp",
    "Favor",
    "FeatureMap",
    "Focused",
    "Fused",
    "Hedgehog",
    "Identity",
    "KernelForm",
    "MapLike",
    "Monomial",
    "Operations",
    "Poly",
    "Relu",
    "Relu2",
    "Softmax",
    "Square",
    "Taylor",
    "classes",
    "digest",
    "draw_projection",
    "feature_shape",
    "fused",
    "get",
    "load",
    "mean_similarity",
    "names",
    "random_features",
    "save",
]
