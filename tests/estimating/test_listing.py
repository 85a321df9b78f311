"""The calls of a step: their weights and arithmetic against what is counted by hand, and what parallelism leaves of them."""

import pytest
from example_configs import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X7B, QWEN3_NEXT_80B

from kerncast.core.expr import Program
from kerncast.errors import InvalidValue
from kerncast.estimating.decoder import checked_deployment, checked_workload
from kerncast.estimating.listing import calls_of
from kerncast.estimating.reading import read_decoder
from kerncast.library.registry import OPS

LLAMA_GEMMS = 8_030_261_248 - 128256 * 4096 - 65 * 4096


def listed(config, tp=1, ep=None, phase="decode", batch=4, context=1000, new_tokens=None, **changes):
    decoder = read_decoder({**config, **changes})[0]
    spread, work = checked_deployment(decoder, tp, ep), checked_workload(phase, batch, context, new_tokens)
    return calls_of(decoder, spread, work)


def total(calls, what, ops=None):
    return sum(call.count * getattr(call, what) for call in calls if ops is None or call.op in ops)


def named(calls, name):
    (found,) = [call for call in calls if call.name == name]
    return found


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("config", [LLAMA_8B, MIXTRAL_8X7B, DEEPSEEK_V3, QWEN3_NEXT_80B])
def test_the_weights_of_all_calls_are_the_model(config, phase):
    """Nothing is listed twice and nothing is dropped: the weights add up to the parameters of the model."""
    assert total(listed(config, phase=phase), "weights") == read_decoder(config)[0].parameters


def test_the_gemms_of_a_dense_model():
    """The products of Llama 3 8B hold all its parameters but the embedding and the norms."""
    calls = listed(LLAMA_8B)
    assert total(calls, "weights", {"gemm"}) == LLAMA_GEMMS == 7_504_658_432
    shapes = {
        call.name: (call.problem["M"], call.problem["N"], call.problem["K"], call.count) for call in calls if call.op == "gemm"
    }
    assert shapes == {
        "qkv": (4, 6144, 4096, 32),
        "o": (4, 4096, 4096, 32),
        "gate and up": (4, 28672, 4096, 32),
        "down": (4, 4096, 14336, 32),
        "lm_head": (4, 128256, 4096, 1),
    }


def test_flops_of_a_token_are_two_per_parameter_and_attention():
    """Generating: 2 · parameters of the products, and 4 · heads · head_dim · context for each layer's attention."""
    calls = listed(LLAMA_8B, batch=1, context=1000)
    assert total(calls, "flops") == 2 * LLAMA_GEMMS + 32 * 4 * 32 * 128 * 1000
    prompt = listed(LLAMA_8B, batch=1, context=1000, phase="prefill")
    layers = LLAMA_GEMMS - 128256 * 4096
    # Every pair of a query and a key up to it; logits of the last token only.
    assert total(prompt, "flops") == 1000 * 2 * layers + 2 * 128256 * 4096 + 32 * 4 * 32 * 128 * (1000 * 1001 / 2)


def test_flops_of_experts_count_those_that_tokens_go_to():
    """Mixtral computes 2 of 8 experts for each token."""
    calls = listed(MIXTRAL_8X7B, batch=1)
    (moe,) = [call for call in calls if call.op == "moe"]
    assert (moe.flops, moe.count) == (2 * 2 * 3 * 4096 * 14336, 32)
    assert moe.weights == 8 * 3 * 4096 * 14336
    assert moe.problem["top_k"] == 2
    assert named(calls, "router").problem["N"] == 8


def test_prompts_in_parts_do_the_same_work():
    """Half of a prompt after the other half takes as much attention as all of it at once."""
    whole = named(listed(LLAMA_8B, phase="prefill", context=1000), "attention")
    parts = [named(listed(LLAMA_8B, phase="prefill", context=context, new_tokens=500), "attention") for context in (500, 1000)]
    assert parts[1].problem["past_len"] == 500
    assert sum(part.flops for part in parts) == whole.flops


@pytest.mark.parametrize("config", [LLAMA_8B, MIXTRAL_8X7B, DEEPSEEK_V3])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_tensor_parallelism_divides_the_work(config, phase):
    """What all GPUs compute together is what one would, apart from routers and latent vectors, which each computes."""
    alone, shared = listed(config, phase=phase), listed(config, phase=phase, tp=8)
    copied = {"router", "q and kv, down"}
    for what in ("flops", "weights"):
        once = {call.name: call.count * getattr(call, what) for call in alone if call.op in kinds(alone)}
        eighth = {call.name: call.count * getattr(call, what) for call in shared if call.op in kinds(alone)}
        assert once.keys() == eighth.keys()
        for name, amount in once.items():
            assert eighth[name] * (1 if name in copied else 8) == amount, name


def kinds(calls):
    return {call.op for call in calls if call.op is not None}


