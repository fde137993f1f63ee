"""Layers and language models as ONNX: what ONNX Runtime computes is what PyTorch computes."""

import io

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

import onnxruntime  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from kerneltrick import onnx as kt_onnx  # noqa: E402
from kerneltrick.torch import Attention, LanguageModel  # noqa: E402
from kerneltrick.torch.mixers import MIXERS, make  # noqa: E402

FUSED = [  # calls that `LinearAttention` has
    "elu", "hedgehog", "cosformer:horizon=512", "based", "deltanet", "deltaproduct",
    "gated_deltanet", "gla", "kda", "retention", "rwkv", "ssd",
]  # fmt: skip
WRITTEN = [  # as loops; in others that `FUSED` has, the operator only stands in place of one
    "deltanet",
    "gla",
    *sorted(MIXERS.keys() - {*FUSED, "hyena", "mesa"}),
    "mesa:steps=2",  # each of its steps is a loop in ONNX
    "rotary, convolution, grouped queries",
    "norm, gate, windows by head",
    "module",
]
OPTIONS = {
    "rotary, convolution, grouped queries": {
        "feature_map": "favor:features=8", "rotary": True, "short_convolution": 3,
        "num_kv_heads": 2,
    },
    "norm, gate, windows by head": {
        "output_norm": True, "output_gate": True, "window": (4, 6, 4, 0),
    },
    "module": {
        "feature_map": torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softplus()), "window": 5,
    },
}  # fmt: skip
REFUSED = {
    "softmax": "no features",
    "softmax@window=7": "no features",
    "elu@window=4,whole=1": "no features",
    "hyena": "Fourier",
}


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def nodes(path):
    """What the nodes of a file are, without those inside loops."""
    return {(node.domain, node.op_type) for node in onnx.load(path).graph.node}


def check(model, path, inputs, name, operators="plain", empty=(0,)):
    """Prefill, a second stretch and single tokens, for batches of several sizes."""
    kt_onnx.export(model, path, operators=operators)
    onnx.checker.check_model(str(path), full_check=True)
    parts = kt_onnx.state_inputs(path)
    if operators == "opset27":  # which no ONNX Runtime has yet
        run = ReferenceEvaluator(str(path))
        assert run.input_names == [name, *(part.past for part in parts)]
        assert run.output_names[1:] == [part.present for part in parts]
    else:
        run = session(path)
        assert [x.name for x in run.get_inputs()] == [name, *(part.past for part in parts)]
        assert [x.name for x in run.get_outputs()][1:] == [part.present for part in parts]
    assert all(x.shape[0] == 0 for x in kt_onnx.empty_state(path, 0).values())
    for batch, lengths in ((1, (1, 1, 67)), (3, (70, 1, *empty, 1, 9))):
        x = inputs(batch, sum(lengths))
        with torch.no_grad():
            whole = model(x)[0].numpy()
        state, found = kt_onnx.empty_state(path, batch), []
        for piece in x.split(lengths, dim=1):
            y, *after = run.run(None, {name: piece.numpy(), **state})
            if not piece.shape[1]:
                for old, new in zip(state.values(), after, strict=True):
                    np.testing.assert_array_equal(new, old)
            state = {part.past: new for part, new in zip(parts, after, strict=True)}
            found.append(y)
        np.testing.assert_allclose(np.concatenate(found, 1), whole, atol=1e-5, rtol=1e-5)


def made(mixer):
    torch.manual_seed(0)
    if mixer in OPTIONS:
        return Attention(16, 4, on_zero="zero", **OPTIONS[mixer]).eval()
    return make(mixer, 16, 2).eval()


@pytest.mark.slow  # the example of `export` is the quick one
@pytest.mark.parametrize("mixer", WRITTEN)
def test_a_layer_streams_in_onnx_runtime_as_in_pytorch(mixer, tmp_path):
    """What the operator does not have is a loop, also if it is asked for."""
    asked = ("comba", "power_retention", "rotary, convolution, grouped queries")
    kind, path = "microsoft" if mixer in asked else "plain", tmp_path / "layer.onnx"
    check(made(mixer), path, lambda *shape: torch.randn(*shape, 16), "x", kind)
    if mixer in asked:
        assert ("", "Scan") in nodes(path)
    assert ("com.microsoft", "LinearAttention") not in nodes(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "kind", "domain"),
    [
        *((mixer, "microsoft", "com.microsoft") for mixer in FUSED),
        ("gated_deltanet", "opset27", ""),  # the two operators differ in name alone
    ],
)
def test_a_layer_streams_by_the_operator_for_linear_attention(mixer, kind, domain, tmp_path):
    if kind == "opset27" and onnx.defs.onnx_opset_version() < 27:
        pytest.skip("this ONNX has no LinearAttention")
    path = tmp_path / "layer.onnx"
    # ONNX Runtime does not reduce arrays without tokens, and keys of ssd are wider than its values.
    empty = () if mixer == "ssd" else (0,)
    check(made(mixer), path, lambda *shape: torch.randn(*shape, 16), "x", kind, empty)
    found = nodes(path)
    assert (domain, "LinearAttention") in found
    assert ("", "Scan") not in found


