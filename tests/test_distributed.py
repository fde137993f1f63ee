"""Several processes give the outputs, gradients and states of one process."""

import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from oracle import decays_of_any_size
from ranks import Team

import kerneltrick as kt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.xdist_group("distributed")
SHARDS = {1: [23], 2: [9, 14], 3: [0, 20, 3], 4: [7, 2, 0, 14]}
N = 23


def attend(groups, rank, count, inputs, options, cuts, seeded):
    """Return outputs, gradients and state of one rank, or of the whole if there is no group."""
    from kerneltrick.torch import distributed

    if groups is not None and rank >= count:
        return None
    ends = np.cumsum([0, *cuts])
    where = slice(None) if groups is None else slice(ends[rank], ends[rank + 1])
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    q, k, v = (tensors[name][..., where, :] for name in "qkv")
    given = dict(options)
    if "log_decay" in tensors:
        decay = tensors["log_decay"]
        axis = given.pop("decay_axis")
        given["log_decay"] = (
            decay
            if axis is None
            else decay.narrow(axis, ends[rank] if groups is not None else 0, q.shape[-2])
        )
    for name in ("mask", "query_mask", "segment_ids", "positions"):
        if name in given:
            given[name] = torch.tensor(given[name])[..., where]
    if given.pop("first", False) and (groups is None or rank == 0):
        given["state"] = kt.linear_attention(
            *(tensors[f"{name}0"] for name in "qkv"), given.get("feature_map", "elu"),
            causal=True, return_state=True,
            **{x: given[x] for x in ("window", "sinks") if x in given},
        )[1]  # fmt: skip
    if groups is None:
        output, after = kt.linear_attention(q, k, v, **given, return_state=True)
    else:
        output, after = distributed.linear_attention(
            q, k, v, **given, group=groups[count], return_state=True
        )
    weights = torch.tensor(seeded)[..., where, :]
    loss = (output * weights).sum()
    if groups is None or rank == count - 1:
        for part in after.parts:
            loss = loss + (part.U * part.U.detach().cos()).sum() + part.Z.sum()
    loss.backward()
    grads = {
        name: np.zeros(x.shape) if x.grad is None else x.grad.numpy() for name, x in tensors.items()
    }
    state = {}
    for number, part in enumerate(after.parts):
        found = {"U": part.U, "Z": part.Z, "log_scale": part.log_scale, "decay": part.log_decay}
        near = part.near
        if near is not None:
            found |= {"k": torch.where(near.keep, near.k, 0.0), "count": near.count}
            found |= {"kept": near.keep.sum(-2)}
        state |= {f"{name} {number}": x.detach().numpy() for name, x in found.items()}
    return output.detach().numpy(), grads, state, (int(after.start), int(after.stop))


CASES = {
    "causal": {"causal": True},
    "full": {},
    "favor": {"causal": True, "feature_map": "favor:features=6"},
    "full favor": {"feature_map": "favor:features=6"},
    "cosformer": {"causal": True, "feature_map": "cosformer:horizon=64", "on_zero": "zero"},
    "full cosformer": {"feature_map": "cosformer:horizon=64", "on_zero": "zero"},
    "mask": {"causal": True, "mask": "one"},
    "masks": {"mask": "rows", "query_mask": "rows"},
    "window": {"causal": True, "window": 5, "sinks": 2, "mask": "one"},
    "long window": {"causal": True, "window": 18, "feature_map": "taylor:order=2"},
    "softmax": {"causal": True, "feature_map": "softmax", "mask": "rows"},
    "full softmax": {"feature_map": "softmax"},
    "heads that differ": {"causal": True, "window": (None, 5), "mask": "rows", "first": True},
    "full heads that differ": {"window": (4, None), "mask": "rows"},
    "full window": {"window": 4, "mask": "rows"},
    "full sinks": {"window": 3, "sinks": 3, "feature_map": "favor:features=6"},
    "decay": {"causal": True, "log_decay": "token", "normalize": False},
    "head decay": {"causal": True, "log_decay": "head", "mask": "rows"},
    "feature decay": {"causal": True, "log_decay": "feature"},
    "segments": {"causal": True, "segment_ids": "rows", "mask": "one"},
    "segments beside a window": {"causal": True, "segment_ids": "rows", "window": 6, "sinks": 1},
    "segments and decay": {"causal": True, "segment_ids": "one", "log_decay": "token",
                           "feature_map": "favor:features=6"},
    "state": {"causal": True, "first": True},
    "state beside a window": {"causal": True, "first": True, "window": 4, "sinks": 2},
    "full state": {"first": True},
    "positions": {"causal": True, "positions": "one", "feature_map": "cosformer:horizon=99",
                  "on_zero": "zero"},
}  # fmt: skip


