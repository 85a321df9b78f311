"""`kerncast regenerate`: routines of measuring, training, comparing and replacing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click

from kerncast.app.api.arguments import HERE, Cluster, spread_over
from kerncast.app.api.regenerate import first_look, rerun, update
from kerncast.app.api.showing import echo, shown
from kerncast.app.cli.signals import polite_signals
from kerncast.app.cli.verb import VerbCall, VerbGroup, group, verb
from kerncast.app.cli.views import Json, assignments, duration, print_json, say, table
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.data.formats import get_importer
from kerncast.errors import InvalidValue
from kerncast.models.store.entry import DEFAULT
from kerncast.models.store.store import Store
from kerncast.regenerating import FamilyOutcome, Routine, load
from kerncast.regenerating import regenerate as run
from kerncast.regenerating.planning import FamilyPlan
from kerncast.regenerating.quickstart import Stopped
from kerncast.regenerating.quickstart import quickstart as begin
from kerncast.regenerating.shipping import build_shipped, plans_named


class _Routines(VerbGroup):
    """A name that is not of one of its verbs is that of a routine."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or (None if name.startswith("-") else routine)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = super().get_command(ctx, args[0])
        return (known.name, known, args[1:]) if known is not None else (routine.name, routine, args)


@group("regenerate", kind=_Routines)
def regenerate_verb() -> None:
    """Measure, train and compare again, and replace a model if the new one is not worse and --replace says so.

    ROUTINE is one that ships (a100-mm, conv-cpu, gemm-cpu, inductor-cpu, reshard-cpu, ttnn-concatenate-heads,
    ttnn-create-qkv-heads, ttnn-exp, ttnn-exp-table, ttnn-paged-sdpa-decode) or a TOML file (docs/regenerating.md).
    `kerncast regenerate ROUTINE --help` shows its options. The other routines have options of their own. Each takes --json.

    \b
    kerncast regenerate gemm-cpu --dry-run
    kerncast regenerate gemm-cpu --replace
    kerncast regenerate mine.toml --set sweep.max_problems=40 --set train.folds=3 --out try
    kerncast regenerate update model today --replace
    kerncast regenerate quickstart
    kerncast regenerate shipped --tables all_models.csv.gz --only reshard --out models
    """


@verb("ROUTINE", rerun)
def routine(call: VerbCall, name: Annotated[str, Help(metavar="ROUTINE")], *, as_json: Json = False) -> None:
    """Measure, train and compare again, and put the model into the store if there is none, or if --replace says so.

    The new model takes the place of one in the store only with --replace, and only if it is not worse; without it, both stay.
    If it is killed, run the same command to continue with the current step. Exit code 1 when the new model is worse, or could
    not be compared, 3 when the run was stopped before the end.

    \b
    kerncast regenerate gemm-cpu --dry-run
    kerncast regenerate gemm-cpu --replace
    kerncast regenerate mine.toml --set sweep.max_problems=40 --set train.folds=3 --out try
    """
    wanted, opened = load(name, tuple(call["changes"] or ())), Store.open(call["store"])
    if call["dry_run"]:
        _show_plan(call(routine=wanted, store=opened), as_json)
        return
    folder = Path("regenerate") / wanted.name if call["out"] is None else Path(call["out"])
    with shown(plain=True) as progress:
        outcomes = run(
            wanted, opened, folder, again=call["again"], replace=call["replace"], progress=progress, listening=polite_signals
        )
    _show(wanted, outcomes, folder, as_json)
    if not all(item.finished for item in outcomes):
        raise SystemExit(3)
    if "replace" in wanted.steps and not all(item.replaced or item.waits for item in outcomes):
        raise SystemExit(1)


@regenerate_verb.verb("update", update)
def update_model(call: VerbCall, *, as_json: Json = False) -> None:
    """Continue a model with new measurements, and keep the result if it is not worse.

    MODEL is a directory, or the id of a model in the store. Rows that it has learned from already are left out. The new
    model is trained on the other rows and compared with the old one, on held-out problems of the new data and on the old
    data. If the verdict is BETTER or SAME, the new model is written to --out, or with --replace takes the place of the old one,
    which is kept as MODEL.previous. Otherwise the old model stays, and the exit code is 1. If no row is new, nothing happens,
    and the exit code is 0.

    \b
    kerncast regenerate update model today --dry-run
    kerncast regenerate update model today --replace
    kerncast regenerate update my-model autotunes --out newer
    kerncast regenerate update gemm/triton measured-elsewhere --pool --replace
    """
    with shown(plain=True, what="reading the measurements") as progress:
        found = call(progress=progress)
    if as_json:
        print_json(found.as_json())
    else:
        say(*str(found).splitlines())
        if found.replaced:
            echo(f"the new model is {found.model}; the old one is {found.previous}")
        else:
            echo(f"{found.model} stays as it is")
    if not found:
        raise SystemExit(1)


@regenerate_verb.verb("quickstart", first_look)
def quickstart(call: VerbCall, *, as_json: Json = False) -> None:
    """Measure real GEMM kernels on this machine, learn to choose among them, and see what that is worth.

    Builds the family gemm/cpu, measures a few dozen shapes with 160 kernels each and some of them again (to know how far
    two measurements agree), trains a model, evaluates it on shapes that it has not seen, writes a report, races the
    winners against numpy's BLAS and prints a table. If it is interrupted, run the same command to continue.

    \b
    kerncast regenerate quickstart
    kerncast regenerate quickstart --full --out full
    """
    out = Path(call["out"])
    try:
        with shown(plain=True) as progress:
            found = begin(out, full=call["full"], progress=progress, listening=polite_signals)
    except Stopped as error:
        echo(str(error), err=True)
        raise SystemExit(3) from error
    if as_json:
        print_json(found.as_json())
        return
    _print_table(found.shapes, found.totals)
    # `make quickstart` runs it from an environment that is not on the PATH.
    kerncast = "kerncast" if shutil.which("kerncast") else word(sys.argv[0])
    dataset, model = word(out / "gemm_cpu"), word(out / "model")
    echo("", f"look at {out / 'report.html'} in a browser. Commands to try next:")
    echo(f"  {kerncast} select {model} M=300 N=500 K=700 dtype=fp32 layout=rrr --explain")
    echo(f"  {kerncast} evaluate {model} {dataset} --split size")
    echo(f"  {kerncast} inspect {dataset} --where problem.layout=rcr --top 20")
    echo(f"  {kerncast} collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=all --max-flops 1e8 \\")
    echo("      --configs sample:50 --out mine")


