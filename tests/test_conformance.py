"""The checks find what is wrong, say so in a program that runs, and pass what is right."""

import contextlib
import copy
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import conformance
from kerneltrick._install import install_command
from kerneltrick.conformance import CHECKS, KINDS, Operator, check


def delta(q, k, v, beta, log_decay, *, mask=None, segment_ids=None, state=None, dtype=None):
    if dtype is not None:
        q, k, v = (x.astype(dtype) for x in (q, k, v))
    options = {"log_decay": log_decay, "mask": mask, "segment_ids": segment_ids, "state": state}
    return kt.delta_rule(q, k, v, beta, return_state=True, **options)


# One mutant for each check: an operator that breaks this promise.


def wrong_scale(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, scale=1.1)


def sees_the_future(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v + 1e-3 * v[:, :, -1:], beta, log_decay=log_decay)


def counts_pads(q, k, v, beta, log_decay, *, mask=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay)


def reads_pads(q, k, v, beta, log_decay, *, mask=None):
    v = v if mask is None else v + 0 * v + np.where(mask[:, None, :, None], 0, v).sum(2)[:, :, None]
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, mask=mask)


def ignores_segments(q, k, v, beta, log_decay, *, segment_ids=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay)


def ignores_state(q, k, v, beta, log_decay, *, state=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, return_state=True)


def mixes_rows(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v - v.mean(0), beta, log_decay=log_decay)


def spreads_nan(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay) + 0 * v.sum()


def swallows_nan(q, k, v, beta, log_decay):
    return np.nan_to_num(kt.delta_rule(q, k, v, beta, log_decay=log_decay))


def masks_keys_only(q, k, v, beta, log_decay, *, mask=None):
    beta = beta if mask is None else np.where(mask[:, None], beta, 0)
    decay = log_decay if mask is None else np.where(mask[:, None], log_decay, 0)
    return kt.delta_rule(q, k, v, beta, log_decay=decay.astype(q.dtype))


def changes_its_state(q, k, v, beta, log_decay, *, state=None):
    given = None if state is None else kt.DeltaState(state)
    o, after = kt.delta_rule(q, k, v, beta, log_decay=log_decay, state=given, return_state=True)
    if state is not None:
        state[...] = after.S
    return o, np.array(after.S)


def rounds_twice(q, k, v, beta, log_decay, *, dtype=None):
    out = kt.delta_rule(q, k, v, beta, log_decay=log_decay)
    return out if dtype is None else np.float32(np.round(out * 64) / 64)


# What needs a kind of input, a size or a second call to be seen.


def causal_scores(q, k):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    return np.where(np.tri(q.shape[2], dtype=bool), score, -np.inf)


def softmax(score):
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def no_maximum(q, k, v):
    weight = np.exp(causal_scores(q, k))
    return weight / weight.sum(-1, keepdims=True) @ v


def zero_times_nan(q, k, v):
    return softmax(causal_scores(q, k)) @ v  # the weights of later tokens are 0


def forgets_beyond_100(q, k, v):
    score = causal_scores(q, k)
    far = np.tri(q.shape[2], k=-100, dtype=bool)
    return softmax(np.where(far, -np.inf, score)) @ v


def third_head_reads_the_second(q, k, v):
    k = k.copy()
    k[:, 2:3] = k[:, 1:2] if k.shape[1] > 2 else k[:, 2:3]
    return softmax(causal_scores(q, k)) @ v


def reads_16_features(q, k, v):
    score = causal_scores(q[..., :16], k[..., :16])
    return softmax(score * np.sqrt(min(q.shape[-1], 16) / q.shape[-1], dtype=q.dtype)) @ v


def heads_in_turn(q, k, v):
    order = np.arange(q.shape[1]) % k.shape[1]
    return softmax(causal_scores(q, k[:, order])) @ v[:, order]


def leaks_into_the_third_row(q, k, v):
    v = v.copy()
    v[2:] += np.float32(1e-3) * v[:1]
    return kt.softmax_attention(q, k, v, causal=True)


def window_is_one_longer(q, k, v):
    return kt.softmax_attention(q, k, v, causal=True, window=17, sinks=2)


def last_key_dropped(q, k, v, log_decay):
    n = q.shape[2]
    if n % 64 > 1:  # of the last chunk, which is shorter
        k = k.copy()
        k[:, :, -1] = 0
    return gated(q, k, v, log_decay)


