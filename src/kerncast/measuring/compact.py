"""From the journal to the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from kerncast.core.io.atomic import reason
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.data.journal import NAME, STATE, final_rows, header_of
from kerncast.errors import BadFile, CannotWrite
from kerncast.measuring.journal import refused
from kerncast.measuring.messages import Ready

# Rows of a part: a part is checked, written and hashed as a whole, which takes two kilobytes of memory for each row.
PART_ROWS = 25_000


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """Write the journal's final records as parts of the dataset, and only then remove the journal."""
    path = dataset.path / NAME
    present = _already_compacted(dataset, family, header_of(path).run_id)
    profile = DeviceRecord(**ready.device)
    try:
        for rows in _parts(final_rows(path, family)):
            dataset.append(family, rows.filter(~rows["key"].is_in(present.implode())), machines=[profile])
    except schema.Mislabelled as error:
        raise BadFile(f"{path} is damaged, {error}: move the file away to measure again, or restore it") from error
    except (OSError, CannotWrite, pl.exceptions.ComputeError) as error:  # polars raises the last one for a full disk
        why = error.__cause__ or error if isinstance(error, CannotWrite) else error
        raise refused(dataset.path, reason(why), f"all {_count(path, family):,} rows are safe in {path}") from error
    # The journal goes last: as long as it is there, the same command finishes this.
    (dataset.path / STATE).unlink(missing_ok=True)
    path.unlink()


def _parts(batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Batches of rows, put together to parts."""
    held: list[pl.DataFrame] = []
    for batch in batches:
        held.append(batch)
        if sum(item.height for item in held) >= PART_ROWS:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _count(path: Path, family: Family) -> int:
    return sum(batch.height for batch in final_rows(path, family))


def _already_compacted(dataset: Dataset, family: Family, run_id: str) -> pl.Series:
    """Keys of this run that a crash between the two steps left in both places."""
    if family not in dataset.families:
        return pl.Series("key", [], dtype=pl.String)
    return dataset.scan(family).filter(pl.col("run_id") == run_id).select("key").collect().to_series()
