"""Reading a model's config.json: from its fields to a decoder, its heads, its windows, its experts, layer by layer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import JSON, guarded, load_json
from kerncast.errors import BadFile, InvalidValue, NotFound, quoted
from kerncast.estimating.decoder import (
    Attention,
    Decoder,
    DeltaAttention,
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mlp,
)
from kerncast.estimating.fields import (
    LINEAR,
    MOST_LAYERS,
    OTHER_NAMES,
    SUPPORTED,
    ArchitectureTraits,
    Fields,
    formats_of,
    traits_of,
)

# Multimodal models keep the decoder's fields in an object of their own.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# Others have them outside, beside an object for each encoder.
ENCODERS = ("vision_config", "audio_config")
FURTHER_TOKENS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk")
EXPERT_INTER = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
SHARED_INTER = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
                "shared_intermediate_size")  # fmt: skip
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
DENSE_INTER = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
FULL, SLIDING, CHUNKED, LINEAR_TYPE = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
# Of Llama 4, every fourth layer sees everything unless the config lists them.
LLAMA4_GLOBAL = 4


def decoder_of(outer: Fields, name: str, beside: Fields | None = None) -> tuple[Decoder, str | None]:
    """The decoder that a config describes, and what its quantisation is called if that is not known."""
    nested = next((found for key in NESTED if (found := outer.inner(key)) is not None), None)
    fields = outer if nested is None else nested
    if nested is not None and (deeper := nested.inner("text_config")) is not None:
        fields = deeper
    traits, kind, unknown = traits_of(fields, outer)
    fields, left_out = fields.renamed(OTHER_NAMES).filled(traits.defaults)
    reader = _LayerReader(fields, traits, fields.whole("num_hidden_layers", most=MOST_LAYERS))
    kinds = Counter(zip(reader.attentions(), reader.mlps(), strict=True))
    formats, not_known = formats_of(fields, outer, beside)
    if formats.experts not in LINEAR and not any(isinstance(mlp, ExpertMlp) for _, mlp in kinds):
        not_known = f"the quantisation '{formats.experts}' is one of experts, and the model has none: give `dtype`"
    assumed = [] if unknown is None else [unknown]
    assumed += reader.assumed
    if left_out:
        values = ", ".join(f"{name}={traits.defaults[name]}" for name in left_out)
        assumed.append(f"the config leaves out what has the default of '{kind}': {values}")
    if nested is not None or any(outer.values.get(key) for key in ENCODERS):
        assumed.append("the decoder alone: encoders of images and sound are left out")
    if any(fields.values.get(name) for name in FURTHER_TOKENS):  # Kimi K2 says that it has 0 of them
        assumed.append("without the layers that predict further tokens")
    tied_in = fields if "tie_word_embeddings" in fields.values else outer
    longest = fields.whole("max_position_embeddings", default=0, least=0, most=2**53)
    return (
        Decoder(
            name=name,
            model_type=kind,
            hidden=fields.whole("hidden_size"),
            vocab=fields.whole("vocab_size"),
            tied=tied_in.flag("tie_word_embeddings", traits.tied),
            layers=tuple(LayerKind(attention, mlp, count) for (attention, mlp), count in kinds.items()),
            norms_per_layer=traits.norms,
            formats=formats,
            longest=longest or None,
            assumed=tuple(assumed),
        ),
        not_known,
    )


@dataclass(frozen=True)
class _LayerReader:
    """Reads the layers of one config."""

    fields: Fields
    traits: ArchitectureTraits
    layers: int

    @property
    def assumed(self) -> list[str]:
        """What the layers are taken to be."""
        if CHUNKED in self._attention_types():
            return ["attention within chunks is taken as attention within a window of the same length"]
        return []

    # -- attention -----------------------------------------------------------------------------------------------

    def attentions(self) -> list[Attention]:
        """The attention of each layer."""
        if self.fields.present("kv_lora_rank"):
            return [self._latent()] * self.layers
        types = self._attention_types()
        found: dict[str, Attention] = {
            kind: self._delta() if kind == LINEAR_TYPE else self._grouped(kind) for kind in dict.fromkeys(types)
        }
        return [found[kind] for kind in types]

    def _delta(self) -> DeltaAttention:
        fields = self.fields
        heads, value_heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
        if value_heads % heads:
            raise BadFile(
                f"{fields.source}: linear_num_value_heads must be a multiple of linear_num_key_heads, got {value_heads} and "
                f"{heads}: correct one of them"
            )
        key_dim, value_dim = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
        return DeltaAttention(heads, value_heads, key_dim, value_dim, fields.whole("linear_conv_kernel_dim", default=4))

    def _latent(self) -> LatentAttention:
        fields = self.fields
        return LatentAttention(
            heads=fields.whole("num_attention_heads"),
            q_rank=fields.whole("q_lora_rank", default=0, least=0),
            kv_rank=fields.whole("kv_lora_rank"),
            nope_dim=fields.whole("qk_nope_head_dim"),
            rope_dim=fields.whole("qk_rope_head_dim"),
            value_dim=fields.whole("v_head_dim"),
        )

    def _grouped(self, kind: str) -> GroupedAttention:
        fields, hidden = self.fields, self.fields.whole("hidden_size")
        # Some models have other heads in the layers with a window.
        own = ("swa_",) if kind == SLIDING else ()

        def names(name: str) -> tuple[str, ...]:
            return (*(before + name for before in own), name)

        heads = fields.whole(*names("num_attention_heads"))
        # Falcon 7B and StarCoder: whatever the number of key heads says. Newer Falcons count their groups.
        single = fields.flag("multi_query", False) and not fields.flag("new_decoder_architecture", False)
        kv_heads = 1 if single else fields.whole(*names("num_key_value_heads"), default=heads)
        if heads % kv_heads:
            raise BadFile(
                f"{fields.source}: num_attention_heads must be a multiple of num_key_value_heads, got {heads} and {kv_heads}: "
                "correct one of them"
            )
        if fields.present(*names("head_dim")) is None and hidden % heads:
            raise BadFile(
                f"{fields.source}: there is no head_dim, and hidden_size {hidden} is no multiple of {heads} heads: add head_dim"
            )
        head_dim = fields.whole(*names("head_dim"), default=max(1, hidden // heads))
        value_dim = fields.whole(*names("v_head_dim"), default=head_dim)
        window = {FULL: 0, SLIDING: self._window(), CHUNKED: fields.whole("attention_chunk_size", default=0, least=0)}[kind]
        qk_norm = fields.flag("use_qk_norm", self.traits.qk_norm)
        gate = self.traits.delta and fields.flag("attn_output_gate", True)
        return GroupedAttention(heads, kv_heads, head_dim, value_dim, window, qk_norm, gate)

    def _window(self) -> int:
        # Some configs say -1 for no window.
        return max(0, self.fields.whole("sliding_window", "sliding_window_size", default=0, least=-1))

    def _attention_types(self) -> list[str]:
        fields = self.fields
        listed = fields.per_layer("layer_types", self.layers)
        if listed is not None:
            for item in listed:
                if item not in (FULL, SLIDING, CHUNKED, "attention", *((LINEAR_TYPE,) if self.traits.delta else ())):
                    raise InvalidValue(
                        f"{fields.source}: layer_types has '{quoted(item, 80)}', which is not supported: take one of "
                        f"{SUPPORTED}"
                    )
            return [FULL if item == "attention" else item for item in listed]
        if self.traits.delta:
            every = fields.whole("full_attention_interval", default=self.traits.pattern)
            return [FULL if (place + 1) % every == 0 else LINEAR_TYPE for place in range(self.layers)]
        hybrid = fields.per_layer("hybrid_layer_pattern", self.layers)
        if hybrid is not None:
            return [SLIDING if item == 1 else FULL for item in hybrid]
        if fields.present("attention_chunk_size"):
            everywhere = fields.per_layer("no_rope_layers", self.layers) if fields.items("no_rope_layers") else None
            if everywhere is not None:
                return [CHUNKED if item else FULL for item in everywhere]
            return [FULL if (place + 1) % LLAMA4_GLOBAL == 0 else CHUNKED for place in range(self.layers)]
        if not self._window() or not fields.flag("use_sliding_window", True):
            return [FULL] * self.layers
        pattern = fields.present("sliding_window_pattern", "_sliding_window_pattern")
        own = fields.whole(pattern) if pattern else self.traits.pattern
        if own is not None:
            return [FULL if (place + 1) % own == 0 else SLIDING for place in range(self.layers)]
        if self.traits.alternating:
            return [FULL if place % 2 else SLIDING for place in range(self.layers)]
        # Qwen 2 gives the window to the layers after the first `max_window_layers`.
        first = fields.whole("max_window_layers", default=0, least=0) if "use_sliding_window" in fields.values else 0
        return [FULL if place < first else SLIDING for place in range(self.layers)]

    # -- feed-forward --------------------------------------------------------------------------------------------

    def mlps(self) -> list[Mlp]:
        """The feed-forward part of each layer."""
        experts = self.fields.whole(*EXPERTS, default=0, least=0)
        if experts < 2:
            return [self._dense()] * self.layers
        chosen = self._expert_layers()
        mixture = self._experts(experts) if any(chosen) else None
        dense = None if all(chosen) else self._dense()
        return [mixture if has and mixture is not None else (dense or self._dense()) for has in chosen]

    def _dense(self) -> DenseMlp:
        usual = None if self.traits.wider is None else self.traits.wider * self.fields.whole("hidden_size")
        return DenseMlp(self.fields.whole(*DENSE_INTER, default=usual), self.traits.gated)

    def _experts(self, experts: int) -> ExpertMlp:
        fields = self.fields
        top_k, inter = fields.whole(*TOP_K, most=experts), fields.whole(*EXPERT_INTER)
        stated = fields.whole(*SHARED_INTER, default=0, least=0)
        if stated:
            shared = stated
        elif (fields.text("model_type") or "").startswith("llama4"):
            shared = fields.whole("intermediate_size")
        else:
            shared = fields.whole(*SHARED_COUNT, default=0, least=0, most=experts) * inter
        return ExpertMlp(experts, top_k, inter, DenseMlp(shared) if shared else None)

    def _expert_layers(self) -> list[bool]:
        """Which layers are a mixture of experts."""
        fields, places = self.fields, range(self.layers)
        frequency = fields.values.get("moe_layer_freq")
        if isinstance(frequency, list):
            return [item == 1 for item in fields.per_layer("moe_layer_freq", self.layers) or ()]
        if fields.items("moe_layers"):
            listed = set(map(str, fields.items("moe_layers") or ()))
            return [str(place) in listed for place in places]
        first = fields.whole("first_k_dense_replace", "moe_layer_start_index", default=0, least=0)
        every = fields.whole("moe_layer_freq", "moe_layer_interval", default=1)
        step = fields.whole("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        dense = set(map(str, fields.items("mlp_only_layers") or ()))
        return [
            place >= first and place % every == 0 and (place + 1) % step == 0 and str(place) not in dense for place in places
        ]


CONFIG = "config.json"
# Some quantisers write what they did to a file of their own.
BESIDE = "hf_quant_config.json"
NEXT_STEP = "give the config.json of a Hugging Face model, or the folder that holds it"


def read_decoder(given: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Decoder, str | None]:
    """The decoder that a config describes, and what its quantisation is called if that is not known.

    `given` is a config.json, the folder that holds one, or what such a file holds.
    """
    if isinstance(given, Mapping):
        return decoder_of(Fields(given, "the config"), _name(given, "model"))
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"`config` is a path or a mapping, got {type(given).__name__}: {NEXT_STEP}")
    path = Path(given)
    file = path / CONFIG if path.is_dir() else path
    if not file.exists():
        raise NotFound(f"there is no {file}: {NEXT_STEP}")
    values = _object(file)
    # Collections of configs put the name of the model before both names.
    beside = file.with_name(f"{file.name.removesuffix(CONFIG)}{BESIDE}")
    quantised = Fields(_object(beside), str(beside)) if file.name.endswith(CONFIG) and beside.is_file() else None
    own = path.name if path.is_dir() else (file.parent.name if file.name == CONFIG else file.stem)
    return decoder_of(Fields(values, str(file)), _name(values, own or path.resolve().name), quantised)


def _object(file: Path) -> Mapping[str, Any]:
    if not file.is_file():  # a pipe would never end
        raise BadFile(f"{file} is not a file: {NEXT_STEP}")
    with guarded(file, NEXT_STEP, "is not JSON"):
        values = load_json(JSON.read(file))
    if not isinstance(values, Mapping):
        raise BadFile(f"{file} holds {type(values).__name__}, not an object: {NEXT_STEP}")
    return values


def _name(values: Mapping[str, Any], otherwise: str) -> str:
    stated = values.get("_name_or_path")
    return (stated if isinstance(stated, str) and stated else otherwise)[:200]
