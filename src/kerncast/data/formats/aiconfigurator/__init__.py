"""Tables of NVIDIA's AIConfigurator: one parquet file per kind of op, GPU, framework and version.

    <system>/<group>/<framework>/<version>/<kind>_perf.parquet

`kinds` says what the tables of each kind hold. The wheel that ships them (PyPI: aiconfigurator-core) is read as well, and so
are a folder and the installed package: all tables whose op is known here; the others are named and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import polars as pl

from kerncast.core.io.foreign import guarded
from kerncast.core.io.parquet import parquet_columns, scan_parquet
from kerncast.core.software import matching
from kerncast.data import filters
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, numbered_after
from kerncast.data.formats.aiconfigurator import tables as places
from kerncast.data.formats.aiconfigurator.kinds import KINDS, Kind, KindRows
from kerncast.data.formats.aiconfigurator.tables import (
    SUFFIX,
    Place,
    Tables,
    checked,
    kind_of,
    read_table,
    software_text,
    tables_at,
    translated,
    what_is_unknown,
)
from kerncast.data.tables import as_type, refuse_cells
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library import devices

LEFT_OUT_SHOWN = 50
# What rows are of, besides their op.
IDENTITY = ("device", "framework", "version")
ROWS = "rows"

Wanted = Mapping[str, tuple[KindRows, ...]]
"""The kinds to read, each with the families to keep of it."""


class AiConfigurator(Importer):
    """AIConfigurator's tables: a parquet file, a folder, the wheel or the installed package with all of them."""

    name = "aiconfigurator"
    doc = "op tables of AIConfigurator: a …_perf.parquet, or a folder or the aiconfigurator-core wheel with several"
    selects = True

    def installed(self) -> Path:
        return places.installed()

    def recognises(self, head: Head) -> bool:
        if any(name.endswith(SUFFIX) and kind_of(name) in KINDS for name in head.names):
            return True
        columns = set(head.columns)
        return {"framework", "kernel_source"} <= columns and any(columns.issuperset(kind.needed) for kind in KINDS.values())

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("an AIConfigurator table names its own columns: `constants` and `mapping` do not apply to it")
        if options.device is not None and (options.devices or options.keep_software):
            raise InvalidValue(
                "`device` is for tables that do not name their GPU, so there is nothing to choose from: leave it out"
            )
        wanted, kept = _wanted(options.only), {_device(name) for name in options.devices}
        with tables_at(path) as tables:
            known, notes = _known(tables, wanted, told=not options.only)
            newest = _newest(tables, known, options)
            notes += [note for rows in newest.values() for note in rows.notes]
            lacking: dict[str, list[Place]] = {}
            before, seen, last = 0, dict[str, str](), None
            for place, kind in known:
                if options.keep_software and kind.name not in newest:
                    continue
                table = _table(tables, place, kind, lacking)
                height = table.height
                table = _only_asked(table, kind, kept, newest.get(kind.name), options)
                seen |= _own_devices(table) if options.device is not None else {}
                _check_device(seen, options.device)
                for imported in _rows(table, place, kind, wanted[kind.name], options, before):
                    if last is not None:
                        yield last
                    last = imported
                before += height if place.numbered_through else 0
            if last is None and (kept or newest):
                raise NotFound(f"no row is of {', '.join([*sorted(kept), *options.keep_software])}: ask for less")
            if last is not None:
                yield replace(last, notes=(*notes, *(_said(note, those) for note, those in lacking.items())))


def _table(tables: Tables, place: Place, kind: Kind, lacking: dict[str, list[Place]]) -> pl.DataFrame:
    """One table with what its folder says; `lacking` gathers what tables do not say."""
    try:
        table, notes = _with_place(read_table(tables.file(place), kind), place)
    except KerncastError as error:
        raise type(error)(f"{place.where}{error}") from error
    for note in (*notes, *what_is_unknown(table, kind)):
        lacking.setdefault(note, []).append(place)
    return table


def _said(note: str, of: Sequence[Place]) -> str:
    """A note, with the table that it is about, or the first of several."""
    return f"{of[0].where}{note}" if len(of) == 1 else f"{note} (in {len(of):,} tables, the first is {of[0].name})"


def _rows(
    table: pl.DataFrame, place: Place, kind: Kind, wanted: tuple[KindRows, ...], options: ImportOptions, before: int
) -> Iterator[Imported]:
    """The rows of one table. In a folder each file counts its own lines; the tables of an archive are numbered through."""
    own = _own_devices(table) if options.device is not None else {}
    convert = partial(_converted, kind=kind, wanted=wanted, options=options, own=own)
    file = None if place.numbered_through else place.name
    try:
        found = options.skips.convert(table, convert, before, place.where, file)
    except KerncastError as error:
        raise type(error)(f"{place.where}{error}") from error
    for imported in found:
        if place.numbered_through:
            yield numbered_after(imported, before)
        else:
            assert place.file is not None
            yield replace(imported, rows=imported.rows.with_columns(source=pl.lit(0)), files=(place.file,))


