"""The calls of one step on one GPU: what each kind of layer runs, with the shapes that tensor and expert parallelism leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kerncast.core import dtypes
from kerncast.estimating.calls import KernelCall, collective, experts, gemm, pairs, passing, quantise
from kerncast.estimating.decoder import (
    Decoder,
    DeltaAttention,
    DenseMlp,
    Deployment,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Workload,
)

# Servers keep states in 32 bits.
STATE_TYPE = "fp32"
# A decay and a share of the new value, per token and head.
GATES = 2


def _step(sequences: int, work: Workload) -> dict[str, int | str]:
    phase = "context" if work.phase == "prefill" else "generation"
    return {"phase": phase, "batch": sequences, "seq_len": work.tokens_per_sequence}


def convolution(attention: DeltaAttention, count: int, sequences: int, work: Workload, tp: int, dtype: str) -> KernelCall:
    """The short convolution of queries, keys and values."""
    channels, width = attention.channels // tp, attention.width
    tokens = sequences * work.tokens_per_sequence
    problem = {**_step(sequences, work), "channels": channels, "width": width, "dtype": dtype}
    moved = 2.0 * (tokens + sequences * (width - 1)) * channels * dtypes.BYTES[dtype]
    flops = 2.0 * tokens * channels * width
    weights = channels * width
    return KernelCall("convolution", "causal_conv", problem, count, flops, moved, dtype, weights=weights, weight_format=dtype)


def linear_attention(attention: DeltaAttention, count: int, sequences: int, work: Workload, tp: int, dtype: str) -> KernelCall:
    """What reads and corrects the states."""
    k_heads, v_heads = attention.heads // tp, attention.value_heads // tp
    k_dim, v_dim = attention.key_dim, attention.value_dim
    tokens, states = sequences * work.tokens_per_sequence, sequences * v_heads * k_dim * v_dim
    problem = {
        **_step(sequences, work), "kind": "gdn", "k_heads": k_heads, "v_heads": v_heads, "k_dim": k_dim, "v_dim": v_dim,
        "dtype": dtype, "state_dtype": STATE_TYPE,
    }  # fmt: skip
    per_token = 2 * k_heads * k_dim + v_heads * (2 * v_dim + GATES)
    moved = tokens * per_token * dtypes.BYTES[dtype] + 2.0 * states * dtypes.BYTES[STATE_TYPE]
    flops = 6.0 * work.tokens_per_sequence * states
    return KernelCall("linear attention", "linear_attention", problem, count, flops, moved, dtype)


def state_bytes(attention: DeltaAttention, tp: int, element: float) -> float:
    """What one sequence keeps in one layer: its states, and the last tokens that the convolution sees."""
    states = attention.value_heads // tp * attention.key_dim * attention.value_dim * dtypes.BYTES[STATE_TYPE]
    return states + (attention.width - 1) * (attention.channels // tp) * element


# What the models of `mla_*` were measured with: latent vector, part with positions, queries and keys without, values.
MLA_DIMS = (512, 64, 128, 128)
# Products whose kernel does not quantise its input itself, as measured.
QUANTISED_BEFORE = ("fp8", "int8")
ROUTER_BYTES = 4
"""Routers compute in 32 bits."""


def calls_of(decoder: Decoder, spread: Deployment, work: Workload, imbalance: int = 0) -> tuple[KernelCall, ...]:
    """All calls of a step, those of one shape together, in the order in which they first run."""
    step = _Step(decoder, spread, work, imbalance)
    found: dict[tuple[object, ...], KernelCall] = {}
    for call in step.calls():
        key = (call.name, call.op, tuple(sorted(call.problem.items())), call.dtype)
        before = found.get(key)
        found[key] = call if before is None else replace(before, count=before.count + call.count)
    return tuple(found.values())


@dataclass(frozen=True)
class _Step:
    """Lists the calls of one step."""

    decoder: Decoder
    spread: Deployment
    work: Workload
    imbalance: int

    @property
    def sequences(self) -> int:
        """Sequences of one copy, the one with most of them."""
        return -(-self.work.batch // self.spread.copies)

    @property
    def tokens(self) -> int:
        """Tokens that one copy computes."""
        return self.sequences * self.work.tokens_per_sequence

    @property
    def activations(self) -> str:
        return self.decoder.formats.activations

    @property
    def element(self) -> float:
        return dtypes.BYTES[self.activations]

    def calls(self) -> Iterator[KernelCall]:
        hidden, tp = self.decoder.hidden, self.spread.tp
        vocab = -(-self.decoder.vocab // tp)
        yield replace(
            self._passing("embedding", 1, 2 * self.tokens * hidden, tokens=self.tokens, hidden=hidden), weights=vocab * hidden
        )
        yield from self._all_reduce("all_reduce of the embedding", 1, self.tokens)
        for kind in self.decoder.layers:
            yield from self._layer(kind)
        yield self._norm("final norm", 1, self.sequences)
        # Of a prompt, only the last token's logits are needed.
        head = gemm("lm_head", 1, self.sequences, vocab, hidden, self.activations, self.activations)
        yield replace(head, weights=0) if self.decoder.tied else head
        if tp > 1:
            yield collective("all_gather of the logits", 1, "all_gather", self.sequences * vocab * tp, tp, self.activations)

    def _layer(self, kind: LayerKind) -> Iterator[KernelCall]:
        count = kind.count
        yield self._norm("norm", self.decoder.norms_per_layer * count, self.tokens)
        if isinstance(kind.attention, GroupedAttention):
            yield from self._grouped(kind.attention, count)
        elif isinstance(kind.attention, DeltaAttention):
            yield from self._delta(kind.attention, count)
        else:
            yield from self._latent(kind.attention, count)
        yield from self._all_reduce("all_reduce after attention", count, self.tokens)
        if isinstance(kind.mlp, DenseMlp):
            yield from self._dense(kind.mlp, count, "")
            yield from self._all_reduce("all_reduce after the MLP", count, self.tokens)
        else:
            yield from self._experts(kind.mlp, count)

    # -- attention -----------------------------------------------------------------------------------------------

    def _grouped(self, attention: GroupedAttention, count: int) -> Iterator[KernelCall]:
        hidden, tokens, form = self.decoder.hidden, self.tokens, self.decoder.formats.attention
        heads = attention.heads // self.spread.tp
        kv_heads = max(1, attention.kv_heads // self.spread.tp)
        both = attention.head_dim + attention.value_dim
        yield from self._quantised("qkv", count, form)
        queries = heads * (attention.head_dim + attention.gate_dim)
        yield gemm("qkv", count, tokens, queries + kv_heads * both, hidden, form, self.activations)
        turned = tokens * (heads + kv_heads) * attention.head_dim
        if attention.qk_norm:
            yield self._passing("norm of q and k", count, 2 * turned, tokens=tokens, heads=heads + kv_heads)
        cached = tokens * kv_heads * both
        kept = cached * (self.element + dtypes.BYTES[self.decoder.formats.cache])
        call = self._passing("rope and cache", count, 2 * turned, tokens=tokens, heads=heads + kv_heads)
        yield replace(call, bytes=call.bytes + kept)
        yield self._grouped_attention(attention, count, heads, kv_heads)
        if attention.output_gate:
            yield self._passing("gate of attention", count, 3 * tokens * heads * attention.gate_dim, tokens=tokens, heads=heads)
        yield gemm("o", count, tokens, hidden, heads * attention.value_dim, form, self.activations)

    def _grouped_attention(self, attention: GroupedAttention, count: int, heads: int, kv_heads: int) -> KernelCall:
        work, batch, both = self.work, self.sequences, attention.head_dim + attention.value_dim
        cache = dtypes.BYTES[self.decoder.formats.cache]
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": attention.head_dim, "window": attention.window,
                 "dtype": self.activations, "kv_dtype": self.decoder.formats.cache}  # fmt: skip
        moved = batch * work.tokens_per_sequence * heads * both * self.element
        if work.phase == "prefill":
            op = "attention_context"
            problem = {"batch": batch, "seq_len": work.new_tokens, "past_len": work.past, **shape}
            read = pairs(work.new_tokens, work.past, attention.window)
            past = min(work.past, attention.window - 1) if attention.window else work.past
            moved += self.tokens * kv_heads * both * self.element + batch * kv_heads * both * cache * (work.new_tokens + past)
        else:
            op, problem = "attention_generation", {"batch": batch, "context_len": work.length, **shape}
            read = float(min(work.length, attention.window) if attention.window else work.length)
            moved += batch * kv_heads * read * both * cache
        known = op if attention.value_dim == attention.head_dim else None
        name = f"attention, window {attention.window}" if attention.window else "attention"
        if known is None:
            problem |= {"value_dim": attention.value_dim}
        return KernelCall(name, known, problem, count, 2.0 * batch * heads * read * both, moved, self.activations)

    def _delta(self, attention: DeltaAttention, count: int) -> Iterator[KernelCall]:
        hidden, tokens, form, tp = self.decoder.hidden, self.tokens, self.decoder.formats.attention, self.spread.tp
        channels, heads = attention.channels // tp, attention.value_heads // tp
        values = heads * attention.value_dim
        yield from self._quantised("linear attention", count, form)
        yield gemm("q, k, v and gate", count, tokens, channels + values, hidden, form, self.activations)
        # Narrow, and not quantised in published checkpoints.
        yield gemm("gates of the state", count, tokens, 2 * heads, hidden, self.activations, self.activations)
        yield convolution(attention, count, self.sequences, self.work, tp, self.activations)
        yield linear_attention(attention, count, self.sequences, self.work, tp, self.activations)
        yield self._passing("gated norm", count, 3 * tokens * values, tokens=tokens, heads=heads)
        yield gemm("o of linear attention", count, tokens, hidden, values, form, self.activations)

    def _latent(self, attention: LatentAttention, count: int) -> Iterator[KernelCall]:
        hidden, tokens, form, own = self.decoder.hidden, self.tokens, self.decoder.formats.attention, self.activations
        heads = attention.heads // self.spread.tp
        query = heads * attention.query_dim
        yield from self._quantised("latent vectors", count, form)
        # The latent vectors are computed on every GPU: they are what the heads share.
        if attention.q_rank:
            yield gemm("q and kv, down", count, tokens, attention.q_rank + attention.cached_dim, hidden, form, own)
            yield self._passing("norm of q and kv", count, 2 * tokens * (attention.q_rank + attention.kv_rank), tokens=tokens)
            yield gemm("q, up", count, tokens, query, attention.q_rank, form, own)
        else:
            yield gemm("q", count, tokens, query, hidden, form, own)
            yield gemm("kv, down", count, tokens, attention.cached_dim, hidden, form, own)
            yield self._passing("norm of kv", count, 2 * tokens * attention.kv_rank, tokens=tokens)
        turned = tokens * (heads + 1) * attention.rope_dim
        kept = tokens * attention.cached_dim * (self.element + dtypes.BYTES[self.decoder.formats.cache])
        call = self._passing("rope and cache", count, 2 * turned, tokens=tokens, heads=heads)
        yield replace(call, bytes=call.bytes + kept)
        if self.work.phase == "prefill":
            keys = self.sequences * self.work.context
            expanded = heads * (attention.nope_dim + attention.value_dim)
            yield gemm("kv, up", count, keys, expanded, attention.kv_rank, form, own)
            yield self._latent_context(attention, count, heads)
        else:
            # The projections of keys and values are absorbed into the queries and the result.
            yield self._absorbed("queries into the latent space", "pre", attention, count, heads)
            yield self._latent_generation(attention, count, heads)
            yield self._absorbed("result out of the latent space", "post", attention, count, heads)
        yield gemm("o", count, tokens, hidden, heads * attention.value_dim, form, own)

    def _known(self, attention: LatentAttention) -> bool:
        return (attention.kv_rank, attention.rope_dim, attention.nope_dim, attention.value_dim) == MLA_DIMS

    def _sizes(self, attention: LatentAttention) -> dict[str, int]:
        """What a call has beyond the parameters of the op, if its sizes are others."""
        if self._known(attention):
            return {}
        return {
            "kv_rank": attention.kv_rank,
            "rope": attention.rope_dim,
            "nope": attention.nope_dim,
            "value": attention.value_dim,
        }

    def _latent_context(self, attention: LatentAttention, count: int, heads: int) -> KernelCall:
        work, batch = self.work, self.sequences
        both = attention.query_dim + attention.value_dim
        keys = batch * work.context
        moved = heads * (self.tokens + keys) * both * self.element
        moved += keys * attention.cached_dim * dtypes.BYTES[self.decoder.formats.cache]
        problem = {"batch": batch, "seq_len": work.new_tokens, "past_len": work.past, "heads": heads, "dtype": self.activations,
                   "kv_dtype": self.decoder.formats.cache, **self._sizes(attention)}  # fmt: skip
        flops = 2.0 * batch * heads * pairs(work.new_tokens, work.past, 0) * both
        op = "mla_context" if self._known(attention) else None
        return KernelCall("latent attention", op, problem, count, flops, moved, self.activations)

    def _latent_generation(self, attention: LatentAttention, count: int, heads: int) -> KernelCall:
        batch, length = self.sequences, self.work.length
        read = attention.cached_dim + attention.kv_rank
        moved = batch * length * attention.cached_dim * dtypes.BYTES[self.decoder.formats.cache]
        moved += batch * heads * read * self.element
        problem = {"batch": batch, "context_len": length, "heads": heads, "dtype": self.activations,
                   "kv_dtype": self.decoder.formats.cache, **self._sizes(attention)}  # fmt: skip
        op = "mla_generation" if self._known(attention) else None
        return KernelCall("latent attention", op, problem, count, 2.0 * batch * heads * length * read, moved, self.activations)

    def _absorbed(self, name: str, stage: str, attention: LatentAttention, count: int, heads: int) -> KernelCall:
        narrow = attention.nope_dim if stage == "pre" else attention.value_dim
        product = gemm(name, count, self.tokens, attention.kv_rank, narrow, self.activations, self.activations)
        problem = {"tokens": self.tokens, "heads": heads, "stage": stage, "dtype": self.activations, **self._sizes(attention)}
        return replace(
            product,
            op="mla_bmm" if self._known(attention) else None,
            problem=problem,
            flops=product.flops * heads,
            bytes=product.bytes * heads,
            weights=product.weights * heads,
        )

    # -- feed-forward --------------------------------------------------------------------------------------------

    def _dense(self, mlp: DenseMlp, count: int, of: str) -> Iterator[KernelCall]:
        hidden, tokens, form = self.decoder.hidden, self.tokens, self.decoder.formats.mlp
        inter = mlp.inter // self.spread.tp
        columns = mlp.up_columns // self.spread.tp
        yield from self._quantised(f"the MLP{of}", count, form)
        yield gemm(f"{'gate and up' if mlp.gated else 'up'}{of}", count, tokens, columns, hidden, form, self.activations)
        yield self._passing(f"activation{of}", count, tokens * (columns + inter), tokens=tokens, inter=inter)
        yield gemm(f"down{of}", count, tokens, hidden, inter, form, self.activations)

    def _experts(self, mlp: ExpertMlp, count: int) -> Iterator[KernelCall]:
        hidden, spread, tokens = self.decoder.hidden, self.spread, self.tokens
        yield gemm("router", count, tokens, mlp.experts, hidden, self.activations, self.activations)
        chosen = tokens * (mlp.experts + 2 * mlp.top_k) * ROUTER_BYTES / self.element
        yield self._passing("choice of experts", count, chosen, tokens=tokens, experts=mlp.experts, top_k=mlp.top_k)
        # Each token goes to each GPU at most once, from the GPU of its copy that has it.
        sent = -(-tokens // spread.tp) * min(mlp.top_k, spread.ep) * hidden
        if spread.copies > 1:
            yield collective("all_to_all to the experts", count, "all_to_all", sent, spread.gpus, self.activations)
        everywhere = self.work.batch * self.work.tokens_per_sequence
        yield experts(
            "experts", count, everywhere, hidden, mlp.inter, mlp.top_k, mlp.experts, spread.expert_tp, spread.ep,
            self.decoder.formats.experts, self.imbalance, self.activations,
        )  # fmt: skip
        if spread.copies > 1:
            yield collective("all_to_all from the experts", count, "all_to_all", sent, spread.gpus, self.activations)
        if mlp.shared is not None:
            yield from self._dense(mlp.shared, count, " of shared experts")
            yield self._passing("sum of shared and other experts", count, 3 * tokens * hidden, tokens=tokens, hidden=hidden)
        yield from self._all_reduce("all_reduce after the experts", count, tokens)

    # -- what moves data -----------------------------------------------------------------------------------------

    def _norm(self, name: str, count: int, tokens: int) -> KernelCall:
        """Adds what the layer computed to what it was given, and normalises the sum: two matrices in, two out."""
        hidden = self.decoder.hidden
        call = self._passing(name, count, 4 * tokens * hidden, tokens=tokens, hidden=hidden)
        return replace(call, weights=hidden)

    def _quantised(self, before: str, count: int, form: str) -> Iterator[KernelCall]:
        """The tokens in 8 bits. The kernels of attention and activations write theirs so, and are not followed by one."""
        if form not in QUANTISED_BEFORE:
            return
        if self.decoder.formats.dynamic:
            yield quantise(f"scale for {before}", count, self.tokens, self.decoder.hidden, form, "compute_scale")
        yield quantise(f"quantise for {before}", count, self.tokens, self.decoder.hidden, form, "scale_matrix")

    def _passing(self, name: str, count: int, elements: float, **shape: int) -> KernelCall:
        return passing(name, count, elements * self.element, self.activations, shape)

    def _all_reduce(self, name: str, count: int, tokens: int) -> Iterator[KernelCall]:
        if self.spread.tp > 1:
            elements = tokens * self.decoder.hidden
            yield collective(name, count, "all_reduce", elements, self.spread.tp, self.activations)
