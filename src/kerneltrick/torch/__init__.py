"""PyTorch layers, fitted maps, language models and deep kernels (extra `torch`)."""

from kerneltrick._install import missing as _missing

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _missing("kerneltrick.torch needs PyTorch", "torch", error) from None

from kerneltrick.torch._attention import Attention
from kerneltrick.torch._deep_kernel import DeepKernel, TrainingRecord
from kerneltrick.torch._fit import Fit, fit
from kerneltrick.torch._fit import layer_file as layer_file
from kerneltrick.torch._hard_attention import HardAttention
from kerneltrick.torch._implied import SUM as SUM
from kerneltrick.torch._implied import ConvolutionOperator as ConvolutionOperator
from kerneltrick.torch._implied import DeltaOperator as DeltaOperator
from kerneltrick.torch._implied import HeadOperator as HeadOperator
from kerneltrick.torch._implied import Implied as Implied
from kerneltrick.torch._implied import LinearOperator as LinearOperator
from kerneltrick.torch._implied import ScanOperator as ScanOperator
from kerneltrick.torch._implied import shared as shared
from kerneltrick.torch._language_model import LanguageModel
from kerneltrick.torch._language_model import token_drawer as token_drawer
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._learned_map import as_tensors as as_tensors
from kerneltrick.torch._learned_map import exported as exported
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch._short_convolution import ShortConvolution
from kerneltrick.torch._snapshot import load_snapshot as load_snapshot
from kerneltrick.torch._snapshot import save_snapshot as save_snapshot
from kerneltrick.torch._train import TrainedModel, TrainingSettings, train
from kerneltrick.torch._vocabulary import Vocabulary

# The public names. Imports of the form `x as x` are for other rooms of the package.
__all__ = [
    "Attention",
    "DeepKernel",
    "Fit",
    "HardAttention",
    "LanguageModel",
    "LearnedMap",
    "MixerState",
    "ShortConvolution",
    "TrainedModel",
    "TrainingRecord",
    "TrainingSettings",
    "Vocabulary",
    "fit",
    "train",
]
