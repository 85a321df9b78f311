"""A framework's own product: one kernel per code path, its tiles unknown. Linear layers, as LLM servers run them."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace
from kerncast.core.op import Family
from kerncast.library.families.library_tiles import kernel_source_parameter, library_features
from kerncast.library.families.serving_tiles import hardware_numbers
from kerncast.library.ops.gemm import gemm


class GemmLibrary(Family):
    id = "gemm/library"
    doc = "a framework's or library's own GEMM, by the code path that ran"
    op = gemm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, gemm.work(p), p.batch)
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


gemm_library = GemmLibrary()
