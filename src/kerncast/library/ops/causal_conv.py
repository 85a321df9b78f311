"""The short convolution before linear attention: each channel of a token becomes a weighted sum of its last `width` tokens.

Gated delta networks, KDA and Mamba 2 all have one. The last `width` - 1 tokens of a sequence are its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.attention_context import BATCH

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
            "phase": p.phase,
            "batch": p.batch,
            "seq_len": p.seq_len,
            "channels": p.channels,
            "width": p.width,
            "dtype": p.dtype,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_channels": log2(p.channels),
            "log2_rows": log2(p.batch * p.channels),
            **self.work(p).features(hw),
        }


causal_conv = CausalConv()