def _wanted(only: Iterable[str]) -> Wanted:
    """The kinds and families that some names mean: of ops, families or kinds of table; all, if there is no name."""
    every = {kind.name: kind.rows for kind in KINDS.values()}
    names = {kind.name for kind in KINDS.values()}
    names |= {name for rows in every.values() for row in rows for name in (row.family_id, row.family_id.partition("/")[0])}
    found: dict[str, tuple[KindRows, ...]] = {}
    for name in only:
        if name not in names:
            raise NotFound.named("op or table", name, names)
        for kind, rows in every.items():
            ours = tuple(row for row in rows if name in (row.family_id, row.family_id.partition("/")[0]))
            if ours or name == kind:
                # The name of a kind means all of it, unless it is also the name of an op.
                found[kind] = tuple(row for row in rows if row in (ours or rows) or row in found.get(kind, ()))
    return found or every


def _known(tables: Tables, wanted: Wanted, told: bool) -> tuple[list[tuple[Place, Kind]], list[str]]:
    """The tables to read, those of one kind after each other, and (if it is to be `told`) a note on those left out."""
    given = [place for place in tables.places if place.kind]
    alone = [(place, _kind_of_file(tables.file(place), place)) for place in tables.places if not place.kind]
    found = [(place, KINDS[place.kind]) for place in given if place.kind in wanted]
    order = list(KINDS)
    found.sort(key=lambda item: (order.index(item[1].name), item[0].name))
    if given and not found:
        there = ", ".join(sorted({place.kind for place in given}))
        raise BadFile(f"there is no table of {', '.join(wanted)} (there are {there}): there is nothing to import")
    others = Counter[str](place.kind for place in given if place.kind not in KINDS)
    notes = []
    if others and told:
        rows = Counter[str]()
        for place in given:
            if place.kind in others:
                rows[place.kind] += _height(tables, place)
        those = [f"{kind} ({rows[kind]:,} rows in {_files(count)})" for kind, count in sorted(others.items())]
        more = f" and {len(those) - LEFT_OUT_SHOWN:,} more kinds" * (len(those) > LEFT_OUT_SHOWN)
        notes.append(
            f"read {len(found):,} of {len(given):,} tables; left out {sum(rows.values()):,} rows of kinds that have no op "
            f"here: {', '.join(those[:LEFT_OUT_SHOWN])}{more}"
        )
    for place, kind in alone:
        if kind.name not in wanted:
            raise BadFile(f"{place.where}this is a table of {kind.name}, not of {', '.join(wanted)}")
    return [*alone, *found], notes


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


