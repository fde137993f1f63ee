"""What the compiled core is and how many threads it may use."""

from __future__ import annotations

import operator
from typing import Any, Literal

from kerneltrick.engines._core_call import check_isa, core, missing_core
from kerneltrick.engines._xla_call import unavailable

MOST_THREADS = 1024


def set_num_threads(count: int | None) -> None:
    """How many threads the compiled core may use; results do not depend on it.

    None, as at the beginning, is the first of these that is there: the environment variable
    KERNELTRICK_NUM_THREADS; where PyTorch is loaded, `torch.get_num_threads()` at every call but
    those of JAX arrays; OMP_NUM_THREADS; the cores this process may run on. A call wakes as many of
    them as its work is worth, and none while the machine is too busy for that to pay.

    >>> import kerneltrick as kt
    >>> kt.set_num_threads(2)
    >>> kt.set_num_threads(None)
    """
    try:
        number = 0 if count is None else operator.index(count)
    except TypeError:
        number = -1
    if not (count is None or 1 <= number <= MOST_THREADS) or isinstance(count, bool):
        raise ValueError(
            f"set_num_threads needs a whole number from 1 to {MOST_THREADS}, or None, not {count!r}"
        )
    if core() is not None:
        core().set_threads(number)


def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Print whether the compiled core is there, its instruction set and threads, or return them.

    The instruction sets are those that this machine and build have: `baseline` (SSE2 or NEON),
    `avx2` and `avx512`, compiled from one source. The tests take every one that the
    machine has; AVX-512 has run on processors of AMD and of Intel. KERNELTRICK_ISA=avx2 keeps away
    from it.
    `jax` is "core" where XLA calls the core for JAX arrays on the CPU, or else says why not.

    >>> import kerneltrick as kt
    >>> sorted(kt.show_config(mode="dicts"))
    ['compiled', 'instruction_set', 'instruction_sets', 'jax', 'threads']
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f'mode must be "stdout" or "dicts", not {mode!r}')
    found: dict[str, Any] = {
        "compiled": core() is not None,
        "instruction_set": None,
        "instruction_sets": [],
        "threads": 1,
        "jax": unavailable() or "core",
    }
    if core() is not None:
        check_isa()
        found["instruction_set"] = core().isa()
        found["instruction_sets"] = list(core().isas())
        found["threads"] = core().get_threads()
    if mode == "dicts":
        return found
    if not found["compiled"]:
        print(f"compiled core: none ({missing_core()}); engine auto is chunked")
        return None
    print("compiled core: yes")
    print(f"instruction set: {found['instruction_set']} of {', '.join(found['instruction_sets'])}")
    print(f"threads: {found['threads']}")
    reason = "by XLA" if found["jax"] == "core" else f"no, {found['jax']}"
    print(f"compiled core for JAX arrays on the CPU: {reason}")
    return None
