"""Benchmarks of AMD's CK Tile: GEMM logs and JSON, grouped-convolution CSV, and the parquet that its heuristics train on.

The content of a file tells its kind. The kernel's name decides the config and is read strictly. Rows that have an
unknown name, contradict themselves, are impossible or are malformed are left out and counted.
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
from kerncast.data import schema
from kerncast.data.importers import Head, Imported, Importer, Options, measured_on
from kerncast.data.importers.ck_tile.cells import in_range, typed
from kerncast.data.importers.ck_tile.names import SIZES, parse_gemm_kernel
from kerncast.data.importers.ck_tile.text import COLUMNS, frame_of, read_text
from kerncast.data.importers.mapped import read_parquet_table
from kerncast.data.text_table import LINE, read_csv_text
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.expr import Program
from kerncast.families.gemm_ck_tile import ck_tile
from kerncast.families.grouped_conv_ck_tile import ConvKernel, parse_conv_kernel
from kerncast.op import Family
from kerncast.ops.grouped_conv import grouped_conv_forward

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
# Latency and rate of one row must give the same time within this tolerance, rounding aside.
AGREEMENT = 0.02
# Columns that repeat what the kernel's name says, and the prefix of their temporary names. Pads are not included: those of
# mem kernels may be the corrected ones.
CONFIG_COLUMNS = (*SIZES, "pipeline", "scheduler", "epilogue", "persistent")
TOLD = "told."
NO_TIME = "neither a latency nor a rate above 0"
PADDED = "rows of mem kernels, which pad whatever their name says"
# No kernel's name is half as long; a longer text is not a name.
LONGEST_NAME = 400

# Rows of one family and the device they were measured on, if known.
Rows = tuple[Family, pl.DataFrame, Device | None]


class CkTile(Importer):
    """Any file that CK Tile's benchmarks write."""

    name = "ck-tile"
    doc = "CK Tile benchmarks: JSON of a kernel or of a run, logs with such blocks, grouped-conv CSV, canonical parquet"

    def recognises(self, head: Head) -> bool:
        if head.columns:
            return {"kernel_name", "op_type", "measured_tflops"} <= set(head.columns)
        if head.names:
            return False
        return head.header >= CONV_CSV or '"perf_result"' in head.text or '"kernel_config"' in head.text

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("CK Tile's files name everything themselves: `set` and `mapping` do not apply to them")
        with path.open("rb") as file:
            magic = file.read(4)
        counts: Counter[str] = Counter()
        tables = _from_parquet(path, options, counts) if magic == b"PAR1" else _from_text(path, options, counts)
        if not tables:
            raise BadFile(f"none of its rows can be used{_counts(counts)}")
        notes = tuple(
            f"{'set the pad flags of' if what == PADDED else 'left out'} {count:,} {what}"
            for what, count in sorted(counts.items(), key=lambda item: (item[0] == PADDED, item[0]))
            if count
        )
        if options.device is None:
            notes += tuple(sorted({_shared(device) for _, _, device in tables if device is not None} - {""}))
        for family, rows, device in tables:
            yield Imported(family, rows, device, notes)
            notes = ()


def _from_text(path: Path, options: Options, counts: Counter[str]) -> list[Rows]:
    text = _text(path)
    if {cell.strip() for cell in text.partition("\n")[0].split(",")} >= CONV_CSV:
        return _conv(_csv(path, counts), None, counts)
    document = read_text(text)
    if not document.attempts:
        raise BadFile(f"there is no benchmark in it{_counts(document.left_out)}: expected {CkTile.doc}")
    counts.update(document.left_out)
    return _gemm(frame_of(document.attempts), _device(document.arch, options), counts)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadFile(f"not a text file ({error.reason} at byte {error.start}): is it compressed?") from error


def _counts(counts: Mapping[str, int]) -> str:
    return "".join(f", {count:,} {what}" for what, count in sorted(counts.items()) if count)


