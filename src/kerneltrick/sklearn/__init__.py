"""Use feature maps and kernels in scikit-learn (extra `sklearn`)."""

from kerneltrick._install import missing as _missing

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise _missing("kerneltrick.sklearn needs scikit-learn", "sklearn", error) from None

from kerneltrick.sklearn._features import KernelFeatures
from kerneltrick.sklearn._svm import KernelSVC

__all__ = ["KernelFeatures", "KernelSVC"]
