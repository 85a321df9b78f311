"""Data as the public functions take them: datasets, their paths, and frames, which the importer of tables reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from kerncast.app.api.results import place_of
from kerncast.core.io.arguments import given_path, listed
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Options
from kerncast.data.formats.table import PROVENANCE, TIME, write_mapping
from kerncast.data.frames import Frame, as_polars, is_frame
from kerncast.data.importing import import_files
from kerncast.data.schema import parameter_columns, schema_of
from kerncast.data.skipping import LINE
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library.declared.declaration import met_family
from kerncast.library.declared.family_file import family_named
from kerncast.models.problem_frames import refuse_differing, refuse_other_case

Data = Dataset | str | Path | Frame | Sequence[Dataset | str | Path | Frame]
"""A dataset, its path, a frame of measurements, or several of these."""


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
        return import_files("parquet", [path], place_of(None, "dataset"), Options(mapping=mapping), strict=True).path


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