def gated(q, k, v, log_decay, **options):
    options |= {"causal": True, "normalize": False, "scale": q.shape[-1] ** -0.5}
    return kt.linear_attention(q, k, v, "identity", log_decay=log_decay, **options)


def divides_decays(q, k, v, log_decay):
    total = np.cumsum(log_decay, axis=-1)[..., None]
    return gated(q * np.exp(total), k * np.exp(-total), v, 0 * log_decay)


def subtracts_decays(q, k, v, log_decay):
    total = np.cumsum(log_decay, axis=-1)
    between = np.where(np.tri(q.shape[2], dtype=bool), total[..., None] - total[:, :, None], 0)
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    return np.tril(score * np.exp(between)) @ v


def decays_after_reading(q, k, v, log_decay):
    later = np.concatenate([0 * log_decay[..., :1], log_decay[..., :-1]], axis=-1)
    return gated(q, k, v, later)


def scales_in_place(q, k, v, log_decay):
    q *= np.float32(0.5)
    return gated(2 * q, k, v, log_decay)


def hides_pads_in_place(q, k, v, *, mask=None):
    k[...] = k if mask is None else np.where(mask[:, None, :, None], k, 0)
    return kt.linear_attention(q, k, v, causal=True, mask=mask)


CALLS = [0]


def rarely_wrong(q, k, v, log_decay):
    CALLS[0] += 1
    return gated(q, k, v, log_decay) + np.float32(CALLS[0] % 13 == 0)


def half_state(q, k, v, beta, log_decay, *, state=None):
    state = None if state is None else kt.DeltaState(state.astype(q.dtype))
    o, after = delta(q, k, v, beta, log_decay, state=state)
    return o, np.array(after.S, np.float16)


def float32_state(q, k, v, beta, log_decay, *, state=None):
    state = None if state is None else kt.DeltaState(state.astype(q.dtype))
    o, after = delta(q, k, v, beta, log_decay, state=state)
    return o, np.array(after.S, np.float32)


def scales_twice_in_half(q, k, v, *, dtype=None):
    if dtype is not None:
        q, k, v = (x.astype(dtype) for x in (q, k, v))
    scale = q.shape[-1] ** (-0.5 if dtype is None else -1.0)
    return kt.softmax_attention(q, k, v, causal=True, scale=scale)


def adds_epsilon(q, k, v):
    o, Z = (
        kt.linear_attention(q, k, x, "elu", causal=True, normalize=False)
        for x in (v, np.ones_like(v[..., :1]))
    )
    return o / (Z + np.float32(1e-6))


def keeps_the_normalizer(q, k, v, *, segment_ids=None):
    options = {"causal": True, "normalize": False}
    o = kt.linear_attention(q, k, v, "elu", segment_ids=segment_ids, **options)
    return o / kt.linear_attention(q, k, np.ones_like(v[..., :1]), "elu", **options)


def multiplies_by_the_restart(q, k, v, log_decay, *, segment_ids=None):
    if segment_ids is None:
        return gated(q, k, v, log_decay)
    o = np.zeros_like(v)
    U = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), v.dtype)
    for t in range(q.shape[2]):
        same = segment_ids[:, t] == segment_ids[:, max(t - 1, 0)]
        U = U * (same[:, None] * np.exp(log_decay[:, :, t]))[..., None, None].astype(v.dtype)
        U += k[:, :, t, :, None] * v[:, :, t, None, :]
        o[:, :, t] = (q[:, :, t, None, :] @ U)[..., 0, :] * q.shape[-1] ** -0.5
    return o


def reads_memory_in_order(x, weight, bias):
    memory = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
    return kt.short_convolution(memory.reshape(x.shape), weight, bias)


def turns_the_taps(x, weight, bias):
    return kt.short_convolution(x, weight[:, ::-1], bias)


def needs_a_token(C, B, x, dt, A):
    assert x.size
    return kt.selective_scan(x, dt, A, B, C)


