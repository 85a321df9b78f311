"""Benchmarks of AMD's CK Tile: GEMM logs and JSON, grouped-convolution CSV, and the parquet that its heuristics train on.

The content of a file tells its kind. The kernel's name decides the config and is read strictly, because a wrong tile in a row
is worse than a missing row. Rows that have an unknown name, contradict themselves, are impossible or are malformed are
skipped. https://github.com/ROCm/composable_kernel (dispatcher/heuristics, tile_engine)"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.io.foreign import JSON
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Int, Parameter, Value
from kerncast.data import schema
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, extra_columns, measured_on
from kerncast.data.formats.ck_tile.text import COLUMNS, frame_of, read_text, timed
from kerncast.data.skipping import Skips
from kerncast.data.tables import LINE, as_type, plain_text, read_csv_text, read_parquet_table, respelled
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.families.gemm_ck_tile import ck_tile
from kerncast.library.families.grouped_conv_ck_tile import ConvKernel, parse_conv_kernel
from kerncast.library.ops.grouped_conv import grouped_conv_forward

NAME_FORM = (
    "gemm[_universal]_{dtype}_{layout}_{pipeline}_{epilogue}_{scheduler}_{pad m}_{pad n}_{pad k}_{persistent}"
    "_{tile}_{warps}_{warp tile}"
)
PADS = ("pad_m", "pad_n", "pad_k")
FLAGS = (*PADS, "persistent")
# No kernel's name is half as long; a longer text is not a name.
LONGEST_NAME = 400
SIZES = tuple(f"{kind}_{side}" for kind in ("tile", "warp", "warp_tile") for side in "mnk")


def _labels(parameter: object) -> str:
    assert isinstance(parameter, Categorical)
    return "|".join(label for label, _ in parameter.labels)


_CONFIG, _PROBLEM = ck_tile.config.parameters, ck_tile.problem.parameters
_SHAPE = r"_(\d{1,4})x(\d{1,4})x(\d{1,4})"
_NAME = re.compile(
    rf"gemm(?:_universal)?_({_labels(_PROBLEM['dtype'])})_({_labels(_PROBLEM['layout'])})"
    rf"_({_labels(_CONFIG['pipeline'])})_({_labels(_CONFIG['epilogue'])})_({_labels(_CONFIG['scheduler'])})"
    + r"_(True|False)" * len(FLAGS) + _SHAPE * 3
)  # fmt: skip


@dataclass(frozen=True)
class GemmKernel:
    """What the name of a kernel says."""

    dtype: str
    layout: str
    config: Mapping[str, Value]
    corrected: bool
    """Whether the kernel pads although its name says that it does not."""


def refuse_long_name(name: str) -> None:
    """Refuse a text that cannot be the name of a kernel."""
    if len(name) > LONGEST_NAME:
        raise InvalidValue(f"a kernel's name has at most {LONGEST_NAME} characters, got {len(name):,}")


def parse_gemm_kernel(name: str, *, as_named: bool = False) -> GemmKernel:
    """Parse the name of a kernel.

    Kernels of the pipeline mem pad all three sides whatever their name says; CK's own tools correct the flags too. With
    `as_named` the flags are those of the name, by which a build finds the kernel.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidValue(f"a kernel's name must be {NAME_FORM}, got '{name}'")
    dtype, layout, pipeline, epilogue, scheduler, *rest = found.groups()
    config: dict[str, Value] = {"pipeline": pipeline, "epilogue": epilogue, "scheduler": scheduler}
    config |= {flag: text == "True" for flag, text in zip(FLAGS, rest, strict=False)}
    config |= {size: int(text) for size, text in zip(SIZES, rest[len(FLAGS) :], strict=True)}
    corrected = not as_named and pipeline == "mem" and not all(config[flag] for flag in PADS)
    if corrected:
        config |= dict.fromkeys(PADS, True)
    for size in SIZES:
        if _CONFIG[size].index(config[size]) is None:
            raise InvalidValue(f"{size} must be {_CONFIG[size].describe()}, got {config[size]} in '{name}'")
    return GemmKernel(dtype, layout, config, corrected)


KINDS = {pl.Int64: "a whole number", pl.Float64: "a number", pl.Boolean: "true or false"}


def typed(table: pl.DataFrame, types: Mapping[str, type[pl.DataType]], skips: Skips) -> pl.DataFrame:
    """Convert the columns that `types` names; rows with a cell that does not fit are skipped."""
    for name in (name for name in types if name in table.columns):
        values = table[name]
        if values.dtype == pl.String and types[name] != pl.String:
            values = values.set(values == "", None)
        lost = as_type(values, types[name]).is_null() & values.is_not_null()
        kind = f"{name.rpartition('.')[2]} must be {KINDS.get(types[name], 'text')}"
        table = skips.drop(table.with_columns(values), lost, kind, name)
    return table.select(as_type(table[name], dtype) for name, dtype in types.items() if name in table.columns)


