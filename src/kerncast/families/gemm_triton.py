"""Triton's tiled matmul, with the vendor library's kernel as one more candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.expr import Expr, Namespace
from kerncast.families.library_tiles import storage_hints
from kerncast.families.triton_tiles import PARAMETERS, Operands, shared_memory_fits, tile_features
from kerncast.op import Family
from kerncast.ops.gemm import gemm
from kerncast.parameters import Bool
from kerncast.space import Constraint


def _operands(p: Namespace) -> Operands:
    return Operands(p.element_bytes, p.element_bytes, p.element_bytes, p.batch)


class Triton(Family):
    id = "gemm/triton"
    doc = "Triton matmul templates, and the vendor library's kernel"
    op = gemm
    # A setting of the process, not of the tensors; it matters only on devices with tensor cores.
    above_peak = ("tf32",)
    environment_parameters = {"tf32": Bool(default=False, doc="fp32 operands may be rounded to TF32 for the tensor cores")}
    parameters = PARAMETERS
    library = {"kind": "library"}

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield shared_memory_fits(c, hw, _operands(p))
        yield Constraint("split_k", "Triton's matmul templates do not divide K: leave split_k at 1", p.split_k == 1)

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {**tile_features(p, c, hw, _operands(p)), **storage_hints(p, hw, p.batch), "tf32": p.tf32}


triton = Triton()
