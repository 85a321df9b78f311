"""Configs become decoders: sizes, windows, experts and formats, or a refusal that names the field."""

import json
import os

import pytest
from example_configs import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X7B, QWEN3_NEXT_80B
from hypothesis import given
from hypothesis import strategies as st

from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.estimating.decoder import DeltaAttention, DenseMlp, ExpertMlp, Formats, GroupedAttention, LatentAttention
from kerncast.estimating.fields import asked
from kerncast.estimating.reading import read_decoder


def decoder(config, **changes):
    return read_decoder({**config, **changes})[0]


def windows(config, **changes):
    """The window of each layer, without regard to their order within a kind."""
    return sorted((kind.attention.window, kind.count) for kind in decoder(config, **changes).layers)


def expert_layers(config, **changes):
    return sum(kind.count for kind in decoder(config, **changes).layers if isinstance(kind.mlp, ExpertMlp))


def test_parameters_are_those_of_the_published_models():
    """Llama 3 8B, Mixtral 8x7B, Qwen3-Next and DeepSeek V3 have as many parameters as their model cards count."""
    assert decoder(LLAMA_8B).parameters == 8_030_261_248
    assert decoder(MIXTRAL_8X7B).parameters == 46_702_792_704
    # Without the layer that predicts further tokens: 79.7 of the card's 81 billion.
    assert decoder(QWEN3_NEXT_80B).parameters == 79_674_279_936
    # 61 layers of latent attention, 3 dense MLPs, 58 of 256 + 1 experts and a router, two embeddings, norms; without those of
    # the latent vectors (61 times 2,048) and the bias of the router (58 times 256).
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168
    by_hand = 61 * attention + 3 * 3 * 7168 * 18432 + 58 * experts + 2 * 129280 * 7168 + (2 * 61 + 1) * 7168
    assert decoder(DEEPSEEK_V3).parameters == by_hand == 671_026_279_424


def test_the_layers_of_a_mixture_with_dense_ones():
    """DeepSeek's first layers are dense; the others have shared experts beside the routed ones."""
    dense, mixture = decoder(DEEPSEEK_V3).layers
    assert (dense.count, mixture.count) == (3, 58)
    assert dense.attention == LatentAttention(128, 1536, 512, 128, 64, 128)
    assert dense.mlp == DenseMlp(18432)
    assert mixture.mlp == ExpertMlp(256, 8, 2048, shared=DenseMlp(2048))


def test_where_experts_are():
    """Every rule for the layers with experts: a frequency, a step, a list, exceptions."""
    assert expert_layers(MIXTRAL_8X7B) == 32
    assert expert_layers(MIXTRAL_8X7B, decoder_sparse_step=2) == 16
    assert expert_layers(MIXTRAL_8X7B, mlp_only_layers=[0, 5]) == 30
    assert expert_layers(MIXTRAL_8X7B, moe_layer_freq=[0] * 4 + [1] * 28) == 28
    assert expert_layers(DEEPSEEK_V3, moe_layer_freq=2) == 29
    llama4 = {"model_type": "llama4_text", "interleave_moe_layer_step": 2, "intermediate_size_mlp": 16384}
    mixed = decoder(MIXTRAL_8X7B, **llama4)
    assert {kind.mlp for kind in mixed.layers} == {DenseMlp(16384), ExpertMlp(8, 2, 14336, shared=DenseMlp(14336))}
    assert expert_layers({**LLAMA_8B, "num_local_experts": 0}) == 0


def test_where_linear_attention_is():
    """All layers but every fourth, or those that are listed; only an architecture that is known to have it, and whole heads."""

    def places(**changes):
        layers = decoder(QWEN3_NEXT_80B, **changes).layers
        return [(kind.count, isinstance(kind.attention, DeltaAttention)) for kind in layers]

    assert places() == [(36, True), (12, False)]
    assert places(full_attention_interval=2) == [(24, True), (24, False)]
    assert places(layer_types=["full_attention"] * 40 + ["linear_attention"] * 8) == [(40, False), (8, True)]
    nested = {"model_type": "qwen3_5_moe", "text_config": {**QWEN3_NEXT_80B, "model_type": "qwen3_5_moe_text"}}
    assert read_decoder(nested)[0].parameters == decoder(QWEN3_NEXT_80B).parameters
    for changes, message in (
        ({"model_type": "brand_new"}, "has linear attention"),
        ({"linear_num_value_heads": 33}, "must be a multiple of linear_num_key_heads, got 33 and 16"),
        ({"linear_key_head_dim": "\x1b[2J" * 1000}, "linear_key_head_dim must be a whole number"),
        ({"linear_num_value_heads": None}, "has no linear_num_value_heads"),
        ({"ssm_state_size": 128}, "state-space layers"),
    ):
        with pytest.raises(KerncastError, match=message) as caught:
            decoder(QWEN3_NEXT_80B, **changes)
        assert len(str(caught.value)) < 1_000
    with pytest.raises(KerncastError, match="layer_types has 'linear_attention', which is not supported"):
        decoder(LLAMA_8B, layer_types=["linear_attention"] * 32)


