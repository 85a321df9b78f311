"""Where AIConfigurator's tables are: a parquet file, a folder of them, the wheel that ships them, its installed package."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from kerncast.core.io.atomic import scratch_folder
from kerncast.core.io.foreign import guarded, refuse_large_members
from kerncast.errors import BadFile, NotFound

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
