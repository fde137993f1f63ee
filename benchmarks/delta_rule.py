"""Compare the chunked delta rule with the loop over tokens: python benchmarks/delta_rule.py

Each figure is the least CPU time of several runs, in one process with one thread. Only the ratio
matters.
"""

from __future__ import annotations

import argparse
import time

import torch

import kerneltrick as kt


def by_chunks(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, scale=1, engine="chunked"), None


def token_by_token(q, k, v, beta, log_decay):
    """Run the recurrence literally."""
    S = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    rows = []
    for t in range(q.shape[2]):
        S = log_decay[:, :, t, None, None].exp() * S
        read = (S * k[:, :, t, :, None]).sum(-2)
        S = S + k[:, :, t, :, None] * (beta[:, :, t, None] * (v[:, :, t] - read))[:, :, None]
        rows.append((S * q[:, :, t, :, None]).sum(-2))
    return torch.stack(rows, dim=2), S


def least(call, repeats):
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        call()
        best = min(best, time.process_time() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = (1, given.heads, given.length, given.width)
    q, k, v = torch.randn(3, *shape)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, log_decay = torch.rand(shape[:-1]), -0.1 * torch.rand(shape[:-1])
    given_tensors = (q, k, v, beta, log_decay)
    error = (by_chunks(*given_tensors)[0] - token_by_token(*given_tensors)[0]).abs().max()
    print(f"n = {given.length}, {given.heads} heads of {given.width}")
    print(f"largest difference {float(error):.1e}")

    def trained(function):
        leaves = [x.clone().requires_grad_() for x in given_tensors]
        function(*leaves)[0].square().sum().backward()

    print("                      chunks     tokens    ratio")
    for name, run in (("forward", lambda f: f(*given_tensors)), ("forward + backward", trained)):
        chunks = least(lambda run=run: run(by_chunks), given.repeats)
        tokens = least(lambda run=run: run(token_by_token), max(1, given.repeats // 2))
        print(f"{name:19} {1e3 * chunks:7.0f} ms {1e3 * tokens:7.0f} ms {tokens / chunks:7.1f}")


if __name__ == "__main__":
    main()
