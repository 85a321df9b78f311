"""Linear attention in a step: its calls, and what it keeps of a sequence instead of a cache."""

from __future__ import annotations

from kerncast.core import dtypes
from kerncast.estimating.calls import Call
from kerncast.estimating.decoder import DeltaAttention
from kerncast.estimating.deployment import Workload

# Servers keep states in 32 bits.
STATE_TYPE = "fp32"
# A decay and a share of the new value, per token and head.
GATES = 2


def _step(sequences: int, work: Workload) -> dict[str, int | str]:
    phase = "context" if work.phase == "prefill" else "generation"
    return {"phase": phase, "batch": sequences, "seq_len": work.tokens_per_sequence}


def convolution(attention: DeltaAttention, count: int, sequences: int, work: Workload, tp: int, dtype: str) -> Call:
    """The short convolution of queries, keys and values."""
    channels, width = attention.channels // tp, attention.width
    tokens = sequences * work.tokens_per_sequence
    problem = {**_step(sequences, work), "channels": channels, "width": width, "dtype": dtype}
    moved = 2.0 * (tokens + sequences * (width - 1)) * channels * dtypes.BYTES[dtype]
    flops = 2.0 * tokens * channels * width
    weights = channels * width
    return Call("convolution", "causal_conv", problem, count, flops, moved, dtype, weights=weights, weight_format=dtype)


def linear_attention(attention: DeltaAttention, count: int, sequences: int, work: Workload, tp: int, dtype: str) -> Call:
    """What reads and corrects the states."""
    k_heads, v_heads = attention.heads // tp, attention.value_heads // tp
    k_dim, v_dim = attention.key_dim, attention.value_dim
    tokens, states = sequences * work.tokens_per_sequence, sequences * v_heads * k_dim * v_dim
    problem = {
        **_step(sequences, work), "kind": "gdn", "k_heads": k_heads, "v_heads": v_heads, "k_dim": k_dim, "v_dim": v_dim,
        "dtype": dtype, "state_dtype": STATE_TYPE,
    }  # fmt: skip
    per_token = 2 * k_heads * k_dim + v_heads * (2 * v_dim + GATES)
    moved = tokens * per_token * dtypes.BYTES[dtype] + 2.0 * states * dtypes.BYTES[STATE_TYPE]
    flops = 6.0 * work.tokens_per_sequence * states
    return Call("linear attention", "linear_attention", problem, count, flops, moved, dtype)


def state_bytes(attention: DeltaAttention, tp: int, element: float) -> float:
    """What one sequence keeps in one layer: its states, and the last tokens that the convolution sees."""
    states = attention.value_heads // tp * attention.key_dim * attention.value_dim * dtypes.BYTES[STATE_TYPE]
    return states + (attention.width - 1) * (attention.channels // tp) * element
