"""Attention as a PyTorch operator: recorded, traced, compiled, exported, differentiated."""

import functools

import numpy as np
import pytest
from native_cases import inputs, learned

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")

from torch.library import opcheck  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from kerneltrick.engines import _native_torch, _torch_operator  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.skipif(kt.show_config("dicts")["compiled"] is False, reason="no compiled core"),
]


def tensors(n=20, d=4, width=3, heads=(2, 2), lead=(), grad=True, dtype=torch.float64):
    made = [torch.tensor(x).to(dtype) for x in inputs(n, d, width, heads, lead)]
    return [x.requires_grad_(grad) for x in made]


def weights(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape)).requires_grad_()


@pytest.fixture
def calls(monkeypatch):
    """Record the arguments of every operator call; autograd calls the operator once more.

    As if somebody watched: unwatched inference calls the core without the operator.
    """
    monkeypatch.setattr(_native_torch, "dispatch_watched", lambda: True)
    seen, depth = [], [0]

    def spy(operator, *arguments):
        if not depth[0]:
            seen.append((operator, arguments))
        depth[0] += 1
        try:
            return operator(*arguments)
        finally:
            depth[0] -= 1

    spied = {key: functools.partial(spy, op) for key, op in _torch_operator.OPERATORS.items()}
    monkeypatch.setattr(_torch_operator, "OPERATORS", spied)
    return seen


STATES_ALONE = [
    {"causal": True},
    {"causal": True, "masked": True, "heads": (6, 2)},
    {"causal": False, "masked": True, "heads": (6, 2)},
    {"causal": True, "normalize": False, "feature_map": "taylor:order=2"},
    {"causal": False, "feature_map": "hedgehog", "heads": (4, 1)},
]


def t2r(weight, bias):
    return maps.T2R(weight=weight, bias=bias)


def ahead(k0, v0, *, feature_map, **options):
    """The state after some earlier tokens."""
    return kt.linear_attention(k0, k0, v0, feature_map, causal=True, return_state=True, **options)[
        1
    ]


# name: (more tensors, what is computed of q, k, v and those)
CASES = {
    "decay, segments": (
        lambda: [-weights(2, 20).exp().detach().requires_grad_()],
        lambda q, k, v, a: kt.linear_attention(
            q, k, v, "elu", causal=True, log_decay=a, segment_ids=torch.arange(20) // 7,
        ),
    ),
    "masks, full": (
        list,
        lambda q, k, v: kt.linear_attention(
            q, k, v, "favor:features=8", mask=torch.arange(20) > 2,
            query_mask=torch.arange(20) != 5,
        ),
    ),
    "learned, grouped, raw": (
        lambda: [weights(4, 5), weights(5, seed=1)],
        lambda q, k, v, w, b: kt.linear_attention(
            q, k[:1], v[:1], t2r(w, b), causal=True, normalize=False
        ),
    ),
    "window, sinks, gain": (
        lambda: [weights(2)],
        lambda q, k, v, g: kt.linear_attention(
            q, k, v, "elu", causal=True, window=5, sinks=1, far=kt.Far(g, relative=True)
        ),
    ),
    "softmax": (
        list, lambda q, k, v: kt.softmax_attention(q, k, v, mask=torch.arange(20) > 2)
    ),
    "state": (
        lambda: [weights(2, 9, 4, seed=1), weights(2, 9, 3, seed=2)],
        lambda q, k, v, k0, v0: kt.linear_attention(
            q, k, v, "exp", causal=True, return_state=True,
            state=ahead(k0, v0, feature_map="exp"),
        )[0],
    ),
    "state, window": (
        lambda: [weights(2, 9, 4, seed=1), weights(2, 9, 3, seed=2)],
        lambda q, k, v, k0, v0: kt.linear_attention(
            q, k, v, "elu", causal=True, window=4, sinks=2, return_state=True,
            state=ahead(k0, v0, feature_map="elu", window=4, sinks=2),
        )[0],
    ),
}  # fmt: skip


EVERY_TIME = ("window, sinks, gain",)


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in EVERY_TIME else pytest.mark.slow) for name in CASES
    ]
)
def case(request):
    make, attend = CASES[request.param]
    return attend, [*tensors(), *make()]


def leaves_of(arguments, grad=True):
    return [
        x.detach().requires_grad_(grad and x.requires_grad) if torch.is_tensor(x) else x
        for x in arguments
    ]


