"""Vectors on disk: a directory with `vectors.json` and parts, which appear whole or not at all.

`vectors.json` says which sweep the parts belong to and lists the finished ones, so the same sweep continues
where it stopped and any other is refused.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import polars as pl

from kerncast.core.io.arguments import names_a_file_inside
from kerncast.core.io.artefact import ArtefactKind, Findings, Versioned, file_checksum
from kerncast.core.io.atomic import cannot_write, is_draft, write_atomically, write_bytes
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.lock import one_writer
from kerncast.core.io.parquet import read_parquet
from kerncast.core.io.quoting import word
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.data.formats.tt_metal import writing as tt_metal
from kerncast.data.schema import check_parameters, column_type, content_digest, parameter_columns, with_optional
from kerncast.errors import BadFile, CannotWrite, InvalidValue, NotFound
from kerncast.library.declared.declaration import Declaration, declaration_of, resolve
from kerncast.measuring.sweeping.pool import BLOCK_ROWS, CONFIG, PROBLEM
from kerncast.measuring.sweeping.sweep import SuiteSweep, Sweep

FORMAT = "kerncast-vectors"
VERSION = 1
MANIFEST = "vectors.json"
LOCK = "sweep.lock"
# Hashes to gather before they are merged into the distinct ones.
PENDING_HASHES = 2**20
AGAIN = "fix it, or make the vectors again with `kerncast sweep`"
_JSON_TYPES: dict[type[pl.DataType], type] = {pl.Int64: int, pl.Boolean: bool, pl.String: str}


class VectorFormat(abc.ABC):
    """How vectors are laid out in files."""

    name: ClassVar[str]
    rows: ClassVar[int]
    """Rows after which the list of finished files is written again: the most that a crash can lose."""

    def check(self, family: Family) -> None:
        """Refuse families that the layout cannot express."""
        return

    def cut(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        """The rows of each file with its name, in order: numbered files of equal length, the last one shorter."""
        held: list[pl.DataFrame] = []
        height = number = 0
        for block in blocks:
            held.append(block)
            height += block.height
            while height >= self.rows:
                joined = pl.concat(held)
                yield f"part-{number:05d}.{self.name}", joined.head(self.rows)
                held, height, number = [joined.slice(self.rows)], height - self.rows, number + 1
        if height:
            yield f"part-{number:05d}.{self.name}", pl.concat(held)

    @abc.abstractmethod
    def write(self, rows: pl.DataFrame, file: Path) -> None:
        """Write one file."""

    @abc.abstractmethod
    def read(self, file: Path, family: Family) -> pl.DataFrame:
        """Read the rows of a file, with the columns of the family."""


def vector_columns(family: Family) -> dict[str, type[pl.DataType]]:
    """The columns of a family's vectors with their types."""
    return {name: column_type(space.parameters[item]) for name, (space, item) in parameter_columns(family).items()}


class ParquetVectors(VectorFormat):
    """Columns `problem.*` and `config.*`."""

    name, rows = "parquet", 524_288

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        rows.write_parquet(file, compression="zstd", row_group_size=BLOCK_ROWS)

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        found = with_optional(family, read_parquet(file))
        wanted = vector_columns(family)
        for name in {*found.columns} ^ {*wanted}:
            what = "has the unknown column" if name in found.columns else "lacks the column"
            raise BadFile(f"{file} {what} '{name}' of {family.id}: {AGAIN}")
        return found.select(list(wanted))


class JsonVectors(VectorFormat):
    """A list of {"problem": {…}, "config": {…}}; what does not apply is left out."""

    name, rows = "json", 65_536

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        lines = []
        for row in rows.iter_rows(named=True):
            halves: dict[str, dict[str, Any]] = {"problem": {}, "config": {}}
            for column, value in row.items():
                if value is not None:
                    half, _, name = column.partition(".")
                    halves[half][name] = value
            lines.append(msgspec.json.encode(halves))
        file.write_bytes(b"[\n" + b",\n".join(lines) + b"\n]\n")

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        columns = vector_columns(family)
        with guarded(file, AGAIN, "is not a list of vectors"):
            rows = read_json(file, type=list[dict[str, dict[str, Any]]])
        values: dict[str, list[Any]] = {name: [] for name in columns}
        for number, row in enumerate(rows, 1):
            cells = {f"{half}.{item}": value for half, items in row.items() for item, value in items.items()}
            for name in cells:
                if name not in columns:
                    raise BadFile(
                        f"{file}, row {number}: {NotFound.named(f'parameter of {family.id}', name, columns)}; {AGAIN}"
                    )
            for name, kind in columns.items():
                value = cells.get(name)
                # True is a whole number to Python, but not to a reader.
                if value is not None and type(value) is not _JSON_TYPES[kind]:
                    expected = _JSON_TYPES[kind].__name__
                    raise BadFile(f"{file}, row {number}: {name} must be of type {expected}, got {value!r}; {AGAIN}")
                values[name].append(value)
        return pl.DataFrame(values, schema=columns)