def _device(arch: str | None, options: Options) -> Device | None:
    """The device of an architecture; the command line must not contradict it."""
    if arch is None:
        return None
    try:
        found = devices.get(arch)
    except (NotFound, InvalidValue) as error:
        if options.device is not None:
            return None
        raise InvalidValue(f"arch '{arch}' is not known here: add `device` NAME") from error
    return measured_on(found, options)


def _shared(device: Device) -> str:
    """What to know of a device that only its architecture names; nothing if that has one part."""
    sharing = devices.parts(device.name) if devices.names_an_architecture(device) else ()
    if len(sharing) < 2:
        return ""
    counts = ", ".join(f"{item.name} {item.numbers['num_cus']:.0f}" for item in sharing if "num_cus" in item.numbers)
    return f"arch {device.name} has several parts (compute units: {counts}): {device.name} is assumed, `device` names another"


# -- kernels by name -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernels:
    """The kernels of a table: those with known names, and why the first other name was refused."""

    known: Mapping[str, Any]
    refusal: str


def _kernels(names: pl.Series, parse: Callable[[str], Any]) -> _Kernels:
    known, refusal = {}, ""
    for name in names.unique(maintain_order=True).to_list():
        try:
            if len(name or "") > LONGEST_NAME:
                raise InvalidValue(f"a kernel's name has at most {LONGEST_NAME} characters, got {len(name):,}")
            known[name] = parse(name or "")
        except InvalidValue as error:
            refusal = refusal or " ".join(str(error).split())
    return _Kernels(known, refusal)


