"""What AutoHeuristic logs of each name hold: their features and choices as columns of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kerncast.core import dtypes
from kerncast.core.op import Family
from kerncast.data.schema import Status
from kerncast.data.text_table import refuse_cells, whole_numbers
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.inductor_choices import flex_attention_triton, mixed_mm_triton, pad_mm_inductor

DTYPES = dtypes.spelled("torch.float64", "torch.float32", "torch.float16", "torch.bfloat16", "torch.float8_e4m3fn",
                        "torch.float8_e5m2", "torch.int8", "torch.uint8")  # fmt: skip
FLAGS = {"True": True, "False": False}
# The value of `using_tf32` for a product that is not fp32.
NOT_FP32 = "not_float_32"
TILE = r"^type=triton_BLOCK-M=(\d+)_BLOCK-K=(-?\d+)_BLOCK-N=(\d+)_numstages=(\d+)_numwarps=(\d+)$"
TILE_NAMES = ("BLOCK_M", "BLOCK_K", "BLOCK_N", "num_stages", "num_warps")
EXTERN = "extern_"
MATRICES = ("mat1", "mat2")
STRIDES = tuple(f"{matrix}_stride_{axis}" for matrix in MATRICES for axis in (0, 1))
CONTIGUOUS = tuple(f"{matrix}_iscontig" for matrix in MATRICES)
PRODUCT = ("m", "k", "n", "mat1_dtype", *STRIDES)

Columns = dict[str, pl.Series]


@dataclass(frozen=True)
class Format:
    """What a log of one name holds: required features, those that the op can do without, and what they mean."""

    family: Family
    required: Sequence[str]
    optional: Sequence[str]
    read: Callable[[pl.DataFrame], Columns]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that such a log may have."""
        return (*self.required, *self.optional, "choice", "feedback")


def label(table: pl.DataFrame) -> Columns:
    """`time_ns`, `status` and `error`; the log does not say why a choice did not run."""
    times = table["feedback"].cast(pl.Float64, strict=False)
    failed = times == float("inf")
    good = times.is_finite() & (times > 0)
    refuse_cells(table, ~(good.fill_null(False) | failed.fill_null(False)), "feedback", "must be milliseconds, or inf")
    reason = "feedback is inf: the choice could not be launched, the log does not say why"
    return {
        "time_ns": (times * 1e6).set(failed, None),
        "status": pl.select(
            pl.when(failed).then(pl.lit(str(Status.LAUNCH_ERROR))).otherwise(pl.lit(str(Status.OK)))
        ).to_series(),
        "error": pl.select(pl.when(failed).then(pl.lit(reason))).to_series(),
    }


def _translated(
    table: pl.DataFrame, column: str, values: Mapping[str, object], dtype: type[pl.DataType] = pl.String
) -> pl.Series:
    """A column of known words as what they mean."""
    refuse_cells(table, ~table[column].is_in(list(values)), column, f"must be one of {', '.join(values)}")
    return table[column].replace_strict(values, return_dtype=dtype)


def _by_choice(table: pl.DataFrame, parsed: pl.DataFrame) -> Columns:
    """Columns `config.*` of every row, looked up by choice: there are few different choices."""
    joined = table.select("choice").join(parsed, on="choice", how="left", maintain_order="left")
    return {name: joined[name] for name in parsed.columns if name != "choice"}


def _tiles(table: pl.DataFrame) -> pl.DataFrame:
    """The different choices, with the sizes of those that are Triton templates (null for the others)."""
    choices = table["choice"].unique().sort()
    parts = choices.str.extract_groups(TILE).struct.rename_fields(list(TILE_NAMES)).struct.unnest()
    return pl.DataFrame({"choice": choices}).hstack(parts.select(pl.all().cast(pl.Int64, strict=False)))


