"""A call: one kernel of one step on one GPU, with its shape, its work and how often it runs.

The work is counted here too, although the ops count their own: a call may be of a format or a size that no op takes (heads
whose values are shorter than their keys), and must have its roofline nevertheless.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.expr import Program, constant
from kerncast.errors import InvalidValue
from kerncast.estimating.fields import activation_type, weight_bytes
from kerncast.library.ops.attention import causal_pairs

LAYOUT = "rcr"
"""A linear layer keeps its weights as N rows of K."""
# Weights that are widened before they are multiplied → the op `mixed_mm` and its element type.
WIDENED = {"int4_wo": "int4", "int8_wo": "int8"}
RESULT_BYTES = 2
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""What servers leave to a library that they share, unless they have a kernel of their own for it."""


@dataclass(frozen=True)
class KernelCall:
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


def gemm(name: str, count: int, rows: int, columns: int, depth: int, form: str, activations: str) -> KernelCall:
    """A linear layer: `rows` tokens, `columns` outputs, `depth` inputs."""
    multiplied = activation_type(form, activations)
    shape = {"M": rows, "N": columns, "K": depth}
    if form in WIDENED:
        op, problem = "mixed_mm", {**shape, "dtype": activations, "b_dtype": WIDENED[form], "layout": LAYOUT}
    else:
        op, problem = "gemm", {**shape, "dtype": form, "layout": LAYOUT}
    moved = rows * depth * dtypes.BYTES[multiplied] + depth * columns * weight_bytes(form) + rows * columns * RESULT_BYTES
    return KernelCall(
        name, op, problem, count, 2.0 * rows * columns * depth, moved, multiplied, weights=columns * depth, weight_format=form
    )


def quantise(name: str, count: int, rows: int, columns: int, form: str, part: str) -> KernelCall:
    """A matrix of activations before a product of 8 bits: its scale, or its narrow form."""
    moved = rows * columns * (RESULT_BYTES + (dtypes.BYTES[form] if part == "scale_matrix" else 0.0))
    return KernelCall(name, "quantize", {"M": rows, "K": columns, "dtype": form, "part": part}, count, 0.0, moved, form)


def pairs(new: int, past: int, window: int) -> float:
    """How many keys the new queries of one sequence read in all, in one head: the formula of `attention_context`."""
    formula = causal_pairs(constant(new), constant(past), constant(window))
    return float(Program({"pairs": formula}).scalar({})["pairs"])


def experts(
    name: str, count: int, tokens: int, hidden: int, inter: int, top_k: int, experts: int, tp: int, ep: int, form: str,
    imbalance: int, activations: str,
) -> KernelCall:  # fmt: skip
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
    return KernelCall(name, "moe", problem, count, 2.0 * slots * expert, moved, multiplied, weights=weights, weight_format=form)


def collective(name: str, count: int, kind: str, elements: int, gpus: int, dtype: str) -> KernelCall:
    """Communication between the GPUs."""
    message = elements * dtypes.BYTES[dtype]
    link = (2 if kind == "all_reduce" else 1) * message * (gpus - 1) / gpus
    problem = {"elements": elements, "gpus": gpus, "dtype": dtype}
    return KernelCall(name, kind, problem, count, 0.0, 2 * message, dtype, link, gpus)


def passing(name: str, count: int, moved: float, dtype: str, shape: Mapping[str, Any], weights: int = 0) -> KernelCall:
    """A kernel that only reads and writes: a norm, an activation, a lookup. No model knows it."""
    return KernelCall(name, None, shape, count, 0.0, moved, dtype, weights=weights, weight_format=dtype)


