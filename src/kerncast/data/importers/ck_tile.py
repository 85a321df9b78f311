"""Benchmarks of AMD's CK Tile: GEMM logs and JSON, grouped-convolution CSV, and the parquet that its heuristics train on.

What a file holds is told by its content. The kernel's name decides the config and is read strictly; rows whose
name is not known, that contradict themselves or that are malformed are left out and counted.
https://github.com/ROCm/composable_kernel (dispatcher/heuristics, tile_engine)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kerncast import devices
from kerncast.data.importers import Imported, Importer, Options
from kerncast.data.importers.ck_tile_names import NAME_FORM, SIZES, parse_gemm_kernel
from kerncast.data.importers.ck_tile_text import COLUMNS, LARGEST, frame_of, read_text
from kerncast.data.importers.mapped import read_parquet_table
from kerncast.data.text_table import LINE, numbers, read_csv_text, refuse_cells, whole_numbers
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.expr import Program
from kerncast.families.gemm_ck_tile import ck_tile
from kerncast.families.grouped_conv_ck_tile import NAME_FORM as CONV_NAME_FORM
from kerncast.families.grouped_conv_ck_tile import ConvKernel, parse_conv_kernel
from kerncast.op import Family

# Sizes of a convolution: those that every table has, and those that tables of 2-D kernels leave out.
CONV_SIZES = ("N", "C", "K", "G", "Hi", "Wi", "Y", "X", "stride_h", "stride_w", "pad_h", "pad_w")
CONV_DEFAULTS = {"Di": 1, "Z": 1, "stride_d": 1, "pad_d": 0, "dilation_d": 1, "dilation_h": 1, "dilation_w": 1}
CONV_CSV = {"kernel", *CONV_SIZES, "latency_ms"}
CONV_MORE = {*CONV_DEFAULTS, "problem_idx", "tflops", "non_zero"}
CONV_OPS = ("grouped_conv",)
GEMM_OPS = ("gemm_universal", "gemm")
# Words in a message → status; a failure without any of them is a launch error.
REASONS = {"not supported": "unsupported", "out of memory": "out_of_memory", "timeout": "timeout", "timed out": "timeout",
           "verif": "wrong_result", "mismatch": "wrong_result"}  # fmt: skip
# Latency and rate of one row, rounding aside, must tell the same time within this.
AGREEMENT = 0.02
# Columns that repeat what the kernel's name says, and how they are called here meanwhile. Pads are not among them: for mem
# kernels they may be the corrected ones.
CONFIG_COLUMNS = (*SIZES, "pipeline", "scheduler", "epilogue", "persistent")
TOLD = "told."
NO_TIME = "neither a latency nor a rate above 0"


class CkTile(Importer):
    """Whatever CK Tile's benchmarks write."""

    name = "ck-tile"
    doc = "CK Tile benchmarks: JSON of a kernel or of a run, logs with such blocks, grouped-conv CSV, canonical parquet"

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("CK Tile's files name everything themselves: --set and --mapping mean nothing for them")
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"PAR1":
            yield from _from_parquet(path, options)
            return
        text = _text(path)
        if {cell.strip() for cell in text.partition("\n")[0].split(",")} >= CONV_CSV:
            yield from _conv(_csv(path), None)
            return
        document = read_text(text)
        if not document.attempts:
            raise BadFile(f"there is no benchmark in it{_counts(document.left_out)}: expected {CkTile.doc}")
        yield from _gemm(frame_of(document.attempts), document.left_out, _device(document.arch, options))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadFile(f"not a text file ({error.reason} at byte {error.start}): is it compressed?") from error


def _counts(left_out: Mapping[str, int]) -> str:
    return "".join(f", {count:,} {what}" for what, count in sorted(left_out.items()) if count)


def _device(arch: str | None, options: Options) -> Device | None:
    """The device of an architecture; the command line must not contradict it."""
    if arch is None:
        return None
    try:
        found = devices.get(arch)
    except (NotFound, InvalidValue) as error:
        if options.device is not None:
            return None
        raise InvalidValue(f"arch '{arch}' is not known here: add --device NAME") from error
    if options.device is not None and devices.get(options.device).name != found.name:
        raise InvalidValue(f"the rows were measured on {found.name}, not {options.device}: leave --device out")
    return found


# -- kernels by name -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernels:
    """The kernels of a table: those whose names are known, and why the first other one is not."""

    known: Mapping[str, Any]
    refusal: str


