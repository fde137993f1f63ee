"""The mixers agree with independent implementations that have the same weights.

Layers of `transformers` (extra hf), and the readable references beside the kernels of
flash-linear-attention (extra peers), each a file of its own, loaded without the package, whose
other files need a GPU compiler.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kerneltrick.torch import mixers  # noqa: E402

SIZE, N = 32, 70


@pytest.fixture(scope="module")
def x():
    return torch.randn(2, N, SIZE, generator=torch.Generator().manual_seed(1))


def close(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def naive(folder, function):
    """A reference of flash-linear-attention."""
    found = importlib.util.find_spec("fla")
    if found is None:
        pytest.skip("flash-linear-attention is not installed: pip install 'kerneltrick[peers]'")
    path = Path(found.submodule_search_locations[0], "ops", *folder.split("/"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def parts(module, x):
    """Return the inputs of the module's mixing, and the function from head outputs to y."""
    tokens = module._check(x, None, None, None, None, None)
    heads = module._heads(tokens, None)
    return heads, lambda o: module._combine(heads, o if heads.skip is None else o + heads.skip)


def convolution(ours, theirs):
    """Taps of nn.Conv1d: the last one is the token itself."""
    ours.weight.copy_(theirs.weight[:, 0].flip(-1).T)
    if theirs.bias is not None:
        ours.bias.copy_(theirs.bias)


@pytest.mark.parametrize("groups", [1, 2])
def test_ssd_is_the_mixer_of_mamba_2_in_transformers(x, groups):
    pytest.importorskip("transformers", reason="transformers is not installed: extra hf")
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    config = Mamba2Config(
        hidden_size=SIZE, num_heads=4, head_dim=16, state_size=8, expand=2, n_groups=groups,
        num_hidden_layers=1, chunk_size=16,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, 0).eval()
    ours = mixers.SSD(SIZE, 4, state_dim=8, num_groups=groups)
    with torch.no_grad():
        for own, other in (
            (ours.in_proj.weight, theirs.in_proj.weight), (ours.A_log, theirs.A_log),
            (ours.D, theirs.D.normal_()), (ours.step_bias, theirs.dt_bias),
            (ours.norm.weight, theirs.norm.weight.normal_()),
            (ours.o_proj.weight, theirs.out_proj.weight),
        ):  # fmt: skip
            own.copy_(other)
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_mamba_is_the_mixer_of_mamba_in_transformers(x):
    pytest.importorskip("transformers", reason="transformers is not installed: extra hf")
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    torch.manual_seed(0)
    config = MambaConfig(hidden_size=SIZE, state_size=8, expand=2, num_hidden_layers=1)
    theirs = MambaMixer(config, 0).eval()
    ours = mixers.Mamba(SIZE, state_dim=8)
    with torch.no_grad():
        for own, other in (
            (ours.in_proj.weight, theirs.in_proj.weight),
            (ours.x_proj.weight, theirs.x_proj.weight),
            (ours.step_proj.weight, theirs.dt_proj.weight),
            (ours.step_proj.bias, theirs.dt_proj.bias),
            (ours.A_log, theirs.A_log.normal_()),
            (ours.D, theirs.D.normal_()),
            (ours.o_proj.weight, theirs.out_proj.weight),
        ):
            own.copy_(other)
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_gated_delta_net_is_the_mixer_of_qwen3_next_in_transformers(x):
    pytest.importorskip("transformers", reason="transformers is not installed: extra hf")
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    torch.manual_seed(0)
    config = Qwen3NextConfig(
        hidden_size=SIZE, linear_num_value_heads=2, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=16, linear_conv_kernel_dim=4,
        num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    theirs = Qwen3NextGatedDeltaNet(config, 0).eval()
    ours = mixers.GatedDeltaNet(SIZE, 2, head_dim=8, value_dim=16)
    with torch.no_grad():
        packed = theirs.in_proj_qkvz.weight.unflatten(0, (2, -1))  # q, k, v and gate of each head
        for layer, rows in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj, ours.gate),
            packed.split((8, 8, 16, 16), dim=1), strict=True,
        ):  # fmt: skip
            layer.weight.copy_(rows.flatten(0, 1))
        beta, decay = theirs.in_proj_ba.weight.unflatten(0, (2, -1)).split(1, dim=1)
        ours.beta_proj.weight.copy_(beta[:, 0])
        ours.decay_proj.weight.copy_(decay[:, 0])
        ours.A_log.copy_(theirs.A_log)
        ours.step_bias.copy_(theirs.dt_bias)
        ours.norm.weight.copy_(theirs.norm.weight.normal_())
        ours.o_proj.weight.copy_(theirs.out_proj.weight)
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_the_delta_rule_by_chunks_is_that_of_transformers_with_a_state():
    pytest.importorskip("transformers", reason="transformers is not installed: extra hf")
    from transformers.models.qwen3_next import modeling_qwen3_next as peer

    torch.manual_seed(0)
    q, k, v = torch.nn.functional.normalize(torch.randn(3, 2, 3, N, 8), dim=-1)
    beta, log_decay = torch.rand(2, 3, N), -torch.rand(2, 3, N)
    state = torch.randn(2, 3, 8, 8)
    theirs = [y.transpose(1, 2) for y in (q, k, v, log_decay, beta)]
    o, after = mixers.delta_rule(q / 8**0.5, k, v, beta, log_decay, state=state)
    for function in (peer.torch_recurrent_gated_delta_rule, peer.torch_chunk_gated_delta_rule):
        expected, end = function(*theirs, initial_state=state, output_final_state=True)
        close(o, expected.transpose(1, 2))
        close(after, end)