class TestOperator:
    def test_passes_every_check_of_pytorch(self, case, calls):
        attend, leaves = case
        attend(*leaves).sum().backward()
        ours = torch.ops.kerneltrick
        forward = [call for call in calls if call[0] is ours.attend.default][-1]
        backward = next(call for call in calls if call[0] is ours.attend_backward.default)
        opcheck(forward[0], leaves_of(forward[1]))
        opcheck(backward[0], leaves_of(backward[1], grad=False))

    def test_training_and_inference_call_it(self, calls):
        leaves = tensors()
        kt.linear_attention(*leaves, causal=True).sum().backward()
        with torch.no_grad():
            kt.linear_attention(*leaves, causal=True)
            kt.softmax_attention(*leaves)
        names = [operator.name().removeprefix("kerneltrick::") for operator, _ in calls]
        assert names == ["attend", "attend_backward", "attend", "attend"]

    def test_inference_calls_it_if_somebody_watches(self):
        leaves, names = tensors(grad=False), []

        class Names(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, arguments=(), options=None):
                names.append(operator.name())
                return operator(*arguments, **(options or {}))

        alone = kt.linear_attention(*leaves, causal=True)
        with Names():
            watched = kt.linear_attention(*leaves, causal=True)
        with torch.profiler.profile() as profile:
            profiled = kt.linear_attention(*leaves, causal=True)
        assert "kerneltrick::attend" in names
        assert "kerneltrick::attend" in {event.name for event in profile.events()}
        assert torch.equal(alone, watched)
        assert torch.equal(alone, profiled)

    def test_inference_keeps_nothing_for_a_gradient(self, calls):
        q, k, v = tensors(grad=False, dtype=torch.float16)
        kt.linear_attention(q, k, v, causal=True)
        operator, arguments = calls[-1]
        made = _native_torch.CoreResult._make(operator(*arguments))
        assert made.saved.numel() == 0
        assert made.output.dtype == torch.float16

    def test_what_is_saved_is_one_row_or_beside_a_window_three(self, calls):
        leaves = tensors()
        for window, rows in ((0, 1), (3, 3)):
            kt.linear_attention(*leaves, causal=True, window=window)
            operator, arguments = calls[-1]
            assert _native_torch.CoreResult._make(operator(*arguments)).saved.shape == (rows, 2, 20)


