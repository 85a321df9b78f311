"""Tables of Tenstorrent's op runtime predictor: one-hot dtype and memory columns, left-aligned shapes.

The layouts are known by their columns: a unary op (`input_shape_1` … `input_shape_4`, flags, `kernel_duration`),
concatenate_heads (the same with flags for the output's memory), create_qkv_heads (with `num_heads`, `num_kv_heads` and
`transpose_k_heads`), paged_sdpa_decode (`q_shape_1` …) and a height-sharded matmul (`m_size`, `k_size`, `n_size`,
`num_cores`, `duration`).
https://github.com/tenstorrent/ttnn-op-runtime-predictor
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from kerncast.core import dtypes
from kerncast.core.op import Family
from kerncast.data.importers import Head, Imported, Importer, Options, extra_columns
from kerncast.data.importers import ttnn_csv_paged as paged
from kerncast.data.text_table import LINE, fold_one_hot, numbers, read_csv_text, refuse_cells, respelled, whole_numbers
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.single import (
    concatenate_heads_single,
    create_qkv_heads_single,
    eltwise_unary_single,
    matmul_sharded_single,
    paged_sdpa_decode_single,
)
from kerncast.library.ops.concatenate_heads import SHAPE as HEADS
from kerncast.library.ops.create_qkv_heads import SHAPE as QKV
from kerncast.library.ops.eltwise_unary import DIMENSIONS
from kerncast.library.ops.ttnn import INPUT

SHAPE = tuple(f"input_shape_{i}" for i in range(1, 5))
# TTNN's bfloat8_b is block floating point, not E5M2.
DTYPES = dtypes.spelled("bfloat16", "bfloat8", "bfloat4", "float32", "uint8", "uint16", "uint32", "int32")
BUFFERS = {"input_DRAM": "dram", "input_L1": "l1", "INPUTBUFFER0": "dram", "INPUTBUFFER1": "l1"}
OUT_BUFFERS = {"output_DRAM": "dram", "output_L1": "l1"}
MATMUL = {"m_size": "problem.M", "k_size": "problem.K", "n_size": "problem.N", "num_cores": "problem.num_cores"}
MATMUL_COLUMNS = (*MATMUL, "duration")
QKV_HEADS = ("num_heads", "num_kv_heads", "transpose_k_heads")
TENSOR_COLUMNS = (*SHAPE, *DTYPES, *BUFFERS, *OUT_BUFFERS, *QKV_HEADS, "kernel_duration")


class TtnnCsv(Importer):
    """CSV files of the TTNN op runtime predictor."""

    name = "ttnn-csv"
    doc = (
        "CSV tables of the TTNN op runtime predictor (unary ops, concatenate_heads, create_qkv_heads, paged attention, "
        "height-sharded matmul); "
        "`constants` func=exp for a unary op"
    )

    def recognises(self, head: Head) -> bool:
        known = ({*MATMUL, "duration"}, {*SHAPE, "kernel_duration"}, {*paged.REQUIRED})
        return any(head.header >= columns for columns in known)

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        table = respelled(read_csv_text(path, options.skips), (*MATMUL_COLUMNS, *TENSOR_COLUMNS, *paged.COLUMNS))
        columns = set(table.columns) - {LINE}
        if columns & {*paged.SHAPES}:
            _refuse_settings(options, set())
            _require(columns, paged.REQUIRED)
            yield options.skips.convert(
                table,
                lambda rows: Imported(paged_sdpa_decode_single, paged.rows_of(rows), extra=extra_columns(rows, paged.COLUMNS)),
            )
            return
        if not columns & {*MATMUL, *SHAPE}:
            raise BadFile(
                f"line 1: these are not the columns of a known TTNN table: {', '.join(sorted(columns))}; expected "
                f"{', '.join(MATMUL_COLUMNS)} or {', '.join(SHAPE)} (or q_shape_1 …), dtype and memory flags, kernel_duration"
            )
        if len(columns & set(MATMUL_COLUMNS)) > len(columns & set(TENSOR_COLUMNS)):
            _refuse_settings(options, set())
            _require(columns, MATMUL_COLUMNS)
            yield options.skips.convert(
                table,
                lambda rows: Imported(matmul_sharded_single, _matmul(rows), extra=extra_columns(rows, MATMUL_COLUMNS)),
            )
            return
        _require(columns, (*SHAPE, "kernel_duration"))
        family = _family(columns)
        unary = family is eltwise_unary_single
        _refuse_settings(options, {"func"} if unary else set())
        if unary and "func" not in options.values:
            raise InvalidValue("the file does not say which unary function it timed: add `constants` func=exp")
        if not columns & set(DTYPES):
            raise BadFile(f"line 1: no column gives the dtype; expected some of {', '.join(DTYPES)}")
        # create_qkv_heads has one memory only.
        placed = columns & set(BUFFERS) or family is create_qkv_heads_single
        unplaced = () if placed else ("no column gives the buffer of the input: it is taken to be dram",)

        def convert(rows: pl.DataFrame) -> Imported:
            if unary:
                found = _unary(rows, options.values["func"])
            else:
                found = _heads(rows) if family is concatenate_heads_single else _qkv(rows)
            return Imported(family, found, notes=unplaced, extra=extra_columns(rows, TENSOR_COLUMNS))

        yield options.skips.convert(table, convert)


def _family(columns: set[str]) -> Family:
    """The family of a table of tensors, by the columns that only it has."""
    if columns & set(QKV_HEADS):
        _require(columns, QKV_HEADS)
        return create_qkv_heads_single
    return concatenate_heads_single if columns & set(OUT_BUFFERS) else eltwise_unary_single


def _require(columns: set[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise BadFile(f"line 1: there is no column '{missing[0]}', which such a TTNN table needs")


def _refuse_settings(options: Options, known: set[str]) -> None:
    unknown = sorted(set(options.values) - known)
    if unknown:
        raise InvalidValue(
            f"`constants` {unknown[0]} does not apply to this table (known: {', '.join(sorted(known)) or 'none'})"
        )
    if options.mapping is not None:
        raise InvalidValue("`mapping` is for csv and parquet; the columns of a TTNN table are known")


def _positive_time(table: pl.DataFrame, column: str) -> pl.Series:
    values = numbers(table, column)
    refuse_cells(table, values <= 0, column, "must be a positive number of nanoseconds")
    return values


def _matmul(table: pl.DataFrame) -> pl.DataFrame:
    sizes = {target: whole_numbers(table, name) for name, target in MATMUL.items()}
    return pl.DataFrame({**sizes, "time_ns": _positive_time(table, "duration"), LINE: table[LINE]}).with_columns(
        status=pl.lit("ok")
    )


def _heads(table: pl.DataFrame) -> pl.DataFrame:
    """An output in the same memory as the input is labelled that way."""
    rows = _tensor(table, HEADS, {"problem.out_buffer": OUT_BUFFERS})
    same = pl.col("problem.out_buffer") == pl.col("problem.buffer")
    return rows.with_columns(pl.when(same).then(pl.lit(INPUT)).otherwise("problem.out_buffer").alias("problem.out_buffer"))


def _qkv(table: pl.DataFrame) -> pl.DataFrame:
    """As many key heads as query heads are written as 0."""
    rows = _tensor(table, QKV, {})
    heads, each, turned = (whole_numbers(table, name) for name in QKV_HEADS)
    refuse_cells(table, heads < 1, QKV_HEADS[0], "must be at least 1")
    refuse_cells(table, (each < 1) | (each > heads), QKV_HEADS[1], "must be from 1 to num_heads")
    refuse_cells(table, ~turned.is_in([0, 1]), QKV_HEADS[2], "must be 0 or 1")
    given = {"problem.heads": heads, "problem.kv_heads": each, "problem.transpose_k": turned == 1}
    same = pl.col("problem.kv_heads") == pl.col("problem.heads")
    return rows.with_columns(**given).with_columns(
        pl.when(same).then(0).otherwise("problem.kv_heads").alias("problem.kv_heads")
    )


def _unary(table: pl.DataFrame, func: str) -> pl.DataFrame:
    return _tensor(table, DIMENSIONS, {}).with_columns(pl.lit(func).alias("problem.func"))


def _tensor(table: pl.DataFrame, shape: tuple[str, ...], more: dict[str, dict[str, str]]) -> pl.DataFrame:
    """Shape, dtype, memory and time, and further flags folded into labels."""
    rows = _right_aligned(table, shape)
    for target, labels in {"problem.dtype": DTYPES, "problem.buffer": BUFFERS, **more}.items():
        present = {name: label for name, label in labels.items() if name in table.columns}
        if present:
            rows[target] = fold_one_hot(table, present)
    rows |= {"time_ns": _positive_time(table, "kernel_duration"), LINE: table[LINE]}
    return pl.DataFrame(rows).with_columns(status=pl.lit("ok"))


def _right_aligned(table: pl.DataFrame, names: tuple[str, ...]) -> dict[str, pl.Series]:
    """Right-align the shapes and pad them with 1; the table has them left-aligned and filled with 0."""
    dims = pl.DataFrame({name: whole_numbers(table, name) for name in SHAPE})
    for index, name in enumerate(SHAPE):
        refuse_cells(table, dims[name] < 0, name, "must not be negative")
        if index:
            gap = (dims[SHAPE[index - 1]] == 0) & (dims[name] != 0)
            refuse_cells(table, gap, name, f"comes after a 0 in {SHAPE[index - 1]}, so the rank is unclear")
    refuse_cells(table, dims[SHAPE[0]] == 0, SHAPE[0], "must be at least 1")
    rank = dims.select(pl.sum_horizontal(pl.all() != 0)).to_series()
    aligned = {}
    for target, own in enumerate(names):
        # Dimension `target` of four is number target - (4 - rank) of the given ones.
        source = target - (4 - rank)
        expression = pl.coalesce(*(pl.when(pl.lit(source) == i).then(pl.col(name)) for i, name in enumerate(SHAPE)), 1)
        aligned[f"problem.{own}"] = dims.select(expression.alias("d")).to_series()
    return aligned