def test_communication_after_attention_and_mlp():
    """Each layer adds up two partial results of all its tokens; one GPU alone says nothing."""
    assert not [call for call in listed(LLAMA_8B) if call.op in ("all_reduce", "all_gather")]
    calls = listed(LLAMA_8B, tp=4, batch=16)
    reduced = {
        call.name: (call.count, call.problem["elements"], call.problem["gpus"]) for call in calls if call.op == "all_reduce"
    }
    assert reduced == {
        "all_reduce of the embedding": (1, 16 * 4096, 4),
        "all_reduce after attention": (32, 16 * 4096, 4),
        "all_reduce after the MLP": (32, 16 * 4096, 4),
    }


def test_expert_parallelism():
    """Within tp the experts are divided and all tokens are everywhere; beyond it tokens travel to them and back."""
    within = listed(DEEPSEEK_V3, tp=8, ep=4, batch=64)
    (moe,) = [call for call in within if call.op == "moe"]
    assert {name: moe.problem[name] for name in ("tokens", "tp", "ep")} == {"tokens": 64, "tp": 2, "ep": 4}
    assert not [call for call in within if call.op == "all_to_all"]
    beyond = listed(DEEPSEEK_V3, tp=2, ep=16, batch=64)
    (moe,) = [call for call in beyond if call.op == "moe"]
    assert {name: moe.problem[name] for name in ("tokens", "tp", "ep")} == {"tokens": 64, "tp": 1, "ep": 16}
    sent = [call for call in beyond if call.op == "all_to_all"]
    # 8 copies of 8 sequences; each of the 2 GPUs of a copy sends 4 tokens to 8 experts.
    assert [(call.count, call.problem["elements"], call.problem["gpus"]) for call in sent] == [(58, 4 * 8 * 7168, 16)] * 2
    assert named(beyond, "o").problem["M"] == 8
    (moe,) = [call for call in listed(DEEPSEEK_V3, tp=1, ep=16, batch=17) if call.op == "moe"]
    assert moe.problem["tokens"] == 17  # one copy has two sequences, the others one
    assert named(beyond, "all_reduce after attention").problem["gpus"] == 2


def test_latent_attention():
    """A prompt writes keys and values out; generating absorbs their projection. Both hold the same weights."""
    generating = listed(DEEPSEEK_V3, tp=8, batch=4)
    assert [call.op for call in generating if call.op and call.op.startswith("mla")] == ["mla_bmm", "mla_generation", "mla_bmm"]
    assert named(generating, "latent attention").problem == {
        "batch": 4, "context_len": 1000, "heads": 16, "dtype": "bf16", "kv_dtype": "bf16",
    }  # fmt: skip
    assert [call.problem["stage"] for call in generating if call.op == "mla_bmm"] == ["pre", "post"]
    prompt = listed(DEEPSEEK_V3, tp=8, batch=4, phase="prefill")
    assert named(prompt, "latent attention").op == "mla_context"
    absorbed = sum(call.weights for call in generating if call.op == "mla_bmm")
    assert named(prompt, "kv, up").weights == absorbed == 512 * 16 * 256
    assert named(prompt, "q, up").problem["N"] == 16 * 192
    other = listed(DEEPSEEK_V3, v_head_dim=256)
    assert named(other, "latent attention").op is None
    assert named(other, "latent attention").flops == named(listed(DEEPSEEK_V3), "latent attention").flops