DEFINITION = "equals its definition in float64"
UNCHANGED = "inputs and states stay as they were"
SPLITS = "prefill = decode at any split"
MUTANTS = [
    (DEFINITION, "delta_rule", wrong_scale, {}),
    ("past keeps its bits", "delta_rule", sees_the_future, {}),
    ("padding changes nothing", "delta_rule", counts_pads, {}),
    ("padding changes nothing", "delta_rule", reads_pads, {}),
    ("packed = separate", "delta_rule", ignores_segments, {}),
    (SPLITS, "delta_rule", ignores_state, {}),
    ("batch of one = batch of many", "delta_rule", mixes_rows, {}),
    ("NaN stays where it depends", "delta_rule", spreads_nan, {}),
    ("NaN stays where it depends", "delta_rule", swallows_nan, {}),
    ("masked rows", "delta_rule", masks_keys_only, {}),
    ("rollback", "delta_rule", changes_its_state, {}),
    ("half precision within its error", "delta_rule", rounds_twice, {}),
    (conformance.EXTREME, "softmax_attention", no_maximum, {}),
    ("NaN stays where it depends", "softmax_attention", zero_times_nan, {}),
    (DEFINITION, "softmax_attention", forgets_beyond_100, {}),
    (DEFINITION, "softmax_attention", third_head_reads_the_second, {}),
    (DEFINITION, "softmax_attention", reads_16_features, {}),
    (DEFINITION, "softmax_attention", heads_in_turn, {"grouped": True}),
    ("batch of one = batch of many", "softmax_attention", leaks_into_the_third_row, {}),
    (DEFINITION, "window_attention", window_is_one_longer, {}),
    (DEFINITION, "gated_linear_attention", last_key_dropped, {}),
    (conformance.EXTREME, "gated_linear_attention", divides_decays, {}),
    (conformance.EXTREME, "gated_linear_attention", subtracts_decays, {}),
    (DEFINITION, "gated_linear_attention", decays_after_reading, {}),
    (UNCHANGED, "gated_linear_attention", scales_in_place, {}),
    (UNCHANGED, "linear_attention", hides_pads_in_place, {}),
    (UNCHANGED, "delta_rule", changes_its_state, {}),
    ("repeated calls give the same bits", "gated_linear_attention", rarely_wrong, {}),
    (SPLITS, "delta_rule", half_state, {}),
    (SPLITS, "delta_rule", float32_state, {"floats": ("float32", "float64")}),
    ("half precision within its error", "softmax_attention", scales_twice_in_half, {}),
    (conformance.EXTREME, "linear_attention", adds_epsilon, {}),
    ("packed = separate", "linear_attention", keeps_the_normalizer, {}),
    ("NaN stays where it depends", "gated_linear_attention", multiplies_by_the_restart, {}),
    ("memory layout changes nothing", "short_convolution", reads_memory_in_order, {}),
    (DEFINITION, "short_convolution", turns_the_taps, {}),
    ("no tokens change nothing", "selective_scan", needs_a_token, {}),
]
# What these do wrong shows without extreme values, of which other promises of theirs would break.
ORDINARY = frozenset(CHECKS) - {conformance.EXTREME}


def mutant(run, kind="delta_rule", **more):
    source = f"from test_conformance import {run.__name__}; operator = conformance.Operator("
    source += f"{run.__name__}, {kind!r}{''.join(f', {k}={v!r}' for k, v in more.items())})"
    return Operator(run, kind, promises=ORDINARY, source=source, **more)


def test_there_is_a_mutant_for_every_check_but_those_with_their_own_test():
    assert {*CHECKS} - {name for name, *_ in MUTANTS} == {
        "gradient against float64",
        "state saves and loads",
        "threads change no bit",
    }


@pytest.mark.parametrize(
    ("name", "kind", "run", "more"),
    [pytest.param(*each, id=f"{each[2].__name__}: {each[0]}") for each in MUTANTS],
)
def test_a_broken_promise_is_found_and_its_program_shows_it(name, kind, run, more, monkeypatch):
    operator = mutant(run, kind, **more)
    result = check(operator, checks=[name])[name]
    assert result.status == "failed", str(result)
    assert len(result.reproducer.splitlines()) <= 12, result.reproducer
    fails(result.reproducer, monkeypatch)
    own = {"from kerneltrick import conformance": "", operator.source: "", "print": ""}
    assert all(part in result.again for part in own), result.again
    if kind == "delta_rule" and not more:
        sizes = ("n=1)", "n=2", "n=3")
        assert any(size in result.reproducer for size in sizes), result.reproducer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_definition_itself_passes(kind, seed):
    """Computed in float64 and rounded once: no check takes what is right for wrong."""

    def definition(*arrays):
        return KINDS[kind].definition([*arrays]).astype(arrays[0].dtype)

    promises = frozenset(CHECKS)
    sizes = {"grouped": True, "wide": True, "floats": ("float32", "float64")}
    operator = Operator(definition, kind, exact=True, promises=promises, **sizes)
    found = check(operator, seed=seed)
    assert not found.failures, str(found)


