"""Triton's matmul template with a narrow second operand, and the library's method: widen B, then multiply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.expr import Expr, Namespace
from kerncast.core.op import Family
from kerncast.core.space import Constraint
from kerncast.library.families.library_tiles import library_hints
from kerncast.library.families.triton_tiles import PARAMETERS, Operands, shared_memory_fits, tile_features
from kerncast.library.ops.mixed_mm import mixed_mm


def _operands(p: Namespace) -> Operands:
    return Operands(p.element_bytes, p.b_bytes, p.element_bytes)


class MixedMmTriton(Family):
    id = "mixed_mm/triton"
    doc = "Triton matmul templates that widen B as they load it, and the library's product of a widened copy"
    op = mixed_mm
    parameters = PARAMETERS
    library = {"kind": "library"}

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield shared_memory_fits(c, hw, _operands(p))

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # The library reads B, writes a copy in A's type and reads that: three passes where a template has one.
        widened = p.K * p.N * (p.b_bytes + 2 * p.element_bytes)
        return {
            **tile_features(p, c, hw, _operands(p)),
            **library_hints(p, hw),
            "library_widening_bytes": (c.kind == "library") * widened,
        }


mixed_mm_triton = MixedMmTriton()
