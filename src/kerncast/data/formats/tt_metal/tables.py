"""Tables of the op runtime predictor (one-hot dtypes and memory, left-aligned shapes), and lines fitted to reshards.

The predictor's layouts are known by their columns: a unary op (`input_shape_1` … `input_shape_4`, flags, `kernel_duration`),
concatenate_heads (the same with flags for the output's memory), create_qkv_heads (with `num_heads`, `num_kv_heads` and
`transpose_k_heads`), paged_sdpa_decode (`q_shape_1` …) and a height-sharded matmul (`m_size`, `k_size`, `n_size`,
`num_cores`, `duration`).
https://github.com/tenstorrent/ttnn-op-runtime-predictor

Fitted lines are a table with `coef`, `intercept`, `num_points` and the quality of the fit for each group, as published with
https://github.com/tenstorrent/tt-metal/issues/14762. Lines are not measurements: each is evaluated where it was fitted,
at the tile counts of the published sweep that cards have room for. Equal tile counts were averaged before the fit, so
one row stands for all shapes of a tile count, with the shape in the middle of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.io.foreign import guarded, gunzip_to
from kerncast.core.op import Family
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, extra_columns, measured_on
from kerncast.data.skipping import BadRows, Skips
from kerncast.data.tables import LINE, fold_one_hot, numbers, read_csv_text, refuse_cells, respelled, whole_numbers
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices
from kerncast.library.families.single import (
    concatenate_heads_single,
    create_qkv_heads_single,
    eltwise_unary_single,
    matmul_sharded_single,
    paged_sdpa_decode_single,
    reshard_single,
)
from kerncast.library.ops.ttnn import INPUT
from kerncast.library.ops.ttnn_ops import DIMENSIONS, HEADS_SHAPE, QKV_SHAPE
from kerncast.library.ops.ttnn_suites import BOTH_BYTES, GRIDS


def _sizes(tensor: str, rank: int = 4) -> tuple[str, ...]:
    return tuple(f"{tensor}_shape_{place}" for place in range(1, rank + 1))


Q, K, V, TABLE, MASK, POSITIONS = (
    *(_sizes(name) for name in ("q", "k", "v")), _sizes("page_table", 2), _sizes("attn_mask"), _sizes("cur_pos", 1),
)  # fmt: skip
PAGED_SHAPES = (*Q, *K, *V, *TABLE, *MASK, *POSITIONS)
PAGED_DTYPES = {"bfloat8": "bfp8", "bfloat16": "bf16"}
INPUTS = {"input_DRAM": "dram", "input_L1_height_sharded": "l1"}
OUTPUTS = {"output_DRAM": "dram", "output_L1_height_sharded": "l1"}
SHARDINGS = {"dram": "interleaved", "l1": "height"}
PROGRAM, COMPUTE = "use_sdpa_program_config", "use_device_compute_kernel_config"
CHUNKS = {"q_chunk_size": "q_chunk", "k_chunk_size": "k_chunk"}
# Flag → its parameter, and the config that it belongs to.
PAGED_FLAGS = {
    "exp_approx_mode": ("exp_approx", PROGRAM),
    "math_approx_mode": ("math_approx", COMPUTE),
    "fp32_dest_acc_en": ("fp32_accumulate", COMPUTE),
    "packer_l1_acc": ("packer_l1", COMPUTE),
}
FIDELITIES = {1: "lofi", 2: "hifi2", 3: "hifi3", 4: "hifi4"}
PAGED_NEEDED = (
    *PAGED_SHAPES, *PAGED_DTYPES, *INPUTS, *OUTPUTS, "is_causal", *CHUNKS, *PAGED_FLAGS, PROGRAM, "math_fidelity", COMPUTE,
    "kernel_duration",
)  # fmt: skip
PAGED_COLUMNS = (*PAGED_NEEDED, "scale")


def _flag_column(table: pl.DataFrame, name: str, only: pl.Series | None = None) -> pl.Series:
    """A column of 0 and 1; None where it does not apply."""
    values = whole_numbers(table, name)
    applies = pl.Series([True] * table.height) if only is None else only
    refuse_cells(table, applies & ~values.is_in([0, 1]), name, "must be 0 or 1")
    return (values == 1).set(~applies, None)


def paged_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The rows as problems of paged_sdpa_decode."""
    size = {name: whole_numbers(table, name) for name in PAGED_SHAPES}
    for name in (*Q, *K, *TABLE):
        refuse_cells(table, size[name] < 1, name, "must be at least 1")
    for name, other in (*zip(V, K, strict=True), (K[3], Q[3]), (TABLE[0], Q[1])):
        refuse_cells(table, size[name] != size[other], name, f"must be as in {other}")
    masked, placed = size[MASK[3]] > 0, size[POSITIONS[0]] > 0
    program, compute = _flag_column(table, PROGRAM), _flag_column(table, COMPUTE)
    columns: dict[str, pl.Series] = {
        "q_dim0": size[Q[0]], "batch": size[Q[1]], "heads": size[Q[2]], "head_dim": size[Q[3]],
        "blocks": size[K[0]], "kv_heads": size[K[1]], "block_size": size[K[2]], "pages": size[TABLE[1]],
        "is_causal": _flag_column(table, "is_causal"), "cur_pos": placed, "mask": masked,
        "mask_len": size[MASK[3]].set(~masked, None), "program_config": program, "compute_config": compute,
        "dtype": fold_one_hot(table, PAGED_DTYPES), "buffer": fold_one_hot(table, INPUTS),
        "out_buffer": fold_one_hot(table, OUTPUTS),
    }  # fmt: skip
    # The published sweep places the query by the output's config then.
    moved = (columns["buffer"] == "dram") & (columns["out_buffer"] == "l1")
    refuse_cells(table, moved, "output_L1_height_sharded", "with an interleaved query is not measured as the table says")
    for name, own in CHUNKS.items():
        columns[own] = whole_numbers(table, name).set(~program, None)
    for name, (own, config) in PAGED_FLAGS.items():
        columns[own] = _flag_column(table, name, program if config == PROGRAM else compute)
    fidelity = whole_numbers(table, "math_fidelity")
    refuse_cells(table, compute & ~fidelity.is_in(list(FIDELITIES)), "math_fidelity", "must be from 1 to 4")
    columns["math_fidelity"] = fidelity.set(~compute, None).replace_strict(FIDELITIES, default=None, return_dtype=pl.String)
    time = numbers(table, "kernel_duration")
    refuse_cells(table, time <= 0, "kernel_duration", "must be a positive number of nanoseconds")
    return _with_shardings(columns).with_columns(time_ns=time, status=pl.lit("ok"), **{LINE: table[LINE]})


