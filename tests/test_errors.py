"""Bad input raises an error that names what was expected and what was passed."""
# ruff: noqa: E501  (one call and its message a line)

import numpy as np
import pytest

import kerneltrick as kt

x = np.ones((2, 3, 10, 4))
BAD_CALLS = {
    "keys of another width": (
        (x, x[..., :3], x), {}, ValueError, r"keys have 3 features but queries have 4; .*\(2, 3, 10, 3\)",
    ),
    "values fewer than keys": ((x, x, x[..., :5, :]), {}, ValueError, "10 keys but 5 values"),
    "causal with fewer queries": (
        (x[..., :5, :], x, x), {"causal": True}, ValueError, "as many queries as keys, .*5 and 10",
    ),
    "batches of another size": ((x[:1], x, x), {}, ValueError, "same leading dimensions"),
    "heads that do not divide": (
        (x, x[:, :2], x[:, :2]), {}, ValueError, "multiple of the number of key/value heads, .*3 and 2",
    ),
    "other number of axes": ((x[0], x, x), {}, ValueError, "same number of axes"),
    "one axis": ((x[0, 0, 0],) * 3, {}, ValueError, r"\(n, d\), but q is \(4,\)"),
    "no features": ((x[..., :0], x[..., :0], x), {}, ValueError, "at least one feature"),
    "integers": ((x.astype(int),) * 3, {}, TypeError, "q has dtype int64"),
    "complex": ((x, x.astype(complex), x), {}, TypeError, "k has dtype complex128"),
    "mixed dtypes": ((x, x.astype(np.float32), x), {}, TypeError, "one dtype.*k: float32"),
    "lists": (([[1.0]],) * 3, {}, TypeError, "q must be an array .* not list"),
    "masked arrays": ((np.ma.masked_array(x),) * 3, {}, TypeError, "masked array"),
    "positions that float64 rounds": (
        (x, x, x), {"positions": np.arange(10) + 2**60}, ValueError, r"positions must be below 2\*\*53",
    ),
    "unknown map": ((x, x, x, "elo"), {}, ValueError, "did you mean 'elu'"),
    "scale of zero": ((x, x, x), {"scale": 0}, ValueError, "scale > 0 and finite, not 0"),
    "negative scale": ((x, x, x), {"scale": -1.5}, ValueError, "not -1.5"),
    "scale of nan": ((x, x, x), {"scale": float("nan")}, ValueError, "not nan"),
    "scale as text": ((x, x, x), {"scale": "big"}, TypeError, "a number > 0, not str"),
    "positive log_decay": (
        (x, x, x), {"causal": True, "log_decay": 0.1}, ValueError, "finite and ≤ 0.*0.1",
    ),
    "infinite log_decay": (
        (x, x, x), {"causal": True, "log_decay": np.full(3, -np.inf)}, ValueError, "finite and ≤ 0",
    ),
    "log_decay of a wrong shape": (
        (x, x, x), {"causal": True, "log_decay": -np.ones(7)}, ValueError, r"\(2, 3, 10\).*not an array \(7,\)",
    ),
    "log_decay of integers": (
        (x, x, x), {"causal": True, "log_decay": -np.ones(3, int)}, TypeError, "floating-point",
    ),
    "log_decay of full attention": ((x, x, x), {"log_decay": -1.0}, ValueError, "needs causal=True"),
    "segments of full attention": (
        (x, x, x), {"segment_ids": np.zeros(10, int)}, ValueError, "segment_ids needs causal=True",
    ),
    "mask of integers": ((x, x, x), {"mask": np.ones(10, int)}, TypeError, "mask must be boolean"),
    "mask of a wrong shape": (
        (x, x, x), {"mask": np.ones((3, 10), bool)}, ValueError, r"\(2, 3, 10\), \(2, 10\) or \(10,\), not \(3, 10\)",
    ),
    "query mask when causal": (
        (x, x, x), {"causal": True, "query_mask": np.ones(10, bool)}, ValueError, "use mask=",
    ),
    "segments as floats": (
        (x, x, x), {"causal": True, "segment_ids": np.zeros(10)}, TypeError, "whole numbers",
    ),
    "positions of a wrong shape": (
        (x, x, x), {"positions": np.arange(9)}, ValueError, r"positions must have one entry per token",
    ),
    "three positions": ((x, x, x), {"positions": (1, 2, 3)}, ValueError, "pair of arrays"),
    "unknown engine": ((x, x, x), {"engine": "warp"}, ValueError, "unknown engine 'warp'"),
    "chunk size of zero": ((x, x, x), {"chunk_size": 0}, ValueError, "≥ 1, not 0"),
    "chunk size as float": ((x, x, x), {"chunk_size": 8.0}, ValueError, "not 8.0"),
    "unknown on_zero": ((x, x, x), {"on_zero": "eps"}, ValueError, "not 'eps'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_is_refused(name):
    arguments, options, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        kt.linear_attention(*arguments, **options)


def test_two_libraries_are_refused_by_name():
    torch = pytest.importorskip("torch")
    t = torch.ones(5, 4)
    a = np.ones((5, 4))
    with pytest.raises(TypeError, match="one library, but got q: torch, k: numpy, v: numpy"):
        kt.linear_attention(t, a, a)
    with pytest.raises(TypeError, match="mask: numpy"):
        kt.linear_attention(t, t, t, mask=np.ones(5, bool))
    with pytest.raises(TypeError, match="log_decay: numpy"):
        kt.linear_attention(t, t, t, causal=True, log_decay=-np.ones(5, np.float32))
    _, state = kt.linear_attention(a, a, a, causal=True, return_state=True)
    with pytest.raises(TypeError, match=r"state holds numpy arrays.*state.to\(q\)"):
        kt.linear_attention(t.double(), t.double(), t.double(), causal=True, state=state)


def test_two_devices_are_refused_by_name():
    torch = pytest.importorskip("torch")
    t = torch.ones(5, 4)
    with pytest.raises(ValueError, match="one device, but got q: cpu, k: meta"):
        kt.linear_attention(t, t.to("meta"), t)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (10, IndexError, "row 10 is outside the 10 queries"),
        ([0, -11], IndexError, "row -11"),
        ([0.5], TypeError, "list of query indices"),
        ([[1]], TypeError, "list of query indices"),
    ],
)
def test_bad_rows_are_refused(rows, error, message):
    with pytest.raises(error, match=message):
        kt.attention_weights(x, x, rows=rows)


def test_other_attention_checks_the_same_way():
    with pytest.raises(ValueError, match="softmax_attention needs scale > 0"):
        kt.softmax_attention(x, x, x, scale=0)
    with pytest.raises(ValueError, match="temperature > 0"):
        kt.softmax_attention(x, x, x, temperature=0)
    with pytest.raises(ValueError, match="substitute must be one of"):
        kt.hard_attention(x, x, x, substitute="sparsemax")
    with pytest.raises(TypeError, match="kernel must be a function"):
        kt.kernel_attention(x, x, x, 3)
    with pytest.raises(ValueError, match=r"similarities \(2, 3, 10, 10\), not \(2, 3, 10\)"):
        kt.kernel_attention(x, x, x, lambda q, k: (q * k).sum(-1))
    with pytest.raises(ValueError, match="keys have 2 features"):
        kt.softmax_attention(x, x[..., :2], x)
