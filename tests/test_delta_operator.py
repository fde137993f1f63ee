"""The delta rule as a PyTorch operator: recorded, traced, compiled, exported, differentiated."""

import numpy as np
import pytest
from test_delta_libraries import problem

import kerneltrick as kt

torch = pytest.importorskip("torch")

from torch.library import opcheck  # noqa: E402

from kerneltrick.engines import _delta_native_torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.skipif(kt.show_config("dicts")["compiled"] is False, reason="no compiled core"),
]


def tensors(n=20, kind="token", general=False, grad=False, dtype=np.float64):
    arrays = problem(n, kind, general, dtype=dtype)
    return {name: torch.asarray(x).requires_grad_(grad) for name, x in arrays.items()}


def given(n=20, general=False, state=True, grad=True):
    """The arguments of the operator, with a mask and two segments."""
    x = tensors(n, "feature" if general else "token", general, grad)
    S = torch.linspace(0, 1, 60, dtype=torch.float64).reshape(1, 4, 5, 3).requires_grad_(grad)
    rule = kt.engines.DeltaRule(0.5, normalize_qk=not general, wants_state=state)
    beta = x["beta"][..., None].detach().requires_grad_(grad)
    decay = x["log_decay"] if general else x["log_decay"][..., None].detach().requires_grad_(grad)
    mask = (torch.arange(n) % 5 > 0).reshape(1, 1, n, 1)
    restart = (torch.arange(n) == 11).reshape(1, 1, n, 1)
    return _delta_native_torch.DeltaArguments(
        x["q"], x["k"], x["v"], beta, decay, x.get("erase"), x.get("read"), mask, restart,
        S if state else None, rule.text, 3, grad,
    )  # fmt: skip


@pytest.mark.parametrize("state", [True, False], ids=["state", "stateless"])
@pytest.mark.parametrize("general", [False, True], ids=["keys", "erase-read"])
def test_passes_every_check_of_pytorch(general, state):
    ours, arguments = torch.ops.kerneltrick, given(general=general, state=state)
    opcheck(ours.delta_rule.default, arguments)
    plain = [x.detach() if torch.is_tensor(x) else x for x in arguments]
    _, after, states = ours.delta_rule(*plain)
    last = torch.ones_like(after) if state else None
    opcheck(ours.delta_rule_backward.default, (torch.ones_like(plain[2]), last, states, *plain))


def test_training_and_inference_call_it():
    with torch.profiler.profile() as profile:
        kt.delta_rule(**tensors(grad=True)).sum().backward()
        kt.delta_rule(**tensors())
    names = [event.name for event in profile.events() if event.name.startswith("kerneltrick::")]
    assert names.count("kerneltrick::delta_rule_backward") == 1
    assert names.count("kerneltrick::delta_rule") >= 2


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_types_are_read_as_they_lie(name):
    dtype = getattr(torch, name)
    x = tensors(70, "feature", dtype=np.float32)
    half = {key: x[key].to(dtype).requires_grad_() for key in ("q", "k", "v")}
    wide = {key: t.detach().float().requires_grad_() for key, t in half.items()}
    outs = {}
    for key, own in (("half", half), ("wide", wide)):
        outs[key] = kt.delta_rule(**{**x, **own}, engine="native")
        (outs[key].float() ** 2).sum().backward()
    assert outs["half"].dtype == dtype
    size = {"bfloat16": 2**-8, "float16": 2**-11}[name]
    torch.testing.assert_close(outs["half"].float(), outs["wide"], rtol=size, atol=size / 4)
    for key in half:
        scale = float(wide[key].grad.abs().max())
        torch.testing.assert_close(
            half[key].grad.float(), wide[key].grad, rtol=4 * size, atol=4 * size * scale
        )


