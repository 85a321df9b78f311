"""The fields of a model's config, each read with its type and range; the architectures that are known; the element types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kerncast.core import dtypes
from kerncast.errors import BadFile, InvalidValue, quoted
from kerncast.estimating.decoder import LARGEST, Formats

MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Fields:
    """A JSON object, with the name of its file for messages."""

    values: Mapping[str, Any]
    source: str

    def filled(self, defaults: Mapping[str, int]) -> tuple[Fields, tuple[str, ...]]:
        """The same fields and those of `defaults` that are not there, and the names of the latter."""
        missing = tuple(name for name in defaults if name not in self.values)
        return Fields({**self.values, **{name: defaults[name] for name in missing}}, self.source), missing

    def renamed(self, others: Mapping[str, Sequence[str]]) -> Fields:
        """The same fields, with those that are called otherwise by their usual name too."""
        found = {name: self.values[own] for name, known in others.items() if (own := self.present(name, *known)) is not None}
        return Fields({**self.values, **found}, self.source)

    def present(self, *names: str) -> str | None:
        """The first of these names that has a value other than null."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number that is called by the first of these names that is there."""
        found = self.present(*names)
        if found is None:
            if default is None:
                raise BadFile(
                    f"{self.source} has no {' or '.join(names)}, which a decoder needs: give the config.json of a decoder, or "
                    "add the field if it is called otherwise there"
                )
            return default
        value = self.values[found]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            rule = f"must be a whole number from {least} to {most:,}"
            raise BadFile(f"{self.source}: {found} {rule}, got {quoted(repr(value))}: correct it")
        return value

    def _of_type(self, name: str, kind: type, what: str) -> Any:
        """A value, or None where there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise BadFile(f"{self.source}: {name} must be {what}, got {quoted(repr(value))}: correct it")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._of_type(name, bool, "true or false")
        return default if value is None else bool(value)

    def text(self, name: str) -> str | None:
        """A text, or None."""
        text: str | None = self._of_type(name, str, "a text")
        return text

    def items(self, name: str) -> Sequence[Any] | None:
        """A list, or None."""
        items: Sequence[Any] | None = self._of_type(name, list, "a list")
        return items

    def inner(self, name: str) -> Fields | None:
        """An object within this one, or None."""
        value = self._of_type(name, Mapping, "an object")
        return None if value is None else Fields(value, f"{self.source}, {name}")

    def per_layer(self, name: str, layers: int) -> Sequence[Any] | None:
        """A list with one item for each layer, or None."""
        value = self.items(name)
        if value is not None and len(value) != layers:
            raise BadFile(f"{self.source}: {name} has {len(value):,} items for {layers:,} layers: correct one of them")
        return value


@dataclass(frozen=True)
class ArchitectureTraits:
    """What a config does not say, because the code of its architecture does."""

    gated: bool = True
    qk_norm: bool = False
    tied: bool = False
    norms: int = 2
    alternating: bool = False
    """Whether every second layer has the window, when the config does not list them."""
    pattern: int | None = None
    """Of how many layers the last one sees everything, when the config does not list them."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Fields that published configs leave out where they have the default of transformers."""
    delta: bool = False
    """Whether the other layers are gated delta networks, and attention has a gate."""
    wider: int | None = None
    """How many times as wide as the hidden size the MLP is, when the config does not say."""


PLAIN, QK_NORM = ArchitectureTraits(), ArchitectureTraits(qk_norm=True)
# None of the published configs with a decoder in `text_config` states `vocab_size`, and the one of 4 B states no heads.
GEMMA3 = ArchitectureTraits(
    tied=True, norms=4, qk_norm=True, pattern=6,
    defaults={"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
              "sliding_window": 4096},
)  # fmt: skip
# By `model_type`, as transformers names them.
KNOWN: dict[str, ArchitectureTraits] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "mistral3", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "phi3",
         "phimoe", "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "gpt_oss", "granite", "granitemoe", "mimo",
         "glm", "exaone", "internlm2", "internlm3", "seed_oss", "ernie4_5", "ernie4_5_moe", "smollm3"),
        PLAIN,
    ),
    **dict.fromkeys(
        ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "minimax_m2", "glm4_moe",
         "olmo2", "olmoe", "mimo_v2_flash", "step3p7", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama4", "llama4_text"),
        QK_NORM,
    ),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        ArchitectureTraits(qk_norm=True, pattern=4, delta=True),
    ),
    "glm4": ArchitectureTraits(norms=4),
    "gemma": ArchitectureTraits(tied=True),
    "gemma2": ArchitectureTraits(tied=True, norms=4, alternating=True),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "cohere": ArchitectureTraits(tied=True, norms=1),
    "cohere2": ArchitectureTraits(tied=True, norms=1, pattern=4),
    **dict.fromkeys(("starcoder2", "nemotron", "gpt_neox"), ArchitectureTraits(gated=False)),
    "phi": ArchitectureTraits(gated=False, norms=1),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "opt"), ArchitectureTraits(gated=False, tied=True, wider=4)),
    "falcon": ArchitectureTraits(gated=False, tied=True, norms=1, wider=4),
}  # fmt: skip
# Older configs have names of their own for fields, as the `attribute_map` of transformers lists them.
OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions",),
}

