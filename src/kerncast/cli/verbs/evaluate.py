"""`kerncast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli.on_ray import on_ray_options
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.evaluation import show
from kerncast.cli.views.output import datasets_argument, json_option, print_json, software_option, where_option


@click.command("evaluate")
@model_argument()
@store_of_model
@datasets_argument()
@click.option(
    "--split",
    metavar="HOW",
    help="Refit the model's recipe fold by fold, split by problem, size, config, device, or a split of the op (gemm: nk).",
)
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(min=1), metavar="N",
    help="Refit --split with this many seeds, and show how much the figures differ.",
)  # fmt: skip
@click.option("--include-seen", is_flag=True, help="Score problems the model was trained on too; labelled as such.")
@where_option
@software_option
@click.option("--report", type=click.Path(path_type=Path), metavar="HTML", help="Write a report (one file, readable offline).")
@click.option("--budget-curve", is_flag=True, help="Show how much data is needed, by refitting on parts of it; takes a while.")
@click.option(
    "--off-grid", is_flag=True,
    help="Also refit without each kind of problems (badly aligned, very small or large, lopsided) and score every tier there.",
)  # fmt: skip
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="SOLUTIONS",
    help="Choices of another system to score next to the model: a JSON list of {problem, config}, a max-autotune solution, "
    "an Inductor lookup table, or a CSV or parquet table.",
)
@click.option(
    "--worst",
    default=10,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="How many of the worst choices and of the worst predictions to list.",
)
@click.option("--save-predictions", type=click.Path(path_type=Path), metavar="PARQUET",
              help="Write one row per vector; `kerncast compare` takes two such files.")  # fmt: skip
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Threads to refit with. [default: all cores]")
@click.option("--tiers/--no-tiers", default=True, show_default=True,
              help="Also score and time the quick tiers of `select` (without --split).")  # fmt: skip
@on_ray_options("every fold of --split, of all --seeds, is a task of a cluster; the figures are the same")
@json_option
def command(
    model: Path, datasets: tuple[Path, ...], report: Path | None, save_predictions: Path | None, worst: int, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Score a model against the best measured config of every problem that it has not seen.

    Problems that the model was trained on are left out and counted. To judge on the training data itself, refit
    the recipe fold by fold with --split.

    \b
    kerncast evaluate model new_measurements
    kerncast evaluate model quickstart/gemm_cpu --split problem --report report.html
    kerncast evaluate model quickstart/gemm_cpu --split problem --off-grid
    kerncast evaluate model h100 --split nk --json
    """
    from kerncast.api.evaluate import evaluate, write_files
    from kerncast.evaluating.text import evaluation_blocks
    from kerncast.files.places import check_place
    from kerncast.models.model import Model

    check_place("report", report)
    check_place("save_predictions", save_predictions)
    loaded = Model.load(model)
    with shown(plain=True) as progress:
        found = evaluate(loaded, datasets, worst=worst, progress=progress, **options)
    # Print the figures first, so that a full disk cannot lose them.
    if as_json:
        print_json(found.as_json(worst))
    else:
        show(evaluation_blocks(found.as_json(), worst))
    with shown(plain=True) as progress:
        write_files(found, loaded, report, save_predictions, progress)
    if report is not None and not as_json:
        echo("", f"report: {report}")
