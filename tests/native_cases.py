"""Inputs, maps, cases and gradients that the tests of the compiled engine share."""

import os
import subprocess
import sys
import textwrap

import numpy as np
from oracle import MAPS, SIGNED_FEATURES, make_decay

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.engines import core

ISAS = core().isas() if core() is not None else [""]
LENGTHS = [1, 63, 64, 65, 129, 1000]
FUSED = [text for text in MAPS if text.rpartition("=")[2] != "3" and "degree=3" not in text]


class Shifted(maps.Exp):
    """A user-defined map with a log-scale and a separate function for keys."""

    def phi_key(self, x, positions=None):
        features, log_scale = self.phi_query(x, positions)
        return features + 0.25, log_scale


def custom(x):
    return x * x + 0.25


def learned(kind, heads, d, seed=0, make=np.asarray):
    """Maps with weights: shared by all heads or one set for each, with and without a bias."""
    rng = np.random.default_rng([seed, heads, d])
    p = 7
    one, each = rng.standard_normal((d, p)) / 2, rng.standard_normal((heads, d, p)) / 2
    bias, biases = rng.random(p), rng.random((heads, 1, p))
    weight, offset = {
        "hedgehog": (one, None),
        "hedgehog each": (each, None),
        "hedgehog exp": (one, None),
        "hedgehog exp each": (each, None),
        "hedgehog exp keys": (None, None),
        "hedgehog separate": (one, None),
        "hedgehog separate keys": (each, None),
        "t2r": (one, None),
        "t2r bias": (one, bias),
        "t2r each": (each, bias),
        "t2r each bias": (each, biases),
        "t2r bias each": (one, biases),
    }[kind]
    if kind.startswith("t2r"):
        return maps.T2R(weight=make(weight), bias=None if offset is None else make(offset))
    keys = {
        "hedgehog exp keys": rng.standard_normal((heads, d, d)) / 2,
        "hedgehog separate keys": one,
    }
    return maps.Hedgehog(
        None if weight is None else make(weight),
        "exp" if "exp" in kind else "softmax",
        make(keys[kind]) if kind in keys else None,
        "separate" in kind,
    )


LEARNED = ["hedgehog", "hedgehog each", "hedgehog exp", "hedgehog exp each", "hedgehog exp keys",
           "hedgehog separate", "hedgehog separate keys", "t2r", "t2r bias", "t2r each",
           "t2r each bias", "t2r bias each"]  # fmt: skip
EVERY = [*MAPS, *(f"learned {kind}" for kind in LEARNED), "subclass", "function"]


def make_map(text, heads, d, make=np.asarray):
    if text.startswith("learned "):
        return learned(text.removeprefix("learned "), heads, d, make=make)
    return {"subclass": Shifted(), "function": custom}.get(text, text)


def share(options, text, of):
    """Every second, or third, … of the options for a map, and others for the next one."""
    return list(options)[EVERY.index(text) % of :: of]


def each_isa(monkeypatch):
    """Select each instruction set in turn within one test, so that a slow reference runs once."""
    for name in ISAS:
        monkeypatch.setenv("KERNELTRICK_ISA", name)
        yield name


def inputs(n, d, width, heads=(2, 2), lead=(), n_q=None, dtype=np.float64, seed=0, ones=True):
    rng = np.random.default_rng([seed, n, d, width])
    q = rng.standard_normal((*lead, heads[0], n if n_q is None else n_q, d))
    k, v = (rng.standard_normal((*lead, heads[1], n, w)) for w in (d, width))
    if ones and width:
        v[..., -1] = 1  # without normalisation, this column is the normaliser
    return [x.astype(dtype) for x in (q, k, v)]


