"""From the journal to the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.collecting import journal as journals
from kerncast.collecting.messages import Ready
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.errors import BadFile, CannotWrite
from kerncast.files.atomic import reason
from kerncast.op import Family


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """Write the journal's final records as a part of the dataset, and only then remove the journal."""
    path = dataset.path / journals.NAME
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
            raise journals.refused(dataset.path, reason(why), f"all {frame.height:,} rows are safe in {path}") from error
    path.unlink()


def journal_rows(path: Path, family: Family) -> tuple[journals.Header, pl.DataFrame]:
    """The journal's final records as rows of a dataset."""
    header, records, _ = journals.read(path)
    rows = [_row(family, header, record) for record in journals.final_records(records)]
    return header, pl.DataFrame(rows, schema={**schema.schema_of(family)}, orient="row")


def _already_compacted(dataset: Dataset, family: Family, run_id: str) -> set[str]:
    """Keys of this run that a crash between the two steps left in both places."""
    if family not in dataset.families:
        return set()
    return set(dataset.scan(family).filter(pl.col("run_id") == run_id).select("key").collect().to_series())


def software_text(software: dict[str, str]) -> str:
    """The software as a row stores it."""
    return msgspec.json.encode(dict(sorted(software.items()))).decode()


def _row(family: Family, header: journals.Header, record: dict[str, Any]) -> dict[str, Any]:
    try:
        row = {f"problem.{name}": record["problem"][name] for name in family.problem.parameters}
        row |= {f"config.{name}": record["config"][name] for name in family.config.parameters}
    except KeyError as error:
        raise BadFile(
            f"the journal's records do not fit {family.id}: {error} is missing; finish it with the kerncast that began it"
        ) from error
    row |= {"op": family.op.name, "family": family.id, "device": header.device, "backend": header.backend}
    row |= {"run_id": header.run_id, "software": software_text(header.software)}
    return row | {name: record.get(name) for name in schema.MEASURED if name not in row} | {"key": record["key"]}