def problem(name):
    options = dict(CASES[name])
    rng = np.random.default_rng(7)
    batch, heads, shared, d, width = 2, 4, 2, 3, 5
    inputs = {
        "q": rng.standard_normal((batch, heads, N, d)),
        "k": rng.standard_normal((batch, shared, N, d)),
        "v": rng.standard_normal((batch, shared, N, width)),
    }
    if "first" in options:
        inputs |= {
            "q0": rng.standard_normal((batch, heads, 7, d)),
            "k0": rng.standard_normal((batch, shared, 7, d)),
            "v0": rng.standard_normal((batch, shared, 7, width)),
        }
    for mask in ("mask", "query_mask"):
        if options.get(mask) == "one":
            options[mask] = rng.random(N) < 0.7
        elif options.get(mask) == "rows":
            options[mask] = rng.random((batch, N)) < 0.7
            options[mask][0, [6, 8, 19]] = False  # the last tokens of shards
            options[mask][0, [9, 10, 11, 12, 20, 21, 22]] = True
    if "segment_ids" in options:
        rows = np.array([[0] * 9 + [1] * 6 + [2] * 8, [0] * 3 + [1] * 13 + [3] * 7])
        options["segment_ids"] = rows if options["segment_ids"] == "rows" else rows[0]
    if "positions" in options:
        options["positions"] = np.cumsum(rng.integers(1, 4, N))
    kind = options.pop("log_decay", None)
    shapes = {"token": (batch, shared, N), "head": (shared,), "feature": (batch, shared, N, d)}
    if kind is not None:
        inputs["log_decay"] = decays_of_any_size(rng, shapes[kind], strength=1.0)
        options["decay_axis"] = {"token": 2, "head": None, "feature": 2}[kind]
    return inputs, options, rng.standard_normal((batch, heads, N, width))


@pytest.fixture(scope="module")
def team():
    made = Team(4)
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
def test_several_ranks_are_one(team, name):
    inputs, options, weights = problem(name)
    output, grads, state, bounds = attend(None, 0, 1, inputs, options, [N], weights)
    for count, cuts in SHARDS.items():
        found = team.ask(attend, count, inputs, options, cuts, weights)[:count]
        close = {"rtol": 0, "atol": 1e-10}
        np.testing.assert_allclose(
            np.concatenate([x[0] for x in found], -2), output, **close, err_msg=str(count)
        )
        for key, expected in grads.items():
            total = sum(x[1][key] for x in found)
            np.testing.assert_allclose(total, expected, **close, err_msg=f"{count} {key}")
        for key, expected in state.items():
            other = found[-1][2][key]
            assert other.shape == expected.shape
            near = close | {"rtol": 1e-14 if key.startswith("decay") else 0}  # sums of any size
            np.testing.assert_allclose(other, expected, **near, err_msg=f"{count} {key}")
        assert found[-1][3] == bounds
    assert all(math.isfinite(x) for x in output.ravel())


