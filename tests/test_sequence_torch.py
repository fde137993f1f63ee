"""The short convolution and the selective scan in PyTorch, JAX and other array libraries."""

import numpy as np
import pytest
from sequence_cases import convolution_case, run, scan_case, tokens_case

import kerneltrick as kt

torch = pytest.importorskip("torch")

from torch.library import opcheck  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.skipif(kt.show_config("dicts")["compiled"] is False, reason="no compiled core"),
]
OTHER = {"short_convolution": "direct", "selective_scan": "chunked"}
OPTIONS = {"short_convolution": {"activation": "silu"}, "selective_scan": {"dt_softplus": True}}


def arrays(operator, lead=(2,), n=40, channels=9, size=4, seed=0, **options):
    make = convolution_case if operator == "short_convolution" else scan_case
    return make(np.random.default_rng(seed), lead, n, channels, size, **options)


def tensors(operator, dtype=torch.float64, grad=True, **options):
    made = arrays(operator, **options)
    return {name: torch.tensor(x).to(dtype).requires_grad_(grad) for name, x in made.items()}


def tokens(n=40, masked=True, packed=True):
    made = tokens_case(np.random.default_rng(1), (2,), n, masked, packed)
    return {name: torch.tensor(x) for name, x in made.items()}


def slopes(operator, given, **options):
    """The gradients of a fixed sum of output and state."""
    y, state = run(operator, given, **OPTIONS[operator], **options)
    weights = torch.Generator().manual_seed(0)
    loss = sum((x * torch.randn(x.shape, generator=weights, dtype=torch.float64)).sum()
               for x in (y, state))  # fmt: skip
    return dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))


@pytest.mark.parametrize("operator", OTHER)
@pytest.mark.parametrize(("n", "channels", "size"), [(1, 3, 1), (40, 9, 4), (70, 300, 3)])
def test_gradients_are_those_of_the_other_engine(operator, n, channels, size):
    given = tensors(operator, n=n, channels=channels, size=size)
    masks = [(True, True)] if n == 1 else [(False, True), (True, False), (True, True)]
    for masked, packed in masks:
        which = tokens(n, masked, packed)
        found = slopes(operator, given, engine="native", **which)
        for name, wanted in slopes(operator, given, engine=OTHER[operator], **which).items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("operator", OTHER)
def test_gradients_are_slopes(operator):
    given = tensors(operator, n=5, channels=2, size=3)

    def called(*values):
        given_again = dict(zip(given, values, strict=True))
        return run(operator, given_again, **OPTIONS[operator], **tokens(5))

    assert torch.autograd.gradcheck(called, tuple(given.values()))
    assert torch.autograd.gradgradcheck(called, tuple(given.values()))


