"""Families with nothing to choose: one kernel, an empty config.

Some ops have only such a family. For the others it is the family of plain timings: a table of shapes and times without a
word about kernels. What ran then is a library's own choice, so the features are those of a library's product.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, constant
from kerncast.core.op import Family, Op
from kerncast.core.parameters import Int
from kerncast.library.families.product_tiles import library_features
from kerncast.library.ops.attention import flex_attention
from kerncast.library.ops.gemm import gemm, mixed_mm
from kerncast.library.ops.grouped_conv import grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward
from kerncast.library.ops.reshard import OnChip, reshard
from kerncast.library.ops.ttnn_ops import concatenate_heads, create_qkv_heads, eltwise_unary, matmul_sharded, paged_sdpa_decode

DOC = "the device library's own kernel"
PLAIN = "plain timings: whatever kernel ran"


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


def _single(op: Op, doc: str) -> Family:
    """The family of an op's only kernel, with the features of the op alone."""
    name = "".join(word.capitalize() for word in op.name.split("_"))
    made: type[Family] = type(f"{name}Single", (Family,), {"id": f"{op.name}/single", "doc": doc, "op": op})
    return made()


eltwise_unary_single = _single(eltwise_unary, DOC)
concatenate_heads_single = _single(concatenate_heads, DOC)
create_qkv_heads_single = _single(create_qkv_heads, DOC)
paged_sdpa_decode_single = _single(paged_sdpa_decode, DOC)
matmul_sharded_single = _single(matmul_sharded, DOC)
gemm_single = GemmSingle()
mixed_mm_single = MixedMmSingle()
grouped_conv_forward_single = _single(grouped_conv_forward, PLAIN)
grouped_conv_bwd_data_single = _single(grouped_conv_bwd_data, PLAIN)
grouped_conv_bwd_weight_single = _single(grouped_conv_bwd_weight, PLAIN)
flex_attention_single = _single(flex_attention, PLAIN)


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
