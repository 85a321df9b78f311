"""The experts of a mixture-of-experts layer on one device: gate and up projection, activation, down projection.

Each token goes to `top_k` of the `experts`. Expert parallelism (`ep`) gives each device a share of the experts, tensor
parallelism (`tp`) a share of every expert's intermediate size. Balanced routing spreads the tokens evenly over the experts;
otherwise the loads follow a power law, and the device is the one with the largest load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kerncast.core.dtypes import activation_bytes, bytes_per_element, dtype_parameter
from kerncast.core.expr import ConstantTable, Expr, Namespace, log2, lookup, maximum, minimum, mod, sqrt, values_of, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.core.space import Constraint

LN2 = 0.6931471805599453
# The expected largest of 1, 2, 4 … standard normal numbers.
LARGEST_OF = ConstantTable.of([0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826, 3.04])
# Spread of the loads when tokens are few: 2 / 0.01.
FEW_TOKENS = 200
OCTAVES = 32
POWERS = ConstantTable.of([2.0**power for power in range(OCTAVES)])


@dataclass(frozen=True)
class Routing:
    """What arrives at the busiest device."""

    hit: Expr
    """Experts of the device that get a token."""
    load: Expr
    """Tokens of the device's experts together: a token counts once for each of them."""


def balanced(p: Namespace) -> Routing:
    """Tokens spread evenly over experts, and over devices."""
    slots = p.tokens * p.top_k / p.ep
    return Routing(minimum(p.experts / p.ep, maximum(1, slots)), slots)


def power_law(p: Namespace) -> Routing:
    """Loads with the density x^-a, a = imbalance / 100, expected values."""
    local, slots = p.experts / p.ep, p.tokens * p.top_k
    # The formulas divide by a - 1, 2 - a and 3 - a.
    exponent = where(p.imbalance == 100, 101, where(p.imbalance == 200, 201, where(p.imbalance == 300, 301, p.imbalance))) / 100
    steep = exponent - 1
    spread = where(slots > p.experts, maximum(1.5, 0.8 * p.tokens), FEW_TOKENS)
    far = _power(spread, steep)
    mean = steep / (2 - exponent) * (spread * far - 1) / (1 - far)
    square = steep / (3 - exponent) * (spread * spread * far - 1) / (1 - far)
    # An expert is hit if its share rounds to a token.
    least = minimum(spread, maximum(1, 0.5 * p.experts * mean / slots))
    share = (_power(least, steep) - far) / (1 - far)
    deviation = sqrt(maximum(0, square / (mean * mean) - 1) * (1 - 1 / p.ep) / local)
    doublings = sum((1 * (p.ep >= 2**power) for power in range(2, 10)), 1 * (p.ep >= 2))
    excess = 1 + lookup(LARGEST_OF, doublings) * deviation
    load = slots / p.ep * excess
    # While tokens are few, a device has a larger load because more of its experts are hit.
    hit = minimum(local, maximum(1, minimum(local * share * where(slots > p.experts, 1, excess), load)))
    return Routing(hit, minimum(load, minimum(slots, local * p.tokens)))


def _power(x: Expr, exponent: Expr) -> Expr:
    """x to the power of -exponent, x at least 1: (1 - y / 2^12)^(2^12) with y = exponent · ln x.

    Logarithms differ in the last bit between machines, and the power would make that a thousand times larger; so this one is
    made of arithmetic alone, to 5 digits.
    """
    octave = sum((1 * (x >= 2**power) for power in range(2, OCTAVES)), 1 * (x >= 2))
    part = x / lookup(POWERS, octave) - 1
    curve = 0.4418 + part * (-0.2665 + part * (0.147 - 0.0442 * part))
    found = maximum(0, 1 - exponent * LN2 * (octave + part + part * (1 - part) * curve) / 4096)
    for _ in range(12):
        found = found * found
    return found


# Element types of weights and activations, as serving frameworks name them.
DTYPES = ("fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4afp8", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


class Moe(Op):
    name = "moe"
    doc = "the experts of a mixture-of-experts layer on one device: two products per expert that tokens go to"
    parameters = {
        "tokens": Int(1, 2**31 - 1, doc="tokens of all devices that share the experts"),
        "hidden": Int(1, 2**24, doc="elements of a token"),
        "inter": Int(1, 2**24, doc="intermediate size of an expert, before tensor parallelism divides it"),
        "top_k": Int(1, 2**10, doc="experts that a token goes to"),
        "experts": Int(1, 2**16, doc="experts of the layer, on all devices"),
        "tp": Int(1, 2**12, default=1, doc="devices that share each expert (tensor parallelism)"),
        "ep": Int(1, 2**12, default=1, doc="devices that share the experts among them (expert parallelism)"),
        "dtype": dtype_parameter(*DTYPES, doc="element types of weights and activations"),
        # A whole number, like every parameter: 1.01 is 101.
        "imbalance": Int(0, 1000, default=0, doc="exponent of the power law of the loads, times 100 (1.2: 120); 0: balanced"),
    }
    split_group = ("hidden", "inter", "top_k", "experts", "tp", "ep")
    splits = {"model": ("hidden", "inter", "top_k", "experts"), "tokens": ("tokens",)}

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (
            Constraint("whole_experts", "experts must be a multiple of ep", mod(p.experts, p.ep) == 0),
            Constraint("few_enough", "top_k must be at most experts", p.top_k <= p.experts),
        )

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        even, drawn = balanced(p), power_law(p)
        return {
            "weight_bytes": bytes_per_element(p.dtype),
            "activation_bytes": activation_bytes(p.dtype),
            "local_experts": p.experts / p.ep,
            "local_inter": p.inter / p.tp,
            "slots": even.load,
            "experts_hit": where(p.imbalance == 0, even.hit, drawn.hit),
            "busiest_slots": where(p.imbalance == 0, even.load, drawn.load),
        }

    def work(self, p: Namespace) -> Work:
        """Three projections of every token and expert; the weights of the experts that are hit, the tokens in and out.

        The tokens are those of an average device: what arrives at the busiest one is a matter of chance.
        """
        expert = 3 * p.hidden * p.local_inter
        return Work(
            flops=2 * p.slots * expert,
            bytes=p.experts_hit * expert * p.weight_bytes + p.tokens * p.hidden * (p.activation_bytes + 2),
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            **values_of(
                p,
                "tokens",
                "hidden",
                "inter",
                "top_k",
                "experts",
                "tp",
                "ep",
                "dtype",
                "imbalance",
                "local_experts",
                "local_inter",
                "slots",
                "experts_hit",
                "busiest_slots",
            ),
            "log2_tokens": log2(p.tokens),
            "tokens_per_expert": p.slots / p.local_experts,
            "log2_tokens_per_expert": log2(p.slots / p.local_experts),
            **self.work(p).features(hw),
        }


moe = Moe()
