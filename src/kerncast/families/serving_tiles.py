"""Features of serving kernels, whose tiles are not known: how the work of plausible tiles fills the compute units.

Attention, experts and their libraries choose tiles by shape and device. Times jump where blocks fill a wave and stop falling
where one block takes longest, so the model gets these numbers for several tile sizes and learns which ones a library follows.
A feature relative to the softened roofline (`over_expected`) says nearly what is learned. On the H100's tables, heads unseen,
such features lower the error of context attention from 2.3 % to 1.8 % (TensorRT-LLM) and from 4.2 % to 3.5 % (SGLang).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, where
from kerncast.op import Work

# Queries that one block computes, and keys that it loads at a time.
QUERY_TILES = (64, 128, 192, 256)
PACKED_TILES = (64, 128)
KEY_TILE = 128
# Tokens of one expert that a block computes, and columns of the weights.
TOKEN_TILES = (16, 32, 64, 128)
COLUMN_TILE = 128
# Typical of recent GPUs, for comparing tiles with each other, not for predicting times.
REACHED, LAUNCH_NS = 0.6, 3000
# The sum of 1 / rank over n ranks is log(n) + 0.577, in bits 0.83 more than log2(n).
HARMONIC = 0.83


def hardware_numbers(hw: Namespace, arithmetic: bool = True) -> Mapping[str, Expr]:
    """What tells devices apart in a model of several; a table of one device leaves them out (`tables.table`)."""
    return {
        "device_cus": 1 * hw.num_cus,
        **({"device_peak_tflops": hw.peak_flops / 1e12} if arithmetic else {}),
        "device_bandwidth_gb_s": 1 * hw.memory_bandwidth_gb_s,
        "device_l2_cache_kb": 1 * hw.l2_cache_kb,
    }


def _fill(blocks: Expr, hw: Namespace) -> Expr:
    waves = blocks / hw.num_cus
    return waves / ceil(waves)


@dataclass(frozen=True)
class Prompt:
    """The attention of a prompt, as its kernels see it."""

    batch: Expr
    heads: Expr
    kv_heads: Expr
    seq_len: Expr
    past_len: Expr
    window: Expr
    flops_per_pair: Expr
    """Of one query and one key, in one head."""
    pairs: Expr
    causal: bool = True


def prompt_misfits(it: Prompt, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """How the blocks of each tile of queries would fill the device, and how long the longest of them takes."""
    windowed = where(it.window == 0, 0, 1)
    reach = where(it.window == 0, it.seq_len + it.past_len, minimum(it.window, it.seq_len + it.past_len))
    expected = work.expected_ns(hw, LAUNCH_NS)
    features: dict[str, Expr] = {
        "reach": reach,
        "log2_expected_ns": log2(expected),
        "kv_pairs": it.batch * it.kv_heads,
        "log2_query_elements": log2(it.batch * it.seq_len * it.heads * it.flops_per_pair),
        "log2_key_elements": log2(it.batch * it.seq_len * it.kv_heads * it.flops_per_pair),
    }
    for tile in QUERY_TILES:
        rows = ceil_div(it.seq_len, tile)
        past = ceil_div(it.past_len, tile)
        most = ceil_div(reach, tile) + windowed
        if it.causal:
            # The i-th tile of queries reads i tiles of keys more than the cache holds, at most those in the window.
            rising = minimum(rows, maximum(0, most - past))
            steps = rising * past + rising * (rising + 1) / 2 + (rows - rising) * most
            longest = minimum(rows + past, most)
        else:
            steps, longest = rows * rows, rows
        total = it.batch * it.heads * steps
        # One step is one tile of queries times one of keys; a unit has its share of the device's rate.
        step_ns = tile * tile * it.flops_per_pair * hw.num_cus / hw.peak_flops * 1e9
        makespan = maximum(total / hw.num_cus, longest)
        features |= {
            f"log2_balance_{tile}": log2(total / hw.num_cus / longest),
            f"log2_makespan_over_expected_{tile}": log2(makespan * step_ns / REACHED + LAUNCH_NS) - log2(expected),
            f"tile_fill_{tile}": it.pairs / (steps * tile * tile),
        }
    for tile in PACKED_TILES:
        # Queries of all heads that share a key head may sit in one tile.
        packed = ceil_div(it.seq_len * it.heads / it.kv_heads, tile) * it.kv_heads * it.batch
        features |= {f"log2_packed_{tile}": log2(packed), f"packed_fill_{tile}": _fill(packed, hw)}
    return features


@dataclass(frozen=True)
class Cache:
    """Attention over a cache, as its kernels see it: groups of heads that share keys, each with some keys to read."""

    groups: Mapping[str, Expr]
    """By name, ways in which a kernel may divide the heads into blocks."""
    keys: Expr
    key_bytes: Expr
    """Of one key and its value."""


def cache_misfits(it: Cache, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """How blocks that share out the keys would fill the device, when idle units make a kernel split the keys."""
    expected = work.expected_ns(hw, LAUNCH_NS)
    tiles = ceil_div(it.keys, KEY_TILE)
    tile_ns = KEY_TILE * it.key_bytes * hw.num_cus / hw.memory_bandwidth_gb_s
    features: dict[str, Expr] = {
        "key_tiles": tiles,
        "log2_expected_ns": log2(expected),
        "log2_cached_bytes": log2(it.keys * it.key_bytes),
    }
    for name, blocks in it.groups.items():
        splits = maximum(1, minimum(floor_div(hw.num_cus, blocks), tiles))
        waves, each = blocks * splits / hw.num_cus, ceil_div(tiles, splits)
        features |= {
            f"waves_{name}": ceil(blocks / hw.num_cus),
            f"wave_fill_{name}": _fill(blocks, hw),
            f"splits_{name}": splits,
            f"split_fill_{name}": waves / ceil(waves),
            f"log2_tiles_each_{name}": log2(each),
            f"log2_busy_ns_{name}": log2(ceil(waves) * each * tile_ns),
            f"log2_busy_over_expected_{name}": log2(ceil(waves) * each * tile_ns + LAUNCH_NS) - log2(expected),
        }
    return features


def expert_features(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """The two products of the experts that are hit: how their tiles fill the device, with balanced loads and without."""
    local, balanced = p.local_experts, p.imbalance == 0
    # Loads by rank fall like 1 / rank. The device with the largest load has the first ranks.
    ranks = log2(p.experts) + HARMONIC
    share = where(balanced, 1 / p.ep, (log2(local) + HARMONIC) / ranks)
    slots = p.tokens * p.top_k * share
    hit = where(balanced, p.experts_hit, maximum(1, minimum(local, p.tokens * p.top_k * 1.44 / ranks)))
    most = where(balanced, p.slots / local, minimum(p.tokens, p.tokens * p.top_k * 1.44 / ranks))
    each = maximum(1, slots / hit)
    expected = work.expected_ns(hw, LAUNCH_NS)
    weights = 3 * p.hidden * p.local_inter * p.weight_bytes
    features: dict[str, Expr] = {
        "log2_expected_ns": log2(expected),
        "busiest_slots": slots,
        "log2_busiest_slots": log2(slots),
        "log2_hit": log2(hit),
        "log2_slots_per_hit": log2(each),
        "log2_largest_expert": log2(most + 1),
        "log2_hit_weights_over_expected": log2(hit * weights / hw.memory_bandwidth_gb_s + LAUNCH_NS) - log2(expected),
        "log2_all_weights_ns": log2(local * weights / hw.memory_bandwidth_gb_s),
        "log2_expert_weights": log2(p.hidden * p.local_inter),
        "log2_hidden": log2(p.hidden),
        "log2_local_inter": log2(p.local_inter),
        "log2_local_experts": log2(local),
        "log2_routed_bytes": log2(p.tokens * p.top_k * p.hidden * p.activation_bytes),
        "share_of_experts": p.top_k / p.experts,
    }
    for tile in TOKEN_TILES:
        # Rows of tiles: at least one of each expert that is hit, else what the slots need.
        rows = maximum(hit * (each / tile), maximum(hit, slots / tile))
        for name, columns, depth in (("up", 2 * p.local_inter, p.hidden), ("down", p.hidden, p.local_inter)):
            tiles = rows * (columns / COLUMN_TILE)
            waves = maximum(1, tiles / hw.num_cus)
            # Whole tiles, as if loads were balanced: a wave that is half empty shows even so.
            even = p.experts_hit * ceil(p.slots / p.experts_hit / tile) * ceil_div(columns, COLUMN_TILE)
            loaded = depth * (tile * p.activation_bytes + COLUMN_TILE * p.weight_bytes) * hw.num_cus
            wave_ns = maximum(
                2 * depth * tile * COLUMN_TILE * hw.num_cus / hw.peak_flops * 1e9, loaded / hw.memory_bandwidth_gb_s
            )
            features |= {
                f"log2_tiles_{name}_{tile}": log2(tiles),
                f"wave_fill_{name}_{tile}": _fill(even, hw),
                f"log2_waves_over_expected_{name}_{tile}": log2(ceil(even / hw.num_cus) * wave_ns + LAUNCH_NS) - log2(expected),
                f"log2_busy_over_expected_{name}_{tile}": log2(waves * wave_ns + LAUNCH_NS) - log2(expected),
            }
    return features
