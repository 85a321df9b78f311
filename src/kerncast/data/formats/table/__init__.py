"""`csv` and `parquet`: any table, by a small TOML file that says which column is which parameter.

    family = "gemm/triton"
    device = "a100"                                  # optional; --device says it too; or { column = "gpu" }
    ignore = ["notes"]                               # columns to leave out, knowingly
    label = "kernel_name"                            # optional: what the kernel of a row is called

    [problem]
    M = "m"                                          # a column of the table
    dtype = "type"                                   # the usual spellings are known: torch.float16, half, BF16
    group = { column = "g", values = { "none" = 1 } } # other words are translated
    layout = { value = "rcr" }                       # the same in every row

    [config]
    BLOCK_M = "block_m"

    [time]
    column = "latency_ms"
    unit = "ms"                                      # ns, us, ms or s
    failed = { "inf" = "launch_error" }              # cells that mean a failure, and which

    [measured]                                       # optional columns of a measurement
    samples = "repeats"
    status = { column = "valid", values = { "1" = "ok", "0" = "invalid" } }

The file may declare the family itself, in the tables `op` and `family` (`declared.family_file`), instead of naming one.
`kerncast import csv TABLE --guess` drafts it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.io.artefact import kind_of_toml
from kerncast.core.io.atomic import refuse_existing, write_atomically, write_text
from kerncast.core.io.foreign import key_rule, read_toml
from kerncast.core.io.quoting import toml_string
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Parameter
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Imported, Importer, ImportOptions, extra_columns, listed, rows_to_write
from kerncast.data.formats.table.columns import OPEN, times_of
from kerncast.data.skipping import Skips, shortened
from kerncast.data.tables import LINE, read_csv_text, read_parquet_table, refuse_cells, refuse_rows, respelled
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library import devices
from kerncast.library.declared.declaration import Declaration, declaration_of, declared_family
from kerncast.library.declared.family_file import TABLES, declaration_in_file, family_named, family_tables

# The next step for parameters of kernels that no family has.
OWN_FAMILY = "a family of your own declares a kernel's parameters, see docs/ops-and-families.md"
# Names of unknown devices that a message lists.
OTHERS_SHOWN = 3
# What columns say about the outcome of a run, in words that need no explanation.
OUTCOMES = {
    **dict.fromkeys(("true", "1", "yes", "y", "ok", "pass", "passed", "success", "succeeded", "valid", "correct"), "ok"),
    **dict.fromkeys(("false", "0", "no", "n", "invalid", "unsupported shape"), "invalid"),
    **dict.fromkeys(("fail", "failed", "failure", "error", "runtime error", "launch failure"), "launch_error"),
    **dict.fromkeys(("compilation error", "compile failed", "compilation failed", "build error"), "compile_error"),
    **dict.fromkeys(("incorrect", "wrong", "mismatch"), "wrong_result"),
    **dict.fromkeys(("timed out", "timedout"), "timeout"),
    **dict.fromkeys(("segfault", "crashed"), "crash"),
    **dict.fromkeys(("skip", "skipped"), "not_run"),
    "oom": "out_of_memory",
    "not supported": "unsupported",
}
TIME = "time_ns"
PROVENANCE = ("source", LINE)
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a value comes from: a column (perhaps translated), or one value for every row."""

    column: str | None = None
    value: str | int | bool | None = None
    values: dict[str, Any] | None = None


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which column is the label, in which unit, and which cells mean a failure."""

    column: str
    unit: str
    failed: dict[str, str] = {}


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping file."""

    family: str
    time: Time
    device: str | Cell | None = None
    problem: dict[str, str | Cell] = {}
    config: dict[str, str | Cell] = {}
    measured: dict[str, str | Cell] = {}
    ignore: list[str] = []
    label: str | Cell | None = None
    """What the kernel of a row is called."""
    declaration: Declaration | None = None
    """The family, if the file declares it as well (tables `op` and `family`)."""

    @property
    def mapped_family(self) -> Family:
        """The family whose parameters the columns are: as the file declares it, else the one that it names."""
        return family_named(self.family) if self.declaration is None else declared_family(self.declaration)


