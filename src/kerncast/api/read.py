"""`kerncast.read`: convert another tool's table of measurements into a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kerncast.api.results import listed, named_values, place_of
from kerncast.api.showing import Wanted, shown
from kerncast.data.dataset import Dataset
from kerncast.data.importers import Options, get_importer, import_files
from kerncast.data.importers.recognise import recognised
from kerncast.errors import InvalidValue
from kerncast.files.given import given_path


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    software: Mapping[str, str] | Sequence[str] | None = None,
    mapping: str | Path | None = None,
    set: Mapping[str, str] | Sequence[str] | None = None,
    strict: bool = False,
    progress: Wanted = "auto",
) -> Dataset:
    """Read one or several files of one format into a new dataset.

    `format` is recognised from the files if possible; if not, the error lists all formats. Units are converted, repeats
    and failures are kept, and every row records its file and line. A row that cannot be represented is skipped:
    `dataset.skipped` counts such rows by kind and keeps them. `strict=True` refuses the first one instead, and then nothing
    is written. If more than half of the rows of a file were skipped, the file is refused. `dataset.notes` says what else was
    left out or changed, and why.
    """
    frame = "write the table to a file (`frame.write_csv(path)`) and name that"
    files = [given_path(path, "a file or a list of files", frame) for path in listed(paths)]
    if not files:
        raise InvalidValue("there is nothing to read: name at least one file")
    name = format or recognised(files, mapping is not None)
    get_importer(name)
    described = (
        None if mapping is None else given_path(mapping, "`mapping`: a TOML file", "write it to one, see docs/tables.md")
    )
    options = Options(device, named_values(software, "software"), described, named_values(set, "set"))
    notes: list[str] = []
    with shown(progress) as show:
        show.stage(f"importing {', '.join(path.name for path in files)}")
        dataset = import_files(name, files, place_of(out, "dataset"), options, notes.append, strict)
    dataset.notes = tuple(notes)
    return dataset