class TestDerivatives:
    def test_second_derivatives(self, case):
        """The chunked engine takes over automatically."""
        attend, leaves = case
        assert torch.autograd.gradcheck(attend, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)

    @pytest.mark.parametrize("options", STATES_ALONE, ids=str)
    def test_the_gradient_of_the_state_alone(self, monkeypatch, options):
        """It takes one pass over the queries, and is what the chunked engine's gradient is."""
        given, alone = dict(options), []
        heads = given.pop("heads", (2, 2))
        text, spy = given.pop("feature_map", "elu"), _native_torch.give_gradients
        q, k, v = tensors(n=83, width=5, heads=heads)
        if given.pop("masked", False):
            given["mask" if given["causal"] else "query_mask"] = torch.arange(83) % 5 != 2
        first = kt.linear_attention(
            *(x[..., :7, :].detach() for x in (q, k, v)), text, causal=True, return_state=True
        )[1]
        learned = first.sums.hi.requires_grad_()

        def gradient(engine, *asked):
            output, last = kt.linear_attention(
                q, k, v, text, state=first, return_state=True, engine=engine, **given
            )
            loss = (output.sin() * torch.arange(output.numel()).reshape(output.shape)).sum()
            return torch.autograd.grad(loss + last.sums.hi.sin().sum(), (learned, *asked))[0]

        def recorded(*arguments, sums_alone=False):
            alone.append(sums_alone)
            return spy(*arguments, sums_alone=sums_alone)

        monkeypatch.setattr(_native_torch, "give_gradients", recorded)
        expected, found = gradient("chunked"), gradient("native")
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient("native", q), expected, rtol=1e-10, atol=1e-10)
        assert alone == [True, False]

    def test_second_derivatives_of_the_state(self):
        def attend(q, k, v):
            _, state = kt.linear_attention(q, k, v, "exp", causal=True, return_state=True)
            return state.U * state.log_scale.exp()[..., None, None]

        assert torch.autograd.gradgradcheck(attend, tensors(10), fast_mode=True)

    def test_torch_func(self, case, calls):
        attend, leaves = case
        leaves = [x.detach() for x in leaves]
        everything = tuple(range(len(leaves)))

        def loss(*leaves):
            return attend(*leaves).sin().sum()

        expected = torch.autograd.grad(
            loss(*(copies := [x.clone().requires_grad_() for x in leaves])), copies
        )
        got = torch.func.grad(loss, everything)(*leaves)
        torch.testing.assert_close(got, expected)
        calls.clear()
        both = [torch.stack([x, x.flip(0)]) for x in leaves]
        each = torch.stack([attend(*x) for x in zip(*both, strict=True)])
        torch.testing.assert_close(torch.func.vmap(attend)(*both), each)
        own = torch.func.vmap(torch.func.grad(loss, everything))(*both)
        each = [torch.func.grad(loss, everything)(*x) for x in zip(*both, strict=True)]
        for mine, theirs in zip(own, zip(*each, strict=True), strict=True):
            torch.testing.assert_close(mine, torch.stack(theirs))
        assert calls, "by the operator"

    def test_vmap_over_some_arguments(self):
        q, k, v = tensors(grad=False)
        many = torch.stack([k, 2 * k, 3 * k], 1)
        got = torch.func.vmap(
            lambda k: kt.linear_attention(q, k, v, causal=True, mask=torch.arange(20) > 1),
            in_dims=1, out_dims=1,
        )(many)  # fmt: skip
        for i in range(3):
            expected = kt.linear_attention(q, many[:, i], v, causal=True, mask=torch.arange(20) > 1)
            torch.testing.assert_close(got[:, i], expected)

    def test_hessian_of_a_small_call(self):
        q, k, v = tensors(3, grad=False)

        def loss(q):
            return kt.linear_attention(q, k, v, causal=True).sin().sum()

        def slow(q):
            return kt.linear_attention(q, k, v, causal=True, engine="dense").sin().sum()

        torch.testing.assert_close(torch.func.hessian(loss)(q), torch.func.hessian(slow)(q))

    def test_the_output_may_be_changed_before_the_backward_pass(self):
        for dtype in (torch.float32, torch.bfloat16):
            results = []
            for in_place in (True, False):
                leaves = tensors(dtype=dtype)
                out = kt.linear_attention(*leaves, causal=True)
                if in_place:
                    out += 1
                    out *= 2
                else:
                    out = (out + 1) * 2
                results.append(torch.autograd.grad(out.float().sin().sum(), leaves))
            torch.testing.assert_close(*results)

    def test_changing_an_input_before_the_backward_pass_is_still_an_error(self):
        q, k, v = tensors()
        k_ = k * 1
        out = kt.linear_attention(q, k_, v, causal=True)
        k_ += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_activation_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        def block(q, k, v):
            return kt.linear_attention(q.sin(), k, v, "elu@window=3", causal=True).cos()

        leaves = tensors()
        expected = torch.autograd.grad(block(*leaves).sum(), leaves)
        out = checkpoint(block, *leaves, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), leaves), expected)
        checkpoint(block, *leaves, use_reentrant=True).sum().backward()
        torch.testing.assert_close(tuple(x.grad for x in leaves), expected)

    def test_training_takes_over_nothing_of_a_call_in_inference_mode(self):
        for options in ({}, {"window": 3}):
            q, k, v = torch.randn(3, 2, 9, 5, generator=torch.Generator().manual_seed(0))
            with torch.inference_mode():
                kt.linear_attention(q, k, v, causal=True, **options)
            q.requires_grad_()
            kt.linear_attention(q, k, v, causal=True, **options).sum().backward()
            assert q.grad is not None


