"""Mixers agree between whole, chunks and single tokens, and handle padding and forks."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from kerneltrick.torch import LanguageModel, MixerState, mixers  # noqa: E402
from kerneltrick.torch.mixers import delta_rule  # noqa: E402

SIZE, N = 16, 70  # a chunk of 64 and some more
NAMES = {name: name for name in mixers.MIXERS} | {"hyena": "hyena:length=40"}


def mixer(name, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    made = mixers.make(NAMES[name], SIZE, 2, **options)
    with torch.no_grad():  # parameters that start at 0 or 1 must have an effect too
        for p in made.parameters():
            if p.ndim < 2:
                p.add_(0.1 * torch.randn_like(p))
    return made.to(dtype)


def tokens(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, SIZE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_in_pieces_is_the_whole_to_rounding(name):
    module, x = mixer(name), tokens(2, N)
    whole, _ = module(x)
    got, state = [], None
    for piece in x.split([30, 1, 1, 0, 1, 37], dim=1):
        y, state = module(piece, state)
        got.append(y)
    close(torch.cat(got, dim=1), whole)
    assert state.stop == N
    changed = torch.cat([x[:, :50], -x[:, 50:]], dim=1)
    close(module(changed)[0][:, :50], whole[:, :50])
    assert not torch.allclose(module(changed)[0][:, 50:], whole[:, 50:])
    earlier = torch.cat([tokens(2, 40, seed=9), x[:, 40:]], dim=1)
    assert not torch.allclose(module(earlier)[0][:, 42:], whole[:, 42:])


@pytest.mark.parametrize("name", NAMES)
def test_padding_anywhere_is_as_though_it_were_not_there(name):
    """Padding in front, behind and between, in one call and over two; NaN in it has no effect."""
    module, x = mixer(name), tokens(1, 20)
    expected, after = module(x)
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


@pytest.mark.parametrize("name", NAMES)
def test_packed_texts_do_not_see_each_other(name):
    module, x = mixer(name), tokens(1, N)
    _, state = module(tokens(1, 5, seed=6))
    parts = x.split([9, 1, 60], dim=1)
    apart = torch.cat([module(parts[0], state)[0], *(module(p)[0] for p in parts[1:])], dim=1)
    packed, after = module(x, state, cu_seqlens=torch.tensor([0, 9, 10, N], dtype=torch.int32))
    close(packed, apart)
    ids = torch.tensor([5] * 9 + [7] + [5] * 60)
    close(module(x, state, segment_ids=ids)[0], apart)
    more = tokens(1, 3, seed=4)
    close(module(more, after)[0], module(torch.cat([parts[2], more], dim=1))[0][:, 60:])
    mask = torch.ones(1, N, dtype=torch.bool)
    mask[:, [3, 8, 9, 10, 40]] = False
    y, _ = module(x, state, segment_ids=ids, mask=mask)
    close(y[:, 11:], module(parts[2], mask=mask[:, 10:])[0][:, 1:])


@pytest.mark.parametrize("name", NAMES)
def test_states_fork_and_are_saved(name, tmp_path):
    module, x = mixer(name), tokens(2, 12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 2] = False
    _, state = module(x, mask=mask)
    one, two = tokens(2, 3, seed=2), tokens(2, 3, seed=3)
    first, _ = module(one, state)
    module(two, state)
    close(module(one, state)[0], first)
    state.save(tmp_path / "s.safetensors")
    loaded = MixerState.load(tmp_path / "s.safetensors", like=x)
    close(module(one, loaded)[0], first)
    assert (loaded.nbytes, loaded.stop) == (state.nbytes, 12)
    plain = state.detach()
    held = getattr(plain.memory, "tensor", None)
    held = plain.memory.sums.hi if held is None else held
    assert not held.requires_grad
    close(module(one, plain)[0], first)
    with pytest.raises(ValueError, match="but this is"):
        mixer(name, layer_idx=3)(one, state)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences_also_through_a_state(name):
    module, x = mixer(name), tokens(1, 6).requires_grad_()

    def run(x, *weights):
        named = dict(zip(dict(module.named_parameters()), weights, strict=True))
        left, state = torch.func.functional_call(module, named, (x[:, :4],))
        right, _ = torch.func.functional_call(module, named, (x[:, 4:], state))
        return torch.cat([left, right], dim=1)

    weights = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *weights), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_near_float64_and_streams(name):
    module = mixer(name)
    for dtype in (torch.float16, torch.bfloat16):
        x = tokens(1, N).to(dtype)
        half = copy.deepcopy(module).to(dtype)
        exact, _ = copy.deepcopy(half).double()(x.double())
        y, _ = half(x)
        assert y.dtype == dtype
        close(y.double(), exact, 0.1)
        _, state = half(x[:, :40])
        close(half(x[:, 40:], state)[0].double(), exact[:, 40:], 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_a_state_do_not_grow_but_those_of_hyena_up_to_its_filter(name):
    module = mixer(name)
    sizes = [module(tokens(1, n))[1].nbytes for n in (30, 60, 90)]
    assert (sizes[1] > sizes[0]) == (name == "hyena")
    assert sizes[2] == sizes[1]


@pytest.mark.parametrize("decay", [False, True])
def test_the_delta_rule_by_chunks_is_the_recurrence_and_so_are_its_gradients(decay):
    torch.manual_seed(0)
    shape, d, M, n = (2, 3), 8, 5, 70
    q, k = torch.randn(2, *shape, n, d, dtype=torch.float64)
    k = torch.nn.functional.normalize(k, dim=-1)
    v = torch.randn(*shape, n, M, dtype=torch.float64)
    beta = 2 * torch.rand(*shape, n, dtype=torch.float64)  # up to a reflection
    log_decay = -30 * torch.rand(*shape, n, dtype=torch.float64) ** 8 if decay else None
    given = [x.requires_grad_() for x in (q, k, v, beta, log_decay) if x is not None]
    S, rows = torch.zeros(*shape, d, M, dtype=torch.float64), []
    for t in range(n):
        S = S if log_decay is None else log_decay[..., t, None, None].exp() * S
        read = torch.einsum("bhd,bhdm->bhm", k[:, :, t], S)
        correction = beta[..., t, None] * (v[:, :, t] - read)
        S = S + k[:, :, t, :, None] * correction[..., None, :]
        rows.append(torch.einsum("bhd,bhdm->bhm", q[:, :, t], S))
    expected = torch.stack(rows, dim=2)
    want = torch.autograd.grad(expected.square().sum() + S.square().sum(), given)
    for chunk_size in (1, 16, 64, 100):
        o, after = delta_rule(q, k, v, beta, log_decay, chunk_size=chunk_size)
        close(o, expected)
        close(after, S)
        got = torch.autograd.grad(o.square().sum() + after.square().sum(), given)
        for a, b in zip(got, want, strict=True):
            close(a, b, 1e-9)


def test_a_key_written_again_gives_back_its_new_value_alone():
    k = torch.eye(4, dtype=torch.float64)[None, None, [0, 1, 2, 0]]
    v = torch.randn(1, 1, 4, 3, dtype=torch.float64)
    _, S = delta_rule(k, k, v, torch.ones(1, 1, 4, dtype=torch.float64))
    close(S[0, 0, :3], v[0, 0, [3, 1, 2]])


def test_rwkv_reads_what_was_there_before_the_token_and_the_token_with_its_bonus():
    module, x = mixer("rwkv"), tokens(1, 9)
    heads = module._heads(module._check(x, None, None, None, None, None), None)
    previous = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    w, k, v, r, _ = module._shifted(x, previous - x)
    decay = module.decay_up(torch.tanh(module.decay_down(w))).exp().neg().exp()
    parts = (module.k_proj(k), module.v_proj(v), module.r_proj(r), decay)
    k, v, r, decay = (y[0].unflatten(-1, (2, -1)) for y in parts)  # (n, heads, width)
    S, rows = torch.zeros(2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        new = k[t, :, :, None] * v[t, :, None]
        rows.append(((S + module.bonus[..., None] * new) * r[t, :, :, None]).sum(1))
        S = decay[t, :, :, None] * S + new
    close(module(x)[0], module._combine(heads, torch.stack(rows, dim=1)[None]))


def test_decays_of_retention_are_those_of_the_paper():
    module = mixer("retention")
    assert module._log_decay == pytest.approx([math.log(31 / 32), math.log(63 / 64)])


def test_language_models_take_mixers_by_name_and_in_turn():
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    for name in ("gated_deltanet", "based:feature_dim=4+softmax@window=3"):
        torch.manual_seed(0)
        own = LanguageModel(11, mixer=name, **sizes).double()
        whole, _ = own(tokens)
        _, state = own(tokens[:, :13])
        torch.testing.assert_close(own(tokens[:, 13:], state)[0], whole[:, 13:])
        assert own.generate(tokens[:, :3], 4, seed=0).shape == (2, 4)
    kinds = [type(block.mixer).__name__ for block in own.blocks]
    assert kinds == ["Based", "Attention"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deltanett", "did you mean 'deltanet'"),
        ("ellu", "did you mean 'elu'"),
        ("RetNet", "did you mean 'retention'"),
        ("mamba-2", "did you mean 'ssd'"),
        ("s6", "did you mean 'mamba'"),
        ("elu@", "nothing follows '@'"),
        ("ssd:state=4", "did you mean 'state_dim'"),
        ("ssd:state_dim=four", "a whole number, not 'four'"),
        ("rwkv:head_dim=4", "it takes none"),
        ("gla@window=4", "only maps take a window"),
        ("ssd:num_groups=3", r"num_groups \(3\)"),
        ("retention:head_dim=3", "even head_dim"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(text, message):
    with pytest.raises(ValueError, match=message):
        mixers.make(text, SIZE, 2)


def test_states_of_others_are_refused():
    module, x = mixer("deltanet"), tokens(1, 4)
    _, state = mixer("gated_deltanet")(x)
    with pytest.raises(ValueError, match="the state is of GatedDeltaNet"):
        module(x, state)
    with pytest.raises(TypeError, match="MixerState"):
        module(x, state.memory)
    _, state = module(x)
    with pytest.raises(ValueError, match="1 rows"):
        module(tokens(2, 4), state)


def test_a_broken_state_file_is_refused(tmp_path):
    import safetensors.numpy

    from kerneltrick.torch._mixer_state import HELD

    about = {"format": HELD, "owner": "x", "stop": "3"}
    like = torch.empty(0)
    for tensors, more in (({}, {}), ({"held": [1.0]}, {}), ({"held": [[1.0]]}, {"stop": "-1"})):
        arrays = {name: torch.tensor(x).numpy() for name, x in tensors.items()}
        safetensors.numpy.save_file(arrays, tmp_path / "s", about | more)
        with pytest.raises(ValueError, match="is not a state"):
            MixerState.load(tmp_path / "s", like=like)
