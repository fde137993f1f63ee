"""A linearised model as a model type of its own: the original, and a map for each layer.

Its folder has the model type "kerneltrick", so nothing can load it as the original softmax model by
mistake. Importing `kerneltrick.hf` registers the type with `AutoModel` and `AutoModelForCausalLM`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers

from kerneltrick import maps
from kerneltrick._arrays import is_array
from kerneltrick.attention import Dial, Far
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._mask import AttentionError, kept_positions
from kerneltrick.hf._names import FAMILY, register_choice
from kerneltrick.torch import LearnedMap

NAME = FAMILY  # the model type, and the attention function that finds its map in the layer
FORMAT = 1
_SETTING = "_kerneltrick_setting"  # the attribute of attention modules with their setting


class Head(NamedTuple):
    """A key–value head."""

    layer: int
    head: int


class LinearizedConfig(transformers.PretrainedConfig):  # type: ignore[misc] # not followed by mypy
    """The configuration of a linearised model.

    text_config: the configuration of the original.
    layers: for each layer, the text of its dial and the other arguments of its `LearnedMap`.
    causal: whether the model is a decoder.
    language: whether the model has a head that predicts tokens.
    finetune: what was trained end to end. After "lora" and "all", the weights are no longer those
        of the original.
    format: the version of this format.
    """

    model_type = NAME

    def __init__(
        self,
        text_config: Any = None,
        layers: Sequence[Mapping[str, Any]] = (),
        causal: bool = False,
        language: bool = False,
        finetune: str = "none",
        format: int = FORMAT,
        **keywords: Any,
    ) -> None:
        if format != FORMAT:
            raise ValueError(
                f"this linearised model has format {format}, from another version of kerneltrick; "
                f"this version reads format {FORMAT}"
            )
        if isinstance(text_config, dict):
            if "model_type" not in text_config:
                raise ValueError(
                    "the configuration of this linearised model does not name the original's type "
                    "(model_type in text_config)"
                )
            text_config = transformers.AutoConfig.for_model(**text_config)
        self.text_config = text_config
        self.layers = [dict(layer) for layer in layers]
        self.causal, self.language, self.format = causal, language, format
        self.finetune = finetune
        super().__init__(**keywords)


class Linearized(transformers.PreTrainedModel):  # type: ignore[misc] # as above
    """A pretrained model whose layers use feature maps and windows instead of softmax."""

    config_class = LinearizedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _language = False

    def __init__(self, config: LinearizedConfig, original: Any = None) -> None:
        super().__init__(config)
        if config.text_config is None:
            raise ValueError(
                "the configuration of this linearised model does not describe the original "
                "(text_config)"
            )
        register_choice(NAME, _choose)
        if original is None:
            kind = transformers.AutoModelForCausalLM if self._language else transformers.AutoModel
            # `from_pretrained` hands its dtype down as PyTorch's default; without it, `from_config`
            # would use the dtype in which the original was saved.
            dtype = torch.get_default_dtype()
            original = kind.from_config(config.text_config, attn_implementation=NAME, dtype=dtype)
        else:
            dtype = original.dtype
            original.set_attn_implementation(NAME)
        self.model = original
        self.maps = torch.nn.ModuleDict()
        for number, layer in enumerate(config.layers):
            made = _setting(layer)
            if isinstance(made, LearnedMap):
                self.maps[str(number)] = made
        self.maps.to(dtype)
        parameters = inspect.signature(original.forward).parameters
        # A few models find the padding in `input_ids`, and begin to count after its number.
        finds = any(hasattr(x, "create_position_ids_from_input_ids") for x in original.modules())
        self._counts_tokens = "position_ids" in parameters and not finds
        self.post_init()
        self._attach()

    def _attach(self) -> None:
        """Give each attention module its setting."""
        modules = attention_modules(self.model)
        if len(modules) != len(self.config.layers):
            raise ValueError(
                f"the configuration of this linearised model describes {len(self.config.layers)} "
                f"layers, but the model has {len(modules)}; config.json was changed, or is not "
                "the one that linearize wrote"
            )
        for number, module in enumerate(modules):
            layer = self.config.layers[number]
            learned = str(number) in self.maps
            # Not as a submodule, because the weights belong to self.maps alone.
            module.__dict__[_SETTING] = self.maps[str(number)] if learned else _setting(layer)

    @classmethod
    def from_pretrained(cls, where: Any, *arguments: Any, **keywords: Any) -> Any:
        """Load a model as usual, and refuse a folder that lacks some of the weights or maps."""
        config = keywords.get("config")
        if config is None:
            config = transformers.AutoConfig.from_pretrained(where)
            keywords["config"] = config
        if not isinstance(config, LinearizedConfig):
            raise ValueError(f"{where} holds no linearised model, but a {config.model_type}")
        if cls._language and not config.language:
            raise ValueError(f"{where} predicts no tokens: it was made from a model without a head")
        asked = keywords.pop("output_loading_info", False)
        owner: Any = LinearizedForCausalLM if config.language else LinearizedModel
        load = super(Linearized, owner).from_pretrained
        model, report = load(where, *arguments, output_loading_info=True, **keywords)
        missing = sorted(report["missing_keys"])
        if missing:
            raise ValueError(f"{where}: its weights lack {missing[0]} ({len(missing)} in all)")
        if config.language and not cls._language:
            whole, model = model, cls(config, model.model.base_model)
            model.maps.load_state_dict(whole.maps.state_dict())
            model.to(whole.dtype).eval()
        return (model, report) if asked else model

    def set_attn_implementation(self, *_: Any, **__: Any) -> None:
        raise AttentionError(
            "a linearised model attends with its maps; load the original for another attention"
        )

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.model.set_input_embeddings(value)

    @property
    def settings(self) -> list[Dial | LearnedMap]:
        """The setting of each layer: a dial, or a module that learns one."""
        return [module.__dict__[_SETTING] for module in attention_modules(self.model)]

    @contextmanager
    def attending_by(self, settings: Sequence[Dial | LearnedMap]) -> Iterator[None]:
        """Use other settings for a while, to measure what windows and maps do alone."""
        modules, own = attention_modules(self.model), self.settings
        try:
            for module, setting in zip(modules, settings, strict=True):
                module.__dict__[_SETTING] = setting
            yield
        finally:
            for module, setting in zip(modules, own, strict=True):
                module.__dict__[_SETTING] = setting

    def drop_maps(self, heads: Mapping[int, Sequence[int]]) -> None:
        """Leave these key–value heads of layers their window and sinks alone, for good."""
        count = head_sizes(self.config.text_config)[0]["num_kv_heads"]
        for number, bare in heads.items():
            layer = self.config.layers[number]
            dial = Dial.get(layer["dial"])
            dial = dataclasses.replace(dial, bare=sorted({*dial.bare, *bare}))
            if len(dial.bare) + len(dial.whole) == count:
                dial = dataclasses.replace(dial, feature_map=maps.Softmax(), far=None, bare=())
                self.config.layers[number] = {"dial": str(dial)}
                if str(number) in self.maps:
                    del self.maps[str(number)]
                continue
            layer["dial"] = str(dial)
            if str(number) in self.maps:
                made = LearnedMap(dial, **layer["sizes"]).to(self.dtype)
                made.load_state_dict(self.maps[str(number)].state_dict())
                self.maps[str(number)] = made
        self._attach()

    def _run(self, given: Any, wanted: bool | None, keywords: dict[str, Any]) -> Any:
        """Call the original; if it would make a cache, give it one of constant size."""
        if self.config.causal:
            if wanted is None:
                wanted = getattr(self.config.text_config, "use_cache", False) and not self.training
            keywords["past_key_values"] = Cache() if given is None and wanted else given
            keywords["use_cache"] = keywords["past_key_values"] is not None
            if self._counts_tokens and keywords.get("position_ids") is None:
                keywords["position_ids"] = _positions(**keywords)
        return self.model(**keywords)


class LinearizedModel(Linearized):
    """The model that `AutoModel.from_pretrained` loads from the folder of a linearised model.

    It is called like the original without its head.
    """

    def forward(
        self, input_ids: Any = None, past_key_values: Any = None, use_cache: Any = None, **more: Any
    ) -> Any:
        return self._run(past_key_values, use_cache, {"input_ids": input_ids, **more})


class LinearizedForCausalLM(Linearized, transformers.GenerationMixin):  # type: ignore[misc]
    """The model that `AutoModelForCausalLM.from_pretrained` loads from such a folder.

    It is called like the original, and generates with a state of constant size.
    """

    _language = True

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: Any = 0,
        **more: Any,
    ) -> Any:
        # `generate` reads the signature of this method, so the names must stand here.
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "logits_to_keep": logits_to_keep,
        }
        return self._run(past_key_values, use_cache, {**given, **more})

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any, **more: Any
    ) -> Any:
        """Give `generate` a cache of constant size, unless it was asked for another."""
        asked = generation_config.cache_implementation
        if generation_config.use_cache is not False and asked is None:
            cache = model_kwargs.setdefault("past_key_values", Cache())
            if generation_config.is_assistant:  # its drafts will be taken back
                cache.activate_past_recording()
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest, **more)


def assemble(model: Any, dials: Mapping[int, Dial], *, causal: bool) -> Linearized:
    """Return a linearised model made of `model` itself, with a dial for each layer in `dials`.

    Layers without a dial keep softmax. The weights are shared with `model`, not copied.
    """
    modules = attention_modules(model)
    strange = sorted(set(dials) - set(range(len(modules))))
    if strange:
        raise ValueError(
            f"{type(model).__name__} has {len(modules)} layers of attention, but no layer "
            f"{strange[0]}"
        )
    heads, width = head_sizes(model.config)
    every = [dials.get(number, Dial(maps.Softmax())) for number in range(len(modules))]
    layers = [_description(dial, heads, width) for dial in every]
    language = model.can_generate() and model.get_output_embeddings() is not None
    config = LinearizedConfig(model.config, layers, causal=causal, language=language)
    made: Linearized = (LinearizedForCausalLM if language else LinearizedModel)(config, model)
    for number, dial in enumerate(every):
        if str(number) in made.maps:
            made.maps[str(number)] = LearnedMap(dial, **layers[number]["sizes"]).to(model.dtype)
    made._attach()
    if language:
        made.generation_config = model.generation_config
    made.to(model.device).train(model.training)
    return made


def _positions(
    input_ids: Any = None,
    inputs_embeds: Any = None,
    attention_mask: Any = None,
    past_key_values: Any = None,
    **_: Any,
) -> Any:
    """Return the positions of tokens among those that their mask keeps; None leaves them alone.

    By itself, a model of transformers counts padding too. Softmax with rotary positions gives the
    same after that, but maps that are no functions of q·k do not.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or not torch.is_tensor(attention_mask) or attention_mask.ndim != 2:
        return None
    before = 0 if past_key_values is None else past_key_values.get_seq_length()
    if attention_mask.shape[1] != before + given.shape[1]:
        return None
    return kept_positions(attention_mask != 0)[:, before:]


