"""What a server does between products: experts, quantising, linear attention and its convolution, talking to other devices.

Of a mixture of experts it is one device: gate and up projection, activation, down projection. Each token goes to `top_k` of
the `experts`. Expert parallelism (`ep`) gives each device a share of the experts, tensor parallelism (`tp`) a share of every
expert's intermediate size. Balanced routing spreads the tokens evenly over the experts; otherwise the loads follow a power
law, and the device is the one with the largest load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kerncast.core.dtypes import activation_bytes, bytes_per_element, dtype_parameter
from kerncast.core.expr import (
    ConstantTable,
    Expr,
    Namespace,
    constant,
    log2,
    lookup,
    maximum,
    minimum,
    mod,
    sqrt,
    values_of,
    where,
)
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.attention import BATCH

# Activations come in 16 bits.
READ_BYTES = 2


class Quantize(Op):
    name = "quantize"
    doc = "one part of quantising a matrix: compute its scale, or write it in the narrow type"
    parameters = {
        "M": Int(1, 2**31 - 1, doc="rows"),
        "K": Int(1, 2**31 - 1, doc="columns"),
        "dtype": dtype_parameter("fp8", "int8", "fp8_block", "nvfp4", doc="the narrow type"),
        "part": Categorical({"compute_scale": 0, "scale_matrix": 1}, doc="find the scale, or write the scaled matrix"),
    }
    split_group = ("M", "K")
    splits = {"K": ("K",)}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"written_bytes": where(p.part == "scale_matrix", bytes_per_element(p.dtype), 0)}

    def work(self, p: Namespace) -> Work:
        """The matrix is read once; only the second part writes it."""
        return Work(flops=constant(0), bytes=p.M * p.K * (READ_BYTES + p.written_bytes))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            **values_of(p, "M", "K", "dtype", "part"),
            "log2_M": log2(p.M),
            "log2_K": log2(p.K),
            "log2_MK": log2(p.M * p.K),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


quantize = Quantize()


PARTS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3}


class Collective(Op):
    name = "collective"
    doc = "communication between the GPUs of a node: all_reduce, all_gather, reduce_scatter, all_to_all"
    parameters = {
        "kind": Categorical(PARTS, doc="what is done with the message"),
        "elements": Int(1, 2**40, doc="elements of the message: what a GPU has at the end (reduce_scatter: at the start)"),
        "gpus": Int(2, 2**16, doc="GPUs that take part"),
        "dtype": dtype_parameter("fp32", "fp16", "bf16", "fp8", "int8", doc="element type of the message"),
    }
    aliases = {kind: {"kind": kind} for kind in PARTS}
    split_group = ("elements", "gpus")
    splits = {"gpus": ("gpus",), "sizes": ("elements",)}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        message = p.elements * bytes_per_element(p.dtype)
        # A ring passes every part on to all others once: to gather, to scatter, or (all_reduce) first one, then the other.
        rounds = where(p.kind == "all_reduce", 2, 1)
        return {
            "message_bytes": message,
            "steps": rounds * (p.gpus - 1),
            "link_bytes": rounds * message * (p.gpus - 1) / p.gpus,
        }

    def work(self, p: Namespace) -> Work:
        """The bytes that leave a GPU over its links; in its own memory the message is read and written once."""
        return Work(flops=constant(0), bytes=2 * p.message_bytes, link_bytes=p.link_bytes)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            **values_of(p, "kind", "elements", "gpus", "dtype", "steps", "message_bytes"),
            "log2_message_bytes": log2(p.message_bytes),
            "log2_link_bytes": log2(p.link_bytes),
            "log2_bytes_per_step": log2(p.message_bytes / p.gpus),
            "link_ns": work.link_ns(hw),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


collective = Collective()


PHASE = Categorical(
    {"context": 0, "generation": 1, "verify": 2},
    doc="context: tokens of a prompt; generation: one new token; verify: drafted tokens, of which any may be the last one kept",
)
SEQ_LEN = Int(1, 2**31 - 1, doc="new tokens of each sequence; generation: 1")


def one_token_in_generation(p: Namespace) -> Constraint:
    """A step of generation has one new token per sequence."""
    return Constraint(
        "one_token_in_generation", "seq_len must be 1 in generation", (p.phase != "generation") | (p.seq_len == 1)
    )


class CausalConv(Op):
    name = "causal_conv"
    doc = "the short causal convolution before linear attention: each channel by itself, over the last tokens"
    parameters = {
        "phase": PHASE,
        "batch": BATCH,
        "seq_len": SEQ_LEN,
        "channels": Int(1, 2**24, doc="channels on this device: of queries, keys and values together"),
        "width": Int(1, 2**10, default=4, doc="tokens that one output sees, its own included"),
        "dtype": dtype_parameter("fp16", "bf16", doc="element type of the channels"),
    }
    split_group = ("batch", "seq_len", "channels", "width")
    splits = {"channels": ("channels",), "lengths": ("batch", "seq_len")}

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (one_token_in_generation(p),)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"element_bytes": bytes_per_element(p.dtype), "tokens": p.batch * p.seq_len}

    def work(self, p: Namespace) -> Work:
        """Each token is read and written once, and so is the state of each sequence."""
        state = p.batch * (p.width - 1)
        return Work(
            flops=2 * p.tokens * p.channels * p.width,
            bytes=2 * (p.tokens + state) * p.channels * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            **values_of(p, "phase", "batch", "seq_len", "channels", "width", "dtype", "tokens"),
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_channels": log2(p.channels),
            "log2_rows": log2(p.batch * p.channels),
            **self.work(p).features(hw),
        }


causal_conv = CausalConv()


KINDS = {"gdn": 0, "kda": 1, "mamba2": 2}


class LinearAttention(Op):
    name = "linear_attention"
    doc = "linear attention with a state per head: gated delta networks, KDA, Mamba 2"
    parameters = {
        "kind": Categorical(
            KINDS, doc="gdn: delta rule, one gate per head; kda: delta rule, one gate per key channel; mamba2: no delta rule"
        ),
        "phase": PHASE,
        "batch": BATCH,
        "seq_len": SEQ_LEN,
        "k_heads": Int(1, 2**16, doc="heads of queries and keys on this device (Mamba 2: groups)"),
        "v_heads": Int(1, 2**16, doc="heads of values and states on this device"),
        "k_dim": Int(1, 2**16, doc="elements of a query or a key (Mamba 2: size of the state)"),
        "v_dim": Int(1, 2**16, doc="elements of a value"),
        "dtype": dtype_parameter("fp16", "bf16", doc="element type of queries, keys, values and the result"),
        "state_dtype": dtype_parameter("fp32", "fp16", "bf16", default="fp32", doc="element type of the state"),
    }
    split_group = ("kind", "batch", "seq_len", "k_heads", "v_heads", "k_dim", "v_dim")
    splits = {"heads": ("kind", "k_heads", "v_heads", "k_dim", "v_dim"), "lengths": ("batch", "seq_len")}

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        grouped = Constraint("grouped_heads", "v_heads must be a multiple of k_heads", mod(p.v_heads, p.k_heads) == 0)
        return (grouped, one_token_in_generation(p))

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "tokens": p.batch * p.seq_len,
            # Elements of all states.
            "states": p.batch * p.v_heads * p.k_dim * p.v_dim,
            # Before a draft is verified nobody knows after which of its tokens the text goes on, so each state is kept.
            "states_written": where(p.phase == "verify", p.seq_len, 1),
            # Numbers per token and head that say how the state fades and how much of the new value it takes.
            "gates": where(p.kind == "kda", p.k_dim + 1, where(p.kind == "gdn", 2, 1)),
        }

    def work(self, p: Namespace) -> Work:
        """Products of the state with a vector: one to write, one to read, with the delta rule one to ask before."""
        products = where(p.kind == "mamba2", 2, 3)
        per_token = 2 * p.k_heads * p.k_dim + p.v_heads * (2 * p.v_dim + p.gates)
        return Work(
            flops=2 * products * p.seq_len * p.states,
            bytes=p.tokens * per_token * p.element_bytes + p.states * (1 + p.states_written) * bytes_per_element(p.state_dtype),
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            **values_of(
                p, "kind", "phase", "batch", "seq_len", "k_heads", "v_heads", "k_dim", "v_dim", "dtype", "state_dtype", "tokens"
            ),
            "heads_per_key_head": p.v_heads / p.k_heads,
            "total_heads": p.batch * p.v_heads,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.v_heads),
            "log2_head_tokens": log2(p.tokens * p.v_heads),
            "log2_key_head_tokens": log2(p.tokens * p.k_heads),
            **self.work(p).features(hw),
        }


linear_attention = LinearAttention()


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
