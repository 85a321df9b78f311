"""Tables of predictions (`save_predictions`): parquet, with a checksum of the cells in the file's metadata."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kerncast.data.schema import content_digest
from kerncast.errors import BadFile, KerncastError
from kerncast.files.atomic import write_atomically
from kerncast.files.parquet import parquet_metadata, read_parquet

KEY = "kerncast-predictions"


def write_predictions(path: Path, frame: pl.DataFrame) -> None:
    """Write a table, whole or not at all."""
    content = content_digest([frame])
    write_atomically(path, lambda draft: frame.write_parquet(draft, metadata={KEY: content}))


def is_predictions(path: Path) -> bool:
    """Whether a parquet file says that it is such a table."""
    try:
        return KEY in parquet_metadata(path)
    except (OSError, KerncastError, pl.exceptions.PolarsError):
        return False


def read_predictions(path: Path) -> pl.DataFrame:
    """A table as it was written; one that was changed is refused."""
    again = "evaluate the model again"
    try:
        content, frame = parquet_metadata(path)[KEY], read_parquet(path)
    except (OSError, KeyError, pl.exceptions.PolarsError) as error:
        raise BadFile(f"{path} is damaged ({(str(error).splitlines() or ['unreadable'])[0]}): {again}") from error
    if content_digest([frame]) != content:
        raise BadFile(f"{path} differs from its checksum: {again}")
    return frame