def _kernels(names: pl.Series, parse: Callable[[str], Any]) -> _Kernels:
    known, refusal = {}, ""
    for name in names.unique(maintain_order=True).to_list():
        try:
            known[name] = parse(name or "")
        except InvalidValue as error:
            refusal = refusal or str(error)
    return _Kernels(known, refusal)


def _only_known(table: pl.DataFrame, kernels: _Kernels, form: str, left_out: Counter[str]) -> pl.DataFrame:
    """Rows of known kernels; a table without any is refused with the rule that the first name breaks."""
    kept = table.filter(pl.col("kernel").is_in(list(kernels.known)))
    if not kept.height:
        raise BadFile(f"no kernel in it has a known name{_counts(left_out)}: {kernels.refusal or form}")
    if kept.height < table.height:
        left_out[f"rows whose kernel is not known ({kernels.refusal})"] += table.height - kept.height
    return kept


def _drop(table: pl.DataFrame, bad: pl.Expr, what: str, left_out: Counter[str]) -> pl.DataFrame:
    kept = table.filter(~bad.fill_null(False))
    if kept.height < table.height:
        left_out[what] += table.height - kept.height
    return kept


# -- times -----------------------------------------------------------------------------------------------


def _coarse(column: str) -> pl.Expr:
    """Printed with two decimals or fewer."""
    hundredths = pl.col(column) * 100
    return (hundredths - hundredths.round()).abs() < 1e-6


def _timed(table: pl.DataFrame, flops: pl.Series, left_out: Counter[str]) -> pl.DataFrame:
    """Adds `time_ns`, `status` and `error`.

    Two decimals of a millisecond leave one digit of most times. Where the latency is printed so, the rate tells the time
    if it has more digits.
    """
    table = table.with_columns(
        flops.alias("flops"), pl.col("latency_ms", "tflops").fill_nan(None), pl.col("is_valid").fill_null(True)
    )
    latency, rate = pl.col("latency_ms"), pl.col("tflops")
    by_latency = pl.when(latency > 0).then(latency * 1e6)
    by_rate = pl.when(rate > 0).then(pl.col("flops") / (rate * 1e3))
    rounding = sum((pl.when(_coarse(name)).then(0.005 / pl.col(name)).otherwise(0.0) for name in ("latency_ms", "tflops")),
                   pl.lit(AGREEMENT))  # fmt: skip
    apart = (by_latency / by_rate).log().abs() > rounding
    table = _drop(table, pl.col("is_valid") & apart, "rows whose latency and rate tell different times", left_out)
    finer = by_rate.is_not_null() & _coarse("latency_ms") & (~_coarse("tflops") | (rate > latency))
    time = pl.when(finer | by_latency.is_null()).then(by_rate).otherwise(by_latency)
    table = table.with_columns(time_ns=pl.when(pl.col("is_valid")).then(time))
    said = pl.coalesce(pl.col("error"), pl.when(pl.col("is_valid")).then(pl.lit(NO_TIME)))
    failure = pl.lit("launch_error")
    for words, status in reversed(REASONS.items()):
        failure = pl.when(said.str.to_lowercase().str.contains(words, literal=True)).then(pl.lit(status)).otherwise(failure)
    ok = pl.col("time_ns").is_not_null()
    return table.with_columns(
        status=pl.when(ok).then(pl.lit("ok")).otherwise(failure), error=pl.when(~ok).then(said)
    ).drop("flops", "is_valid", "latency_ms", "tflops")  # fmt: skip


# -- GEMM ------------------------------------------------------------------------------------------------