def states_too(groups, rank, cuts, twice):
    """The gradients of one process and of ranks, if the state after every rank has one too."""
    from kerneltrick.torch import distributed

    if rank >= len(cuts):
        return None
    inputs, _, weights = problem("causal")
    weights = torch.tensor(weights)
    ends, found = np.cumsum([0, *cuts]), []
    for group in (None, groups[len(cuts)]):
        given = [torch.tensor(inputs[name], requires_grad=True) for name in "qkv"]
        state, loss = None, 0.0
        for i in range(len(cuts)):
            if group is not None and i != rank:
                continue
            where = slice(ends[i], ends[i + 1])
            own = [x[..., where, :] for x in given]
            if group is None:
                output, state = kt.linear_attention(
                    *own, causal=True, state=state, return_state=True
                )
            else:
                output, state = distributed.linear_attention(
                    *own, causal=True, group=group, return_state=True
                )
            loss = loss + (output * weights[..., where, :]).sum() + (i + 1) * state.U.sin().sum()
        for _ in range(2 if twice else 1):
            loss.backward(retain_graph=twice)
        found.append([x.grad.numpy() for x in given])
    return found


def test_the_state_after_every_rank_has_its_gradient(team):
    for twice in (False, True):
        found = team.ask(states_too, [9, 0, 11, 3], twice)
        for number, expected in enumerate(found[0][0]):
            total = sum(ranks[number] for _, ranks in found)
            np.testing.assert_allclose(total, expected, rtol=0, atol=1e-10)


def learn_a_state(groups, rank, kind):
    """The gradient of the state alone, through three ranks whose outputs have no gradient."""
    from kerneltrick.torch.mixers import make

    if rank >= 3:
        return None
    torch.manual_seed(0)
    made = make(kind, 8, 2).double().requires_grad_(False)
    x = torch.randn(1, 6, 8).double()
    _, state = made(torch.randn(1, 2, 8).double())
    memory = state.memory
    learned = memory.tensor if hasattr(memory, "tensor") else memory.sums.hi
    learned.requires_grad_()
    made(x, state)[0].square().sum().backward()
    expected, learned.grad = learned.grad, None
    made.spread(groups[3])
    own = slice(2 * rank, 2 * rank + 2)
    made(x[:, own], None if rank else state)[0].square().sum().backward()
    return None if rank else float((learned.grad - expected).abs().max() / expected.abs().max())


def test_a_state_that_alone_is_learned_has_the_gradient_of_all_ranks(team):
    for kind in ("elu", "deltanet"):
        assert team.ask(learn_a_state, kind)[0] < 1e-10, kind


def ask(groups, rank, count, kind, asked):
    """The gradients that a rank gets if it asks for some tensors only; None: it calls backward."""
    from kerneltrick.torch import distributed
    from kerneltrick.torch.mixers import make

    if rank >= count:
        return None
    torch.manual_seed(rank)
    own, heads = 4 + rank, 2
    tensors = {
        name: torch.randn(1, heads, own, 4).double().requires_grad_(rank not in QUIET.get(kind, ()))
        for name in "qkv"
    }
    torch.manual_seed(9)
    if kind in MAPS:
        options = {"causal": True} | MAPS[kind]
        if kind == "decay":
            tensors["log_decay"] = options["log_decay"] = (-torch.rand(2).double()).requires_grad_()
        if kind == "hedgehog":
            tensors["weight"] = torch.randn(4, 4).double().requires_grad_()
            tensors["gain"] = torch.randn(2).double().requires_grad_()
            options["feature_map"] = kt.maps.Hedgehog(tensors["weight"])
            options["far"] = kt.Far(tensors["gain"])
        if kind == "function":
            weight = tensors["weight"] = torch.randn(4, 6).double().requires_grad_()
            options["feature_map"] = lambda x: torch.exp(x @ weight / 4)
        if kind == "state":
            first = torch.randn(3, 1, 2, 3, 4).double()
            state = kt.linear_attention(*first, causal=True, return_state=True)[1]
            tensors["state"] = state.sums.hi.requires_grad_()
            options["state"] = None if rank else state
        q, k, v = (tensors[name] for name in "qkv")
        output = distributed.linear_attention(q, k, v, **options, group=groups[count])
    else:
        made = make(kind, 8, heads, group=groups[count]).double()
        tensors = {"x": torch.randn(1, own, 8).double().requires_grad_()}
        tensors |= dict(made.named_parameters())
        output, _ = made(tensors["x"])
    loss = (output * torch.sin(torch.arange(output.numel())).reshape(output.shape)).sum()
    if asked is None:
        loss.backward()
        return {name: None if x.grad is None else x.grad.numpy() for name, x in tensors.items()}
    wanted = [tensors[name] for name in asked]
    found = torch.autograd.grad(loss, wanted)
    assert all(x.grad is None for x in tensors.values())
    return {name: x.numpy() for name, x in zip(asked, found, strict=True)}