# The shares of the peaks that kernels reach; as in `kerncast.core.op.declaration.Work.expected_ns`.
COMPUTE_SHARE, MEMORY_SHARE = 0.7, 0.8
# What a kernel takes that does next to nothing. With it, the kernels of vLLM 0.24 and TensorRT-LLM 1.3 that quantise a matrix
# (they only read and write; 26,048 rows of eight GPUs in AIConfigurator's tables) take 0.94 times what `roofline_of`
# says (median), and nine of ten between 0.25 and 1.44 times: matrices that stay in the cache are faster.
KERNEL_NS = 2_000.0
PASSING = (0.25, 1.44)
# Kernels that multiply or communicate stay further below the roofline, and more variously.
WORKING = (0.6, 3.0)
BETWEEN = "node_bandwidth_gb_s"

# What each call reads all of, and no other call of the step: dense weights, and the keys and values of a layer. Of experts and
# of latent attention it is not known so exactly.
READ_ONCE = ("gemm", "mixed_mm", "mla_bmm", "attention_generation")


@dataclass(frozen=True)
class RooflineTime:
    """A time by work alone, with the time that the peaks allow and an interval."""

    time_ns: float
    lower_ns: float
    upper_ns: float
    floor_ns: float
    unknown: str | None = None
    """The rate that the profile lacks, and that was left out."""


def spans_nodes(call: KernelCall, device: Device) -> bool:
    """Whether a call communicates with GPUs of other nodes."""
    return call.gpus > device.node_devices


def between_nodes(call: KernelCall, device: Device, within_ns: float | None = None) -> RooflineTime | None:
    """The time of a call that communicates between nodes: what it takes within one, and by the links between them.

    Within a node the GPUs share what goes to the others, so that each sends its part of it. Tokens on their way to experts
    (all_to_all) are not shared. `within_ns` is what a node of GPUs alone takes, if a model knows it. None: the profile does not
    say how fast the links are.
    """
    rate = device.numbers.get(BETWEEN)
    if rate is None:
        return None
    node = device.node_devices
    away = (call.gpus - node) / (call.gpus - 1)
    across = call.link_bytes * away / (1.0 if call.op == "all_to_all" else node)
    within = roofline_of(call, device)
    time = max(within.time_ns, within_ns or 0.0) + across / rate / MEMORY_SHARE
    return RooflineTime(time, time * WORKING[0], time * WORKING[1], max(within.floor_ns, across / rate), within.unknown)


def roofline_of(call: KernelCall, device: Device) -> RooflineTime:
    """The time of one call by its arithmetic, its bytes and what it sends; a profile without a bandwidth is refused."""
    bandwidth = device.numbers.get("memory_bandwidth_gb_s")
    if bandwidth is None:
        raise InvalidValue(
            f"the profile of {device.name} has no memory_bandwidth_gb_s, without which nothing can be estimated: add it"
        )
    memory = call.bytes / bandwidth
    compute, link, unknown = 0.0, 0.0, None
    if call.flops:
        peak = device.peak_of(call.dtype)
        if peak is None:
            unknown = f"peak rate of {call.dtype}"
        else:
            compute = call.flops / (peak * 1e3)
    if call.link_bytes:
        rate = device.numbers.get("link_bandwidth_gb_s")
        if rate is None:
            unknown = "link_bandwidth_gb_s"
        else:
            link = call.link_bytes / rate
    floor = max(memory, compute, link)
    time = KERNEL_NS + math.hypot(compute / COMPUTE_SHARE, memory / MEMORY_SHARE, link / MEMORY_SHARE)
    low, high = WORKING if call.flops or call.link_bytes else PASSING
    return RooflineTime(time, max(time * low, min(floor, time)) if call.flops else time * low, time * high, floor, unknown)


def reading_ns(call: KernelCall, device: Device) -> float:
    """What a call takes at least, because a step reads other weights and keys before it: they are never in the cache.

    Tables repeat one kernel. The L40S keeps 96 MB in its cache, and so runs small products of decoding at up to 1.6 times the
    bandwidth of its memory.
    """
    bandwidth = device.numbers.get("memory_bandwidth_gb_s")
    if bandwidth is None or call.op not in READ_ONCE:
        return 0.0
    return (call.weights * weight_bytes(call.weight_format) if call.weights else call.bytes) / bandwidth
