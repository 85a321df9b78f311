"""Linear attention and the convolution before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, mod, values_of, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.attention import BATCH

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
