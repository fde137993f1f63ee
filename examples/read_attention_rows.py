"""Which tokens does a token look at? Rows of the attention matrix, without the whole matrix.

Linear attention never computes its n×n weights, but they exist: A[i, j] = φ(qᵢ)·φ(kⱼ) / φ(qᵢ)·Zᵢ.
One row costs O(n). So you can read the rows of a few tokens even if the whole matrix would not fit
in memory.

    python examples/read_attention_rows.py
    python examples/read_attention_rows.py --tokens 500 --map favor:features=256   # finds less
"""

from __future__ import annotations

import argparse

import numpy as np

import kerneltrick as kt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--map", default="taylor:order=2", help="elu, favor:features=256, …")
    given = parser.parse_args()
    if given.tokens < 10 or given.width < 1:
        parser.error("tokens must be at least 10 and width at least 1")

    # A needle in a haystack: two tokens get a query that points at the key of an earlier token.
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, given.tokens, given.width))
    wanted = {given.tokens // 2: given.tokens // 5, given.tokens - 1: 7}
    for query, key in wanted.items():
        q[query] = 2.5 * k[key]

    out = kt.linear_attention(q, k, v, given.map, causal=True)
    rows = kt.attention_weights(q, k, given.map, causal=True, rows=list(wanted))

    print(f"map {given.map}, {given.tokens:,} tokens")
    print(
        f"two rows take {rows.nbytes / 1e6:.3f} MB, the matrix would take "
        f"{8 * given.tokens**2 / 1e6:,.0f} MB"
    )
    for (query, key), row in zip(wanted.items(), rows, strict=True):
        best = np.argsort(row)[::-1][:3]
        print(f"\ntoken {query} was made to look at token {key}; its largest weights:")
        for j in best:
            print(f"  token {j:6}  {row[j]:.5f}  {row[j] * (query + 1):8.1f} times the average")
        place = int(np.sum(row > row[key])) + 1
        print(f"  token {key} has place {place} of {query + 1}; the row adds up to {row.sum():.6f}")
        assert np.allclose(row @ v, out[query])
    print("\nrow times V equals the output of linear_attention: True")


if __name__ == "__main__":
    main()