def _height(tables: Tables, place: Place) -> int:
    """The rows of a table that is left out; 0 if it cannot be read, which does not matter then."""
    try:
        return int(scan_parquet(tables.file(place)).select(pl.len()).collect().item())
    except (KerncastError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return 0


def _kind_of_file(file: Path, place: Place) -> Kind:
    """The kind of a table that was named itself: by its name, else by its columns and the op that it names."""
    named = KINDS.get(kind_of(file.name))
    if named is not None:
        return named
    with guarded("the table", "is it cut or damaged?", "is not a parquet file"):
        columns = {name.strip().casefold(): name for name in parquet_columns(file)}
        said: set[str] = set()
        for name in ("op_name", "kernel_source"):
            if name in columns:
                said |= {
                    str(item).casefold() for item in scan_parquet(file).select(columns[name]).unique().collect().to_series()
                }

    def misfit(kind: Kind) -> tuple[int, bool, bool]:
        lacking = len({name.casefold() for name in kind.needed} - columns.keys())
        return lacking, not said & set(kind.ops), kind.framework is not None and kind.framework.casefold() not in said

    return min(KINDS.values(), key=misfit)


def _newest(tables: Tables, known: list[tuple[Place, Kind]], options: ImportOptions) -> dict[str, filters.SoftwareRows]:
    """By kind, the rows of the software that is asked for: on each device the newest version. Kinds without it are left out."""
    if not options.keep_software:
        return {}
    pairs: dict[str, dict[tuple[str, str | None], int]] = {}
    for place, kind in known:
        for device, name, version, rows in _identities(tables.file(place), place).iter_rows():
            profile = devices.named(device) if device else None
            if profile is not None:
                pair = (profile.name, software_text(kind, name, version, options.software))
                counts = pairs.setdefault(kind.name, {})
                counts[pair] = counts.get(pair, 0) + rows
    condition, found, refused = (
        f"software={','.join(options.keep_software)}",
        dict[str, filters.SoftwareRows](),
        list[NotFound](),
    )
    for kind_name, counts in pairs.items():
        there = _full(counts, options)
        try:
            (rows,) = filters.resolved((condition,), partial(sorted, there, key=str), kind_name)
        except NotFound as error:
            refused.append(error)
            continue
        if isinstance(rows, filters.SoftwareRows):
            wanted = {_device(name) for name in options.devices}
            notes = tuple(f"{kind_name}: {note}" for note in rows.notes if not wanted or note.partition(" ")[0] in wanted)
            found[kind_name] = replace(rows, notes=notes)
    if refused and not found:
        raise refused[0]
    return found


def _full(counts: Mapping[tuple[str, str | None], int], options: ImportOptions) -> set[tuple[str, str | None]]:
    """The pairs of device and software without those that have too few rows, of what is asked for, on their device."""
    asked = {pair for pair in counts if any(matching(name, [pair[1] or ""]) for name in options.keep_software)}
    most: dict[str, int] = {}
    for pair in asked:
        most[pair[0]] = max(most.get(pair[0], 0), counts[pair])
    return {pair for pair in counts if pair not in asked or counts[pair] >= options.least_share * most[pair[0]]}


def _only_asked(
    table: pl.DataFrame, kind: Kind, kept: set[str], newest: filters.SoftwareRows | None, options: ImportOptions
) -> pl.DataFrame:
    """The rows of the devices and the software that are asked for."""
    if not kept and newest is None:
        return table
    table = table.with_columns(as_type(table[name], pl.String) for name in IDENTITY)
    asked, chosen = [], set[tuple[str, str | None]](newest.kept if newest is not None else ())
    for device, name, version in table.select(IDENTITY).unique().iter_rows():
        profile = devices.named(device) if device else None
        if profile is None or (kept and profile.name not in kept):
            continue
        if newest is None or (profile.name, software_text(kind, name, version, options.software)) in chosen:
            asked.append((device, name, version))
    wanted = pl.DataFrame(asked, schema=dict.fromkeys(IDENTITY, pl.String), orient="row")
    return table.join(wanted, on=IDENTITY, how="semi", nulls_equal=True, maintain_order="left")


def _identities(file: Path, place: Place) -> pl.DataFrame:
    """What the rows of a table are of: each device, framework and version once, with the number of its rows."""
    with guarded(place.name or "the table", "is it cut or damaged?", "is not a parquet file"):
        columns = {name.strip().casefold(): name for name in parquet_columns(file)}
        said = [pl.col(columns[name]).alias(name) if name in columns else pl.lit(None).alias(name) for name in IDENTITY]
        found = scan_parquet(file).select(said).group_by(IDENTITY).len(ROWS).collect()
    return _with_place(found.select(*(as_type(found[name], pl.String) for name in IDENTITY), ROWS), place)[0]


def _with_place(table: pl.DataFrame, place: Place) -> tuple[pl.DataFrame, list[str]]:
    """The table; one that does not name its GPU, framework or version, but lies in a folder called so, is of that one."""
    *above, framework, version, _file = ("", "", "", *PurePosixPath(place.name).parts)
    # Older releases have no folder for the group.
    system = next((name for name in above[-1:-3:-1] if name and devices.named(name) is not None), None)
    if system is None:
        return table, []
    told = {"device": system, "framework": framework, "version": version}
    told = {name: said for name, said in told.items() if table.height and table[name].null_count() == table.height}
    notes = [f"there is no column '{name}', so it is taken from the folder, {said}" for name, said in told.items()]
    return table.with_columns(pl.lit(said).alias(name) for name, said in told.items()), notes


def _converted(
    table: pl.DataFrame, kind: Kind, wanted: tuple[KindRows, ...], options: ImportOptions, own: Mapping[str, str]
) -> list[Imported]:
    table = checked(table, kind)
    if own:
        names = [name for name in table["device"].drop_nulls().unique() if _device_key(name) in own]
        rule = f"is not known, and the other rows are of {', '.join(own.values())}"
        refuse_cells(table, ~table["device"].is_in(names), "device", rule)
    return list(translated(table, kind, wanted, options))


def _device(name: str) -> str:
    return devices.get(name).name


def _device_key(name: str) -> str:
    device = devices.named(name)
    return name if device is None else device.name


def _own_devices(table: pl.DataFrame) -> dict[str, str]:
    """The devices that a table is of, each with its spelling: those that are known, else the most frequent unknown one.

    Any other unknown name is that of a damaged row.
    """
    counts = (
        as_type(table["device"], pl.String)
        .drop_nulls()
        .value_counts(name="rows")
        .sort("rows", "device", descending=[True, False])
    )
    names = counts["device"].to_list()
    known = [name for name in names if devices.named(name) is not None]
    return {_device_key(name): name for name in reversed(known or names[:1])}


def _check_device(found: Mapping[str, str], asked: str | None) -> None:
    """Check `device`, which may name a GPU that the table spells in an unknown way or that has no profile."""
    if asked is None:
        return
    if len(found) > 1:
        named = ", ".join(sorted(found.values()))
        raise InvalidValue(f"the table has several devices ({named}), and `device` names one: leave it out")
    for name in found.values():
        devices.agreed(devices.named(name), devices.get(asked))
