"""Verbs that write and look at datasets: import, inspect, merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click

from kerncast.app.api.inspect import inspect
from kerncast.app.api.read import any_worked, read
from kerncast.app.api.showing import echo, echo_exactly, shown
from kerncast.app.cli.verb import VerbCall, in_options, verb
from kerncast.app.cli.views import (
    Json,
    assignments,
    disagreement_lines,
    duration,
    hardware_lines,
    print_json,
    say_unfinished,
    skipped_facts,
    skipped_lines,
    table,
    working,
)
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import distinct
from kerncast.core.op.limits import sentence
from kerncast.data.condensed import disagreements
from kerncast.data.dataset import Dataset, merge
from kerncast.data.formats import get_importer
from kerncast.data.row_checks import isolated_sentence
from kerncast.errors import InvalidValue


@verb("import", read)
def import_verb(
    call: VerbCall,
    format_name: Annotated[str, Help(metavar="FORMAT", names="formats")],
    paths: Annotated[Sequence[Path], Help(metavar="[PATH...]")] = (),
    *,
    guess: Annotated[bool, Help("Print a draft of the mapping file instead of importing (csv, parquet).")] = False,
    family: Annotated[
        str | None,
        "With `guess`: the family whose parameters to look for; a name, or a TOML file that declares it.",
        Help(metavar="NAME", names="families"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert another tool's table of measurements into a new dataset.

    FORMAT is csv or parquet (any table, with a mapping file), or a known one: aiconfigurator, autoheuristic,
    ck-tile, diode, inductor, kernel-tuner, reshard-lines, t4, tt-sweep, ttnn-csv.
    Units are converted, repeats and failures are kept, and every row records its file and line.

    A row that cannot be represented is skipped. Each kind is printed with its number of rows and the first
    of them, the rows are kept in DATASET/skipped.parquet, and the exit code is 3, as it is when no row worked.
    If more than half of the rows of a file would be skipped, the file is refused. --strict refuses the first
    such row instead.

    \b
    kerncast import csv times.csv --guess > times.toml      # then read and fix times.toml
    kerncast import csv times.csv --mapping times.toml --device a100 --out times
    kerncast import ttnn-csv exp.csv --set func=exp --device wormhole_b0 --out exp
    kerncast import inductor autotune.log --device h100 --out logged
    kerncast import aiconfigurator --installed --only gemm,moe --devices h100,h200 --software vllm --out tables
    """
    get_importer(format_name)
    if not paths and not call["installed"]:
        raise InvalidValue("an import needs the PATH of at least one file")
    if guess:
        call.refuse_given("does not go with --guess, which reads one table and prints a draft")
        if len(paths) != 1:
            raise InvalidValue(f"--guess reads one table, got {len(paths)}: name one")
        draft = Dataset.guess_mapping(paths[0], file_format=format_name, family=family)
        print_json({"mapping": draft}) if as_json else echo_exactly(draft, nl=False)
        asked = draft.count('"?"')
        first = f'answer what is marked "?" ({asked}), then' if asked else "read it, then"
        again = f"kerncast import {word(format_name)} {word(paths[0])} --mapping MAPPING.toml --out DATASET"
        echo(f"next: save the draft, {first} {again}", err=True)
        return
    if family is not None:
        raise InvalidValue("--family is only for --guess; an import takes the family from the mapping file")
    if call["out"] is None:
        raise InvalidValue("an import needs --out DATASET, the directory to write")
    with shown() as progress:
        dataset = call(paths=paths, file_format=format_name, progress=progress)
    notes = [in_options(note, click.get_current_context().command) for note in dataset.notes]
    notes = [note.replace("`where`", "`kerncast train` --where") for note in notes]  # an import has no conditions
    counts = {item.id: sum(p.rows for p in dataset.contents.parts if p.family == item.id) for item in dataset.families}
    summary = {
        "path": str(dataset.path),
        "rows": dataset.rows,
        "families": [{"family": name, "rows": rows} for name, rows in counts.items()],
        "digest": dataset.digest,
        "notes": notes,
        "skipped": skipped_facts(dataset.skipped),
    }
    if as_json:
        print_json(summary)
    else:
        for note in notes:
            echo(note, err=True)
        told = ", ".join(f"{rows:,} of {name}" for name, rows in counts.items())
        echo(f"{dataset.path}: {dataset.rows:,} rows ({told})")
        for line in skipped_lines(dataset.skipped):
            echo(line, err=True)
        echo(f"next: kerncast inspect {word(dataset.path)}")
    if dataset.skipped.rows or not any_worked(dataset):
        raise SystemExit(3)


