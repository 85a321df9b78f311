"""The minimum cost of an op, whatever kernel computes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerncast.core.expr import Expr, Namespace, constant, log2, maximum, sqrt

TFLOPS, BANDWIDTH = "tflops", "bandwidth_gb_s"
"""The names of the two rates of a kernel: its arithmetic and its bytes over its time."""


@dataclass(frozen=True)
class Work:
    """The minimum work of a problem: its arithmetic, its bytes moved once, and the bytes that leave a device for others."""

    flops: Expr
    bytes: Expr
    link_bytes: Expr = field(default_factory=lambda: constant(0), kw_only=True)

    def roofline_ns(self, hw: Namespace) -> Expr:
        """The time below which no kernel can go: the slowest of the arithmetic, the traffic and the links."""
        local = maximum(*self.parts_ns(hw))
        return maximum(local, self.link_ns(hw)) if self.communicates else local

    @property
    def communicates(self) -> bool:
        """Whether several devices take part."""
        return self.link_bytes is not constant(0)

    def link_ns(self, hw: Namespace) -> Expr:
        """The time of the bytes on the links alone."""
        return self.link_bytes / hw.link_bandwidth_gb_s if self.communicates else self.link_bytes

    def parts_ns(self, hw: Namespace) -> tuple[Expr, Expr]:
        """The arithmetic and the traffic, each alone."""
        # An op that only moves data needs no peak rate, which is unknown for most dtypes without arithmetic.
        compute = self.flops if self.flops is constant(0) else self.flops / hw.peak_flops * 1e9
        return compute, self.bytes / (hw.memory_bandwidth_gb_s * 1e9) * 1e9

    def features(self, hw: Namespace) -> dict[str, Expr]:
        """What a model may read of it."""
        roofline = self.roofline_ns(hw)
        return {
            "log2_flops": log2(self.flops),
            "log2_bytes": log2(self.bytes),
            "arithmetic_intensity": self.flops / self.bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }

    def expected_ns(self, hw: Namespace, overhead_ns: float) -> Expr:
        """The roofline that good kernels reach in practice; times are learned relative to it.

        A launch takes time, kernels reach 70 and 80 percent of the peaks, and arithmetic and traffic do not
        overlap perfectly where they are about equal. On 35,700 H100 GEMMs a forest that learns times relative
        to this errs by 2.8 % instead of 3.3 % relative to the sharp roofline.
        """
        compute, memory = self.parts_ns(hw)
        squares = (compute / 0.7) * (compute / 0.7) + (memory / 0.8) * (memory / 0.8)
        if self.communicates:
            link = self.link_ns(hw) / 0.8
            squares = squares + link * link
        return overhead_ns + sqrt(squares)