def _template_or_library(table: pl.DataFrame) -> Columns:
    """The config of a matmul template; `extern_…` is a library kernel, and a log may have only one."""
    parsed = _tiles(table)
    library = parsed.filter(pl.col("choice").str.starts_with(EXTERN))["choice"].to_list()
    known = parsed.filter(pl.col("BLOCK_M").is_not_null())["choice"].to_list()
    rule = f"must be {EXTERN}… or type=triton_BLOCK-M=…_BLOCK-K=…_BLOCK-N=…_numstages=…_numwarps=…"
    refuse_cells(table, ~table["choice"].is_in([*known, *library]), "choice", rule)
    if len(library) > 1:
        # Two library kernels would share one config: the one with the most rows is kept.
        counts = (
            table.filter(pl.col("choice").is_in(library))
            .group_by("choice")
            .len()
            .sort("len", "choice", descending=[True, False])
        )
        main, other = counts["choice"][0], counts["choice"][1:].implode()
        refuse_cells(table, table["choice"].is_in(other), "choice", f"is a second library kernel besides {main}")
    kind = pl.when(pl.col("BLOCK_M").is_null()).then(pl.lit("library")).otherwise(pl.lit("triton"))
    return _by_choice(
        table, parsed.with_columns(kind.alias("config.kind")).rename({name: f"config.{name}" for name in TILE_NAMES})
    )


def _storage(table: pl.DataFrame, gaps: bool) -> Columns:
    """`problem.layout` from the strides: a row-major matrix has (columns, 1), a column-major one (1, rows).

    With `gaps` the first of these may be larger, and is then the leading dimension, `problem.lda` or `problem.ldb`.
    """
    letters: list[pl.Series] = []
    leading: Columns = {}
    for matrix, (rows, columns) in zip(MATRICES, (("m", "k"), ("k", "n")), strict=True):
        size = pl.DataFrame({"rows": whole_numbers(table, rows), "columns": whole_numbers(table, columns)})
        outer, inner = (whole_numbers(table, f"{matrix}_stride_{axis}") for axis in (0, 1))
        # The stride along a side of length 1 is never used, so it does not decide.
        letter = size.select(
            pl.when((outer == pl.col("columns")) & (inner == 1)).then(pl.lit("r"))
            .when((outer == 1) & (inner == pl.col("rows"))).then(pl.lit("c"))
            .when((inner == 1) & (pl.col("rows") == 1)).then(pl.lit("r"))
            .when((outer == 1) & (pl.col("columns") == 1)).then(pl.lit("r"))
            .when((outer > pl.col("columns")) & (inner == 1) & gaps).then(pl.lit("R"))
            .when((outer == 1) & (inner > pl.col("rows")) & gaps).then(pl.lit("C"))
        ).to_series()  # fmt: skip
        stored = "stored by rows or by columns" if gaps else "packed"
        refuse_cells(
            table,
            letter.is_null(),
            f"{matrix}_stride_0",
            f"and {matrix}_stride_1 must be those of a {rows} × {columns} matrix that is {stored}",
        )
        found = size.select(pl.when(letter == "R").then(outer).when(letter == "C").then(inner)).to_series()
        if gaps:
            leading[f"problem.ld{'ab'[len(letters)]}"] = found
        letters.append(letter.str.to_lowercase())
    return {"problem.layout": letters[0] + letters[1] + "r", **leading}


def _product(table: pl.DataFrame, gaps: bool = False) -> Columns:
    """The problem parameters that mm, mixed_mm and pad_mm share; only mm has leading dimensions (`gaps`)."""
    sizes = {f"problem.{name.upper()}": whole_numbers(table, name) for name in ("m", "n", "k")}
    for name in CONTIGUOUS:
        if name in table.columns:  # follows from the strides; any other word means damage
            _translated(table, name, FLAGS, pl.Boolean)
    return {**sizes, "problem.dtype": _translated(table, "mat1_dtype", DTYPES), **_storage(table, gaps)}


def _same_dtypes(table: pl.DataFrame) -> None:
    if "mat2_dtype" in table.columns:
        refuse_cells(table, table["mat2_dtype"] != table["mat1_dtype"], "mat2_dtype", "must be the type of mat1")


def _tf32(table: pl.DataFrame) -> Columns:
    """Whether fp32 may be computed as TF32; never for other types."""
    if "using_tf32" not in table.columns:
        return {}
    flag = _translated(table, "using_tf32", {**FLAGS, NOT_FP32: False}, pl.Boolean)
    bad = (table["mat1_dtype"] == "torch.float32") == (table["using_tf32"] == NOT_FP32)
    refuse_cells(table, bad, "using_tf32", f"must be True or False for torch.float32 and {NOT_FP32} for other types")
    return {"problem.tf32": flag}


