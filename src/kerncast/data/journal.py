"""The journal of a collection: append-only, one checked line per result; what an ended collection leaves behind.

A line is the CRC-32 of the rest in hexadecimal, a space, and JSON. The first line says what began it. A torn
tail (the last line, cut by a crash) is left out; a bad line anywhere else is damage and is refused. `measuring/journal.py`
writes it. Its records are rows of the dataset from the first one on, whether or not the collection was finished.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.foreign import decode_json, key_rule
from kerncast.core.io.lock import is_held
from kerncast.core.op import Family
from kerncast.core.space import Space
from kerncast.data import schema
from kerncast.errors import BadFile

NAME = "journal.jsonl"
FORMAT = "kerncast-journal"
VERSION = 1
LOCK = "collect.lock"
# Records that are decoded at a time: Python objects take ten times the memory of columns.
BATCH = 5_000
# Lines that are read and decoded together, where only a few numbers of each are needed.
READ_BYTES = 2**20
_SPACE, _NEWLINE = b" \n"
# The beginning of a first line whose writing was cut short.
_TORN_HEADER = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} (\{[^\n]*)?")


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What began the journal. A resumed collection must match in everything but `run_id`."""

    family: str
    backend: str
    device: str
    software: dict[str, str]
    run_id: str
    format: str = FORMAT
    version: int = VERSION


# Every line has a checksum of its own.
_HEADER = Versioned(FORMAT, VERSION, Header, "a kerncast journal", "finish it with the kerncast that began it", seal_field="")


def checked(line: bytes) -> bytes | None:
    """The JSON of a line, or None when the line is torn or damaged."""
    if len(line) < 11 or line[8] != _SPACE or line[-1] != _NEWLINE:
        return None
    body = line[9:-1]
    return body if line[:8] == b"%08x" % zlib.crc32(body) else None


def is_begun(path: Path) -> bool:
    """Whether there is a journal with a complete first line; without one it holds nothing yet."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        first = file.readline()
    return first.endswith(b"\n") or not _TORN_HEADER.fullmatch(first)


def header_of(path: Path) -> Header:
    """What began a journal."""
    with path.open("rb") as file:
        return _header(path, file)


def _header(path: Path, file: IO[bytes]) -> Header:
    line = file.readline()
    if not line:
        raise BadFile(f"{path} is empty: remove it to start again")
    return _HEADER.decode(_body(path, 1, line), path)


def _body(path: Path, number: int, line: bytes) -> bytes:
    body = checked(line)
    if body is None:
        raise BadFile(f"{path}, line {number} is damaged: move the file away to start again, or restore it")
    return body


def _bodies(path: Path) -> Iterator[tuple[bytes, int]]:
    """The JSON of every line with the position after it, header included; a torn last line is left out."""
    with path.open("rb") as file:
        _header(path, file)
        at = file.tell()
        yield b"", at
        line, number = file.readline(), 2
        while line:
            following = file.readline()
            if not following and checked(line) is None:
                return
            at += len(line)
            yield _body(path, number, line), at
            line, number = following, number + 1


def good_bytes(path: Path) -> int:
    """The length of the part before a torn last line; damage elsewhere is refused."""
    return max(end for _, end in _bodies(path))


def damaged(path: Path, error: object) -> BadFile:
    """The error for a journal whose rows are not what they must be."""
    return BadFile(f"{path} is damaged, {error}: move the file away to measure again, or restore it")


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, one at a time."""
    return (_record(path, body) for body in _records(path))


def _record(path: Path, body: bytes) -> dict[str, Any]:
    """One record; what has a fitting checksum and is not a result was written by another program."""
    try:
        found = decode_json(body, dict[str, Any])
        msgspec.convert(found, _Result)
    except msgspec.DecodeError as error:
        raise _foreign(path, key_rule(error)) from error
    return found


def _foreign(path: Path, why: str) -> BadFile:
    return BadFile(f"{path} has a line that is not a result ({why}): move the file away to start again, or restore it")