def _only_known(table: pl.DataFrame, kernels: _Kernels, left_out: Counter[str]) -> pl.DataFrame:
    """Keep rows of known kernels. The count of the others quotes the rule that the first of them breaks."""
    kept = table.filter(pl.col("kernel").is_in(list(kernels.known)))
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

    With two decimals of a millisecond, most times have one digit. If the latency is printed that way and the rate has
    more digits, the time comes from the rate.
    """
    told = [pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in ("latency_ms", "tflops")]
    table = table.with_columns(flops.alias("flops"), *told, pl.col("is_valid").fill_null(True))
    latency, rate = pl.col("latency_ms"), pl.col("tflops")
    by_latency = pl.when(latency > 0).then(latency * 1e6)
    by_rate = pl.when(rate > 0).then(pl.col("flops") / (rate * 1e3))
    rounding = sum((pl.when(_coarse(name)).then(0.005 / pl.col(name)).otherwise(0.0) for name in ("latency_ms", "tflops")),
                   pl.lit(AGREEMENT))  # fmt: skip
    apart = (by_latency / by_rate).log().abs() > rounding
    table = _drop(table, pl.col("is_valid") & apart, "rows whose latency and rate give different times", left_out)
    finer = by_rate.is_not_null() & _coarse("latency_ms") & (~_coarse("tflops") | (rate > latency))
    time = pl.when(finer | by_latency.is_null()).then(by_rate).otherwise(by_latency)
    table = table.with_columns(time_ns=pl.when(pl.col("is_valid")).then(time))
    table = _drop(table, ~pl.col("time_ns").is_between(*schema.POSSIBLE_NS), "rows with an impossible time", left_out)
    said = pl.coalesce(pl.col("error"), pl.when(pl.col("is_valid")).then(pl.lit(NO_TIME)))
    failure = pl.lit("launch_error")
    for words, status in reversed(REASONS.items()):
        failure = pl.when(said.str.to_lowercase().str.contains(words, literal=True)).then(pl.lit(status)).otherwise(failure)
    ok = pl.col("time_ns").is_not_null()
    return table.with_columns(
        status=pl.when(ok).then(pl.lit("ok")).otherwise(failure), error=pl.when(~ok).then(said)
    ).drop("flops", "is_valid", "latency_ms", "tflops")  # fmt: skip


# -- GEMM ------------------------------------------------------------------------------------------------


def _gemm(table: pl.DataFrame, device: Device | None, counts: Counter[str]) -> list[Rows]:
    """Rows of `gemm/ck_tile` from a table with the columns of `text.COLUMNS`."""
    kernels = _kernels(table["kernel"], parse_gemm_kernel)
    table = _only_known(table, kernels, counts)
    if not table.height:
        return []
    known = kernels.known
    named = pl.DataFrame({
        "kernel": list(known), "problem.dtype": [kernel.dtype for kernel in known.values()],
        "problem.layout": [kernel.layout for kernel in known.values()],
        "corrected": [kernel.corrected for kernel in known.values()],
        **{f"config.{name}": [kernel.config[name] for kernel in known.values()] for name in ck_tile.config.parameters},
    })  # fmt: skip
    table = table.join(named, on="kernel", how="left", maintain_order="left")
    other = (pl.col("dtype") != pl.col("problem.dtype")) | (pl.col("layout") != pl.col("problem.layout"))
    table = _drop(table, other, "rows whose dtype or layout is not that of the kernel's name", counts)
    told = [name for name in table.columns if name.startswith(TOLD)]
    if told:
        clash = pl.any_horizontal(pl.col(name) != pl.col(f"config.{name.removeprefix(TOLD)}") for name in told)
        table = _drop(table, clash, "rows whose columns contradict the kernel's name", counts).drop(told)
    sizes = {"m": "M", "n": "N", "k": "K", "split_k": "split_k"}
    table = in_range(table, {column: ck_tile.problem.parameters[name] for column, name in sizes.items()}, counts)
    table = _timed(table, 2.0 * table["m"] * table["n"] * table["k"], counts)
    counts[PADDED] += int(table["corrected"].sum())
    rows = table.rename({column: f"problem.{name}" for column, name in sizes.items()})
    return [(ck_tile, rows.drop("kernel", "dtype", "layout", "corrected"), device)] if rows.height else []


# -- grouped convolution -----------------------------------------------------------------------------------


def _csv(path: Path, counts: Counter[str]) -> pl.DataFrame:
    """A benchmark's CSV with the columns of the parquet form."""
    table = read_csv_text(path)
    unknown = [name for name in table.columns if name not in {*CONV_CSV, *CONV_MORE, LINE}]
    if unknown:
        raise BadFile(f"line 1: unknown column '{unknown[0]}' (known: {', '.join(sorted(CONV_CSV | CONV_MORE))})")
    return typed(table, CONV_TYPES, counts)


def _conv(table: pl.DataFrame, device: Device | None, counts: Counter[str]) -> list[Rows]:
    """Rows of each direction's `ck_tile` family."""
    more = {"tflops": pl.lit(None, pl.Float64), "non_zero": pl.lit(1), "is_valid": pl.lit(True),
            "error": pl.lit(None, pl.String), **{name: pl.lit(value) for name, value in CONV_DEFAULTS.items()}}  # fmt: skip
    table = table.with_columns(value.alias(name) for name, value in more.items() if name not in table.columns)
    kernels = _kernels(table["kernel"], parse_conv_kernel)
    table = _only_known(table, kernels, counts)
    table = in_range(table, {name: grouped_conv_forward.parameters[name] for name in (*CONV_SIZES, *CONV_DEFAULTS)}, counts)
    if not table.height:
        return []
    deep = (pl.col("Di") > 1) | (pl.col("Z") > 1) | (pl.col("pad_d") > 0)
    dimensions = pl.col("kernel").replace_strict({name: kernel.dimensions for name, kernel in kernels.known.items()})
    table = _drop(table, (dimensions == 3) != deep, "rows of a 2-D kernel on a 3-D problem, or the other way round", counts)
    found: list[Rows] = []
    for family in dict.fromkeys(kernel.family for kernel in kernels.known.values()):
        ours = {name: kernel for name, kernel in kernels.known.items() if kernel.family is family}
        rows = _conv_rows(table.filter(pl.col("kernel").is_in(list(ours))), family, ours, counts)
        if rows.height:
            found.append((family, rows, device))
    return found


