"""`kerncast.read`: convert another tool's table of measurements into a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import polars as pl

from kerncast.app.api.measured import frame_file, frame_words, mapped_frame, said_of_frames
from kerncast.app.api.results import place_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core import rates
from kerncast.core.io.arguments import Help, given_path, listed, named_values, texts
from kerncast.core.software import EXACTLY
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Options, get_importer
from kerncast.data.frames import Frame, is_frame
from kerncast.data.importing import import_files, recognised
from kerncast.data.isolated_times import IMPORTED_ROWS, isolated_rows, isolated_sentence
from kerncast.errors import InvalidValue
from kerncast.library.declared.declaration import is_written


def read(
    paths: str | Path | Frame | Sequence[str | Path | Frame] = (),
    *,
    file_format: str | None = None,
    out: Annotated[str | Path | None, Help("The directory to write; it must not exist.", metavar="DATASET")] = None,
    device: Annotated[
        str | None,
        Help(
            "The device that was measured, if the table does not say (see `kerncast list device`).",
            metavar="NAME",
            names="devices",
        ),
    ] = None,
    software: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        Help(
            "Software that was measured: commit=…, driver=…. vllm or vllm==0.24.0 (aiconfigurator): read only its rows, of "
            "each device the newest version. May be repeated.",
            metavar="NAME=VALUE|NAME",
        ),
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
    options = Options(
        device, named_values(stated, "software"), described, named_values(constants, "constants"), only=_names(only),
        devices=_names(devices), keep_software=kept,
    )  # fmt: skip
    notes: list[str] = []
    with shown(progress) as show:
        show.stage(f"importing {', '.join(path.name for path in files)}")
        with said_of_frames(frames, own):
            dataset = import_files(name, files, place_of(out, "dataset"), options, notes.append, strict, show)
    notes = [frame_words(note, frames, own) for note in notes]
    worked = (
        []
        if any_worked(dataset)
        else ["! no row worked: check `failed` and `status` in the mapping, and the column of the time"]
    )
    dataset.notes = (*notes, *_rate_notes(dataset), *_isolated_notes(dataset), *worked)
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


def _isolated_notes(dataset: Dataset) -> list[str]:
    """The rows whose times cannot be right."""
    families = [family for family in dataset.families if dataset.rows_of(family) <= IMPORTED_ROWS]
    return [f"! {isolated_sentence(found)}" for found in (isolated_rows(dataset, item) for item in families) if found["rows"]]


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Names, each alone or several in one text with commas between them."""
    return tuple(name.strip() for text in texts(given) for name in text.split(",") if name.strip())


def _kept_and_stated(
    software: Mapping[str, str] | Sequence[str] | None,
) -> tuple[tuple[str, ...], Mapping[str, str] | Sequence[str] | None]:
    """The software whose rows to keep (`vllm`, `vllm==0.24.0`), and what the caller says of all rows (`driver=570`)."""
    if software is None or isinstance(software, Mapping):
        return (), software
    given = texts(software)
    kept = tuple(text for text in given if "=" not in text.replace(EXACTLY, ""))
    return kept, [text for text in given if text not in kept]
