"""What an op costs at the least, whatever kernel computes it."""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.expr import Expr, Namespace, constant, maximum, sqrt


@dataclass(frozen=True)
class Work:
    """What a problem asks of the hardware at the least: arithmetic, and bytes moved once."""

    flops: Expr
    bytes: Expr

    def roofline_ns(self, hw: Namespace) -> Expr:
        """The time below which no kernel can go: the slower of the arithmetic and the traffic."""
        return maximum(*self.parts_ns(hw))

    def parts_ns(self, hw: Namespace) -> tuple[Expr, Expr]:
        """The arithmetic and the traffic, each alone."""
        # What only moves needs no peak, which is unknown for most types that nothing multiplies.
        compute = self.flops if self.flops is constant(0) else self.flops / hw.peak_flops * 1e9
        return compute, self.bytes / (hw.memory_bandwidth_gb_s * 1e9) * 1e9

    def expected_ns(self, hw: Namespace, overhead_ns: float) -> Expr:
        """The roofline as good kernels meet it: what times are learned relative to.

        Launching costs something, peaks are reached to 70 and 80 percent, and arithmetic and traffic do not
        overlap perfectly where they are about equal. On 35,700 H100 GEMMs a forest that learns times relative
        to this errs by 2.8 % instead of 3.3 % relative to the sharp roofline.
        """
        compute, memory = self.parts_ns(hw)
        return overhead_ns + sqrt((compute / 0.7) * (compute / 0.7) + (memory / 0.8) * (memory / 0.8))
