"""Datasets, and the collections in them that are not finished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents
from kerncast.core.io.atomic import is_draft
from kerncast.core.io.foreign import guarded
from kerncast.core.io.parquet import read_parquet, scan_parquet
from kerncast.core.op import Family
from kerncast.data import journal, schema, skipping
from kerncast.data.dataset import MANIFEST, PIECE_ROWS, Dataset, Part
from kerncast.data.manifest import OBSERVED
from kerncast.data.skipping import AGAIN
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library.declared.declaration import resolve


def check_dataset(findings: Findings) -> None:
    """The manifest, every file that it lists, every row, and what a collection left."""
    path = findings.path
    dataset: Dataset | None = None
    with findings.looking(path / MANIFEST):
        dataset = Dataset.of_manifest(path, journal=False)
        findings.checks.append("manifest")
    if dataset is None:
        return
    sound = _files(findings, dataset)
    _families(findings, dataset, sound)
    _beside(findings, dataset, sound)
    if dataset.unfinished:
        _collection(findings, dataset)
    elif (path / journal.STATE).exists():
        with findings.looking(path / journal.STATE):
            _refuse_missing(dataset, 0)
    _unlisted(findings, dataset)


def _files(findings: Findings, dataset: Dataset) -> set[str]:
    """The listed files that are there and have their checksums."""
    sound, listed = set(), dataset.checksums
    for number, (file, checksum) in enumerate(listed.items()):
        findings.progress.step("files", number, 2 * len(listed))
        with findings.looking(dataset.path / file):
            dataset.refuse_changed({file: checksum})
            sound.add(file)
    if sound:
        findings.checks.append(f"checksums of {len(sound):,} {'file' if len(sound) == 1 else 'files'}")
    return sound


def _families(findings: Findings, dataset: Dataset, sound: set[str]) -> None:
    """The rows of each family whose files have their checksums: what is in a damaged file need not be said line by line."""
    rows = done = 0
    by_family: dict[str, list[Part]] = {}
    for part in dataset.contents.parts:
        by_family.setdefault(part.family, []).append(part)
    known = {source.digest for source in dataset.contents.sources}
    for name, parts in by_family.items():
        runs: list[pl.DataFrame] = []
        family: Family | None = None
        with findings.looking(dataset.path / MANIFEST):
            family = resolve(name, dataset.contents.declared.get(name), dataset.path)
        for part in parts:
            done += 1
            findings.progress.step("files", len(dataset.checksums) + done, 2 * len(dataset.checksums))
            if family is not None and part.file in sound:
                with findings.looking(dataset.path / part.file):
                    runs.append(_part(dataset, family, part, known))
                    rows += part.rows
        if runs:
            with findings.looking(dataset.path / "rows"):
                _refuse_doubled(dataset.path, name, pl.concat(runs))
    if rows:
        findings.checks.append(f"{rows:,} rows: columns, values, statuses, times, keys")


def _part(dataset: Dataset, family: Family, part: Part, known: set[str]) -> pl.DataFrame:
    """Check the rows of a part, a bounded number at a time; return the keys of the runs that measured them."""
    file = dataset.path / part.file
    runs = [pl.DataFrame(schema={"run_id": pl.String, "key": pl.String})]
    height = 0
    try:
        raw = scan_parquet(file)
        if schema.pieces_digest([_pieces(raw)]) != part.content:
            raise BadFile(f"the cells of {file} are not those that dataset.json lists: {AGAIN}")
        for piece in _pieces(dataset.stored(family, part)):
            height += piece.height
            schema.conform(family, piece)
            _refuse_wrong_names(piece, family, known, file)
            runs.append(piece.filter(pl.col("run_id").is_not_null()).select("run_id", "key"))
    except schema.Mislabelled as error:
        raise BadFile(f"{file} is damaged, {error}: {AGAIN}") from error
    except InvalidValue as error:
        raise BadFile(f"{file}, {error}: {AGAIN}") from error
    except pl.exceptions.PolarsError as error:
        raise BadFile(f"{file} is damaged ({(str(error).splitlines() or ['unreadable'])[0]}): {AGAIN}") from error
    if height != part.rows:
        raise BadFile(f"{file} has {height:,} rows, and dataset.json says {part.rows:,}: {AGAIN}")
    return pl.concat(runs)


def _pieces(rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    start = 0
    while True:
        piece = rows.slice(start, PIECE_ROWS).collect()
        if piece.height or not start:
            yield piece
        if piece.height < PIECE_ROWS:
            return
        start += PIECE_ROWS


def _refuse_wrong_names(piece: pl.DataFrame, family: Family, known: set[str], file: Path) -> None:
    """Refuse rows that name another op or family, or a source that the manifest does not list."""
    for column, own in (("op", family.op.name), ("family", family.id)):
        other = piece.filter(pl.col(column) != own)
        if other.height:
            raise BadFile(
                f"{file}: {other.height:,} rows say that their {column} is '{other[column][0]}', not '{own}': {AGAIN}"
            )
    sources = set(piece["source"].drop_nulls().unique()) - known
    if sources:
        raise BadFile(f"{file}: rows are of the source {min(sources)}, which dataset.json does not list: {AGAIN}")


def _refuse_doubled(path: Path, family: str, runs: pl.DataFrame) -> None:
    """A run of a collection has one row per vector."""
    doubled = runs.filter(runs.is_duplicated())
    if doubled.height:
        raise BadFile(
            f"{path}: {doubled.height:,} rows of {family} have the same key and run as another row (first: "
            f"{doubled['key'][0]}), so a measurement counts twice: merge finished datasets only, or collect again"
        )


def _beside(findings: Findings, dataset: Dataset, sound: set[str]) -> None:
    """The rows that an import skipped, and the columns that it did not know."""
    contents = dataset.contents
    for item in contents.extra:
        if item.file in sound:
            with findings.looking(dataset.path / item.file, f"{item.rows:,} rows of other columns"):
                with guarded(dataset.path / item.file, AGAIN):
                    frame = read_parquet(dataset.path / item.file)
                wanted = {"source", skipping.LINE, *item.columns}
                _refuse_other(dataset.path / item.file, frame, item.rows, wanted)
    listed = contents.skipped
    if listed is not None and listed.file in sound:
        with findings.looking(dataset.path / listed.file, f"{listed.rows:,} skipped rows"):
            frame = dataset.skipped.frame()
            _refuse_other(dataset.path / listed.file, frame, listed.rows, set(skipping.COLUMNS))
            counted = dict(frame.group_by("kind").len().iter_rows())
            if counted != {kind.kind: kind.rows for kind in listed.kinds}:
                raise BadFile(f"{dataset.path / listed.file} has other kinds of rows than dataset.json lists: {AGAIN}")


def _refuse_other(file: Path, frame: pl.DataFrame, rows: int, columns: set[str]) -> None:
    if frame.height != rows or set(frame.columns) != columns:
        raise BadFile(f"{file} has {frame.height:,} rows of {len(frame.columns)} columns, and dataset.json says {rows:,} of "
                      f"{len(columns)}: {AGAIN}")  # fmt: skip


def _collection(findings: Findings, dataset: Dataset) -> None:
    """The journal of a collection that was not finished, line by line, and its state."""
    path = dataset.path / journal.NAME
    findings.kind = "unfinished collection"
    if not journal.is_begun(path):
        findings.notes.append(f"{path} was cut before its first line was whole: the same `kerncast collect` begins again")
        return
    state, readable = dataset.path / journal.STATE, False
    if state.exists():
        with findings.looking(state):
            readable = journal.STATE_FILE.read(state) is not None
            findings.checks.append("state of the collection")
    with findings.looking(path):
        name = journal.header_of(path).family
        family = resolve(name, dataset.contents.declared.get(name), dataset.path)
        whole = journal.good_bytes(path)
        _, rows = journal.journal_rows(path, family)
        try:
            schema.conform(family, rows)
        except KerncastError as error:
            raise journal.damaged(path, error) from error
        findings.checks.append(f"journal of {rows.height:,} rows")
        torn = whole < path.stat().st_size
        if torn:
            findings.notes.append(f"the last line of {path} was cut off: readers leave it out, and resuming measures it again")
        if readable:
            _refuse_missing(dataset, rows.height + torn)
            said = journal.completeness(dataset.path, rows.height)
            findings.notes.append(f"{said}" + (f"; {said.next_step}" if said.next_step else ""))


def _refuse_missing(dataset: Dataset, journaled: int) -> None:
    """Refuse fewer rows than a collection had when it ended."""
    file = dataset.path / journal.STATE
    there, said = journaled + sum(part.rows for part in dataset.contents.parts), journal.STATE_FILE.read(file).measured
    if said is not None and there < said:
        raise BadFile(
            f"{file} says that {said:,} vectors have a row, and {there:,} rows are there: restore {journal.NAME}, or run the "
            "same `kerncast collect`, which measures what is missing"
        )


def _unlisted(findings: Findings, dataset: Dataset) -> None:
    """Files that nobody reads: a crash between two writes leaves them, and the next append writes over them."""
    listed = {*dataset.checksums, MANIFEST, ".lock", journal.NAME, journal.STATE, journal.LOCK}
    files = sorted(file.relative_to(dataset.path) for file in dataset.path.rglob("*") if file.is_file())
    files = [file for file in files if file.parts[0] != OBSERVED]
    others = [file for file in files if file.as_posix() not in listed]
    drafts = [file for file in others if any(is_draft(file.name, Path(name).name) for name in listed)]
    for what, left in (("drafts of a killed process", drafts), ("files that dataset.json does not list", others)):
        left = [file for file in left if file not in drafts] if left is others else left
        if left:
            findings.notes.append(f"{len(left):,} {what}, which no reader uses (first: {left[0]})")


def _is_at(contents: PathContents) -> bool:
    return contents.holds(MANIFEST, journal.NAME) or contents.holds_like("rows/*/*/part-*.parquet")


DATASET = ArtefactKind("dataset", _is_at, check_dataset, (MANIFEST, journal.NAME, journal.STATE))
