"""`kerncast regenerate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli.signals import polite_signals
from kerncast.cli.verbs.models import store_option
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.writing.shell import word

if TYPE_CHECKING:
    from kerncast.regenerating import Outcome, Routine
    from kerncast.regenerating.planning import Planned


@click.command("regenerate")
@click.argument("routine_name", metavar="ROUTINE")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="WORKDIR",
    help="Where measurements and models are kept until they are in the store. [default: regenerate/ROUTINE]",
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the routine: sweep.max_problems=20. May be repeated."
)
@click.option("--again", is_flag=True, help="Start a new run if WORKDIR is finished; the finished run is renamed, not removed.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured and compared; write nothing.")
@store_option
@json_option
def command(
    routine_name: str, out: Path | None, changes: tuple[str, ...], again: bool, dry_run: bool, store: Path | None, as_json: bool
) -> None:
    """Measure, train and compare again, and put the model into the store if it is not worse than the one there.

    ROUTINE is one that ships (a100-mm, conv-cpu, gemm-cpu, inductor-cpu, reshard-cpu, ttnn-concatenate-heads,
    ttnn-create-qkv-heads, ttnn-exp, ttnn-exp-table, ttnn-paged-sdpa-decode) or a TOML file (docs/regenerating.md). If it is
    killed, run the same command to continue with the current stage. Exit code 1 when a new model was not put into the store, 3
    when the run was stopped before the end.

    \b
    kerncast regenerate gemm-cpu --dry-run
    kerncast regenerate gemm-cpu
    kerncast regenerate mine.toml --set sweep.max_problems=40 --set train.folds=3 --out try
    """
    from kerncast.regenerating import load, plan, regenerate
    from kerncast.store.store import Store

    routine, opened = load(routine_name, changes), Store.open(store)
    if dry_run:
        _show_plan(plan(routine, opened), as_json)
        return
    folder = out or Path("regenerate") / routine.name
    with shown(plain=True) as progress:
        outcomes = regenerate(routine, opened, folder, again=again, progress=progress, listening=polite_signals)
    _show(routine, outcomes, folder, as_json)
    if not all(item.finished for item in outcomes):
        raise SystemExit(3)
    if not all(item.replaced for item in outcomes):
        raise SystemExit(1)


def _counted(number: int | None) -> str:
    return "as in the files" if number is None else f"{number:,}"


def _show_plan(planned: list[Planned], as_json: bool) -> None:
    if as_json:
        print_json([asdict(item) for item in planned])
        return
    columns = ("family", "problems", "vectors", "measuring", "compared with")
    lines = [
        (item.family, _counted(item.problems), _counted(item.vectors),
         "unknown" if item.seconds is None else f"at least {item.seconds / 60:,.0f} min", item.old or "nothing: it is new")
        for item in planned
    ]  # fmt: skip
    table(columns, lines, right=columns[1:4])


def _show(routine: Routine, outcomes: list[Outcome], folder: Path, as_json: bool) -> None:
    from kerncast.store.store import DEFAULT

    if as_json:
        facts = {"routine": routine.name, "digest": routine.digest, "path": str(folder)}
        print_json({**facts, "families": [{**asdict(item), "finished": item.finished} for item in outcomes]})
        return
    named = "" if routine.store.name == DEFAULT else f" --name {word(routine.store.name)}"
    for item in outcomes:
        why = "; ".join(item.reasons)
        if not item.finished:
            echo(f"{item.family}: {why}; everything done so far is in {folder}: run the same command to continue")
        elif item.replaced:
            echo(f"{item.family}: {item.verdict} ({why}): in the store as {item.model}")
        else:
            echo(
                f"{item.family}: {item.verdict} ({why}): the store is unchanged; the new model is {item.model} "
                f"(`kerncast models add {word(item.model)} --replace{named}` adds it anyway)"
            )
