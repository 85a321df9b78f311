"""The families of ops with nothing to choose: one kernel, an empty config."""

from __future__ import annotations

from kerncast.op import Family
from kerncast.ops.concatenate_heads import concatenate_heads
from kerncast.ops.create_qkv_heads import create_qkv_heads
from kerncast.ops.eltwise_unary import eltwise_unary
from kerncast.ops.matmul_sharded import matmul_sharded
from kerncast.ops.paged_sdpa_decode import paged_sdpa_decode

DOC = "the device library's own kernel"


class EltwiseUnarySingle(Family):
    id = "eltwise_unary/single"
    doc = DOC
    op = eltwise_unary


class ConcatenateHeadsSingle(Family):
    id = "concatenate_heads/single"
    doc = DOC
    op = concatenate_heads


class CreateQkvHeadsSingle(Family):
    id = "create_qkv_heads/single"
    doc = DOC
    op = create_qkv_heads


class PagedSdpaDecodeSingle(Family):
    id = "paged_sdpa_decode/single"
    doc = DOC
    op = paged_sdpa_decode


class MatmulShardedSingle(Family):
    id = "matmul_sharded/single"
    doc = DOC
    op = matmul_sharded


eltwise_unary_single = EltwiseUnarySingle()
concatenate_heads_single = ConcatenateHeadsSingle()
create_qkv_heads_single = CreateQkvHeadsSingle()
paged_sdpa_decode_single = PagedSdpaDecodeSingle()
matmul_sharded_single = MatmulShardedSingle()
