"""`kerncast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.cli.output_paths import check_place
from kerncast.cli.views.evaluation import show_figures, show_slices, show_tiers, show_worst
from kerncast.cli.views.output import json_option, print_json, where_option, working
from kerncast.cli.views.training import TrainingView

if TYPE_CHECKING:
    from kerncast.evaluating.evaluation import Evaluation


@click.command("evaluate")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("datasets", metavar="DATASET...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--split",
    metavar="HOW",
    help="Refit the model's recipe fold by fold: problem, size, config, device, or one that the op names (gemm: nk).",
)
@click.option("--include-seen", is_flag=True, help="Score problems the model was trained on too; labelled as such.")
@where_option
@click.option("--report", type=click.Path(path_type=Path), metavar="HTML", help="Write a report to look at (one offline file).")
@click.option("--budget-curve", is_flag=True, help="How much must be measured? Refits on parts of the data; takes a while.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="SOLUTIONS",
    help="Somebody else's choices, scored beside the model: a JSON list of {problem, config}, a max-autotune solution, "
    "an Inductor lookup table, or a CSV or parquet table.",
)
@click.option("--worst", default=10, show_default=True, type=click.IntRange(min=0), metavar="N", help="Problems to list.")
@click.option("--save-predictions", type=click.Path(path_type=Path), metavar="PARQUET", help="Write one row per vector.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Threads to refit with. [default: all cores]")
@click.option("--tiers/--no-tiers", default=True, show_default=True,
              help="Also say what the quick tiers of `select` get, and how long they take (without --split).")  # fmt: skip
@json_option
def command(
    model: Path,
    datasets: tuple[Path, ...],
    split: str | None,
    include_seen: bool,
    where: tuple[str, ...],
    report: Path | None,
    budget_curve: bool,
    against: Path | None,
    worst: int,
    save_predictions: Path | None,
    threads: int,
    tiers: bool,
    as_json: bool,
) -> None:
    """Score a model against the best measured config of every problem that it has not seen.

    Problems that the model was trained on are left out and counted. To judge on the training data itself, refit
    the recipe fold by fold with --split.

    \b
    kerncast evaluate model new_measurements
    kerncast evaluate model quickstart/gemm_cpu --split problem --report report.html
    kerncast evaluate model h100 --split nk --json
    """
    from kerncast.evaluating import evaluate
    from kerncast.models.model import Model

    check_place("--report", report)
    check_place("--save-predictions", save_predictions)
    if against is not None:
        from kerncast.evaluating.solutions import read_solutions, score_solutions

        judged = Model.load(model)
        # Refused before anything is fitted.
        solutions = read_solutions(against, judged.family, [item.name for item in judged.manifest.devices])
    with TrainingView() as view:
        found = evaluate(
            model, datasets, split=split, include_seen=include_seen, where=where, worst=max(worst, 20), threads=threads,
            stage=view.stage, step=view.step,
        )  # fmt: skip
        summary = found.summary
        budget = None
        if budget_curve:
            from kerncast.evaluating.budget import budget_curves

            budget = summary["budget"] = budget_curves(model, datasets, where, threads, view.stage)
    if tiers and split is None and summary["overall"]["efficiency_mean"] is not None:
        summary["tiers"] = _tiers(found, model)
    if against is not None:
        summary["against"] = score_solutions(solutions, found, judged.family)
    # The figures come first: what took so long to find must not be lost to a disk that fills up.
    if as_json:
        print_json({**summary, "worst": found.summary["worst"][:worst]})
    else:
        _show(summary, worst)
    _write(found, model, save_predictions, report, budget)
    if report is not None and not as_json:
        click.echo(f"\nreport: {report}")


def _write(
    found: Evaluation, model: Path, save_predictions: Path | None, report: Path | None, budget: dict[str, Any] | None
) -> None:
    """The files that were asked for."""
    from kerncast.data.dataset import write_atomically
    from kerncast.models.model import Model

    if save_predictions is not None:
        write_atomically(save_predictions, found.rows.write_parquet)
    if report is not None:
        from kerncast.evaluating.report import write_report

        with working(f"writing {report}"):
            write_report(found, Model.load(model), report, budget)


def _tiers(found: Evaluation, model: Path) -> list[dict[str, Any]] | None:
    """A line per tier; None where the model does not record what it would take."""
    from kerncast.cli.asking import steps
    from kerncast.evaluating.tier_lines import tier_lines
    from kerncast.models.model import Model
    from kerncast.selecting.selector import Selector

    loaded = Model.load(model)
    if not loaded.candidates.height or loaded.out_of_fold is None or len(loaded.manifest.devices) > 1:
        return None
    with steps() as step:
        selector = Selector.load(loaded, step=step)
        step("asking the tiers")
        return tier_lines(found, selector)


def _show(summary: dict[str, object], worst: int) -> None:
    seen = summary["problems_seen_in_training"]
    if summary["includes_training_data"]:
        click.echo(f"! {seen} of these problems were trained on: these figures are of the training data")
    elif seen:
        click.echo(f"{seen} problems that the model was trained on were left out")
    unseen = "training data included" if summary["includes_training_data"] else "not seen in training"
    how = f"refitted, split by {summary['split']}" if summary["split"] else unseen
    show_figures(summary, how)
    if summary.get("tiers"):
        show_tiers(summary["tiers"])  # type: ignore[arg-type]
    against = summary.get("against")
    if isinstance(against, dict):
        from kerncast.evaluating.solutions import said

        click.echo(f"\n{said(against)}")
    budget = summary.get("budget")
    if isinstance(budget, dict):
        from kerncast.cli.views.budget import show_budget

        show_budget(budget)
    show_slices(summary["slices"])  # type: ignore[arg-type]
    show_worst(summary["worst"], worst)  # type: ignore[arg-type]
