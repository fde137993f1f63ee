"""`Attention` is nn.MultiheadAttention with another map; it streams and explains refusals."""

import copy
import dataclasses
import functools
import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import kerneltrick as kt  # noqa: E402
from kerneltrick import maps  # noqa: E402
from kerneltrick.torch import (  # noqa: E402
    Attention,
    HardAttention,
    LanguageModel,
    LearnedMap,
    MixerState,
    fit,
)
from kerneltrick.torch.mixers import make  # noqa: E402

SIZE, N = 16, 70  # a chunk of 64 and some more

EVERYTHING = {
    "num_kv_heads": 2, "value_dim": 6, "rotary": True, "bias": True, "short_convolution": 3,
    "output_norm": True, "output_gate": True, "layer_idx": 1,
}  # fmt: skip


class Phi(nn.Module):
    """A map of one's own."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(4, 5)

    def forward(self, x):
        return nn.functional.softplus(self.projection(x))


@dataclasses.dataclass(frozen=True, eq=False)
class Mine(maps.FeatureMap):
    name = "mine"
    sign = "positive"
    network: nn.Module = dataclasses.field(default_factory=Phi)

    def phi(self, x, positions=None):
        return self.network(x)


LAYERS = {
    "elu": {},
    "module, window, all options": {"feature_map": Phi, "window": 8, **EVERYTHING},
    "map with a module": {"feature_map": Mine},
    "elu, all options": EVERYTHING,
    "window, all options": {"window": 8, "sinks": 2, **EVERYTHING},
    "favor": {"feature_map": "favor:features=8", "rotary": True},
    "softmax": {"feature_map": "softmax", **EVERYTHING},
    "softmax window": {"feature_map": "softmax", "window": 8, "rotary": True},
    "cosformer": {"feature_map": "cosformer:horizon=100", "on_zero": "zero"},
}


def layer(seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    options = {name: x() if isinstance(x, type) else x for name, x in options.items()}
    return Attention(SIZE, 4, **options).to(dtype)


def tokens(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, SIZE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def test_the_first_call_may_be_compiled():
    """The first call needs no set-up that the compiler cannot trace."""
    own, x = layer(rotary=True), tokens(2, 9)
    torch.compiler.reset()
    compiled = torch.compile(own, backend="eager", fullgraph=True, dynamic=True)
    close(compiled(x)[0], own(x)[0])


@pytest.mark.parametrize(
    "given", [pytest.param("ids of rows", marks=pytest.mark.slow), "mask", "ids of a part"]
)
def test_a_compiled_layer_takes_masks_and_texts_of_any_length(given):
    """Sizes are symbols after the second length: they are compared as numbers, one by one."""
    own = layer(rotary=True, short_convolution=3)

    def run(x, which):
        x = x[:, 1:] if given == "ids of a part" else x
        return own(x, **{"mask" if given == "mask" else "segment_ids": which})[0]

    torch.compiler.reset()
    compiled = torch.compile(run, backend="eager")
    for batch, n in ((2, 9), (2, 12), (2, 7), (3, 12)):
        x = tokens(batch, n)
        ids = torch.arange(n - (given == "ids of a part")) // 4
        which = {"ids of rows": ids.expand(batch, -1), "mask": x[..., 0] < 1}.get(given, ids)
        close(compiled(x, which), run(x, which))
    with pytest.raises(ValueError, match="one entry per token"):
        compiled(x, which[..., 1:])


@pytest.mark.parametrize(("bias", "causal"), [(True, False), (False, True)])
def test_softmax_with_the_weights_of_multihead_attention_is_multihead_attention(bias, causal):
    torch.manual_seed(0)
    source = nn.MultiheadAttention(SIZE, 4, bias=bias, batch_first=True, dtype=torch.float64)
    if bias:
        nn.init.normal_(source.in_proj_bias)
        nn.init.normal_(source.out_proj.bias)
    ours = Attention.from_multihead_attention(source, causal=causal)
    x = tokens(3, 10)
    ignored = torch.zeros(3, 10, dtype=torch.bool)
    ignored[1, 7:], ignored[2, 4:] = True, True
    seen = nn.Transformer.generate_square_subsequent_mask(10, dtype=torch.float64)
    expected, weights = source(
        x, x, x, key_padding_mask=ignored, average_attn_weights=False,
        attn_mask=(seen < 0) if causal else None,
    )  # fmt: skip
    y, _ = ours(x, key_padding_mask=ignored)
    close(y[~ignored], expected[~ignored])
    assert not y[ignored].any()
    shown = ours.weights(x, key_padding_mask=ignored).weights
    kept = (~ignored)[:, None].expand(3, 4, 10)
    close(shown[kept], weights[kept])
    close(ours(x, mask=~ignored)[0], y)


@pytest.mark.parametrize("name", LAYERS)
def test_a_stream_in_pieces_is_the_whole_to_rounding(name):
    module, x = layer(**LAYERS[name]), tokens(2, N)
    whole, _ = module(x)
    got, state = [], None
    for piece in x.split([30, 1, 1, 1, 37], dim=1):
        y, state = module(piece, state)
        got.append(y)
    close(torch.cat(got, dim=1), whole)
    assert state.stop == N


@pytest.mark.parametrize(
    "name", ["elu, all options", "window, all options", "softmax", "cosformer"]
)
def test_padding_anywhere_is_as_though_it_were_not_there(name):
    """Padding in front, behind and between, in one call and over two; NaN in it has no effect."""
    module, x = layer(**LAYERS[name]), tokens(1, 20)
    text = x.clone().requires_grad_()
    expected, after = module(text)
    expected.square().sum().backward()
    grads = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()

    mask = torch.ones(3, 26, dtype=torch.bool)
    mask[0, :6] = False
    mask[1, 20:] = False
    mask[2, [0, 3, 4, 9, 17, 25]] = False
    padded = torch.full((3, 26, SIZE), math.nan, dtype=torch.float64)
    padded[mask] = x.repeat(3, 1, 1).flatten(0, 1)
    first, state = module(padded[:, :11], mask=mask[:, :11])
    second, state = module(padded[:, 11:], state, mask=mask[:, 11:])
    y = torch.cat([first, second], dim=1)
    close(y[mask].reshape(3, 20, SIZE), expected.detach().expand(3, -1, -1))
    assert not y[~mask].any()
    more = tokens(1, 2, seed=5)
    close(module(more.expand(3, -1, -1), state)[0], module(more, after)[0].expand(3, -1, -1))

    y[mask].square().sum().div(3).backward()
    for p, grad in zip(module.parameters(), grads, strict=True):
        close(p.grad, grad, 1e-9)


@pytest.mark.parametrize(
    "name", ["elu, all options", "window, all options", "softmax", "cosformer"]
)
def test_packed_texts_do_not_see_each_other(name):
    module, x = layer(**LAYERS[name]), tokens(1, 20)
    apart = torch.cat([module(part)[0] for part in x.split([9, 1, 10], dim=1)], dim=1)
    packed, state = module(x, cu_seqlens=torch.tensor([0, 9, 10, 20], dtype=torch.int32))
    close(packed, apart)
    ids = torch.tensor([5] * 9 + [7] + [5] * 10)
    close(module(x, segment_ids=ids)[0], apart)
    more = tokens(1, 3, seed=4)
    close(module(more, state)[0], module(torch.cat([x[:, 10:], more], dim=1))[0][:, 10:])


@pytest.mark.parametrize("name", ["elu, all options", "window, all options", "softmax"])
def test_packed_texts_of_full_attention_are_those_of_a_batch(name):
    module, x = layer(causal=False, **LAYERS[name]), tokens(2, 20)
    ids = torch.zeros(2, 20, dtype=torch.int64)
    ids[0, 9:], ids[0, 10:], ids[1, 4:] = 1, 2, 1
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1, 2], mask[1, 15:] = False, False
    y, state = module(x, segment_ids=ids, mask=mask)
    assert state is None
    for row, parts in ((0, (0, 9, 10, 20)), (1, (0, 4, 20))):
        for first, last in itertools.pairwise(parts):
            here = (slice(row, row + 1), slice(first, last))
            close(y[here], module(x[here], mask=mask[here])[0])
    with pytest.raises(ValueError, match="from a state"):
        module(x, module(x)[1], segment_ids=ids)
    with pytest.raises(ValueError, match="one text"):
        module.weights(x, segment_ids=ids)


def test_states_fork_and_are_saved(tmp_path):
    x, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.bool)
    mask[0, 2] = False
    one, two = tokens(2, 3, seed=2), tokens(2, 3, seed=3)
    for name in LAYERS:
        module = layer(**LAYERS[name])
        _, state = module(x, mask=mask)
        first, _ = module(one, state)
        module(two, state)
        close(module(one, state)[0], first)
        state.save(tmp_path / "s.safetensors")
        loaded = MixerState.load(tmp_path / "s.safetensors", like=x)
        close(module(one, loaded)[0], first)
        assert (loaded.nbytes, loaded.stop) == (state.nbytes, 12), name


def test_halves_read_apart_merge_to_the_whole():
    for name in ("elu", "favor", "softmax window", "cosformer"):
        module, x, more = layer(**LAYERS[name]), tokens(2, 30), tokens(2, 2, seed=2)
        _, whole = module(x)
        _, left = module(x[:, :13])
        _, right = module(x[:, 13:], module.empty_state(2, start=13))
        close(module(more, module.merge(left, right))[0], module(more, whole)[0])


def test_merging_is_refused_where_the_right_half_depends_on_the_left():
    x, mask = tokens(1, 4), torch.ones(1, 4, dtype=torch.bool)
    module = layer(short_convolution=2)
    _, state = module(x)
    with pytest.raises(ValueError, match="short_convolution"):
        module.merge(state, module.empty_state(1, 4))
    module = layer(rotary=True)
    _, state = module(x, mask=mask)
    with pytest.raises(ValueError, match="after a mask"):
        module.merge(state, module.empty_state(1, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_live_state_decodes_what_values_do(dtype, tmp_path):
    module, x = layer(dtype=dtype, **EVERYTHING), tokens(2, N).to(dtype)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2}[dtype]
    with torch.no_grad():
        whole, _ = module(x)
        _, kept = module(x[:, :60])
        state = module.live(kept)
        assert state.memory.compiled
        for t in range(60, 66):
            y, state = module(x[:, t : t + 1], state)
            close(y, whole[:, t : t + 1], tolerance)
        assert state.stop == 66
        assert module.live(state) is state
        frozen = state.frozen()
        state.save(tmp_path / "s")
        loaded = MixerState.load(tmp_path / "s", like=x)
        weights = module.weights(x[:, 66:], state).weights
        module(x[:, 66:67], state)
        for again in (frozen, loaded):
            close(module(x[:, 66:], again)[0], whole[:, 66:], tolerance)
        close(module.weights(x[:, 66:], frozen).weights, weights, tolerance)
        close(module(x[:, 60:], kept)[0], whole[:, 60:], tolerance)
        with pytest.raises(ValueError, match="one token at a time"):
            module(x[:, 66:], state)
    with pytest.raises(ValueError, match="no_grad"):
        module(x[:, 66:67], state)


def test_a_live_state_has_the_weights_of_a_learned_map():
    module = layer(feature_map=LearnedMap(num_heads=4, head_dim=4), rotary=True)
    x = tokens(2, 9)
    with torch.no_grad():
        module.learned.weight.mul_(1.5)
        whole, _ = module(x)
        state = module.live(module(x[:, :7])[1])
        assert state.memory.compiled
        y, state = module(x[:, 7:8], state)
        close(torch.cat([y, module(x[:, 8:], state.frozen())[0]], dim=1), whole[:, 7:])


def test_a_live_state_has_the_tokens_that_are_near():
    for options in ({"window": 4, "sinks": 2}, {"feature_map": "softmax"}):
        module, x = layer(rotary=True, **options), tokens(2, 40)
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[1, 3] = False
        with torch.no_grad():
            _, kept = module(x[:, :5], mask=mask)
            whole, _ = module(x[:, 5:], kept)
            state = module.live(kept)
            assert state.memory.compiled
            parts = []
            for t in range(5, 36):
                y, state = module(x[:, t : t + 1], state)
                parts.append(y)
            rest, _ = module(x[:, 36:], state.frozen())
            close(torch.cat([*parts, rest], dim=1), whole)
            close(module(x[:, 5:], kept)[0], whole)


def test_positions_after_a_mask_are_those_of_each_row():
    module, x = layer(feature_map="cosformer:horizon=50", on_zero="zero"), tokens(2, 12)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 2:4] = False
    with torch.no_grad():
        _, state = module(x[:, :6], mask=mask)
        whole, _ = module(x[:, 6:], state)
        state, parts = module.live(state), []
        for t in range(6, 12):
            y, state = module(x[:, t : t + 1], state)
            parts.append(y)
    close(torch.cat(parts, dim=1), whole)


def test_what_has_no_compiled_step_decodes_with_values():
    module = layer(causal=False)
    _, state = module(tokens(1, 5))
    assert module.live(state) is state


def test_bfloat16_has_a_compiled_step():
    module = layer(window=4, dtype=torch.bfloat16)
    _, state = module(tokens(1, 5).to(torch.bfloat16))
    live = module.live(state)
    assert (live is not state) == kt.Decoder("elu", shape=(1,), d=4).compiled


def test_bytes_of_a_state_grow_for_exact_attention_only():
    for options, grows in ((LAYERS["window, all options"], False), (LAYERS["softmax"], True)):
        module = layer(**options)
        sizes = [module(tokens(1, n))[1].nbytes for n in (40, 80)]
        assert (sizes[1] > sizes[0]) == grows


@pytest.mark.parametrize("name", ["elu, all options", "window, all options"])
def test_gradients_are_those_of_finite_differences_also_through_a_state(name):
    module, x = layer(**LAYERS[name]), tokens(1, 7).requires_grad_()

    def run(x, *weights):
        named = dict(zip(dict(module.named_parameters()), weights, strict=True))
        left, state = torch.func.functional_call(module, named, (x[:, :4],))
        right, _ = torch.func.functional_call(module, named, (x[:, 4:], state))
        return torch.cat([left, right], dim=1)

    weights = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *weights), fast_mode=True)


def test_full_attention_sees_every_token_also_those_of_a_state():
    module, x = layer(causal=False, num_kv_heads=1, value_dim=9, rotary=True), tokens(2, 12)
    whole, _ = module(x)
    _, state = module(x[:, :5])
    close(module(x[:, 5:], state)[0], whole[:, 5:])
    assert not torch.allclose(layer(num_kv_heads=1, value_dim=9, rotary=True)(x)[0], whole)


def test_weights_are_those_that_forward_mixes_with():
    module, x = layer(window=3, sinks=1, rotary=True), tokens(1, 9)
    v = module.v_proj(x).unflatten(-1, (4, -1)).transpose(1, 2)
    weights = module.weights(x).weights
    mixed = (weights @ v).transpose(1, 2).flatten(-2)
    close(module.o_proj(mixed), module(x)[0])
    close(module.weights(x, rows=[2, 8]).weights, weights[..., [2, 8], :])
    long = tokens(1, 4097)
    with pytest.raises(ValueError, match="rows="):
        module.weights(long)
    assert module.weights(long, rows=4000).weights.shape == (1, 4, 1, 4097)


@pytest.mark.parametrize("feature_map", ["elu", "favor:features=16", "taylor", "softmax", "exp"])
def test_float16_stays_finite_up_to_its_largest_numbers(feature_map):
    """W adds pairs of columns, so q and k reach 120,000, which overflows float16."""
    window = 4 if feature_map == "elu" else 0
    module = layer(feature_map=feature_map, window=window, rotary=True, on_zero="zero")
    turn = torch.eye(SIZE).unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
    for name, sign in (("q_proj", 1), ("k_proj", -1), ("v_proj", 0)):
        getattr(module, name).weight.data = torch.eye(SIZE) + sign * turn
    module.o_proj.weight.data = torch.eye(SIZE) / 2
    x = 60_000 * torch.sign(tokens(2, 20, dtype=torch.float32)).half()
    module = module.half()
    y, state = module(x)
    assert y.dtype == torch.float16
    assert bool(torch.isfinite(y).all())
    y, _ = module(x, state)
    assert bool(torch.isfinite(y).all())


def test_autocast_computes_in_its_dtype():
    module, x = layer(dtype=torch.float32, **EVERYTHING), tokens(1, N, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = module(x)
        again, _ = module(x, state)
    assert y.dtype == again.dtype == torch.bfloat16
    close(y.float(), module(x)[0], 0.05)


def test_shapes_are_found_on_the_meta_device():
    for name in LAYERS:
        with torch.device("meta"):
            module = layer(dtype=torch.float32, **LAYERS[name])
            x = torch.empty(2, N, SIZE)
            y, state = module(x, mask=torch.ones(2, N, dtype=torch.bool))
            y, state = module(x[:, :1], state)
        assert (y.device.type, y.shape) == ("meta", (2, 1, SIZE)), name
    module, x = layer(**LAYERS["window, all options"]), tokens(2, 9)
    expected, _ = module(x)
    with torch.device("cpu"):  # a default device changes nothing
        close(module(x)[0], expected, 0)


def test_a_learned_map_is_learned_and_moved_with_the_layer():
    learned = LearnedMap("hedgehog@window=4", num_heads=4, head_dim=4)
    module, x = layer(feature_map=learned), tokens(1, 20)
    assert {"learned.weight", "learned.gain"} <= dict(module.named_parameters()).keys()
    y, state = module(x)
    y.sum().backward()
    assert learned.weight.grad.any()
    assert learned.gain.grad.any()
    close(module(x[:, 12:], module(x[:, :12])[1])[0], y[:, 12:])
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.learned.weight.mul_(2)
    assert not torch.allclose(twin(x)[0], y)
    with pytest.raises(ValueError, match="state is of"):
        twin(x, state)
    module.load_state_dict(twin.state_dict())
    close(twin(x)[0], module(x)[0], 0)
    with pytest.raises(ValueError, match="2 key heads of width 4"):
        layer(feature_map=LearnedMap(num_heads=4, num_kv_heads=2, head_dim=4))
    with pytest.raises(TypeError, match="LearnedMap"):
        layer(feature_map=maps.Hedgehog(weight=nn.Parameter(torch.eye(4))))
    with pytest.raises(ValueError, match="give window, sinks and far to that"):
        layer(feature_map=learned, window=3)


WITH_A_MODULE = {
    "layer": lambda phi: Attention(SIZE, 4, feature_map=phi),
    "field of a map": lambda phi: Attention(SIZE, 4, feature_map=Mine(phi)),
    "windows by head": lambda phi: Attention(SIZE, 4, feature_map=phi, window=(2, None, 3, 1)),
    "learned gain": lambda phi: make(kt.Dial(phi, window=3), SIZE, 4),
    "model": lambda phi: LanguageModel(9, mixer=phi, hidden_size=SIZE, num_layers=2),
}


@pytest.mark.parametrize("name", WITH_A_MODULE)
def test_a_module_as_the_map_belongs_to_the_layer(name):
    torch.manual_seed(0)
    phi = Phi()
    start = copy.deepcopy(phi.state_dict())
    module = WITH_A_MODULE[name](phi).double()
    x = torch.randint(9, (2, 12)) if name == "model" else tokens(2, 12)
    assert {id(p) for p in phi.parameters()} <= {id(p) for p in module.parameters()}
    for key, value in phi.state_dict().items():
        close(value, start[key].double(), 0)  # a model draws its own weights, not those of a map
    y = module(x)[0]
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    y.square().sum().backward()
    optimizer.step()
    for key, value in phi.state_dict().items():
        assert not torch.allclose(value, start[key].double()), key
    close(twin(x)[0], y, 0)
    trained = module(x)[0]
    assert not torch.allclose(trained, y)
    twin.load_state_dict(module.state_dict())
    close(twin(x)[0], trained, 0)
    for inner in twin.modules():
        if isinstance(inner, LearnedMap):
            field = next(key for key, child in inner.named_children() if isinstance(child, Phi))
            setattr(inner, field, Phi().double())
    assert not torch.allclose(twin(x)[0], trained)
    for dtype, tolerance in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        half = copy.deepcopy(module).to(dtype)
        y = half(x if name == "model" else x.to(dtype))[0]
        assert y.dtype == dtype
        close(y.double(), trained, tolerance)
    if name == "model":
        assert module.generate(x, 3, seed=0).shape == (2, 3)
    else:
        assert "learned" in dict(module.named_children())
        assert module.live(module(x)[1]).stop == 12


@pytest.mark.parametrize("window", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_compiled_layer_has_its_own_module(window):
    torch.compiler.reset()
    x = tokens(2, 9)
    for activation in (nn.functional.softplus, torch.exp):  # one code, other modules
        phi = Phi()
        phi.forward = lambda x, phi=phi, act=activation: act(phi.projection(x))
        module = layer(feature_map=phi, window=window)
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        close(compiled(x)[0], module(x)[0])
        compiled(x)[0].sum().backward()
        assert phi.projection.weight.grad.any()
        module.learned.function = Phi().double()
        close(compiled(x)[0], module(x)[0])


def test_functions_that_hide_parameters_are_refused():
    phi = Phi()
    scale = nn.Parameter(torch.ones(()))
    for hiding in (
        lambda x: phi(x),
        phi.forward,
        functools.partial(phi),
        lambda x: x.exp() * scale,
    ):
        with pytest.raises(TypeError, match=r"parameters of (phi|Phi|scale), .* torch.nn.Module"):
            layer(feature_map=hiding)
    with pytest.raises(TypeError, match="all heads share a torch"):
        fit(tuple(torch.randn(3, 1, 40, 4).numpy()), phi)
    phi.requires_grad_(False)
    layer(feature_map=lambda x: phi(x))


@pytest.mark.parametrize("causal", [True, False])
def test_hard_attention_picks_values_and_trains_no_query_or_key(causal):
    torch.manual_seed(0)
    hard = HardAttention(SIZE, 4, causal=causal, rotary=True).double()
    x, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[0, :2] = False
    y, state = hard(x, mask=mask)
    y.sum().backward()
    assert state is None
    assert hard.q_proj.weight.grad is None
    assert hard.k_proj.weight.grad is None
    assert hard.v_proj.weight.grad.any()
    assert hard.o_proj.weight.grad.any()
    weights = hard.weights(x, mask=mask).weights
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    close(hard.weights(x, mask=mask, rows=3).weights, weights[..., [3], :])
    soft = Attention(SIZE, 4, causal=causal, rotary=True, feature_map="softmax").double()
    soft.load_state_dict(hard.state_dict())
    with torch.no_grad():
        for p in (soft.q_proj, soft.k_proj):
            p.weight.mul_(1000)
    close(soft(x, mask=mask)[0], y, 1e-6)
    trained = HardAttention(SIZE, 4, substitute="straight-through").double()
    trained(x)[0].sum().backward()
    assert trained.q_proj.weight.grad.any()
    with pytest.raises(ValueError, match="no state"):
        hard(x, layer(causal=causal, rotary=True)(x)[1])


def test_what_has_no_meaning_is_refused_in_words():
    for call, error, words in (
        (lambda m, x: m(x, mask=torch.ones(2, 5).long()), TypeError, "yours != 0"),
        (lambda m, x: m(x, key_padding_mask=torch.zeros(2, 5)), TypeError, "True where .* ignored"),
        (lambda m, x: m(x, mask=torch.ones(5, 2) > 0), ValueError, r"\(2, 5\), not \(5, 2\)"),
        (lambda m, x: m(x, mask=torch.ones(2, 4, 5) > 0), ValueError, "one entry per token"),
        (lambda m, x: m(x, mask=x[..., 0] > 0, key_padding_mask=x[..., 0] > 0), ValueError, "both"),
        (lambda m, x: m(x.float()), TypeError, "float64, but x is torch.float32"),
        (lambda m, x: m(x.to("meta")), ValueError, "x is on meta"),
        (lambda m, x: m(x[0]), ValueError, r"\(batch, n, 16\)"),
        (lambda m, x: m(x, segment_ids=x[..., 0]), TypeError, "a tensor of integers"),
        (lambda m, x: m(x, segment_ids=torch.zeros(5, 2).long()), ValueError, "one entry per"),
        (lambda m, x: m(x, cu_seqlens=torch.tensor([0, 5])), ValueError, "one packed row"),
        (lambda m, x: m(x[:1], cu_seqlens=torch.tensor([0, 3])), ValueError, "rise from 0 to n"),
        (lambda m, x: m(x, kt.State), TypeError, "MixerState"),
        (lambda m, x: m(x, layer(layer_idx=3)(x)[1]), ValueError, "layer_idx=3"),
        (lambda m, x: m(x, layer(feature_map="exp")(x)[1]), ValueError, "state is of"),
        (lambda m, x: m(x, m(x[:1])[1]), ValueError, "1 rows"),
        (lambda m, x: Attention(16, 5), ValueError, "set head_dim"),
        (lambda m, x: Attention(16, 4, num_kv_heads=3), ValueError, "evenly"),
        (lambda m, x: Attention(15, 5, rotary=True), ValueError, "even head_dim"),
        (lambda m, x: Attention(16, 4, far=1.0), ValueError, "window or sinks"),
        (lambda m, x: Attention(16, 4, feature_map="el"), ValueError, "elu"),
        (lambda m, x: HardAttention(16, 4, feature_map="elu"), TypeError, "no feature map"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call(layer(), tokens(2, 5))


def test_what_multihead_attention_has_more_is_refused():
    for source, words in (
        ({"batch_first": False}, "batch_first"),
        ({"dropout": 0.1}, "never forms them"),
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_bias_kv"),
        ({"kdim": 8}, "not self-attention"),
    ):
        own = nn.MultiheadAttention(16, 4, **{"batch_first": True} | source)
        with pytest.raises(ValueError, match=words):
            Attention.from_multihead_attention(own)
    with pytest.raises(TypeError, match="bias"):
        Attention.from_multihead_attention(nn.MultiheadAttention(16, 4), bias=False)


@pytest.mark.parametrize("near", [{}, {"window": 4, "sinks": 1}])
def test_a_layer_is_exported_with_its_state(near, tmp_path):
    layer = Attention(16, 2, feature_map="elu", causal=True, **near).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    program = torch.export.export(
        layer, (torch.randn(2, 10, 16),), dynamic_shapes=({0: batch, 1: length},)
    )
    torch.export.save(program, tmp_path / "layer.pt2")
    whole = torch.export.load(tmp_path / "layer.pt2").module()
    x, more = torch.randn(3, 17, 16), torch.randn(3, 2, 16)
    y, state = whole(x)
    expected, after = layer(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(layer(more, state)[0], layer(more, after)[0])
    goes_on = torch.export.export(layer, (more, state.detach())).module()
    torch.testing.assert_close(goes_on(more, after)[0], layer(more, after)[0])
