"""Recognise the format of a file: every importer looks at its first bytes, and exactly one must accept them."""

from __future__ import annotations

import gzip
import itertools
import zipfile
from collections.abc import Sequence
from pathlib import Path

from kerncast.core.io.arguments import refuse_endless
from kerncast.core.io.foreign import guarded, refuse_large_members
from kerncast.core.io.parquet import parquet_columns
from kerncast.data.importers import Head, importers
from kerncast.errors import InvalidValue

# Enough for a header and the first rows; an archive is not unpacked further.
HEAD_BYTES = 65_536
# Files of a folder that are looked at, by name only.
MOST_NAMES = 20_000
WITH_MAPPING = {".csv": "csv", ".parquet": "parquet"}


def recognised(paths: Sequence[Path], mapped: bool = False) -> str:
    """The format of some files; if no importer recognises it, or several do, the caller must name it."""
    suffix = paths[0].suffix.lower()
    if mapped and suffix in WITH_MAPPING:
        return WITH_MAPPING[suffix]
    head = head_of(paths[0])
    known = [name for name, importer in importers().items() if importer.recognises(head)]
    if len(known) == 1:
        return known[0]
    formats = ", ".join(importers())
    if known:
        raise InvalidValue(f"{paths[0]} may be {' or '.join(known)}: say which with `file_format`")
    if suffix in WITH_MAPPING:
        raise InvalidValue(
            f"{paths[0]} has columns that no known format has: say which column is which parameter with `mapping`, "
            f"or name the `file_format` ({formats})"
        )
    raise InvalidValue(f"{paths[0]} is not recognised: name its `file_format` ({formats})")


def head_of(path: Path) -> Head:
    """The beginning of a file, unpacked if it is an archive or gzipped; of a folder, the names in it."""
    refuse_endless(path)
    with guarded(path, "is it damaged?", "cannot be read"):
        if path.is_dir():
            names = itertools.islice((item.relative_to(path).as_posix() for item in path.rglob("*")), MOST_NAMES)
            return Head(path, names=tuple(sorted(names)))
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
        if data.startswith(b"PK"):
            return _archive(path)
        if data.startswith(b"PAR1"):
            return Head(path, columns=parquet_columns(path))
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(path) as file:
                data = file.read(HEAD_BYTES)
        return Head(path, text=data.decode("utf-8", errors="replace"))


def _archive(path: Path) -> Head:
    with zipfile.ZipFile(path) as archive:
        refuse_large_members(archive, path)
        files = [item for item in archive.infolist() if not item.is_dir() and not item.filename.startswith("__MACOSX/")]
        names = tuple(item.filename for item in files)
        text = ""
        if files:
            with archive.open(files[0]) as file:
                text = file.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return Head(path, text=text, names=names)
