"""What a server does between products: quantising activations, and talking to other devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, mod, values_of, where
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
