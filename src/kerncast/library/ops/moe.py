"""The experts of a mixture-of-experts layer on one device: gate and up projection, activation, down projection.

Each token goes to `top_k` of the `experts`. Expert parallelism (`ep`) gives each device a share of the experts, tensor
parallelism (`tp`) a share of every expert's intermediate size. Balanced routing spreads the tokens evenly over the experts;
otherwise the loads follow a power law, and the device is the one with the largest load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import activation_bytes, bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, mod, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.core.space import Constraint
from kerncast.library.ops.routing import balanced, power_law

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
            "tokens": p.tokens,
            "hidden": p.hidden,
            "inter": p.inter,
            "top_k": p.top_k,
            "experts": p.experts,
            "tp": p.tp,
            "ep": p.ep,
            "dtype": p.dtype,
            "imbalance": p.imbalance,
            "local_experts": p.local_experts,
            "local_inter": p.local_inter,
            "slots": p.slots,
            "experts_hit": p.experts_hit,
            "busiest_slots": p.busiest_slots,
            "log2_tokens": log2(p.tokens),
            "tokens_per_expert": p.slots / p.local_experts,
            "log2_tokens_per_expert": log2(p.slots / p.local_experts),
            **self.work(p).features(hw),
        }


moe = Moe()
