"""Ops of ttnn, whose parameters are those of its predictor's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kerncast.core.dtypes import bytes_per_element
from kerncast.core.expr import Expr, Namespace, ceil_div, floor_div, log2, maximum, mod, where
from kerncast.core.op import Suite, Work
from kerncast.core.parameters import Bool, Categorical, Int, JsonField, Value
from kerncast.core.space import Constraint
from kerncast.library.ops.ttnn import (
    MEMORY,
    MOST,
    TILE,
    TiledOp,
    TtnnOp,
    memory_parameters,
    one_tensor,
    output_fields,
    padded_tiles,
    shown,
    tensor_fields,
)

HEADS_SHAPE = ("batch", "heads", "seq_len", "head_dim")


class ConcatenateHeads(TiledOp):
    name = "concatenate_heads"
    doc = "[batch, heads, seq_len, head_dim] becomes [batch, 1, seq_len, heads · head_dim], tile by tile"
    parameters = {**{name: Int(1, MOST) for name in HEADS_SHAPE}, **memory_parameters()}
    aliases = {"ttnn.transformer.concatenate_heads": {}}
    json = one_tensor(HEADS_SHAPE)
    split_group = HEADS_SHAPE

    sweeps = {
        "published": "16 to 128 heads of 64 or 128, up to 131,072 tokens and 128 sequences, in DRAM and L1, where they fit"
    }

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.concatenate_heads(axes) if name in self.sweeps else super().sweep(name, axes)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.batch * p.heads * padded_tiles(p.seq_len, p.head_dim)}

    def own_features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # A core takes whole rows of tiles: one row of all heads is contiguous in the output.
        rows = p.batch * ceil_div(p.seq_len, TILE)
        rows_per_core = ceil_div(rows, hw.grid_x * hw.grid_y)
        return {
            "tile_rows": rows,
            "tile_rows_per_core": rows_per_core,
            "row_fill": rows / (rows_per_core * hw.grid_x * hw.grid_y),
            "row_tiles": p.heads * ceil_div(p.head_dim, TILE),
        }


concatenate_heads = ConcatenateHeads()


QKV_SHAPE = ("batch", "dim1", "seq_len", "hidden")


class CreateQkvHeads(TiledOp):
    name = "create_qkv_heads"
    doc = "[batch, 1, seq_len, (heads + 2 · kv_heads) · head_dim] becomes query, key and value heads"
    parameters = {
        "batch": Int(1, MOST, default=1),
        "dim1": Int(1, 1, default=1, doc="the second dimension, always 1"),
        "seq_len": Int(1, MOST),
        "hidden": Int(1, MOST, doc="(heads + 2 · kv_heads) · head_dim"),
        "heads": Int(1, 2**16, doc="query heads"),
        "kv_heads": Int(0, 2**16, default=0, doc="key heads, and value heads; 0: as many as query heads"),
        "transpose_k": Bool(default=False, doc="whether key heads come out transposed"),
        # TTNN takes the tensor in L1, in shards of blocks, and returns shards of heights.
        **memory_parameters(buffer="l1", sharding="block", out_sharding="height"),
    }
    aliases = {"ttnn.experimental.create_qkv_heads": {}}
    json = (
        *one_tensor(QKV_SHAPE),
        JsonField(("num_heads",), ("heads",)),
        JsonField(("num_kv_heads",), ("kv_heads",), same=("heads", 0)),
        JsonField(("transpose_k_heads",), ("transpose_k",)),
    )
    split_group = ("batch", "seq_len", "hidden")

    sweeps = {"published": "16 to 128 query heads and 1 to 128 key heads of 64 or 128, 32 to 131,072 tokens, 1 to 8 sequences"}

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.create_qkv_heads(axes) if name in self.sweeps else super().sweep(name, axes)

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (
            *super().constraints(p),
            Constraint("kv_heads_once", "write kv_heads=0 for as many key heads as query heads", p.kv_heads != p.heads),
            Constraint("whole_heads", "hidden must be a multiple of heads + 2 · kv_heads", mod(p.hidden, p.all_heads) == 0),
        )

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        kv = where(p.kv_heads == 0, p.heads, p.kv_heads)
        return {
            "all_heads": p.heads + 2 * kv,
            "each_kv_heads": kv,
            "head_dim": floor_div(p.hidden, p.heads + 2 * kv),
            "tiles": p.batch * padded_tiles(p.seq_len, p.hidden),
        }

    def sizes(self, p: Namespace) -> Mapping[str, Expr]:
        asked = shown(p, (*self.split_group, "heads"))
        return {**asked, "kv_heads": p.each_kv_heads, **shown(p, ("head_dim", "transpose_k"))}

    def own_features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        head_tiles = ceil_div(p.seq_len, TILE) * ceil_div(p.head_dim, TILE)
        return {
            "group_size": p.heads / p.each_kv_heads,
            "query_tiles": p.batch * p.heads * head_tiles,
            "key_tiles": p.batch * p.each_kv_heads * head_tiles,
            "transposed_tiles": p.transpose_k * p.batch * p.each_kv_heads * head_tiles,
        }


create_qkv_heads = CreateQkvHeads()


FUNCTIONS = {"exp": 0, "relu": 1, "gelu": 2, "sqrt": 3, "sigmoid": 4, "tanh": 5, "log": 6, "sin": 7, "cos": 8, "abs": 9,
             "neg": 10, "square": 11, "rsqrt": 12, "reciprocal": 13, "silu": 14, "erf": 15, "acos": 16, "acosh": 17, "asin": 18,
             "asinh": 19, "atan": 20, "atanh": 21, "cbrt": 22, "ceil": 23, "cosh": 24, "deg2rad": 25, "digamma": 26, "elu": 27,
             "eqz": 28, "erfc": 29, "erfinv": 30, "exp2": 31, "expm1": 32, "floor": 33, "frac": 34, "gez": 35, "gtz": 36,
             "hardshrink": 37, "hardsigmoid": 38, "hardswish": 39, "hardtanh": 40, "i0": 41, "identity": 42, "isfinite": 43,
             "isinf": 44, "isnan": 45, "isneginf": 46, "isposinf": 47, "leaky_relu": 48, "lez": 49, "lgamma": 50, "log10": 51,
             "log1p": 52, "log2": 53, "log_sigmoid": 54, "logical_not": 55, "logit": 56, "ltz": 57, "mish": 58, "nez": 59,
             "rad2deg": 60, "relu6": 61, "selu": 62, "sigmoid_accurate": 63, "sign": 64, "signbit": 65, "sinh": 66,
             "softplus": 67, "softsign": 68, "swish": 69, "tan": 70, "tanhshrink": 71, "trunc": 72}  # fmt: skip
"""Append, never renumber: the codes are part of datasets and models."""
DIMENSIONS = ("dim0", "dim1", "dim2", "dim3")


class EltwiseUnary(TiledOp):
    name = "eltwise_unary"
    doc = "one function of each element of a tensor of up to four dimensions, in 32 × 32 tiles"
    parameters = {
        "func": Categorical(FUNCTIONS, doc="the function"),
        # Right-aligned and padded with 1, so rank 2 and rank 4 of one tensor are one problem.
        "dim0": Int(1, MOST, default=1),
        "dim1": Int(1, MOST, default=1),
        "dim2": Int(1, MOST, default=1),
        "dim3": Int(1, MOST),
        **memory_parameters(),
    }
    aliases = {name: {"func": name} for name in FUNCTIONS} | {f"ttnn.{name}": {"func": name} for name in FUNCTIONS}
    json = one_tensor(DIMENSIONS)
    split_group = DIMENSIONS

    sweeps = {
        "published": "900 random shapes each of two, three and four dimensions, five dtypes, DRAM and L1; func=exp by default"
    }

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.eltwise_unary(axes) if name in self.sweeps else super().sweep(name, axes)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.dim0 * p.dim1 * padded_tiles(p.dim2, p.dim3)}

    def line_size(self, p: Namespace) -> Expr:
        return p.tiles

    line_group = ("func", *MEMORY)

    def sizes(self, p: Namespace) -> Mapping[str, Expr]:
        return shown(p, (*DIMENSIONS, "func"))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {**super().features(p, hw), "bytes": self.work(p).bytes}


eltwise_unary = EltwiseUnary()


class MatmulSharded(TtnnOp):
    name = "matmul_sharded"
    doc = "C[M, N] = A[M, K] · B[K, N], A and C sharded (by height, unless said otherwise) over `num_cores` cores"
    parameters = {
        "M": Int(1, MOST),
        "K": Int(1, MOST),
        "N": Int(1, MOST),
        "num_cores": Int(1, 1024, doc="cores that share the rows of A"),
        "dim0": Int(1, 1, default=1, doc="the first dimension of A and B, always 1"),
        "dim1": Int(1, 1, default=1, doc="the second dimension of A and B, always 1"),
        **memory_parameters("A", "C", dtype="bf16", buffer="l1", sharding="height"),
    }
    json = (
        *tensor_fields("a", ("dim0", "dim1", "M", "K")),
        *tensor_fields("b", ("dim0", "dim1", "K", "N"), memory={"dtype": "dtype"}),
        *output_fields(),
    )
    split_group = ("M", "K", "N")
    # No `work`, on purpose: the rates of a device are the whole card's, but only `num_cores` cores share this product. Learned
    # relative to the roofline of the card, times of 4,155 products are off by 3.8 % instead of 1.8 %.

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "M_tiles": ceil_div(p.M, TILE),
            "K_tiles": ceil_div(p.K, TILE),
            "N_tiles": ceil_div(p.N, TILE),
            "M_tiles_per_core": ceil_div(ceil_div(p.M, TILE), p.num_cores),
        }

    def line_size(self, p: Namespace) -> Expr:
        return p.M_tiles_per_core * p.K_tiles * p.N_tiles

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        per_core = p.M_tiles_per_core * p.K_tiles * p.N_tiles
        return {
            **shown(p, ("M", "K", "N", "num_cores", *MEMORY, "M_tiles_per_core", "K_tiles", "N_tiles")),
            "tile_products_per_core": per_core,
            "log2_tile_products_per_core": log2(per_core),
            "weight_tiles": p.K_tiles * p.N_tiles,
            "output_tiles_per_core": p.M_tiles_per_core * p.N_tiles,
        }


matmul_sharded = MatmulSharded()


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