@pytest.mark.parametrize("operator", OTHER)
def test_gradients_of_float32_are_close_to_those_of_float64(operator):
    given = tensors(operator, n=200, channels=70)
    narrow = {name: x.detach().float().requires_grad_() for name, x in given.items()}
    found = slopes(operator, narrow)
    exact = {name: x.detach().double().requires_grad_() for name, x in narrow.items()}
    for name, wanted in slopes(operator, exact).items():
        assert found[name].dtype == torch.float32
        size = wanted.abs().max().item()
        torch.testing.assert_close(found[name].double(), wanted, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("operator", OTHER)
def test_hidden_tokens_have_no_gradient_even_where_they_are_nan(operator):
    given = tensors(operator)
    which = tokens(packed=False)
    for name in ("x", "dt", "B", "C", "z"):
        if name in given:
            with torch.no_grad():
                given[name][~which["mask"]] = torch.nan
    for engine in ("native", OTHER[operator]):
        for name, found in slopes(operator, given, engine=engine, **which).items():
            assert not found.isnan().any()
            if name in ("x", "dt", "B", "C", "z"):
                assert (found[~which["mask"]] == 0).all()


@pytest.mark.parametrize("operator", OTHER)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(operator, dtype):
    given = tensors(operator, dtype, n=70, channels=70)
    wide = {name: x.detach().float().requires_grad_() for name, x in given.items()}
    for turn in (lambda x: x, lambda x: x.mT.contiguous().mT if x.ndim > 1 else x):
        turned = {name: turn(x) for name, x in given.items()}
        found, state = run(operator, turned, **OPTIONS[operator])
        wanted, after = run(operator, wide, **OPTIONS[operator])
        assert found.dtype == dtype
        assert state.dtype == (dtype if operator == "short_convolution" else torch.float32)
        torch.testing.assert_close(found, wanted.to(dtype), rtol=0, atol=0)
        torch.testing.assert_close(state, after.to(state.dtype), rtol=0, atol=0)
    found, wanted = slopes(operator, given), slopes(operator, wide)
    for name, slope in found.items():
        size = wanted[name].abs().max().item()
        step = torch.finfo(dtype).eps * size
        assert slope.dtype == dtype
        torch.testing.assert_close(slope.float(), wanted[name], rtol=0, atol=2 * step)


@pytest.mark.parametrize("operator", OTHER)
def test_operators_pass_every_check_of_pytorch(operator):
    given = tensors(operator, n=5, channels=3)
    which = {"mask": None, "segment_ids": None}
    ours = getattr(torch.ops.kerneltrick, operator).default
    if operator == "short_convolution":
        names = ("x", "weight", "bias", *which, "state")
        numbers = (True, True)
    else:
        names = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", *which, "state")
        numbers = (True, True, True)
    run(operator, given)  # registers the operators
    arguments = (*(given.get(name) for name in names), *numbers)
    opcheck(ours, arguments)
    made = ours(*arguments)
    backward = getattr(torch.ops.kerneltrick, f"{operator}_backward").default
    rest = [x.detach() if torch.is_tensor(x) else x for x in arguments]
    opcheck(backward, (*(x.detach() for x in made), *rest))


@pytest.mark.parametrize(
    ("operator", "backend"),
    [
        pytest.param("short_convolution", "eager"),
        pytest.param("short_convolution", "aot_eager", marks=pytest.mark.slow),
        pytest.param("selective_scan", "eager", marks=pytest.mark.slow),
        pytest.param("selective_scan", "aot_eager", marks=pytest.mark.slow),
    ],
)
def test_compiled_code_is_one_graph_for_every_length(operator, backend):
    def called(given):
        y, state = run(operator, given, **OPTIONS[operator])
        return y.sum() + state.sum()

    torch._dynamo.reset()
    compiled = torch.compile(called, fullgraph=True, dynamic=True, backend=backend)
    for n in (7, 40, 33):
        given = tensors(operator, n=n)
        wanted = called(given)
        made = compiled(given)
        torch.testing.assert_close(made, wanted, rtol=0, atol=0)
        leaves = list(given.values())
        found, exact = (torch.autograd.grad(x, leaves) for x in (made, wanted))
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OTHER)
def test_compiled_code_may_overwrite_the_state(operator):
    def called(given):
        return getattr(kt, operator)(**given, inplace=True)

    given = tensors(operator, grad=False, n=1)
    wanted, after = run(operator, given)
    torch._dynamo.reset()
    made = torch.compile(called, fullgraph=True, backend="aot_eager")(given)
    torch.testing.assert_close(made, wanted, rtol=0, atol=0)
    torch.testing.assert_close(given["state"], after, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OTHER)
def test_export(operator):
    class Layer(torch.nn.Module):
        def forward(self, given):
            return run(operator, given, **OPTIONS[operator])

    given = tensors(operator, grad=False)
    n = torch.export.Dim("n", min=2, max=4096)
    names = ("x", "dt", "B", "C", "z")
    shapes = {"given": {name: {1: n} if name in names else None for name in given}}
    program = torch.export.export(Layer(), (given,), dynamic_shapes=shapes)
    other = tensors(operator, grad=False, n=13)
    for found, wanted in zip(program.module()(other), Layer()(other), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("operator", OTHER)
def test_vmap_over_rows_and_over_weights(operator):
    given = tensors(operator, grad=False, lead=(3, 2))
    shared = ("weight", "bias", "A", "D", "dt_bias")

    def called(given):
        return getattr(kt, operator)(**given, **OPTIONS[operator])

    rows = {name: None if name in shared else 0 for name in given}
    wanted = called(given)
    torch.testing.assert_close(torch.vmap(called, (rows,))(given), wanted)
    many = {name: torch.stack([x] * 3) if name in shared else x for name, x in given.items()}
    torch.testing.assert_close(torch.vmap(called)(many), wanted)
    slope = torch.func.vmap(torch.func.grad(lambda given: called(given).sum()), (rows,))(given)
    for x in given.values():
        x.requires_grad_()
    called(given).sum().backward()
    for name, x in given.items():
        found = slope[name].sum(0) if name in shared else slope[name]
        torch.testing.assert_close(found, x.grad, msg=name)


@pytest.mark.parametrize("operator", OTHER)
def test_autocast_takes_mixed_dtypes(operator):
    given = tensors(operator, torch.float32, grad=False, state=False)
    narrow = {**given, "x": given["x"].bfloat16()}
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = run(operator, narrow, **OPTIONS[operator])
    wanted, _ = run(operator, {**given, "x": narrow["x"].float()}, **OPTIONS[operator])
    assert operator == "short_convolution" or found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.to(found.dtype))


@pytest.mark.parametrize("operator", OTHER)
def test_forward_mode_and_meta_tensors_are_left_to_the_other_engine(operator):
    given = tensors(operator, grad=False, n=5, channels=3)

    def called(x):
        return run(operator, {**given, "x": x}, **OPTIONS[operator])[0]

    push = torch.func.jvp(called, (given["x"],), (torch.ones_like(given["x"]),))[1]
    assert push.abs().max() > 0
    meta = {name: x.to("meta") for name, x in given.items()}
    assert run(operator, meta)[0].shape == given["x"].shape
    with pytest.raises(ValueError, match="native engine takes NumPy arrays and CPU tensors"):
        run(operator, meta, engine="native")


