"""What the layers of a model attend to, also those that have no attention matrix."""

from kerneltrick._install import missing as _missing

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _missing("kerneltrick.inspection needs PyTorch", "torch", error) from None

from kerneltrick.inspection._inspect import InspectionError, inspect
from kerneltrick.inspection._measures import MEASURES, HeadMeasures
from kerneltrick.inspection._result import InspectedLayer, Inspection
from kerneltrick.inspection._source import default_text, load

__all__ = [
    "MEASURES",
    "HeadMeasures",
    "InspectedLayer",
    "Inspection",
    "InspectionError",
    "default_text",
    "inspect",
    "load",
]