def test_where_windows_are():
    """A window may be everywhere, nowhere, in listed layers, by a pattern or after the first layers."""
    window = {"sliding_window": 512}
    assert windows(LLAMA_8B) == [(0, 32)]
    assert windows(LLAMA_8B, model_type="mistral", **window) == [(512, 32)]
    assert windows(LLAMA_8B, model_type="qwen2", use_sliding_window=False, **window) == [(0, 32)]
    assert windows(LLAMA_8B, model_type="qwen2", use_sliding_window=True, max_window_layers=28, **window) == [(0, 28), (512, 4)]
    assert windows(LLAMA_8B, model_type="gemma2", **window) == [(0, 16), (512, 16)]
    assert windows(LLAMA_8B, model_type="gemma3_text", **window) == [(0, 5), (512, 27)]
    assert windows(LLAMA_8B, sliding_window_pattern=4, **window) == [(0, 8), (512, 24)]
    types = ["sliding_attention"] * 31 + ["full_attention"]
    assert windows(LLAMA_8B, layer_types=types, **window) == [(0, 1), (512, 31)]
    assert windows(LLAMA_8B, attention_chunk_size=8192) == [(0, 8), (8192, 24)]


def test_heads_are_given_or_follow():
    """head_dim, value heads and key heads of layers with a window may have fields of their own."""
    assert decoder(LLAMA_8B).layers[0].attention == GroupedAttention(32, 8, 128, 128)
    assert decoder(LLAMA_8B, head_dim=64).layers[0].attention.head_dim == 64
    assert decoder(LLAMA_8B, num_key_value_heads=None).layers[0].attention.kv_heads == 32
    mimo = {"hybrid_layer_pattern": [0, 1] * 16, "sliding_window": 128, "swa_num_key_value_heads": 16, "v_head_dim": 64}
    assert {kind.attention for kind in decoder(LLAMA_8B, **mimo).layers} == {
        GroupedAttention(32, 8, 128, 64),
        GroupedAttention(32, 16, 128, 64, 128),
    }


def test_a_decoder_inside_a_multimodal_config():
    """The text model is read, and that the rest is left out is said."""
    nested = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": {**LLAMA_8B, "tie_word_embeddings": None}}
    nested["text_config"].pop("tie_word_embeddings")
    found = decoder(nested)
    assert found.tied
    assert found.parameters == 8_030_261_248 - 128256 * 4096
    assert any("encoders" in text for text in found.assumed)


@pytest.mark.parametrize("encoder", ["vision_config", "audio_config"])
def test_a_decoder_beside_an_encoder(encoder):
    """Qwen2.5-VL has the fields of its decoder outside: that the encoder is left out is said there too."""
    assert any("encoders" in text for text in decoder(LLAMA_8B, model_type="qwen2_5_vl", **{encoder: {"depth": 32}}).assumed)
    assert not any("encoders" in text for text in decoder(LLAMA_8B, **{encoder: {}}).assumed)


@pytest.mark.parametrize("name", ["num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"])
def test_layers_that_predict_further_tokens_are_said_to_be_missing_only_if_there_are_any(name):
    """Kimi K2 states that it has none of them."""
    assert any("further tokens" in text for text in decoder(DEEPSEEK_V3, **{name: 1}).assumed)
    for none in (0, None):
        assert not any(
            "further tokens" in text for text in decoder({**DEEPSEEK_V3, "num_nextn_predict_layers": 0, name: none}).assumed
        )


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
}
OPT = {
    "model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384,
    "vocab_size": 50272,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71,
    "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
}  # fmt: skip
FALCON_40B = {
    "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
    "multi_query": True, "new_decoder_architecture": True, "vocab_size": 65024,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kv_heads", "inter", "billions"),
    # Without biases and learned positions: GPT-2 has 124.4, OPT 6.66, the Falcons 6.92 and 41.3 billion with them.
    [(GPT2, 12, 3072, 0.1236), (OPT, 32, 16384, 6.649), (FALCON_7B, 1, 18176, 6.922), (FALCON_40B, 8, 32768, 41.30)],
)
def test_older_configs_are_read_by_the_names_that_they_use(config, kv_heads, inter, billions):
    """GPT-2, OPT and Falcon: other names of fields, an MLP without a gate, one key head for all or groups of them."""
    found = decoder(config)
    (layer,) = found.layers
    assert layer.attention.kv_heads == kv_heads
    assert layer.mlp == DenseMlp(inter, gated=False)
    assert found.tied
    assert not found.assumed
    assert found.parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_usual_name_of_a_field_comes_first():
    """A config with both names of a field means the usual one, and a null does not hide the other."""
    assert decoder(LLAMA_8B, n_embd=64, n_layer=1).parameters == 8_030_261_248
    assert decoder(GPT2, hidden_size=None).hidden == 768


