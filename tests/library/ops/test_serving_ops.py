"""The ops of language models: work by hand and by brute force, physics in the features, rooflines on known devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.ops.attention import attention_context
from kerncast.library.registry import OPS

ATTENTION = {"heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "bf16", "kv_dtype": "fp8"}
MOE = {"tokens": 64, "hidden": 1024, "inter": 512, "top_k": 4, "experts": 32, "dtype": "w4a16_mxfp4"}


def work(op: str, **values: Any) -> tuple[float, float]:
    """FLOPs and bytes of a problem."""
    family = family_named(f"{op}/library")
    found = family.work_program.scalar(family.problem.qualified(Problem(family, values).as_dict()))
    return found["flops"], found["bytes"]


def features(op: str, device: str = "h100", **values: Any) -> dict[str, float]:
    """All features of a problem on a device."""
    family = family_named(f"{op}/library")
    problem = Problem(family, values)
    known = {**family.problem.qualified(problem.as_dict()), "c.kernel_source": 0}
    return dict(family.features_on(devices.get(device), [str(problem.dtype)]).program.scalar(known))


@pytest.mark.parametrize("window", [0, 1, 5, 16, 1000])
@pytest.mark.parametrize("past", [0, 3, 20])
def test_causal_pairs_are_counted_exactly(past, window):
    """The closed form is the count of (query, key) pairs: keys up to the query, of these the last `window`."""
    for new in (1, 2, 7, 16, 33):
        seen = sum(min(past + i, window or past + i) for i in range(1, new + 1))
        problem = Problem(attention_context, ATTENTION, batch=2, seq_len=new, past_len=past, window=window)
        assert problem.pairs == seen, (new, past, window)


def test_work_of_attention_by_hand():
    """Two products per pair; the cache in its own type, read where a query sees it; latent vectors once for all heads."""
    pairs = 3 * 4 + 4 * 5 / 2
    moved = 2 * (2 * 4) * (8 + 2) * 64 * 2
    assert work("attention_context", batch=2, seq_len=4, past_len=3, **ATTENTION) == (
        4 * 2 * 8 * pairs * 64,
        moved + 2 * 2 * 2 * 64 * 1 * (4 + 3),
    )
    assert work("attention_context", batch=2, seq_len=4, past_len=3, window=2, **ATTENTION)[1] == moved + 2 * 2 * 2 * 64 * 5
    assert work("attention_generation", batch=2, context_len=100, window=30, **ATTENTION) == (
        4 * 2 * 8 * 30 * 64,
        2 * 2 * 2 * 30 * 64 * 1 + 2 * 2 * 8 * 64 * 2,
    )
    encoder = {"batch": 3, "seq_len": 10, "heads": 4, "head_dim": 80, "dtype": "fp16"}
    assert work("attention_encoder", **encoder) == (4 * 3 * 4 * 100 * 80, 4 * 3 * 10 * 4 * 80 * 2)
    latent = {"batch": 2, "heads": 16, "dtype": "bf16", "kv_dtype": "fp8"}
    assert work("mla_generation", context_len=1000, **latent) == (
        2 * 2 * 16 * 1000 * (576 + 512),
        2 * 1000 * 576 + 2 * 16 * (576 + 512) * 2,
    )
    assert work("mla_context", seq_len=10, past_len=5, **latent) == (
        2 * 2 * 16 * (5 * 10 + 55) * (192 + 128),
        16 * (20 + 30) * (192 + 128) * 2 + 30 * 576,
    )
    assert work("mla_bmm", tokens=7, heads=16, stage="pre", dtype="bf16") == work(
        "mla_bmm", tokens=7, heads=16, stage="post", dtype="bf16"
    )


def test_heads_that_do_not_divide_are_refused():
    """Grouped heads have groups of one size."""
    with pytest.raises(InvalidValue, match="heads must be a multiple of kv_heads"):
        Problem(attention_context, {**ATTENTION, "kv_heads": 3}, batch=1, seq_len=4)


def test_work_of_experts_by_hand():
    """Three projections per token and expert; 4-bit weights with a scale byte per 32; only experts that are hit are read."""
    expert = 3 * 1024 * 512
    flops, moved = work("moe", **MOE)
    assert flops == 2 * 64 * 4 * expert
    assert moved == 32 * expert * (0.5 + 1 / 32) + 64 * 1024 * (2 + 2)
    assert work("moe", **{**MOE, "tokens": 1})[1] == 4 * expert * (0.5 + 1 / 32) + 1024 * 4
    assert work("moe", **MOE, tp=2, ep=4)[0] == flops / 8
    with pytest.raises(InvalidValue, match="experts must be a multiple of ep"):
        Problem(OPS.get("moe"), MOE, ep=3)


def test_a_message_takes_the_time_of_its_links():
    """Ring bytes over the link's bandwidth; a device without that number has no roofline, and the feature says why."""
    family = family_named("collective/library")
    asked = {"elements": 2**20, "gpus": 8, "dtype": "fp16"}
    sent = {"all_reduce": 2 * 7 / 8, "all_gather": 7 / 8, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8}
    for kind, share in sent.items():
        assert features("collective", kind=kind, **asked)["roofline_ns"] == pytest.approx(share * 2**21 / 450)
        assert OPS.get(kind) is family.op
    left_out = family.features_on(devices.get("gfx942"), ["fp16"]).left_out
    assert left_out["roofline_ns"] == ("hw.link_bandwidth_gb_s",)


