"""Reading a call of a model's attention function.

Models that use transformers' attention interface look their attention function up by name and call
it with q, k (after rotary, before heads are repeated), v, a scale and a mask. `read_call` finds out
which attention such a call asks for, and refuses what is not softmax(s·QKᵀ)V over a causal or a
full mask. Capture and replacement both read calls with it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch

from kerneltrick.hf._mask import AttentionError, TokenMask, read_mask

PLAIN = (bool, int, float, str, type(None))
TOLERANCE = 1e-3  # how far a layer may be from softmax(s·QKᵀ)V, relative to the largest output
TERMS = {  # keywords of the attention function that change the scores
    "position_bias": "adds a position bias to its scores, which q, k and v do not contain",
    "softcap": "caps its scores, which is not softmax attention",
    "s_aux": "adds learned sinks to its scores, which q, k and v do not contain",
    "sliding_window": "has a sliding window of its own",
}


class AttentionCall(NamedTuple):
    """What one call asks for: softmax(scale · q kᵀ) v, over the tokens that the mask keeps."""

    where: str  # the name of the layer, for messages
    q: Any  # (batch, H_q, n_q, d)
    k: Any  # (batch, H_kv, n_k, d)
    v: Any  # (batch, H_kv, n_k, M)
    scale: float
    tokens: TokenMask


def layer_name(module: Any, number: int | None) -> str:
    """Return what messages call a layer."""
    name = type(module).__name__
    return name if number is None else f"layer {number} ({name})"


def check_terms(where: str, keywords: dict[str, Any], refused: Collection[str]) -> None:
    """Raise AttentionError if the call was given one of the `TERMS` in `refused`."""
    for name in refused:
        if keywords.get(name) is not None:
            raise AttentionError(f"{where} {TERMS[name]}")


def read_call(
    where: str,
    module: Any,
    arrays: tuple[Any, Any, Any],
    mask: Any,
    scaling: float | None,
    is_causal: bool | None,
    keywords: dict[str, Any],
) -> AttentionCall:
    """Return what a call asks for, or raise AttentionError if it is not softmax attention.

    where: the name of the layer.
    arrays: the queries, keys and values.
    mask, scaling, is_causal: the arguments of the attention function. Without a mask, `is_causal`
        decides, and without that, the module.
    keywords: the other arguments of the attention function.
    """
    q, k, v = arrays
    scale = float(q.shape[3] ** -0.5 if scaling is None else scaling)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    if mask is not None and mask.shape[0] == 1:  # one mask for all texts
        mask = mask.expand(q.shape[0], *mask.shape[1:])
    tokens = read_mask(where, mask, q.shape[2], k.shape[2], is_causal)
    error = _formula_error(
        module,
        tuple(x.shape[1] for x in arrays),
        tuple(x.shape[3] for x in arrays),
        q.dtype,
        q.device,
        {**{name: x for name, x in keywords.items() if isinstance(x, PLAIN)}, "scaling": scale},
    )
    if error is not None:
        raise AttentionError(
            f"{where} does not compute softmax(s·QKᵀ)V: its own formula differs by {error:.1e} of "
            "the largest output"
        )
    return AttentionCall(where, q, k, v, scale, tokens)


_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch is not followed
def _formula_error(
    module: Any,
    heads: tuple[int, ...],
    widths: tuple[int, ...],
    dtype: Any,
    device: Any,
    keywords: dict[str, Any],
) -> float | None:
    """Compare the formula in the model's own file with softmax(s·QKᵀ)V, on made-up tokens.

    Return how far they differ, unless they agree or were compared before. torch.compile calls this
    while it compiles, with the values of no tensor.
    """
    own = None if module in _CHECKED else _own_formula(module)
    if own is None:
        return None
    n = 8
    made = []
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        size = head * n * width
        values = torch.arange(size, dtype=torch.float32, device=device) * (number + 1.3)
        made.append(3 * values.sin().reshape(1, head, n, width).to(dtype))
    query, key, value = made
    with torch.no_grad():
        open_mask = query.new_zeros((1, 1, n, n))
        theirs = own(module, *made, open_mask, **{**keywords, "dropout": 0.0})[0]
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1).float() for x in (key, value))
        weights = (query.float() @ key.mT * keywords["scaling"]).softmax(-1)
        ours = (weights @ value).transpose(1, 2)
    rounding = 8 * torch.finfo(theirs.dtype).eps
    error = float((ours - theirs.reshape(ours.shape)).abs().max() / ours.abs().max())
    if not error <= max(TOLERANCE, rounding):
        return error
    _CHECKED.add(module)
    return None


def _own_formula(module: Any) -> Callable[..., Any] | None:
    """Return the plain attention function that the model's own file defines, if there is one."""
    home = sys.modules.get(type(module).__module__)
    own: Callable[..., Any] | None = getattr(home, "eager_attention_forward", None)
    return own
