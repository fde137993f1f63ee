"""Causal attention over a million tokens in constant memory, chunk by chunk with a State.

Each chunk of tokens is generated (or read, in real life), attended to, and forgotten. Only the
state U = Σφ(k)vᵀ and Z = Σφ(k) goes from chunk to chunk. Its size does not depend on the number of
tokens. At the end, the first chunks are compared with one call on all of them.

    python examples/stream_a_million_tokens.py
    python examples/stream_a_million_tokens.py --tokens 20000 --map taylor:order=2 --width 16
"""

from __future__ import annotations

import argparse
import itertools
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

import kerneltrick as kt


def document(tokens: int, chunk: int, heads: int, width: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield q, k and v of one chunk after the other, with the shape (heads, ≤ chunk, width)."""
    rng = np.random.default_rng(0)
    for start in range(0, tokens, chunk):
        shape = (3, heads, min(chunk, tokens - start), width)
        yield tuple(rng.standard_normal(shape, dtype=np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=8192, help="tokens in memory at a time")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=32, help="width of q, k and v per head")
    parser.add_argument("--map", default="elu", help="elu, favor:features=64, taylor:order=2, …")
    given = parser.parse_args()
    if min(given.tokens, given.chunk, given.heads, given.width) < 1:
        parser.error("tokens, chunk, heads and width must be at least 1")

    state, peaks, outputs, first = None, [], 0, []
    tracemalloc.start()
    begin = time.perf_counter()
    for q, k, v in document(given.tokens, given.chunk, given.heads, given.width):
        tracemalloc.reset_peak()
        out, state = kt.linear_attention(
            q, k, v, given.map, causal=True, state=state, return_state=True
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        outputs += out.shape[-2]  # use `out` here: write it, pool it, feed the next layer
        if len(first) < 3:
            first.append(out[:, -1].copy())  # the last token of the first chunks, for the check
    seconds = time.perf_counter() - begin
    tracemalloc.stop()

    size = 4 * given.heads * given.width  # bytes of a token in each of q, k, v and the outputs
    weights = 4 * given.heads * outputs**2
    print(f"map {given.map}, {outputs:,} tokens in chunks of {given.chunk:,}, {seconds:.1f} s")
    print(f"state: tokens {state.start}:{state.stop}, {state.nbytes / 1e3:.1f} kB")
    print(f"peak memory of arrays: {max(peaks) / 1e6:.1f} MB;", end=" ")
    print(f"{max(peaks[:2]) / 1e6:.1f} MB in the first two chunks")
    print(f"all of q, k, v and the outputs would take {4 * outputs * size / 1e6:,.1f} MB,")
    print(f"and the n×n weights of {given.heads} heads {weights / 1e6:,.1f} MB")

    # Compare with one call on the first chunks, which fit in memory.
    some = itertools.islice(
        document(given.tokens, given.chunk, given.heads, given.width), len(first)
    )
    q, k, v = (np.concatenate(parts, axis=1) for parts in zip(*some, strict=True))
    whole = kt.linear_attention(q, k, v, given.map, causal=True)
    ends = [min((i + 1) * given.chunk, given.tokens) - 1 for i in range(len(first))]
    error = np.max(np.abs(np.stack(first, axis=1) - whole[:, ends]))
    print(f"first {q.shape[-2]:,} tokens in one call: largest difference {error:.0e}")
    assert error < 1e-4


if __name__ == "__main__":
    main()
