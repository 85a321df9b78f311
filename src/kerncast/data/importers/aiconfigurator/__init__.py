"""Tables of NVIDIA's AIConfigurator: one parquet file per op, GPU, framework and version; GEMM here.

    framework version device op_name kernel_source gemm_dtype m n k latency

`latency` is in milliseconds. `kernel_source` names the code path that the framework took; it is the config.
A linear layer keeps its weights as N rows of K, so every product is `rcr`. The wheel that ships the tables
(PyPI: aiconfigurator-core) is read as well, and so is a folder: all the GEMM tables in it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec
import polars as pl

from kerncast import devices, dtypes
from kerncast.data.importers import Head, Imported, Importer, Options, extra_columns, numbered_after
from kerncast.data.importers.mapped import read_parquet_table
from kerncast.data.skipping import BadRows
from kerncast.data.text_table import LINE, as_type, refuse_cells, respelled
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.families.gemm_library import gemm_library
from kerncast.families.library_tiles import KERNEL_SOURCES
from kerncast.families.mixed_mm_library import mixed_mm_library
from kerncast.files.atomic import scratch_folder
from kerncast.files.expanding import refuse_large_members

TEXTS = ("framework", "version", "device", "op_name", "kernel_source", "gemm_dtype")
NEEDED = ("gemm_dtype", "m", "n", "k", "latency")
# What a table without one of the other columns does not say.
UNKNOWN = {"framework": "the framework", "version": "its version", "device": "the GPU", "op_name": "the op (taken to be gemm)",
           "kernel_source": "the code path (other)"}  # fmt: skip
SIZES = ("m", "n", "k")
TIME = "latency"
MEMBER = "gemm_perf.parquet"
LAYOUT = "rcr"
# SmoothQuant multiplies int8 by int8.
DTYPES = {**dtypes.spelled("float16", "bfloat16", "fp8", "fp8_block", "nvfp4"), "sq": "int8"}
# Weight-only quantisation: bf16 activations, narrow weights.
WEIGHT_ONLY = {"int8_wo": "int8", "int4_wo": "int4"}
ACTIVATIONS = "bf16"


class AiConfigurator(Importer):
    """AIConfigurator's GEMM tables: a parquet file, or the wheel with all of them."""

    name = "aiconfigurator"
    doc = "GEMM tables of AIConfigurator: a gemm_perf.parquet, or a folder or the aiconfigurator-core wheel with several"

    def recognises(self, head: Head) -> bool:
        if any(PurePosixPath(name).name == MEMBER for name in head.names):
            return True
        return {"framework", "kernel_source", "gemm_dtype", "latency"} <= set(head.columns)

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("an AIConfigurator table names its own columns: `set` and `mapping` do not apply to it")
        before, seen = 0, dict[str, str]()
        for member, file, folder in _tables(path, notes := list[str]()):
            table = _columns(file, member)
            lacking = [name for name in UNKNOWN if table.height and table[name].null_count() == table.height]
            notes += [f"{member}there is no column '{name}', so {UNKNOWN[name]} is unknown" for name in lacking]
            own = _own_devices(table) if options.device is not None else {}
            seen |= own
            _check_device(seen, options.device)
            convert = partial(_converted, options=options, own=own)
            try:
                found = options.skips.convert(table, convert, before, member)
            except KerncastError as error:
                raise type(error)(f"{member}{error}") from error
            for imported in found:
                # Rows are numbered across all tables of a wheel, so that every row has a unique number.
                numbered = numbered_after(imported, before)
                if folder is not None:
                    numbered = replace(imported, rows=imported.rows.with_columns(source=pl.lit(0)), files=(file,))
                yield replace(numbered, notes=tuple(notes))
                notes = []
            before += table.height


def _tables(path: Path, notes: list[str]) -> Iterator[tuple[str, Path, Path | None]]:
    """The GEMM tables at a path, each with the prefix of its error messages, and the folder if they are in one."""
    if path.is_dir():
        names = sorted(item.relative_to(path).as_posix() for item in path.rglob("*") if item.is_file())
        for name in _gemm_tables(names, "folder", notes):
            yield f"{name}, ", path / name, path
        return
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
    if not archived:
        yield "", path, None
        return
    with scratch_folder() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                refuse_large_members(archive, path)
                names = sorted(name for name in archive.namelist())
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise BadFile(f"the archive cannot be read ({error}): is it cut or damaged?") from error
        target = Path(folder, MEMBER)
        for name in _gemm_tables(names, "archive", notes):
            try:
                with zipfile.ZipFile(path) as archive:
                    target.write_bytes(archive.read(name))
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
                raise BadFile(f"{name} cannot be unpacked ({error}): is the archive cut or damaged?") from error
            yield f"{name}, ", target, None


def _gemm_tables(names: Sequence[str], place: str, notes: list[str]) -> list[str]:
    """The GEMM tables among some files; a note counts the other tables by name."""
    tables = [name for name in names if PurePosixPath(name).suffix == ".parquet"]
    found = [name for name in tables if PurePosixPath(name).name == MEMBER]
    if not found:
        raise BadFile(f"the {place} holds no {MEMBER}: there is nothing to import")
    others = Counter(PurePosixPath(name).name for name in tables if name not in set(found))
    if others:
        listed = ", ".join(
            f"{name} ({count:,})" for name, count in sorted(others.items(), key=lambda item: (-item[1], item[0]))
        )
        notes.append(f"read {len(found):,} of {len(tables):,} tables; left out those of ops that are not known here: {listed}")
    return found


