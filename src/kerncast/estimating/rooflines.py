"""How long a call takes by its work alone, where no model knows it: the profile's rates, and how far kernels stay below."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kerncast.core.device import Device
from kerncast.errors import InvalidValue
from kerncast.estimating.calls import Call
from kerncast.estimating.formats import weight_bytes

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
class Roofline:
    """A time by work alone, with the time that the peaks allow and an interval."""

    time_ns: float
    lower_ns: float
    upper_ns: float
    floor_ns: float
    unknown: str | None = None
    """The rate that the profile lacks, and that was left out."""


def spans_nodes(call: Call, device: Device) -> bool:
    """Whether a call communicates with GPUs of other nodes."""
    return call.gpus > device.node_devices


def between_nodes(call: Call, device: Device, within_ns: float | None = None) -> Roofline | None:
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
    return Roofline(time, time * WORKING[0], time * WORKING[1], max(within.floor_ns, across / rate), within.unknown)


def roofline_of(call: Call, device: Device) -> Roofline:
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
    return Roofline(time, max(time * low, min(floor, time)) if call.flops else time * low, time * high, floor, unknown)


def reading_ns(call: Call, device: Device) -> float:
    """What a call takes at least, because a step reads other weights and keys before it: they are never in the cache.

    Tables repeat one kernel. The L40S keeps 96 MB in its cache, and so runs small products of decoding at up to 1.6 times the
    bandwidth of its memory.
    """
    bandwidth = device.numbers.get("memory_bandwidth_gb_s")
    if bandwidth is None or call.op not in READ_ONCE:
        return 0.0
    return (call.weights * weight_bytes(call.weight_format) if call.weights else call.bytes) / bandwidth
