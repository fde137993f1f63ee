"""Layers in every floating-point type: outputs, gradients, streams, and calls with nothing in them.

A layer in a narrow type is compared with the same weights, made float64, on the same tokens.
"""

import copy

import pytest

torch = pytest.importorskip("torch")

from kerneltrick.torch import Attention, HardAttention, LanguageModel, LearnedMap  # noqa: E402
from kerneltrick.torch.mixers import MIXERS, make  # noqa: E402

SIZE, N = 16, 70  # a chunk of 64 and some more
MAPS = [
    "elu", "relu", "relu2", "exp", "square", "identity", "cosformer:horizon=99",
    "favor:features=16", "favor:features=16,kind=trig", "poly:degree=2", "taylor:order=2",
    "hedgehog", "t2r:features=8", "softmax", "elu@window=6,sinks=2", "hedgehog@window=6",
    "t2r:features=8@window=6", "softmax@window=6",
]  # fmt: skip
SHORT = {"hyena": "hyena:length=40", "mesa": "mesa:steps=9"}
NAMES = [SHORT.get(name, name) for name in MIXERS]
# What may be lost: the square root of the mean square error, of that of the exact numbers.
LOST = {torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 3e-2}
SIGNED = ("identity", "favor:features=16,kind=trig")  # weights that cancel: errors grow
DTYPES = [torch.bfloat16, torch.float16, torch.float64]


def module(text, dtype):
    torch.manual_seed(0)
    made = make(text, SIZE, 2)
    with torch.no_grad():
        for p in made.parameters():  # parameters that start at 0 or 1 must have an effect too
            if p.ndim < 2:
                p.add_(0.1 * torch.randn_like(p))
        if getattr(made, "learned", None) is not None and hasattr(made.learned, "weight"):
            made.learned.weight.add_(0.2 * torch.randn_like(made.learned.weight))
    return made.to(dtype)


def tokens(n, dtype, batch=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, SIZE, generator=generator, dtype=torch.float64).to(dtype)


def most(text, dtype):
    """What a layer may lose in its output."""
    return (4 if text in SIGNED else 1) * LOST[dtype]


def lost(found, exact):
    error, size = ((x.double() ** 2).mean().sqrt() for x in (found.double() - exact, exact))
    return float(error / size) if size else float(error)


def gradients(layer, x):
    x = x.clone().requires_grad_()
    y, _ = layer(x)
    (y.double() * torch.sin(torch.arange(y.numel()).double()).reshape(y.shape)).sum().backward()
    named = {name: p.grad for name, p in layer.named_parameters()}
    return y.detach(), {"x": x.grad, **named}


@pytest.mark.parametrize("text", [*NAMES, *MAPS])
def test_a_layer_loses_no_more_than_its_type(text):
    for dtype in DTYPES:
        narrow, x = module(text, dtype), tokens(N, dtype)
        wide = copy.deepcopy(narrow).double()
        (y, found), (exact, expected) = gradients(narrow, x), gradients(wide, x.double())
        assert y.dtype == dtype
        assert lost(y, exact) < most(text, dtype), dtype
        for name, grad in expected.items():
            assert (found[name] is None) == (grad is None), name
            if grad is not None:
                assert found[name].dtype == dtype
                # What adds up to nearly nothing, such as a bias before a norm, has no digits.
                assert lost(found[name], grad) < 4 * most(text, dtype), (dtype, name)
        assert sum(float(g.abs().max()) > 0 for g in found.values() if g is not None) > 3
        goes_on(narrow, most(text, dtype), dtype)


def goes_on(layer, tolerance, dtype):
    """A stream in pieces, with a live state where there is one, is the whole."""
    x = tokens(24, dtype, batch=2)
    with torch.no_grad():
        exact, _ = copy.deepcopy(layer).double()(x.double())
        got, state = layer(x[:, :16])
        pieces = [got]
        for i in range(16, 19):
            y, state = layer(x[:, i : i + 1], state)
            pieces.append(y)
        if hasattr(layer, "live"):
            live = layer.live(state)
            for i in range(19, 22):
                y, live = layer(x[:, i : i + 1], live)
                pieces.append(y)
            state = live.frozen()
        else:
            y, state = layer(x[:, 19:22], state)
            pieces.append(y)
        pieces.append(layer(x[:, 22:], state)[0])
    assert all(piece.dtype == dtype for piece in pieces)
    assert lost(torch.cat(pieces, dim=1), exact) < tolerance, dtype


NORMALISED = ("deltanet", "gated_deltanet", "kda")
DELTA = (*NORMALISED, "gated_deltanet2", "comba", "rwkv7")


