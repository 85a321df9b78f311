"""`kerncast.read` and `kerncast.open`: tables of other tools and frames as datasets, and what is at a path."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import polars as pl

import kerncast.answering  # noqa: F401 (Model.predict is compiled by it)
from kerncast.app.api.arguments import Data, place_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core import rates
from kerncast.core.io.arguments import Help, given_path, listed, named_values, split_texts, texts
from kerncast.core.op import Family
from kerncast.core.software import EXACTLY
from kerncast.data.dataset import MANIFEST as DATASET_FILE
from kerncast.data.dataset import Dataset
from kerncast.data.formats import ImportOptions, get_importer
from kerncast.data.formats.table import PROVENANCE, TIME, write_mapping
from kerncast.data.importing import import_files, recognised
from kerncast.data.row_checks import IMPORTED_ROWS, isolated_rows, isolated_sentence
from kerncast.data.schema import parameter_columns, schema_of
from kerncast.data.skipping import LINE
from kerncast.data.tables import Frame, as_polars, is_frame
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library.declared.declaration import is_written, met_family
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.sweeping import Vectors
from kerncast.measuring.sweeping.files import MANIFEST as VECTORS_FILE
from kerncast.models.model import Model, is_model
from kerncast.models.problem_frames import refuse_differing, refuse_other_case
from kerncast.models.store.entry import Entry
from kerncast.models.store.store import Store


def paths_of(data: Data, family: Family | str | None = None) -> list[Path]:
    """The paths of datasets; a frame becomes one, of which no row is skipped. `family` is that of frames that name none."""
    several = listed(data)
    if not several:
        raise InvalidValue("there is no dataset: name at least one")
    next_step = "make a dataset of a table with `kerncast.read`"
    return [
        item.path if isinstance(item, Dataset)
        else _imported(item, family) if is_frame(item)
        else given_path(item, "a dataset, its path or a frame", next_step)
        for item in several
    ]  # fmt: skip


def _imported(frame: Frame, family: Family | str | None) -> Path:
    found = mapped_frame(frame, family)
    if found is None:
        raise InvalidValue(f"the frame has no column '{TIME}': name its columns as a dataset's are, or in a mapping, and read "
                           "it with `kerncast.read(frame, mapping=…)`")  # fmt: skip
    if "device" not in as_polars(frame).columns:
        raise InvalidValue("the frame does not say which device its rows were measured on: add a column 'device', or read it "
                           "with `kerncast.read(frame, device=…)`")  # fmt: skip
    path, mapping = found
    with said_of_frames([path]):
        return import_files("parquet", [path], place_of(None, "dataset"), ImportOptions(mapping=mapping), strict=True).path


@contextmanager
def said_of_frames(paths: Collection[Path], mapped: bool = False) -> Iterator[None]:
    """Errors about the files of frames speak of the frames."""
    try:
        yield
    except KerncastError as error:
        error.args = (frame_words(str(error), paths, mapped), *error.args[1:])
        raise


def frame_words(text: str, paths: Collection[Path], mapped: bool = False) -> str:
    """`row 7 of the frame` instead of a line of a file that the user has not got, and nothing of a mapping that they did not
    write (unless it is `mapped`)."""
    for path in paths:
        text = re.sub(rf"{re.escape(str(path))}[,:] line (\d+)", r"row \1 of the frame", text)
        text = text.replace(f"{path.with_suffix('.toml')}: ", "").replace(str(path), "the frame")
    return text if mapped or not paths else re.sub(r" \(or be listed under [^)]*\)|; or translate it under `values`", "", text)


def frame_file(given: Frame) -> Path:
    """The frame in a file; NaN is an empty cell, as in any frame. Which line of another file a row came from is left aside."""
    path = place_of(None, "frame.parquet")
    frame = as_polars(given).drop(LINE, strict=False)
    try:
        frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None)).write_parquet(path)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InvalidValue(f"the frame has columns that are no numbers or texts ({error}): drop or convert them") from error
    return path


def mapped_frame(given: Frame, family: Family | str | None) -> tuple[Path, Path] | None:
    """The file of a frame with a dataset's columns (`problem.M` or `M`, `config.tile_m`, `time_ns`), and its mapping.

    None: it has other columns. What a dataset does not have is left aside, and where a row came from: that is this frame.
    """
    frame = as_polars(given)
    if TIME not in frame.columns:
        return None
    if not frame.height:
        raise InvalidValue("the frame has no rows: there is nothing to read")
    found = family if isinstance(family, Family) else _named(family or _family_in(frame))
    frame = _renamed(found, frame)
    kept = set(schema_of(found)) - {"key", "op", "family", *PROVENANCE}
    frame = frame.select(column.name for column in frame if column.name in kept and column.count())
    path = frame_file(frame)
    mapping = path.with_suffix(".toml")
    write_mapping(mapping, found, frame)
    return path, mapping


def _named(family: str) -> Family:
    try:
        return family_named(family)
    except NotFound as error:
        met = met_family(family)
        if met is not None:
            return met
        raise NotFound(
            f"{error}; one of your own is known once its dataset was opened here (`kerncast.open`), or by a mapping or a TOML "
            "file with its [op] and [family] tables: `kerncast.read(frame, mapping=…)`, `kerncast.train(frame, family=…)`"
        ) from error


def _family_in(frame: pl.DataFrame) -> str:
    """The family that the rows name."""
    if "family" not in frame.columns:
        raise InvalidValue("the frame does not say which family its rows are of: add a column 'family', or name its columns in "
                           "a mapping (docs/tables.md) and read it with `kerncast.read`")  # fmt: skip
    names = frame["family"].unique(maintain_order=True).to_list()
    if len(names) != 1 or not isinstance(names[0], str):
        raise InvalidValue(f"a frame has rows of one family, got {', '.join(map(str, names)) or 'no rows'}: take one at a time")
    return names[0]


def _renamed(family: Family, frame: pl.DataFrame) -> pl.DataFrame:
    """Parameters under their stored names; what is called like one and is none is refused."""
    stored = parameter_columns(family)
    for name in frame.columns:
        if name.startswith(("problem.", "config.")) and name not in stored:
            what, _, bare = name.partition(".")
            space = family.problem if what == "problem" else family.config
            raise NotFound.named(f"{what} parameter of {family.id}", bare, space.parameters)
    refuse_other_case(family, frame.columns)
    refuse_differing(frame, {name: name.partition(".")[2] for name in stored})
    own = {name.partition(".")[2]: name for name in reversed(stored) if name not in frame.columns}
    return frame.rename({name: column for name, column in own.items() if name in frame.columns})


def read(
    paths: str | Path | Frame | Sequence[str | Path | Frame] = (),
    *,
    file_format: str | None = None,
    out: Annotated[str | Path | None, Help("The directory to write; it must not exist.", metavar="DATASET")] = None,
    device: Annotated[
        str | None,
        "The device that was measured, if the table does not say (see `kerncast list device`).",
        Help(metavar="NAME", names="devices"),
    ] = None,
    software: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        "Software that was measured: commit=…, driver=…. vllm or vllm==0.24.0 (aiconfigurator): read only its rows, of "
        "each device the newest version. May be repeated.",
        Help(metavar="NAME=VALUE|NAME"),
    ] = None,
    only: Annotated[
        str | Sequence[str],
        Help("Read only these ops or kinds of table, comma-separated: gemm,moe (aiconfigurator).", metavar="NAMES"),
    ] = (),
    devices: Annotated[
        str | Sequence[str],
        Help("Read only rows of these devices, comma-separated: h100,h200 (aiconfigurator).", metavar="NAMES", names="devices"),
    ] = (),
    installed: Annotated[bool, Help("Read the tables of the installed package instead of a PATH (aiconfigurator).")] = False,
    mapping: Annotated[
        str | Path | None, Help("Which column holds which parameter (csv, parquet).", metavar="FILE.toml")
    ] = None,
    constants: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        Help("A parameter that is the same in every row. May be repeated.", metavar="NAME=VALUE", option="--set"),
    ] = None,
    strict: Annotated[
        bool, Help("Refuse the file at the first row that cannot be represented, instead of skipping the row.")
    ] = False,
    progress: Wanted = "auto",
) -> Dataset:
    """Read one or several files of one format, or a frame of polars or pandas, into a new dataset.

    A frame is read as a file with the same columns would be, with a `mapping`. One that has a dataset's columns (`family`,
    `device`, `problem.M` or `M`, `config.tile_m`, `time_ns`, perhaps `status`) needs none.

    `file_format` is recognised from the files if possible; if not, the error lists all formats. Units are converted, repeats
    and failures are kept, and every row records its file and line. A row that cannot be represented is skipped:
    `dataset.skipped` counts such rows by kind and keeps them. `strict=True` refuses the first one instead, and then nothing
    is written. If more than half of the rows of a file were skipped, the file is refused. `dataset.notes` says what else was
    left out or changed, and why.

    A format of many tables (aiconfigurator) can be read in part: `only` names ops (`gemm`), families or kinds of table,
    `devices` the devices, and `software` without `=` the software (`vllm`: of each device, the newest version that it has;
    `vllm==0.24.0`). `installed` reads the tables of the installed package of such a format, which is not imported.
    """
    files, frames, own = [], list[Path](), mapping is not None
    for path in listed(paths):
        if not is_frame(path):
            files.append(given_path(path, "a file, a frame, or a list of these", "name the file, or give a frame"))
        elif mapping is None and file_format is None and (found := mapped_frame(path, None)) is not None:
            files.append(found[0])
            frames.append(found[0])
            mapping = found[1]
        else:
            files.append(frame_file(path))
            frames.append(files[-1])
    if installed:
        if files or file_format is None:
            raise InvalidValue("`installed` reads the files of an installed package: name the `file_format`, and no file")
        files = [get_importer(file_format).installed()]
    if not files:
        raise InvalidValue("there is nothing to read: name at least one file")
    with said_of_frames(frames, own):
        name = file_format or recognised(files, mapping is not None)
    get_importer(name)
    described = (
        None if mapping is None else given_path(mapping, "`mapping`: a TOML file", "write it to one, see docs/tables.md")
    )
    kept, stated = _kept_and_stated(software)
    options = ImportOptions(
        device, named_values(stated, "software"), described, named_values(constants, "constants"), only=split_texts(only),
        devices=split_texts(devices), keep_software=kept,
    )  # fmt: skip
    notes: list[str] = []
    with shown(progress) as show:
        show.stage(f"importing {', '.join(path.name for path in files)}")
        with said_of_frames(frames, own):
            dataset = import_files(name, files, place_of(out, "dataset"), options, notes.append, strict, show)
    notes = [frame_words(note, frames, own) for note in notes]
    notes += _rate_notes(dataset)
    # Rows whose times cannot be right.
    held = (family for family in dataset.families if dataset.rows_of(family) <= IMPORTED_ROWS)
    notes += [f"! {isolated_sentence(found)}" for found in (isolated_rows(dataset, item) for item in held) if found["rows"]]
    if not any_worked(dataset):
        notes.append("! no row worked: check `failed` and `status` in the mapping, and the column of the time")
    dataset.notes = tuple(notes)
    return dataset


def _rate_notes(dataset: Dataset) -> list[str]:
    """What the rows of the user's own ops lack for a roofline."""
    found = []
    for family in filter(is_written, dataset.families):
        columns = ["device", *(["problem.dtype"] if "dtype" in family.problem.parameters else [])]
        rows = dataset.read(family, (), columns).unique()
        names = sorted(rows["device"].unique())
        used = {name: rows.filter(pl.col("device") == name)["problem.dtype"].to_list() for name in names if len(columns) > 1}
        found += rates.notes(family, {dataset.device(name): used.get(name) for name in names}, own=True)
    return found


