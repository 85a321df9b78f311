"""AIConfigurator's tables: where they are (a parquet file, a folder of them, the wheel that ships them, its installed
package), and their rows: the types of their columns, what their texts mean, which are refused."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import msgspec
import polars as pl

from kerncast.core.io.atomic import scratch_folder
from kerncast.core.io.foreign import guarded, refuse_large_members
from kerncast.core.software import FRAMEWORK, VERSION, framework
from kerncast.data.formats import Imported, ImportOptions, extra_columns
from kerncast.data.formats.aiconfigurator.kinds import Kind, KindRows
from kerncast.data.skipping import BadRows, shortened
from kerncast.data.tables import LINE, as_type, read_parquet_table, refuse_cells, respelled
from kerncast.errors import BadFile, NotFound
from kerncast.library import devices

PACKAGE, WHEEL = "aiconfigurator_core", "aiconfigurator-core"
SUFFIX = "_perf.parquet"


@dataclass(frozen=True)
class Place:
    """One table: the kind that its name says, and where it is."""

    kind: str
    """Empty for a file that was named itself: its columns tell the kind."""
    name: str
    """Its path in the folder or the archive; empty for a file that was named itself."""
    file: Path | None
    """None: it is in the archive."""

    @property
    def numbered_through(self) -> bool:
        """Whether its rows are counted on from those of the table before it: it is no file of its own in a folder."""
        return self.file is None or not self.name

    @property
    def where(self) -> str:
        """What messages about the table begin with."""
        return f"{self.name}, " if self.name else ""


class Tables:
    """The tables at a path, each to be read in turn."""

    def __init__(self, places: Sequence[Place], archive: zipfile.ZipFile | None = None, folder: Path | None = None) -> None:
        self.places, self._archive, self._folder = tuple(places), archive, folder

    def file(self, place: Place) -> Path:
        """A file to read a table from. One of an archive is unpacked, over the one before it."""
        if place.file is not None:
            return place.file
        assert self._archive is not None
        assert self._folder is not None
        target = self._folder / "table.parquet"
        with guarded(place.name, "is the archive cut or damaged?", "cannot be unpacked"):
            target.write_bytes(self._archive.read(place.name))
        return target


@contextmanager
def tables_at(path: Path) -> Iterator[Tables]:
    """The tables at a path: of a folder and of an archive those that are called so, sorted by their names."""
    if path.is_dir():
        files = sorted(item.relative_to(path).as_posix() for item in path.rglob(f"*{SUFFIX}") if item.is_file())
        yield Tables([Place(kind_of(name), name, path / name) for name in _refused_if_none(files, "folder")])
        return
    with path.open("rb") as file:
        begin = file.read(4)
    if begin[:2] != b"PK":
        if begin != b"PAR1":
            raise BadFile("not a parquet file: a table is a …_perf.parquet (a CSV can be read with `kerncast import csv`)")
        yield Tables([Place("", "", path)])
        return
    with guarded("the archive", "is it cut or damaged?", "cannot be read"):
        archive = zipfile.ZipFile(path)
    with archive, scratch_folder() as folder:
        refuse_large_members(archive, path)
        files = sorted({name for name in archive.namelist() if name.endswith(SUFFIX)})
        yield Tables([Place(kind_of(name), name, None) for name in _refused_if_none(files, "archive")], archive, folder)


def _refused_if_none(files: Sequence[str], place: str) -> Sequence[str]:
    if not files:
        raise BadFile(f"the {place} holds no table (…{SUFFIX}): there is nothing to import")
    return files


def kind_of(name: str) -> str:
    """The kind of a table by the name of its file: `gemm` for `h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet`."""
    return PurePosixPath(name).name.removesuffix(SUFFIX)


def installed() -> Path:
    """The folder of tables of the installed package, which is not imported."""
    try:
        spec = find_spec(PACKAGE)
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        if Path(folder).is_dir():
            return Path(folder)
    raise NotFound(f"the package {WHEEL} is not installed: `pip install {WHEEL}`, or name its wheel or a folder of its tables")


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


def translated(table: pl.DataFrame, kind: Kind, wanted: tuple[KindRows, ...], options: ImportOptions) -> Iterator[Imported]:
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


def _dtypes(table: pl.DataFrame, rows: KindRows, parameter: str, column: str) -> pl.Expr:
    """The element types of a column; those that the family does not take are refused."""
    meant = {said: rows.dtype(parameter, said) for said in table[column].unique().sort()}
    unknown = [said for said, found in meant.items() if found is None]
    own = [*rows.meant, *(name for name in rows.names_of(parameter) if name not in rows.meant.values())]
    refuse_cells(table, table[column].is_in(unknown), column, f"must be one of {', '.join(own)}")
    return pl.col(column).replace_strict(meant, return_dtype=pl.String)


def _kernel_sources(table: pl.DataFrame, rows: KindRows) -> dict[str, pl.Expr]:
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


def _software(table: pl.DataFrame, kind: Kind, options: ImportOptions) -> pl.Expr:
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
