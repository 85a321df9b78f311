"""The kinds of AIConfigurator's tables that have an op here: their columns, and what a row of them means.

Every table also has `framework version device op_name kernel_source` and a time. `kernel_source` names the code path that the
framework took; it is the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from kerncast.core import dtypes
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical
from kerncast.library.registry import FAMILIES

MS = 1e6
Default = int | str | None
Problem = Mapping[str, str | pl.Expr]
"""Parameters: each the column that holds it, or what it is computed from."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table; of whole numbers, unless it is textual."""

    name: str
    default: Default = None
    """What it means that the column or a cell is missing; None: it is needed."""
    textual: bool = False
    only: str = ""
    """The values that are known here, as a regular expression and in words; any, if it is empty."""
    words: str = ""


def whole(name: str, default: Default = None, only: str = "", words: str = "") -> TableColumn:
    """A column of whole numbers."""
    return TableColumn(name, default, False, only, words)


def text(name: str, default: Default = None, only: str = "", words: str = "") -> TableColumn:
    """A column of texts."""
    return TableColumn(name, default, True, only, words)


@dataclass(frozen=True, eq=False)
class KindRows:
    """What the rows of a table, or some of them, become."""

    family_id: str
    problem: Problem
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Parameters that are an element type, each with its column."""
    meant: Mapping[str, str] = field(default_factory=dict)
    """Element types that the table spells in its own way."""
    chosen: pl.Expr | None = None
    """Which rows these are; None: all that no one before it took."""

    @property
    def family(self) -> Family:
        """The family of the rows."""
        return FAMILIES.get(self.family_id)

    def names_of(self, parameter: str) -> list[str]:
        """The labels of a parameter of the problem or the config."""
        rules = {**self.family.problem.parameters, **self.family.config.parameters}
        rule = rules[parameter]
        assert isinstance(rule, Categorical)
        return [label for label, _ in rule.labels]

    def dtype(self, parameter: str, said: str) -> str | None:
        """The element type that a text of the table means, if the family takes it."""
        found = self.meant.get(said) or dtypes.named(said)
        return found if found in self.names_of(parameter) else None


@dataclass(frozen=True)
class Kind:
    """A kind of table: the files called `<name>_perf.parquet`."""

    name: str
    ops: Mapping[str, str]
    """What `op_name` may be, and what that means where rows of one kind are of several."""
    columns: tuple[TableColumn, ...]
    rows: tuple[KindRows, ...]
    framework: str | None = None
    """The program whose `version` it is, where that is not the framework's."""
    unused: tuple[str, ...] = ()
    """Columns that say nothing that other columns do not."""
    time: str = "latency"
    unit: str = "milliseconds"
    unit_ns: float = MS

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which a table is not of this kind."""
        return (*(column.name for column in self.columns if column.default is None), self.time)

    @property
    def known(self) -> tuple[str, ...]:
        """All columns of its own."""
        return (*(column.name for column in self.columns), *self.unused, self.time)


col = pl.col
# 0 key heads: as many as query heads.
_KV_HEADS = pl.when(col("num_key_value_heads") == 0).then(col("num_heads")).otherwise(col("num_key_value_heads"))
_ATTENTION = (
    whole("batch_size"), whole("isl"), whole("num_heads"), whole("num_key_value_heads"), whole("head_dim"),
    whole("window_size", 0), whole("beam_width", 1, "1", "1"), text("attn_dtype"), text("kv_cache_dtype"), whole("step", 0),
)  # fmt: skip
_ATTENTION_DTYPES = {"dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype"}
_HEADS: Problem = {
    "batch": "batch_size",
    "heads": "num_heads",
    "kv_heads": _KV_HEADS,
    "head_dim": "head_dim",
    "window": "window_size",
}
# The heads are those of one GPU already: what they were divided by (tp_size) changes nothing.
_MLA = (text("mla_dtype"), text("kv_cache_dtype"), whole("num_heads"), whole("batch_size"), whole("isl"), whole("step", 0))
_MLA_DTYPES = {"dtype": "mla_dtype", "kv_dtype": "kv_cache_dtype"}
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_MESSAGE: Problem = {"kind": col("op_name"), "elements": "message_size", "gpus": "num_gpus"}
_QUANTIZE = (whole("m"), whole("k"), text("quant_dtype"))
# `power_law_1.2` is 120; the number has at most two decimals.
_POWER_LAW = r"power_law_(\d{1,2}(?:\.\d{1,2})?)"
_IMBALANCE = (
    pl.when(col("distribution") == "balanced").then(0.0).otherwise(col("distribution").str.extract(_POWER_LAW).cast(pl.Float64))
    * 100
).round().cast(pl.Int64)  # fmt: skip


def _library(
    name: str, ops: Mapping[str, str] | str, columns: tuple[TableColumn, ...], op: str, problem: Problem,
    types: Mapping[str, str], framework: str | None = None, unused: tuple[str, ...] = (),
) -> Kind:  # fmt: skip
    """A kind whose rows are all of one op, which has one family, `library`."""
    rows = (KindRows(f"{op}/library", problem, types),)
    return Kind(name, {ops: ""} if isinstance(ops, str) else ops, columns, rows, framework, unused)


def _collective(name: str, dtype: str, framework: str | None, unused: tuple[str, ...] = ()) -> Kind:
    columns = (text(dtype), whole("num_gpus"), whole("message_size"))
    return _library(name, _COLLECTIVES, columns, "collective", _MESSAGE, {"dtype": dtype}, framework, unused)


def _quantize(name: str, part: str) -> Kind:
    problem: Problem = {"M": "m", "K": "k", "part": pl.lit(part)}
    return _library(name, {part: part}, _QUANTIZE, "quantize", problem, {"dtype": "quant_dtype"})


# Rows of linear attention are of two ops, which the code path tells apart: the short convolution, and what follows it.
_IS_CONVOLUTION = col("kernel_source").str.starts_with("causal_conv1d")
_PHASES = ("context|generation|verify", "context, generation or verify")
# Products of these stay far from the largest whole number.
_SIZES = (r"[1-9]\d{0,5}", "from 1 to 999,999")
_HEADS_OF_STATES = {"k_heads": "num_k_heads", "v_heads": "num_v_heads", "k_dim": "head_k_dim", "v_dim": "head_v_dim"}
_GROUPS_OF_STATES = {"k_heads": "n_groups", "v_heads": "nheads", "k_dim": "d_state", "v_dim": "head_dim"}
# The convolution of these was timed with the channels of the queries alone: its times do not change with the heads of values,
# and all channels would move 12 TB/s on an H100, which has 3.4, and 8 TB/s on an A100, which has 2. For so many channels
# TensorRT-LLM's times are those of Mamba 2's table. Later versions may be timed otherwise, so only these are read so.
_QUERIES_ALONE = pl.concat_str(col("framework").str.to_lowercase(), col("version"), separator=" ").is_in(
    ["trtllm 1.3.0rc20", "sglang 0.5.10"]
)
_QUERY_CHANNELS = col("num_k_heads") * col("head_k_dim")
_QKV_CHANNELS = (
    pl.when(_QUERIES_ALONE.fill_null(False)).then(_QUERY_CHANNELS)
    .otherwise(2 * _QUERY_CHANNELS + col("num_v_heads") * col("head_v_dim"))
)  # fmt: skip
_MAMBA_CHANNELS = col("nheads") * col("head_dim") + 2 * col("n_groups") * col("d_state")


def _recurrent(name: str, heads: Mapping[str, str], channels: pl.Expr, unused: tuple[str, ...] = ()) -> Kind:
    """Linear attention. Tables say no element types: bf16, and states in fp32, which the bytes per second of decoding fit."""
    columns = (
        text("kernel_source"), text("phase", None, *_PHASES), whole("batch_size"), whole("seq_len"),
        *(whole(column, None, *_SIZES) for column in heads.values()), whole("d_conv", 4),
    )  # fmt: skip
    shared: Problem = {"phase": "phase", "batch": "batch_size", "seq_len": "seq_len", "dtype": pl.lit("bf16")}
    convolution: Problem = {**shared, "channels": channels, "width": "d_conv"}
    states: Problem = {**shared, **heads, "kind": pl.lit(name), "state_dtype": pl.lit("fp32")}
    rows = (
        KindRows("causal_conv/library", convolution, chosen=_IS_CONVOLUTION),
        KindRows("linear_attention/library", states),
    )
    return Kind(name, {name: ""}, columns, rows, unused=("num_tokens", *unused))


# A linear layer keeps its weights as N rows of K.
_PRODUCT: Problem = {"M": "m", "N": "n", "K": "k", "layout": pl.lit("rcr")}
# Weight-only quantisation: bf16 activations, narrow weights.
_WEIGHT_ONLY = {"int8_wo": "int8", "int4_wo": "int4"}
_EXPERTS: Problem = {
    "tokens": "num_tokens",
    "hidden": "hidden_size",
    "inter": "inter_size",
    "top_k": "topk",
    "experts": "num_experts",
    "tp": "moe_tp_size",
    "ep": "moe_ep_size",
    "imbalance": _IMBALANCE,
}
_KINDS = (
    Kind(
        "gemm",
        {"gemm": ""},
        (text("gemm_dtype"), whole("m"), whole("n"), whole("k")),
        (
            KindRows("mixed_mm/library", {**_PRODUCT, "dtype": pl.lit("bf16")}, {"b_dtype": "gemm_dtype"}, _WEIGHT_ONLY,
                      col("gemm_dtype").is_in(list(_WEIGHT_ONLY))),
            # SmoothQuant multiplies int8 by int8.
            KindRows("gemm/library", _PRODUCT, {"dtype": "gemm_dtype"}, {"sq": "int8"}),
        ),
    ),
    _library("context_attention", "context_attention", _ATTENTION, "attention_context",
             {**_HEADS, "seq_len": "isl", "past_len": "step"}, _ATTENTION_DTYPES),
    _library("generation_attention", "generation_attention", _ATTENTION, "attention_generation",
             {**_HEADS, "context_len": col("isl") + col("step")}, _ATTENTION_DTYPES),
    _library("encoder_attention", "encoder_attention",
             (whole("batch_size"), whole("isl"), whole("num_heads"), whole("head_dim"), text("attn_dtype")),
             "attention_encoder", {"batch": "batch_size", "seq_len": "isl", "heads": "num_heads", "head_dim": "head_dim"},
             {"dtype": "attn_dtype"}),
    _library("moe", "moe",
             (text("moe_dtype"), whole("num_tokens"), whole("hidden_size"), whole("inter_size"), whole("topk"),
              whole("num_experts"), whole("moe_tp_size"), whole("moe_ep_size"),
              text("distribution", "balanced", f"balanced|{_POWER_LAW}", "balanced or power_law_X with X up to 99.99")),
             "moe", _EXPERTS, {"dtype": "moe_dtype"}),
    _library("context_mla", "mla_context", _MLA, "mla_context",
             {"batch": "batch_size", "heads": "num_heads", "seq_len": "isl", "past_len": "step"}, _MLA_DTYPES,
             unused=("tp_size",)),
    _library("generation_mla", "mla_generation", _MLA, "mla_generation",
             {"batch": "batch_size", "heads": "num_heads", "context_len": col("isl") + col("step")}, _MLA_DTYPES,
             unused=("tp_size",)),
    _library("mla_bmm", {"mla_gen_pre": "pre", "mla_gen_post": "post"},
             (text("bmm_dtype"), whole("num_tokens"), whole("num_heads")),
             "mla_bmm", {"tokens": "num_tokens", "heads": "num_heads", "stage": col("op_name")}, {"dtype": "bmm_dtype"}),
    _collective("nccl", "nccl_dtype", "NCCL"),
    _collective("oneccl", "nccl_dtype", "oneCCL"),
    # `backend` and `implementation` say again what `kernel_source` says: whose code, eager or in a graph.
    _collective("custom_allreduce", "allreduce_dtype", None, ("backend", "implementation")),
    _quantize("scale_matrix", "scale_matrix"),
    _quantize("computescale", "compute_scale"),
    _recurrent("gdn", _HEADS_OF_STATES, _QKV_CHANNELS),
    _recurrent("kda", _HEADS_OF_STATES, _QKV_CHANNELS),
    # `chunk_size` is how the model's own code cuts a prompt; the convolution is not cut.
    _recurrent("mamba2", _GROUPS_OF_STATES, _MAMBA_CHANNELS, ("chunk_size",)),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _KINDS}