@pytest.mark.parametrize("operator", OTHER)
def test_inplace_overwrites_a_tensor(operator):
    given = tensors(operator, torch.float32, grad=False, n=1)
    wanted, after = run(operator, given)
    where = given["state"].data_ptr()
    found = getattr(kt, operator)(**given, inplace=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(given["state"], after, rtol=0, atol=0)
    assert given["state"].data_ptr() == where


@pytest.mark.parametrize("operator", OTHER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_steps_that_overwrite_the_state_give_the_bits_of_calls_that_do_not(operator, dtype):
    parameters = ("weight", "bias", "A", "D", "dt_bias")
    first = tensors(operator, dtype, grad=False, lead=(3,), n=1, channels=20)
    wide = torch.promote_types(dtype, torch.float32)
    state = first["state"].to(wide if operator == "selective_scan" else dtype)
    kept = state.clone()
    for step in range(4):  # those after the first are not checked again
        given = tensors(operator, dtype, grad=False, lead=(3,), n=1, channels=20, seed=step)
        given |= {name: first[name] for name in parameters if name in first}
        if operator == "short_convolution":  # channels before tokens, as in a cache of transformers
            given["x"] = given["x"].mT.contiguous().mT
        wanted, kept = run(operator, given | {"state": kept}, **OPTIONS[operator])
        version = state._version
        found = getattr(kt, operator)(**given | {"state": state}, **OPTIONS[operator], inplace=True)
        assert state._version > version  # so that autograd notices
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        torch.testing.assert_close(state, kept, rtol=0, atol=0)
        found.zero_()  # which no later step may notice


@pytest.mark.parametrize("operator", OTHER)
def test_an_expanded_state_is_not_overwritten(operator):
    given = tensors(operator, torch.float32, grad=False, n=1)
    state = given["state"][:1].expand(given["state"].shape)
    with pytest.raises(ValueError, match=r"cannot overwrite a state .* give a copy of it"):
        getattr(kt, operator)(**given | {"state": state}, inplace=True)


@pytest.mark.parametrize("operator", OTHER)
def test_a_step_that_overwrites_the_state_has_the_gradients_of_one_that_does_not(operator):
    given = tensors(operator, n=1)
    wanted = run(operator, given, **OPTIONS[operator])[0].square().sum()
    wanted = torch.autograd.grad(wanted, list(given.values()))
    state = given["state"] * 1  # autograd lets no leaf be overwritten
    found = getattr(kt, operator)(**given | {"state": state}, **OPTIONS[operator], inplace=True)
    found = torch.autograd.grad(found.square().sum(), list(given.values()))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("operator", OTHER)
def test_a_step_that_came_before_is_still_recorded_when_gradients_are_asked_for(operator):
    given = tensors(operator, grad=False, n=1)
    for _ in range(2):
        getattr(kt, operator)(**given, **OPTIONS[operator], inplace=True)
    given["x"].requires_grad_()
    given["state"] = given["state"].clone()
    found = getattr(kt, operator)(**given, **OPTIONS[operator], inplace=True)
    assert found.requires_grad
    given = {name: x.detach().clone() for name, x in given.items()}
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(given["x"], torch.ones_like(given["x"]))
        found = getattr(kt, operator)(**given | {"x": x}, **OPTIONS[operator], inplace=True)
        assert torch.autograd.forward_ad.unpack_dual(found).tangent is not None


@pytest.mark.parametrize("operator", OTHER)
def test_an_array_of_jax_is_not_overwritten(operator):
    make = pytest.importorskip("jax").numpy.asarray
    made = {name: make(x.astype(np.float32)) for name, x in arrays(operator, n=1).items()}
    with pytest.raises(ValueError, match="cannot overwrite an array of JAX's"):
        getattr(kt, operator)(**made, inplace=True)


@pytest.mark.parametrize("operator", OTHER)
def test_jax_gradients_agree_with_torch(operator):
    jax = pytest.importorskip("jax")
    given = tensors(operator, torch.float32, n=10, channels=3)
    made = {name: jax.numpy.asarray(x.detach().numpy()) for name, x in given.items()}

    def called(given):
        return getattr(kt, operator)(**given, **OPTIONS[operator]).sum()

    wanted = torch.autograd.grad(called(given), list(given.values()), allow_unused=True)
    found = jax.jit(jax.grad(called))(made)
    for name, slope in zip(given, wanted, strict=True):
        if slope is not None:
            np.testing.assert_allclose(found[name], slope.numpy(), rtol=1e-3, atol=1e-4)