def _gemm(table: pl.DataFrame, left_out: Counter[str], device: Device | None) -> Iterator[Imported]:
    """Rows of `gemm/ck_tile` from a table with the columns of `ck_tile_text.COLUMNS`."""
    kernels = _kernels(table["kernel"], parse_gemm_kernel)
    table = _only_known(table, kernels, NAME_FORM, left_out)
    known = kernels.known
    named = pl.DataFrame({
        "kernel": list(known), "problem.dtype": [kernel.dtype for kernel in known.values()],
        "problem.layout": [kernel.layout for kernel in known.values()],
        "corrected": [kernel.corrected for kernel in known.values()],
        **{f"config.{name}": [kernel.config[name] for kernel in known.values()] for name in ck_tile.config.parameters},
    })  # fmt: skip
    table = table.join(named, on="kernel", how="left", maintain_order="left")
    other = (pl.col("dtype") != pl.col("problem.dtype")) | (pl.col("layout") != pl.col("problem.layout"))
    table = _drop(table, other, "rows whose dtype or layout is not that of the kernel's name", left_out)
    told = [name for name in table.columns if name.startswith(TOLD)]
    if told:
        clash = pl.any_horizontal(pl.col(name) != pl.col(f"config.{name.removeprefix(TOLD)}") for name in told)
        table = _drop(table, clash, "rows whose columns contradict the kernel's name", left_out).drop(told)
    table = _drop(table, _outside(), "rows with a size that is no positive whole number", left_out)
    table = _timed(table, 2.0 * table["m"] * table["n"] * table["k"], left_out)
    padded = int(table["corrected"].sum())
    rows = table.rename({"m": "problem.M", "n": "problem.N", "k": "problem.K", "split_k": "problem.split_k"})
    notes = _notes(left_out, {"rows of mem kernels, which pad whatever their name says": padded})
    yield Imported(ck_tile, rows.drop("kernel", "dtype", "layout", "corrected"), device, notes)


def _outside() -> pl.Expr:
    return pl.any_horizontal(~pl.col(name).is_between(1, LARGEST).fill_null(False) for name in ("m", "n", "k", "split_k"))


def _notes(left_out: Mapping[str, int], mended: Mapping[str, int]) -> tuple[str, ...]:
    told = [f"left out {count:,} {what}" for what, count in sorted(left_out.items()) if count]
    return (*told, *(f"set the pad flags of {count:,} {what}" for what, count in mended.items() if count))


# -- grouped convolution -----------------------------------------------------------------------------------


def _csv(path: Path) -> pl.DataFrame:
    """A benchmark's CSV with the columns of the parquet form."""
    table = read_csv_text(path)
    unknown = [name for name in table.columns if name not in {*CONV_CSV, *CONV_MORE, LINE}]
    if unknown:
        raise BadFile(f"line 1: unknown column '{unknown[0]}' (known: {', '.join(sorted(CONV_CSV | CONV_MORE))})")
    whole = [name for name in (*CONV_SIZES, *CONV_DEFAULTS, "non_zero") if name in table.columns]
    real = [name for name in ("latency_ms", "tflops") if name in table.columns]
    return table.select(
        LINE, "kernel", *(whole_numbers(table, name).alias(name) for name in whole), *(numbers(table, name) for name in real)
    )


def _conv(table: pl.DataFrame, device: Device | None) -> Iterator[Imported]:
    """Rows of each direction's `ck_tile` family."""
    left_out: Counter[str] = Counter()
    more = {"tflops": pl.lit(None, pl.Float64), "non_zero": pl.lit(1), "is_valid": pl.lit(True),
            "error": pl.lit(None, pl.String), **{name: pl.lit(value) for name, value in CONV_DEFAULTS.items()}}  # fmt: skip
    table = table.with_columns(value.alias(name) for name, value in more.items() if name not in table.columns)
    kernels = _kernels(table["kernel"], parse_conv_kernel)
    table = _only_known(table, kernels, CONV_NAME_FORM, left_out)
    deep = (pl.col("Di") > 1) | (pl.col("Z") > 1) | (pl.col("pad_d") > 0)
    dimensions = pl.col("kernel").replace_strict({name: kernel.dimensions for name, kernel in kernels.known.items()})
    table = _drop(table, (dimensions == 3) != deep, "rows of a 2-D kernel on a 3-D problem, or the other way round", left_out)
    families = dict.fromkeys(kernel.family for kernel in kernels.known.values())
    tables = []
    for family in families:
        ours = {name: kernel for name, kernel in kernels.known.items() if kernel.family is family}
        rows = _conv_rows(table.filter(pl.col("kernel").is_in(list(ours))), family, ours, left_out)
        if rows.height:
            tables.append((family, rows))
    if not tables:
        raise BadFile(f"no row of it can be used{_counts(left_out)}")
    for place, (family, rows) in enumerate(tables):
        yield Imported(family, rows, device, _notes(left_out, {}) if place == 0 else ())


