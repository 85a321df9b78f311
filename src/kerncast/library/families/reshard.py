"""Reshard has nothing to choose: the device library's own kernel on cards, one copy engine on CPUs."""

from __future__ import annotations

from kerncast.core.expr import Namespace, constant
from kerncast.core.op import Family
from kerncast.core.parameters import Int
from kerncast.library.ops.reshard import reshard
from kerncast.library.ops.reshard_pages import OnChip


class ReshardSingle(Family):
    id = "reshard/single"
    doc = "the device library's own kernel"
    op = reshard

    def work(self, p: Namespace) -> OnChip:
        """Shards are in the cores' own memory, so the network between them sets the floor, not DRAM."""
        return OnChip(constant(0), 2 * p.tiles * p.tile_bytes, p)


class ReshardCpu(Family):
    id = "reshard/cpu"
    doc = "shards as separate buffers in main memory, tiles moved by worker threads"
    op = reshard
    environment_parameters = {"threads": Int(1, 256, default=1, doc="threads that move tiles")}


reshard_single = ReshardSingle()
reshard_cpu = ReshardCpu()
