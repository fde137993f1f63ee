"""A language model small enough to read: tokens in, blocks, logits out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import Dial
from kerneltrick.attention._arguments import check_count
from kerneltrick.torch.mixers import make

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
Mixer: TypeAlias = Callable[[int], nn.Module]  # of the number of a layer


class Block(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Tokens look at each other, then each thinks for itself: x + mixer(x), then x + MLP(x)."""

    def __init__(self, hidden_size: int, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(hidden_size, bias=False)
        self.mixer = mixer
        self.mlp_norm = nn.LayerNorm(hidden_size, bias=False)
        self.up = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.down = nn.Linear(4 * hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, state: Any, **tokens: Any) -> tuple[Tensor, Any]:
        y, state = self.mixer(self.mixer_norm(x), state, **tokens)
        x = x + y
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)))), state


class LanguageModel(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Logits of the next token after tokens (batch, n), with any mixer of tokens.

    `mixer` is the map of `Attention`, such as "elu", "hedgehog@window=64" or "softmax", whose
    weights are learned too, the name of one of `kerneltrick.torch.mixers`, such as "deltanet" or
    "ssd:state_dim=16", or several with + between them, which take turns, layer by layer:
    "based+softmax@window=64". Or it is a function of the number of a layer that makes a module with
    `forward(x, state=None, *, mask=None, segment_ids=None, cu_seqlens=None)` → (y, state). All else
    is the same for all of them: LayerNorm before each half of a block, an MLP four times as wide,
    rotary positions in `Attention`, one matrix for embedding and logits, weights N(0, 0.02²).
    With a `group` of torch.distributed, `tokens` are those that a rank has (`Attention.spread`).

    >>> model = LanguageModel(65, mixer="elu@window=16", hidden_size=32, num_layers=2, num_heads=2)
    >>> tokens = torch.randint(65, (1, 100))
    >>> logits, state = model(tokens)
    >>> logits.shape
    torch.Size([1, 100, 65])
    >>> model.generate(tokens, 5, seed=0).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        mixer: str | Dial | Mixer = "elu",
        hidden_size: int = 256,
        num_layers: int = 4,
        num_heads: int = 4,
        group: Any = None,
    ) -> None:
        super().__init__()
        sizes = {
            "vocabulary": vocabulary,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
        }
        for name, value in sizes.items():
            check_count("LanguageModel", name, value, least=1)
        turns: list[Any] = mixer.split("+") if isinstance(mixer, str) else [mixer]
        if len(turns) > num_layers:
            raise ValueError(
                f"{mixer!r} names {len(turns)} mixers, which take turns, but there are "
                f"{num_layers} layers"
            )

        def named(layer: int) -> nn.Module:
            chosen = turns[layer % len(turns)]
            return make(chosen, hidden_size, num_heads, layer_idx=layer, rotary=True)

        own: Mixer = named if isinstance(mixer, (str, Dial)) else mixer
        self.embedding = nn.Embedding(vocabulary, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, own(i)) for i in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size, bias=False)
        for name, part in self.named_modules():
            if isinstance(part, (nn.Embedding, nn.Linear)):  # what else there is starts as it is
                # Each block adds to x twice: so that the sum does not grow with their number.
                adds = name.endswith((".down", ".o_proj"))
                nn.init.normal_(part.weight, std=0.02 / ((2 * num_layers) ** 0.5 if adds else 1.0))
        if group is not None:
            self.spread(group)

    def spread(self, group: Any) -> None:
        """From now on tokens are those that this rank of the group has; None: all of them."""
        for block in self.blocks:
            block.mixer.spread(group)

    def forward(
        self, tokens: Tensor, state: tuple[Any, ...] | None = None, **which: Any
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Logits (batch, n, vocabulary) after the tokens of `state`, and the state after `tokens`.

        `which` are the mask, segment_ids or cu_seqlens of the mixers.
        """
        before = (None,) * len(self.blocks) if state is None else state
        if len(before) != len(self.blocks):
            raise ValueError(
                f"a state of {len(before)} layers, but the model has {len(self.blocks)}"
            )
        x, after = self.embedding(tokens), []
        for block, layer_state in zip(self.blocks, before, strict=True):
            x, layer_state = block(x, layer_state, **which)
            after.append(layer_state)
        return functional.linear(self.norm(x), self.embedding.weight), tuple(after)

    def live(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same state to decode with: faster, and changed by every token (`Attention.live`)."""
        mixers = [block.mixer for block in self.blocks]
        return tuple(
            mixer.live(own) if hasattr(mixer, "live") else own
            for mixer, own in zip(mixers, state, strict=True)
        )

    @torch.no_grad()  # type: ignore[untyped-decorator] # PyTorch's
    def generate(
        self,
        tokens: Tensor,
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
        each: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """`length` tokens (batch, length) that follow `tokens` (batch, n ≥ 1), drawn one by one.

        The prompt is read at once, then every token costs one step from the state. Temperature 0
        takes the likeliest; `top_k` draws among so many. `each` is given every token as it comes.
        """
        if tokens.shape[-1] == 0:
            raise ValueError("generate needs at least one token to go on from")
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise ValueError(
                f"generate needs temperature ≥ 0 and top_k ≥ 1, not {temperature}, {top_k}"
            )
        generator = torch.Generator(tokens.device)
        generator.seed() if seed is None else generator.manual_seed(seed)
        made: list[Tensor] = []
        logits, state = self(tokens)
        state = self.live(state)
        for _ in range(length):
            last = logits[:, -1].float()
            if top_k is not None and top_k < last.shape[-1]:
                least = last.topk(top_k).values[:, -1:]
                last = last.masked_fill(last < least, -torch.inf)
            if temperature == 0:
                token = last.argmax(-1, keepdim=True)
            else:
                chances = torch.softmax(last / temperature, dim=-1)
                token = torch.multinomial(chances, 1, generator=generator)
            made.append(token)
            if each is not None:
                each(token)
            if len(made) < length:
                logits, state = self(token, state)
        return torch.cat([tokens[:, :0], *made], dim=1)
