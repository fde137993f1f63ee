"""JAX: context parallelism, one long sequence split over devices, a contiguous part on each.

>>> from kerneltrick import jax
>>> jax.linear_attention.__name__
'linear_attention'
"""

from kerneltrick.jax._context import delta_rule, linear_attention

__all__ = ["delta_rule", "linear_attention"]
