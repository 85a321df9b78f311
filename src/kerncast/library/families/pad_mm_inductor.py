"""Inductor's two ways to compute an unaligned product: as it is, or padded, multiplied and sliced."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, log2, where
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical
from kerncast.library.ops.pad_mm import pad_mm


class PadMmInductor(Family):
    id = "pad_mm/inductor"
    doc = "multiply as it is, or pad, multiply and slice"
    op = pad_mm
    parameters = {"choice": Categorical({"orig": 0, "pad": 1}, doc="orig multiplies as it is, pad pads first")}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        pad = c.choice == "pad"
        m, n, k = p.M + p.pad_m, p.N + p.pad_n, p.K + p.pad_k
        a_padded, b_padded = (p.pad_m + p.pad_k) > 0, (p.pad_n + p.pad_k) > 0
        # A copy reads the old operand and writes the new one.
        copied = (a_padded & ~p.a_prepadded) * (p.M * p.K + m * k) + (b_padded & ~p.b_prepadded) * (p.K * p.N + k * n)
        cut = (p.pad_m + p.pad_n > 0) * 2 * p.M * p.N
        copy_ns = (copied + cut) * p.element_bytes / hw.memory_bandwidth_gb_s
        return {
            "choice": c.choice,
            "copied_bytes": where(pad, (copied + cut) * p.element_bytes, 0),
            "log2_copy_ns": log2(1 + where(pad, copy_ns, 0)),
            "work_ratio": where(pad, m * n * k / (p.M * p.N * p.K), 1),
            "unaligned_k": where(pad, 0, p.pad_k > 0),
            "unaligned_n": where(pad, 0, p.pad_n > 0),
            "unaligned_m": where(pad, 0, p.pad_m > 0),
        }


pad_mm_inductor = PadMmInductor()
