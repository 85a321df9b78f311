"""`kerncast compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.evaluation import show
from kerncast.cli.views.output import datasets_argument, json_option, print_json, software_option, where_option, working


@click.command("compare")
@model_argument("old", "OLD")
@model_argument("new", "NEW")
@store_of_model
@datasets_argument(required=False)
@click.option("--max-mean", default=0.5, show_default=True, metavar="%", help="Allowed drop of the mean.")
@click.option("--max-median", default=0.5, show_default=True, metavar="%", help="Allowed drop of the median.")
@click.option("--max-p10", default=2.0, show_default=True, metavar="%", help="Allowed drop of the P10.")
@click.option(
    "--max-problem", default=10.0, show_default=True, metavar="%",
    help="Allowed drop of any single problem, beyond its noise.",
)  # fmt: skip
@click.option(
    "--tier", metavar="TIER",
    help="Compare what this tier would run (tree, portfolio or full), instead of the models' own scores.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 on AMBIGUOUS too.")
@click.option("--include-seen", is_flag=True, help="Use problems that a model was trained on too; labelled as such.")
@where_option
@software_option
@click.option("--save-predictions", type=click.Path(path_type=Path), metavar="PARQUET", help="Write one row per problem.")
@json_option
def command(
    old: Path, new: Path, datasets: tuple[Path, ...], strict: bool, save_predictions: Path | None, as_json: bool, **options: Any
) -> None:
    """Is the new model safe to ship? BETTER, SAME, WORSE (exit 1) or AMBIGUOUS, with reasons.

    The models are compared problem by problem, on problems that neither was trained on. OLD and NEW may also be two files
    that `kerncast evaluate --save-predictions` wrote, without a dataset: only problems that are in both count.

    \b
    kerncast compare model model2 held_out
    kerncast compare model model2 held_out --tier tree
    kerncast compare model model2 held_out --strict --max-p10 1 --json
    kerncast compare old.parquet new.parquet
    """
    from kerncast.api.compare import compare
    from kerncast.evaluating.predictions import write_predictions
    from kerncast.evaluating.text import verdict_blocks
    from kerncast.files.places import check_place

    check_place("save_predictions", save_predictions)
    with working("comparing"):
        found = compare(old, new, datasets or None, **options)
    if as_json:
        print_json(found.as_json())
    else:
        show(verdict_blocks(found.verdict, found.reasons, found.as_json()))
    if save_predictions is not None:
        write_predictions(save_predictions, found.problems)
    if found.verdict == "WORSE" or (strict and found.verdict == "AMBIGUOUS"):
        raise SystemExit(1)