def test_quantising_reads_the_matrix_and_writes_it_narrow():
    """The scale alone needs only the reading."""
    assert work("quantize", M=10, K=20, dtype="fp8", part="compute_scale") == (0, 400)
    assert work("quantize", M=10, K=20, dtype="fp8", part="scale_matrix") == (0, 600)


def routed(alpha: float, tokens: int, top_k: int, experts: int, ep: int) -> tuple[float, float]:
    """Experts hit and load of the busiest device, drawn many times."""
    rng = np.random.default_rng(1)
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    drawn = rng.random((400, experts)) * (high ** (1 - alpha) - low ** (1 - alpha)) + low ** (1 - alpha)
    shares = drawn ** (1 / (1 - alpha))
    counts = np.round(shares / shares.sum(1, keepdims=True) * tokens * top_k)
    for row in counts:  # what rounding lost goes to the largest, or is taken from them
        lost = int(tokens * top_k - row.sum())
        row[np.argsort(-row, kind="stable")[: abs(lost)]] += np.sign(lost)
    counts = counts.reshape(400, ep, experts // ep)
    busiest = counts[np.arange(400), counts.sum(2).argmax(1)]
    return float((busiest > 0).sum(1).mean()), float(busiest.sum(1).mean())


@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.parametrize("tokens", [4, 256, 8192])
@pytest.mark.parametrize("imbalance", [101, 120])
def test_routing_by_a_power_law_is_as_a_simulation_draws_it(tokens, ep, imbalance):
    """From formulas, experts hit are within 15 % of the mean of 400 drawings; so is the busiest load, unless tokens are few."""
    problem = Problem(OPS.get("moe"), {**MOE, "experts": 128, "top_k": 8}, tokens=tokens, ep=ep, imbalance=imbalance)
    hit, load = routed(imbalance / 100, tokens, 8, 128, ep)
    assert problem.experts_hit == pytest.approx(hit, rel=0.15)
    assert problem.busiest_slots == pytest.approx(load, rel=0.4 if tokens < 16 else 0.15)


def test_work_of_linear_attention_by_brute_force():
    """Multiplications of the recurrence written out, token by token; the state in and out, once more for each drafted token."""
    shape = {"batch": 2, "k_heads": 2, "v_heads": 4, "k_dim": 8, "v_dim": 16, "dtype": "bf16"}
    rng, flops = np.random.default_rng(0), 0
    state, tokens = np.zeros((8, 16)), 5
    for _ in range(tokens):
        key, query, value = rng.random(8), rng.random(8), rng.random(16)
        held = key @ state
        state = state + np.outer(key, value - held)
        assert (query @ state).shape == (16,)
        flops += 2 * key.size * value.size * 3  # what the state holds for the key, the correction, what the query reads
    moved = {
        kind: 2 * tokens * (2 * 2 * 8 + 4 * (2 * 16 + gates)) * 2 for kind, gates in (("gdn", 2), ("kda", 9), ("mamba2", 1))
    }
    states = 2 * 4 * state.size * 4
    asked = {**shape, "phase": "context", "seq_len": tokens}
    assert work("linear_attention", kind="gdn", **asked) == (flops * 2 * 4, moved["gdn"] + 2 * states)
    assert work("linear_attention", kind="kda", **{**asked, "phase": "verify"}) == (flops * 8, moved["kda"] + 6 * states)
    assert work("linear_attention", kind="mamba2", **asked, state_dtype="bf16") == (flops * 8 * 2 / 3, moved["mamba2"] + states)
    conv = {"phase": "generation", "batch": 3, "seq_len": 1, "channels": 100, "dtype": "bf16"}
    assert work("causal_conv", **conv) == (2 * 3 * 100 * 4, 2 * 3 * (1 + 3) * 100 * 2)


def test_a_long_prompt_with_few_heads_is_a_chain_of_chunks():
    """Twice the chunks take twice the chain where heads are few; more heads run beside them until the device is full."""
    shape = {"kind": "gdn", "phase": "context", "k_heads": 1, "v_heads": 2, "k_dim": 128, "v_dim": 128, "dtype": "bf16"}

    def chain(**changed):
        return features("linear_attention", **{**shape, "batch": 1, "seq_len": 4096, **changed})["log2_chain_32"]

    assert chain(seq_len=8192) == chain() + 1
    assert chain(v_heads=32) == chain()
    assert chain(v_heads=32, batch=16) > chain()
    with pytest.raises(InvalidValue, match="seq_len must be 1 in generation"):
        features("linear_attention", **{**shape, "phase": "generation"}, batch=1, seq_len=2)


def test_kernels_that_convolve_as_well_are_no_answer():
    """They are measured under their own name, and a model never chooses them for linear attention alone."""
    others = family_named("linear_attention/library").other_work["kernel_source"]
    assert set(others) == {"fused_kda_decode", "kda_fused_decode", "fused_kda_decode_mtp_dspark"}