def test_fields_that_published_configs_leave_out():
    """Gemma 3 of 4 B states neither its heads nor its vocabulary; they are transformers' defaults, and that is said."""
    stated = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    found = decoder({"model_type": "gemma3", "text_config": {**stated, "sliding_window": 1024}})
    assert {kind.attention for kind in found.layers} == {
        GroupedAttention(8, 4, 256, 256, window, qk_norm=True) for window in (0, 1024)
    }
    layer = 2560 * (8 + 2 * 4) * 256 + 8 * 256 * 2560 + 3 * 2560 * 10240 + 4 * 2560
    assert found.parameters == 262_208 * 2560 + 34 * layer + 2560
    assert any("vocab_size=262208" in text for text in found.assumed)
    with pytest.raises(BadFile, match="vocab_size"):
        decoder({**stated, "model_type": "llama", "num_attention_heads": 8})


@pytest.mark.parametrize(
    ("quantised", "formats"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Formats("bf16", *["fp8_block"] * 3, "bf16")),
        ({"quant_method": "fp8"}, Formats("bf16", "fp8", "fp8", "fp8", "bf16")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Formats("bf16", *["fp8"] * 3, "bf16", dynamic=False)),
        ({"quant_method": "awq", "bits": 4}, Formats("bf16", "int4_wo", "int4_wo", "int4_wo", "bf16")),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, Formats(experts="w4a16_mxfp4")),
        (
            {"quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}, "ignore": ["model.layers.0.self_attn*"]},
            Formats("bf16", "bf16", "nvfp4", "nvfp4", "fp8"),
        ),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {}}}},
            Formats("bf16", "fp8", "fp8", "fp8", "bf16"),
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}, "input_activations": {}}}},
            Formats("bf16", *["fp8_block"] * 3, "bf16"),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*"]},
            Formats(experts="int4_wo"),
        ),
        (
            {"quant_method": "fp8", "ignore": ["model.layers.0.self_attn.q_norm", "model.layers.0.mlp.shared_expert_gate"]},
            Formats("bf16", "fp8", "fp8", "fp8", "bf16"),
        ),
    ],
)  # fmt: skip
def test_formats_by_quantiser(quantised, formats):
    """What each quantiser writes, and what it leaves as it was."""
    assert decoder(MIXTRAL_8X7B, quantization_config=quantised).formats == formats