def in_range(table: pl.DataFrame, sizes: Mapping[str, Parameter], skips: Skips) -> pl.DataFrame:
    """Keep rows whose sizes are present and valid for their parameters."""
    for name, size in sizes.items():
        if isinstance(size, Int):
            outside = ~pl.col(name).is_between(size.low, size.high).fill_null(False)
            table = skips.drop(table, outside, f"{name} must be {size.describe()}", name)
    return table


# Sizes of a convolution: those that every table has, and those that tables of 2-D kernels leave out.
CONV_SIZES = ("N", "C", "K", "G", "Hi", "Wi", "Y", "X", "stride_h", "stride_w", "pad_h", "pad_w")
CONV_DEFAULTS = {"Di": 1, "Z": 1, "stride_d": 1, "pad_d": 0, "dilation_d": 1, "dilation_h": 1, "dilation_w": 1}
CONV_CSV = {"kernel", *CONV_SIZES, "latency_ms"}
CONV_MORE = {*CONV_DEFAULTS, "problem_idx", "tflops", "non_zero"}
CONV_OPS = ("grouped_conv",)
GEMM_OPS = ("gemm_universal", "gemm")
# Columns that repeat what the kernel's name says, and the prefix of their temporary names. Pads are not included: those of
# mem kernels may be the corrected ones.
CONFIG_COLUMNS = (*SIZES, "pipeline", "scheduler", "epilogue", "persistent")
TOLD = "told."
PADDED = "rows of mem kernels, which pad whatever their name says"

# Columns of the parquet that are known and not used, and the prefix of those that describe the hardware.
CANONICAL = {"op_type", "arch", "kernel_name", "measured_tflops", "bandwidth_gb_s", "pad_m", "pad_n", "pad_k"}
HARDWARE = "hw_"

# Rows of one family and the device they were measured on, if known.
Rows = tuple[Family, pl.DataFrame, Device | None]
# What a file holds, and its unknown columns.
Found = tuple[list[Rows], pl.DataFrame | None]


class CkTileBenchmarks(Importer):
    """Any file that CK Tile's benchmarks write."""

    name = "ck-tile"
    doc = "CK Tile benchmarks: JSON of a kernel or of a run, logs with such blocks, grouped-conv CSV, canonical parquet"

    def recognises(self, head: Head) -> bool:
        if head.columns:
            return {"kernel_name", "op_type", "measured_tflops"} <= set(head.columns)
        if head.names:
            return False
        return head.header >= CONV_CSV or '"perf_result"' in head.text or '"kernel_config"' in head.text

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("CK Tile's files name everything themselves: `constants` and `mapping` do not apply to them")
        with path.open("rb") as file:
            magic = file.read(4)
        padded: Counter[str] = Counter()
        from_file = _from_parquet if magic == b"PAR1" else _from_text
        tables, extra = from_file(path, options, padded)
        if not tables:
            raise BadFile(f"none of its rows can be used: {options.skips.told() or 'there are none'}")
        notes = tuple(f"set the pad flags of {count:,} {what}" for what, count in padded.items() if count)
        if options.device is None:
            notes += tuple(sorted({_shared(device) for _, _, device in tables if device is not None} - {""}))
        for family, rows, device in tables:
            yield Imported(family, rows, device, notes, extra=extra)
            notes = ()


def _from_text(path: Path, options: ImportOptions, padded: Counter[str]) -> Found:
    text = plain_text(JSON.read(path)).replace("\r\n", "\n")
    header = {cell.strip().casefold() for cell in text.partition("\n")[0].split(",")}
    if "kernel" in header and len(header & {name.casefold() for name in CONV_SIZES}) * 2 >= len(CONV_SIZES):
        table = respelled(read_csv_text(path, options.skips), (*CONV_CSV, *CONV_MORE))
        _require(table, "line 1: ", ("kernel", *CONV_SIZES))
        return _conv(typed(table, CONV_TYPES, options.skips), None, options.skips), extra_columns(table, CONV_CSV | CONV_MORE)
    document = read_text(text, options.skips)
    if not document.attempts:
        said = f" ({options.skips.told()})" if options.skips.rows else ""
        raise BadFile(f"there is no benchmark in it{said}: expected {CkTileBenchmarks.doc}")
    return _gemm(frame_of(document.attempts), _device(document.arch, options), options.skips, padded), None