MAPS = {
    "elu": {},
    "only the first is learned": {},
    "full": {"causal": False},
    "full window": {"causal": False, "window": 3, "sinks": 1},
    "decay": {},
    "hedgehog": {"window": 3},
    "function": {},
    "state": {},
}
QUIET = {"only the first is learned": (1, 2), "function": (0, 1, 2)}
ASKED = [  # with two ranks, then with three, and so on
    ("elu", [["k"], ["q"], ["v"]]),
    ("elu", [["q"], None, None]),
    ("elu", [None, ["q"]]),
    ("elu", [["q"], ["q"], ["q", "v"]]),
    ("full", [["q"], None]),
    ("only the first is learned", [["v"], None, None]),
    ("decay", [["log_decay"], ["log_decay"]]),
    ("full window", [["v"], ["q"], ["k"]]),
    ("function", [["weight"], ["weight"]]),
    ("hedgehog", [["gain"], ["weight"], ["q"]]),
    ("elu@window=3", [["o_proj.weight"], ["v_proj.weight"]]),
    ("state", [["state"], ["q"], ["v"]]),
    ("rwkv", [["x"], ["bonus"]]),
    ("gla:short_convolution=3", [["gate.weight"], ["x"], ["decay_up.weight"]]),
    ("gated_deltanet", [["A_log"], None]),
    ("ssd:state_dim=4", [["D"], ["in_proj.weight"], ["x"]]),
    ("hyena:length=5", [["o_proj.weight"], ["own"]]),
    ("mamba:state_dim=4", [["D"], ["A_log"], ["x"]]),
    ("retention", [["x"], ["x"]]),
    ("deltanet", [["x"], ["o_proj.weight"], ["beta_proj.weight"]]),
]


def test_each_rank_gets_the_gradients_that_it_asks_for(team):
    """Whatever it asks for, with torch.autograd.grad, it takes part in what others wait for."""
    for i, (kind, asked) in enumerate(ASKED):
        count = 2 + i % 2
        whole = team.ask(ask, count, kind, None)[:count]
        found = team.ask(ask_each, count, kind, asked)[:count]
        for rank in range(count):
            for name, x in found[rank].items():
                expected, which = whole[rank][name], f"{kind} {name} of rank {rank}"
                assert (x is None) == (expected is None), which
                if x is not None:
                    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12, err_msg=which)
                    assert expected.any(), which


def ask_each(groups, rank, count, kind, asked):
    return ask(groups, rank, count, kind, asked[rank] if rank < count else None)


def other_shapes(groups, rank, lead, keys, options):
    """Return how much the outputs and the last state of three ranks differ from those of one."""
    from kerneltrick.torch import distributed

    if rank >= 3:
        return 0.0
    torch.manual_seed(0)
    q, k, v = (torch.randn(*lead, n, 4).double() for n in (17, keys, keys))
    options = dict(options)
    output, state = kt.linear_attention(q, k, v, **options, return_state=True)
    ends = {17: (0, 8, 10, 17), 9: (0, 4, 4, 9)}
    queries, own = (slice(*ends[n][rank : rank + 2]) for n in (17, keys))
    if "segment_ids" in options:
        options["segment_ids"] = options["segment_ids"][own]
    found, after = distributed.linear_attention(
        q[..., queries, :], k[..., own, :], v[..., own, :], **options, group=groups[3],
        return_state=True,
    )  # fmt: skip
    error = float((found - output[..., queries, :]).abs().max())
    return max(error, float((after.U - state.U).abs().max())) if rank == 2 else error