class _Result(msgspec.Struct):
    """What every reader needs of a record, in its type."""

    key: str
    status: str
    problem: dict[str, int | bool | str | None]
    config: dict[str, int | bool | str | None]
    order: int = 0
    block: int = 0
    time_ns: float | None = None
    time_ns_mad: float | None = None
    unsure: bool = False


class Outcome(msgspec.Struct, gc=False):
    """What a resumed collection needs of a record; its problem is decoded only where it is another one than before."""

    key: str
    status: str
    problem: msgspec.Raw
    order: int = 0
    block: int = 0
    time_ns: float | None = None
    time_ns_mad: float | None = None
    unsure: bool = False


def placed_outcomes(path: Path) -> Generator[tuple[list[int], list[Outcome]], None, int]:
    """Every record and the position of its line, some thousands at a time; returns the length before a torn last line."""
    decode = msgspec.json.Decoder(Outcome).decode_lines
    torn, number = 0, 1
    with path.open("rb") as file:
        at = len(file.readline())
        while lines := file.readlines(READ_BYTES):
            places, bodies = list[int](), list[bytes]()
            for line in lines:
                if torn:
                    _body(path, torn, b"")
                number += 1
                body = checked(line)
                if body is None:
                    torn = number
                    continue
                places.append(at)
                bodies.append(body)
                at += len(line)
            # Together: of a million lines, calling a decoder for each of them takes a second.
            try:
                found = decode(b"\n".join(bodies))
            except msgspec.DecodeError as error:
                raise _foreign(path, key_rule(error)) from error
            if len(found) != len(bodies):
                raise _foreign(path, "it is empty")
            if any(outcome.time_ns is None and outcome.status == "ok" for outcome in found):
                raise _foreign(path, "it is ok and has no time")
            yield places, found
    return at


def distinct_keys(path: Path) -> int:
    """How many vectors have a record."""
    keys = _key_hashes(path)
    return len(np.unique(keys))


def record_at(path: Path, file: IO[bytes], at: int) -> dict[str, Any]:
    """The record whose line is at a position of an open journal."""
    file.seek(at)
    body = checked(file.readline())
    if body is None:
        raise BadFile(f"{path} is damaged at byte {at:,}: move the file away to start again, or restore it")
    record: dict[str, Any] = decode_json(body)
    return record


def journal_rows(path: Path, family: Family) -> tuple[Header, pl.DataFrame]:
    """The journal's final records as rows of a dataset."""
    return header_of(path), pl.concat([pl.DataFrame(schema=schema.schema_of(family)), *final_rows(path, family)])


def final_rows(path: Path, family: Family) -> Iterator[pl.DataFrame]:
    """The journal's final records as rows of a dataset, some at a time. A later record of a key replaces the earlier one."""
    header, wanted = header_of(path), schema.schema_of(family)
    batch: list[dict[str, Any]] = []
    for record in _final_records(path):
        batch.append(_row(family, header, record))
        if len(batch) == BATCH:
            yield _frame(path, batch, wanted)
            batch = []
    if batch:
        yield _frame(path, batch, wanted)


def _frame(path: Path, rows: list[dict[str, Any]], wanted: Mapping[str, Any]) -> pl.DataFrame:
    try:
        return pl.DataFrame(rows, schema={**wanted}, orient="row")
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        raise _foreign(path, next(iter(str(error).splitlines()), type(error).__name__)) from error


class _Key(msgspec.Struct):
    """Of a record, its key alone."""

    key: str


def _key_hashes(path: Path) -> Ints:
    """A hash of the key of each record."""
    key_of = msgspec.json.Decoder(_Key)
    try:
        return np.fromiter((hash(key_of.decode(body).key) for body in _records(path)), np.int64)
    except msgspec.DecodeError as error:
        raise _foreign(path, key_rule(error)) from error


