"""Kernels whose features are learned by a network, in PyTorch (extra `torch`)."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"kerneltrick.torch needs PyTorch ({error}): pip install 'kerneltrick[torch]'"
    ) from None

from kerneltrick.torch._deep_kernel import DeepKernel, TrainingRecord

__all__ = ["DeepKernel", "TrainingRecord"]