def test_other_shapes_too(team):
    """Arrays without heads, and full attention with any number of queries."""
    ids = torch.tensor([0] * 5 + [1] * 7 + [2] * 5)
    for lead, keys, options in (
        ((), 17, {"causal": True, "window": 3, "sinks": 1, "segment_ids": ids}),
        ((), 17, {"window": 3, "sinks": 1}),
        ((2, 2), 9, {"feature_map": "favor:features=5"}),
        ((2, 2), 9, {"window": 40}),
    ):
        assert max(team.ask(other_shapes, lead, keys, options)) < 1e-10, options


def test_a_rank_sends_the_bytes_that_are_counted_on_paper(team):
    """Each rank sends a state to each other rank and a few numbers. Real states are larger."""
    from kerneltrick import costs

    inputs, _, _ = problem("causal")
    sizes = {"d": 3, "values": 5, "heads": 2, "batch": 2}
    for text, count, messages in (
        ("elu", 2, 1),
        ("favor:features=6", 4, 1),
        ("elu@window=4,sinks=2", 4, 1),
        ("elu@window=4+7,sinks=2", 2, 2),
    ):
        state = costs.state_bytes(text, number_bytes=8, **sizes)
        counted = costs.context_parallel(text, count, n=N, number_bytes=8, **sizes).sent
        assert counted == (count - 1) * (state + messages * 56), text
        for sent in team.ask(count_bytes, count, inputs, text)[:count]:
            assert sent == counted, text


