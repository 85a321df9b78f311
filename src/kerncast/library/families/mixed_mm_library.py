"""A framework's own weight-only product, by the code path that ran."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace
from kerncast.core.op import Family
from kerncast.library.families.library_tiles import kernel_source_parameter, library_features
from kerncast.library.families.serving_tiles import hardware_numbers
from kerncast.library.ops.mixed_mm import mixed_mm


class MixedMmLibrary(Family):
    id = "mixed_mm/library"
    doc = "a framework's or library's own weight-only product, by the code path that ran"
    op = mixed_mm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, mixed_mm.work(p))
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


mixed_mm_library = MixedMmLibrary()
