"""`hf.accelerate` replaces functions of transformers for CPU tensors, and gives them back."""

import gc
import importlib.util
import json
import sys
import types
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from accelerated_models import build, for_types  # noqa: E402
from transformers.models.mamba2 import modeling_mamba2 as file  # noqa: E402

import kerneltrick.hf as hf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("accelerated"),
]
NAMES = (
    "mamba2_chunk_scan",
    "mamba2_selective_state_update",
    "mamba2_split_conv1d_scan_combined",
)


@pytest.fixture(autouse=True)
def _give_back():
    yield
    hf.restore()


@pytest.fixture(scope="module")
def model():
    return build("mamba2")


def functions():
    return [getattr(file, name) for name in NAMES]


def test_leaving_the_block_gives_back_the_very_functions(model):
    before = functions()
    with hf.accelerate(model) as made:
        assert all(x is not y for x, y in zip(functions(), before, strict=True))
        assert {row.function for row in made.replaced} >= set(NAMES)
    assert all(x is y for x, y in zip(functions(), before, strict=True))
    with pytest.raises(KeyError), hf.accelerate(model):
        raise KeyError
    assert functions() == before


def test_a_second_call_replaces_nothing_again(model):
    before = functions()
    first = hf.accelerate(model)
    replaced = functions()
    second = hf.accelerate(model)
    assert functions() == replaced
    assert second.replaced == first.replaced  # and says what was there at first
    first.restore()
    assert functions() == replaced  # the second still wants them
    second.restore()
    second.restore()
    assert functions() == before


def test_restore_gives_back_what_nobody_holds(model):
    before = functions()
    hf.accelerate(model)
    hf.accelerate(build("mamba2", seed=1))
    hf.restore()
    assert functions() == before


def test_what_was_restored_is_not_kept_alive(model):
    made = hf.accelerate(model)
    made.restore()
    ended = weakref.ref(made)
    del made
    gc.collect()
    assert ended() is None


def test_printed_it_is_a_table(model):
    with hf.accelerate(model) as made:
        lines = str(made).splitlines()
    assert lines[0].split() == ["function", "in", "before", "now"]
    assert any(line.split()[:3] == ["mamba2_chunk_scan", "mamba2", "reference"] for line in lines)
    assert len(lines) == 2 + len(made.replaced)


def test_tensors_elsewhere_go_where_they_went(model, monkeypatch):
    seen = []
    monkeypatch.setattr(file, "mamba2_chunk_scan", lambda *x, **y: seen.append(x) or "theirs")
    monkeypatch.setattr("kerneltrick.hf._accelerate._check_signature", lambda place: None)
    with hf.accelerate(model):
        meta = torch.zeros(1, 2, 3, 4, device="meta")
        assert file.mamba2_chunk_scan(meta, chunk_size=4) == "theirs"
        assert file.mamba2_chunk_scan(torch.zeros(1), meta) == "theirs"  # on two devices
    assert len(seen) == 2


def llama():
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    return transformers.LlamaForCausalLM(config)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(hf.AccelerationError, match=r"nothing to accelerate: LlamaForCausalLM"):
        hf.accelerate(llama())
    with pytest.raises(TypeError, match="not str"):
        hf.accelerate("mamba2")


def test_an_unknown_version_is_refused_by_name(model, monkeypatch):
    before = functions()
    for version in ("5.15.0", "5.99.0", "6.0.0.dev0"):
        monkeypatch.setattr(hf._accelerate.transformers, "__version__", version)
        with pytest.raises(hf.AccelerationError, match=rf"5\.16 to 5\.\d+, but {version}"):
            hf.accelerate(model)
        assert functions() == before


def test_another_signature_is_refused_by_name_and_nothing_is_replaced(model, monkeypatch):
    def changed(state, hidden_states):
        raise AssertionError

    monkeypatch.setattr(file, "mamba2_selective_state_update", changed)
    before = functions()
    with pytest.raises(hf.AccelerationError, match=r"mamba2_selective_state_update of mamba2"):
        hf.accelerate(model)
    assert functions() == before


def test_modules_with_a_forward_of_their_own_are_refused_by_name():
    before, model = functions(), build("mamba2")
    model.forward = model.forward  # as device_map and offloading do
    with pytest.raises(hf.AccelerationError, match=r"Mamba2ForCausalLM has a forward of its own"):
        hf.accelerate(model)
    assert functions() == before


def test_a_function_that_others_replaced_afterwards_is_left_alone(model, monkeypatch):
    made = hf.accelerate(model)
    monkeypatch.setattr(file, "mamba2_chunk_scan", print)
    with pytest.warns(UserWarning, match="mamba2_chunk_scan of mamba2 was replaced again"):
        made.restore()
    assert file.mamba2_chunk_scan is print
    monkeypatch.undo()  # puts our replacement back
    file.mamba2_chunk_scan = file.mamba2_chunk_scan._kerneltrick_replaces


@pytest.fixture
def gpu_packages(monkeypatch):
    """Packages whose kernels fail without a GPU, as those of fla and mamba_ssm do."""

    def fail(*inputs, **options):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    def scan(hidden_states, dt, A, B, C, chunk_size, D=None, **options):
        fail()

    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        package = types.ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    for name in ("ssd_combined", "selective_state_update"):
        module = types.ModuleType(f"mamba_ssm.ops.triton.{name}")
        module.mamba_chunk_scan_combined = scan
        module.selective_state_update = module.mamba_split_conv1d_scan_combined = fail
        scan.__module__ = fail.__module__ = module.__name__
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = f"{file.__package__}.modeling_beside_packages"
    spec = importlib.util.spec_from_file_location(name, file.__file__)
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, copy)
    spec.loader.exec_module(copy)
    return copy


