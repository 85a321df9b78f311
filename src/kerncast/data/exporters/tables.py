"""Rows as a plain table, with the mapping file that reads it back.

The columns are those of the dataset; times are nanoseconds. Imported with that mapping, the table gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from kerncast.core.io.atomic import refuse_existing, write_atomically, write_text
from kerncast.core.io.quoting import toml_string
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.exporters.selected import refuse_nothing
from kerncast.data.schema import LABEL, MEASURED, parameter_columns
from kerncast.data.skipping import LINE
from kerncast.errors import InvalidValue
from kerncast.library.declared.declaration import declaration_of
from kerncast.library.declared.family_text import family_tables

TIME = "time_ns"
PROVENANCE = ("source", LINE)


def write_csv(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A CSV file and its mapping."""
    return _write(dataset, out, family, where, lambda rows, path: rows.write_csv(path))


def write_parquet(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A parquet file and its mapping."""
    return _write(dataset, out, family, where, lambda rows, path: rows.write_parquet(path, compression="zstd"))


def _write(
    dataset: Dataset, out: Path, name: str | None, where: Sequence[str], write: Callable[[pl.DataFrame, Path], None]
) -> list[Path]:
    family, rows = dataset.family(name), dataset.read(name, where)
    refuse_nothing(rows, dataset)
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
    used = [name for name in (*parameter_columns(family), *MEASURED) if name in rows.columns]
    ignored = [name for name in rows.columns if name not in (*used, "device")]
    declared = declaration_of(family)
    lines = [] if declared else [f"family = {toml_string(family.id)}"]
    if "device" in rows.columns:
        lines.append('device = { column = "device" }')
    if LABEL in used:
        lines.append(f"label = {toml_string(LABEL)}")
    lines.append(f"ignore = [{', '.join(map(toml_string, ignored))}]")
    if declared is not None:
        # Nothing is installed that the mapping could name.
        lines += ["", *family_tables(declared)]
    for section in ("problem", "config"):
        own = [name for name in used if name.startswith(f"{section}.")]
        lines += ["", f"[{section}]", *(f"{toml_string(name.partition('.')[2])} = {toml_string(name)}" for name in own)]
    measured = [name for name in used if name in MEASURED and name not in (TIME, LABEL)]
    lines += ["", "[measured]", *(f"{name} = {toml_string(name)}" for name in measured)]
    lines += ["", "[time]", f"column = {toml_string(TIME)}", 'unit = "ns"']
    write_text(path, "\n".join(lines) + "\n")