def count_bytes(groups, rank, count, inputs, text):
    from kerneltrick.torch import distributed
    from kerneltrick.torch.distributed._exchange import Ranks

    if rank >= count:
        return 0
    where = slice(rank * N // count, (rank + 1) * N // count)
    q, k, v = (torch.tensor(inputs[name])[..., where, :] for name in "qkv")
    Ranks.sent = 0
    distributed.linear_attention(q, k, v, text, causal=True, group=groups[count])
    return Ranks.sent


def different(groups, rank, which):
    from kerneltrick.torch import Attention, distributed

    x = torch.ones(1, 2, 3, 4, dtype=torch.float64)
    options = {"causal": True, "feature_map": "elu", "window": 0, "scale": 1.0}
    other = {"feature_map": "relu", "window": 3, "scale": 2.0, "causal": False}
    if which in ("far", "gain", "unit"):
        options["window"] = 2
        gain = torch.tensor([1.0, 2.0 + rank]).double()
        options["far"] = {"far": 1.0 + rank, "gain": gain, "unit": kt.Far(0.5, rank == 1)}[which]
    if which == "log_decay":
        options["log_decay"] = torch.tensor([-1.0, -2.0 - rank]).double()
    if rank == 1 and which in other:
        options[which] = other[which]
    if rank == 1 and which == "dtype":
        x = x.float()
    if rank == 1 and which == "state":
        options["state"] = kt.linear_attention(x, x, x, causal=True, return_state=True)[1]
    if which in ("gradients", "layer"):
        torch.set_grad_enabled(rank == 0)
        x.requires_grad_(rank == 0)
    try:
        if which == "layer":
            Attention(4, 2, group=groups[2]).double()(x[0])
        distributed.linear_attention(x, x, x, **options, group=groups[2])
    finally:
        torch.set_grad_enabled(True)


def test_ranks_that_call_for_different_things_are_refused_by_all(team):
    for which, words in (
        ("feature_map", "rank 0 has map elu, rank 1 has map relu"),
        ("window", "rank 0 has map elu, rank 1 has map elu@window=3"),
        ("scale", "rank 0 has scale 1.0, rank 1 has scale 2.0"),
        ("causal", "rank 0 has causal True, rank 1 has causal False"),
        ("dtype", "torch.float64), rank 1 has q (1, 2, 'n', 4, torch.float32)"),
        ("far", "rank 0 has far gain=1.0, relative=False, rank 1 has far gain=2.0"),
        ("gain", "rank 0 has far gain=sha256-"),
        ("unit", "far gain=0.5, relative=False, rank 1 has far gain=0.5, relative=True"),
        ("log_decay", "rank 0 has log_decay tensor (2,) of sha256-"),
        ("gradients", "rank 0 computes gradients, but they are switched off on rank 1"),
        ("layer", "rank 0 computes gradients, but they are switched off on rank 1"),
        ("state", "give it to rank 0, not to [1]"),
    ):
        for good, (kind, said, _) in team.answers(different, which, ranks=[0, 1]):
            assert (good, kind) == (False, "ValueError"), which
            assert words in said


def layer(groups, rank, count, cuts, kind, plain):
    """Run a layer after a state, over ranks or in one process; with masks unless `plain`."""
    from kerneltrick.torch import Attention
    from kerneltrick.torch.mixers import make

    if groups is not None and rank >= count:
        return None
    torch.manual_seed(0)
    own = {"rotary": True, "output_gate": True, "window": 3, "num_kv_heads": 1}
    group = None if groups is None else groups[count]
    if kind in LAYERS:
        made = Attention(8, 2, feature_map="elu", **own, **LAYERS[kind], group=group)
    else:
        made = make(kind, 8, 2, group=group)
    made = made.double()
    causal = kind != "full attention"
    x0, x = torch.randn(2, 5, 8).double(), torch.randn(2, N, 8).double().requires_grad_()
    mask, mask0 = torch.rand(2, N) < 0.8, torch.rand(2, 5) < 0.8
    ids = torch.tensor([[0] * 9 + [1] * 6 + [0] * 8, [0] * 3 + [1] * 13 + [3] * 7])
    ends = np.cumsum([0, *cuts])
    where = slice(None) if groups is None else slice(ends[rank], ends[rank + 1])
    tokens, state = {}, None
    if not plain:
        tokens = {"mask": mask[:, where]} | ({"segment_ids": ids[:, where]} if causal else {})
    if causal and rank == 0:
        made.spread(None)
        _, state = made(x0, mask=None if plain else mask0)
        made.spread(group)
    y, after = made(x[:, where], state, **tokens)
    loss = (y * torch.sin(torch.arange(N * 8.0).reshape(N, 8)[where]).double()).sum()
    memory = after.memory
    parts = [memory.tensor] if hasattr(memory, "tensor") else [memory.U, memory.Z]
    parts += [] if after.tail is None else [after.tail]
    if groups is None or rank == count - 1:
        loss = loss + sum(part.sin().sum() for part in parts)
    loss.backward()
    grads = {
        name: np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        for name, p in [("x", x), *made.named_parameters()]
    }
    counted = None if after.count is None else after.count.numpy()
    return y.detach().numpy(), grads, [x.detach().numpy() for x in parts], (after.stop, counted)


LAYERS = {
    "attention": {},
    "attention after a convolution": {"short_convolution": 4},
    "full attention": {"causal": False, "short_convolution": 3},
}
MIXERS = [
    "based:short_convolution=3", "retention", "gla:short_convolution=4", "ssd:state_dim=4", "rwkv",
    "mamba:state_dim=4",
    "deltanet", "deltanet:short_convolution=0", "gated_deltanet", "hyena:length=11",
    "hyena:length=40", "power_retention:head_dim=3", "mesa:steps=4",
    "gated_deltanet:num_key_heads=1", "kda", "gated_deltanet2", "comba", "rwkv7", "deltaproduct",
]  # fmt: skip


def _same_layer(team, kind, plain, *shards):
    y, grads, state, stop = layer(None, 0, 1, [N], kind, plain)
    close = {"rtol": 0, "atol": 1e-10}
    for cuts in shards:
        ranks = len(cuts)
        found = team.ask(layer, ranks, cuts, kind, plain)[:ranks]
        np.testing.assert_allclose(np.concatenate([x[0] for x in found], 1), y, **close)
        for name, expected in grads.items():
            total = sum(x[1][name] for x in found)
            np.testing.assert_allclose(total, expected, **close, err_msg=name)
        for other, expected in zip(found[-1][2], state, strict=True):
            if kind.startswith("hyena"):  # which may have zero tokens in front
                rows = min(other.shape[1], expected.shape[1])
                assert not other[:, :-rows].any()
                assert not expected[:, :-rows].any()
                other, expected = other[:, -rows:], expected[:, -rows:]
            np.testing.assert_allclose(other, expected, **close)
        np.testing.assert_equal(found[-1][3], stop)


@pytest.mark.parametrize("kind", [*LAYERS, *MIXERS])
def test_a_layer_over_ranks_is_one(team, kind):
    """Texts begin with ranks, go on over them, and one has the number of an earlier one; what a
    convolution or a filter reaches lies on several ranks before."""
    _same_layer(team, kind, False, [9, 14], [7, 10, 6], [7, 2, 0, 14], [9, 4, 0, 10])
    _same_layer(team, kind, True, [9, 14], [4, 1, 18])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [*LAYERS, "retention", "mamba:state_dim=4", "deltanet", "hyena:length=11", "rwkv7"]
)
def test_a_layer_over_any_number_of_ranks_is_one(team, kind):
    """One layer for each way to reach over ranks."""
    _same_layer(team, kind, False, *SHARDS.values(), [0, 23], [1, 21, 1], [2, 1, 1, 19])
    _same_layer(team, kind, True, [23, 0], [14, 0, 9], [16, 3, 4], [9, 0, 13, 1])


