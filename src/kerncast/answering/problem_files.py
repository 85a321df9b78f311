"""Problems to ask about, from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import JSON, guarded, load_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue


def read_problem_file(path: Path, family: Family) -> list[dict[str, Any]]:
    """The problems in a file: JSON objects, or rows of a parquet table, with names like `M` or `problem.M`."""
    if not path.is_file():
        raise InvalidValue(f"'{path}' is neither NAME=VALUE nor a file of problems (.json or .parquet)")
    if path.suffix.lower() == ".csv":
        raise InvalidValue(
            f"problems are NAME=VALUE or a file (.json or .parquet), and '{path}' is a csv table: convert it, "
            f"for example with polars.read_csv('{path}').write_parquet('{path.with_suffix('.parquet')}')"
        )
    with guarded(path, "give a JSON list of objects, or a parquet table", "cannot be read as problems"):
        if path.suffix == ".parquet":
            frame = read_parquet(path)
            named = {*family.problem.parameters, *family.op.products, "device"}
            known = [name for name in frame.columns if name.removeprefix("problem.") in named]
            rows = frame.select(known).unique(maintain_order=True).to_dicts()
        else:
            rows = load_json(JSON.read(path), _once)
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadFile(f'{path} is not a list of problems: give a JSON list of objects like {{"M": 128, …}}, or a parquet table')
    rows = [row["problem"] if isinstance(row.get("problem"), dict) else row for row in rows]
    found = [{name.removeprefix("problem."): value for name, value in row.items() if value is not None} for row in rows]
    if not found:
        raise BadFile(f"{path} holds no problem")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys: it would not be clear which of the values is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the key '{twice}' is given twice")
    return found