SUPPORTED = (
    "dense and mixture-of-experts decoders with multi-head, grouped-query or latent attention, with or without windows (Llama, "
    "Qwen 2 to 3.5, Mistral, Mixtral, DeepSeek V2 and V3, Kimi K2, Gemma 1 to 3, gpt-oss, MiniMax M2 and the like)"
)
# Fields of gated delta networks: they have layers of them if the architecture is known to be one.
DELTA_FIELDS = ("linear_num_key_heads", "linear_num_value_heads")
# A field that is there (and neither null, 0, false nor empty) → what the layers then have, which is not listed here.
OTHER_LAYERS = {
    "linear_attn_config": "linear attention",
    **dict.fromkeys(DELTA_FIELDS, "linear attention"),
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "state_size": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "attn_layer_period": "state-space layers",
    "lru_width": "recurrent layers",
    "index_topk": "sparse attention with an index",
    "compress_ratios": "compressed attention",
    "sparse_attention_config": "sparse attention",
    "block_configs": "blocks that all differ",
    "global_head_dim": "two sizes of heads",
    "hidden_size_per_layer_input": "embeddings in every layer",
    "num_kv_shared_layers": "layers that share a cache",
    "cross_attention_layers": "cross-attention",
    "is_encoder_decoder": "an encoder",
    "type_vocab_size": "an encoder",
    "zero_expert_num": "experts that do nothing",
}
# How the classes of models that generate no text end, in `architectures`.
ENCODERS = (
    "ForMaskedLM", "ForImageClassification", "ForObjectDetection", "ForAudioClassification", "BertModel", "RobertaModel",
    "ElectraModel", "CLIPModel", "SiglipModel", "Siglip2Model", "ViTModel", "Dinov2Model", "Wav2Vec2Model",
)  # fmt: skip


def traits_of(fields: Fields, outer: Fields) -> tuple[ArchitectureTraits, str, str | None]:
    """The traits of an architecture, its name, and what is assumed if it is not known; those with other layers are refused.

    `outer` is the whole config, which names the class of a multimodal model.
    """
    model_type = fields.text("model_type") or ""
    stated = [*(fields.items("architectures") or ()), *(outer.items("architectures") or ())]
    name = model_type or next((item for item in stated if isinstance(item, str)), "") or "unnamed"
    others = {key: what for key, what in OTHER_LAYERS.items() if fields.values.get(key)}
    if model_type in KNOWN and KNOWN[model_type].delta:
        others = {key: what for key, what in others.items() if key not in DELTA_FIELDS}
    if any(isinstance(item, str) and item.endswith(ENCODERS) for item in stated):
        others["architectures"] = "an encoder"
    for key, what in others.items():
        raise InvalidValue(
            f"{fields.source}: the architecture '{quoted(name, 80)}' has {what} ({key}), which is not supported: take "
            f"one of {SUPPORTED}"
        )
    if model_type in KNOWN:
        return KNOWN[model_type], name, None
    assumed = (
        f"the architecture '{quoted(name, 80)}' is not known: read as a decoder with a gated MLP and two norms in each layer"
    )
    qk_norm = fields.flag("use_qk_norm", False)
    return ArchitectureTraits(qk_norm=qk_norm), name, assumed


ACTIVATIONS = ("fp16", "bf16", "fp32")
CACHES = ("fp16", "bf16", "fp8", "int8")
# Formats of projections; the others are for experts alone.
LINEAR = ("fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int8", "int4_wo", "int8_wo")
# How quantisers call them.
ALGORITHMS = {"fp8": "fp8", "fp8_pb_wo": "fp8_block", "fp8_block_scales": "fp8_block", "nvfp4": "nvfp4", "nvfp4_awq": "nvfp4",
              "w4a16_awq": "int4_wo", "w4a8_awq": "w4afp8", "w8a8_sq_per_channel": "int8", "w8a16": "int8_wo",
              "w4a16": "int4_wo", "mxfp4": "w4a16_mxfp4", "fbgemm_fp8": "fp8"}  # fmt: skip
NOT_CONVERTED = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
# Bytes of a weight of what is not a dtype of its own here.
INT8_WEIGHTS = 1.0 + 2.0 / 128


def weight_bytes(name: str) -> float:
    """Bytes of one weight of a format, its share of the scales included."""
    return INT8_WEIGHTS if name == "int8_wo" else dtypes.BYTES[name]


def activation_type(name: str, activations: str) -> str:
    """The type that weights of a format are multiplied in."""
    if name == "int8_wo":
        return activations
    return dtypes.MULTIPLIED_AS.get(name, name)


