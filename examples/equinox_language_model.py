"""Train a small language model in Equinox whose layers mix tokens by linear attention.

Nothing of kerneltrick knows Equinox: `kt.linear_attention` takes JAX arrays, and is compiled,
differentiated and streamed like any function of JAX's. The model learns to repeat a text, then
continues it one token at a time from a `State`: near tokens by their exact softmax weights, all
others by a feature map, in memory that does not depend on how much it has read.

    pip install equinox
    python examples/equinox_language_model.py
    python examples/equinox_language_model.py --steps 300 --window 16
"""

from __future__ import annotations

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import kerneltrick as kt

TEXT = "the quick brown fox jumps over the lazy dog. "


class Mixer(eqx.Module):
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)
    window: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, window: int, key: Any) -> None:
        first, second = jax.random.split(key)
        self.qkv = eqx.nn.Linear(width, 3 * width, use_bias=False, key=first)
        self.out = eqx.nn.Linear(width, width, use_bias=False, key=second)
        self.heads, self.window = heads, window

    def __call__(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        n, width = x.shape
        parts = jax.vmap(self.qkv)(x).reshape(n, 3, self.heads, width // self.heads)
        q, k, v = jnp.moveaxis(parts, (1, 2), (0, 1))  # each (heads, n, d)
        output, state = kt.linear_attention(
            q, k, v, "elu", causal=True, window=self.window, state=state, return_state=True
        )
        return jax.vmap(self.out)(jnp.moveaxis(output, 0, 1).reshape(n, width)), state


class LanguageModel(eqx.Module):
    embedding: eqx.nn.Embedding
    norms: list[eqx.nn.RMSNorm]
    mixers: list[Mixer]
    head: eqx.nn.Linear

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, window: int, key: Any
    ) -> None:
        first, last, *keys = jax.random.split(key, layers + 2)
        self.embedding = eqx.nn.Embedding(vocabulary, width, key=first)
        self.norms = [eqx.nn.RMSNorm(width) for _ in range(layers)]
        self.mixers = [Mixer(width, heads, window, key) for key in keys]
        self.head = eqx.nn.Linear(width, vocabulary, key=last)

    def __call__(self, tokens: Any, states: Any = None) -> tuple[Any, list[Any]]:
        x, after = jax.vmap(self.embedding)(tokens), []
        for i, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            mixed, state = mixer(jax.vmap(norm)(x), None if states is None else states[i])
            x = x + mixed
            after.append(state)
        return jax.vmap(self.head)(x), after


@eqx.filter_jit
def train_step(model: LanguageModel, tokens: Any, rate: float) -> tuple[Any, LanguageModel]:
    @eqx.filter_value_and_grad
    def loss(model: LanguageModel) -> Any:
        logits, _ = model(tokens[:-1])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[1:, None], -1).mean()

    value, slopes = loss(model)
    changes = jax.tree.map(lambda slope: -rate * slope, slopes)
    return value, eqx.apply_updates(model, changes)


@eqx.filter_jit
def run(model: LanguageModel, tokens: Any, states: Any = None) -> tuple[Any, Any]:
    return model(tokens, states)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.5)
    given = parser.parse_args()
    letters = sorted(set(TEXT))
    tokens = jnp.asarray([letters.index(x) for x in TEXT * 3])
    key = jax.random.PRNGKey(0)
    model = LanguageModel(len(letters), given.width, 4, 2, given.window, key)
    for i in range(given.steps):
        value, model = train_step(model, tokens, given.rate)
        if i % 50 == 0 or i + 1 == given.steps:
            print(f"step {i}: loss {float(value):.3f}", flush=True)
    logits, states = run(model, tokens)
    half = len(TEXT)
    _, middle = run(model, tokens[:half])
    streamed, _ = run(model, tokens[half:], middle)
    print(f"whole and streamed differ by {float(abs(streamed - logits[half:]).max()):.1e}")
    token, made = logits[-1:].argmax(-1), ""
    for _ in range(len(TEXT)):
        made += letters[int(token[0])]
        logits, states = run(model, token, states)
        token = logits[-1:].argmax(-1)
    print(f"continued: {made!r}")
    print(f"letters as in the text: {sum(map(str.__eq__, made, TEXT))} of {len(TEXT)}")


if __name__ == "__main__":
    main()