def read_mapping(path: Path | None) -> Mapping:
    """A mapping file, checked against what the family declares."""
    if path is None:
        raise InvalidValue("a csv or parquet table needs `mapping` FILE.toml; draft one with `guess`")
    try:
        tables = read_toml(path)
        if not tables:
            raise BadFile(f"{path} is empty: draft it again with `guess`, which wrote nothing here if it ended with an error")
        own = declaration_in_file(path, tables)
        if own is not None:
            tables = {key: value for key, value in tables.items() if key not in TABLES} | {"family": own.family}
        mapping = msgspec.structs.replace(msgspec.convert(tables, Mapping), declaration=own)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"{path} is not a mapping file: {error}") from error
    except msgspec.ValidationError as error:
        raise BadFile(f"{path} is not a mapping file: {key_rule(error)} (draft one with `guess`)") from error
    family = mapping.mapped_family
    known = {
        "problem": set(family.problem.parameters),
        "config": set(family.config.parameters),
        "measured": set(schema.MEASURED) - {"time_ns", "source", LINE},
    }
    for section, names in known.items():
        unknown = sorted(set(getattr(mapping, section)) - names)
        if unknown:
            known_names = ", ".join(sorted(names)) or "none"
            more = f"; {OWN_FAMILY}" if section == "config" else ""
            raise BadFile(f"{path}: [{section}] of {family.id} has no '{unknown[0]}' (known: {known_names}){more}")
    unanswered = list(_unanswered(mapping))
    if unanswered:
        raise BadFile(f"{path}: '?' stands for {', '.join(unanswered)}: write what is meant")
    if mapping.time.unit not in NANOSECONDS:
        raise BadFile(f"{path}: the unit of time must be one of {', '.join(NANOSECONDS)}, got '{mapping.time.unit}'")
    status = mapping.measured.get("status")
    said = () if not isinstance(status, Cell) else (status.values or {}).values() if status.value is None else (status.value,)
    wrong = sorted({*map(str, mapping.time.failed.values()), *map(str, said)} - set(schema.Status))
    if wrong:
        raise BadFile(f"{path}: '{wrong[0]}' is not a status (known: {', '.join(schema.Status)})")
    return mapping


def _unanswered(mapping: Mapping) -> Iterator[str]:
    """What a draft left open; `--device` may still answer for the device."""
    sections = {name: getattr(mapping, name) for name in ("problem", "config", "measured")}
    cells = {f"[{section}] {name}": cell for section, found in sections.items() for name, cell in found.items()}
    for name, cell in {**cells, "device": mapping.device}.items():
        if isinstance(cell, Cell) and (cell.value == OPEN or OPEN in (cell.values or {}).values()):
            yield name
    if OPEN in (mapping.time.column, mapping.time.unit):
        yield "[time]"


def _fixed(values: dict[str, str], family: Family) -> dict[str, Cell]:
    """`--set M=4` as a cell, under its column name."""
    columns = schema.parameter_columns(family)
    cells = {}
    for name, text in values.items():
        matches = [column for column in columns if column in (name, f"problem.{name}", f"config.{name}")]
        if not matches:
            raise InvalidValue(f"`constants` {name}: {family.id} has no such parameter")
        cells[matches[0]] = Cell(value=text)
    return cells


def _cell_of(spec: str | Cell, target: str) -> Cell:
    cell = Cell(column=spec) if isinstance(spec, str) else spec
    if (cell.column is None) == (cell.value is None):
        raise BadFile(f"{target} needs either a column or a value, not {'both' if cell.column else 'neither'}")
    return cell