@verb("inspect", inspect)
def inspect_verb(
    call: VerbCall,
    *,
    top: Annotated[int, Help("Problems to print in the table of fastest configs.", metavar="N", least=0)] = 10,
    as_json: Json = False,
) -> None:
    """Show what a dataset holds, how noisy it is and what is wrong with it.

    It looks for duplicates that disagree, times a thousand times off all others of their problem, constant
    columns, configs that no feature tells apart, rows that ran although a constraint rules them out, rows that are
    faster than the device allows, and labels that fit a neighbouring row better than their own.

    With --verify, PATH is a dataset, an unfinished collection, a model, a store, a sweep, exported C or a table of choices,
    measured choices, saved predictions, printed JSON of evaluate, a TOML file (overrides, mapping, device profile, routine,
    benchmark), or a folder of these. Checksums, rows, keys, times, weights and tables are checked by the code that reads
    them; nothing of the artefact is compiled or run. Each artefact gets a line; below it, `!` is something wrong with what to
    do about it, `-` something to know. Exit code 0: all is whole; 1: something is wrong; 2: there is no artefact at PATH.

    \b
    kerncast inspect exp
    kerncast inspect exp --where problem.dtype=bf16 --json
    kerncast inspect ~/.local/share/kerncast/models --verify
    """
    path = call["path"]
    if call["verify"]:
        checked = call()
        print_json(checked.as_json()) if as_json else echo(*checked.lines())
        if not checked.whole:
            raise SystemExit(1)
        return
    with working(f"inspecting {path}"):
        dataset = Dataset.open(path)
        report = call(path=dataset)
    if as_json:
        print_json({**report, "skipped": skipped_facts(dataset.skipped)})
        return
    echo(f"{report['path']}: {report['rows']:,} rows, digest {report['digest']}")
    say_unfinished([dataset])
    for source in report["sources"]:
        echo(f"from {source['name']} ({source['format']}, sha256 {source['digest'][:12]}…)")
    for line in skipped_lines(dataset.skipped):
        echo(line)
    for item in report["hardware"]:
        echo(*hardware_lines(item))
    for section in report["families"]:
        _show_family(section, top, {source["digest"]: source["name"] for source in report["sources"]})


def _show_family(section: dict[str, Any], top: int, names: dict[str, str]) -> None:
    coverage = section["coverage"]
    per_problem = coverage["configs_per_problem"]
    echo("", f"{section['family']}")
    facts = [
        ("rows", f"{section['rows']:,}"),
        ("problems", f"{section['problems']:,}{distinct(section['pooled'])}"),
        ("configs", f"{section['configs']:,}"),
        *((name, _counted(section[name])) for name in ("devices", "software", "backends", "statuses")),
        ("configs per problem", f"{per_problem['min']} to {per_problem['max']}, median {per_problem['median']:g}"),
        ("share of the grid", f"{coverage['share_of_grid']:.1%}"),
    ]
    table(("what", "value"), facts)
    if section["looked_at_rows"] < section["rows"]:
        echo(
            "",
            "so many rows are not held: the counts in brackets are of all rows, the rest is of whole problems that were drawn, "
            f"{section['looked_at_rows']:,} rows; --where looks at those that you choose",
        )
    if section["noise"]:
        columns = ("size", "measurements", "MAD", "MAD P90", "slowest/fastest", "P99")
        rows = [
            (
                band["band"],
                f"{band['measurements']:,}",
                f"{band['relative_mad_median']:.2%}",
                f"{band['relative_mad_p90']:.2%}",
                f"{band['slowest_over_fastest_median']:.3f}",
                f"{band['slowest_over_fastest_p99']:.3f}",
            )
            for band in section["noise"]
        ]
        echo()
        table(columns, rows, "noise of repeats, by size of the measurement", right=columns[1:])
    elif section.get("noise_of_samples") is not None:
        within = f"{section['noise_of_samples']:.2%}"
        echo(
            "", f"noise: the samples of a row spread by {within} (median MAD); between runs it is unknown, nothing was repeated"
        )
    else:
        echo("", "noise: unknown, no row records the spread of its samples and nothing was measured twice")
    of = f"{section['fastest_of']:,} problems{' that worked' if section['fastest_of'] < section['problems'] else ''}"
    _show_fastest(section["fastest"], section["fastest_of"], of, top)
    echo()
    findings = list(_findings(section, names))
    for line in findings or ["nothing suspicious was found"]:
        echo(line)