def test_plain_functions_of_numpy_pass():
    """The readable ways to compute them in float32, with a loop or in one product."""

    def one_product(q, k, v):
        return softmax(causal_scores(q, k)) @ v

    def loop(q, k, v, log_decay):
        return multiplies_by_the_restart(q, k, v, log_decay, segment_ids=np.zeros(v.shape[::2][:2]))

    for run, kind in ((one_product, "softmax_attention"), (loop, "gated_linear_attention")):
        found = check(run, kind=kind)
        assert not found.failures, str(found)


def test_threads_that_change_bits_are_found():
    count = [1]

    @contextlib.contextmanager
    def threads(number):
        count[0] = number
        yield
        count[0] = 1

    def run(q, k, v):
        return kt.softmax_attention(q, k, v, causal=True) * np.float32(1 + 1e-6 * (count[0] > 2))

    operator = Operator(run, "softmax_attention", exact=True, threads=threads)
    (result,) = check(operator, checks=["threads change no bit"]).results
    assert (result.status, result.detail[:14]) == ("failed", "with 3 threads")


def fails(program, monkeypatch):
    """Run a reproducer here: it ends in the assertion that it is about."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    lines = [line for line in program.splitlines() if not line.startswith("print(")]
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        exec(compile("\n".join(lines), "reproducer", "exec"), {})


def looks_ahead(q, k, v):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_the_program_of_a_function_on_tensors_shows_its_failure(monkeypatch):
    pytest.importorskip("torch")
    operator = conformance.from_torch(looks_ahead, "softmax_attention")
    (result,) = check(operator, checks=["past keeps its bits"]).results
    assert result.status == "failed"
    fails(result.reproducer, monkeypatch)


def test_what_is_not_promised_is_not_counted_but_said():
    (result,) = check(spreads_nan, kind="delta_rule", checks=["NaN stays where it depends"]).results
    assert (result.status, result.holds) == ("not promised", False)
    (result,) = check(spreads_nan, kind="delta_rule", checks=["rollback"]).results
    assert (result.status, result.holds) == ("not promised", None)
    assert result.detail == "it has no state"


def test_a_wrong_gradient_is_found(monkeypatch):
    torch = pytest.importorskip("torch")

    def detached(q, k, v):
        return kt.linear_attention(q, k.detach(), v, causal=True)

    operator = conformance.from_torch(detached, "linear_attention")
    result = check(operator, checks=["gradient against float64"]).failures[0]
    assert "gradient of k" in result.detail
    right = conformance.find("kerneltrick linear_attention (native, PyTorch)")
    x = conformance.tokens("linear_attention", n=4, d=2)
    wanted = conformance.gradient("linear_attention", x, np.ones_like(x[2]))
    for a, b in zip(right.gradients(x, np.ones_like(x[2])), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert torch


def streamed(q, k, v, beta, log_decay, *, state=None):
    """The delta rule with a history for a state."""

    def step(state, q, k, v, beta, log_decay):
        return delta(q, k, v, beta, log_decay, state=state)

    axes = (-2, -2, -2, -1, -1)
    history = kt.History(step, axes=axes, every=5) if state is None else copy.copy(state)
    return history.read(q, k, v, beta, log_decay), history


def test_a_history_rolls_back():
    def rewind(state, count):
        made = copy.copy(state)
        made.back(count)
        return made

    def careless(state, count):
        return rewind(state, count - 1)

    names = ["rollback", "prefill = decode at any split"]
    own = {"promises": frozenset(names), "exact": True}
    assert not check(Operator(streamed, "delta_rule", rewind=rewind, **own), checks=names).failures
    found = check(Operator(streamed, "delta_rule", rewind=careless, **own), checks=names)
    assert len(found.failures) == 1


def test_a_file_that_loses_bits_is_found():
    def save(state, path):
        np.save(path + ".npy", np.float16(state.S))

    def load(path):
        return kt.DeltaState(np.float32(np.load(path + ".npy")))

    operator = Operator(delta, "delta_rule", save=save, load=load)
    (result,) = check(operator, checks=["state saves and loads"]).results
    assert result.status == "failed"


# The table of promises: every operator, engine and library that go together.
# NumPy has every check, with sizes and values that are drawn; so has PyTorch with the compiled
# core. Other libraries run the same code as NumPy, so that most checks are tried once. XLA compiles
# every shape anew: `make test` tries one.
REPEATED = "repeated calls give the same bits"
LIKE_NUMPY = {REPEATED, "rollback", "batch of one = batch of many", "memory layout changes nothing"}
ONE_SHAPE = [DEFINITION, conformance.EXTREME, "past keeps its bits"]
COMPILED = [*ONE_SHAPE, "gradient against float64", "masked rows"]
TABLE = {known.name: known for known in conformance.known(libraries=True)}


def parts(name):
    engine, _, library = name.partition("(")[2].rstrip(")").partition(", ")
    return engine, library or "NumPy"


def missing(name, kind):
    """The checks that a row has nothing for."""
    engine, library = parts(name)
    states = kind in ("selective_scan", "short_convolution") or library not in ("NumPy", "PyTorch")
    lacks = {
        "gradient against float64": library in ("NumPy", "array-api-strict"),
        "state saves and loads": states,
        "half precision within its error": library in ("JAX", "array-api-strict"),
        "threads change no bit": engine != "native",
    }
    return {check for check, lacking in lacks.items() if lacking}


def row(name):
    """An operator of ours, the checks that `make test` tries on it, and how many draws."""
    known, (engine, library) = TABLE[name], parts(name)
    if not known.installed:
        pytest.skip(f"{name} needs {known.needs}")
    operator, native = known.operator(), engine == "native"
    if library == "NumPy" or (library == "PyTorch" and native):
        return operator, [*CHECKS], 3
    if library == "JAX":
        return operator, COMPILED if native else ONE_SHAPE, 0
    n = 66 if engine in ("chunked", "direct") else 6
    operator = dataclasses.replace(operator, sizes=conformance.TrialSizes(n=n))
    return operator, [check for check in CHECKS if check not in LIKE_NUMPY], 0


@pytest.mark.parametrize("name", TABLE)
def test_our_operators_keep_every_promise(name):
    operator, checks, draws = row(name)
    found = check(operator, checks=checks, draws=draws)
    assert not found.failures, str(found)
    untried = {result.check for result in found.results if result.status == "not promised"}
    assert untried == missing(name, operator.kind) & {*checks}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_our_operators_keep_every_promise_on_more_inputs(name):
    """Seeds that are not the usual one; with XLA one shape, but every check."""
    operator, _, draws = row(name)
    for seed in range(1, 9 if draws else 2):
        found = check(operator, seed=seed, draws=2 * draws)
        assert not found.failures, str(found)


PEERS = [known for known in conformance.known(peers=True) if known.package != "kerneltrick"]
# bfloat16 attention of PyTorch may end the process where a machine announces what it has not.
SAFE = [name for name in CHECKS if "half" not in name]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(
            known, id=known.name, marks=[] if known.package == "torch" else pytest.mark.slow
        )
        for known in PEERS
    ],
)
def test_peers_keep_what_they_promise_and_reproducers_show_the_rest(known, monkeypatch):
    if not known.installed:
        pytest.skip(f"{known.package} is not installed: {known.install}")
    found = check(known.operator(), checks=SAFE)
    # Chunks of theirs subtract running sums of decays, which loses what follows a strong one.
    assert {result.check for result in found.failures} <= {conformance.EXTREME}, str(found)
    for result in found.results:
        if result.reproducer:
            fails(result.reproducer, monkeypatch)


class TestErrors:
    def test_a_wrong_shape_is_refused_by_name(self):
        def flipped(q, k, v):
            return np.swapaxes(v, 1, 2)

        with pytest.raises(conformance.AdapterError, match=r"flipped returned .* shape \(2, 70, 2"):
            check(flipped, kind="softmax_attention")

    def test_a_state_that_is_not_returned_is_refused(self):
        def alone(q, k, v, *, state=None):
            return v

        with pytest.raises(conformance.AdapterError, match=r"must return \(output, state\)"):
            check(alone, kind="softmax_attention")

    def test_a_list_is_refused(self):
        def listed(q, k, v):
            return v.tolist()

        with pytest.raises(conformance.AdapterError, match="must return a NumPy array"):
            check(listed, kind="softmax_attention")

    def test_gradients_of_another_shape_are_refused(self):
        operator = Operator(
            lambda q, k, v: v, "softmax_attention", "odd", gradient=lambda x, c: [c, c]
        )
        with pytest.raises(conformance.AdapterError, match="one array for each input"):
            check(operator, checks=["gradient against float64"])

    def test_an_error_of_the_operator_is_a_failure(self):
        def broken(q, k, v):
            raise RuntimeError("no such kernel")

        found = check(broken, kind="softmax_attention", checks=["past keeps its bits"])
        assert found.failures[0].detail == "it raised RuntimeError: no such kernel"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"kind": "delta"}, "unknown kind of operator 'delta'; did you mean 'delta_rule'"),
            ({}, "check needs kind="),
            ({"kind": "delta_rule", "checks": ["rollbak"]}, "did you mean 'rollback'"),
        ],
    )
    def test_wrong_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            check(delta, **arguments)

    def test_an_unknown_operator(self):
        with pytest.raises(ValueError, match="unknown operator 'torch sdpa'"):
            conformance.find("torch sdpa")

    def test_a_peer_that_is_missing_says_how_to_install_it(self):
        known = conformance.KnownOperator(
            "x", "delta_rule", "fla-core", ("no_such_module",), lambda _: None
        )
        assert not known.installed
        with pytest.raises(ImportError, match=re.escape(install_command("peers"))):
            known.operator()
        assert next(conformance.survey([known]))[1] is None


def cli(*arguments, cwd=None):
    command = [sys.executable, "-m", "kerneltrick", "conform", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_checks_a_function_and_exits_with_1_if_it_fails(tmp_path):
    text = "import kerneltrick as kt\n\ndef rule(q, k, v, *, state=None):\n"
    text += "    return kt.linear_attention(q, k, v, causal=True, return_state=True)\n"
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:rule", "--kind", "linear_attention", "--json", "x.json", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "from mine import rule" in found.stdout
    (row,) = json.loads((tmp_path / "x.json").read_text())["operators"]
    statuses = {result["check"]: result["status"] for result in row["results"]}
    assert statuses["prefill = decode at any split"] == "failed"
    assert statuses["past keeps its bits"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "MODULE:NAME"),
        (["json:dumps"], "--kind"),
        (["--kind", "delta_rule"], "give that too"),
        (["no_such_module:f", "--kind", "delta_rule"], "cannot load"),
        ([":f", "--kind", "delta_rule"], "MODULE:NAME"),
        (["math:pi", "--kind", "delta_rule"], "math:pi is of type float; give a function"),
    ],
)
def test_wrong_arguments_of_the_command(arguments, message):
    found = cli(*arguments)
    assert found.returncode in (1, 2)
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_the_page_has_a_row_for_every_operator_and_none_of_ours_fails():
    page = Path(__file__).parent.parent / "docs" / "howto" / "conformance.md"
    table = page.read_text(encoding="utf-8").partition("conformance:begin")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [cells[0] for cells in rows[1:]] == [
        known.name for known in conformance.known(peers=True)
    ]
    assert rows[0][1:] == [str(i + 1) for i in range(len(CHECKS))]
    assert not [cells for cells in rows if cells[0].startswith("kerneltrick") and "✗" in cells]


@pytest.mark.parametrize("text", ["def f(:\n", "1 / 0\n", "raise SystemExit(3)\n"])
def test_a_module_that_cannot_be_loaded_is_one_line(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:f", "--kind", "delta_rule", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("kerneltrick: cannot load mine:f: ")
    assert found.stderr.count("\n") == 1


def test_the_program_of_an_operator_that_a_module_makes_imports_it(tmp_path):
    text = "from kerneltrick.conformance import Operator\n\n"
    text += "blind = Operator(lambda q, k, v: v, 'softmax_attention', 'blind')\n"
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:blind", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "from mine import blind as operator" in found.stdout
