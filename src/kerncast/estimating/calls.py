"""A call: one kernel of one step on one GPU, with its shape, its work and how often it runs.

The work is counted here too, although the ops count their own: a call may be of a format or a size that no op takes (heads
whose values are shorter than their keys), and must have its roofline nevertheless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerncast.core import dtypes
from kerncast.core.expr import Program, constant
from kerncast.estimating.formats import activation_type, weight_bytes
from kerncast.library.ops.attention import causal_pairs

LAYOUT = "rcr"
"""A linear layer keeps its weights as N rows of K."""
# Weights that are widened before they are multiplied → the op `mixed_mm` and its element type.
WIDENED = {"int4_wo": "int4", "int8_wo": "int8"}
RESULT_BYTES = 2
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""What servers leave to a library that they share, unless they have a kernel of their own for it."""


@dataclass(frozen=True)
class Call:
    """What runs `count` times in a step."""

    name: str
    op: str | None
    """The op that a model may know; None: it is estimated from its work alone."""
    problem: Mapping[str, Any]
    count: int
    flops: float
    bytes: float
    dtype: str
    """The type of its arithmetic."""
    link_bytes: float = 0.0
    """What leaves the GPU for the others."""
    gpus: int = 1
    """How many take part; above 1, they communicate."""
    weights: int = 0
    """Elements of weights that one call has."""
    weight_format: str = "bf16"


def gemm(name: str, count: int, rows: int, columns: int, depth: int, form: str, activations: str) -> Call:
    """A linear layer: `rows` tokens, `columns` outputs, `depth` inputs."""
    multiplied = activation_type(form, activations)
    shape = {"M": rows, "N": columns, "K": depth}
    if form in WIDENED:
        op, problem = "mixed_mm", {**shape, "dtype": activations, "b_dtype": WIDENED[form], "layout": LAYOUT}
    else:
        op, problem = "gemm", {**shape, "dtype": form, "layout": LAYOUT}
    moved = rows * depth * dtypes.BYTES[multiplied] + depth * columns * weight_bytes(form) + rows * columns * RESULT_BYTES
    return Call(
        name, op, problem, count, 2.0 * rows * columns * depth, moved, multiplied, weights=columns * depth, weight_format=form
    )


def quantise(name: str, count: int, rows: int, columns: int, form: str, part: str) -> Call:
    """A matrix of activations before a product of 8 bits: its scale, or its narrow form."""
    moved = rows * columns * (RESULT_BYTES + (dtypes.BYTES[form] if part == "scale_matrix" else 0.0))
    return Call(name, "quantize", {"M": rows, "K": columns, "dtype": form, "part": part}, count, 0.0, moved, form)


def pairs(new: int, past: int, window: int) -> float:
    """How many keys the new queries of one sequence read in all, in one head: the formula of `attention_context`."""
    formula = causal_pairs(constant(new), constant(past), constant(window))
    return float(Program({"pairs": formula}).scalar({})["pairs"])


def experts(
    name: str, count: int, tokens: int, hidden: int, inter: int, top_k: int, experts: int, tp: int, ep: int, form: str,
    imbalance: int, activations: str,
) -> Call:  # fmt: skip
    """The experts of a layer that are on one GPU."""
    problem = {
        "tokens": tokens, "hidden": hidden, "inter": inter, "top_k": top_k, "experts": experts, "tp": tp, "ep": ep,
        "dtype": form, "imbalance": imbalance,
    }  # fmt: skip
    multiplied = activation_type(form, activations)
    local, slots, expert = experts // ep, tokens * top_k / ep, 3 * hidden * (inter // tp)
    hit = min(local, max(1.0, slots))
    moved = hit * expert * weight_bytes(form) + tokens * hidden * (dtypes.BYTES[multiplied] + RESULT_BYTES)
    weights = local * expert
    return Call(name, "moe", problem, count, 2.0 * slots * expert, moved, multiplied, weights=weights, weight_format=form)


def collective(name: str, count: int, kind: str, elements: int, gpus: int, dtype: str) -> Call:
    """Communication between the GPUs."""
    message = elements * dtypes.BYTES[dtype]
    link = (2 if kind == "all_reduce" else 1) * message * (gpus - 1) / gpus
    problem = {"elements": elements, "gpus": gpus, "dtype": dtype}
    return Call(name, kind, problem, count, 0.0, 2 * message, dtype, link, gpus)


def passing(name: str, count: int, moved: float, dtype: str, shape: Mapping[str, Any], weights: int = 0) -> Call:
    """A kernel that only reads and writes: a norm, an activation, a lookup. No model knows it."""
    return Call(name, None, shape, count, 0.0, moved, dtype, weights=weights, weight_format=dtype)
