"""`kerncast.read`: convert another tool's table of measurements into a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from kerncast import rates
from kerncast.api.measured import frame_file, mapped_frame
from kerncast.api.results import listed, named_values, place_of, texts
from kerncast.api.showing import Wanted, shown
from kerncast.data.dataset import Dataset
from kerncast.data.frames import Frame, is_frame
from kerncast.data.importers import Options, get_importer, import_files
from kerncast.data.importers.recognise import recognised
from kerncast.declared.declaration import is_written
from kerncast.errors import InvalidValue
from kerncast.files.places import given_path
from kerncast.software import EXACTLY


def read(
    paths: str | Path | Frame | Sequence[str | Path | Frame] = (),
    *,
    format: str | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    software: Mapping[str, str] | Sequence[str] | None = None,
    mapping: str | Path | None = None,
    set: Mapping[str, str] | Sequence[str] | None = None,
    only: str | Sequence[str] = (),
    devices: str | Sequence[str] = (),
    installed: bool = False,
    strict: bool = False,
    progress: Wanted = "auto",
) -> Dataset:
    """Read one or several files of one format, or a frame of polars or pandas, into a new dataset.

    A frame is read as a file with the same columns would be, with a `mapping`. One that has a dataset's columns (`family`,
    `device`, `problem.M` or `M`, `config.tile_m`, `time_ns`, perhaps `status`) needs none.

    `format` is recognised from the files if possible; if not, the error lists all formats. Units are converted, repeats
    and failures are kept, and every row records its file and line. A row that cannot be represented is skipped:
    `dataset.skipped` counts such rows by kind and keeps them. `strict=True` refuses the first one instead, and then nothing
    is written. If more than half of the rows of a file were skipped, the file is refused. `dataset.notes` says what else was
    left out or changed, and why.

    A format of many tables (aiconfigurator) can be read in part: `only` names ops (`gemm`), families or kinds of table,
    `devices` the devices, and `software` without `=` the software (`vllm`: of each device, the newest version that it has;
    `vllm==0.24.0`). `installed` reads the tables of the installed package of such a format, which is not imported.
    """
    files = []
    for path in listed(paths):
        if not is_frame(path):
            files.append(given_path(path, "a file, a frame, or a list of these", "name the file, or give a frame"))
        elif mapping is None and format is None and (found := mapped_frame(path, None)) is not None:
            files.append(found[0])
            mapping = found[1]
        else:
            files.append(frame_file(path))
    if installed:
        if files or format is None:
            raise InvalidValue("`installed` reads the files of an installed package: name the `format`, and no file")
        files = [get_importer(format).installed()]
    if not files:
        raise InvalidValue("there is nothing to read: name at least one file")
    name = format or recognised(files, mapping is not None)
    get_importer(name)
    described = (
        None if mapping is None else given_path(mapping, "`mapping`: a TOML file", "write it to one, see docs/tables.md")
    )
    kept, stated = _kept_and_stated(software)
    options = Options(
        device, named_values(stated, "software"), described, named_values(set, "set"), only=_names(only),
        devices=_names(devices), keep_software=kept,
    )  # fmt: skip
    notes: list[str] = []
    with shown(progress) as show:
        show.stage(f"importing {', '.join(path.name for path in files)}")
        dataset = import_files(name, files, place_of(out, "dataset"), options, notes.append, strict, show)
    dataset.notes = (*notes, *_rate_notes(dataset))
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
