"""Tables of NVIDIA's AIConfigurator: one parquet file per op, GPU, framework and version; GEMM here.

    framework version device op_name kernel_source gemm_dtype m n k latency

`latency` is in milliseconds. `kernel_source` names the code path that the framework took; it is the config.
A linear layer keeps its weights as N rows of K, so every product is `rcr`. The wheel that ships the tables
(PyPI: aiconfigurator-core) is read as well: all the GEMM tables in it.
"""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
import polars as pl

from kerncast import devices
from kerncast.data.importers import Head, Imported, Importer, Options
from kerncast.data.importers.mapped import read_parquet_table
from kerncast.data.text_table import LINE, refuse_cells
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.families.gemm_library import gemm_library
from kerncast.families.library_tiles import KERNEL_SOURCES
from kerncast.families.mixed_mm_library import mixed_mm_library

TEXTS = ("framework", "version", "device", "op_name", "kernel_source", "gemm_dtype")
SIZES = ("m", "n", "k")
TIME = "latency"
# Power in watts, which some tables have; a measurement has no column for it.
IGNORED = ("power", "power_limit")
MEMBER = "gemm_perf.parquet"
LAYOUT = "rcr"
# SmoothQuant multiplies int8 by int8.
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "sq": "int8"}
# Weight-only quantisation: bf16 activations, narrow weights.
WEIGHT_ONLY = {"int8_wo": "int8", "int4_wo": "int4"}
ACTIVATIONS = "bf16"


class AiConfigurator(Importer):
    """AIConfigurator's GEMM tables: a parquet file, or the wheel with all of them."""

    name = "aiconfigurator"
    doc = "GEMM tables of AIConfigurator: a gemm_perf.parquet, or the aiconfigurator-core wheel with all of them"

    def recognises(self, head: Head) -> bool:
        if any(PurePosixPath(name).name == MEMBER for name in head.names):
            return True
        return {"framework", "kernel_source", "gemm_dtype", "latency"} <= set(head.columns)

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("an AIConfigurator table names its own columns: `set` and `mapping` do not apply to it")
        before, seen = 0, set[str]()
        for member, file in _tables(path):
            try:
                table = _checked(read_parquet_table(file))
                seen |= set(table["device"].unique())
                _check_device(seen, options.device)
                for imported in _split(table, options):
                    # Rows are numbered across all tables of a wheel, so that every row has a unique number.
                    yield Imported(imported.family, imported.rows.with_columns(pl.col(LINE) + before), imported.device)
            except KerncastError as error:
                raise type(error)(f"{member}{error}") from error
            before += table.height