def test_a_layer_without_a_state_is_not_spread():
    from kerneltrick.torch import HardAttention

    with pytest.raises(ValueError, match="HardAttention keeps no state"):
        HardAttention(8, 2, group="any")


TOKENS = np.random.default_rng(3).integers(0, 11, (4, 21))


def model_of(group=None):
    from kerneltrick.torch import LanguageModel

    torch.manual_seed(1)
    return LanguageModel(
        11, mixer="hedgehog@window=3+deltanet+rwkv", hidden_size=8, num_layers=3, num_heads=2,
        group=group,
    ).double()  # fmt: skip


def step(model, rows, wanted, total, share):
    """Take one SGD step on the mean loss over all tokens, which `share` ranks split."""
    from torch.nn import functional

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    logits, _ = model(rows)
    loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    (loss * share / total).backward()
    optimizer.step()
    return float(loss.detach())


def train_step(groups, rank, how, folder):
    """Batch and sequence parallelism on a 2 × 2 mesh, with or without sharded parameters."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model = model_of(mesh["cp"])
    if how == "ddp":
        spread = DistributedDataParallel(model)
    else:
        flat = init_device_mesh("cpu", (4,))
        for block in model.blocks:
            fully_shard(block, mesh=flat)
        spread = fully_shard(model, mesh=flat)
    along, across = mesh["dp"].get_local_rank(), mesh["cp"].get_local_rank()
    rows = torch.tensor(TOKENS[2 * along : 2 * along + 2])
    where = slice(0, 13) if across == 0 else slice(13, 20)
    wanted = slice(where.start + 1, where.stop + 1)
    step(spread, rows[:, where], rows[:, wanted], 80, 4)
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    whole = {
        name: (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().numpy()
        for name, x in model.state_dict().items()
    }
    return {name.removeprefix("module."): x for name, x in whole.items()}


def reload(groups, rank, count, folder):
    """Read the parameters of a checkpoint with `count` ranks, one shard each."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh("cpu", list(range(count)))
    if rank >= count:
        return None
    model = fully_shard(model_of(), mesh=mesh)
    held = {"model": get_model_state_dict(model)}
    checkpoint.load(held, checkpoint_id=folder, process_group=groups[count])
    set_model_state_dict(model, held["model"])
    return {name: x.full_tensor().numpy() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_step_of_training_on_a_mesh_is_that_of_one_process(team, how, tmp_path):
    model, rows = model_of(), torch.tensor(TOKENS)
    step(model, rows[:, :-1], rows[:, 1:], 80, 1)
    expected = {name: x.detach().numpy() for name, x in model.state_dict().items()}
    found = team.ask(train_step, how, str(tmp_path))
    for name, x in expected.items():
        for rank in range(4):
            np.testing.assert_allclose(found[rank][name], x, atol=1e-10, rtol=0, err_msg=name)
    # A checkpoint belongs to the model, not to the ranks that wrote it.
    for count in (1, 3):
        for state in team.ask(reload, count, str(tmp_path))[:count]:
            for name, x in expected.items():
                np.testing.assert_allclose(state[name], x, atol=1e-10, rtol=0, err_msg=name)


TEXT = "to be, or not to be, that is the question: " * 12
SETTINGS = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "length": 19, "batch": 2, "steps": 6}


