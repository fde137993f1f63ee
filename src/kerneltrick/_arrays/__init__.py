"""The only room that knows which array library it is in.

Everything above works on a namespace `xp` (the array-API module of NumPy, PyTorch, JAX or any
other conforming library) and asks this room for what the standard lacks: reading values, stopping
gradients, sums wider than the library's floats, and a loop over blocks of tokens.
"""

from kerneltrick._arrays._library import (
    Array,
    Namespace,
    all_finite,
    as_numpy,
    astype,
    autocast,
    clean_blocks_only,
    compute_dtype,
    constant,
    contiguous,
    copied,
    device,
    dtype_name,
    index_dtype,
    is_array,
    is_concrete,
    is_floating,
    is_integer,
    library,
    max_blocks,
    namespace,
    space,
    stop_gradient,
    surroundings,
    swap_axes,
    zeros,
)
from kerneltrick._arrays._scan import jit, register_pytree, scan, static_start, whole
from kerneltrick._arrays._untranslated import tree, untranslated
from kerneltrick._arrays._wide import Wide, wide, wide_add, wide_narrow, wide_zeros

__all__ = [
    "Array",
    "Namespace",
    "Wide",
    "all_finite",
    "as_numpy",
    "astype",
    "autocast",
    "clean_blocks_only",
    "compute_dtype",
    "constant",
    "contiguous",
    "copied",
    "device",
    "dtype_name",
    "index_dtype",
    "is_array",
    "is_concrete",
    "is_floating",
    "is_integer",
    "jit",
    "library",
    "max_blocks",
    "namespace",
    "register_pytree",
    "scan",
    "space",
    "static_start",
    "stop_gradient",
    "surroundings",
    "swap_axes",
    "tree",
    "untranslated",
    "whole",
    "wide",
    "wide_add",
    "wide_narrow",
    "wide_zeros",
    "zeros",
]
