"""The mixers agree with independent implementations that have the same weights.

Layers of `transformers` (extra hf), the readable references beside the kernels of
flash-linear-attention (extra peers), each a file of its own, loaded without the package, whose
other files need a GPU compiler, and the compiled operator of ONNX Runtime (extra peers).
"""

import importlib
import importlib.util
import sys
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


def modeling(monkeypatch, name):
    """A module of `transformers` that computes in PyTorch, whatever else is installed.

    Where `fla` can be imported, `transformers` calls its GPU kernels, on a CPU too.
    """
    pytest.importorskip("transformers", reason="transformers is not installed: extra hf")
    module = f"transformers.models.{name}.modeling_{name}"
    if module not in sys.modules:
        monkeypatch.setitem(sys.modules, "fla", None)
    return importlib.import_module(module)


def copy_weights(pairs):
    """Copy each of their weights into ours; biases and gains get values of their own first."""
    for own, other in pairs:
        other = other if other.ndim > 1 else other.normal_()
        own.copy_(other.reshape(own.shape))


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
    return heads, lambda o: module._combine(heads, heads.with_own(o))


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


@pytest.mark.parametrize("key_heads", [1, 2])
def test_gated_delta_net_is_the_mixer_of_qwen3_next_in_transformers(monkeypatch, x, key_heads):
    peer = modeling(monkeypatch, "qwen3_next")
    torch.manual_seed(0)
    config = peer.Qwen3NextConfig(
        hidden_size=SIZE,
        linear_num_value_heads=2,
        linear_num_key_heads=key_heads,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = peer.Qwen3NextGatedDeltaNet(config, 0).eval()
    ours = mixers.GatedDeltaNet(SIZE, 2, head_dim=8, value_dim=16, num_key_heads=key_heads)
    values = 16 * 2 // key_heads  # of all value heads of a key head
    with torch.no_grad():
        packed = theirs.in_proj_qkvz.weight.unflatten(0, (key_heads, -1))
        split = packed.split((8, 8, values, values), dim=1)
        beta, decay = theirs.in_proj_ba.weight.unflatten(0, (key_heads, 2, -1)).unbind(1)
        layers = (ours.q_proj, ours.k_proj, ours.v_proj, ours.gate)
        for layer, rows in zip(layers, split, strict=True):
            layer.weight.copy_(rows.flatten(0, 1))
        copy_weights(
            [
                (ours.beta_proj.weight, beta),
                (ours.decay_proj.weight, decay),
                (ours.A_log, theirs.A_log),
                (ours.step_bias, theirs.dt_bias),
                (ours.norm.weight, theirs.norm.weight),
                (ours.o_proj.weight, theirs.out_proj.weight),
            ]
        )
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_gated_delta_net_is_the_mixer_of_qwen3_5_in_transformers(monkeypatch, x):
    peer = modeling(monkeypatch, "qwen3_5")
    torch.manual_seed(0)
    config = peer.Qwen3_5TextConfig(
        hidden_size=SIZE,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = peer.Qwen3_5GatedDeltaNet(config, 0).eval()
    ours = mixers.GatedDeltaNet(SIZE, 4, head_dim=8, value_dim=16, num_key_heads=2)
    with torch.no_grad():
        q, k, v = theirs.in_proj_qkv.weight.split((16, 16, 64))
        copy_weights(
            [
                (ours.q_proj.weight, q),
                (ours.k_proj.weight, k),
                (ours.v_proj.weight, v),
                (ours.gate.weight, theirs.in_proj_z.weight),
                (ours.beta_proj.weight, theirs.in_proj_b.weight),
                (ours.decay_proj.weight, theirs.in_proj_a.weight),
                (ours.A_log, theirs.A_log),
                (ours.step_bias, theirs.dt_bias),
                (ours.norm.weight, theirs.norm.weight),
                (ours.o_proj.weight, theirs.out_proj.weight),
            ]
        )
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_gated_delta_net_with_negative_eigenvalues_is_the_mixer_of_olmo_hybrid(monkeypatch, x):
    peer = modeling(monkeypatch, "olmo_hybrid")
    torch.manual_seed(0)
    config = peer.OlmoHybridConfig(
        hidden_size=SIZE,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_allow_neg_eigval=True,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
    )
    theirs = peer.OlmoHybridGatedDeltaNet(config, 0).eval()
    ours = mixers.GatedDeltaNet(SIZE, 2, head_dim=8, value_dim=16, negative_eigenvalues=True)
    ours.norm.eps = 1e-5
    with torch.no_grad():
        copy_weights(
            [
                (ours.q_proj.weight, theirs.q_proj.weight),
                (ours.k_proj.weight, theirs.k_proj.weight),
                (ours.v_proj.weight, theirs.v_proj.weight),
                (ours.gate.weight, theirs.g_proj.weight),
                (ours.beta_proj.weight, theirs.b_proj.weight),
                (ours.decay_proj.weight, theirs.a_proj.weight),
                (ours.A_log, theirs.A_log),
                (ours.step_bias, theirs.dt_bias),
                (ours.norm.weight, theirs.o_norm.weight),
                (ours.o_proj.weight, theirs.o_proj.weight),
            ]
        )
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


def test_kda_is_the_mixer_of_kimi_linear_in_transformers(monkeypatch, x):
    peer = modeling(monkeypatch, "kimi_linear")
    torch.manual_seed(0)
    config = peer.KimiLinearConfig(
        hidden_size=SIZE,
        linear_num_heads=2,
        linear_head_dim=8,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = peer.KimiLinearDeltaAttention(config, 0).eval()
    ours = mixers.KDA(SIZE, 2, head_dim=8)
    ours.norm.eps = config.rms_norm_eps
    with torch.no_grad():
        theirs.forget_gate.A_log.normal_()
        copy_weights(
            [
                (ours.q_proj.weight, theirs.q_proj.weight),
                (ours.k_proj.weight, theirs.k_proj.weight),
                (ours.v_proj.weight, theirs.v_proj.weight),
                (ours.beta_proj.weight, theirs.b_proj.weight),
                (ours.decay_down.weight, theirs.forget_gate.f_a_proj.weight),
                (ours.decay_up.weight, theirs.forget_gate.f_b_proj.weight),
                (ours.A_log, theirs.forget_gate.A_log),
                (ours.step_bias, theirs.forget_gate.dt_bias),
                (ours.gate_down.weight, theirs.g_a_proj.weight),
                (ours.gate_up.weight, theirs.g_b_proj.weight),
                (ours.norm.weight, theirs.o_norm.weight),
                (ours.o_proj.weight, theirs.o_proj.weight),
            ]
        )
        convolution(ours.convolution, theirs.conv1d)
        close(ours(x)[0], theirs(x))


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


def in_their_order(*tensors):
    """(batch, heads, n, …) → (batch, n, heads, …)."""
    return [y.transpose(1, 2) for y in tensors]


def normalised(y):
    return y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda", "gated_deltanet2", "comba"])
def test_delta_rules_are_the_references_of_flash_linear_attention(x, name):
    pytest.importorskip("einops", reason="einops is not installed: extra peers")
    torch.manual_seed(0)
    module = mixers.make(name, SIZE, 2)
    heads, combine = parts(module, x)
    q, k, v = normalised(heads.q), normalised(heads.k), heads.v
    beta, decay = heads.beta, heads.log_decay
    if name == "deltanet":
        o, _ = naive("delta_rule/naive.py", "delta_rule_recurrence")(q, k, v, beta)
    elif name == "gated_deltanet":
        rule = naive("gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
        o = rule(*in_their_order(q, k, v, beta, decay))[0].transpose(1, 2)
    elif name == "kda":
        rule = naive("kda/naive.py", "naive_recurrent_kda")
        o = rule(*in_their_order(q, k, v, decay, beta))[0].transpose(1, 2)
    elif name == "gated_deltanet2":
        rule, one = naive("gdn2/naive.py", "naive_recurrent_gdn2"), torch.ones_like(v)
        b = heads.read / heads.k
        o = rule(*in_their_order(heads.q, heads.k, v, decay, b, one))[0].transpose(1, 2)
    else:
        rule = naive("comba/naive.py", "naive_recurrent_comba")
        given = in_their_order(heads.q, heads.k, v, heads.read, beta, decay)
        o = rule(*given)[0].transpose(1, 2)
    close(module(x)[0], combine(o))


def test_rwkv7_is_the_reference_of_flash_linear_attention(x):
    pytest.importorskip("einops", reason="einops is not installed: extra peers")
    rule = naive("generalized_delta_rule/dplr/naive.py", "dplr_recurrence")
    torch.manual_seed(0)
    module = mixers.RWKV7(SIZE, 2)
    heads, combine = parts(module, x)
    kappa = heads.read * heads.log_decay.exp()
    o, _ = rule(heads.q * 16**0.5, heads.k, heads.v, -kappa, heads.erase, heads.log_decay)
    close(module(x)[0], combine(o))


def test_delta_product_is_the_reference_of_flash_linear_attention(x):
    rule = naive("gated_delta_product/naive.py", "naive_recurrent_gated_delta_product")
    torch.manual_seed(0)
    module = mixers.DeltaProduct(SIZE, 2, steps=3)
    heads, combine = parts(module, x)
    # (batch, heads, n, 3 · width) → (batch, n · 3, heads, width)
    k, v = (
        y.unflatten(-1, (3, -1)).permute(0, 2, 3, 1, 4).flatten(1, 2) for y in (heads.k, heads.v)
    )
    beta = heads.beta.unflatten(1, (2, 3)).permute(0, 3, 2, 1).flatten(1, 2)
    q, decay = in_their_order(heads.q, heads.log_decay)
    o, _ = rule(normalised(q), normalised(k), v, decay, beta, scale=16**-0.5, num_householder=3)
    close(module(x)[0], combine(o.transpose(1, 2)))


def test_mesa_is_the_exact_reference_of_flash_linear_attention(x):
    pytest.importorskip("einops", reason="einops is not installed: extra peers")
    rule = naive("mesa_net/naive.py", "naive_mesa_net_exact")
    torch.manual_seed(0)
    module = mixers.Mesa(SIZE, 2)
    heads, combine = parts(module, x)
    beta = module.beta_proj(x).sigmoid()
    # Ours has β in the keys, and the keys beside the values.
    q, k, v, decay = in_their_order(heads.q, heads.v[..., 16:], heads.v[..., :16], heads.log_decay)
    ridge = torch.nn.functional.softplus(module.ridge) + 0.25
    o, *_ = rule(q, k, v, decay, ridge, beta)
    close(module(x)[0], combine(o.transpose(1, 2)))


def by_onnx_runtime(rule, heads, given):
    """Output and state of `com.microsoft::LinearAttention`, which packs heads into columns."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="extra peers")
    helper = pytest.importorskip("onnx.helper", reason="extra peers")
    outputs = ["output", "present_state"]
    names = ("query", "key", "value", "past_state", "decay", "beta")
    node = helper.make_node(
        "LinearAttention",
        [name if name in given else "" for name in names],
        outputs,
        domain="com.microsoft",
        update_rule=rule,
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=1.0,
    )
    inputs = [helper.make_tensor_value_info(name, 1, y.shape) for name, y in given.items()]
    made = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = helper.make_graph([node], "linear_attention", inputs, made)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, given)


@pytest.mark.parametrize("name", ["gla", "deltanet", "gated_deltanet", "kda"])
def test_mixers_are_the_operator_of_onnx_runtime(x, name):
    torch.manual_seed(0)
    module = mixers.make(name, SIZE, 2)
    heads, combine = parts(module, x)
    q, k = heads.q, heads.k
    rule = {"gla": "gated", "deltanet": "delta"}.get(name, "gated_delta")
    if name != "gla":
        q, k = normalised(q) / 16**0.5, normalised(k)
    given = {"query": q, "key": k, "value": heads.v, "decay": heads.log_decay, "beta": heads.beta}
    given = {
        key: y.transpose(1, 2).flatten(2).detach().contiguous().numpy()
        for key, y in given.items()
        if y is not None
    }
    o, state = by_onnx_runtime(rule, 2, given)
    with torch.no_grad():
        y, after = module(x)
        close(y, combine(torch.tensor(o).unflatten(-1, (2, -1)).transpose(1, 2)))
    memory = after.memory
    held = memory.tensor if hasattr(memory, "tensor") else memory.U.float()
    close(held.detach(), torch.tensor(state))