@pytest.mark.parametrize(("phase", "length"), [("prefill", 1000), ("decode", 1)])
def test_linear_attention_runs_in_three_layers_of_four(phase, length):
    """Each has a convolution of queries, keys and values and one kernel for the states; the context does not matter."""
    calls = listed(QWEN3_NEXT_80B, tp=2, phase=phase)
    conv, states = named(calls, "convolution"), named(calls, "linear attention")
    assert (conv.count, states.count, named(calls, "gate of attention").count) == (36, 36, 12)
    step = {"phase": "context" if phase == "prefill" else "generation", "batch": 4, "seq_len": length, "dtype": "bf16"}
    assert conv.problem == {**step, "channels": (2 * 16 + 32) * 128 // 2, "width": 4}
    heads = {"k_heads": 8, "v_heads": 16, "k_dim": 128, "v_dim": 128}
    assert states.problem == {**step, **heads, "kind": "gdn", "state_dtype": "fp32"}
    longer = listed(QWEN3_NEXT_80B, tp=2, phase="decode", context=100_000)
    assert named(longer, "linear attention").problem["seq_len"] == 1


def test_formats_reach_the_calls():
    """Weights that are widened are another op; the output projection and routers keep 16 bits."""
    calls = listed(MIXTRAL_8X7B, quantization_config={"quant_method": "awq", "bits": 4})
    assert (named(calls, "qkv").op, named(calls, "qkv").problem["b_dtype"]) == ("mixed_mm", "int4")
    assert named(calls, "experts").problem["dtype"] == "int4_wo"
    assert {named(calls, name).problem["dtype"] for name in ("lm_head", "router")} == {"bf16"}


def test_tokens_are_quantised_before_products_of_8_bits():
    """Twice in a layer, in two parts, or in one if the scale was found beforehand; formats with blocks do it themselves."""

    def quantised(**config):
        calls = listed({**LLAMA_8B, "quantization_config": {"quant_method": "fp8", **config}})
        return [(call.problem["part"], call.count, call.problem["K"]) for call in calls if call.op == "quantize"]

    assert quantised() == [("compute_scale", 32, 4096), ("scale_matrix", 32, 4096)] * 2
    assert quantised(activation_scheme="static") == [("scale_matrix", 32, 4096)] * 2
    assert quantised(weight_block_size=[128, 128]) == []


WORKED = [
    (LLAMA_8B, {"phase": "decode"}),
    (LLAMA_8B, {"phase": "prefill", "quantization_config": {"quant_method": "fp8"}}),
    (LLAMA_8B, {"phase": "prefill", "context": 900, "new_tokens": 700, "tp": 2}),
    (LLAMA_8B, {"phase": "prefill", "sliding_window": 64, "model_type": "mistral", "new_tokens": 30}),
    (LLAMA_8B, {"phase": "decode", "sliding_window": 64, "model_type": "mistral"}),
    (MIXTRAL_8X7B, {"phase": "decode", "tp": 4, "ep": 2}),
    (DEEPSEEK_V3, {"phase": "decode", "tp": 8, "ep": 32, "batch": 64}),
    (DEEPSEEK_V3, {"phase": "prefill", "tp": 16, "new_tokens": 600}),
    (QWEN3_NEXT_80B, {"phase": "decode", "tp": 4, "ep": 2}),
    (QWEN3_NEXT_80B, {"phase": "prefill", "context": 900, "new_tokens": 700}),
]


@pytest.mark.parametrize(("config", "options"), WORKED)
def test_the_work_agrees_with_the_ops(config, options):
    """FLOPs are those that the op itself counts; bytes too, but for results, which are in 16 bits here."""
    for call in listed(config, **options):
        if call.op is None:
            continue
        op = OPS.get(call.op)
        problem = op.problem.check({**op.aliases.get(call.op, {}), **call.problem})
        work = op.work(op.namespace())
        counted = Program({"flops": work.flops, "bytes": work.bytes}).scalar(op.problem.qualified(problem))
        assert call.flops == pytest.approx(counted["flops"]), call
        exact = call.dtype == "bf16" or call.op not in ("gemm", "moe", "mixed_mm")
        if exact:
            assert call.bytes == pytest.approx(counted["bytes"]), call
        else:
            assert counted["bytes"] * 0.999 <= call.bytes <= 2 * counted["bytes"], call


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LLAMA_8B, {"tp": 3}, "`tp=3` must divide attention heads, 32: take one of 1, 2, 4, 8, 16, 32"),
        (LLAMA_8B, {"tp": 64}, "`tp=64` must divide attention heads, 32"),
        (LLAMA_8B, {"tp": 0}, "`tp` must be a whole number from 1"),
        (LLAMA_8B, {"tp": True}, "`tp` must be a whole number from 1"),
        (
            {**LLAMA_8B, "num_key_value_heads": 4, "num_attention_heads": 12, "head_dim": 128},
            {"tp": 6},
            "or be a multiple of them",
        ),
        (QWEN3_NEXT_80B, {"tp": 32}, "`tp=32` must divide attention heads, 16"),
        (
            {**QWEN3_NEXT_80B, "linear_num_key_heads": 12, "linear_num_value_heads": 12},
            {"tp": 8},
            "must divide attention heads, 12",
        ),
        (LLAMA_8B, {"ep": 2}, "`ep=2` divides experts, and model has none: leave it out"),
        (MIXTRAL_8X7B, {"tp": 4, "ep": 3}, "one must be a multiple of the other"),
        (MIXTRAL_8X7B, {"tp": 1, "ep": 16}, "`ep=16` must divide experts, 8: take one of 1, 2, 4, 8"),
        ({**MIXTRAL_8X7B, "intermediate_size": 14334}, {"tp": 4}, "choose a larger `ep`, or a smaller `tp`"),
        ({**LLAMA_8B, "intermediate_size": 14334}, {"tp": 4}, "`tp=4` must divide the intermediate size, 14334"),
        (LLAMA_8B, {"phase": "train"}, "`phase` must be prefill or decode, got 'train'"),
        (LLAMA_8B, {"batch": 0}, "`batch` must be a whole number from 1"),
        (LLAMA_8B, {"context": 2.5}, "`context` must be a whole number from 1"),
        (LLAMA_8B, {"phase": "prefill", "context": 10, "new_tokens": 11}, "`new_tokens=11` must be at most `context=10`"),
    ],
)
def test_what_cannot_be_divided_is_refused(config, options, message):
    """The rule, the value and what would do."""
    with pytest.raises(InvalidValue, match=message):
        listed(config, **options)


def test_few_key_heads_are_copied():
    """With more GPUs than key heads, each has one."""
    calls = listed(LLAMA_8B, tp=16)
    assert named(calls, "attention").problem["kv_heads"] == 1
    assert named(calls, "qkv").problem["N"] == (32 // 16 + 2) * 128
