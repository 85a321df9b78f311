"""Features of serving kernels, whose tiles are not known: how the work of plausible tiles fills the compute units.

Attention, experts and their libraries choose tiles by shape and device. Times jump where blocks fill a wave and stop falling
where one block takes longest, so the model gets these numbers for several tile sizes and learns which ones a library follows.
A feature relative to the softened roofline (`over_expected`) says nearly what is learned. On the H100's tables of SGLang, heads
unseen, two of five folds: the error of context attention is 3.5 % with such features and 4.2 % without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, where
from kerncast.core.op import Work

# Queries that one block computes, and keys that it loads at a time.
QUERY_TILES = (64, 128, 192, 256)
PACKED_TILES = (64, 128)
KEY_TILE = 128
# Typical of recent GPUs, for comparing tiles with each other, not for predicting times.
REACHED, LAUNCH_NS = 0.6, 3000


def hardware_numbers(hw: Namespace, arithmetic: bool = True) -> Mapping[str, Expr]:
    """What tells devices apart in a model of several; a table of one device leaves them out (`tables.table`)."""
    return {
        "device_cus": 1 * hw.num_cus,
        **({"device_peak_tflops": hw.peak_flops / 1e12} if arithmetic else {}),
        "device_bandwidth_gb_s": 1 * hw.memory_bandwidth_gb_s,
        "device_l2_cache_kb": 1 * hw.l2_cache_kb,
        # B200 and B300, GB200 and GB300 agree in everything above, and not in their times.
        "device_memory_gb": 1 * hw.memory_capacity_gb,
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