class SweepFramework(VectorFormat):
    """Vectors as tt-metal's sweep framework writes them and its runner reads them."""

    name, rows = "tt-sweep", 65_536

    def check(self, family: Family) -> None:
        if family.id not in tt_metal.MODULES:
            raise InvalidValue(
                f"`file_format={self.name}` writes vectors of {', '.join(tt_metal.MODULES)}, not of {family.id}: use parquet "
                "or json"
            )

    def cut(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        return tt_metal.vector_files(blocks)

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        tt_metal.write_vectors(rows, file)

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        return tt_metal.read_vectors(file, family)


def format_named(name: str) -> VectorFormat:
    """The layout called `name`."""
    known: dict[str, type[VectorFormat]] = {kind.name: kind for kind in (ParquetVectors, JsonVectors, SweepFramework)}
    if name not in known:
        raise NotFound.named("format of vectors", name, known)
    return known[name]()


class SweepHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides the vectors; two sweeps with equal headers have equal vectors."""

    op: str
    family: str
    device: str
    device_digest: str
    problem_space: str
    config_space: str
    problems: str
    portfolio: str | None
    per_problem: int | None
    max_vectors: int | None
    seed: int
    slice: str | None
    file_format: str
    declaration: Declaration | None
    """The family, if a file declares it; None: an installed one."""


# Header fields that are hashes, explained in words.
_DIGESTS = {
    "device_digest": "the profile of its device has other numbers",
    "problem_space": "its problem space is declared differently",
    "config_space": "its config space is declared differently",
    "problems": "its problems are different",
    "portfolio": "its portfolio is different",
}


class VectorPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished file."""

    file: str
    rows: int
    bytes: int
    checksum: str


class SweepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `vectors.json`; `described` holds the words that asked for the sweep, for readers."""

    header: SweepHeader
    described: dict[str, str] = {}
    parts: tuple[VectorPart, ...] = ()
    complete: bool = False
    problems: int = 0
    configs: int = 0
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True)
class SweepSummary:
    """What a finished sweep holds; `reused` vectors were on disk already."""

    path: Path
    vectors: int
    problems: int
    configs: int
    bytes: int
    parts: int
    reused: int


# -- writing -----------------------------------------------------------------------------------------


def header_of(sweep: Sweep | SuiteSweep, file_format: str) -> SweepHeader:
    """The identity of a sweep."""
    family, portfolio, offer = sweep.family, sweep.selection.given, sweep.selection.offered
    given = offer.identity if offer is not None else None if portfolio is None else content_digest([portfolio])
    return SweepHeader(
        op=family.op.name,
        family=family.id,
        device=sweep.device.name,
        device_digest=sweep.device.digest,
        problem_space=family.problem.digest,
        config_space=family.config.digest,
        problems=sweep.problems_digest,
        portfolio=given,
        per_problem=sweep.selection.per_problem,
        max_vectors=sweep.max_vectors,
        seed=sweep.seed,
        slice=None if sweep.part is None else str(sweep.part),
        file_format=file_format,
        declaration=declaration_of(family),
    )


def write_vectors(
    sweep: Sweep | SuiteSweep,
    path: str | Path,
    *,
    file_format: str = "parquet",
    described: Mapping[str, str] | None = None,
    progress: Progress = QUIET,
) -> SweepSummary:
    """Write a sweep, or finish it where an earlier run stopped; `progress` is told how many vectors are done."""
    path = Path(path)
    format_named(file_format).check(sweep.family)
    fresh = SweepFile(header_of(sweep, file_format), dict(described or {}))
    _make_directory(path)
    with one_writer(path, LOCK, "choose another `out`"):
        summary = _write(sweep, path, _begun(path, fresh), progress)
    if not summary.vectors:
        with contextlib.suppress(OSError):  # another process has begun there meanwhile
            path.rmdir()
        raise InvalidValue(
            f"the sweep is empty: no config of {sweep.family.id} is valid on {sweep.device.name} for any of its "
            f"{sweep.problem_count:,} problems; see "
            f"`kerncast list family {word(sweep.family.id)} --device {word(sweep.device.name)}`"
        )
    return summary


def _write(sweep: Sweep | SuiteSweep, path: Path, manifest: SweepFile, progress: Progress) -> SweepSummary:
    """Write the missing parts; a sweep without vectors leaves nothing behind."""
    layout, parts = format_named(manifest.header.file_format), list(manifest.parts)
    reused = sum(part.rows for part in parts)
    if not manifest.complete:
        tally, unlisted = Tally(), 0
        for number, (name, rows) in enumerate(layout.cut(sweep.iter_blocks())):
            tally.add(rows)
            if number >= len(parts):
                parts.append(_write_part(path / name, name, rows, layout))
                unlisted += rows.height
                if unlisted >= layout.rows:
                    _write_manifest(path, msgspec.structs.replace(manifest, parts=tuple(parts), complete=False))
                    unlisted = 0
            elif (parts[number].file, parts[number].rows) != (name, rows.height):
                raise BadFile(
                    f"{path / parts[number].file} is split as another version of kerncast does: remove {path} and sweep again"
                )
            progress.step("vectors", tally.vectors)
        problems, configs = tally.distinct()
        manifest = msgspec.structs.replace(manifest, parts=tuple(parts), complete=True, problems=problems, configs=configs)
        if tally.vectors:
            _write_manifest(path, manifest)
        else:
            (path / MANIFEST).unlink()
    vectors, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return SweepSummary(path, vectors, manifest.problems, manifest.configs, size, len(parts), reused)


def _make_directory(path: Path) -> None:
    """A directory to write vectors to; anything else at the path is refused and left as it is."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise CannotWrite(f"{path} is a file, and vectors are a directory: choose another `out`") from error
    except OSError as error:
        raise CannotWrite(f"could not make the directory {path}: {error.strerror}; choose another place") from error
    # Another writer that has just begun has no manifest yet: the lock will say so.
    if not _untouched(path) and not (path / LOCK).exists() and not (path / MANIFEST).is_file():
        raise BadFile(f"{path} is not a directory of vectors: it has no {MANIFEST}; choose another `out`")


def _untouched(path: Path) -> bool:
    """Whether nothing but a lock, or what a killed process drafted, is there yet."""
    return all(item.name == LOCK or is_draft(item.name, MANIFEST) for item in path.iterdir())


def _begun(path: Path, fresh: SweepFile) -> SweepFile:
    """What an earlier run of the same sweep left, up to the first damaged part; else a new manifest."""
    if _untouched(path):
        _write_manifest(path, fresh)
        return fresh
    found = read_sweep_file(path)
    for name in SweepHeader.__struct_fields__:
        theirs, ours = getattr(found.header, name), getattr(fresh.header, name)
        if theirs != ours:
            what = _DIGESTS.get(name) or f"its {name.replace('_', ' ')} is {theirs}, this one's is {ours}"
            asked = " ".join(text for text in found.described.values() if text)
            raise InvalidValue(
                f"{path} holds another sweep ({asked or found.header.family}): {what}; choose another `out`, or remove {path}"
            )
    sound = tuple(itertools.takewhile(lambda part: not _fault(path, part), found.parts))
    return msgspec.structs.replace(found, parts=sound, complete=found.complete and len(sound) == len(found.parts))


def _fault(path: Path, part: VectorPart) -> str:
    """What is wrong with a listed part, or nothing."""
    file = path / part.file
    if not file.is_file():
        return f"{file} is missing"
    size = file.stat().st_size
    if size != part.bytes:
        return f"{file} is truncated or overwritten: {size:,} bytes, not {part.bytes:,}"
    return "" if file_checksum(file) == part.checksum else f"{file} differs from its checksum"


def _write_part(file: Path, name: str, rows: pl.DataFrame, layout: VectorFormat) -> VectorPart:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    write_atomically(file, lambda draft: layout.write(rows, draft))
    return VectorPart(name, rows.height, file.stat().st_size, file_checksum(file))


def _write_manifest(path: Path, manifest: SweepFile) -> None:
    write_bytes(path / MANIFEST, _FILE.text(manifest))


_NO_HASHES, _ONE_HASH = pl.Series([], dtype=pl.UInt64), pl.Series([0], dtype=pl.UInt64)


class Tally:
    """Distinct problems and configs, by 64-bit hash: eight bytes each, whatever the number of vectors."""

    def __init__(self) -> None:
        self.vectors = 0
        self._seen = {PROBLEM: [_NO_HASHES], CONFIG: [_NO_HASHES]}

    def add(self, rows: pl.DataFrame) -> None:
        self.vectors += rows.height
        for prefix, seen in self._seen.items():
            columns = [name for name in rows.columns if name.startswith(prefix)]
            seen.append(rows.select(columns).hash_rows(seed=0).unique().rename("") if columns else _ONE_HASH)
            # The first holds the distinct ones. Searching all of them for each of many small files would take long.
            if sum(map(len, seen[1:])) >= max(PENDING_HASHES, len(seen[0])):
                seen[:] = [pl.concat(seen).unique()]

    def distinct(self) -> tuple[int, int]:
        """How many problems and configs there were."""
        problems, configs = (pl.concat(seen).n_unique() for seen in self._seen.values())
        return problems, configs


# -- reading -----------------------------------------------------------------------------------------


_FILE = Versioned(FORMAT, VERSION, SweepFile, "a list of vectors", "sweep again")


def read_sweep_file(path: Path) -> SweepFile:
    """The contents of `vectors.json`, which names only files in its own folder."""
    file, remedy = path / MANIFEST, f"remove {path} and sweep again"
    if not file.is_file():
        raise BadFile(f"{path} is not a directory of vectors: it has no {MANIFEST}; make one with `kerncast sweep`")
    found = _FILE.read(file, remedy)
    for part in found.parts:
        if not names_a_file_inside(part.file):
            raise BadFile(f"{path} is damaged: its part {part.file!r} is not a file in it; {remedy}")
    return found


def family_of(path: Path, header: SweepHeader) -> Family:
    """The family of some vectors; if it is declared differently now, they are refused."""
    family = resolve(header.family, header.declaration, path)
    for what, theirs, ours in (
        ("problem", header.problem_space, family.problem.digest),
        ("config", header.config_space, family.config.digest),
    ):
        if theirs != ours:
            raise BadFile(f"{path} was made for another {what} space of {family.id} ({theirs}, now {ours}): sweep again")
    return family


class Vectors:
    """A finished sweep on disk, read part by part."""

    summary: SweepSummary | None = None
    """What was written just now."""
    sweep: Sweep | SuiteSweep | None = None
    """What it was written from."""

    def __init__(self, path: Path, manifest: SweepFile, family: Family) -> None:
        self.path, self.contents, self.family = path, manifest, family

    @classmethod
    def open(cls, path: str | Path) -> Vectors:
        """Open vectors on disk; the error names what is foreign, unfinished, incomplete or outdated."""
        path = Path(path)
        if not path.exists():
            raise NotFound(f"there are no vectors at {path}: make them with `kerncast sweep`")
        manifest = read_sweep_file(path)
        family = family_of(path, manifest.header)
        if not manifest.complete:
            raise BadFile(f"{path} is unfinished: run the same `kerncast sweep` again, it continues where it stopped")
        return cls(path, manifest, family)

    def count(self) -> int:
        """How many vectors there are."""
        return sum(part.rows for part in self.contents.parts)

    def iter_blocks(self, every: int = 1) -> Iterator[pl.DataFrame]:
        """The vectors as frames with columns `problem.*` and `config.*`; each part is checked before it is used.

        `every` reads each so-manieth part only.
        """
        layout = format_named(self.contents.header.file_format)
        for part in self.contents.parts[::every]:
            yield from read_part(self.path, part, layout, self.family).iter_slices(BLOCK_ROWS)


def read_part(path: Path, part: VectorPart, layout: VectorFormat, family: Family) -> pl.DataFrame:
    """The vectors of one part, checked."""
    fault = _fault(path, part)
    if fault:
        raise BadFile(f"{fault}; run the same `kerncast sweep` again to restore it")
    file = path / part.file
    try:
        with guarded(file, AGAIN):
            rows = layout.read(file, family)
        check_parameters(family, rows)
    except InvalidValue as error:
        raise BadFile(f"{file}, {error}: {AGAIN}") from error
    if rows.height != part.rows:
        raise BadFile(f"{file} has {rows.height:,} vectors, and {MANIFEST} says {part.rows:,}: {AGAIN}")
    return rows


def check_vectors(findings: Findings) -> None:
    """The manifest, and every vector of every part."""
    path = findings.path
    with findings.looking(path / MANIFEST):
        contents = read_sweep_file(path)
        findings.checks.append("manifest")
        layout, family = format_named(contents.header.file_format), family_of(path, contents.header)
    if findings.faults:
        return
    tally = Tally()
    for number, part in enumerate(contents.parts):
        findings.progress.step("parts", number, len(contents.parts))
        with findings.looking(path / part.file):
            tally.add(read_part(path, part, layout, family))
    if findings.faults:
        return
    findings.checks += [f"checksums of {len(contents.parts):,} parts", f"{tally.vectors:,} vectors"]
    if not contents.complete:
        findings.notes.append(f"{path} is unfinished: run the same `kerncast sweep` again, it continues where it stopped")
    elif tally.distinct() != (contents.problems, contents.configs):
        findings.wrong(path / MANIFEST, f"{path / MANIFEST} counts other problems or configs than its parts have: sweep again")


SWEEP = ArtefactKind("vectors", lambda contents: contents.holds(MANIFEST), check_vectors, (MANIFEST,))
