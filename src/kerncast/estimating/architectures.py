"""Which architectures are known, how they differ, and which fields mean that a layer is of another kind than those here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerncast.errors import InvalidValue, quoted
from kerncast.estimating.fields import Fields


@dataclass(frozen=True)
class Traits:
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


PLAIN, QK_NORM = Traits(), Traits(qk_norm=True)
# None of the published configs with a decoder in `text_config` states `vocab_size`, and the one of 4 B states no heads.
GEMMA3 = Traits(
    tied=True, norms=4, qk_norm=True, pattern=6,
    defaults={"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
              "sliding_window": 4096},
)  # fmt: skip
# By `model_type`, as transformers names them.
KNOWN: dict[str, Traits] = {
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
        Traits(qk_norm=True, pattern=4, delta=True),
    ),
    "glm4": Traits(norms=4),
    "gemma": Traits(tied=True),
    "gemma2": Traits(tied=True, norms=4, alternating=True),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "cohere": Traits(tied=True, norms=1),
    "cohere2": Traits(tied=True, norms=1, pattern=4),
    **dict.fromkeys(("starcoder2", "nemotron", "gpt_neox"), Traits(gated=False)),
    "phi": Traits(gated=False, norms=1),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "opt"), Traits(gated=False, tied=True, wider=4)),
    "falcon": Traits(gated=False, tied=True, norms=1, wider=4),
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


def traits_of(fields: Fields, outer: Fields) -> tuple[Traits, str, str | None]:
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
    return Traits(qk_norm=qk_norm), name, assumed