def _text(cell: Any) -> str:
    """A cell as the mapping file spells it: booleans as in TOML."""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _column(
    table: pl.DataFrame, target: str, cell: Cell, dtype: type[pl.DataType], parameter: Parameter | None = None
) -> pl.Series:
    """One stored column from a cell specification; text is parsed as the type asks."""
    if cell.value is not None:
        texts = pl.repeat(_text(cell.value), table.height, dtype=pl.String, eager=True)
        lines = table.select(LINE).with_columns(texts.alias(target))
    else:
        assert cell.column is not None
        if cell.column not in table.columns:
            raise BadFile(f"line 1: there is no column '{cell.column}' for {target} (columns: {listed(table.columns)})")
        texts = _as_text(table, cell.column)
        lines = table
    column = target if cell.value is not None else str(cell.column)
    if cell.values is not None:
        translated = {key: _text(value) for key, value in cell.values.items()}
        refuse_cells(lines, ~texts.is_in(list(translated)), column, f"must be one of {', '.join(translated)}")
        texts = texts.replace(translated)
    elif isinstance(parameter, Categorical):
        known = dtypes.spellings_of(parameter)
        texts = texts.replace({text: meaning for text in texts.unique() if (meaning := known(text)) is not None})
    texts = texts.set(texts == "", None)
    if dtype == pl.Int64:
        # 8.0 is what pandas writes for a whole number in a column with empty cells.
        texts = texts.str.replace(r"^(-?\d+)\.0+$", "${1}")
    if dtype == pl.Boolean:
        known_flags = {"true": True, "false": False, "1": True, "0": False}
        lowered = texts.str.to_lowercase()
        refuse_cells(lines, ~lowered.is_in(list(known_flags)), column, "must be true or false")
        return lowered.replace_strict(known_flags, return_dtype=pl.Boolean)
    parsed = texts.cast(dtype, strict=False)
    refuse_cells(lines, parsed.is_null() & texts.is_not_null(), column, f"must be {_kind(dtype)}")
    return parsed


def _kind(dtype: type[pl.DataType]) -> str:
    return {"Int64": "a whole number", "Float64": "a number"}.get(dtype.__name__, "text")


def _as_text(table: pl.DataFrame, column: str) -> pl.Series:
    """A column as text. Nulls of a parquet file are empty cells; types without a text form are refused."""
    if not (
        table[column].dtype.is_numeric() or table[column].dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
    ):
        raise BadFile(f"line 1: column '{column}' is of type {table[column].dtype}: convert it to numbers or text first")
    return table[column].cast(pl.String).fill_null("")


def _label(table: pl.DataFrame, time: Time, given: pl.Series | None, notes: list[str]) -> dict[str, pl.Series]:
    """`time_ns` and `status`; a failed attempt has no time, whatever its cell says; `notes` is told of contradictions."""
    if time.column not in table.columns:
        raise BadFile(f"line 1: there is no column '{time.column}' for the time")
    texts = _as_text(table, time.column)
    status = pl.repeat("ok", table.height, dtype=pl.String, eager=True)
    if time.failed:
        status = texts.replace_strict(time.failed, default="ok", return_dtype=pl.String)
    if given is not None:
        wrong = (status != "ok") & (given == "ok")
        if wrong.any():
            first = table.row(int(wrong.arg_max() or 0), named=True)
            notes.append(
                f"{wrong.sum():,} rows have the status ok and a time that means a failure (`failed`): they count as failed; "
                f"the first is line {first[LINE]}, {time.column} '{shortened(str(first[time.column]))}'"
            )
        # A failure that the row itself names is more precise than what all cells like its time mean.
        status = given.zip_with(given != "ok", status)
    failed = status != "ok"
    values, units = times_of(texts)
    bad = ~failed & (values.is_null() | ~values.is_finite() | (values <= 0))
    refuse_cells(table, bad, time.column, "must be a positive time (or be listed under `failed` in the mapping)")
    # A cell that says its unit means that one.
    scaled = values * units.replace_strict(NANOSECONDS, default=NANOSECONDS[time.unit], return_dtype=pl.Float64)
    return {"time_ns": scaled.set(failed, None), "status": status}