def _counted(counts: dict[str, int]) -> str:
    shown = [f"{name} ({count:,})" for name, count in list(counts.items())[:6]]
    return ", ".join(shown) + (f", and {len(counts) - 6} more" if len(counts) > 6 else "")


def _show_fastest(fastest: list[dict[str, Any]], total: int, of: str, top: int) -> None:
    columns = ("device", "problem", "fastest", "time", "configs", "slowest/fastest")
    rows = [
        (
            item["device"],
            assignments(item["problem"]),
            assignments(item["config"]) or "the only one",
            duration(item["time_ns"]),
            item["measured_configs"],
            f"{item['slowest_over_fastest']:.2f}",
        )
        for item in fastest[:top]
    ]
    if rows:
        echo()
        more = "all" if len(fastest) == total else f"{len(fastest):,}"
        table(columns, rows, f"fastest config, {len(rows)} of {of} ({more} with --json)", right=columns[3:])


def _findings(section: dict[str, Any], names: dict[str, str]) -> Iterator[str]:
    aliases, shift = section["aliased_configs"], section["label_shift"]
    for line in disagreement_lines(section["disagreements"]):
        yield f"! {line}"
    if section.get("isolated_times", {}).get("rows"):
        yield f"! {in_options(isolated_sentence(section['isolated_times']), click.get_current_context().command)}"
    if section["constant_columns"]:
        constants = assignments(section["constant_columns"])
        yield f"- constant: {constants}; a model learns nothing about these"
    if aliases["groups"]:
        one, other = (assignments(config) for config in aliases["examples"][0][:2])
        yield (
            f"! {aliases['configs']:,} configs fall into {aliases['groups']:,} groups that no feature tells apart on "
            f"{aliases['problems']} problems, for example {one} and {other}"
        )
    for item in section["measured_though_impossible"]:
        shown = assignments({**item["example"]["problem"], **item["example"]["config"]})
        yield (
            f"! {item['rows']:,} rows ({item['share']:.1%} of those that worked on {item['device']}) break a constraint: "
            f"{item['sentence']}; the constraint or the table is wrong, see for example {shown}"
        )
    if section["faster_than_possible"]["rows"]:
        yield f"! {sentence(section['faster_than_possible'])}"
    for stretch in shift["stretches"]:
        side = "before" if stretch["shift"] < 0 else "after"
        name = names.get(stretch["source"], stretch["source"])
        yield (
            f"! label shift: the labels of rows {stretch['first_row']:,} to {stretch['last_row']:,} of {name} (counted from 0; "
            f"{stretch['rows']:,} rows) fit the rows {abs(stretch['shift'])} {side} them better than their own: "
            "was this table joined by position?"
        )
    if shift["note"]:
        said = in_options(shift["note"], click.get_current_context().command)
        yield f"- label shift: {'not checked, ' if not shift['checked_rows'] else ''}{said}"


@verb("merge")
def merge_verb(
    paths: Annotated[Sequence[Path], Help(metavar="DATASET...", names="dataset_folders", required=True)],
    *,
    out: Annotated[Path, Help("The directory to write; it must not exist.", metavar="DATASET", required=True)],
    as_json: Json = False,
) -> None:
    """Join datasets into a new one.

    Rows that are equal in every cell are kept once; repeats of a measurement are all kept. Repeats that
    contradict each other are reported, never resolved.

    \b
    kerncast merge monday tuesday --out week
    """
    with working(f"merging {len(paths)} datasets"):
        inputs = [Dataset.open(path) for path in paths]
        dataset, dropped = merge(inputs, out)
        conflicts = {family.id: disagreements(dataset.read(family)) for family in dataset.families}
    if as_json:
        print_json(
            {
                "path": str(out),
                "rows": dataset.rows,
                "duplicates_dropped": dropped,
                "digest": dataset.digest,
                "notes": [f"{dropped:,} exact duplicates dropped"],
                "conflicts": conflicts,
                "unfinished": {str(item.path): asdict(item.completeness) for item in inputs if item.completeness},
            }
        )
        return
    say_unfinished(inputs)
    echo(f"{out}: {dataset.rows:,} rows, {dropped:,} exact duplicates dropped")
    for name, found in conflicts.items():
        for line in disagreement_lines(found):
            echo(f"{name}: {line}")
