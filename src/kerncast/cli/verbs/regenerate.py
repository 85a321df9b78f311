"""`kerncast regenerate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli.on_ray import on_ray_options
from kerncast.cli.signals import polite_signals
from kerncast.cli.verbs.models import store_option
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.errors import InvalidValue
from kerncast.writing.shell import word

if TYPE_CHECKING:
    from kerncast.regenerating import FamilyOutcome, Routine
    from kerncast.regenerating.planning import FamilyPlan

# The routine that builds the models of the package.
SHIPPED = "shipped"


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
@click.option(
    "--tables", type=click.Path(path_type=Path), metavar="PATH", multiple=True,
    help="shipped: AIConfigurator's tables (the aiconfigurator-core wheel or a folder that it was unpacked to), or a file or "
    "folder with Tenstorrent's tables (big_exp_dataset.csv, final_exp_dataset.csv, all_models.csv.gz). Repeatable.",
)  # fmt: skip
@click.option("--installed", is_flag=True, help="shipped: the tables of the installed package aiconfigurator-core.")
@click.option(
    "--only", multiple=True, metavar="NAME", help="shipped: this model (gemm-vllm) or all of an op (gemm). Repeatable."
)
@click.option("--sample", type=click.Choice(["small"]), help="shipped: few rows and trees, to try the recipe.")
@click.option("--rows", default=0, type=click.IntRange(min=0), metavar="N", help="shipped: learn from at most N rows a model.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="shipped: cores to train with. [default: all]")
@on_ray_options("shipped: every fit is a task of a cluster; the models are the same, byte by byte")
@store_option
@json_option
def command(
    routine_name: str, out: Path | None, changes: tuple[str, ...], again: bool, dry_run: bool, store: Path | None,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Measure, train and compare again, and put the model into the store if it is not worse than the one there.

    ROUTINE is one that ships (a100-mm, conv-cpu, gemm-cpu, inductor-cpu, quickstart, reshard-cpu, ttnn-concatenate-heads,
    ttnn-create-qkv-heads, ttnn-exp, ttnn-exp-table, ttnn-paged-sdpa-decode) or a TOML file (docs/regenerating.md). If it is
    killed, run the same command to continue with the current step. Exit code 1 when a new model was not put into the store, 3
    when the run was stopped before the end.

    `shipped` builds the models that come with kerncast from public tables, each in a folder of its own in WORKDIR. It measures
    nothing and leaves the store alone. Exit code 1 when the tables hold none of them.

    \b
    kerncast regenerate gemm-cpu --dry-run
    kerncast regenerate gemm-cpu
    kerncast regenerate mine.toml --set sweep.max_problems=40 --set train.folds=3 --out try
    kerncast regenerate shipped --tables aiconfigurator_core-0.12.0.whl --only gemm-vllm --out models
    kerncast regenerate shipped --tables all_models.csv.gz --only reshard --out models
    """
    if routine_name == SHIPPED:
        unused = {"set": changes, "again": again, "store": store}
        _refuse(next((name for name, value in unused.items() if value), None), "does not go with `shipped`")
        _shipped(out or Path("regenerate") / SHIPPED, dry_run, as_json, **given)
        return
    given = given | {"on": given["on"] != "local"}
    _refuse(next((name for name, value in given.items() if value), None), f"is for `kerncast regenerate {SHIPPED}`")
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
    if "replace" in routine.steps and not all(item.replaced for item in outcomes):
        raise SystemExit(1)


def _refuse(option: str | None, why: str) -> None:
    if option is not None:
        raise InvalidValue(f"--{option} {why}: leave it out")


def _shipped(
    out: Path, dry_run: bool, as_json: bool, *, tables: tuple[Path, ...], installed: bool, only: tuple[str, ...],
    sample: str | None, rows: int, threads: int, on: str, address: str | None,
) -> None:  # fmt: skip
    from kerncast.api.on_ray import spread_over
    from kerncast.data.importers import get_importer
    from kerncast.regenerating.shipping import build_shipped, plans_named

    if dry_run:
        plans = [plan.smaller() if sample else plan.limited(rows) for plan in plans_named(only)]
        if as_json:
            print_json([{"name": plan.name, **asdict(plan)} for plan in plans])
            return
        columns = ("model", "family", "framework", "rows at most", "trees", "folds")
        lines = [
            (plan.name, plan.family, plan.framework, f"{plan.rows:,}", str(plan.knobs["trees"]), str(plan.folds))
            for plan in plans
        ]
        table(columns, lines, right=columns[3:])
        return
    if not tables and not installed:
        raise InvalidValue(
            "name the tables with --tables PATH, or take AIConfigurator's of the installed package with --installed"
        )
    for path in tables:
        if not path.exists():
            raise InvalidValue(
                f"there is no {path}: get AIConfigurator's tables with `pip download --no-deps aiconfigurator-core`"
            )
    places = [*tables, *([get_importer("aiconfigurator").installed()] if installed else [])]
    with spread_over(on, address) as spread, shown(plain=True) as progress:
        built = build_shipped(
            places, out, only=only, sample=sample, rows=rows, threads=threads, spread=spread, progress=progress
        )
    if as_json:
        print_json({"path": str(out), "models": [asdict(item) for item in built]})
    else:
        columns = ("model", "devices", "rows", "held-out MAPE", "KB", "seconds")
        done = [item for item in built if not item.left_out]
        table(columns, [
            (item.name, str(len(item.devices)), f"{item.rows:,}", "unknown" if item.mape is None else f"{item.mape:.2%}",
             f"{item.bytes / 1e3:,.0f}", f"{item.seconds:,.0f}")
            for item in done
        ], right=columns[1:])  # fmt: skip
        for item in built:
            if item.left_out:
                echo(f"- left out {item.name}: {item.left_out}")
        echo("", f"{len(done)} models, {sum(item.bytes for item in done) / 1e6:,.1f} MB, in {out}")
    if all(item.left_out for item in built):
        raise SystemExit(1)


def _counted(number: int | None) -> str:
    return "as in the files" if number is None else f"{number:,}"


def _show_plan(planned: list[FamilyPlan], as_json: bool) -> None:
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


def _show(routine: Routine, outcomes: list[FamilyOutcome], folder: Path, as_json: bool) -> None:
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
