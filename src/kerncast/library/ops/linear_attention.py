"""Linear attention: a state of fixed size per head instead of a cache that grows with the text.

Each token fades the state, corrects it by the token's key and value, and reads it with the query. The kinds differ in how they
fade it, and in whether they first ask the state what it holds for the key (the delta rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, mod, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.attention_context import BATCH
from kerncast.library.ops.causal_conv import PHASE, SEQ_LEN, one_token_in_generation

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
            "kind": p.kind,
            "phase": p.phase,
            "batch": p.batch,
            "seq_len": p.seq_len,
            "k_heads": p.k_heads,
            "v_heads": p.v_heads,
            "k_dim": p.k_dim,
            "v_dim": p.v_dim,
            "dtype": p.dtype,
            "state_dtype": p.state_dtype,
            "tokens": p.tokens,
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
