"""A transformer encoder block with linear attention: padding does not change the outputs.

Every token sees every other one (`causal=False`), so attention takes one pass over the keys and one
over the queries: O(n). Sentences of different lengths are padded to form a batch, and `mask` says
which keys are real. The example needs only NumPy.

    python examples/bidirectional_encoder.py
    python examples/bidirectional_encoder.py --width 32 --heads 4 --longest 200
"""

from __future__ import annotations

import argparse

import numpy as np

import kerneltrick as kt


def parameters(width: int, seed: int) -> dict[str, np.ndarray]:
    """The weights of one block, drawn from N(0, 1/fan-in)."""
    rng = np.random.default_rng(seed)
    shapes = dict.fromkeys(("query", "key", "value", "output"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    return {name: rng.standard_normal(s) / np.sqrt(s[0]) for name, s in shapes.items()}


def layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def encoder_block(x: np.ndarray, keep: np.ndarray, weights: dict, heads: int) -> np.ndarray:
    """x (batch, n, width), keep (batch, n) with True for real tokens → (batch, n, width)."""
    batch, n, width = x.shape

    def split(y: np.ndarray) -> np.ndarray:  # (batch, n, width) → (batch, heads, n, width/heads)
        return y.reshape(batch, n, heads, width // heads).swapaxes(1, 2)

    y = layer_norm(x)
    q, k, v = (split(y @ weights[name]) for name in ("query", "key", "value"))
    attended = kt.linear_attention(q, k, v, "elu", mask=keep, query_mask=keep)
    x = x + attended.swapaxes(1, 2).reshape(batch, n, width) @ weights["output"]
    return x + np.maximum(layer_norm(x) @ weights["up"], 0) @ weights["down"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--longest", type=int, default=500, help="tokens of the longest sentence")
    given = parser.parse_args()
    if given.heads < 1 or given.width % given.heads or given.longest < 4:
        parser.error("width must be a multiple of heads, and longest at least 4")

    rng = np.random.default_rng(0)
    lengths = [given.longest, given.longest // 2, 3]
    sentences = [rng.standard_normal((length, given.width)) for length in lengths]
    weights = parameters(given.width, seed=1)

    # One batch, padded at the end. The padding is NaN, so any leak shows at once.
    batch = np.full((len(lengths), given.longest, given.width), np.nan)
    keep = np.zeros((len(lengths), given.longest), dtype=bool)
    for row, sentence in enumerate(sentences):
        batch[row, : len(sentence)] = sentence
        keep[row, : len(sentence)] = True
    together = encoder_block(batch, keep, weights, given.heads)

    print(f"batch {batch.shape}, {keep.size - keep.sum()} of {keep.size} tokens are padding (NaN)")
    for row, sentence in enumerate(sentences):
        whole = np.ones((1, len(sentence)), dtype=bool)
        alone = encoder_block(sentence[None], whole, weights, given.heads)[0]
        difference = np.max(np.abs(together[row, : len(sentence)] - alone))
        print(
            f"sentence of {len(sentence):4} tokens: largest difference between padded and alone "
            f"{difference:.1e}"
        )
        assert difference < 1e-10

    # The mask makes the difference. Without it, padding with zeros acts as a key: elu(0) + 1 = 1.
    careless = encoder_block(np.nan_to_num(batch), np.ones_like(keep), weights, given.heads)
    print(f"the shortest one without a mask: {np.max(np.abs(careless[2, :3] - alone)):.1e}")


if __name__ == "__main__":
    main()
