"""Seeded simulations behind the documentation, as numbers and as pictures (extra `plot`)."""

from kerneltrick._pictures import save_figure
from kerneltrick.simulate._features import FeatureErrors, FeatureRow, features
from kerneltrick.simulate._figures import (
    features_figure,
    moments_figure,
    representer_figure,
    scaling_figure,
    svm_figure,
)
from kerneltrick.simulate._moments import MomentRow, Moments, moments
from kerneltrick.simulate._representer import PathRow, Representer, RidgePoint, representer
from kerneltrick.simulate._scaling import Focus, Scaling, ScalingRow, scaling
from kerneltrick.simulate._svm import Machine, SVMAndAttention, svm

__all__ = [
    "FeatureErrors",
    "FeatureRow",
    "Focus",
    "Machine",
    "MomentRow",
    "Moments",
    "PathRow",
    "Representer",
    "RidgePoint",
    "SVMAndAttention",
    "Scaling",
    "ScalingRow",
    "features",
    "features_figure",
    "moments",
    "moments_figure",
    "representer",
    "representer_figure",
    "save_figure",
    "scaling",
    "scaling_figure",
    "svm",
    "svm_figure",
]
