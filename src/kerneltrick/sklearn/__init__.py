"""Use feature maps and kernels in scikit-learn (extra `sklearn`)."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"kerneltrick.sklearn needs scikit-learn ({error}): pip install 'kerneltrick[sklearn]'"
    ) from None

from kerneltrick.sklearn._features import KernelFeatures
from kerneltrick.sklearn._svm import KernelSVC

__all__ = ["KernelFeatures", "KernelSVC"]
