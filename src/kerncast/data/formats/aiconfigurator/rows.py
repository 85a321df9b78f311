"""From a table of a known kind to rows: the types of its columns, what its texts mean, which rows are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import polars as pl

from kerncast.core.software import FRAMEWORK, VERSION, framework
from kerncast.data.formats import Imported, Options, extra_columns
from kerncast.data.formats.aiconfigurator.kinds import Kind, Rows
from kerncast.data.skipping import BadRows, shortened
from kerncast.data.text_table import LINE, as_type, read_parquet_table, refuse_cells, respelled
from kerncast.errors import BadFile
from kerncast.library import devices

TEXTS = ("framework", "version", "device", "op_name", "kernel_source")
# What a table without one of these columns does not say.
UNKNOWN = {"framework": "the framework is unknown", "version": "its version is unknown", "device": "the GPU is unknown",
           "op_name": "the op is taken to be {ops}", "kernel_source": "the code path is unknown (other)"}  # fmt: skip
COLUMNS_SHOWN = 20


def read_table(file: Path, kind: Kind) -> pl.DataFrame:
    """The table with every column that it may have, null where it lacks one that the op can do without."""
    table = respelled(read_parquet_table(file), (*TEXTS, *kind.known))
    missing = [name for name in kind.needed if name not in table.columns]
    if missing:
        columns = ", ".join([name for name in table.columns if name != LINE][:COLUMNS_SHOWN])
        raise BadFile(f"line 1: a table of {kind.name} needs the column '{missing[0]}' (it has {columns})")
    wanted = (*TEXTS, *(column.name for column in kind.columns))
    return table.with_columns(pl.lit(None, pl.String).alias(name) for name in wanted if name not in table.columns)


def what_is_unknown(table: pl.DataFrame, kind: Kind) -> list[str]:
    """What a table does not say, because it lacks a column or all of its cells."""
    said = {name: words.format(ops=" or ".join(kind.ops)) for name, words in UNKNOWN.items()}
    said |= {column.name: f"it is taken to be {column.default}" for column in kind.columns if column.default is not None}
    lacking = [name for name in said if table.height and table[name].null_count() == table.height]
    return [f"there is no column '{name}', so {said[name]}" for name in lacking]


def checked(table: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """The table in the types it must have; rows with a cell that does not fit are refused."""
    wanted: dict[str, type[pl.DataType]] = dict.fromkeys(TEXTS, pl.String)
    wanted |= {column.name: pl.String if column.textual else pl.Int64 for column in kind.columns} | {kind.time: pl.Float64}
    words = {pl.String: "text", pl.Int64: "a whole number", pl.Float64: "a number"}
    typed = []
    for name, dtype in wanted.items():
        values = as_type(table[name], dtype)
        refuse_cells(table, values.is_null() & table[name].is_not_null(), name, f"must be {words[dtype]}")
        typed.append(values)
    table = table.with_columns(typed)
    for name in kind.needed:
        refuse_cells(table, table[name].is_null(), name, "must not be empty")
    refuse_cells(table, ~table["op_name"].is_in(list(kind.ops)), "op_name", f"must be {' or '.join(kind.ops)}")
    times = table[kind.time]
    refuse_cells(table, ~(times.is_finite() & (times > 0)), kind.time, f"must be a positive number of {kind.unit}")
    table = table.with_columns(pl.col(item.name).fill_null(item.default) for item in kind.columns if item.default is not None)
    for column in (column for column in kind.columns if column.only):
        fits = table[column.name].cast(pl.String).str.contains(f"^(?:{column.only})$")
        refuse_cells(table, ~fits, column.name, f"must be {column.words}")
    if len(kind.ops) > 1:  # then the op's name says what the rows are, and the first that is known stands for none
        table = table.with_columns(pl.col("op_name").replace_strict(kind.ops, default=None, return_dtype=pl.String))
        refuse_cells(table, table["op_name"].is_null(), "op_name", "must not be empty")
    return table


def translated(table: pl.DataFrame, kind: Kind, wanted: tuple[Rows, ...], options: Options) -> Iterator[Imported]:
    """The rows of a checked table, by family."""
    extra = extra_columns(table, (*TEXTS, *kind.known))
    left = table
    for rows in kind.rows:
        ours = left if rows.chosen is None else left.filter(rows.chosen)
        left = left.clear() if rows.chosen is None else left.filter(~rows.chosen)
        if not ours.height or rows not in wanted:
            continue
        columns = {name: pl.col(value) if isinstance(value, str) else value for name, value in rows.problem.items()}
        columns |= {name: _dtypes(ours, rows, name, column) for name, column in rows.dtypes.items()}
        described = ours.select(
            LINE, **{f"problem.{name}": value for name, value in columns.items()}, **_kernel_sources(ours, rows),
            **({} if options.device is not None else _devices(ours)), status=pl.lit("ok"),
            time_ns=pl.col(kind.time) * kind.unit_ns, software=_software(ours, kind, options),
        )  # fmt: skip
        yield Imported(rows.family, described, extra=extra)


def _dtypes(table: pl.DataFrame, rows: Rows, parameter: str, column: str) -> pl.Expr:
    """The element types of a column; those that the family does not take are refused."""
    meant = {said: rows.dtype(parameter, said) for said in table[column].unique().sort()}
    unknown = [said for said, found in meant.items() if found is None]
    own = [*rows.meant, *(name for name in rows.names_of(parameter) if name not in rows.meant.values())]
    refuse_cells(table, table[column].is_in(unknown), column, f"must be one of {', '.join(own)}")
    return pl.col(column).replace_strict(meant, return_dtype=pl.String)


def _kernel_sources(table: pl.DataFrame, rows: Rows) -> dict[str, pl.Expr]:
    """The config. An unknown code path becomes `other`, with its name as the backend."""
    known = rows.names_of("kernel_source")
    source = pl.col("kernel_source")
    unnamed = table.filter(~source.is_in(known))["kernel_source"].value_counts(sort=True, name="rows")
    if unnamed.height > 1:
        # Two unknown code paths would share one config, and their times would look like repeats: the more frequent one stays.
        main, *others = sorted(unnamed.iter_rows(), key=lambda item: (-item[1], item[0]))
        told = f"is a second unknown one besides {shortened(main[0])}, and a table may have one (known: {', '.join(known)})"
        refuse_cells(table, table["kernel_source"].is_in([name for name, _ in others]), "kernel_source", told)
    is_known = source.is_in(known)
    return {
        "config.kernel_source": pl.when(is_known).then(source).otherwise(pl.lit("other")),
        "backend": pl.when(~is_known).then(source),
    }


def _software(table: pl.DataFrame, kind: Kind, options: Options) -> pl.Expr:
    """Framework and version as JSON, with what the caller adds; null if nothing is known."""
    texts = {}
    for said, version in table.select("framework", "version").unique().rows():
        texts[f"{said or ''}\n{version or ''}"] = software_text(kind, said, version, options.software)
    pair = pl.col("framework").fill_null("") + "\n" + pl.col("version").fill_null("")
    return pair.replace_strict(texts, return_dtype=pl.String)


def software_text(kind: Kind, said: str | None, version: str | None, added: Mapping[str, str]) -> str | None:
    """The software of rows whose table says this framework and version."""
    name = kind.framework or (framework(said) if said else None)
    told = {part: value for part, value in ((FRAMEWORK, name), (VERSION, version)) if value}
    known = dict(sorted({**added, **told}.items()))
    return msgspec.json.encode(known).decode() if known else None


def _devices(table: pl.DataFrame) -> dict[str, pl.Expr]:
    """The devices, as their profiles call them; nothing if the table names none."""
    names = table["device"].drop_nulls().unique().sort().to_list()
    meant: dict[str, str] = {}
    for name in names:
        device = devices.named(name)
        if device is None:
            lines = table.filter(pl.col("device") == name)[LINE]
            kind = f"device '{shortened(name)}' is not known (see `kerncast list device`): add `device` NAME"
            raise BadRows(f"line {lines[0]}: {kind}", kind, lines=lines)
        meant[name] = device.name
    return {"device": pl.col("device").replace_strict(meant, return_dtype=pl.String)} if names else {}