def dial_of(setting: Dial | LearnedMap) -> Dial:
    """Return the dial of a layer's setting."""
    return setting.dial if isinstance(setting, LearnedMap) else setting


def with_whole(dial: Dial, whole: Sequence[int], heads: int) -> Dial:
    """Return a dial in which these key–value heads see the whole text, and no others."""
    if len(whole) == heads:
        return Dial(maps.Softmax())
    bare = [head for head in dial.bare if head not in whole]
    return dataclasses.replace(dial, whole=tuple(sorted(whole)), bare=bare)


def attention_modules(model: Any) -> list[Any]:
    """Return the attention modules, one for each layer, in order."""
    found = [
        module
        for module in model.modules()
        if _is_attention(module) and not any(map(_is_attention, _below(module)))
    ]
    layers = model.config.get_text_config().num_hidden_layers
    if len(found) != layers:
        raise AttentionError(
            f"{type(model).__name__} has {layers} layers but {len(found)} attention modules, so it "
            "is not clear which belongs to which"
        )
    return found


def attention_blocks(model: Any) -> list[Any]:
    """Return the outermost attention modules, which include their projections."""
    found: list[Any] = []
    for module in model.modules():  # parents come first
        if _is_attention(module) and not any(module in _below(block) for block in found):
            found.append(module)
    return found