def trained(groups, rank, count, folder, stop=None):
    from kerneltrick.torch import _train

    if groups is not None and rank >= count:
        return None
    take = _train._step

    def step(*arguments):
        assert arguments[-1] != stop, "stopped"
        return take(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_train, "_step", step)
        return train_it(groups, count, folder)


def train_it(groups, count, folder):
    from kerneltrick.torch import TrainingSettings, train

    told = []
    group = None if groups is None else groups[count]
    found = train(
        TEXT, folder, TrainingSettings(**SETTINGS, mixer="elu@window=4"), tell=told.append,
        group=group,
    )  # fmt: skip
    return found.losses, list(found.validation.values()), len(told)


def test_a_training_over_ranks_has_the_losses_of_one_and_goes_on_with_another_number(
    team, tmp_path
):
    losses, validation, told = trained(None, 0, 1, tmp_path / "one")
    found = team.ask(trained, 3, tmp_path / "three")[:3]
    for rank in range(3):
        np.testing.assert_allclose(found[rank][0], losses, rtol=1e-4)
        np.testing.assert_allclose(found[rank][1], validation, rtol=1e-4)
    assert [x[2] for x in found] == [told, 0, 0]
    # Three ranks are stopped before the fifth step, and two continue.
    for good, value in team.answers(trained, 3, tmp_path / "again", 4)[:3]:
        assert not good
        assert "stopped" in value[1]
    for found in team.ask(trained, 2, tmp_path / "again")[:2]:
        np.testing.assert_allclose(found[0], losses, rtol=1e-4)


@pytest.mark.slow
def test_torchrun_starts_a_training_with_one_command(tmp_path, run):
    text = tmp_path / "text"
    text.write_text(TEXT)
    options = [
        "--steps", "4", "--length", "19", "--batch", "2", "--width", "8", "--layers", "1",
        "--heads", "2",
    ]  # fmt: skip
    code, _, err = run("train", text, "--out", tmp_path / "x", "--context-parallel", *options)
    assert code == 2
    assert "torchrun" in err
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "kerneltrick", "train", text, "--context-parallel", *options, "--out",
    ]  # fmt: skip
    made = subprocess.run(
        [*command, tmp_path / "two"], check=True, capture_output=True, text=True, timeout=300
    )
    assert made.stdout.count("wrote ") == 1
    assert run("train", text, *options, "--out", tmp_path / "one")[0] == 0
    two, one = (kt.torch.TrainedModel.load(tmp_path / name) for name in ("two", "one"))
    np.testing.assert_allclose(two.losses, one.losses, rtol=1e-4)


def fail(groups, rank, how, who):
    """All ranks call repeatedly, and one of them dies or stalls."""
    from kerneltrick.torch import distributed

    x = torch.ones(1, 2, 3, 4, requires_grad=True)
    for turn in range(4):
        if rank == who and turn == 2:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(300)
        distributed.linear_attention(x, x, x, causal=True).sum().backward()


# A death is noticed at once. A rank that is slow on a busy machine must not count as stalled.
@pytest.mark.parametrize(
    ("how", "who"), [("dies", 1), pytest.param("stalls", 2, marks=pytest.mark.slow)]
)
def test_a_rank_that_is_lost_is_named_by_the_others(how, who):
    team = Team(3, timeout=20)
    try:
        for pipe in team.pipes:
            pipe.send((fail, (how, who)))
        for rank in {0, 1, 2} - {who}:
            assert team.pipes[rank].poll(120), "it hangs"
            good, (kind, said, _) = team.pipes[rank].recv()
            assert not good
            assert kind == "RankError"
            assert f"rank {who} of the group died or stalled" in said
    finally:
        team.close()


def test_outside_of_a_group_it_is_said_what_to_do():
    from kerneltrick.torch import distributed

    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="init_process_group"):
        distributed.linear_attention(x, x, x)
