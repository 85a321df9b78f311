"""Whether a model fits: its weights and the cache of one GPU against the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.estimating.calls import Call
from kerncast.estimating.decoder import Decoder, DeltaAttention, GroupedAttention
from kerncast.estimating.deployment import Deployment, Workload
from kerncast.estimating.formats import weight_bytes
from kerncast.estimating.linear import state_bytes

# A profile's gigabyte: NVIDIA's "80 GB" and "141 GB" are 2^30 bytes each, others' are fewer.
GIGABYTE = 1e9


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU. Activations, graphs and the server's own buffers are not counted."""

    weights_bytes: float
    cache_bytes: float
    capacity_bytes: float | None
    """None: the profile does not say."""

    @property
    def needed_bytes(self) -> float:
        """Weights and cache."""
        return self.weights_bytes + self.cache_bytes

    @property
    def fits(self) -> bool | None:
        """Whether weights and cache fit; None: unknown."""
        return None if self.capacity_bytes is None else self.needed_bytes <= self.capacity_bytes

    def sentence(self, device: str) -> str:
        """For people."""
        need = f"memory of one GPU: weights {self.weights_bytes / 1e9:,.1f} GB, cache {self.cache_bytes / 1e9:,.1f} GB"
        if self.capacity_bytes is None:
            return f"{need}; the profile of {device} does not say how much it has (memory_capacity_gb)"
        share = f"{need} of {self.capacity_bytes / 1e9:,.0f} GB"
        if self.fits:
            return share
        return f"{share}: DOES NOT FIT; use more GPUs, a narrower dtype, a smaller batch or a shorter context"


def memory_of(decoder: Decoder, calls: Iterable[Call], spread: Deployment, work: Workload, device: Device) -> Memory:
    """What one GPU holds."""
    weights = sum(call.count * call.weights * weight_bytes(call.weight_format) for call in calls)
    capacity = device.numbers.get("memory_capacity_gb")
    return Memory(weights, cache_bytes(decoder, spread, work), None if capacity is None else capacity * GIGABYTE)


def cache_bytes(decoder: Decoder, spread: Deployment, work: Workload) -> float:
    """The cache of the sequences of one GPU; layers with a window keep no more than it, linear attention its states."""
    element = dtypes.BYTES[decoder.formats.cache]
    sequences = -(-work.batch // spread.copies)
    total = 0.0
    for kind in decoder.layers:
        attention = kind.attention
        if isinstance(attention, DeltaAttention):
            total += kind.count * sequences * state_bytes(attention, spread.tp, dtypes.BYTES[decoder.formats.activations])
            continue
        if isinstance(attention, GroupedAttention):
            length = min(work.longest, attention.window) if attention.window else work.longest
            kept = max(1, attention.kv_heads // spread.tp) * (attention.head_dim + attention.value_dim)
        else:
            length, kept = work.longest, attention.cached_dim
        total += kind.count * sequences * length * kept * element
    return total
