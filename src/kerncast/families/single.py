"""Families with nothing to choose: one kernel, an empty config.

Some ops have only such a family. For the others it is the family of plain timings: a table of shapes and times without a
word about kernels. What ran then is a library's own choice, so the features are those of a library's product.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.expr import Expr, Namespace
from kerncast.families.library_tiles import library_features
from kerncast.op import Family
from kerncast.ops.concatenate_heads import concatenate_heads
from kerncast.ops.create_qkv_heads import create_qkv_heads
from kerncast.ops.eltwise_unary import eltwise_unary
from kerncast.ops.flex_attention import flex_attention
from kerncast.ops.gemm import gemm
from kerncast.ops.grouped_conv import grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward
from kerncast.ops.matmul_sharded import matmul_sharded
from kerncast.ops.mixed_mm import mixed_mm
from kerncast.ops.paged_sdpa_decode import paged_sdpa_decode

DOC = "the device library's own kernel"
PLAIN = "plain timings: whatever kernel ran"


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


class GemmSingle(Family):
    id = "gemm/single"
    doc = PLAIN
    op = gemm

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return library_features(p, hw, gemm.work(p), p.batch)


class MixedMmSingle(Family):
    id = "mixed_mm/single"
    doc = PLAIN
    op = mixed_mm

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return library_features(p, hw, mixed_mm.work(p))


class GroupedConvForwardSingle(Family):
    id = "grouped_conv_forward/single"
    doc = PLAIN
    op = grouped_conv_forward


class GroupedConvBwdDataSingle(Family):
    id = "grouped_conv_bwd_data/single"
    doc = PLAIN
    op = grouped_conv_bwd_data


class GroupedConvBwdWeightSingle(Family):
    id = "grouped_conv_bwd_weight/single"
    doc = PLAIN
    op = grouped_conv_bwd_weight


class FlexAttentionSingle(Family):
    id = "flex_attention/single"
    doc = PLAIN
    op = flex_attention


eltwise_unary_single = EltwiseUnarySingle()
concatenate_heads_single = ConcatenateHeadsSingle()
create_qkv_heads_single = CreateQkvHeadsSingle()
paged_sdpa_decode_single = PagedSdpaDecodeSingle()
matmul_sharded_single = MatmulShardedSingle()
gemm_single = GemmSingle()
mixed_mm_single = MixedMmSingle()
grouped_conv_forward_single = GroupedConvForwardSingle()
grouped_conv_bwd_data_single = GroupedConvBwdDataSingle()
grouped_conv_bwd_weight_single = GroupedConvBwdWeightSingle()
flex_attention_single = FlexAttentionSingle()
