"""Features for a library's own attention, whose tiles are not known: how well each plausible tile would fit.

A block of a prompt's attention takes some queries of one head through all the keys that they see. Blocks near the end of a
sequence take longest, and the last wave may be half empty. When text is generated, a block takes one key head of one sequence,
or a part of its keys where there are too few of these for the device.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, where
from kerncast.core.op import Work

# Queries that one block takes, in kernels of the last GPU generations.
QUERY_TILES = (64, 128, 256)
# Below a microsecond a part of the time is hidden by the launch.
HIDDEN_NS = 1000


def parts_of_time(hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """Arithmetic and traffic, each alone."""
    compute, memory = work.parts_ns(hw)
    return {
        "log2_compute_ns": log2(compute + HIDDEN_NS),
        "log2_memory_ns": log2(memory + HIDDEN_NS),
        "compute_share": compute / (compute + memory),
    }


def causal_features(p: Namespace, hw: Namespace, window: Expr, width: Expr | int) -> Mapping[str, Expr]:
    """Blocks of queries over the keys up to them; a pair multiplies `width` elements of query, key and value."""
    features: dict[str, Expr] = {}
    longest = p.past_len + p.seq_len
    for tile in QUERY_TILES:
        blocks = ceil_div(p.seq_len, tile)
        reach = where(window == 0, longest, minimum(longest, window + tile))
        seen = minimum(blocks * p.past_len + tile * blocks * (blocks + 1) / 2, blocks * reach)
        features |= _query_blocks(p, hw, tile, blocks, seen, reach, width)
    return features


def full_features(p: Namespace, hw: Namespace, width: Expr | int) -> Mapping[str, Expr]:
    """Blocks of queries over all keys."""
    features: dict[str, Expr] = {}
    for tile in QUERY_TILES:
        blocks = ceil_div(p.seq_len, tile)
        features |= _query_blocks(p, hw, tile, blocks, blocks * p.seq_len, p.seq_len, width)
    return features


def _query_blocks(
    p: Namespace, hw: Namespace, tile: int, blocks: Expr, seen: Expr, longest: Expr, width: Expr | int
) -> Mapping[str, Expr]:
    """How a head's blocks fill the device, when they see so many keys in all, and the longest of them so many."""
    heads = p.batch * p.heads
    waves = blocks * heads / hw.num_cus
    # One block has its share of the device's rate.
    key_ns = 2 * width * tile * hw.num_cus / hw.peak_flops * 1e9
    return {
        f"waves_{tile}": ceil(waves),
        f"wave_fill_{tile}": waves / ceil(waves),
        f"query_fill_{tile}": p.seq_len / (blocks * tile),
        f"log2_blocks_ns_{tile}": log2(seen * heads * key_ns / hw.num_cus + HIDDEN_NS),
        f"log2_longest_ns_{tile}": log2(longest * key_ns + HIDDEN_NS),
        f"longest_share_{tile}": longest * hw.num_cus / (seen * heads),
    }


# Rows of a matrix instruction: the query heads that share keys fill them, or leave them empty.
ROWS = (8, 16, 64)
# No part of the keys is shorter than these when they are split over idle units.
LEAST_PARTS = (64, 256, 1024)


def cache_features(
    p: Namespace, hw: Namespace, work: Work, blocks: Expr, keys: Expr, sharing: Expr, flops: Expr
) -> Mapping[str, Expr]:
    """Blocks that read `keys` keys each, for `sharing` query heads at a time; `flops` is the work of one of these heads."""
    waves = blocks / hw.num_cus
    _, memory = work.parts_ns(hw)
    features: dict[str, Expr] = {
        "cache_waves": ceil(waves),
        "cache_wave_fill": waves / ceil(waves),
        "log2_cache_waves": log2(waves),
        "log2_missing_ns": log2(maximum(0, work.bytes - hw.l2_cache_kb * 1024) / hw.memory_bandwidth_gb_s + HIDDEN_NS),
    }
    for rows in ROWS:
        padded = ceil_div(sharing, rows) * rows
        features[f"row_fill_{rows}"] = sharing / padded
        features[f"log2_rows_ns_{rows}"] = log2(blocks * padded * flops / hw.peak_flops * 1e9 + HIDDEN_NS)
    for least in LEAST_PARTS:
        parts = minimum(maximum(1, floor_div(hw.num_cus, blocks)), ceil_div(keys, least))
        rounds = ceil(blocks * parts / hw.num_cus)
        # The slowest unit reads so many keys, with its share of the bandwidth.
        features[f"log2_part_{least}"] = log2(keys / parts)
        features[f"log2_parts_ns_{least}"] = log2(rounds * memory / (blocks * parts) * hw.num_cus + HIDDEN_NS)
        features[f"parts_{least}"] = parts
    return features