def python(code, *arguments, timeout=300, **environment):
    """Run a program in its own process and return its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CASES = {
    # name: (n, n_q, d, M, heads, lead, what else)
    "plain": (65, None, 5, 3, (2, 2), (), ""),
    "one token": (1, None, 5, 3, (2, 2), (), ""),
    "wide values": (63, None, 3, 19, (2, 2), (), "state"),
    "no values": (20, None, 4, 0, (2, 2), (), ""),
    "grouped": (129, None, 8, 8, (6, 2), (2,), "mask"),
    "all": (129, None, 7, 5, (4, 2), (2,), "mask decay segments state"),
    "by feature": (70, None, 6, 2, (2, 2), (), "feature state segments"),
    "raw": (65, None, 9, 1, (2, 1), (), "raw decay mask"),
    "full": (64, 33, 5, 3, (2, 2), (), "full"),
    "full grouped": (129, 70, 7, 9, (4, 2), (2,), "full mask state"),
    "full raw": (1, 65, 4, 4, (2, 2), (), "full raw"),
    "positions": (40, None, 5, 3, (2, 2), (2,), "positions"),
}


def options_of(case, text, dtype=np.float64):
    n, n_q, d, width, heads, lead, what = CASES[case]
    if text in ("learned t2r each bias", "learned t2r bias each"):
        heads = (heads[1], heads[1])  # grouped queries: test_weights_per_head_with_grouped_queries
    q, k, v = inputs(n, d, width, heads, lead, n_q, dtype)
    rng = np.random.default_rng(n + d)
    feature_map = make_map(text, heads[1], d)
    m = maps.get(feature_map).dim(d)
    options = {
        "feature_map": feature_map,
        "causal": "full" not in what,
        "normalize": "raw" not in what and text not in SIGNED_FEATURES,
        "on_zero": "zero",
    }
    if "mask" in what:
        options["mask"] = rng.random((*lead, heads[1], n)) > 0.3
        if "full" in what:
            options["query_mask"] = rng.random((*lead, n_q)) > 0.3
    if "decay" in what or "feature" in what:
        kind = "feature" if "feature" in what else "token"
        options["log_decay"] = make_decay(kind, rng, k, m).astype(dtype)
    if "segments" in what:
        options["segment_ids"] = np.sort(rng.integers(0, 4, (*lead, n)))
    if "positions" in what:
        options["positions"] = np.sort(rng.integers(0, 10**4, (*lead, n)), axis=-1)
    if "state" in what:
        before = inputs(9, d, width, heads, lead, None, dtype, seed=5)
        _, options["state"] = kt.linear_attention(
            *before, feature_map, causal=True, engine="dense", return_state=True, on_zero="zero"
        )
    return (q, k, v), options


def gradients(arrays, text, heads, engine="native", dtype=None, **options):
    """Gradients of a loss that sees the outputs and the state: of q, k, v, and of any weights."""
    import torch

    leaves = [torch.tensor(np.asarray(x, dtype)).requires_grad_() for x in arrays]
    weights = []

    def leaf(x):
        weights.append(torch.tensor(np.asarray(x, dtype)).requires_grad_())
        return weights[-1]

    feature_map = make_map(text, heads, leaves[0].shape[-1], leaf)
    for name in ("mask", "query_mask", "segment_ids", "positions"):
        if options.get(name) is not None:
            options[name] = torch.asarray(options[name])
    if options.get("log_decay") is not None:
        decay = np.maximum(options["log_decay"], np.finfo(dtype or np.float64).min)
        options["log_decay"] = torch.tensor(decay.astype(dtype)).requires_grad_()
        weights.append(options["log_decay"])
    before = options.pop("before", None)
    if before is not None:  # earlier tokens that leave a state, so that the state has a gradient
        before = [torch.tensor(np.asarray(x, dtype)).requires_grad_() for x in before]
        _, options["state"] = kt.linear_attention(
            *before, feature_map, causal=True, engine=engine, return_state=True, on_zero="zero"
        )
        weights += before[1:]
    options.setdefault("on_zero", "zero")
    out, state = kt.linear_attention(
        *leaves, feature_map, engine=engine, return_state=True, **options
    )
    rng = np.random.default_rng(7)

    def weigh(x):
        return (x * torch.asarray(rng.standard_normal(tuple(x.shape)), dtype=x.dtype)).sum()

    scale = torch.exp(state.log_scale)[..., None]
    loss = weigh(out).double() + 0.1 * (weigh(state.U * scale[..., None]) + weigh(state.Z * scale))
    return torch.autograd.grad(loss, [*leaves, *weights])