def test_functional_transforms():
    x = tensors(30, "feature", general=True)
    names = list(x)

    def loss(*given):
        return (kt.delta_rule(**dict(zip(names, given, strict=True))) ** 2).sum()

    leaves = [t.clone().requires_grad_() for t in x.values()]
    loss(*leaves).backward()
    found = torch.func.grad(loss, argnums=tuple(range(len(names))))(*x.values())
    for leaf, gradient in zip(leaves, found, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)
    batch = [torch.stack([t, 0.5 * t]) for t in x.values()]
    mapped = torch.vmap(torch.func.grad(loss))(*batch)
    torch.testing.assert_close(mapped[0], found[0])


def test_forward_mode_goes_around_the_core():
    x = tensors(10, "none")
    tangent = torch.ones_like(x["v"])
    _, out = torch.func.jvp(lambda v: kt.delta_rule(**{**x, "v": v}), (x["v"],), (tangent,))
    torch.testing.assert_close(out, kt.delta_rule(**{**x, "v": tangent}))


@pytest.mark.parametrize("operator", ["delta_rule", "linear_attention"])
def test_forward_mode_takes_decays_from_outside(operator):
    x = tensors(10, "none")
    decay = -torch.rand(x["k"].shape[:-1], dtype=torch.float64)

    def called(v):
        if operator == "delta_rule":
            return kt.delta_rule(x["q"], x["k"], v, 0.5, log_decay=decay)
        return kt.linear_attention(x["q"], x["k"], v, "elu", causal=True, log_decay=decay)

    heads = x["k"].shape[-3]
    v = x["v"][..., :heads, :, :]
    _, out = torch.func.jvp(called, (v,), (torch.ones_like(v),))
    torch.testing.assert_close(out, called(torch.ones_like(v)))  # both are linear in v


def test_compiles_to_one_graph_for_any_length():
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, example):
        graphs.append(graph)
        return graph.forward

    def step(q, k, v, beta, log_decay, S):
        out, state = kt.delta_rule(
            q, k, v, beta, log_decay=log_decay, state=kt.DeltaState(S), return_state=True
        )
        return out, state.S

    compiled = torch.compile(
        step, backend=aot_autograd(fw_compiler=keep), fullgraph=True, dynamic=True
    )
    for n in (20, 33, 300):
        x, S = tensors(n), torch.zeros(1, 4, 5, 3, dtype=torch.float64)
        for got, wanted in zip(compiled(**x, S=S), step(**x, S=S), strict=True):
            assert torch.equal(got, wanted)
    assert len(graphs) == 1
    assert "kerneltrick.delta_rule" in graphs[0].code


@pytest.mark.slow
def test_compiled_training_agrees():
    def loss(**x):
        return (kt.delta_rule(**x) ** 2).sum()

    eager, traced = tensors(40, "feature", grad=True), tensors(40, "feature", grad=True)
    loss(**eager).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(**traced).backward()
    for name, x in eager.items():
        torch.testing.assert_close(traced[name].grad, x.grad)


def test_exports_with_a_dynamic_length():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, beta, log_decay):
            return kt.delta_rule(q, k, v, beta, log_decay=log_decay)

    x, length = tensors(20), torch.export.Dim("length", min=2)
    program = torch.export.export(
        Layer(), (), x, dynamic_shapes={name: {2: length} for name in x}
    ).module()
    for n in (20, 47):
        x = tensors(n)
        assert torch.equal(program(**x), kt.delta_rule(**x))


def test_results_do_not_depend_on_threads_or_batch():
    x = tensors(130, "feature", general=True, dtype=np.float32)
    alone = kt.delta_rule(**x, engine="native")
    batch = {name: torch.cat([t, t.flip(-2 if t.ndim == 4 else -1), t]) for name, t in x.items()}
    both = kt.delta_rule(**batch, engine="native")
    assert torch.equal(both[:1], alone)
    assert torch.equal(both[2:], alone)
    kt.set_num_threads(1)
    assert torch.equal(kt.delta_rule(**batch, engine="native"), both)