def _mm(table: pl.DataFrame) -> Columns:
    _same_dtypes(table)
    return {**_product(table, gaps=True), **_tf32(table), **_template_or_library(table)}


def _mixed_mm(table: pl.DataFrame) -> Columns:
    return {**_product(table), "problem.b_dtype": _translated(table, "mat2_dtype", DTYPES), **_template_or_library(table)}


def _pad_mm(table: pl.DataFrame) -> Columns:
    _same_dtypes(table)
    if "mat2_align_size" in table.columns:
        first, second = whole_numbers(table, "mat1_align_size"), whole_numbers(table, "mat2_align_size")
        refuse_cells(table, first != second, "mat2_align_size", "must be that of mat1")
    return {
        **_product(table),
        **{f"problem.pad_{name}": whole_numbers(table, f"{name}_padded_length") for name in ("m", "n", "k")},
        "problem.align": whole_numbers(table, "mat1_align_size"),
        "problem.a_prepadded": _translated(table, "prepadded_mat1", FLAGS, pl.Boolean),
        "problem.b_prepadded": _translated(table, "prepadded_mat2", FLAGS, pl.Boolean),
        **_tf32(table),
        "config.choice": _translated(table, "choice", {"orig": "orig", "pad": "pad"}),
    }


FLEX = {"b": "batch", "h": "heads", "m": "q_len", "n": "head_dim", "kv_seq_length": "kv_len",
        "subgraph_num_nodes": "mod_nodes", "subgraph_num_args_used": "mod_args"}  # fmt: skip
Q_STRIDES = tuple(f"q_stride_{axis}" for axis in range(4))


def _flex_attention(table: pl.DataFrame) -> Columns:
    problem = {f"problem.{target}": whole_numbers(table, name) for name, target in FLEX.items()}
    parsed = _tiles(table).filter(pl.col("BLOCK_K") == -1).drop("BLOCK_K")
    rule = "must be type=triton_BLOCK-M=…_BLOCK-K=-1_BLOCK-N=…_numstages=…_numwarps=…"
    refuse_cells(table, ~table["choice"].is_in(parsed["choice"].to_list()), "choice", rule)
    config = _by_choice(table, parsed.rename({name: f"config.{name}" for name in TILE_NAMES if name != "BLOCK_K"}))
    dtype = _translated(table, "dtype", DTYPES)
    return {**problem, "problem.dtype": dtype, "problem.q_layout": _query_layout(table), **config}


def _query_layout(table: pl.DataFrame) -> pl.Series:
    """The order of Q's axes from its strides; the stride of an axis of length 1 is ignored."""
    numbers = table.select(whole_numbers(table, name).alias(name) for name in (*"bhmn", *Q_STRIDES))
    b, h, m, n = (pl.col(name) for name in "bhmn")
    orders = {"bhmd": (h * m * n, m * n, n), "bmhd": (h * m * n, n, h * n)}
    matches = pl.coalesce(
        pl.when(
            *(
                (size == 1) | (pl.col(stride) == wanted)
                for size, stride, wanted in zip((b, h, m), Q_STRIDES, strides, strict=False)
            ),
            (n == 1) | (pl.col(Q_STRIDES[3]) == 1),
        ).then(pl.lit(label))
        for label, strides in orders.items()
    )
    layout = numbers.select(matches).to_series()
    refuse_cells(
        table, layout.is_null(), Q_STRIDES[0], f"and the next three must be those of a packed Q ({' or '.join(orders)})"
    )
    return layout


FORMATS = {
    "mm": Format(triton, PRODUCT, ("mat2_dtype", "using_tf32", *CONTIGUOUS), _mm),
    "mixed_mm": Format(mixed_mm_triton, (*PRODUCT, "mat2_dtype"), CONTIGUOUS, _mixed_mm),
    "flex_attention": Format(flex_attention_triton, (*FLEX, "dtype", *Q_STRIDES), (), _flex_attention),
    "pad_mm": Format(
        pad_mm_inductor,
        (
            *PRODUCT, "m_padded_length", "k_padded_length", "n_padded_length", "mat1_align_size", "prepadded_mat1",
            "prepadded_mat2",
        ),
        ("mat2_dtype", "mat2_align_size", "using_tf32", *CONTIGUOUS),
        _pad_mm,
    ),
}  # fmt: skip