def _is_attention(module: Any) -> bool:
    return "Attention" in type(module).__name__


def _below(module: Any) -> list[Any]:
    return [x for x in module.modules() if x is not module]


def head_sizes(config: Any) -> tuple[dict[str, int], int]:
    """Return the numbers of heads, and the width of a head."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return {"num_heads": heads, "num_kv_heads": getattr(text, "num_key_value_heads", heads)}, width


def _description(dial: Dial, heads: dict[str, int], width: int) -> dict[str, Any]:
    """Return the text of a dial without weights, and what a `LearnedMap` needs, for config.json."""
    feature_map = dial.feature_map
    arrays = {
        field.name: x
        for field in dataclasses.fields(feature_map)
        if is_array(x := getattr(feature_map, field.name))
    }
    bare = dataclasses.replace(feature_map, **dict.fromkeys(arrays))
    relative = dial.far is not None and dial.far.relative
    far = Far(relative=True) if relative else None
    found: dict[str, Any] = {"dial": str(dataclasses.replace(dial, feature_map=bare, far=far))}
    if not (feature_map.has_features and (arrays or dial.window or dial.sinks)):
        return found
    found["sizes"] = {**heads, "head_dim": width}
    if isinstance(feature_map, maps.Hedgehog) and "weight" in arrays:
        found["sizes"]["features"] = 2 * arrays["weight"].shape[-1]
        found["sizes"]["key_weight"] = "key_weight" in arrays
    return found


def _setting(layer: Mapping[str, Any]) -> Dial | LearnedMap:
    try:
        if "sizes" not in layer:
            return Dial.get(layer["dial"])
        return LearnedMap(layer["dial"], **layer["sizes"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the configuration of this linearised model has a layer {dict(layer)!r}, which is not "
            f"what linearize writes ({error})"
        ) from None


def _choose(where: str, module: Any) -> Dial:
    setting = module.__dict__.get(_SETTING)
    if setting is None:
        raise AttentionError(f"{where} has no map, because it is not part of a linearised model")
    return setting.dial if isinstance(setting, LearnedMap) else setting


transformers.AutoConfig.register(NAME, LinearizedConfig)
transformers.AutoModel.register(LinearizedConfig, LinearizedModel)
transformers.AutoModelForCausalLM.register(LinearizedConfig, LinearizedForCausalLM)
