"""Measure the speed-up by two processes, and the bytes that ranks send.

python benchmarks/scale.py          print the ratios (takes some minutes)
python benchmarks/scale.py --quick  use short sequences and little data, to check that it runs

Context parallelism: causal ELU, forward and backward, on n tokens. One process with one thread is
compared with two processes with one thread each. Comparison: `compare` on the embedded sample, with
one worker process and with two. The two variants take turns, and each ratio compares their total
times. Each turn of the ranks has two steps, and only the second one is timed: the first one takes
new memory from the system.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy and PyTorch are imported, in every process

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import multiprocessing  # noqa: E402

from kerneltrick import analysis, costs  # noqa: E402
from kerneltrick.torch import distributed  # noqa: E402
from kerneltrick.torch.distributed._exchange import Ranks  # noqa: E402

HEADS, WIDTH = 8, 64
TARGETS = {"ranks": 1.6, "jobs": 1.6, "bytes": 1.1}


def rank_main(rank: int, port: int, n: int, turns: int, results: Any) -> None:
    """Run one rank: first rank 0 alone with all tokens, then both ranks with one half each."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    alone = [dist.new_group([i]) for i in range(2)][rank]
    torch.manual_seed(0)
    whole = torch.randn(3, 1, HEADS, n, WIDTH)
    half = whole[..., rank * n // 2 : (rank + 1) * n // 2, :]

    def step(tokens: Any, group: Any) -> float:
        q, k, v = (x.clone().requires_grad_() for x in tokens)
        dist.barrier()
        begun = time.perf_counter()
        if tokens is half or rank == 0:
            distributed.linear_attention(q, k, v, "elu", causal=True, group=group).sum().backward()
        dist.barrier()
        return time.perf_counter() - begun

    def second(tokens: Any, group: Any) -> float:
        """The time of a step that finds the memory of the step before it."""
        step(tokens, group)
        return step(tokens, group)

    one = two = 0.0
    for _ in range(turns):
        one += second(whole, alone)
        two += second(half, None)
    Ranks.sent = 0
    with torch.no_grad():
        distributed.linear_attention(*half, "elu", causal=True)
    if rank == 0:
        results.put((one / turns, two / turns, Ranks.sent))
    dist.destroy_process_group()


def by_ranks(n: int, turns: int) -> bool:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    multiprocessing.spawn(rank_main, (port, n, turns, results), nprocs=2)
    one, two, sent = results.get()
    state = costs.state_bytes("elu", d=WIDTH, values=WIDTH, heads=HEADS)
    share = sent / (2 * state)
    print(f"causal elu, forward and backward, n = {n}, {HEADS} heads of {WIDTH}, float32:")
    print(f"  one rank {one:.3f} s, two ranks {two:.3f} s: ×{one / two:.2f} "
          f"(target ×{TARGETS['ranks']})")  # fmt: skip
    print(f"  each rank sends {sent:,} bytes forward: {share:.2f} of state bytes × ranks "
          f"(target ≤ {TARGETS['bytes']})")  # fmt: skip
    return one / two >= TARGETS["ranks"] and share <= TARGETS["bytes"]


def by_jobs(data: Any, maps: list[str], turns: int) -> bool:
    spent = {1: 0.0, 2: 0.0}
    texts = set()
    with analysis.Processes(1) as one, analysis.Processes(2) as two:
        for turn in range(-1, turns):
            for jobs, executor in ((1, one), (2, two)):
                begun = time.perf_counter()
                found = analysis.compare(data, maps, measure=False, executor=executor)
                if turn >= 0:  # the first turn starts the workers
                    spent[jobs] += time.perf_counter() - begun
                texts.add(found.to_json())
    ratio = spent[1] / spent[2]
    print(f"compare, {len(maps)} maps: one worker {spent[1] / turns:.2f} s, two "
          f"{spent[2] / turns:.2f} s: ×{ratio:.2f} (target ×{TARGETS['jobs']}); "
          f"{'the same' if len(texts) == 1 else 'DIFFERENT'} numbers")  # fmt: skip
    return ratio >= TARGETS["jobs"] and len(texts) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes, to check that it runs"
    )
    quick = parser.parse_args().quick
    data = analysis.sample()
    maps = ["elu", "hedgehog", "favor:features=64", "taylor:order=2", "hedgehog@window=16,sinks=1"]
    if quick:
        data, maps = analysis.synthetic_attention("clustered:n=24,d=4,heads=2"), ["elu"]
    good = [by_ranks(512 if quick else 65536, 1 if quick else 5),
            by_jobs(data, maps, 1 if quick else 3)]  # fmt: skip
    if not quick and not all(good):
        sys.exit(1)


if __name__ == "__main__":
    main()
