"""One sequence on several processes: outputs and gradients equal those of a single process.

Every process reads only its own tokens. The processes exchange one state each, and every process
gets the outputs and gradients that its tokens have in the whole sequence. Needs the extra `torch`.

    torchrun --nproc-per-node 2 examples/context_parallel.py
    torchrun --nproc-per-node 4 examples/context_parallel.py --tokens 100000 --map elu@window=64
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist

import kerneltrick as kt
from kerneltrick.torch import distributed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--map", default="elu", help="elu, favor:features=64, elu@window=64, …")
    given = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node 2 examples/context_parallel.py")

    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()

    # Here every process draws all numbers, for the comparison. A real one would read only its part.
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, given.tokens, 16, dtype=torch.float64)
    first, last = (i * given.tokens // count for i in (rank, rank + 1))
    own = [x[..., first:last, :].clone().requires_grad_() for x in (q, k, v)]

    # The part of this process. States are exchanged once forward, their gradients once backward.
    output = distributed.linear_attention(*own, given.map, causal=True)
    output.sin().sum().backward()

    # The reference: one process with all tokens.
    whole = [x.requires_grad_() for x in (q, k, v)]
    expected = kt.linear_attention(*whole, given.map, causal=True)
    expected.sin().sum().backward()

    error = (output - expected[..., first:last, :]).abs().max().item()
    lost = max(
        (x.grad - y.grad[..., first:last, :]).abs().max().item()
        for x, y in zip(own, whole, strict=True)
    )
    print(
        f"rank {rank} of {count}: tokens {first}:{last}, outputs differ by {error:.0e}, "
        f"gradients by {lost:.0e}",
        flush=True,
    )
    dist.destroy_process_group()
    if max(error, lost) > 1e-8:
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