def formats_of(fields: Fields, outer: Fields, beside: Fields | None) -> tuple[Formats, str | None]:
    """What the config says, and what it says that is not known (which matters only if the caller does not say it instead)."""
    stated = fields.present("dtype", "torch_dtype")
    text = fields.text(stated) if stated else outer.text(outer.present("dtype", "torch_dtype") or "dtype")
    activations = dtypes.named(text) if text is not None else "bf16"
    if activations == "fp32":
        activations = "bf16"  # saved in 32 bits, served in 16
    if activations not in ACTIVATIONS:
        raise InvalidValue(f"{fields.source}: dtype must be one of {', '.join(ACTIVATIONS)}, got '{quoted(text)}': correct it")
    plain = Formats(activations, activations, activations, activations, activations)
    quantised = outer.inner("quantization_config") or fields.inner("quantization_config")
    if quantised is None and beside is not None:
        quantised = beside.inner("quantization")
    return (plain, None) if quantised is None else _quantised(plain, quantised)


def _quantised(plain: Formats, fields: Fields) -> tuple[Formats, str | None]:
    found = _algorithm(fields)
    cache = _cache(fields)
    formats = plain if cache is None else replace(plain, cache=cache)
    if found is None:
        method = fields.text("quant_algo") or fields.text("quant_method") or "unnamed"
        return formats, f"the quantisation '{quoted(method, 80)}' is not known: give `dtype`"
    kept = [item for name in NOT_CONVERTED for item in fields.items(name) or () if isinstance(item, str)]
    formats = replace(formats, experts=found, dynamic=not _static(fields))
    if found in LINEAR:
        if not any("shared_expert" in item and not item.endswith("_gate") for item in kept):
            formats = replace(formats, mlp=found)
        if not any("self_attn" in item and "norm" not in item for item in kept):
            formats = replace(formats, attention=found)
    return formats, None


def _static(fields: Fields) -> bool:
    """Whether the scales of activations were found beforehand, as modelopt does for fp8."""
    groups = fields.inner("config_groups")
    group = None if groups is None else next((groups.inner(name) for name in groups.values), None)
    activations = None if group is None else group.inner("input_activations")
    if activations is not None:
        return not activations.flag("dynamic", True)
    return fields.text("activation_scheme") == "static" or (fields.text("quant_algo") or "").lower() == "fp8"


def _algorithm(fields: Fields) -> str | None:
    """The format of quantised weights; None: not known."""
    stated = (fields.text("quant_algo") or "").lower()
    method = (fields.text("quant_method") or "").lower()
    if stated:
        return ALGORITHMS.get(stated)
    if method == "fp8":
        return "fp8_block" if fields.items("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round", "compressed-tensors", "modelopt"):
        return _by_bits(fields)
    return ALGORITHMS.get(method)


def _by_bits(fields: Fields) -> str | None:
    groups = fields.inner("config_groups")
    if groups is None:
        bits = fields.whole("bits", "w_bit", default=0, least=0, most=64)
        return {4: "int4_wo", 8: "int8_wo"}.get(bits)
    group = next((inner for name in groups.values if (inner := groups.inner(name)) is not None), None)
    weights = None if group is None else group.inner("weights")
    if group is None or weights is None:
        return None
    bits, kind = weights.whole("num_bits", default=0, least=0, most=64), weights.text("type")
    if group.values.get("input_activations") is None:
        return {(4, "int"): "int4_wo", (8, "int"): "int8_wo"}.get((bits, kind or ""))
    eight = "fp8_block" if weights.text("strategy") == "block" else "fp8"
    return {(8, "float"): eight, (8, "int"): "int8", (4, "float"): "nvfp4"}.get((bits, kind or ""))


def _cache(fields: Fields) -> str | None:
    stated = (fields.text("kv_cache_quant_algo") or "").lower()
    scheme = fields.values.get("kv_cache_scheme")
    eight = isinstance(scheme, dict) and scheme.get("num_bits") == 8
    if stated in ("fp8", "int8"):
        return stated
    return "fp8" if eight else None


def asked(formats: Formats, dtype: str | None, kv_dtype: str | None, has_experts: bool) -> Formats:
    """The formats with what the caller asks for instead."""
    if kv_dtype is not None:
        formats = replace(formats, cache=_one_of("kv_dtype", kv_dtype, CACHES))
    if dtype is None:
        return formats
    known = [*LINEAR, *(name for name in dtypes.MULTIPLIED_AS if name not in LINEAR)]
    name = _one_of("dtype", dtype, known)
    if name not in LINEAR:
        if not has_experts:
            raise InvalidValue(
                f"`dtype={name}` is a format of experts, and the model has none: take one of {', '.join(LINEAR)}"
            )
        return replace(formats, experts=name)
    if name in ACTIVATIONS:
        cache = formats.cache if formats.cache not in ACTIVATIONS else name
        return Formats(
            activations=name, attention=name, mlp=name, experts=name, cache=cache if kv_dtype is None else formats.cache
        )
    return replace(formats, attention=name, mlp=name, experts=name)


def _one_of(argument: str, given: str, known: Iterable[str]) -> str:
    names = list(known)
    name = given if given in names else dtypes.named(given)
    if name not in names:
        raise InvalidValue(f"`{argument}` must be one of {', '.join(names)}, got '{quoted(given)}'")
    return name
