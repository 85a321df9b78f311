"""`kerncast compare`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.cli.output_paths import check_place
from kerncast.cli.views.output import json_option, print_json, table, where_option, working


def _share(context: click.Context, parameter: click.Parameter, value: float) -> float:
    return value / 100.0


@click.command("compare")
@click.argument("old", metavar="OLD", type=click.Path(path_type=Path))
@click.argument("new", metavar="NEW", type=click.Path(path_type=Path))
@click.argument("datasets", metavar="DATASET...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--max-mean", default=0.5, show_default=True, callback=_share, metavar="%", help="Drop of the mean allowed.")
@click.option("--max-median", default=0.5, show_default=True, callback=_share, metavar="%", help="Drop of the median allowed.")
@click.option("--max-p10", default=2.0, show_default=True, callback=_share, metavar="%", help="Drop of the P10 allowed.")
@click.option(
    "--max-problem", default=10.0, show_default=True, callback=_share, metavar="%",
    help="Drop of any one problem allowed, beyond its noise.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 on AMBIGUOUS too.")
@click.option("--include-seen", is_flag=True, help="Use problems that a model was trained on too; labelled as such.")
@where_option
@click.option("--save-predictions", type=click.Path(path_type=Path), metavar="PARQUET", help="Write one row per problem.")
@json_option
def command(
    old: Path,
    new: Path,
    datasets: tuple[Path, ...],
    max_mean: float,
    max_median: float,
    max_p10: float,
    max_problem: float,
    strict: bool,
    include_seen: bool,
    where: tuple[str, ...],
    save_predictions: Path | None,
    as_json: bool,
) -> None:
    """Is the new model safe to ship? BETTER, SAME, WORSE (exit 1) or AMBIGUOUS, with reasons.

    The two are paired problem by problem, on problems that neither was trained on.

    \b
    kerncast compare model model2 held_out
    kerncast compare model model2 held_out --strict --max-p10 1 --json
    """
    from kerncast.data.dataset import write_atomically
    from kerncast.evaluating import Limits, compare

    check_place("--save-predictions", save_predictions)
    limits = Limits(max_mean, max_median, max_p10, max_problem)
    with working("comparing"):
        found = compare(old, new, datasets, limits=limits, include_seen=include_seen, where=where)
    if as_json:
        print_json({"verdict": found.verdict, "reasons": found.reasons, **found.summary})
    else:
        _show(found.summary)
        click.echo(f"\n{found.verdict}: {'; '.join(found.reasons)}")
    if save_predictions is not None:
        write_atomically(save_predictions, found.problems.write_parquet)
    if found.verdict == "WORSE" or (strict and found.verdict == "AMBIGUOUS"):
        raise SystemExit(1)


def _show(summary: dict[str, object]) -> None:
    if summary["includes_training_data"]:
        click.echo("! some of these problems were trained on: these figures are of the training data")
    elif summary["problems_seen_in_training"]:
        click.echo(f"{summary['problems_seen_in_training']} problems that a model was trained on were left out")
    old, new = summary["old"], summary["new"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    columns = (str(summary["measure"]), "old", "new", "difference")
    lines = [(name, f"{old[name]:.2%}", f"{new[name]:.2%}", f"{new[name] - old[name]:+.2%}") for name in old]
    table(columns, lines, f"{summary['n_problems']:,} problems", right=columns[1:])
    click.echo(
        f"improved {summary['improved']:,}, same {summary['same']:,}, degraded {summary['degraded']:,}; worst drop "
        f"{summary['worst_drop']:.2%}; the same choice on {summary['agreement']:.1%}"
    )
