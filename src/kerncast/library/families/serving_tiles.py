"""Features of serving kernels, whose tiles are not known: how the work of plausible tiles fills the compute units.

Attention, experts and their libraries choose tiles by shape and device. Times jump where blocks fill a wave and stop falling
where one block takes longest, so the model gets these numbers for several tile sizes and learns which ones a library follows.
A feature relative to the softened roofline (`over_expected`) says nearly what is learned. On the H100's tables of SGLang, heads
unseen, two of five folds: the error of context attention is 3.5 % with such features and 4.2 % without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, mod, power_of_two_in, where
from kerncast.core.op import Work
from kerncast.library.ops.serving import balanced

# Queries that one block computes, and keys that it loads at a time.
QUERY_TILES = (64, 128, 192, 256)
PACKED_TILES = (64, 128)
KEY_TILE = 128
# Typical of recent GPUs, for comparing tiles with each other, not for predicting times.
REACHED, LAUNCH_NS = 0.6, 3000


def hardware_numbers(hw: Namespace, arithmetic: bool = True) -> Mapping[str, Expr]:
    """What tells devices apart in a model of several; a table of one device leaves them out (`learning.table`)."""
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


# Queries that one block takes, in kernels of the last GPU generations.
ROW_TILES = (64, 128, 256)
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
    for tile in ROW_TILES:
        blocks = ceil_div(p.seq_len, tile)
        reach = where(window == 0, longest, minimum(longest, window + tile))
        seen = minimum(blocks * p.past_len + tile * blocks * (blocks + 1) / 2, blocks * reach)
        features |= _query_blocks(p, hw, tile, blocks, seen, reach, width)
    return features


def full_features(p: Namespace, hw: Namespace, width: Expr | int) -> Mapping[str, Expr]:
    """Blocks of queries over all keys."""
    features: dict[str, Expr] = {}
    for tile in ROW_TILES:
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


# Rows × columns of a product that one block computes.
TILES = ((16, 128), (64, 128), (128, 256))
ALIGNMENTS = (128, 256)
# Longest run of elements that a load or a tile can be aligned to.
LONGEST_RUN = {"inter": 256, "hidden": 1024}
# Shares of the peaks that products of experts reach, and what a sequence of kernels takes to start: for comparing sums of parts
# with each other, not for predicting times.
EXPERTS_REACHED, STREAMED, LAUNCHES_NS = 0.6, 0.8, 5000


def expert_features(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """Loads, parts of the time and how well each tile would fit."""
    # Whole tiles need exact numbers: those of balanced routing.
    even = balanced(p)
    rows = even.load / even.hit
    # Columns and depth of the two products.
    products = {"up": (2 * p.local_inter, 1 * p.hidden), "down": (1 * p.hidden, 1 * p.local_inter)}
    features: dict[str, Expr] = {
        "log2_rows_per_expert": log2(p.busiest_slots / p.experts_hit),
        **_parts(p, hw, work),
    }
    for name, size in (("inter", p.local_inter), ("hidden", p.hidden)):
        features[f"{name}_run"] = power_of_two_in(size, LONGEST_RUN[name])
        for alignment in ALIGNMENTS:
            features[f"{name}_aligned_{alignment}"] = 1 * (mod(size, alignment) == 0)
    for height, width in TILES:
        padded = ceil_div(rows, height)
        total: Expr | int = 0
        for name, (columns, depth) in products.items():
            tiles = even.hit * padded * ceil_div(columns, width)
            waves = tiles / hw.num_cus
            features[f"{name}_wave_fill_{height}x{width}"] = waves / ceil(waves)
            total = total + ceil(waves) * 2 * height * width * depth * hw.num_cus / hw.peak_flops * 1e9
        features[f"row_fill_{height}x{width}"] = rows / (padded * height)
        features[f"log2_waves_ns_{height}x{width}"] = log2(total + HIDDEN_NS)
    return features


def _parts(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """Arithmetic, weights and activations, each alone: what a block writes between the products is counted here too."""
    compute = work.parts_ns(hw)[0] * p.busiest_slots / p.slots
    weights = p.experts_hit * 3 * p.hidden * p.local_inter * p.weight_bytes
    between = p.busiest_slots * (2 * p.hidden + 3 * p.local_inter) * p.activation_bytes
    held = hw.l2_cache_kb * 1024
    return {
        **_sums(p, hw, work, compute, weights / hw.memory_bandwidth_gb_s),
        "log2_compute_ns": log2(compute + HIDDEN_NS),
        "log2_weights_ns": log2(weights / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_missing_ns": log2(maximum(0, weights - held) / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_between_ns": log2(between / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "compute_share": compute / (compute + weights / hw.memory_bandwidth_gb_s),
    }


def _sums(p: Namespace, hw: Namespace, work: Work, compute: Expr, weights: Expr) -> Mapping[str, Expr]:
    """What is done for the tokens of all devices, and sums of the parts relative to what is learned.

    On the H200's tables, one or two of five folds, shapes unseen: the error of vLLM's experts is 7.7 % with the runs above and
    these, 8.5 % or more without; of SGLang's 6.3 % with the first of these and 6.7 % without.
    """
    slots, expected = p.tokens * p.top_k, work.expected_ns(hw, LAUNCH_NS)
    # Two bytes an element: between the products even quantised experts have wide activations.
    of_slot = 2 * (2 * p.hidden + 3 * p.local_inter) / hw.memory_bandwidth_gb_s
    product = maximum(compute / EXPERTS_REACHED, weights / STREAMED)
    return {
        "log2_all_slots": log2(slots),
        "log2_tokens_per_local_expert": log2(p.tokens / p.local_experts),
        "slots_elsewhere": slots / p.busiest_slots,
        "log2_all_between_ns": log2(slots * of_slot + HIDDEN_NS),
        "log2_reduced_ns": log2(2 * slots * p.hidden / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_tokens_ns": log2(2 * p.tokens * p.hidden / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_expected_ns": log2(expected),
        "log2_sum_over_expected": log2(compute + weights + p.busiest_slots * of_slot + LAUNCHES_NS) - log2(expected),
        "log2_own_over_expected": log2(product + p.busiest_slots * of_slot + LAUNCHES_NS) - log2(expected),
        "log2_all_over_expected": log2(product + slots * of_slot + LAUNCHES_NS) - log2(expected),
    }


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
