"""Features for a library's own experts, whose tiles are not known: two grouped products, one group of rows per expert.

The first product takes the tokens of an expert to its gate and up projections, the second one takes the activation back. An
expert with few tokens leaves most rows of a tile empty; its weights are read all the same. Before, between and after the
products, tokens are sorted, activated and added up; many libraries do this for the tokens of all experts, also for those that
other devices have.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, mod, power_of_two_in
from kerncast.core.op import Work
from kerncast.library.families.attention_tiles import HIDDEN_NS
from kerncast.library.families.serving_tiles import LAUNCH_NS
from kerncast.library.ops.routing import balanced

# Rows × columns of a product that one block computes.
TILES = ((16, 128), (64, 128), (128, 256))
ALIGNMENTS = (128, 256)
# Longest run of elements that a load or a tile can be aligned to.
LONGEST_RUN = {"inter": 256, "hidden": 1024}
# Shares of the peaks that products of experts reach, and what a sequence of kernels takes to start: for comparing sums of parts
# with each other, not for predicting times.
REACHED, STREAMED, LAUNCHES_NS = 0.6, 0.8, 5000


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
    product = maximum(compute / REACHED, weights / STREAMED)
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
