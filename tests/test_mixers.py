"""Mixers agree between whole, chunks and single tokens, and handle padding and forks."""

import math

import pytest

torch = pytest.importorskip("torch")

from kerneltrick.torch import LanguageModel, MixerState, mixers  # noqa: E402
from kerneltrick.torch._mixer import ProjectedMixer  # noqa: E402

SIZE, N = 16, 70  # a chunk of 64 and some more
NAMES = {name: name for name in mixers.MIXERS} | {
    "hyena": "hyena:length=40",
    "mesa": "mesa:steps=9",
}


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
    assert plain.tail is None or not plain.tail.requires_grad
    close(module(one, plain)[0], first)
    with pytest.raises(ValueError, match="but this is"):
        mixer(name, layer_idx=3)(one, state)
    # The bytes of a state do not grow, but those of Hyena up to its filter.
    sizes = [module(tokens(1, n))[1].nbytes for n in (30, 60, 90)]
    assert (sizes[1] > sizes[0]) == (name == "hyena")
    assert sizes[2] == sizes[1]


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


def by_head(x):
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def unit(x, eps=0.0):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def recurrence(q, k, v, x, e, decay):
    """S_t = D_t S_{t−1} − x_t (e_tᵀ D_t S_{t−1}) + k_t v_tᵀ, o_t = S_tᵀ q_t, token by token."""
    S, rows = 0 * k[:, :, 0, :, None] * v[:, :, 0, None], []
    for t in range(k.shape[2]):
        S = decay[:, :, t, :, None] * S
        S = S - x[:, :, t, :, None] * (e[:, :, t, :, None] * S).sum(2, keepdim=True)
        S = S + k[:, :, t, :, None] * v[:, :, t, None]
        rows.append((q[:, :, t, :, None] * S).sum(2))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda", "gated_deltanet2", "comba"])
def test_delta_rules_are_the_equations_of_their_papers(name):
    module, x = mixer(name), tokens(1, 9)
    given = module._check(x, None, None, None, None, None)
    heads, (q, k, v, *_) = module._heads(given, None), ProjectedMixer._heads(module, given, None)
    k = k if name in ("gated_deltanet2", "comba") else unit(k, 1e-6)
    decay = torch.ones_like(k)
    if name in ("gated_deltanet", "comba"):
        step = torch.nn.functional.softplus(module.decay_proj(x) + module.step_bias)
        decay = (-module.A_log.exp() * step).exp().mT[..., None].expand_as(k)
    elif name != "deltanet":
        step = module.decay_up(module.decay_down(x)) + module.step_bias
        step = by_head(torch.nn.functional.softplus(step))
        decay = (-module.A_log.exp()[:, None, None] * step).exp()
    if name == "gated_deltanet2":
        b, c = (by_head(y(x).sigmoid()) for y in (module.erase_proj, module.write_proj))
        q, k = unit(q), unit(k)
        e, w = b * k, c * v
    elif name == "comba":
        beta = module.beta_proj(x).sigmoid().mT[..., None]
        k = unit(k)
        p = module.feedback.sigmoid()[:, None, None] * k
        q, e, w = unit(q) - module.correction[:, None, None] * p, beta * p, beta * v
    else:
        beta = module.beta_proj(x).sigmoid().mT[..., None]
        q, e, w = unit(q, 1e-6), beta * k, beta * v
    o = recurrence(q, k, w, k, e, decay) / 8**0.5
    close(module(x)[0], module._combine(heads, o))


def test_rwkv7_is_the_equation_of_its_paper():
    module, x = mixer("rwkv7"), tokens(1, 9)
    heads = module._heads(module._check(x, None, None, None, None, None), None)
    previous = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    r, w, k, v, a, g = (x + (previous - x) * mu for mu in module.shift)
    w = module.w_up(module.w_down(w).tanh())
    decay = by_head((-math.exp(-0.5) * w.sigmoid()).exp())
    a = module.a_up(module.a_down(a)).sigmoid()
    r, k, v = module.r_proj(r), module.k_proj(k), module.v_proj(v)
    kappa = unit(by_head(k * module.removed))
    k = by_head(k * (1 + (a - 1) * module.replaced))
    r, v, a = by_head(r), by_head(v), by_head(a)
    o = recurrence(r, k, v, a * kappa, kappa / decay, decay)  # it reads before the decay
    o = module.norm(o.transpose(1, 2).flatten(0, 1).flatten(1)).view_as(x)
    own = (r * module.bonus[:, None] * k).sum(-1, keepdim=True) * v
    gate = module.g_up(module.g_down(g).sigmoid())
    expected = module.o_proj((o + own.transpose(1, 2).flatten(2)) * gate)
    close(module(x)[0], expected)
    assert heads.read.isfinite().all()


def test_delta_product_corrects_several_times_for_each_token():
    torch.manual_seed(0)
    module, x = mixers.make("deltaproduct:steps=3", SIZE, 2).double(), tokens(1, 9)
    given = module._check(x, None, None, None, None, None)
    heads, (q, k, v, *_) = module._heads(given, None), ProjectedMixer._heads(module, given, None)
    beta = 2 * module.beta_proj(x).sigmoid().unflatten(-1, (2, 3))  # head by head, then steps
    step = torch.nn.functional.softplus(module.decay_proj(x) + module.step_bias)
    decay = (-module.A_log.exp() * step).exp()
    S, rows = torch.zeros(2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        S = decay[0, t, :, None, None] * S
        for j in range(3):
            key, value = unit(k[0, :, t].chunk(3, -1)[j], 1e-6), v[0, :, t].chunk(3, -1)[j]
            wrong = value - (key[..., None] * S).sum(1)
            S = S + (beta[0, t, :, j, None] * key)[..., None] * wrong[:, None]
        rows.append((unit(q[0, :, t], 1e-6)[..., None] * S).sum(1) / 8**0.5)
    close(module(x)[0], module._combine(heads, torch.stack(rows, dim=1)[None]))


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


def test_power_retention_weighs_by_powers_of_inner_products_that_decay():
    module, x = mixer("power_retention"), tokens(1, 9)
    heads = module._heads(module._check(x, None, None, None, None, None), None)
    total = heads.log_decay.cumsum(-1)
    weights = (heads.q @ heads.k.mT) ** 2 * (total[..., None] - total[..., None, :]).exp()
    weights = weights.tril()
    expected = weights @ heads.v / weights.sum(-1, keepdim=True)
    close(module(x)[0], module._combine(heads, expected))


def test_mesa_predicts_by_ridge_regression_on_the_tokens_so_far():
    """The system is solved densely here; with fewer steps than columns it is only approximated."""
    module, x = mixer("mesa"), tokens(1, 9)
    heads = module._heads(module._check(x, None, None, None, None, None), None)
    ridge = torch.nn.functional.softplus(module.ridge) + 0.25
    sums, rows = torch.zeros(1, 2, 8, 16, dtype=torch.float64), []
    for t in range(9):
        sums = heads.log_decay[..., t, None, None].exp() * sums
        sums = sums + heads.k[:, :, t, :, None] * heads.v[:, :, t, None]
        G, H = sums.split(8, dim=-1)
        weights = torch.linalg.solve(H + torch.diag_embed(ridge), G)
        rows.append((weights * heads.q[:, :, t, :, None]).sum(2))
    expected = module._combine(heads, torch.stack(rows, dim=2))
    close(module(x)[0], expected)
    module.steps = 2
    assert not torch.allclose(module(x)[0], expected)


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


def test_what_cannot_be_made_is_refused_in_words():
    for text, message in (
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
        ("power_retention:degree=3", "needs an even degree"),
    ):
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