def map_table(table: pl.DataFrame, mapping: Mapping, options: ImportOptions) -> list[Imported]:
    """Apply a mapping to a table, one result per device. A column that it does not mention is kept as an extra one.

    A column that the mapping names must be there, unless it only says how a row was measured. Without the status, failed rows
    would count as times, so it must be there too.
    """
    family = mapping.mapped_family
    spaces = (("problem", family.problem), ("config", family.config))
    parameters = {f"{prefix}.{name}": item for prefix, space in spaces for name, item in space.parameters.items()}
    types = schema.schema_of(family)
    cells: dict[str, Cell] = {}
    for section in ("problem", "config", "measured"):
        for name, spec in getattr(mapping, section).items():
            target = name if section == "measured" else f"{section}.{name}"
            cells[target] = _cell_of(spec, target)
    if mapping.label is not None:
        cells[schema.LABEL] = _cell_of(mapping.label, schema.LABEL)
    cells |= _fixed(dict(options.values), family)
    device = mapping.device if isinstance(mapping.device, Cell) else Cell(value=mapping.device)
    named_columns = {cell.column for cell in (*cells.values(), device) if cell.column is not None}
    used = {*named_columns, mapping.time.column, *mapping.ignore}
    table = respelled(table, used)
    optional = set(schema.MEASURED) - {"status"}
    absent = {target: cell.column for target, cell in cells.items()
              if target in optional and cell.column is not None and cell.column not in table.columns}  # fmt: skip
    notes = [f"there is no column '{column}', so {target} is unknown" for target, column in absent.items()]
    notes += [f"there is no column '{name}' to ignore" for name in mapping.ignore if name not in table.columns]
    rows = {LINE: table[LINE]}
    for target, cell in cells.items():
        if target in absent:
            continue
        rows[target] = _column(table, target, cell, types[target], parameters.get(target))
    rows |= _label(table, mapping.time, rows.get("status"), notes)
    frame, extra = pl.DataFrame(rows), extra_columns(table, used)
    if device.column is None:
        named = options.device or device.value
        if named == OPEN:
            raise InvalidValue("the mapping has '?' for the device: write which it was, or add `device` NAME")
        return [Imported(family, frame, devices.get(str(named)) if named is not None else None, tuple(notes), extra=extra)]
    found = []
    for name, measured in _devices(table, device, options).items():
        here = _as_text(table, device.column) == name
        found.append(
            Imported(family, frame.filter(here), measured, tuple(notes), extra=None if extra is None else extra.filter(here))
        )
        notes = []
    return found


def _devices(table: pl.DataFrame, cell: Cell, options: ImportOptions) -> dict[str, Device]:
    """The device that each text of a column means, in the order of the rows."""
    assert cell.column is not None
    if cell.column not in table.columns:
        raise BadFile(f"line 1: there is no column '{cell.column}' for the device")
    texts = _as_text(table, cell.column)
    asked = devices.get(options.device) if options.device is not None else None
    found: dict[str, Device] = {}
    wrong: dict[str, str] = {}
    for text in texts.unique(maintain_order=True):
        try:
            # Only the mapping may name the file of a profile: what a table says is looked up, never read.
            translated = (cell.values or {}).get(text)
            device = devices.known(text) if translated is None else devices.get(str(translated))
            if device is not None:
                found[text] = devices.agreed(device, asked) or device
                continue
            # Suggestions take a millisecond each, and a table may have a million wrong names.
            wrong[text] = "" if wrong else str(devices.unknown(shortened(text)))
        except (InvalidValue, NotFound) as error:
            wrong[text] = str(error)
    if wrong:
        first, *others = wrong
        more = ", ".join(f"'{shortened(text)}'" for text in others[:OTHERS_SHOWN]) + ", …" * (len(others) > OTHERS_SHOWN)
        said = f" ({wrong[first]}; or translate it under `values`), got '{shortened(first)}'"
        told = said + f"; other rows have {more}" * bool(others)
        refuse_rows(table, texts.is_in(list(wrong)), f"{cell.column} must be a device", lambda row: told)
    return found


