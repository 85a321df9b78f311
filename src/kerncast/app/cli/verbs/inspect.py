"""`kerncast inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import click

from kerncast.app.api.inspect import inspect
from kerncast.app.api.printing import echo
from kerncast.app.cli.options import in_options
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.disagreements import disagreement_lines
from kerncast.app.cli.views.hardware import hardware_lines
from kerncast.app.cli.views.output import (
    Json,
    assignments,
    duration,
    print_json,
    say_unfinished,
    table,
    working,
)
from kerncast.app.cli.views.skipped import skipped_facts, skipped_lines
from kerncast.core.io.arguments import Help
from kerncast.core.io.terminal import distinct
from kerncast.core.op.limits import sentence
from kerncast.data.dataset import Dataset
from kerncast.data.isolated_times import isolated_sentence


@verb("inspect", inspect)
def command(
    call: Call,
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