def by_loop(text, layer, x):
    """A mixer of float64, token by token, from its queries, keys, values, decays and gates."""
    given = layer._check(x, None, None, None, None, None)
    heads = layer._heads(given, None)
    batch, count, n, d = heads.q.shape
    memory = torch.zeros(batch, count, d, heads.v.shape[-1], dtype=torch.float64)
    decay = heads.log_decay
    if type(layer).__name__ == "Retention":  # Eq. 8 of Sun et al. 2023
        rates = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(count)], dtype=torch.float64)
        decay = rates.log()[:, None].expand(batch, count, n)
    if text in NORMALISED:  # inside the rule
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in heads[:2])
        heads = heads._replace(q=q / d**0.5, k=k)
    elif text in ("gated_deltanet2", "comba"):
        heads = heads._replace(q=heads.q / d**0.5)
    read = heads.k if heads.read is None else heads.read
    erase = heads.k if heads.erase is None else heads.erase
    outputs = []
    for t in range(n):
        k, v = heads.k[:, :, t], heads.v[:, :, t]
        if decay is not None:
            kept = decay[:, :, t].exp()
            memory = memory * (kept[..., None] if kept.ndim == 3 else kept[..., None, None])
        if text in DELTA:
            beta = 1 if heads.beta is None else heads.beta[:, :, t, None]
            found = beta * torch.einsum("bhdm,bhd->bhm", memory, read[:, :, t])
            memory, v = memory - erase[:, :, t, :, None] * found[..., None, :], beta * v
        memory = memory + k[..., None] * v[..., None, :]
        outputs.append(torch.einsum("bhdm,bhd->bhm", memory, heads.q[:, :, t]))
    o = torch.stack(outputs, dim=2)
    if heads.own is not None:
        o = o + heads.own * (heads.v if heads.own_v is None else heads.own_v)
    return layer._combine(heads, o)


def test_a_mixer_in_float64_is_the_loop_in_float64():
    x = tokens(N, torch.float64, batch=2)
    for text in ("retention", "ssd", "gla", "rwkv", *DELTA):
        layer = module(text, torch.float64)
        with torch.no_grad():
            assert lost(layer(x)[0], by_loop(text, layer, x)) < 1e-13, text


OTHERS = {
    "full": lambda: Attention(SIZE, 2, causal=False, short_convolution=3),
    "full window": lambda: Attention(SIZE, 2, causal=False, window=3),
    "hard": lambda: HardAttention(SIZE, 2),
}


def test_a_batch_without_rows_or_tokens_gives_as_much():
    """Also with a mask or with texts, forward, backward and in a stream."""
    for text in (*NAMES, *MAPS, *OTHERS):
        layer = OTHERS[text]() if text in OTHERS else make(text, SIZE, 2)
        for batch, n in ((0, 0), (0, 5), (2, 0), (2, 1)):
            which = [{"mask": torch.ones(batch, n, dtype=torch.bool)}, {}]
            which += [{"segment_ids": torch.arange(n) // 2}] if text != "hard" else []
            for given in which[batch > 0 :]:
                x = tokens(n, torch.float32, batch).requires_grad_()
                y, state = layer(x, **given)
                assert y.shape == x.shape, (text, batch, n)
                assert y.isfinite().all(), (text, batch, n)
                y.sum().backward()
                if state is not None:
                    more = tokens(3, torch.float32, batch)
                    y, state = layer(more, state)
                    assert (y.shape, state.stop) == (more.shape, n + 3), (text, batch, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_language_model_generates_in_every_type(dtype):
    for mixer in ("hedgehog@window=4", "t2r:features=8", "retention"):
        torch.manual_seed(0)
        sizes = {"hidden_size": SIZE, "num_layers": 2, "num_heads": 2}
        model = LanguageModel(11, mixer=mixer, **sizes).to(dtype)
        prompt = torch.randint(11, (2, 9))
        made = model.generate(prompt, 5, temperature=0)
        with torch.no_grad():
            logits, _ = model(torch.cat([prompt, made[:, :-1]], dim=1))
        chosen = logits[:, 8:].double()
        worst = chosen.max(-1).values - chosen.gather(-1, made[..., None])[..., 0]
        assert float(worst.max()) <= 8 * LOST[dtype] * float(chosen.abs().max()), mixer


def test_a_learned_map_is_exported_from_every_type():
    for dtype in DTYPES:
        learned = LearnedMap("t2r:features=4@window=3", num_heads=2, head_dim=4).to(dtype)
        dial = learned.export()
        assert str(dial) == str(learned.dial)
        kept = "float64" if dtype == torch.float64 else "float32"
        assert dial.feature_map.weight.dtype == kept
        again = LearnedMap(learned.dial, num_heads=2, head_dim=4)
        torch.testing.assert_close(again.gain, learned.gain.float())
