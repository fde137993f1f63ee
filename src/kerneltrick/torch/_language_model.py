"""A small, readable language model: an embedding, blocks, and logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick import maps
from kerneltrick.attention import Dial, check_count
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._mixer import refuse_trace
from kerneltrick.torch.mixers import make

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
Mixer: TypeAlias = Callable[[int], nn.Module]  # of the number of a layer


class MixerBlock(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Mix tokens, then transform each one: x + mixer(norm(x)), then x + MLP(norm(x))."""

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
    """Predicts the next token: tokens (batch, n) → logits (batch, n, vocabulary).

    `mixer` can be
    - a map for `Attention`, such as "elu", "hedgehog@window=64" or "softmax"; the weights of a
      learned map are trained with the model,
    - one of `kerneltrick.torch.mixers`, such as "deltanet" or "ssd:state_dim=16",
    - several of these joined by +, which alternate layer by layer: "based+softmax@window=64";
      *N repeats one for N layers: "gated_deltanet*3+softmax",
    - a map of one's own: a `FeatureMap`, or a torch.nn.Module x → φ(x). All layers share the module
      and its parameters, which are trained with the model,
    - a function that takes the number of a layer, as `lambda layer: Attention(hidden_size,
      num_heads, feature_map=Phi())`, and returns a module with
      `forward(x, state=None, *, mask=None, segment_ids=None, cu_seqlens=None)` → (y, state).

    Everything else is the same for all mixers: LayerNorm before each half of a block, an MLP four
    times as wide as the model, rotary positions in `Attention`, one matrix for embedding and
    logits, and initial weights N(0, 0.02²). With a `group` of torch.distributed, every rank passes
    its own part of `tokens` (`Attention.spread`).

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
        mixer: str | Dial | maps.FeatureMap | nn.Module | Mixer = "elu",
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
        turns: list[Any] = pattern(mixer) if isinstance(mixer, str) else [mixer]
        if len(turns) > num_layers:
            raise ValueError(
                f"{mixer!r} names {len(turns)} mixers, one for each layer in turn, but num_layers "
                f"is {num_layers}"
            )

        def named(layer: int) -> nn.Module:
            chosen = turns[layer % len(turns)]
            return make(chosen, hidden_size, num_heads, layer_idx=layer, rotary=True)

        kinds = (str, Dial, maps.FeatureMap, nn.Module)
        own: Mixer = named if isinstance(mixer, kinds) else mixer
        self.embedding = nn.Embedding(vocabulary, hidden_size)
        self.blocks = nn.ModuleList(MixerBlock(hidden_size, own(i)) for i in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size, bias=False)
        maps_of_layers = [x for x in self.modules() if isinstance(x, LearnedMap)]
        apart = {part for x in maps_of_layers for part in x.modules()}
        for name, part in self.named_modules():
            # Maps and other modules keep their own start.
            if isinstance(part, (nn.Embedding, nn.Linear)) and part not in apart:
                # Each block adds to x twice; this keeps the sum from growing with their number.
                adds = name.endswith((".down", ".o_proj"))
                nn.init.normal_(part.weight, std=0.02 / ((2 * num_layers) ** 0.5 if adds else 1.0))
        if group is not None:
            self.spread(group)

    def spread(self, group: Any) -> None:
        """Split sequences over the ranks of `group`; None switches back to whole sequences."""
        for block in self.blocks:
            block.mixer.spread(group)

    def forward(
        self, tokens: Tensor, state: tuple[Any, ...] | None = None, **which: Any
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Return logits (batch, n, vocabulary) and the new state; tokens continue from `state`.

        `which` can hold mask, segment_ids or cu_seqlens, as the mixers take them.
        """
        refuse_trace(self)
        before = (None,) * len(self.blocks) if state is None else state
        if len(before) != len(self.blocks):
            raise ValueError(
                f"the state has {len(before)} layers, but the model has {len(self.blocks)}"
            )
        x, after = self.embedding(tokens), []
        for block, layer_state in zip(self.blocks, before, strict=True):
            x, layer_state = block(x, layer_state, **which)
            after.append(layer_state)
        return functional.linear(self.norm(x), self.embedding.weight), tuple(after)

    def live(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """A live copy of the state for fast decoding; every token changes it (`Attention.live`)."""
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
        """Sample `length` tokens (batch, length) that follow `tokens` (batch, n ≥ 1).

        The prompt is read in one call; then every token takes one step from the state. Temperature
        0 picks the likeliest token. `top_k` samples only from the k likeliest. `seed` makes the
        result repeatable. `each` is called with every token as soon as it is drawn.
        """
        if tokens.shape[-1] == 0:
            raise ValueError("generate needs at least one token to continue from")
        draw = token_drawer(temperature, top_k, seed, tokens.device)
        made: list[Tensor] = []
        logits, state = self(tokens)
        state = self.live(state)
        for _ in range(length):
            token = draw(logits[:, -1])
            made.append(token)
            if each is not None:
                each(token)
            if len(made) < length:
                logits, state = self(token, state)
        return torch.cat([tokens[:, :0], *made], dim=1)


def token_drawer(
    temperature: float, top_k: int | None, seed: int | None, device: Any
) -> Callable[[Tensor], Tensor]:
    """A function that draws tokens (batch, 1) from scores (batch, vocabulary)."""
    if not 0 <= temperature < math.inf or (top_k is not None and top_k < 1):
        raise ValueError(
            f"generate needs a finite temperature ≥ 0 and top_k ≥ 1, not {temperature}, {top_k}"
        )
    generator = torch.Generator(device)
    generator.seed() if seed is None else generator.manual_seed(seed)

    def draw(scores: Tensor) -> Tensor:
        scores = scores.float()
        if top_k is not None and top_k < scores.shape[-1]:
            least = scores.topk(top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if temperature == 0:
            return scores.argmax(-1, keepdim=True)
        return torch.multinomial(_chances(scores, temperature), 1, generator=generator)

    return draw


def pattern(text: str) -> list[str]:
    """The mixers of the layers in turn.

    >>> pattern("gated_deltanet*3+softmax")
    ['gated_deltanet', 'gated_deltanet', 'gated_deltanet', 'softmax']
    """
    turns = []
    for part in text.split("+"):
        name, star, count = part.partition("*")
        if star and not (count.isascii() and count.isdigit() and int(count)):
            raise ValueError(
                f"{text!r}: the count after * must be a whole number ≥ 1, not {count!r}"
            )
        turns += [name] * (int(count) if star else 1)
    return turns


def _chances(scores: Tensor, temperature: float) -> Tensor:
    """softmax(scores / temperature), also for temperatures at which the quotient overflows."""
    scaled = scores / temperature
    if not scaled.amax(-1).isfinite().all():
        # Differences to the largest score overflow only to −∞, where the probability is 0.
        scaled = (scores - scores.amax(-1, keepdim=True)).double() / temperature
    chances = torch.softmax(scaled, dim=-1).to(scores.dtype)
    if chances.isnan().any():
        raise ValueError("the model's scores are not finite: its weights hold NaN or infinity")
    return chances