class TestAutocast:
    """Rotary embeddings leave q and k in float32 where projections make v bfloat16."""

    def test_takes_mixed_dtypes(self):
        q, k, v = tensors(dtype=torch.float32)
        for attend in (kt.linear_attention, kt.softmax_attention):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                half = v.bfloat16()
                out = attend(q, k.bfloat16(), half, causal=True)
            assert out.dtype == torch.bfloat16
            expected = attend(q, k.bfloat16().float(), half.float(), causal=True)
            torch.testing.assert_close(out, expected.bfloat16())
            mine, theirs = (
                torch.autograd.grad(x.float().sum(), (q, k, v)) for x in (out, expected)
            )
            torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)

    def test_without_it_they_are_refused(self):
        q, k, v = tensors(dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            kt.linear_attention(q, k, v.bfloat16(), causal=True)
        with pytest.raises(TypeError, match=r"one dtype.*q: torch.float32.*v: torch.bfloat16"):
            kt.linear_attention(q, k, v.bfloat16(), causal=True)


class TestWithoutValues:
    def test_fake_tensors_never_reach_the_core(self, monkeypatch):
        from torch._subclasses.fake_tensor import FakeTensorMode

        monkeypatch.setattr(_native_torch._native, "compute", None)
        with FakeTensorMode():
            q = torch.empty(2, 4, 100, 8, requires_grad=True)
            out, state = kt.linear_attention(q, q, q, causal=True, window=9, return_state=True)
            assert out.shape == (2, 4, 100, 8)
            assert state.near.k.shape == (2, 4, 8, 8)
            out.sum().backward()
            assert q.grad.shape == q.shape

    def test_meta_tensors_and_devices_are_left_to_chunked(self, calls):
        with torch.device("meta"):
            q = torch.empty(2, 4, 100, 8, requires_grad=True)
            out = kt.linear_attention(q, q, q, "hedgehog", causal=True)
        assert out.device.type == "meta"
        assert not calls

    def test_a_default_device_of_the_cpu(self):
        q, k, v = tensors()
        with torch.device("cpu"):
            assert torch.equal(
                kt.linear_attention(q, k, v, "favor", causal=True),
                kt.linear_attention(q, k, v, "favor", causal=True),
            )


class Layer(torch.nn.Module):
    """Parts of a model: projections, a learned map, a window."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 24)
        self.weight = torch.nn.Parameter(torch.randn(4, 6))
        self.gain = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        near = kt.linear_attention(
            q, k, v, maps.Hedgehog(self.weight), causal=True, window=4, sinks=1, far=self.gain
        )
        return (near + kt.softmax_attention(q, k, v, causal=True)).sum(1)


def compiled(function, backend="aot_eager", **options):
    """The function compiled as one graph, and a list with an entry for each compilation."""
    torch._dynamo.reset()
    graphs = []

    def counted(graph, examples):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, examples)

    return torch.compile(function, backend=counted, fullgraph=True, **options), graphs


class TestCompile:
    def test_a_layer_of_any_length_is_one_graph(self):
        layer = Layer()
        made, graphs = compiled(layer)
        for n in (20, 33, 7):
            x = torch.randn(2, n, 8)
            out, expected = made(x), layer(x)
            torch.testing.assert_close(out, expected)
            mine, theirs = (
                torch.autograd.grad(y.sin().sum(), tuple(layer.parameters()))
                for y in (out, expected)
            )
            torch.testing.assert_close(mine, theirs)
        assert len(graphs) == 2  # one for the first length, one for all

    def test_only_operators_are_left(self):
        from torch._functorch.aot_autograd import aot_function, make_boxed_func

        seen = []

        def keep(graph, _):
            seen.append([str(x.target) for x in graph.graph.nodes])
            return make_boxed_func(graph.forward)

        def attend(q, k, v):
            return kt.linear_attention(q, k, v, causal=True)

        aot_function(attend, keep, keep)(*tensors(1000)).sum().backward()
        names = [[x for x in targets if "kerneltrick" in x] for targets in seen]
        assert names == [["kerneltrick.attend.default"], ["kerneltrick.attend_backward.default"]]
        assert all(len(targets) < 50 for targets in seen)

    @pytest.mark.slow
    def test_streams_of_states(self):
        def step(q, k, v, state):
            return kt.linear_attention(q, k, v, "elu@window=3", causal=True, state=state,
                                       return_state=True)  # fmt: skip

        made, graphs = compiled(step)
        arrays = tensors(40, grad=False)
        state = own = kt.State.empty("elu", *arrays[1:], window=3)
        for i in range(30, 36):
            token = [x[..., i : i + 1, :] for x in arrays]
            out, state = made(*token, state)
            expected, own = step(*token, own)
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(state.U, own.U)
            assert (state.start, state.stop) == (own.start, own.stop)
        assert len(graphs) <= 2

    @pytest.mark.slow
    def test_masks_and_packed_segments(self):
        def attend(q, k, v, ids, mask):
            return kt.linear_attention(
                q, k, v, "favor:features=8", causal=True, segment_ids=ids, mask=mask, log_decay=-0.1
            )

        made, _ = compiled(attend)
        rest = torch.arange(20) // 6, torch.arange(20) != 3
        leaves = tensors(heads=(4, 2))
        torch.testing.assert_close(made(*leaves, *rest), attend(*leaves, *rest))

    @pytest.mark.slow
    def test_maps_that_the_core_does_not_know(self, calls):
        weight, other = weights(4, 3), weights(4, 3, seed=1)

        def attend(q, k, v, weight, other):
            phi = maps.Hedgehog(weight, key_weight=other, separate=True)
            return kt.linear_attention(q, k, v, phi, causal=True)

        made, graphs = compiled(attend)
        for n in (20, 70, 100):
            leaves = [*tensors(n), weight, other]
            mine, theirs = (
                torch.autograd.grad(f(*leaves).sin().sum(), leaves) for f in (made, attend)
            )
            torch.testing.assert_close(mine, theirs)
        assert len(graphs) == 2
        assert calls

    def test_functions_are_refused_with_what_to_do(self):
        made, _ = compiled(lambda q, k, v: kt.linear_attention(q, k, v, torch.exp, causal=True))
        with pytest.raises(Exception, match="apply the function to q and k yourself"):
            made(*tensors())

    @pytest.mark.slow
    def test_by_the_default_compiler(self):
        layer = Layer()
        made, _ = compiled(layer, "inductor")
        x = torch.randn(2, 20, 8)
        out, expected = made(x), layer(x)
        torch.testing.assert_close(out, expected)
        mine, theirs = (
            torch.autograd.grad(y.sin().sum(), tuple(layer.parameters())) for y in (out, expected)
        )
        torch.testing.assert_close(mine, theirs)


class TestExport:
    def test_dynamic_batch_and_length(self):
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
        layer = Layer()
        x = torch.randn(2, 20, 8)
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch, 1: length},))
        for shape in ((3, 50, 8), (5, 2, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), layer(x))
        names = [str(node.target) for node in program.graph.nodes]
        assert names.count("kerneltrick.attend.default") == 2

    def test_as_many_queries_and_keys_as_there_are(self):
        class Cross(torch.nn.Module):
            def forward(self, q, k, v):
                return kt.linear_attention(q, k, v, "taylor") + kt.softmax_attention(q, k, v)

        some, many = torch.export.Dim("some"), torch.export.Dim("many")
        shapes = ({1: some}, {1: many}, {1: many})
        program = torch.export.export(Cross(), tuple(tensors(grad=False)), dynamic_shapes=shapes)
        for n_q, n in ((5, 9), (70, 3)):
            arrays = [torch.tensor(x) for x in inputs(n, 4, 3, n_q=n_q)]
            torch.testing.assert_close(program.module()(*arrays), Cross()(*arrays))


@pytest.mark.slow
def test_learned_maps_of_every_kind_are_taken_apart_by_the_compiler():
    for kind in ("hedgehog exp", "t2r each bias"):
        phi = learned(kind, 2, 4, make=lambda x: torch.tensor(x).requires_grad_())
        made, _ = compiled(lambda q, k, v, phi=phi: kt.linear_attention(q, k, v, phi, causal=True))
        leaves = tensors()
        own = [x for x in vars(phi).values() if torch.is_tensor(x)]
        mine, theirs = (
            torch.autograd.grad(f(*leaves).sin().sum(), (*leaves, *own))
            for f in (made, lambda *x, phi=phi: kt.linear_attention(*x, phi, causal=True))
        )
        torch.testing.assert_close(mine, theirs)


def test_layers_with_learned_maps_compile_for_the_eager_backend():
    """As do those of `TestCompile` for aot_eager."""
    from kerneltrick.torch import Attention, LearnedMap

    layer = Attention(16, 2, feature_map=LearnedMap("hedgehog", num_heads=2, head_dim=8))
    run = torch.compile(layer, backend="eager", fullgraph=True)
    for n in (3, 7):
        x = torch.linspace(-1, 1, n * 16).reshape(1, n, 16)
        torch.testing.assert_close(run(x)[0], layer(x)[0])
