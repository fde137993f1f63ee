"""Read two halves of a document separately and merge their states: the result equals the whole.

The state of a piece of text is a sum over its tokens. So pieces can be summed on different
machines, at different times, and added up. With a decay, the left sum fades over the length of the
right piece; the state knows by how much.

    python examples/merge_two_halves.py
    python examples/merge_two_halves.py --tokens 100 --map favor:features=64 --decay 0
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np

import kerneltrick as kt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--map", default="elu", help="elu, favor:features=64, taylor:order=2, …")
    parser.add_argument(
        "--decay", type=float, default=0.999, help="decay per token; 0 means no decay"
    )
    given = parser.parse_args()
    if given.tokens < 2 or not 0 <= given.decay <= 1:
        parser.error("tokens must be at least 2, decay between 0 and 1")

    heads, width = 4, 16
    q, k, v = np.random.default_rng(0).standard_normal((3, heads, given.tokens, width))
    log_decay = math.log(given.decay) if given.decay else None
    options = {"causal": True, "log_decay": log_decay, "return_state": True}
    middle = given.tokens // 2

    # The reference: one pass over everything.
    whole, state = kt.linear_attention(q, k, v, given.map, **options)

    # One worker reads the left half.
    left_out, left = kt.linear_attention(
        q[:, :middle], k[:, :middle], v[:, :middle], given.map, **options
    )
    # Another worker reads the right half. It knows only where the left half ends.
    fresh = kt.State.empty(given.map, k[:, :1], v[:, :1], start=middle)
    _, right = kt.linear_attention(
        q[:, middle:], k[:, middle:], v[:, middle:], given.map, state=fresh, **options
    )
    # States can be sent as files.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "right.safetensors"
        right.save(path)
        print(f"the state of the right half as a file: {path.stat().st_size:,} bytes")
        right = kt.State.load(path)

    merged = left.merge(right)
    print(f"left:   tokens {left.start}:{left.stop}")
    print(f"right:  tokens {right.start}:{right.stop}")
    print(f"merged: tokens {merged.start}:{merged.stop}")
    for name in ("U", "Z"):
        # Both are relative to exp(log_scale), which can differ between the two states.
        both = [
            getattr(s, name) * np.exp(s.log_scale).reshape(-1, *[1] * (getattr(s, name).ndim - 1))
            for s in (merged, state)
        ]
        error = np.max(np.abs(both[0] - both[1])) / np.max(np.abs(both[1]))
        print(f"{name} of the merged state and of the whole differ by {error:.0e}, relative")
        assert error < 1e-10

    # The outputs of the right half need the left state, so this reads the right half again.
    right_out = kt.linear_attention(
        q[:, middle:], k[:, middle:], v[:, middle:], given.map, causal=True, log_decay=log_decay,
        state=left,
    )  # fmt: skip
    same = np.allclose(np.concatenate([left_out, right_out], axis=1), whole)
    print(f"outputs of the two halves equal those of the whole: {same}")
    assert same

    # Tokens after the document get the same outputs from either state.
    question = np.random.default_rng(1).standard_normal((3, heads, 5, width))
    after = [
        kt.linear_attention(*question, given.map, causal=True, log_decay=log_decay, state=s)
        for s in (merged, state)
    ]
    same = np.allclose(*after)
    print(f"five tokens that follow get the same outputs from either state: {same}")
    assert same


if __name__ == "__main__":
    main()