def _final_records(path: Path) -> Iterator[dict[str, Any]]:
    """The last record of each key, in the place of its first one.

    The journal is read up to three times, so that only the records of keys that occur again are held, and of the others a hash.
    """
    key_of = msgspec.json.Decoder(_Key)
    hashes = _key_hashes(path)
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    again = np.zeros(len(hashes), dtype=bool)
    again[order[1:][same]] = again[order[:-1][same]] = True
    del hashes, order, same
    last: dict[str, bytes] = {}
    # A line that was added meanwhile is left for the next reader.
    if again.any():
        last = {key_of.decode(body).key: body for body, held in zip(_records(path), again, strict=False) if held}
    for body, held in zip(_records(path), again, strict=False):
        record = _record(path, body)
        if not held:
            yield record
        elif record["key"] in last:
            yield _record(path, last.pop(record["key"]))


def _records(path: Path) -> Iterator[bytes]:
    return (body for body, _ in _bodies(path) if body)


def software_text(software: dict[str, str]) -> str:
    """The software as a row stores it."""
    return msgspec.json.encode(dict(sorted(software.items()))).decode()


def _row(family: Family, header: Header, record: dict[str, Any]) -> dict[str, Any]:
    row = _values(family, family.problem, "problem", record) | _values(family, family.config, "config", record)
    row |= {"op": family.op.name, "family": family.id, "device": header.device, "backend": header.backend}
    row |= {"run_id": header.run_id, "software": software_text(header.software)}
    return row | {name: record.get(name) for name in schema.MEASURED if name not in row} | {"key": record["key"]}


def _values(family: Family, space: Space, half: str, record: dict[str, Any]) -> dict[str, Any]:
    """One half of a vector; a parameter that did not exist when the journal was written has its default."""
    given, row = record[half], {}
    for name, parameter in space.parameters.items():
        if name not in given and parameter.default is None and name not in space.active and not parameter.optional:
            raise BadFile(
                f"the journal's records do not fit {family.id}: '{name}' is missing; finish it with the kerncast that began it"
            )
        row[f"{half}.{name}"] = given.get(name, parameter.default if name not in space.active else None)
    return row


# -- how far it came -------------------------------------------------------------------------------------

STATE = "collection.json"
Ended = Literal["budget", "stopped", "device_lost", "environment", "alike_failures"]
WORDS: dict[str | None, str] = {
    "budget": "its budget ended it",
    "stopped": "it was stopped",
    "device_lost": "its device was lost",
    "environment": "the machine around the kernels failed",
    "alike_failures": "too many kernels in a row failed alike",
    None: "it was killed",
}


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `collection.json`, which is there until a collection is finished."""

    vectors: int | None = None
    """How many vectors it was asked for."""
    measured: int | None = None
    """How many of them had a row when it ended; None while it runs, and after it was killed."""
    ended: Ended | None = None
    format: str = "kerncast-collection"
    version: int = 1


STATE_FILE = Versioned("kerncast-collection", 1, State, "the state of a collection", "remove the file: the rows do not need it")


@dataclass(frozen=True)
class Completeness:
    """How far an unfinished collection came."""

    vectors: int | None
    """How many vectors it was asked for; None: not known."""
    measured: int
    """How many of them have a row, at least."""
    ended: Ended | Literal["running"] | None
    """What ended it; None: it was killed."""

    def __str__(self) -> str:
        if self.vectors is None:
            return f"unfinished collection: {self.measured:,} vectors have a row"
        share = f" ({self.measured / self.vectors:.0%})" if self.vectors else ""
        why = "it is being measured now" if self.ended == "running" else WORDS[self.ended]
        return f"unfinished collection: {self.measured:,} of {self.vectors:,} vectors{share} have a row, because {why}"

    @property
    def next_step(self) -> str:
        """How the rest gets its rows."""
        return "" if self.ended == "running" else "`kerncast collect` with the same options and `--resume` measures the rest"


def completeness(folder: Path, journaled: int) -> Completeness:
    """How far the collection in a folder came; `journaled` rows are in its journal."""
    path = folder / STATE
    state = STATE_FILE.read(path) if path.exists() else State()
    running = state.ended is None and is_held(folder / LOCK)
    measured = journaled if state.measured is None else max(state.measured, journaled)
    return Completeness(state.vectors, measured, "running" if running else state.ended)