def _conv_rows(table: pl.DataFrame, family: Family, kernels: Mapping[str, ConvKernel], left_out: Counter[str]) -> pl.DataFrame:
    named = pl.DataFrame({
        "kernel": list(kernels), "problem.dtype": [kernel.dtype for kernel in kernels.values()],
        **{f"config.{name}": [kernel.config[name] for kernel in kernels.values()] for name in family.config.parameters},
    })  # fmt: skip
    table = table.join(named, on="kernel", how="left", maintain_order="left").rename(
        {name: f"problem.{name}" for name in (*CONV_SIZES, *CONV_DEFAULTS)}
    )
    work = family.op.work(family.op.namespace())
    assert work is not None
    sizes = table.select(pl.col(f"problem.{name}").alias(f"p.{name}") for name in (*CONV_SIZES, *CONV_DEFAULTS))
    table = _timed(table, Program({"flops": work.flops}).frame(sizes)["flops"], left_out)
    # Output that is zero everywhere was computed by nobody.
    empty = (pl.col("status") == "ok") & (pl.col("non_zero") == 0)
    return table.with_columns(
        status=pl.when(empty).then(pl.lit("wrong_result")).otherwise(pl.col("status")),
        time_ns=pl.when(~empty).then(pl.col("time_ns")),
        error=pl.when(empty).then(pl.lit("all of the output is zero")).otherwise(pl.col("error")),
    ).drop("kernel", "non_zero")


# -- canonical parquet -------------------------------------------------------------------------------------


def _from_parquet(path: Path, options: Options) -> Iterator[Imported]:
    """The table that CK's heuristics train on: one op, and a column that names the architecture."""
    table = read_parquet_table(path)
    ops = table["op_type"].unique().to_list() if "op_type" in table.columns else []
    if len(ops) != 1 or ops[0] not in (*GEMM_OPS, *CONV_OPS):
        raise BadFile(f"op_type must be one of {', '.join((*GEMM_OPS, *CONV_OPS))} in all rows, got {ops}")
    conv = ops[0] in CONV_OPS
    wanted = ("kernel_name", "latency_ms", *(CONV_SIZES if conv else ("m", "n", "k")))
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise BadFile(f"there is no column '{missing[0]}', which {ops[0]} rows need")
    table = table.rename({"kernel_name": "kernel"})
    archs = table["arch"].cast(pl.String).unique().sort().to_list() if "arch" in table.columns else [None]
    for arch in archs:
        ours = table.filter(pl.col("arch").cast(pl.String).eq_missing(arch)) if "arch" in table.columns else table
        device = _device(arch, options)
        if conv:
            yield from _conv(_typed(ours, _CONV_TYPES), device)
        else:
            told = {name: pl.col(name).alias(f"{TOLD}{name}") for name in CONFIG_COLUMNS if name in ours.columns}
            attempts = _typed(ours, COLUMNS, {"split_k": 1, "is_valid": True})
            yield from _gemm(attempts.hstack(ours.select(*told.values())), Counter(), device)


_CONV_TYPES: dict[str, type[pl.DataType]] = {
    LINE: pl.Int64, "kernel": pl.String, **dict.fromkeys((*CONV_SIZES, *CONV_DEFAULTS, "non_zero"), pl.Int64),
    "latency_ms": pl.Float64, "tflops": pl.Float64, "is_valid": pl.Boolean, "error": pl.String, "run_id": pl.String,
}  # fmt: skip


def _typed(
    table: pl.DataFrame, types: Mapping[str, type[pl.DataType]], defaults: Mapping[str, int | bool] | None = None
) -> pl.DataFrame:
    """The columns of `types` that there are, in these types; those of `defaults` in any case."""
    if "measured_tflops" in table.columns and "tflops" not in table.columns:
        table = table.rename({"measured_tflops": "tflops"})
    if defaults is not None:
        absent = {name: defaults.get(name) for name in types if name not in table.columns}
        table = table.with_columns(pl.lit(value, dtype=types[name]).alias(name) for name, value in absent.items())
    columns = []
    for name, dtype in types.items():
        if name not in table.columns:
            continue
        values = table[name]
        fits = values.dtype in (pl.String, pl.Categorical, pl.Boolean, pl.Null) or values.dtype.is_numeric()
        cast = values.cast(dtype, strict=False) if fits else values
        lost = cast.is_null() & values.is_not_null() if fits else values.is_not_null()
        refuse_cells(table, lost, name, f"must be {'text' if dtype == pl.String else 'a number'}")
        columns.append(cast)
    return pl.DataFrame(columns)