def _require(table: pl.DataFrame, where: str, names: Iterable[str]) -> None:
    """Refuse a table that lacks what its rows cannot do without: a column for the time, or one of `names`."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise BadFile(f"{where}there is no column '{missing[0]}', which these rows need")
    if not {"latency_ms", "tflops"} & set(table.columns):
        raise BadFile(f"{where}there is neither a column 'latency_ms' nor a rate, so no row has a time")


class UnknownArch(InvalidValue):
    """An architecture without a profile, and no device was named."""


def _device(arch: str | None, options: ImportOptions) -> Device | None:
    """The device of an architecture; the command line must not contradict it."""
    if arch is None:
        return None
    try:
        found = devices.get(arch)
    except (NotFound, InvalidValue) as error:
        if options.device is not None:
            return None
        raise UnknownArch(f"arch '{' '.join(arch[:60].split())}' is not known here: add `device` NAME") from error
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
            refuse_long_name(name or "")
            known[name] = parse(name or "")
        except InvalidValue as error:
            refusal = refusal or " ".join(str(error).split())
    return _Kernels(known, refusal)


def _only_known(table: pl.DataFrame, kernels: _Kernels, skips: Skips) -> pl.DataFrame:
    """Keep rows of known kernels. The example of the others quotes the rule that the first of them breaks."""
    strange = ~table["kernel"].is_in(list(kernels.known)).fill_null(False)
    line = table[LINE][strange.arg_max() or 0] if table.height else 0
    return skips.drop(table, strange, "the kernel's name must be known", example=f"line {line}: {kernels.refusal}")


# -- GEMM ------------------------------------------------------------------------------------------------


def _gemm(table: pl.DataFrame, device: Device | None, skips: Skips, padded: Counter[str]) -> list[Rows]:
    """Rows of `gemm/ck_tile` from a table with the columns of `text.COLUMNS`."""
    kernels = _kernels(table["kernel"], parse_gemm_kernel)
    table = _only_known(table, kernels, skips)
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
    table = skips.drop(table, other, "dtype and layout must be those of the kernel's name", "kernel")
    told = [name for name in table.columns if name.startswith(TOLD)]
    if told:
        clash = pl.any_horizontal(pl.col(name) != pl.col(f"config.{name.removeprefix(TOLD)}") for name in told)
        table = skips.drop(table, clash, "columns must not contradict the kernel's name", "kernel").drop(told)
    sizes = {"m": "M", "n": "N", "k": "K", "split_k": "split_k"}
    table = in_range(table, {column: ck_tile.problem.parameters[name] for column, name in sizes.items()}, skips)
    table = timed(table, 2.0 * table["m"] * table["n"] * table["k"], skips)
    padded[PADDED] += int(table["corrected"].sum())
    rows = table.rename({column: f"problem.{name}" for column, name in sizes.items()})
    return (
        [(ck_tile, rows.rename({"kernel": schema.LABEL}).drop("dtype", "layout", "corrected"), device)] if rows.height else []
    )


# -- grouped convolution -----------------------------------------------------------------------------------


def _conv(table: pl.DataFrame, device: Device | None, skips: Skips) -> list[Rows]:
    """Rows of each direction's `ck_tile` family."""
    nothing = pl.lit(None, pl.Float64)
    more = {"latency_ms": nothing, "tflops": nothing, "non_zero": pl.lit(1), "is_valid": pl.lit(True),
            "error": pl.lit(None, pl.String), **{name: pl.lit(value) for name, value in CONV_DEFAULTS.items()}}  # fmt: skip
    table = table.with_columns(value.alias(name) for name, value in more.items() if name not in table.columns)
    kernels = _kernels(table["kernel"], parse_conv_kernel)
    table = _only_known(table, kernels, skips)
    table = in_range(table, {name: grouped_conv_forward.parameters[name] for name in (*CONV_SIZES, *CONV_DEFAULTS)}, skips)
    if not table.height:
        return []
    deep = (pl.col("Di") > 1) | (pl.col("Z") > 1) | (pl.col("pad_d") > 0)
    dimensions = pl.col("kernel").replace_strict({name: kernel.dimensions for name, kernel in kernels.known.items()})
    table = skips.drop(table, (dimensions == 3) != deep, "kernel and problem must both be 2-D or both be 3-D", "kernel")
    found: list[Rows] = []
    for family in dict.fromkeys(kernel.family for kernel in kernels.known.values()):
        ours = {name: kernel for name, kernel in kernels.known.items() if kernel.family is family}
        rows = _conv_rows(table.filter(pl.col("kernel").is_in(list(ours))), family, ours, skips)
        if rows.height:
            found.append((family, rows, device))
    return found


