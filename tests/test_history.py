"""A stream goes back k tokens and continues, to the bit, as if it had never read them."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import same_bits

import kerneltrick as kt

D = 4


def tokens(n, seed=0):
    q, k, v = np.random.default_rng(seed).standard_normal((3, 2, n, D)).astype(np.float32)
    return q, k / 2, v


def linear(dial):
    def step(state, q, k, v):
        return kt.linear_attention(q, k, v, dial, causal=True, state=state, return_state=True)

    return step


def delta(state, q, k, v, beta):
    return kt.delta_rule(q, k, v, beta, log_decay=-0.1, state=state, return_state=True)


def cut(arrays, start, stop):
    return [x[:, start:stop] for x in arrays]


def bits(state):
    arrays = [state.S] if isinstance(state, kt.DeltaState) else [state.U, state.Z]
    return [x.tobytes() for x in arrays]


@pytest.mark.parametrize("dial", ["elu", "elu@window=5,sinks=2", "softmax", "favor:features=8"])
@pytest.mark.parametrize("every", [1, 3, 64])
def test_going_back_is_never_having_read(dial, every):
    x, wrong = tokens(40), tokens(40, seed=1)
    history, plain = kt.History(linear(dial), reach=9, every=every), None
    out, plain = linear(dial)(plain, *cut(x, 0, 31))
    _, plain = linear(dial)(plain, *cut(x, 31, 40))
    first = history.read(*x)  # read in two parts: 31 tokens, and the last nine
    assert same_bits(first[:, :31], out)
    for count in (1, 4, 9):
        history.read(*cut(wrong, 0, count))
        history.back(count)
        assert history.state.stop == 40
        for a, b in zip(parts(history.state), parts(plain), strict=True):
            assert same_bits(a, b)


def parts(state):
    near = () if state.near is None else (state.near.k, state.near.v)
    return (state.sums.hi, *near)


@given(data=st.data())
def test_any_drafts_and_rejections(data):
    """Steps of any length, some taken back: the stream is the one of what is left."""
    reach, every = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    history = kt.History(delta, axes=(-2, -2, -2, -1), reach=reach, every=every)
    read, furthest = [], 0  # what is left, token by token
    for length in data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=8)):
        x = [*tokens(length, int(rng.integers(100))), rng.random((2, length)).astype(np.float32)]
        history.read(*x)
        read += [cut(x, i, i + 1) for i in range(length)]
        furthest = max(furthest, len(read))
        count = data.draw(st.integers(0, max(0, len(read) - max(0, furthest - reach))))
        history.back(count)
        read = read[: len(read) - count]
        assert (history.state is None) == (not read)
    state = None
    for token in read:
        _, state = delta(state, *token)
    if read:
        assert history.state.stop == len(read)
        np.testing.assert_allclose(history.state.S, state.S, rtol=1e-4, atol=1e-6)


def test_memory_is_bounded_by_what_was_asked_for():
    history = kt.History(linear("elu"), reach=6, every=4)
    for seed in range(50):
        history.read(*tokens(3, seed))
        assert 3 * seed + 3 < 6 or 6 <= history.held <= 6 + 4 + 3
    assert sum(reading.kept for reading in history._readings) <= 6 // 4 + 2


def test_a_copy_has_a_future_of_its_own():
    history = kt.History(linear("elu"))
    history.read(*tokens(5))
    other = copy.copy(history)
    other.read(*tokens(3, 1))
    other.back(6)
    assert (history.state.stop, other.state.stop, history.held) == (5, 2, 5)


def test_a_state_to_begin_with_is_the_earliest_place():
    _, before = linear("elu")(None, *tokens(7))
    history = kt.History(linear("elu"), before)
    history.read(*tokens(4, 1))
    history.back(4)
    assert bits(history.state) == bits(before)
    with pytest.raises(ValueError, match="last 0 tokens that were kept, not 1; ask for them"):
        history.back(1)


def test_wrong_arguments():
    history = kt.History(linear("elu"), reach=2, every=1)
    history.read(*tokens(9))
    with pytest.raises(ValueError, match=r"the last \d+ tokens that were kept, not 8"):
        history.back(8)
    with pytest.raises(ValueError, match="count"):
        history.back(-1)
    with pytest.raises(ValueError, match="every"):
        kt.History(linear("elu"), every=0)


MIXERS = ["elu@window=4", "retention", "ssd", "gla", "rwkv", "deltanet", "kda", "rwkv7", "mamba",
          "deltaproduct:steps=2", "mesa", "hyena", "softmax"]  # fmt: skip


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_goes_back(mixer):
    torch = pytest.importorskip("torch")
    from kerneltrick.torch import LanguageModel

    torch.manual_seed(0)
    model = LanguageModel(11, mixer=mixer, hidden_size=16, num_layers=2, num_heads=2).double()
    text, wrong = torch.randint(11, (2, 1, 20))
    history = kt.History(lambda state, x: model(x, state), axes=1, every=3)
    with torch.no_grad():
        history.read(text[:, :8])
        for at in range(8, 13):
            history.read(text[:, at : at + 1])
        history.read(wrong[:, :6])
        history.back(4)  # the first two drafted tokens were right, the others not
        history.back(2)
        rest = history.read(text[:, 13:])
        whole, _ = model(text)
    torch.testing.assert_close(rest, whole[:, 13:], rtol=1e-9, atol=1e-9)
    assert history.state[0].stop == 20


@pytest.mark.parametrize("mixer", ["elu@window=4+softmax", "kda+softmax", "ssd"])
def test_speculative_decoding_by_hand_is_greedy_decoding(mixer):
    """A draft model proposes three tokens; those that the model would not choose are taken back."""
    torch = pytest.importorskip("torch")
    from kerneltrick.torch import LanguageModel

    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    model = LanguageModel(11, mixer=mixer, **size).double()
    draft = LanguageModel(11, mixer="elu", **size).double()
    for parameter in (*model.parameters(), *draft.parameters()):
        torch.nn.init.normal_(parameter, std=0.4)
    prompt = torch.randint(11, (1, 9))
    plain = model.generate(prompt, 25, temperature=0)[0].tolist()
    histories = [kt.History(lambda s, x, m=m: m(x, s), axes=1, reach=8) for m in (model, draft)]
    made, accepted = [], 0
    with torch.no_grad():
        chosen, guess = (h.read(prompt)[:, -1:].argmax(-1) for h in histories)
        while len(made) < 25:
            made.append(int(chosen))
            proposed = []
            last = chosen
            for _ in range(3):
                last = histories[1].read(last)[:, -1:].argmax(-1)
                proposed.append(last)
            answers = histories[0].read(torch.cat([chosen, *proposed], 1)).argmax(-1)[0].tolist()
            right = 0
            while right < 3 and int(proposed[right]) == answers[right]:
                right += 1
            made += answers[:right]
            accepted += right
            chosen = torch.tensor([[answers[right]]])
            histories[0].back(3 - right)
            if right < 3:  # the draft has read chosen and two proposals
                histories[1].back(2 - right)
            else:
                histories[1].read(proposed[2])
    assert made[:25] == plain
    assert guess is not None