def test_an_unknown_quantisation_is_named():
    """The caller may say the format instead, so it is told and not refused here."""
    _, unknown = read_decoder({**LLAMA_8B, "quantization_config": {"quant_method": "sparkle"}})
    assert unknown == "the quantisation 'sparkle' is not known: give `dtype`"
    narrow = {"config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}, "quant_method": "compressed-tensors"}
    _, unknown = read_decoder({**MIXTRAL_8X7B, "quantization_config": narrow})
    assert unknown == "the quantisation 'compressed-tensors' is not known: give `dtype`"
    _, unknown = read_decoder({**LLAMA_8B, "quantization_config": {"quant_method": "mxfp4"}})
    assert unknown == "the quantisation 'w4a16_mxfp4' is one of experts, and the model has none: give `dtype`"


def test_asked_formats():
    """The caller's dtype is that of projections and experts; a 16-bit one is that of everything."""
    plain = Formats()
    assert asked(plain, "fp8", None, False) == Formats("bf16", "fp8", "fp8", "fp8", "bf16")
    assert asked(plain, "float16", None, False) == Formats(*["fp16"] * 5)
    assert asked(plain, "bf16", "fp8", False).cache == "fp8"
    assert asked(plain, "w4a16_mxfp4", None, True).experts == "w4a16_mxfp4"
    with pytest.raises(InvalidValue, match="is a format of experts, and the model has none"):
        asked(plain, "w4a16_mxfp4", None, False)
    with pytest.raises(InvalidValue, match="`kv_dtype` must be one of fp16, bf16, fp8, int8, got 'bits'"):
        asked(plain, None, "bits", False)


def test_files_and_folders(tmp_path):
    """A file, or a folder that holds config.json and perhaps what a quantiser wrote beside it."""
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}')
    for place in (folder, folder / "config.json", str(folder)):
        found = read_decoder(place)[0]
        assert found.name == "Tiny"
        assert found.formats == Formats("bf16", *["fp8"] * 4, dynamic=False)
    for name in ("config.json", "hf_quant_config.json"):
        (tmp_path / f"Tiny_{name}").write_bytes((folder / name).read_bytes())
    assert read_decoder(tmp_path / "Tiny_config.json")[0].formats.experts == "fp8"
    other = tmp_path / "mine.json"
    other.write_text(json.dumps(LLAMA_8B))
    assert read_decoder(other)[0].formats == Formats()
    with pytest.raises(NotFound, match=r"there is no .*nowhere: give the config.json of a Hugging Face model"):
        read_decoder(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadFile, match="is not a file"):
        read_decoder(tmp_path / "pipe")
    with pytest.raises(InvalidValue, match="`config` is a path or a mapping, got int"):
        read_decoder(3)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 100_000, "\x00", '"text"', "[" * 200_000])
def test_a_file_that_is_no_object_is_refused(tmp_path, text):
    """Empty, cut off, nested without end, or another kind of value: one sentence."""
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(BadFile, match=r"config\.json"):
        read_decoder(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": -4096}, "hidden_size must be a whole number from 1"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"hidden_size": float("nan")}, "hidden_size must be a whole number"),
        ({"hidden_size": 10**30}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 100,000"),
        ({"num_key_value_heads": 5}, "num_attention_heads must be a multiple of num_key_value_heads, got 32 and 5"),
        ({"num_attention_heads": 31, "num_key_value_heads": 31}, "there is no head_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 items for 32 layers"),
        ({"layer_types": ["magic\x1b[2J"] * 32}, "layer_types has 'magic"),
        ({"layer_types": [{"a": 1}] * 32}, "layer_types has"),
        ({"text_config": [1]}, "text_config must be an object"),
        ({"model_type": 5}, "model_type must be a text"),
        ({"torch_dtype": "x" * 1_000_000}, r"dtype must be one of .*1,000,000 characters"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok must be a whole number from 1 to 8"),
        ({"ssm_state_size": 128, "model_type": "nemotron_h"}, "'nemotron_h' has state-space layers .* not supported"),
        ({"index_topk": 2048}, "sparse attention with an index"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"model_type": "bert", "type_vocab_size": 2}, "'bert' has an encoder"),
        ({"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}, "'modernbert' has an encoder"),
        ({"model_type": "modernbert", "architectures": ["ModernBertModel"]}, "'modernbert' has an encoder"),
        ({"model_type": "vit", "architectures": ["ViTForImageClassification"], "vocab_size": None}, "'vit' has an encoder"),
        (
            {"architectures": ["CLIPModel"], "text_config": {"model_type": "clip_text_model"}},
            "'clip_text_model' has an encoder",
        ),
        ({"multi_query": "yes"}, "multi_query must be true or false"),
    ],
)
def test_hostile_fields_are_refused_by_name(changes, message):
    """Missing, negative, huge, of another type, contradicting: the message says which field."""
    with pytest.raises(KerncastError, match=message) as caught:
        decoder(LLAMA_8B, **changes)
    assert len(str(caught.value)) < 1_000


def test_an_unknown_architecture_with_the_usual_fields_is_read():
    """What was assumed is said."""
    found = decoder(LLAMA_8B, model_type="brand_new")
    assert found.parameters == 8_030_261_248
    assert found.assumed == (
        "the architecture 'brand_new' is not known: read as a decoder with a gated MLP and two norms in each layer",
    )


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3) | st.lists(st.integers(0, 1), max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(sorted({*DEEPSEEK_V3, *MIXTRAL_8X7B, "layer_types", "moe_layer_freq", "head_dim"})), VALUES)
)
def test_no_config_ends_in_a_traceback(changes):
    """Any values in any fields: a decoder, or an error of ours."""
    for config in (LLAMA_8B, DEEPSEEK_V3):
        try:
            found = decoder(config, **changes)
        except KerncastError:
            continue
        assert found.layer_count >= 1
        assert found.parameters > 0