def _conv_rows(table: pl.DataFrame, family: Family, kernels: Mapping[str, ConvKernel], left_out: Counter[str]) -> pl.DataFrame:
    named = pl.DataFrame({
        "kernel": list(kernels), "problem.dtype": [kernel.dtype for kernel in kernels.values()],
        **{f"config.{name}": [kernel.config[name] for kernel in kernels.values()] for name in family.config.parameters},
    })  # fmt: skip
    table = table.join(named, on="kernel", how="left", maintain_order="left").rename(
        {name: f"problem.{name}" for name in (*CONV_SIZES, *CONV_DEFAULTS)}
    )
    for rule in family.op.problem.constraints:
        broken = rule.program.frame(_symbols(table))[rule.name] == 0
        table = _drop(table, pl.lit(broken), f"rows with an impossible problem ({rule.sentence})", left_out)
    work = family.op.work(family.op.namespace())
    assert work is not None
    table = _timed(table, Program({"flops": work.flops}).frame(_symbols(table))["flops"], left_out)
    # If all of the output is zero, the kernel did not compute it.
    empty = (pl.col("status") == "ok") & (pl.col("non_zero") == 0).fill_null(False)
    return table.with_columns(
        status=pl.when(empty).then(pl.lit("wrong_result")).otherwise(pl.col("status")),
        time_ns=pl.when(~empty).then(pl.col("time_ns")),
        error=pl.when(empty).then(pl.lit("all of the output is zero")).otherwise(pl.col("error")),
    ).drop("kernel", "non_zero")


def _symbols(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(pl.col(f"problem.{name}").alias(f"p.{name}") for name in (*CONV_SIZES, *CONV_DEFAULTS))


# -- canonical parquet -------------------------------------------------------------------------------------


CONV_TYPES: dict[str, type[pl.DataType]] = {
    LINE: pl.Int64, "kernel": pl.String, **dict.fromkeys((*CONV_SIZES, *CONV_DEFAULTS, "non_zero"), pl.Int64),
    "latency_ms": pl.Float64, "tflops": pl.Float64, "is_valid": pl.Boolean, "error": pl.String, "run_id": pl.String,
}  # fmt: skip
ARCH: dict[str, type[pl.DataType]] = {"arch": pl.String}
TOLD_TYPES = {f"{TOLD}{name}": schema.column_type(ck_tile.config.parameters[name]) for name in CONFIG_COLUMNS}


def _from_parquet(path: Path, options: Options, counts: Counter[str]) -> list[Rows]:
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
    if "measured_tflops" in table.columns and "tflops" not in table.columns:
        table = table.rename({"measured_tflops": "tflops"})
    table = typed(table, CONV_TYPES | ARCH, counts) if conv else _attempts(table, counts)
    if "arch" not in table.columns:
        table = table.with_columns(arch=pl.lit(None, pl.String))
    found: list[Rows] = []
    for arch in table["arch"].unique().sort().to_list():
        ours = table.filter(pl.col("arch").eq_missing(arch)).drop("arch")
        found += (_conv if conv else _gemm)(ours, _device(arch, options), counts)
    return found


def _attempts(table: pl.DataFrame, counts: Counter[str]) -> pl.DataFrame:
    """GEMM rows with the columns of `text.COLUMNS`, and columns that repeat the kernel's name under temporary names."""
    defaults = {"split_k": 1, "is_valid": True}
    absent = {name: pl.lit(defaults.get(name), dtype=dtype) for name, dtype in COLUMNS.items() if name not in table.columns}
    told = [pl.col(name).alias(f"{TOLD}{name}") for name in CONFIG_COLUMNS if name in table.columns]
    return typed(table.with_columns(*told, **absent), COLUMNS | TOLD_TYPES | ARCH, counts)