@pytest.mark.slow
def test_a_language_model_streams_in_onnx_runtime_as_in_pytorch(tmp_path):
    torch.manual_seed(0)
    mixer = "gated_deltanet+elu@window=6,sinks=2"
    model = LanguageModel(19, mixer=mixer, hidden_size=16, num_layers=2, num_heads=2).eval()
    check(model, tmp_path / "m.onnx", lambda *shape: torch.randint(19, shape), "tokens")


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "kind"), [("elu", "plain"), ("deltanet", "microsoft")])
def test_nan_spoils_the_rest_of_its_text_in_later_calls_too(mixer, kind, tmp_path):
    layer, path = made(mixer), tmp_path / "layer.onnx"
    kt_onnx.export(layer, path, operators=kind)
    x = torch.randn(2, 11, 16)
    x[0, 5] = torch.nan
    with torch.no_grad():
        whole = layer(x)[0].numpy()
    assert np.isnan(whole[0, 5:]).all()
    run, state, found = session(path), kt_onnx.empty_state(path, 2), []
    for piece in x.split((7, 3, 1), dim=1):
        y, *after = run.run(None, {"x": piece.numpy(), **state})
        state = dict(zip(state, after, strict=True))
        found.append(y)
    np.testing.assert_allclose(np.concatenate(found, 1), whole, atol=1e-5, rtol=1e-5)


def test_tokens_outside_the_vocabulary_and_calls_without_tokens(tmp_path):
    """ONNX would read a negative token from the end, and its loops take one turn at least."""
    model, path = LanguageModel(7, hidden_size=8, num_layers=1, num_heads=1), tmp_path / "m.onnx"
    check(model.eval(), path, lambda *shape: torch.randint(7, shape), "tokens")
    for token in (-8, -7, -1, 7):
        feeds = {"tokens": np.full((1, 3), token), **kt_onnx.empty_state(path)}
        with pytest.raises(Exception, match="out of data bounds"):
            session(path).run(None, feeds)
        with pytest.raises(IndexError):
            model(torch.full((1, 3), token))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # PyTorch's
@pytest.mark.parametrize("name", [pytest.param("gated_deltanet", marks=pytest.mark.slow), "model"])
def test_pytorchs_own_exporters_write_the_outputs_alone_or_say_what_to_do(name):
    torch.manual_seed(0)
    if name == "model":
        mixer = "elu@window=4"
        model = LanguageModel(7, mixer=mixer, hidden_size=8, num_layers=1, num_heads=1)
        x = torch.ones(2, 9).long()
    else:
        model, x = make(name, 8, 1), torch.randn(2, 9, 8)
    model, file = model.eval(), io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
    run = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (y,) = run.run(None, {run.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(y, model(x)[0].numpy(), atol=1e-5)
    with pytest.raises(TypeError, match="returns the first output only, or use"):
        torch.jit.trace(model, (x,))


def test_what_cannot_be_written_is_refused_with_a_reason(tmp_path):
    foreign = LanguageModel(9, mixer=lambda i: torch.nn.Identity(), num_layers=1)
    for model, reason in (
        *((make(mixer, 32, 2), reason) for mixer, reason in REFUSED.items()),
        (torch.nn.Linear(3, 3), "must be a kerneltrick.torch.Attention"),
        (Attention(32, 2, causal=False), "no order of tokens"),
        (foreign, "layer Identity"),
    ):
        with pytest.raises(ValueError, match=reason):
            kt_onnx.export(model, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="one of plain, microsoft, opset27, not 'cuda'"):
        kt_onnx.export(make("elu", 32, 2), tmp_path / "layer.onnx", operators="cuda")
    assert not list(tmp_path.iterdir())
    known = {text.partition(":")[0] for text in (*WRITTEN, *FUSED, *REFUSED)}
    assert set(MIXERS) <= known  # every mixer is either written or refused


@pytest.mark.slow
def test_the_command_writes_a_trained_model(run, tmp_path):
    from kerneltrick.torch import TrainedModel, TrainingSettings, Vocabulary

    settings = TrainingSettings(mixer="elu", hidden_size=8, num_layers=1, num_heads=1)
    words, path = Vocabulary.of("abc"), tmp_path / "model.onnx"
    model = settings.model(words.size).eval()
    (tmp_path / "model").mkdir()
    TrainedModel(settings, words, model, "").save(tmp_path / "model")
    path.write_text("of an earlier export, which is replaced")
    command = ("export", tmp_path / "model", "--onnx", path)
    code, printed, problem = run(*command, "--operators", "microsoft")
    assert code == 0, problem
    assert "inputs for the state" in printed
    assert ("com.microsoft", "LinearAttention") in nodes(path)
    tokens = words.encode("abcab")[None]
    with torch.no_grad():
        whole = model(tokens)[0]
    feeds = {"tokens": tokens.numpy(), **kt_onnx.empty_state(path)}
    np.testing.assert_allclose(session(path).run(None, feeds)[0], whole, atol=1e-5)
    for words, problem in (
        (("export", tmp_path, "--onnx", path), "holds no model; export takes a model"),
        (("export", tmp_path / "model", "--onnx", tmp_path), "folder"),
        (("export", tmp_path / "model"), "--onnx"),
        ((*command, "--operators", "cuda"), "one of plain"),
    ):
        code, _, said = run(*words)
        assert code == 2
        assert problem in said