def any_worked(dataset: Dataset) -> bool:
    """Whether there is a row with a time."""
    ok = (dataset.scan(family).filter(pl.col("status") == "ok") for family in dataset.families)
    return any(rows.head(1).select("status").collect().height for rows in ok)


def _kept_and_stated(
    software: Mapping[str, str] | Sequence[str] | None,
) -> tuple[tuple[str, ...], Mapping[str, str] | Sequence[str] | None]:
    """The software whose rows to keep (`vllm`, `vllm==0.24.0`), and what the caller says of all rows (`driver=570`)."""
    if software is None or isinstance(software, Mapping):
        return (), software
    given = texts(software)
    kept = tuple(text for text in given if "=" not in text.replace(EXACTLY, ""))
    return kept, [text for text in given if text not in kept]


def open(path: str | Path) -> Dataset | Model | Store | Vectors:
    """Open a dataset, a model (CK Tile's layout too), written vectors or a store of models; the files say which it is.

    The id of a model in your store, or of one that ships with kerncast (`shipped/gemm-vllm`), opens that model.
    """
    place = Path(path)
    if (place / DATASET_FILE).is_file():
        return Dataset.open(place)
    if is_model(place):
        return Model.load(place)
    if (place / VECTORS_FILE).is_file():
        return Vectors.open(place)
    if place.is_dir() and next(place.glob("*/*/*/*/*/entry.json"), None) is not None:
        return Store.open(place)
    if (entry := _entry(str(path))) is not None:
        return entry.load()
    if not place.exists():
        raise NotFound(f"there is nothing at {place}: check the path, or see `kerncast models` for the ids of models")
    raise NotFound(
        f"{place} is not a kerncast dataset, model, sweep or store: read another program's table with `kerncast.read`"
    )


def _entry(name: str) -> Entry | None:
    """The model with just this id; a part of an id is enough for the store, but here it may as well be a mistyped path."""
    try:
        found = Store.open().get(name)
    except KerncastError:
        return None
    return found if found.id == name else None