def test_retention_is_the_reference_of_flash_linear_attention(x):
    reference = naive("retention/naive.py", "naive_retention")
    module = mixers.Retention(SIZE, 4)
    heads, combine = parts(module, x)
    close(module(x)[0], combine(reference(heads.q, heads.k * 8**0.5, heads.v)))


def test_based_is_the_reference_of_flash_linear_attention(x):
    reference = naive("based/naive.py", "naive_parallel_based")
    module = mixers.Based(SIZE, 2, feature_dim=8)
    heads, combine = parts(module, x)
    close(module(x)[0], combine(reference(heads.q, heads.k, heads.v)))


def test_gated_linear_attention_is_the_reference_of_flash_linear_attention(x):
    reference = naive("gla/naive.py", "naive_recurrent_gla")
    module = mixers.GatedLinearAttention(SIZE, 2)
    heads, combine = parts(module, x)
    given = (heads.q, heads.k * module.head_dim**0.5, heads.v, heads.log_decay)
    o, _ = reference(*(y.transpose(1, 2) for y in given))
    close(module(x)[0], combine(o.transpose(1, 2)))


def test_rwkv_is_the_reference_of_flash_linear_attention(x):
    """With keys, values and decays where they are, and the bonus in the reference."""
    reference = naive("rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    torch.manual_seed(0)
    module = mixers.RWKV(SIZE, 2)
    with torch.no_grad():
        module.bonus.normal_()
    heads, _ = parts(module, x)
    late = torch.cat([heads.k, heads.v, heads.log_decay], dim=-1)[:, :, 1:]
    last = heads.tail[:, :, SIZE:].unflatten(-1, (3, 2, -1)).permute(0, 3, 1, 2, 4).flatten(-2)
    k, v, log_decay = torch.cat([late, last], dim=2).chunk(3, dim=-1)
    o, _ = reference(heads.q, k, v, log_decay, module.bonus, scale=1.0)
    close(module(x)[0], module._combine(heads, o))


@pytest.mark.parametrize("gated", [False, True])
def test_delta_net_is_the_reference_of_flash_linear_attention(x, gated):
    pytest.importorskip("einops", reason="einops is not installed: extra peers")
    torch.manual_seed(0)
    if gated:
        reference = naive("gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
        module = mixers.GatedDeltaNet(SIZE, 2)
        heads, combine = parts(module, x)
        given = (heads.q, heads.k, heads.v, heads.beta, heads.log_decay)
        o, _ = reference(*(y.transpose(1, 2) for y in given), scale=1.0)
        o = o.transpose(1, 2)
    else:
        reference = naive("delta_rule/naive.py", "delta_rule_recurrence")
        module = mixers.DeltaNet(SIZE, 2)
        heads, combine = parts(module, x)
        o, _ = reference(heads.q * module.head_dim**0.5, heads.k, heads.v, heads.beta)
    close(module(x)[0], combine(o))