def _write(
    dataset: Dataset, out: Path, name: str | None, where: Sequence[str], write: Callable[[pl.DataFrame, Path], None]
) -> list[Path]:
    """Write a table, whose times are nanoseconds, and the mapping file with which it gives the same rows again."""
    family, rows = rows_to_write(dataset, name, where)
    mapping = out.with_suffix(".toml")
    if mapping == out:
        raise InvalidValue(f"{out} would be its own mapping: give a name that ends in .csv or .parquet")
    # What no row has is left out, and so is where a row came from: imported again, that is this table.
    rows = rows.select(column.name for column in rows if column.count() and column.name not in PROVENANCE)
    refuse_existing(mapping)
    write_atomically(out, lambda path: write(rows, path))
    write_mapping(mapping, family, rows)
    return [out, mapping]


def write_mapping(path: Path, family: Family, rows: pl.DataFrame) -> None:
    """Write the mapping of a table that has a dataset's columns."""
    used = [name for name in (*schema.parameter_columns(family), *schema.MEASURED) if name in rows.columns]
    ignored = [name for name in rows.columns if name not in (*used, "device")]
    declared = declaration_of(family)
    lines = [] if declared else [f"family = {toml_string(family.id)}"]
    if "device" in rows.columns:
        lines.append('device = { column = "device" }')
    if schema.LABEL in used:
        lines.append(f"label = {toml_string(schema.LABEL)}")
    lines.append(f"ignore = [{', '.join(map(toml_string, ignored))}]")
    if declared is not None:
        # Nothing is installed that the mapping could name.
        lines += ["", *family_tables(declared)]
    for section in ("problem", "config"):
        own = [name for name in used if name.startswith(f"{section}.")]
        lines += ["", f"[{section}]", *(f"{toml_string(name.partition('.')[2])} = {toml_string(name)}" for name in own)]
    measured = [name for name in used if name in schema.MEASURED and name not in (TIME, schema.LABEL)]
    lines += ["", "[measured]", *(f"{name} = {toml_string(name)}" for name in measured)]
    lines += ["", "[time]", f"column = {toml_string(TIME)}", 'unit = "ns"']
    write_text(path, "\n".join(lines) + "\n")


class Csv(Importer):
    """CSV files with a mapping."""

    name = "csv"
    doc = "any CSV table, with `mapping` FILE.toml (draft one with `guess`)"

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        mapping = read_mapping(options.mapping)
        table = read_csv_text(path, options.skips)
        yield from options.skips.convert(table, lambda rows: map_table(rows, mapping, options))

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        return _write(dataset, out, family, where, lambda rows, path: rows.write_csv(path))


class Parquet(Importer):
    """Parquet files with a mapping."""

    name = "parquet"
    doc = "any parquet table, with `mapping` FILE.toml (draft one with `guess`)"

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        mapping = read_mapping(options.mapping)
        yield from options.skips.convert(read_parquet_table(path), lambda rows: map_table(rows, mapping, options))

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        return _write(dataset, out, family, where, lambda rows, path: rows.write_parquet(path, compression="zstd"))


def table_format(path: Path, format_name: str | None) -> str:
    """`csv` or `parquet`: the one that is named, or what the file's name says."""
    name = format_name or path.suffix.lower().removeprefix(".")
    if name in (Csv.name, Parquet.name):
        return name
    if format_name is not None:
        raise InvalidValue(f"a mapping is drafted for csv and parquet; {format_name} needs none")
    raise InvalidValue(f"{path} is neither .csv nor .parquet: say which it is with `file_format`")


def read_table(format_name: str, path: Path) -> pl.DataFrame:
    """The raw table of either format, for drafting a mapping."""
    try:
        return read_csv_text(path, Skips()) if format_name == "csv" else read_parquet_table(path)
    except KerncastError as error:
        raise BadFile(f"{path}, {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error


# A mapping for `import csv`: its keys are checked against what the family declares.
MAPPING = kind_of_toml("mapping", frozenset({"family", "time"}), read_mapping)
