"""Logs of PyTorch's AutoHeuristic: a JSON line, a CSV header, one row per choice that was timed.

    {"shared_memory": 166912, "device_capa": [8, 0], "name": "mm", "numerical_features": …, "categorical_features": …}
    m,k,n,mat1_dtype,…,choice,feedback
    1920,1024,12288,torch.float16,…,extern_mm,0.2266560047864914

`name` says what was timed, `choice` which kernel, `feedback` the milliseconds of one launch (inf: the choice did not
run). A row that occurs again is a repeat. The log may be in a zip archive. The formats are those written by
https://github.com/pytorch/pytorch/tree/main/torch/_inductor/autoheuristic
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from kerncast.core.io.foreign import JSON, decode_json, guarded, refuse_large_members
from kerncast.data.formats import Head, Imported, Importer, Options, extra_columns, numbered_after
from kerncast.data.formats.autoheuristic.formats import CONTIGUOUS, FORMATS, Format, label
from kerncast.data.skipping import Skips
from kerncast.data.text_table import LINE, respelled
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library import devices

# A log is split into cells this much at a time: the text and its cells take ten times its size.
PIECE_BYTES = 8_000_000


class Metadata(msgspec.Struct, frozen=True):
    """The first line of a log. Other keys are ignored: the features are those that line 2 names."""

    name: str
    shared_memory: int | None = None
    device_capa: tuple[int, int] | None = None


@dataclass(frozen=True)
class Log:
    """One log: its rows as text, with `source_line` counted from its own first line."""

    metadata: Metadata
    table: pl.DataFrame


class AutoHeuristic(Importer):
    """AutoHeuristic logs, as text or in a zip archive."""

    name = "autoheuristic"
    doc = "logs of PyTorch's AutoHeuristic (mm, mixed_mm, flex_attention, pad_mm), text or zip; `device` says the GPU"

    def recognises(self, head: Head) -> bool:
        first = head.text.partition("\n")[0]
        return first.startswith("{") and '"numerical_features"' in first

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("an AutoHeuristic log names its own columns: `constants` and `mapping` do not apply to it")
        before = 0
        for member, data in _texts(path):
            lines = data.count(b"\n") + 1
            try:
                log = parse_log(data, options.skips, before, member)
                del data  # a log may have a million rows, and they are all in `log` now
                _check_device(log.metadata, options.device)
                form, notes = _form(log)
                table = options.skips.convert(log.table, lambda rows, form=form: _rows(form, rows), before, member)  # type: ignore[misc]
            except KerncastError as error:
                raise type(error)(f"{member}{error}") from error
            # Lines are numbered across all logs of an archive, so that every row has a unique number.
            yield replace(numbered_after(table, before), notes=tuple(f"{member}{note}" for note in notes))
            before += lines


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """The logs of a file, each with the prefix of its error messages."""
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
    if not archived:
        yield "", JSON.read(path)
        return
    with guarded("the zip archive", "is it cut or damaged?", "cannot be unpacked"), zipfile.ZipFile(path) as archive:
        refuse_large_members(archive, path)
        names = sorted(item.filename for item in archive.infolist() if not item.is_dir())
        # Files that macOS adds to an archive are not logs.
        names = [name for name in names if not name.startswith("__MACOSX/") and not Path(name).name.startswith(".")]
        texts = [(f"{name}, " if len(names) > 1 else "", archive.read(name)) for name in names]
    if not texts:
        raise BadFile("the zip archive is empty: there is no log in it")
    yield from texts


def parse_log(data: bytes, skips: Skips, before: int = 0, where: str = "") -> Log:
    """A log taken apart: metadata, header, rows as text. Empty lines are no rows; lines of another length are skipped."""
    try:
        data[: data.find(b"\n", data.find(b"\n") + 1)].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"not a text file ({error.reason} at byte {error.start}): is it compressed?") from error
    first, found, rest = data.partition(b"\n")
    if not found or not first.startswith(b"{"):
        raise BadFile("line 1 must be AutoHeuristic's JSON line, and line 2 the names of the columns")
    try:
        metadata = decode_json(first, type=Metadata)
    except msgspec.DecodeError as error:
        raise BadFile(f"line 1 is not AutoHeuristic's JSON line: {error}") from error
    second = rest[: rest.find(b"\n")] if b"\n" in rest else rest
    names = second.decode("utf-8", "replace").rstrip("\r")
    header = [name.strip() for name in names.split(",")]
    if len(set(header)) != len(header) or LINE in header:
        raise BadFile(f"line 2 must name the features, choice and feedback, each once; it is '{names[:200]}'")
    del data
    cells, number, at = [], 3, len(second) + 1
    while at <= len(rest):
        end = rest.find(b"\n", min(len(rest), at + PIECE_BYTES))
        end = len(rest) if end < 0 else end
        piece = rest[at:end]
        cells.append(_cells(piece, number, header, skips, before, where))
        number, at = number + piece.count(b"\n") + 1, end + 1
    if not cells:
        cells.append(_cells(b"", number, header, skips, before, where))
    return Log(metadata, pl.concat(cells))


def _cells(piece: bytes, number: int, header: list[str], skips: Skips, before: int, where: str) -> pl.DataFrame:
    """Some lines of a log as cells of text; `number` is that of the first one."""
    # A byte that is not UTF-8 becomes a character that no cell may hold, so it costs its own row only.
    lines = pl.Series([piece.decode("utf-8", "replace")]).str.split("\n").explode().str.strip_chars_end("\r")
    rows = pl.DataFrame({LINE: pl.int_range(number, number + lines.len(), dtype=pl.Int64, eager=True), "row": lines})
    rows = rows.filter(pl.col("row") != "")
    commas = rows["row"].str.count_matches(",", literal=True)
    ragged = (commas != len(header) - 1).fill_null(False)
    if ragged.any():
        at, bad = ragged.arg_max() or 0, rows.filter(ragged)
        said = f"line {rows[LINE][at]} has {commas[at] + 1} cells, the header has {len(header)}: the file is cut or damaged"
        skips.add("a line must have as many cells as the header", f"{where}{said}", bad[LINE] + before, bad["row"])
        skips.seen += bad.height
        rows = rows.filter(~ragged)
    cells = rows["row"].str.split_exact(",", len(header) - 1).struct.rename_fields(header).struct.unnest()
    return cells.with_columns(rows[LINE])


def _check_device(metadata: Metadata, name: str | None) -> None:
    """Check `--device`. A log gives capability and shared memory, which do not identify a GPU but can contradict a name."""
    memory, capability = metadata.shared_memory, metadata.device_capa
    architecture = None if capability is None else "sm_" + "".join(map(str, capability))
    fitting = [
        device.name
        for device in devices.profiles().values()
        if memory is not None
        and device.numbers.get("smem_per_block_bytes") == memory
        and (architecture is None or device.architecture in (None, architecture))
    ]
    facts = [f"compute capability {'.'.join(map(str, capability))}"] if capability is not None else []
    facts += [f"{memory:,} bytes of shared memory"] if memory is not None else []
    told = " with ".join(facts) or "neither compute capability nor shared memory"
    if name is None:
        hint = f"add `device={fitting[0]}`" if fitting else "add `device` NAME"
        others = f" (profiles that match: {', '.join(fitting)})" if len(fitting) > 1 else ""
        raise InvalidValue(f"line 1 gives {told}, which does not name a device: {hint} if that was the device{others}")
    device = devices.get(name)
    known = device.numbers.get("smem_per_block_bytes")
    if known is not None and memory is not None and known != memory:
        raise InvalidValue(f"line 1 gives {told}, but {name} has {known:,.0f} per block: `device` must name the GPU of the log")
    if architecture is not None and device.architecture not in (None, architecture):
        raise InvalidValue(f"line 1 gives {told}, but {name} is {device.architecture}: `device` must name the GPU of the log")


def _form(log: Log) -> tuple[Format, list[str]]:
    """What the log holds, and which features it lacks that the op can do without."""
    name = log.metadata.name
    if name not in FORMATS:
        raise BadFile(f"line 1: logs named '{name}' are not known (known: {', '.join(FORMATS)})")
    form = FORMATS[name]
    given = respelled(log.table, form.columns).columns
    lacking = [column for column in (*form.required, "choice", "feedback") if column not in given]
    if lacking:
        raise BadFile(f"line 2: a log of {name} lacks the column '{lacking[0]}' (needed: {', '.join(form.required)})")
    return form, [
        f"there is no feature '{column}', so it is unknown"
        for column in form.optional
        if column not in given and column not in CONTIGUOUS
    ]


def _rows(form: Format, table: pl.DataFrame) -> Imported:
    """The rows of a log in the columns of its family."""
    table = respelled(table, form.columns)
    rows = pl.DataFrame({**form.read(table), **label(table), LINE: table[LINE]})
    return Imported(form.family, rows, extra=extra_columns(table, form.columns))
