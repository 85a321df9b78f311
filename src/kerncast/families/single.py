"""The family of ops with nothing to choose: one kernel, an empty config."""

from __future__ import annotations

from kerncast.op import Family
from kerncast.ops.eltwise_unary import eltwise_unary
from kerncast.ops.matmul_sharded import matmul_sharded


class EltwiseUnarySingle(Family):
    id = "eltwise_unary/single"
    doc = "the device library's own kernel"
    op = eltwise_unary


class MatmulShardedSingle(Family):
    id = "matmul_sharded/single"
    doc = "the device library's own kernel"
    op = matmul_sharded


eltwise_unary_single = EltwiseUnarySingle()
matmul_sharded_single = MatmulShardedSingle()
