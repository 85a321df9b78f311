"""Features for a library's own experts, whose tiles are not known: two grouped products, one group of rows per expert.

The first product takes the tokens of an expert to its gate and up projections, the second one takes the activation back. An
expert with few tokens leaves most rows of a tile empty; its weights are read all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, mod
from kerncast.families.attention_tiles import HIDDEN_NS
from kerncast.op import Work
from kerncast.ops.routing import balanced

# Rows × columns of a product that one block computes.
TILES = ((16, 128), (64, 128), (128, 256))
ALIGNMENTS = (128, 256)


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
        "log2_compute_ns": log2(compute + HIDDEN_NS),
        "log2_weights_ns": log2(weights / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_missing_ns": log2(maximum(0, weights - held) / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "log2_between_ns": log2(between / hw.memory_bandwidth_gb_s + HIDDEN_NS),
        "compute_share": compute / (compute + weights / hw.memory_bandwidth_gb_s),
    }
