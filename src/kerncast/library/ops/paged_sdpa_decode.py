"""One step of attention over a paged key-value cache (TTNN's paged scaled dot-product attention, decode)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kerncast.core.dtypes import bytes_per_element
from kerncast.core.expr import Expr, Namespace, ceil_div, log2, maximum, mod
from kerncast.core.op import Suite, Work
from kerncast.core.parameters import Bool, Categorical, Int, JsonField, Value
from kerncast.core.space import Constraint
from kerncast.library.ops.ttnn import (
    MEMORY,
    MOST,
    TILE,
    TtnnOp,
    memory_parameters,
    output_fields,
    padded_tiles,
    shown,
    tensor_fields,
)

FIDELITIES = {"lofi": 0, "hifi2": 2, "hifi3": 3, "hifi4": 4}
FIDELITY_NAMES = {"LoFi": "lofi", "HiFi2": "hifi2", "HiFi3": "hifi3", "HiFi4": "hifi4"}


def _fidelity_spellings() -> tuple[tuple[str | int, str], ...]:
    names = [(spelled, label) for name, label in FIDELITY_NAMES.items() for spelled in (name, f"MathFidelity.{name}")]
    return (*names, *((code, label) for label, code in FIDELITIES.items()))


class PagedSdpaDecode(TtnnOp):
    name = "paged_sdpa_decode"
    doc = "attention of one new token per sequence over keys and values stored in pages"
    parameters = {
        "q_dim0": Int(1, 1, default=1, doc="the first dimension of the query, always 1"),
        "batch": Int(1, 2**16, doc="sequences"),
        "heads": Int(1, 2**16, doc="query heads"),
        "head_dim": Int(1, 2**16),
        "blocks": Int(1, MOST, doc="blocks of the cache, of all sequences"),
        "kv_heads": Int(1, 2**16, doc="key heads, and value heads"),
        "block_size": Int(1, MOST, doc="tokens in a block"),
        "pages": Int(1, MOST, doc="columns of the page table: blocks that a sequence may have"),
        "is_causal": Bool(default=True),
        "cur_pos": Bool(default=False, doc="whether a tensor gives the position of each sequence"),
        "mask": Bool(default=False, doc="whether there is an attention mask"),
        "mask_len": Int(1, MOST, doc="keys that the mask covers", when=lambda p: p.mask == 1),
        "program_config": Bool(default=False, doc="whether the caller chooses the chunks"),
        "q_chunk": Int(0, 2**16, when=lambda p: p.program_config == 1),
        "k_chunk": Int(0, 2**16, when=lambda p: p.program_config == 1),
        "exp_approx": Bool(default=False, doc="approximate exp", when=lambda p: p.program_config == 1),
        "compute_config": Bool(default=False, doc="whether the caller chooses the arithmetic"),
        "math_fidelity": Categorical(FIDELITIES, when=lambda p: p.compute_config == 1),
        "math_approx": Bool(when=lambda p: p.compute_config == 1),
        "fp32_accumulate": Bool(when=lambda p: p.compute_config == 1),
        "packer_l1": Bool(when=lambda p: p.compute_config == 1),
        **memory_parameters(),
    }  # fmt: skip
    aliases = {
        "paged_scaled_dot_product_attention_decode": {},
        "ttnn.transformer.paged_scaled_dot_product_attention_decode": {},
    }
    json = (
        *tensor_fields("q", ("q_dim0", "batch", "heads", "head_dim")),
        # Keys and values have the same shape, and the same dtype as the query; they are in DRAM.
        *(field for at in ("k", "v") for field in tensor_fields(
            at, ("blocks", "kv_heads", "block_size", "head_dim"), memory={"dtype": "dtype"})),
        # Given with rank 2 and rank 1, or with rank 4 and leading dimensions of 1, like the first dimension of the query.
        *tensor_fields("page_table", ("q_dim0", "q_dim0", "batch", "pages"), memory={}),
        JsonField(("cur_pos",), ("cur_pos",), present=True),
        *tensor_fields("cur_pos", ("q_dim0", "q_dim0", "q_dim0", "batch"), memory={}),
        JsonField(("attn_mask",), ("mask",), present=True),
        *tensor_fields("attn_mask", ("batch", "q_dim0", "heads", "mask_len"), memory={}),
        JsonField(("scale",)),
        JsonField(("program_config",), ("program_config",), present=True),
        JsonField(("program_config.q_chunk_size",), ("q_chunk",)),
        JsonField(("program_config.k_chunk_size",), ("k_chunk",)),
        JsonField(("program_config.exp_approx_mode",), ("exp_approx",)),
        # The grid that the caller allows: measurements used the whole one.
        JsonField(("program_config.compute_with_storage_grid_size",)),
        JsonField(("compute_config",), ("compute_config",), present=True),
        JsonField(("compute_config.math_fidelity",), ("math_fidelity",), _fidelity_spellings()),
        JsonField(("compute_config.math_approx_mode",), ("math_approx",)),
        JsonField(("compute_config.fp32_dest_acc_en",), ("fp32_accumulate",)),
        JsonField(("compute_config.packer_l1_acc",), ("packer_l1",)),
        *output_fields(),
    )  # fmt: skip
    split_group = ("batch", "heads", "head_dim", "blocks", "kv_heads", "block_size", "pages")

    sweeps = {"published": "1,000 shapes with caches of 32 to 4,096 tokens, every choice of memory, chunks and arithmetic"}

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.paged_sdpa_decode(axes) if name in self.sweeps else super().sweep(name, axes)

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (
            *super().constraints(p),
            Constraint("mask_or_causal", "a mask needs is_causal=false", (p.mask == 0) | (p.is_causal == 0)),
            Constraint("grouped_heads", "heads must be a multiple of kv_heads", mod(p.heads, p.kv_heads) == 0),
        )

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"kv_len": p.pages * p.block_size}

    def work(self, p: Namespace) -> Work:
        """Every key of every page with every query head; the cache is read once."""
        return Work(
            flops=4 * p.batch * p.heads * p.kv_len * p.head_dim,
            bytes=(2 * p.batch * p.kv_heads * p.kv_len * p.head_dim + 2 * p.batch * p.heads * p.head_dim)
            * bytes_per_element(p.dtype),
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        cores = hw.grid_x * hw.grid_y
        key_tiles = p.batch * p.kv_heads * padded_tiles(p.kv_len, p.head_dim)
        head_tiles, chunk_tiles = ceil_div(p.heads, TILE), maximum(1, ceil_div(p.k_chunk, TILE))
        chosen = ("batch", "heads", "head_dim", "blocks", "kv_heads", "block_size", "pages", "is_causal", "cur_pos", "mask",
                  "program_config", "q_chunk", "k_chunk", "exp_approx", "compute_config", "math_fidelity", "math_approx",
                  "fp32_accumulate", "packer_l1")  # fmt: skip
        return {
            **shown(p, (*chosen, *MEMORY)),
            "keys": p.kv_len,
            "log2_keys": log2(p.kv_len),
            "key_tiles": key_tiles,
            "log2_key_tiles": log2(key_tiles),
            "key_tiles_per_core": ceil_div(key_tiles, cores),
            "query_tiles": p.batch * head_tiles * ceil_div(p.head_dim, TILE),
            "score_tiles": p.batch * head_tiles * ceil_div(p.kv_len, TILE),
            "chunks": ceil_div(ceil_div(p.kv_len, TILE), chunk_tiles),
            # The keys of a sequence are spread over this many cores, which combine their results at the end.
            "cores_per_sequence": cores / p.batch,
            "group_size": p.heads / p.kv_heads,
            "mask_tiles": p.mask * p.batch * padded_tiles(p.heads, p.mask_len),
            "cache_bytes": self.work(p).bytes,
        }


paged_sdpa_decode = PagedSdpaDecode()
