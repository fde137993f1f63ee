"""Train a small language model in Flax NNX whose layers mix tokens by the delta rule.

Nothing of kerneltrick knows Flax: `kt.delta_rule` takes JAX arrays, and is compiled, differentiated
and streamed like any function of JAX's. The model learns to repeat a text, then continues it one
token at a time from a `DeltaState`, whose size does not depend on how much it has read.

    pip install flax
    python examples/flax_language_model.py
    python examples/flax_language_model.py --steps 300 --width 64
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import kerneltrick as kt

TEXT = "the quick brown fox jumps over the lazy dog. "


class Mixer(nnx.Module):
    """Gated delta rule: each head writes, corrects and forgets its own memory."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.gates = nnx.Linear(width, 2 * heads, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        batch, n, width = x.shape
        parts = self.qkv(x).reshape(batch, n, 3, self.heads, width // self.heads)
        q, k, v = jnp.moveaxis(parts, (2, 3), (0, 2))  # each (batch, heads, n, d)
        beta, forget = jnp.moveaxis(self.gates(x).reshape(batch, n, 2, self.heads), (2, 3), (0, 2))
        output, state = kt.delta_rule(
            q,
            k,
            v,
            jax.nn.sigmoid(beta),
            log_decay=-jax.nn.softplus(forget - 3),
            normalize_qk=True,
            state=state,
            return_state=True,
        )
        return self.out(jnp.moveaxis(output, 1, 2).reshape(batch, n, width)), state


class LanguageModel(nnx.Module):
    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, rngs: nnx.Rngs
    ) -> None:
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.depth = layers
        for i in range(layers):
            setattr(self, f"norm{i}", nnx.RMSNorm(width, rngs=rngs))
            setattr(self, f"mixer{i}", Mixer(width, heads, rngs))
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: Any, states: Any = None) -> tuple[Any, list[Any]]:
        x, after = self.embedding(tokens), []
        for i in range(self.depth):
            before = None if states is None else states[i]
            mixed, state = getattr(self, f"mixer{i}")(getattr(self, f"norm{i}")(x), before)
            x = x + mixed
            after.append(state)
        return self.head(x), after


@nnx.jit
def train_step(model: LanguageModel, tokens: Any, rate: Any) -> Any:
    def loss(model: LanguageModel) -> Any:
        logits, _ = model(tokens[:, :-1])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
        return -chosen.mean()

    value, slopes = nnx.value_and_grad(loss)(model)
    weights = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda x, slope: x - rate * slope, weights, slopes))
    return value


@nnx.jit
def run(model: LanguageModel, tokens: Any, states: Any = None) -> tuple[Any, Any]:
    return model(tokens, states)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.5)
    given = parser.parse_args()
    letters = sorted(set(TEXT))
    tokens = jnp.asarray([[letters.index(x) for x in TEXT * 3]])
    model = LanguageModel(len(letters), given.width, 4, 2, nnx.Rngs(0))
    for i in range(given.steps):
        value = train_step(model, tokens, given.rate)
        if i % 50 == 0 or i + 1 == given.steps:
            print(f"step {i}: loss {float(value):.3f}", flush=True)
    logits, states = run(model, tokens)
    half = len(TEXT)
    _, middle = run(model, tokens[:, :half])
    streamed, _ = run(model, tokens[:, half:], middle)
    print(f"whole and streamed differ by {float(abs(streamed - logits[:, half:]).max()):.1e}")
    token, made = logits[:, -1:].argmax(-1), ""
    for _ in range(len(TEXT)):
        made += letters[int(token[0, 0])]
        logits, states = run(model, token, states)
        token = logits[:, -1:].argmax(-1)
    print(f"continued: {made!r}")
    print(f"letters as in the text: {sum(map(str.__eq__, made, TEXT))} of {len(TEXT)}")


if __name__ == "__main__":
    main()