def _print_table(shapes: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    columns = ("shape", "best kernel", "the model's choice gets", "the best fixed kernel gets", "numpy's BLAS gets")
    lines = [
        (item["problem"], duration(item["best_ns"]), f"{item['model_share']:.0%}", f"{item['fixed_share']:.0%}",
         "-" if item["best_against_blas"] is None else f"{1 / item['best_against_blas']:.0%}")
        for item in shapes
    ]  # fmt: skip
    table(columns, lines, "of the speed of the best measured kernel", right=columns[1:])
    echo(
        "",
        f"{totals['problems']} shapes, {totals['rows']:,} measurements. On shapes that it had not seen, the model's choice "
        f"runs at {totals['model_share_mean']:.1%} of the best measured speed (P10 {totals['model_share_p10']:.1%}, worst "
        f"{totals['model_share_min']:.1%}). The best fixed kernel ({assignments(totals['best_fixed_config'])}), picked with "
        f"hindsight: {totals['fixed_share_mean']:.1%}, worst {totals['fixed_share_min']:.1%}. Against numpy's BLAS: the "
        f"model's choice is {totals['model_against_blas']:.2f} x as fast, the best measured kernel "
        f"{totals['best_against_blas']:.2f} x (geometric means).",
    )
    if totals["noise_ceiling"] is not None:
        meaning = (
            "No chooser can be expected to get more."
            if totals["noise_ceiling"] >= totals["model_share_mean"]
            else "The model's figure is above it, because the ceiling is of these few shapes alone: on a machine this busy, "
            "both figures are rough."
        )
        echo(
            f"Noise: {totals['problems_measured_twice']} shapes were measured twice; the fastest kernel of one time gets "
            f"{totals['noise_ceiling']:.1%} of the best at the other (noise ceiling). {meaning}"
        )
    exported = totals["export"]
    quick = ", ".join(f"{tier} {duration(value * 1e3)}" for tier, value in exported["p50_us"].items())
    echo(f"Exported to C in {exported['path']} ({exported['self_test']}). Choosing for a new shape takes: {quick}.")


@regenerate_verb.verb("shipped")
def shipped_models(
    *,
    out: Annotated[Path, Help("Where the models are written, each in a folder of its own.", metavar="WORKDIR")] = Path(
        "regenerate/shipped"
    ),
    tables: Annotated[
        Sequence[Path],
        "AIConfigurator's tables (the aiconfigurator-core wheel or a folder that it was unpacked to), or a file or folder "
        "with Tenstorrent's tables (big_exp_dataset.csv, final_exp_dataset.csv, all_models.csv.gz). May be repeated.",
        Help(metavar="PATH"),
    ] = (),
    installed: Annotated[bool, Help("The tables of the installed package aiconfigurator-core.")] = False,
    only: Annotated[
        Sequence[str], Help("This model (gemm-vllm) or all of an op (gemm). May be repeated.", metavar="NAME")
    ] = (),
    sample: Annotated[str | None, Help("Few rows and trees, to try the recipe.", choices=("small",))] = None,
    rows: Annotated[int, Help("Learn from at most N rows a model. [default: all]", metavar="N", least=0)] = 0,
    threads: Annotated[int, Help("Cores to train with. [default: all]", least=0)] = 0,
    cluster: Cluster = HERE,
    dry_run: Annotated[bool, Help("Say what would be built; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Build the models that come with kerncast from public tables, each in a folder of its own.

    It measures nothing and leaves the store alone. Exit code 1 when the tables hold none of them. With --on ray, every fit is a
    task of a cluster; the models are the same, byte by byte.

    \b
    kerncast regenerate shipped --tables aiconfigurator_core-0.12.0.whl --only gemm-vllm --out models
    kerncast regenerate shipped --tables all_models.csv.gz --only reshard --out models
    """
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
    with spread_over(cluster) as spread, shown(plain=True) as progress:
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


def _show_plan(planned: list[FamilyPlan], as_json: bool) -> None:
    if as_json:
        print_json([asdict(item) for item in planned])
        return
    columns = ("family", "problems", "vectors", "measuring", "compared with")
    lines = [
        (item.family, *("as in the files" if number is None else f"{number:,}" for number in (item.problems, item.vectors)),
         "unknown" if item.seconds is None else f"at least {item.seconds / 60:,.0f} min", item.old or "nothing: it is new")
        for item in planned
    ]  # fmt: skip
    table(columns, lines, right=columns[1:4])


def _show(routine: Routine, outcomes: list[FamilyOutcome], folder: Path, as_json: bool) -> None:
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
        elif item.waits:
            echo(
                f"{item.family}: {item.verdict} ({why}): the store is unchanged; the new model is {item.model}, and the same "
                "command with --replace puts it there"
            )
        else:
            echo(
                f"{item.family}: {item.verdict} ({why}): the store is unchanged; the new model is {item.model} "
                f"(`kerncast models add {word(item.model)} --replace{named}` adds it anyway)"
            )


regenerate_verb.add_command(routine)