def _conv_rows(table: pl.DataFrame, family: Family, kernels: Mapping[str, ConvKernel], skips: Skips) -> pl.DataFrame:
    named = pl.DataFrame({
        "kernel": list(kernels), "problem.dtype": [kernel.dtype for kernel in kernels.values()],
        **{f"config.{name}": [kernel.config[name] for kernel in kernels.values()] for name in family.config.parameters},
    })  # fmt: skip
    table = table.join(named, on="kernel", how="left", maintain_order="left").rename(
        {name: f"problem.{name}" for name in (*CONV_SIZES, *CONV_DEFAULTS)}
    )
    for rule in family.op.problem.constraints:
        broken = rule.program.frame(_symbols(table))[rule.name] == 0
        table = skips.drop(table, broken, f"the problem must be possible: {rule.sentence}")
    work = family.op.work(family.op.namespace())
    assert work is not None
    table = timed(table, Program({"flops": work.flops}).frame(_symbols(table))["flops"], skips)
    # If all of the output is zero, the kernel did not compute it.
    empty = (pl.col("status") == "ok") & (pl.col("non_zero") == 0).fill_null(False)
    return (
        table.with_columns(
            status=pl.when(empty).then(pl.lit("wrong_result")).otherwise(pl.col("status")),
            time_ns=pl.when(~empty).then(pl.col("time_ns")),
            error=pl.when(empty).then(pl.lit("all of the output is zero")).otherwise(pl.col("error")),
        )
        .rename({"kernel": schema.LABEL})
        .drop("non_zero")
    )


def _symbols(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(pl.col(f"problem.{name}").alias(f"p.{name}") for name in (*CONV_SIZES, *CONV_DEFAULTS))


# -- canonical parquet -------------------------------------------------------------------------------------


CONV_TYPES: dict[str, type[pl.DataType]] = {
    LINE: pl.Int64, "kernel": pl.String, **dict.fromkeys((*CONV_SIZES, *CONV_DEFAULTS, "non_zero"), pl.Int64),
    "latency_ms": pl.Float64, "tflops": pl.Float64, "is_valid": pl.Boolean, "error": pl.String, "run_id": pl.String,
}  # fmt: skip
ARCH: dict[str, type[pl.DataType]] = {"arch": pl.String}
TOLD_TYPES = {f"{TOLD}{name}": schema.column_type(ck_tile.config.parameters[name]) for name in CONFIG_COLUMNS}


def _from_parquet(path: Path, options: ImportOptions, padded: Counter[str]) -> Found:
    """The table that CK's heuristics train on: one op, and a column that names the architecture."""
    skips = options.skips
    table = respelled(read_parquet_table(path), ("kernel_name", "measured_tflops", "op_type", "arch"))
    # Most rows tell the op; a row of another op is skipped.
    ops = table["op_type"].drop_nulls().value_counts(sort=True)["op_type"].to_list() if "op_type" in table.columns else []
    if not ops or ops[0] not in (*GEMM_OPS, *CONV_OPS):
        raise BadFile(f"op_type must be one of {', '.join((*GEMM_OPS, *CONV_OPS))}, got {ops[:5]}")
    conv = ops[0] in CONV_OPS
    table = skips.drop(table, pl.col("op_type").ne_missing(ops[0]), f"op_type must be {ops[0]} as in most rows", "op_type")
    names = {"kernel_name": "kernel"}
    if "measured_tflops" in table.columns and "tflops" not in table.columns:
        names["measured_tflops"] = "tflops"
    known = (*CONV_TYPES, *CONV_MORE) if conv else (*COLUMNS, *CONFIG_COLUMNS)
    table = respelled(table.rename({old: new for old, new in names.items() if old in table.columns}), known)
    _require(table, "", ("kernel", *(CONV_SIZES if conv else ("m", "n", "k"))))
    more = [name for name in table.columns if name in CANONICAL or name.startswith(HARDWARE)]
    extra = extra_columns(table, (*known, *more))
    table = typed(table, CONV_TYPES | ARCH, skips) if conv else _attempts(table, skips)
    if "arch" not in table.columns:
        table = table.with_columns(arch=pl.lit(None, pl.String))
    found: list[Rows] = []
    for arch in table["arch"].unique().sort().to_list():
        ours = table.filter(pl.col("arch").eq_missing(arch)).drop("arch")
        try:
            device = _device(arch, options)
        except UnknownArch as error:
            skips.drop(ours, pl.lit(True), str(error))
            continue
        found += _conv(ours, device, skips) if conv else _gemm(ours, device, skips, padded)
    return found, extra


def _attempts(table: pl.DataFrame, skips: Skips) -> pl.DataFrame:
    """GEMM rows with the columns of `text.COLUMNS`, and columns that repeat the kernel's name under temporary names."""
    defaults = {"split_k": 1, "is_valid": True}
    absent = {name: pl.lit(defaults.get(name), dtype=dtype) for name, dtype in COLUMNS.items() if name not in table.columns}
    told = [pl.col(name).alias(f"{TOLD}{name}") for name in CONFIG_COLUMNS if name in table.columns]
    return typed(table.with_columns(*told, **absent), COLUMNS | TOLD_TYPES | ARCH, skips)