def _with_shardings(columns: dict[str, pl.Series]) -> pl.DataFrame:
    """The shardings that follow from the buffers; an output that lies like the input is labelled that way."""
    frame = pl.DataFrame({f"problem.{name}": values for name, values in columns.items()}).with_columns(
        pl.col("problem.buffer").replace_strict(SHARDINGS).alias("problem.sharding"),
        pl.col("problem.out_buffer").replace_strict(SHARDINGS).alias("problem.out_sharding"),
    )
    return frame.with_columns(
        pl.when(pl.col(f"problem.out_{name}") == pl.col(f"problem.{name}"))
        .then(pl.lit(INPUT))
        .otherwise(f"problem.out_{name}")
        .alias(f"problem.out_{name}")
        for name in ("buffer", "sharding")
    )


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
        known = ({*MATMUL, "duration"}, {*SHAPE, "kernel_duration"}, {*PAGED_NEEDED})
        return any(head.header >= columns for columns in known)

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        table = respelled(read_csv_text(path, options.skips), (*MATMUL_COLUMNS, *TENSOR_COLUMNS, *PAGED_COLUMNS))
        columns = set(table.columns) - {LINE}
        if columns & {*PAGED_SHAPES}:
            _refuse_settings(options, set())
            _require(columns, PAGED_NEEDED)
            yield options.skips.convert(
                table,
                lambda rows: Imported(paged_sdpa_decode_single, paged_rows(rows), extra=extra_columns(rows, PAGED_COLUMNS)),
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


def _refuse_settings(options: ImportOptions, known: set[str]) -> None:
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
    rows = _tensor(table, HEADS_SHAPE, {"problem.out_buffer": OUT_BUFFERS})
    same = pl.col("problem.out_buffer") == pl.col("problem.buffer")
    return rows.with_columns(pl.when(same).then(pl.lit(INPUT)).otherwise("problem.out_buffer").alias("problem.out_buffer"))


def _qkv(table: pl.DataFrame) -> pl.DataFrame:
    """As many key heads as query heads are written as 0."""
    rows = _tensor(table, QKV_SHAPE, {})
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


GZIP = b"\x1f\x8b"
NEEDED = ("in_grid", "out_grid", "group", "coef", "intercept")
# How good the fit is. Without one of them, lines are judged by the others.
QUALITY = ("r^2", "RMSRE", "num_points")
# Another measure of the fit, which is not used.
IGNORED = ("RRMSE",)
SHARDING = r"ShardStrategy\.(BLOCK|WIDTH|HEIGHT)-ShardOrientation\.ROW_MAJOR"
KEY = [*GRIDS, "in_strategy", "out_strategy"]
# A worse fit says more about what disturbed the measurement than about the cards.
LEAST_R2 = 0.5
MOST_RMSRE = 1.0
# No launch takes less. Below it a line with a negative intercept is far from anything that was measured.
SHORTEST_NS = 1_000.0
TILE_BYTES = 2_048  # the sweep is bf16


class ReshardLines(Importer):
    """CSV tables (.csv, .csv.gz) of fitted lines."""

    name = "reshard-lines"
    doc = "lines fitted to reshards on Wormhole cards (CSV or .csv.gz); `constants` points=12 keeps 12 tile counts per line"

    def recognises(self, head: Head) -> bool:
        return head.header >= {"in_grid", "out_grid", "group", "coef", "intercept"}

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        most = _points(options)
        cards = measured_on(devices.get("wormhole_b0"), options)
        table = respelled(_csv_text(path, options.skips), (*NEEDED, *QUALITY, *IGNORED))
        missing = [name for name in NEEDED if name not in table.columns]
        if missing:
            raise BadFile(f"line 1: no column '{missing[0]}'; fitted lines have {', '.join((*NEEDED, *QUALITY))}")
        yield options.skips.convert(table, lambda rows: _evaluated(rows, most, cards))


def _evaluated(table: pl.DataFrame, most: int | None, cards: Device) -> Imported:
    """The points of the lines that are good enough."""
    lines = _lines(table)
    good = lines.filter("good")
    points = _tile_counts(good).join(good, on=KEY, how="inner", maintain_order="left")
    found = points.select(KEY).unique().height
    if found < good.height:
        strange = good.join(points, on=KEY, how="anti").sort(LINE)[LINE]
        kind = "the published sweep has no reshard of these grids and strategies"
        raise BadRows(f"line {strange[0]}: {kind}", kind, lines=strange)
    counted = points.group_by(KEY).agg(pl.len() == pl.first("num_points"))["len"].sum()
    points = points.with_columns(time_ns=pl.col("coef") * pl.col("tiles") + pl.col("intercept"))
    long = points.filter(pl.col("time_ns") > SHORTEST_NS)
    notes = (
        *(f"there is no column '{name}', so lines are not judged by it" for name in QUALITY if name not in table.columns),
        f"{lines.height - good.height:,} of {lines.height:,} lines left out (R² ≤ {LEAST_R2} or RMSRE ≥ {MOST_RMSRE:g}, "
        "or fitted to one point)",
        f"{points.height - long.height:,} of {points.height:,} points left out, where a line is not above "
        f"{SHORTEST_NS / 1000:g} µs ({1 - long.height / max(points.height, 1):.1%})",
        f"{counted:,} of {good.height:,} lines have as many tile counts here as points in their fit",
    )
    kept = long if most is None else _thinned(long, most)
    return Imported(reshard_single, _as_rows(kept), cards, notes, extra=extra_columns(table, (*NEEDED, *QUALITY, *IGNORED)))


def _points(options: ImportOptions) -> int | None:
    """How many tile counts of a line to keep: all (None), unless `--set points=…` gives a number."""
    if options.mapping is not None:
        raise InvalidValue("`mapping` is for csv and parquet; the columns of fitted lines are known")
    unknown = sorted(set(options.values) - {"points"})
    if unknown:
        raise InvalidValue(f"`constants` {unknown[0]} does not apply to fitted lines (known: points)")
    given = options.values.get("points")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or int(given) < 2:
        raise InvalidValue(f"`constants` points must be a whole number of at least 2, got '{given}'")
    return int(given)


def _csv_text(path: Path, skips: Skips) -> pl.DataFrame:
    """The cells as text, of a file that may be compressed."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    if not packed:
        return read_csv_text(path, skips)
    with scratch_folder() as folder:
        plain = Path(folder, "lines.csv")
        with guarded("the compressed file", "restore it", "is cut or damaged"):
            gunzip_to(path, plain)
        return read_csv_text(plain, skips)


def _lines(table: pl.DataFrame) -> pl.DataFrame:
    """One row per line: grids, strategies, coefficients, and whether the fit is good enough."""
    sides: dict[str, pl.Series] = {}
    for side in ("in", "out"):
        cells = table[f"{side}_grid"].str.extract_groups("^([1-8])x([1-8])$").struct
        refuse_cells(table, cells[0].is_null(), f"{side}_grid", "must be columns and rows of cores from 1x1 to 8x8")
        sides |= {f"{side}_x": cells[0].cast(pl.Int64), f"{side}_y": cells[1].cast(pl.Int64)}
    group = table["group"].str.extract_groups(f"^{SHARDING}-{SHARDING}$").struct
    refuse_cells(table, group[0].is_null(), "group", "must be two row-major shardings, as the published sweep names them")
    strategies = {f"{side}_strategy": group[place].str.to_lowercase() for place, side in enumerate(("in", "out"))}
    fit = {name: numbers(table, name) for name in ("coef", "intercept")}
    good = pl.repeat(True, table.height, dtype=pl.Boolean, eager=True)
    points = pl.Series([None] * table.height, dtype=pl.Int64)
    if "num_points" in table.columns:
        points = whole_numbers(table, "num_points")
        refuse_cells(table, points < 1, "num_points", "must be at least 1")
        good &= points > 1
    if "RMSRE" in table.columns:
        rmsre = numbers(table, "RMSRE")
        refuse_cells(table, rmsre < 0, "RMSRE", "must not be negative")
        good &= rmsre < MOST_RMSRE
    if "r^2" in table.columns:
        # A line through one point has no R²; every other line must have one. Polars orders NaN above 1, so NaN is refused too.
        r2 = table["r^2"].cast(pl.Float64, strict=False)
        told = (r2 <= 1).fill_null(False) & r2.is_finite().fill_null(False)
        several = (points > 1).fill_null(True)
        refuse_cells(table, ~told & several, "r^2", "must be a number, at most 1, where a line has two points or more")
        good &= told & (r2 > LEAST_R2).fill_null(False)
    found = pl.DataFrame({**sides, **strategies, **fit, "num_points": points, "good": good, LINE: table[LINE]})
    again = ~found.select(pl.struct(KEY).is_first_distinct()).to_series()
    refuse_cells(table, again, "group", "must have one line only")
    return found


def _tile_counts(lines: pl.DataFrame) -> pl.DataFrame:
    """The tile counts of the published sweep on the grids of some lines, each with the shape in the middle."""
    axes = {name: lines[name].unique().sort().to_list() for name in GRIDS}
    shape = [pl.lit(1, pl.Int64).alias(name) for name in ("height_tiles", "width_tiles")]
    suites = [lines.select(*KEY).clear().with_columns(shape)]
    suites += [suite.problems.select(suites[0].columns) for suite in reshard_single.op.sweep("published", axes)]
    in_cores, out_cores = (pl.col(f"{side}_x") * pl.col(f"{side}_y") for side in ("in", "out"))
    tiles = pl.col("height_tiles") * pl.col("width_tiles")
    fits = TILE_BYTES * (tiles / in_cores + tiles / out_cores) <= BOTH_BYTES
    # The sweep runs by width and a group keeps its order, so the middle shape is neither the flattest nor the tallest.
    middle = pl.col("height_tiles", "width_tiles").get((pl.len() - 1) // 2)
    return pl.concat(suites).filter(fits).group_by(*KEY, tiles=tiles).agg(middle).sort(*KEY, "tiles")


def _thinned(points: pl.DataFrame, most: int) -> pl.DataFrame:
    """At most `most` tile counts of each line, denser among the small ones, where a line bends most in relative terms."""
    last = pl.len().over(KEY) - 1
    place = pl.int_range(pl.len()).over(KEY)
    wanted = [place == (last * (step / (most - 1)) ** 2).round() for step in range(most)]
    return points.filter(pl.any_horizontal(wanted))


def _as_rows(points: pl.DataFrame) -> pl.DataFrame:
    problem = [pl.col(name).alias(f"problem.{name}") for name in ("height_tiles", "width_tiles", *KEY)]
    return points.select(*problem, "time_ns", LINE).with_columns(pl.lit("bf16").alias("problem.dtype"), status=pl.lit("ok"))
