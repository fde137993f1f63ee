"""The model whose memory is tested: a gated short convolution, then the mixer, nothing else."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import nn
from torch.nn import functional

from kerneltrick.torch import MixerState, ShortConvolution
from kerneltrick.torch.mixers import make

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

TAPS = 3


class RecallModel(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Two layers without MLP or positions: logits at chosen places of tokens (batch, n).

    The first layer is x ← x + conv(x̂) ⊙ W x̂ with three taps, so that the model can attach the
    preceding key to a value. The second is x ← x + mixer(x̂). Here x̂ is the LayerNorm of x.
    Embedding and logits share one matrix.
    """

    def __init__(self, vocabulary: int, mixer: str, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.convolution = ShortConvolution(width, TAPS, silu=False)
        self.gate = nn.Linear(width, width)
        self.mixer = make(mixer, width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Logits (batch, places, vocabulary); other places are not projected to the vocabulary."""
        x, _ = self._read(tokens, None)
        x = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        return functional.linear(self.norms[2](x), self.embedding.weight)

    def numbers(self, tokens: Tensor) -> tuple[int, int]:
        """The number of values in the state after tokens (1, n), and the bytes they take."""
        _, (tail, state) = self._read(tokens, None)
        held = tail.numel() * tail.element_size() + state.nbytes
        return int(tail.numel()) + state.size, int(held)

    def _read(
        self, tokens: Tensor, tail: Tensor | None, state: MixerState | None = None
    ) -> tuple[Tensor, tuple[Tensor, MixerState]]:
        x = self.embedding(tokens)
        first = self.norms[0](x)
        mixed, tail = self.convolution(first, tail)
        x = x + mixed * self.gate(first)
        y, state = self.mixer(self.norms[1](x), state)
        return x + y, (tail, state)