def test_it_rescues_a_run_where_kernels_for_gpus_are_installed(gpu_packages):
    model = gpu_packages.Mamba2ForCausalLM(build("mamba2").config).eval()
    x = torch.arange(5)[None]
    with pytest.raises(RuntimeError, match="0 active drivers"):
        model(x)
    with hf.accelerate(model) as made:
        assert model(x).logits.isfinite().all()
        assert model.generate(x, max_new_tokens=3).shape == (1, 8)
        model.train()
        model(x, labels=x).loss.backward()
    before = {row.function: row.before for row in made.replaced}
    assert before["mamba2_chunk_scan"] == "mamba_ssm"


# Mamba, Falcon-Mamba, Jamba, Mamba-2 and GLM-5 take the weight of a layer in their own code, which
# quantised layers have as a method.
@for_types(("qwen3_next", "kimi_linear", "bamba", "zamba", "lfm2", "inkling2_text", "minimax"))
def test_a_quantised_model_runs(kind):
    quantised = torch.ao.quantization.quantize_dynamic(build(kind), {torch.nn.Linear})
    x = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = quantised(x).logits
        with hf.accelerate(quantised):
            found = quantised(x).logits
    assert float((found - expected).abs().max()) < 0.05 * float(expected.abs().max())


def test_a_module_that_contains_the_model_will_do(model):
    with hf.accelerate(torch.nn.ModuleDict({"inside": model})) as made:
        assert made.replaced


@pytest.mark.slow
def test_compiled_it_computes_the_same():
    model, x = build("minimax"), torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = model(x, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(x, use_cache=False).logits, expected)
        with hf.accelerate(compiled):  # a model that is compiled already is compiled anew
            found = compiled(x, use_cache=False).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled(x, use_cache=False).logits, expected)


@pytest.mark.slow
def test_compiled_training_has_the_same_gradients():
    x, found = torch.arange(3, 40)[None], []
    for replaced in (False, True):
        fresh = build("mamba2", num_hidden_layers=1).train()
        if replaced:
            hf.accelerate(fresh)
        run = torch.compile(fresh, backend="aot_eager") if replaced else fresh
        run(x, labels=x, use_cache=False).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in fresh.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_fewer_layers_have_every_kind_of_layer():
    for at, name in enumerate(hf.SHAPES):
        for layers in (4, (1, 2, 7)[at % 3]):
            with torch.device("meta"):
                config = hf.load_model(name, layers=layers).config
            assert config.num_hidden_layers == layers, name
            published = hf.SHAPES[name][0].get("layer_types")
            if published is not None:
                assert len(set(config.layer_types)) == min(layers, len(set(published))), name


class TestCommand:
    def test_it_prints_a_table_and_writes_json(self, tmp_path, run):
        folder, out = tmp_path / "model", tmp_path / "figures.json"
        build("mamba2").save_pretrained(folder)
        how = ["--tokens", "40", "--new", "2", "--train", "--json", out]
        code, shown, told = run("accelerate", folder, *how)
        assert code == 0
        assert "transformers" not in told  # neither bars nor its advice to install other kernels
        assert "mamba2_chunk_scan" in shown
        assert "training step" in shown
        figures = json.loads(out.read_text(encoding="utf-8"))
        assert [x["what"] for x in figures["figures"]][:2] == ["prefill", "decoding"]
        assert all(x["after"] >= 0 for x in figures["figures"])
        assert figures["advice"] in " ".join(shown.split())

    def test_unknown_shapes_are_named(self, run):
        code, _, message = run("accelerate", "qwen3_5:9t")
        assert code == 2
        assert "qwen3_5:0.8b" in message

    def test_a_model_without_such_layers_is_an_error_of_one_line(self, tmp_path, run):
        llama().save_pretrained(tmp_path)
        code, _, message = run("accelerate", tmp_path)
        assert code == 1
        assert "Loading weights" not in message
        last = message.splitlines()[-1]
        assert last.startswith("kerneltrick: nothing to accelerate: LlamaForCausalLM")

    def test_wrong_options_are_named(self, run):
        for option, value in (
            ("--dtype", "int4"),
            ("--tokens", "many"),
            ("--tokens", "0"),
            ("--layers", "2"),
            ("--new", "-1"),
        ):
            code, _, message = run("accelerate", "somewhere", option, value)
            assert (code, option in message) == (2, True), (option, value)


def test_advice_says_when_it_is_not_worth_it():
    from kerneltrick.hf._measure import _advice

    little = [hf.Gain("prefill", "tokens/s", 100.0, 103.0), hf.Gain("memory", "MB", 10.0, 1.0)]
    assert _advice(little).startswith("Do not bother on this machine: prefill 1 ×")
    assert _advice([hf.Gain("prefill", "tokens/s", 100.0, 230.0)]) == (
        "Worth it: prefill 2.3 × as fast."
    )
    assert "runs at all" in _advice([hf.Gain("training step", "s", None, 1.0, "too big")])
