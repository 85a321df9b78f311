"""From the journal to the dataset."""

from __future__ import annotations

import polars as pl

from kerncast.collecting.journal import refused
from kerncast.collecting.messages import Ready
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.data.journal import NAME, STATE, journal_rows
from kerncast.errors import BadFile, CannotWrite
from kerncast.files.atomic import reason
from kerncast.op import Family


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """Write the journal's final records as a part of the dataset, and only then remove the journal."""
    path = dataset.path / NAME
    header, frame = journal_rows(path, family)
    if frame.height:
        present = _already_compacted(dataset, family, header.run_id)
        profile = DeviceRecord(**ready.device)
        new = frame.filter(~frame["key"].is_in(list(present)))
        try:
            dataset.append(family, new, machines=[profile])
        except schema.Mislabelled as error:
            raise BadFile(f"{path} is damaged, {error}: move the file away to measure again, or restore it") from error
        except (OSError, CannotWrite, pl.exceptions.ComputeError) as error:  # polars raises the last one for a full disk
            why = error.__cause__ or error if isinstance(error, CannotWrite) else error
            raise refused(dataset.path, reason(why), f"all {frame.height:,} rows are safe in {path}") from error
    path.unlink()
    (dataset.path / STATE).unlink(missing_ok=True)


def _already_compacted(dataset: Dataset, family: Family, run_id: str) -> set[str]:
    """Keys of this run that a crash between the two steps left in both places."""
    if family not in dataset.families:
        return set()
    return set(dataset.scan(family).filter(pl.col("run_id") == run_id).select("key").collect().to_series())
