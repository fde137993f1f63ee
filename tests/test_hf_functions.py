"""The functions that `hf.accelerate` puts in place keep the promises of those they replace."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.kimi_linear import modeling_kimi_linear as kimi  # noqa: E402
from transformers.models.mamba import modeling_mamba as mamba  # noqa: E402
from transformers.models.mamba2 import modeling_mamba2 as mamba2  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as qwen  # noqa: E402

from kerneltrick.hf._convolution import convolution, convolution_update  # noqa: E402
from kerneltrick.hf._delta import chunk_delta_rule, recurrent_delta_rule  # noqa: E402
from kerneltrick.hf._packed import remember_texts, segments  # noqa: E402
from kerneltrick.hf._selective_scan import scan  # noqa: E402
from kerneltrick.hf._state_space import chunk_scan, decayed_attention, state_update  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("accelerated"),
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def close(found, expected, tolerance=2e-5):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())


B, N, H, P, S, G = 2, 21, 6, 5, 7, 3  # batch, tokens, heads, their width, state, groups


def ssd(n=N):
    tensors = [torch.randn(B, n, H, P), torch.randn(B, n, H), -torch.rand(H)]
    return (*tensors, torch.randn(B, n, G, S), torch.randn(B, n, G, S), 8)


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.3, 0.6)])
def test_the_scan_of_mamba_2_continues_a_state(limit):
    how = {
        "D": torch.randn(H),
        "dt_bias": torch.randn(H),
        "dt_softplus": True,
        "dt_limit": limit,
        "initial_states": torch.randn(B, H, P, S),
        "return_final_states": True,
    }
    given = ssd()
    for found, expected in zip(
        chunk_scan(*given, **how), mamba2.mamba2_chunk_scan(*given, **how), strict=True
    ):
        close(found, expected)
    output = chunk_scan(*given, **{**how, "return_final_states": False})
    assert torch.equal(output, chunk_scan(*given, **how)[0])
    gate = torch.randn(B, N, H, P)
    close(chunk_scan(*given, z=gate), chunk_scan(*given) * torch.nn.functional.silu(gate))


def test_gradients_reach_the_initial_state_of_the_scan():
    x, dt, A, Bt, C, size = ssd(5)
    found = []
    for function in (chunk_scan, mamba2.mamba2_chunk_scan):
        state = torch.linspace(-1, 1, B * H * P * S).view(B, H, P, S).requires_grad_()
        how = {"initial_states": state, "dt_softplus": True}
        function(x, dt, A, Bt, C, size, **how).square().sum().backward()
        found.append(state.grad)
    close(*found)


@pytest.mark.parametrize("expanded", [True, False])
def test_a_step_of_mamba_2_changes_the_state_in_place(expanded):
    dt, A, D, bias = torch.randn(B, H), -torch.rand(H), torch.randn(H), torch.randn(H)
    options = [
        dt[..., None].expand(B, H, P),
        A[:, None, None].expand(H, P, S),
        torch.randn(B, G, S),
        torch.randn(B, G, S),
        D[:, None].expand(H, P),
        bias[:, None].expand(H, P),
    ]
    if not expanded:
        options = [torch.randn(x.shape) for x in options]  # no two columns alike
    x, state = torch.randn(B, H, P), torch.randn(B, H, P, S)
    theirs = state.clone()
    how = {"dt_softplus": True, "z": torch.randn(B, H, P)}
    expected = mamba2.mamba2_selective_state_update(theirs, x, *options, **how)
    assert not torch.equal(theirs, state)
    for recorded in (False, True):
        ours = state.clone()
        given = x.clone().requires_grad_(recorded)
        close(state_update(ours, given, *options, **how), expected)
        close(ours, theirs)


def test_a_step_of_mamba_2_has_the_gradient_of_a_scan_over_one_token():
    dt, A = torch.randn(B, H, requires_grad=True), -torch.rand(H)
    x, state, Bt, C = (torch.randn(B, *shape) for shape in ((H, P), (H, P, S), (G, S), (G, S)))
    wide, rates = dt[..., None].expand(B, H, P), A[:, None, None].expand(H, P, S)
    made = state_update(state.clone(), x, wide, rates, Bt, C, dt_softplus=True)
    (found,) = torch.autograd.grad(made.square().sum(), dt)
    tokens = (y[:, None] for y in (x, dt))
    how = {"dt_softplus": True, "initial_states": state}
    made = chunk_scan(*tokens, A, Bt[:, None], C[:, None], 4, **how)
    close(found, *torch.autograd.grad(made.square().sum(), dt))


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [(torch.float32, 37), (torch.float64, 64), (torch.bfloat16, 80), (torch.float16, 37)],
)
def test_steps_that_come_again_equal_those_that_are_recorded(dtype, channels):
    weight, bias = torch.randn(channels, 4, dtype=dtype), torch.randn(channels, dtype=dtype)
    A, D = -torch.rand(channels, 16), torch.randn(channels)
    line = torch.randn(B, channels, 4, dtype=dtype)
    state = torch.randn(B, channels, 16, dtype=torch.promote_types(dtype, torch.float32))
    for _ in range(3):
        x, dt, z = torch.randn(3, B, channels, dtype=dtype)
        Bt, C = torch.randn(2, B, 16, dtype=dtype)
        made = []
        for recorded in (True, False):
            lines, states = line.clone(), state.clone()
            with torch.set_grad_enabled(recorded):
                given = x.clone().requires_grad_()
                y = convolution_update(given[..., None], lines, weight, bias, "silu")
                h = state_update(states, given, dt, A, Bt, C, D, None, True, z)
            made.append([t.detach() for t in (y, lines, h, states)])
        torch.testing.assert_close(*made, rtol=1e-6, atol=1e-6)
        *_, (_, line, _, state) = made


def test_a_step_of_other_shapes_than_the_last_is_refused():
    state, weight = torch.randn(B, P, 4), torch.randn(P, 4)
    for _ in range(2):
        convolution_update(torch.randn(B, P, 1), state, weight, None, "silu")
    with pytest.raises((ValueError, RuntimeError)):
        convolution_update(torch.randn(B, P + 1, 1), state, weight, None, "silu")
    with pytest.raises((ValueError, RuntimeError)):
        convolution_update(torch.randn(B, P, 1), state, torch.randn(P, 6), None, "silu")


def test_steps_refuse_states_whose_rows_share_their_memory():
    x, weight = torch.randn(2, 4, 1), torch.randn(4, 3)
    with pytest.raises(ValueError, match="cannot overwrite a state"):
        convolution_update(x, torch.zeros(1, 4, 2).expand(2, 4, 2), weight)
    A, B, x = -torch.ones(4, 3), torch.randn(2, 3), x[..., 0]
    with pytest.raises(ValueError, match="cannot overwrite a state"):
        state_update(torch.zeros(1, 4, 3).expand(2, 4, 3), x, x.abs(), A, B, B)


def test_a_step_of_mamba_1_changes_the_state_in_place():
    x, dt, z = torch.randn(3, B, P)
    state, A, Bt, C = torch.randn(B, P, S), -torch.rand(P, S), torch.randn(B, S), torch.randn(B, S)
    how = {"D": torch.randn(P), "dt_bias": torch.randn(P), "dt_softplus": True, "z": z}
    theirs, ours = state.clone(), state.clone()
    expected = mamba.mamba_selective_state_update(theirs, x, dt, A, Bt, C, **how)
    close(state_update(ours, x, dt, A, Bt, C, **how), expected)
    close(ours, theirs)
    assert ours._version  # so that autograd notices


def test_the_scan_of_mamba_1_returns_the_last_state():
    x, dt, z = torch.randn(3, B, P, N)
    A, Bt, C = -torch.rand(P, S), torch.randn(B, S, N), torch.randn(B, S, N)
    how = {"D": torch.randn(P), "z": z, "delta_bias": torch.randn(P), "delta_softplus": True}
    for found, expected in zip(
        scan(x, dt, A, Bt, C, **how, return_last_state=True),
        mamba.mamba_selective_scan(x, dt, A, Bt, C, **how, return_last_state=True),
        strict=True,
    ):
        close(found, expected)


@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
def test_the_convolution_is_that_of_the_reference(activation):
    x, weight, bias = torch.randn(B, P, N), torch.randn(P, 4), torch.randn(P)
    for how in ({"bias": None, "activation": activation}, {"bias": bias, "activation": activation}):
        close(convolution(x, weight, **how), mamba2.causal_conv1d_fn(x, weight, **how))


@pytest.mark.parametrize("length", [3, 4, 6])
def test_the_next_tokens_change_the_state_of_the_convolution_in_place(length):
    for n in (1, 2, 5):
        x, weight, state = torch.randn(B, P, n), torch.randn(P, 4), torch.randn(B, P, length)
        theirs, ours = state.clone(), state.clone()
        expected = mamba2.causal_conv1d_update(x, theirs, weight, None, "silu")
        close(convolution_update(x, ours, weight, None, "silu"), expected)
        assert torch.equal(ours, theirs), n
        assert ours._version  # so that autograd notices


def delta(batch=B, per_feature=False, heads=(2, 4), n=N):
    few, many = heads
    q, k = torch.randn(2, batch, n, few, P)
    decay = -torch.rand(batch, n, many, *((P,) if per_feature else ()))
    return q, k, torch.randn(batch, n, many, S), decay, torch.rand(batch, n, many)


@pytest.mark.parametrize(
    ("per_feature", "normalized", "n"),
    [(False, False, 1), (False, True, N), (True, True, 1), (True, False, N)],
)
def test_the_delta_rule_continues_a_state(per_feature, normalized, n):
    given = delta(per_feature=per_feature, heads=(4, 4) if per_feature else (2, 4), n=n)
    file, names = (
        (kimi, ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"))
        if per_feature
        else (qwen, ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"))
    )
    how = {
        "initial_state": torch.randn(B, 4, P, S),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": normalized,
    }
    for ours, name in zip((chunk_delta_rule, recurrent_delta_rule), names, strict=True):
        before = how["initial_state"].clone()
        for found, expected in zip(
            ours(*given, **how), getattr(file, name)(*given, **how), strict=True
        ):
            close(found, expected, 1e-4)
        assert torch.equal(how["initial_state"], before)
        assert ours(*given, **{**how, "output_final_state": False})[1] is None


def test_packed_texts_have_a_state_each_in_the_delta_rule():
    given, ends = delta(batch=1), [0, 8, 9, N]
    states = torch.randn(3, 4, P, S)
    how = {"output_final_state": True, "cu_seqlens": torch.tensor(ends)}
    output, after = chunk_delta_rule(*given, initial_state=states, **how)
    for i in range(3):
        text = [x[:, ends[i] : ends[i + 1]] for x in given]
        alone = chunk_delta_rule(*text, initial_state=states[i : i + 1], output_final_state=True)
        close(output[:, ends[i] : ends[i + 1]], alone[0])
        close(after[i : i + 1], alone[1])
    without = chunk_delta_rule(*given, cu_seqlens=torch.tensor(ends))
    assert without[1] is None
    close(without[0], chunk_delta_rule(*given, **how)[0])


def test_texts_are_numbered_by_either_description():
    ends, numbers = torch.tensor([0, 2, 5]), torch.tensor([[0, 0, 1, 1, 1]])
    for keywords in ({"cu_seqlens": ends}, {"cu_seq_lens_q": ends}, {"seq_idx": numbers.int()}):
        assert torch.equal(segments(keywords, 1, 5), numbers)
    assert segments({"seq_idx": None}, 1, 5) is None


def test_wrong_descriptions_are_refused():
    for keywords, batch, message in (
        ({"cu_seqlens": torch.tensor([0, 5])}, 2, "the batch has 2 rows"),
        ({"cu_seqlens": torch.tensor([0, 2, 4])}, 1, "5 tokens of 1 rows, but it ends at 4"),
        *(
            ({"cu_seqlens": torch.tensor(wrong)}, 1, "must rise from 0 to n = 5")
            for wrong in ([0, 4, 2, 5], [1, 5])
        ),
        ({"seq_idx": torch.zeros(1, 4)}, 1, r"5 tokens of 1 rows, but it is \(1, 4\)"),
        ({"seq_idx": torch.zeros(5)}, 1, r"it is \(5,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            segments(keywords, batch, 5)


def test_texts_that_a_model_forgets_are_remembered_inside_its_forward_pass():
    numbers = torch.tensor([[0, 0, 1]])
    found = []
    module = torch.nn.Module()

    def forward(module, seq_idx=None):
        found.append(segments({}, 1, 3))

    remember_texts(forward, module, seq_idx=numbers)
    remember_texts(forward, module)
    assert torch.equal(found[0], numbers)
    assert found[1] is None
    assert segments({}, 1, 3) is None


@pytest.mark.parametrize("operator", ["delta rule", "KDA", "Mamba-2"])
def test_a_decay_that_is_not_finite_reaches_what_depends_on_it(operator):
    q, k, v, decay, beta = delta(per_feature=operator == "KDA", heads=(4, 4))
    texts = (torch.arange(N) >= 14).long()[None].expand(B, N)
    place = (1, 8, 2, *((3,) if operator == "KDA" else ()))  # row, token, head, feature

    def run(value):
        g = decay.clone()
        g[place] = value
        if operator == "Mamba-2":
            given = (x.transpose(1, 2) for x in (q, k, v, g))
            return decayed_attention(*given, texts, None, False)[0].transpose(1, 2)
        return chunk_delta_rule(q, k, v, g, beta, seq_idx=texts)[0]

    clean = run(-200.0)  # e^-200 is 0 in float32
    close(run(-math.inf), clean)
    depends = torch.zeros(B, N, 4, S, dtype=torch.bool)
    depends[1, 8:14, 2] = True
    for bad in (math.nan, math.inf):
        found = run(bad)
        assert found[depends].isnan().all(), bad
        close(found[~depends], clean[~depends])
