"""Which format a file of choices has, detected by its content, not by its file name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import JSON, is_msgpack_map, load_document
from kerncast.core.op import Family
from kerncast.data.diode_files import is_diode
from kerncast.data.text_table import LINE, read_csv_text, read_parquet_table
from kerncast.errors import BadFile, KerncastError
from kerncast.evaluating.solutions import diode, inductor, listed
from kerncast.evaluating.solutions.records import columns_of, read_records
from kerncast.evaluating.solutions.solution import Solutions, Target, gathered

PARQUET_MAGIC = b"PAR1"
LONGEST_SENTENCE = 600
KNOWN = (
    "a list of problems and configs, a torch-diode file, a PyTorch Inductor lookup table or max-autotune log, "
    "or a table with parameters as columns"
)


def read_solutions(path: Path, family: Family, devices: Sequence[str]) -> Solutions:
    """The choices of a file for a family on the devices of a model; errors say where the file is malformed."""
    target = Target(family, tuple(devices))
    try:
        data = JSON.read(path)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error
    try:
        return _read(path, data, target)
    except KerncastError as error:
        # Errors are one line, even if they quote text of the file.
        said = " ".join(str(error).splitlines())
        raise type(error)(f"{path}, {said if len(said) <= LONGEST_SENTENCE else said[:LONGEST_SENTENCE] + ' …'}") from error


def _read(path: Path, data: bytes, target: Target) -> Solutions:
    if data.startswith(PARQUET_MAGIC):
        frame = read_parquet_table(path)
        return _table(path, "parquet table", frame.drop(LINE).to_dicts(), [f"row {line}" for line in frame[LINE]], target)
    if (binary := is_msgpack_map(data)) or data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{"):
        try:
            # Not a strict parser: PyTorch writes Infinity for what did not run, which is not valid JSON.
            content = load_document(data)
        except ValueError as error:
            what = "the msgpack file cannot be read" if binary else "this is neither a list of solutions nor other JSON"
            raise BadFile(f"{what} ({error}): is it truncated?") from error
        return _parsed(path, content, target)
    frame = read_csv_text(path)
    return _table(path, "CSV table", frame.drop(LINE).to_dicts(), [f"line {line}" for line in frame[LINE]], target)


def _table(path: Path, name: str, rows: Sequence[Mapping[str, Any]], places: Sequence[str], target: Target) -> Solutions:
    names = list(dict.fromkeys(column for row in rows for column in row))
    if not rows:
        raise BadFile(f"the {name} has no rows: give at least one choice")
    columns = columns_of(names, target.family)
    return gathered(path, name, read_records(rows, columns, places, target), target, columns.unread)


def _parsed(path: Path, data: Any, target: Target) -> Solutions:
    """The choices in a file of objects and lists."""
    if isinstance(data, dict):
        inside = next((data[name] for name in ("solutions", "configs") if isinstance(data.get(name), list)), None)
        if inside is not None:
            return _parsed(path, inside, target)
        if inductor.is_lookup_table(data):
            return gathered(path, inductor.TABLE, inductor.read_lookup_table(data, target), target)
        if is_diode(data):
            return gathered(path, diode.FORMAT, diode.read_diode(data, target), target)
        raise BadFile(
            f"this is neither a list of solutions nor another known format ({', '.join(map(str, data))[:200]}): give {KNOWN}"
        )
    if isinstance(data, list) and inductor.is_log(data):
        return gathered(path, inductor.LOG, inductor.read_log(data, target), target)
    if isinstance(data, list) and data and all(_is_record(item) for item in data):
        return _table(path, "list of records", data, [f"record {number}" for number in range(1, len(data) + 1)], target)
    return gathered(path, listed.FORMAT, listed.read_listed(data, target), target)


def _is_record(item: Any) -> bool:
    """An object without nesting: a row of a table."""
    return (
        isinstance(item, dict)
        and bool(item)
        and all(isinstance(name, str) and not isinstance(value, dict | list) for name, value in item.items())
    )