def _tables(path: Path) -> Iterator[tuple[str, Path]]:
    """The parquet files at a path, each with the prefix of its error messages."""
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
    if not archived:
        yield "", path
        return
    with tempfile.TemporaryDirectory(prefix="kerncast-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                names = sorted(name for name in archive.namelist() if PurePosixPath(name).name == MEMBER)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise BadFile(f"the archive cannot be read ({error}): is it cut or damaged?") from error
        if not names:
            raise BadFile(f"the archive holds no {MEMBER}: there is nothing to import")
        target = Path(folder, MEMBER)
        for name in names:
            try:
                with zipfile.ZipFile(path) as archive:
                    target.write_bytes(archive.read(name))
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
                raise BadFile(f"{name} cannot be unpacked ({error}): is the archive cut or damaged?") from error
            yield f"{name}, ", target


def _checked(table: pl.DataFrame) -> pl.DataFrame:
    """The table with every column it must have, in the types it must have."""
    wanted = (*TEXTS, *SIZES, TIME)
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise BadFile(f"line 1: a GEMM table needs the column '{missing[0]}' (it has {', '.join(table.columns[:-1][:20])})")
    unknown = [name for name in table.columns if name not in (*wanted, *IGNORED, LINE)]
    if unknown:
        raise BadFile(f"line 1: unknown column '{unknown[0]}'; a GEMM table has {', '.join(wanted)}")
    for name in wanted:
        dtype = table.schema[name]
        if name in TEXTS:
            fits, kind = dtype in (pl.String, pl.Categorical), "text"
        else:
            fits, kind = (
                dtype.is_integer() or (name == TIME and dtype.is_float()),
                "numbers" if name == TIME else "whole numbers",
            )
        if not fits:
            raise BadFile(f"line 1: column '{name}' must hold {kind}, it holds {dtype}")
    table = table.with_columns(pl.col(TEXTS).cast(pl.String), pl.col(TIME).cast(pl.Float64))
    for name in (*TEXTS, *SIZES, TIME):
        refuse_cells(table, table[name].is_null(), name, "must not be empty")
    refuse_cells(table, table["op_name"] != "gemm", "op_name", "must be gemm")
    known = [*DTYPES, *WEIGHT_ONLY]
    refuse_cells(table, ~table["gemm_dtype"].is_in(known), "gemm_dtype", f"must be one of {', '.join(known)}")
    times = table[TIME]
    refuse_cells(table, ~(times.is_finite() & (times > 0)), TIME, "must be a positive number of milliseconds")
    return table


def _split(table: pl.DataFrame, options: Options) -> Iterator[Imported]:
    """One table per device and family."""
    rows = table.select(
        "device",
        LINE,
        **{f"problem.{name.upper()}": pl.col(name) for name in SIZES},
        **{"problem.layout": pl.lit(LAYOUT), "problem.dtype": pl.col("gemm_dtype")},
        **_kernel_sources(table),
        status=pl.lit("ok"),
        time_ns=pl.col(TIME) * 1e6,
        software=_software(table, options),
    )
    weight_only = pl.col("problem.dtype").is_in(list(WEIGHT_ONLY))
    for name in table["device"].unique().sort():
        ours = rows.filter(pl.col("device") == name)
        device = _device(name, ours[LINE][0]) if options.device is None else None
        ours = ours.drop("device")
        gemm = ours.filter(~weight_only)
        if gemm.height:
            yield Imported(gemm_library, gemm.with_columns(pl.col("problem.dtype").replace_strict(DTYPES)), device)
        mixed = ours.filter(weight_only)
        if mixed.height:
            narrow = pl.col("problem.dtype").replace_strict(WEIGHT_ONLY)
            types = {"problem.dtype": pl.lit(ACTIVATIONS), "problem.b_dtype": narrow}
            yield Imported(mixed_mm_library, mixed.with_columns(**types), device)


def _kernel_sources(table: pl.DataFrame) -> dict[str, pl.Expr]:
    """The config. An unknown code path becomes `other`, with its name as the backend."""
    source = pl.col("kernel_source")
    unnamed = [name for name in table["kernel_source"].unique().sort() if name not in KERNEL_SOURCES]
    if len(unnamed) > 1:
        # Two unknown code paths would share one config, and their times would look like repeats.
        rule = f"is a second unknown one besides {unnamed[0]}, and a table may have one (known: {', '.join(KERNEL_SOURCES)})"
        refuse_cells(table, table["kernel_source"] == unnamed[1], "kernel_source", rule)
    known = source.is_in(list(KERNEL_SOURCES))
    return {
        "config.kernel_source": pl.when(known).then(source).otherwise(pl.lit("other")),
        "backend": pl.when(~known).then(source),
    }


def _software(table: pl.DataFrame, options: Options) -> pl.Expr:
    """Framework and version as JSON, with what the command line adds."""
    pairs = table.select("framework", "version").unique().rows()
    texts = {
        pair: msgspec.json.encode(dict(sorted({**options.software, "framework": pair[0], "version": pair[1]}.items()))).decode()
        for pair in pairs
    }
    joined = {f"{framework}\n{version}": text for (framework, version), text in texts.items()}
    return (pl.col("framework") + "\n" + pl.col("version")).replace_strict(joined, return_dtype=pl.String)


def _check_device(found: set[str], asked: str | None) -> None:
    """Check `--device`, which may name a GPU that the table spells in an unknown way or that has no profile."""
    if asked is None:
        return
    if len(found) > 1:
        raise InvalidValue(f"the table has several devices ({', '.join(sorted(found))}), and `device` names one: leave it out")
    for name in found:
        devices.agreed(devices.named(name), devices.get(asked))


def _device(name: str, line: int) -> Device:
    """The device that a driver calls `name`."""
    device = devices.named(name)
    if device is None:
        raise InvalidValue(f"line {line}: device '{name}' is not known (see `kerncast devices`): add `device` NAME")
    return device
