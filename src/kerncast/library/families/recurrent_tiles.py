"""Features for a framework's own linear attention and the convolution before it, whose tiles are not known.

A prompt is cut into chunks. Products within a chunk run side by side for all chunks; the state passes through the chunks of a
sequence one after the other, so few heads and a long prompt leave most of the device idle. A step of generation is the traffic
of the states, in and out.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum
from kerncast.core.op import Work
from kerncast.library.families.attention_tiles import HIDDEN_NS, parts_of_time
from kerncast.library.families.serving_tiles import LAUNCH_NS, REACHED

# Tokens of a chunk, and columns of the state that one block carries through them.
CHUNK = 64
STATE_COLUMNS = (32, 64, 128)
# Tokens and channels of one block of the convolution; a block of another kernel takes one channel of one sequence.
CONV_TOKENS, CONV_CHANNELS, ROW_TOKENS = 8, 256, 1024


def _waves(name: str, blocks: Expr, hw: Namespace) -> Mapping[str, Expr]:
    waves = blocks / hw.num_cus
    return {f"waves_{name}": ceil(waves), f"wave_fill_{name}": waves / ceil(waves)}


def _missing_ns(moved: Expr, hw: Namespace) -> Expr:
    """The time of the bytes that the cache does not hold."""
    return maximum(0, moved - hw.l2_cache_kb * 1024) / hw.memory_bandwidth_gb_s


def state_features(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """How chunks and states would fill the device, and how long the longest chain of chunks takes."""
    expected, chunks = work.expected_ns(hw, LAUNCH_NS), ceil_div(p.seq_len, CHUNK)
    features: dict[str, Expr] = {
        **parts_of_time(hw, work),
        "log2_expected_ns": log2(expected),
        "chunks": chunks,
        "chunk_fill": p.seq_len / (chunks * CHUNK),
        "log2_missing_ns": log2(_missing_ns(work.bytes, hw) + HIDDEN_NS),
        "log2_states": log2(p.states),
        **_waves("chunks", p.batch * p.v_heads * chunks, hw),
        **_waves("key_chunks", p.batch * p.k_heads * chunks, hw),
    }
    for columns in STATE_COLUMNS:
        blocks = p.batch * p.v_heads * ceil_div(p.v_dim, columns)
        rounds = ceil(blocks / hw.num_cus)
        # A unit has its share of the device's rate and of its bandwidth.
        chunk_ns = 6 * CHUNK * p.k_dim * columns * hw.num_cus / hw.peak_flops * 1e9 / REACHED
        state_ns = work.bytes / blocks * hw.num_cus / hw.memory_bandwidth_gb_s
        features |= {
            **_waves(f"states_{columns}", blocks, hw),
            f"log2_chain_{columns}": log2(rounds * chunks),
            f"log2_chain_over_expected_{columns}": log2(rounds * chunks * chunk_ns + LAUNCH_NS) - log2(expected),
            f"log2_busy_over_expected_{columns}": log2(rounds * state_ns + LAUNCH_NS) - log2(expected),
        }
    return features


def conv_features(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """How blocks of tokens and channels, or of whole rows, would fill the device."""
    expected = work.expected_ns(hw, LAUNCH_NS)
    tiles = p.batch * ceil_div(p.seq_len, CONV_TOKENS) * ceil_div(p.channels, CONV_CHANNELS)
    steps = p.batch * p.channels * ceil_div(p.seq_len, ROW_TOKENS)
    return {
        "log2_memory_ns": log2(work.parts_ns(hw)[1] + HIDDEN_NS),
        "log2_missing_ns": log2(_missing_ns(work.bytes, hw) + HIDDEN_NS),
        # Kernels may write over what they read; then half of the bytes must fit.
        "log2_half_missing_ns": log2(_missing_ns(work.bytes / 2, hw) + HIDDEN_NS),
        "log2_expected_ns": log2(expected),
        "token_fill": p.seq_len / (ceil_div(p.seq_len, CONV_TOKENS) * CONV_TOKENS),
        "row_fill": p.seq_len / (ceil_div(p.seq_len, ROW_TOKENS) * ROW_TOKENS),
        "log2_tiles_per_unit": log2(tiles / hw.num_cus),
        "log2_row_steps_per_unit": log2(steps / hw.num_cus),
        **_waves("tiles", tiles, hw),
        **_waves("sequences", p.batch * ceil_div(p.channels, CONV_CHANNELS), hw),
    }