def _columns(file: Path, member: str) -> pl.DataFrame:
    """The table with every column that it may have, null where it lacks one that the op can do without."""
    try:
        table = respelled(read_parquet_table(file), (*TEXTS, *SIZES, TIME))
    except KerncastError as error:
        raise type(error)(f"{member}{error}") from error
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        columns = ", ".join([name for name in table.columns if name != LINE][:20])
        raise BadFile(f"{member}line 1: a GEMM table needs the column '{missing[0]}' (it has {columns})")
    return table.with_columns(pl.lit(None, pl.String).alias(name) for name in TEXTS if name not in table.columns)


def _checked(table: pl.DataFrame) -> pl.DataFrame:
    """The table in the types it must have; cells that do not fit are refused."""
    wanted = {**dict.fromkeys(TEXTS, pl.String), **dict.fromkeys(SIZES, pl.Int64), TIME: pl.Float64}
    kinds = {pl.String: "text", pl.Int64: "a whole number", pl.Float64: "a number"}
    typed = []
    for name, dtype in wanted.items():
        values = as_type(table[name], dtype)
        refuse_cells(table, values.is_null() & table[name].is_not_null(), name, f"must be {kinds[dtype]}")
        typed.append(values)
    table = table.with_columns(typed)
    for name in NEEDED:
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
    extra = extra_columns(table, (*TEXTS, *SIZES, TIME))
    weight_only = pl.col("problem.dtype").is_in(list(WEIGHT_ONLY))
    for name in table["device"].unique().sort():
        ours = rows.filter(pl.col("device").eq_missing(name))
        device = _device(name, ours[LINE]) if options.device is None and name is not None else None
        ours = ours.drop("device")
        gemm = ours.filter(~weight_only)
        if gemm.height:
            translated = gemm.with_columns(pl.col("problem.dtype").replace_strict(DTYPES))
            yield Imported(gemm_library, translated, device, extra=extra)
        mixed = ours.filter(weight_only)
        if mixed.height:
            narrow = pl.col("problem.dtype").replace_strict(WEIGHT_ONLY)
            types = {"problem.dtype": pl.lit(ACTIVATIONS), "problem.b_dtype": narrow}
            yield Imported(mixed_mm_library, mixed.with_columns(**types), device, extra=extra)


def _kernel_sources(table: pl.DataFrame) -> dict[str, pl.Expr]:
    """The config. An unknown code path becomes `other`, with its name as the backend."""
    source = pl.col("kernel_source")
    unnamed = table.filter(~source.is_in(list(KERNEL_SOURCES)))["kernel_source"].value_counts(sort=True, name="rows")
    if unnamed.height > 1:
        # Two unknown code paths would share one config, and their times would look like repeats: the more frequent one stays.
        main, *others = sorted(unnamed.iter_rows(), key=lambda item: (-item[1], item[0]))
        rule = f"is a second unknown one besides {main[0]}, and a table may have one (known: {', '.join(KERNEL_SOURCES)})"
        refuse_cells(table, table["kernel_source"].is_in([name for name, _ in others]), "kernel_source", rule)
    known = source.is_in(list(KERNEL_SOURCES))
    return {
        "config.kernel_source": pl.when(known).then(source).otherwise(pl.lit("other")),
        "backend": pl.when(~known).then(source),
    }


def _software(table: pl.DataFrame, options: Options) -> pl.Expr:
    """Framework and version as JSON, with what the command line adds; null if nothing is known."""
    texts = {}
    for framework, version in table.select("framework", "version").unique().rows():
        told = {name: text for name, text in (("framework", framework), ("version", version)) if text}
        known = dict(sorted({**options.software, **told}.items()))
        texts[f"{framework or ''}\n{version or ''}"] = msgspec.json.encode(known).decode() if known else None
    pair = pl.col("framework").fill_null("") + "\n" + pl.col("version").fill_null("")
    return pair.replace_strict(texts, return_dtype=pl.String)


def _converted(table: pl.DataFrame, options: Options, own: Mapping[str, str]) -> list[Imported]:
    table = _checked(table)
    if own:
        names = [name for name in table["device"].drop_nulls().unique() if _device_key(name) in own]
        rule = f"is not known, and the other rows are of {', '.join(own.values())}"
        refuse_cells(table, ~table["device"].is_in(names), "device", rule)
    return list(_split(table, options))


def _device_key(name: str) -> str:
    device = devices.named(name)
    return name if device is None else device.name


def _own_devices(table: pl.DataFrame) -> dict[str, str]:
    """The devices that a table is of, each with its spelling: those that are known, else the most frequent unknown one.

    Any other unknown name is that of a damaged row.
    """
    counts = (
        as_type(table["device"], pl.String)
        .drop_nulls()
        .value_counts(name="rows")
        .sort("rows", "device", descending=[True, False])
    )
    names = counts["device"].to_list()
    known = [name for name in names if devices.named(name) is not None]
    return {_device_key(name): name for name in reversed(known or names[:1])}


def _check_device(found: Mapping[str, str], asked: str | None) -> None:
    """Check `--device`, which may name a GPU that the table spells in an unknown way or that has no profile."""
    if asked is None:
        return
    if len(found) > 1:
        named = ", ".join(sorted(found.values()))
        raise InvalidValue(f"the table has several devices ({named}), and `device` names one: leave it out")
    for name in found.values():
        devices.agreed(devices.named(name), devices.get(asked))


def _device(name: str, lines: pl.Series) -> Device:
    """The device that a driver calls `name`."""
    device = devices.named(name)
    if device is None:
        kind = f"device '{name}' is not known (see `kerncast devices`): add `device` NAME"
        raise BadRows(f"line {lines[0]}: {kind}", kind, lines=lines)
    return device
