"""`kerncast train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from kerncast.cli.views.evaluation import show_beside, show_figures
from kerncast.cli.views.output import assignments, json_option, print_json, where_option
from kerncast.cli.views.training import TrainingView
from kerncast.errors import InvalidValue

TARGETS = "relative, latency, tflops, bandwidth"


def _hidden(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise InvalidValue(f"--hidden is a list of layer sizes such as 100,50, got '{value}'") from error


def _refuse_unknown(*targets: str) -> None:
    """Before the hours of training that would come before the last of them is asked for."""
    strange = [name for name in targets if name and name not in TARGETS.split(", ")]
    if strange:
        raise InvalidValue(f"--targets is one of {TARGETS}, got '{strange[0]}'")


@click.command("train")
@click.argument("datasets", metavar="DATASET...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="MODELDIR", help="Where to write the model.")
@click.option(
    "--model", "kind", metavar="KIND", help="roofline, linear, mlp, gbdt or deep. [default: gbdt, or what --warm-start is]"
)
@click.option("--family", metavar="FAMILY", help="Which family, when the data holds several.")
@where_option
@click.option("--drop-suspect", is_flag=True, help="Leave out rows whose labels fit other rows better (see `inspect`).")
@click.option("--pool", is_flag=True, help="Train on several devices, backends, software versions or cache states together.")
@click.option(
    "--targets",
    metavar="NAME",
    help=f"What to predict: {TARGETS}; with --format ck several of the last three. [default: relative]",
)
@click.option("--raw-target", is_flag=True, help="The target as it is, instead of its logarithm (log1p for tflops).")
@click.option("--folds", type=click.IntRange(min=2), help="Cross-validation folds. [default: 5]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Same data and seed, same bytes.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Threads to train with. [default: all cores]")
@click.option("--warm-start", type=click.Path(path_type=Path), metavar="MODEL", help="Go on from this model with new data.")
@click.option(
    "--hard-mining",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Re-weight problems that are chosen badly, N rounds; reported beside the run without it.",
)
@click.option(
    "--tune",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Try N settings of the knobs that are not given, judged inside each fold.",
)
@click.option("--trees", type=int, help="gbdt: most trees in each forest.")
@click.option("--leaves", type=int, help="gbdt: leaves of a tree.")
@click.option("--epochs", type=int, help="mlp, deep: most passes over the data.")
@click.option("--batch-size", type=int, help="mlp, deep: rows per step.")
@click.option("--lr", type=float, help="gbdt, mlp, deep: learning rate.")
@click.option("--hidden", callback=_hidden, metavar="SIZES", help="mlp, deep: layer sizes such as 100,50.")
@click.option("--loss", metavar="NAME", help="deep: pointwise or listwise.")
@click.option("--blocks", type=int, help="deep: residual blocks per layer.")
@click.option("--bags", type=int, help="gbdt: forests for the order (for times, with nothing to choose), averaged.")
@click.option("--temperature", type=float, help="gbdt, deep: regret at which a config's weight in the ranking is 1/e.")
@click.option("--blend", type=float, help="gbdt, deep: share of the ranking in the choice; 0 chooses by time.")
@click.option("--library-trees", type=int, help="gbdt: trees that judge the vendor's library as a candidate; 0: none.")
@click.option(
    "--format", "layout", type=click.Choice(["kerncast", "ck"]), default="kerncast", show_default=True,
    help="ck: also write the files of CK Tile's heuristics into MODELDIR.",
)  # fmt: skip
@json_option
def command(
    datasets: tuple[Path, ...],
    out: Path,
    kind: str | None,
    family: str | None,
    where: tuple[str, ...],
    drop_suspect: bool,
    pool: bool,
    targets: str | None,
    raw_target: bool,
    folds: int | None,
    seed: int,
    threads: int,
    warm_start: Path | None,
    hard_mining: int,
    tune: int,
    layout: str,
    as_json: bool,
    **knobs: Any,
) -> None:
    """Train a model on measurements and say how good it is on problems it has not seen.

    The figures are out of fold: the folds hold whole groups of problems, early stopping looks at groups of its
    own, and the model that is written comes from the same procedure run on everything. Interrupted, the same
    command goes on with the folds that are left.

    \b
    kerncast train quickstart/gemm_cpu --out model
    kerncast train a100 --model mlp --hidden 128,64 --out mlp
    kerncast train new --warm-start model --trees 100 --out model2
    """
    from kerncast.data.suspect import NOT_SUSPECT
    from kerncast.models.model import Model
    from kerncast.training.procedure import Procedure
    from kerncast.training.train import Recipe, train

    first, *others = (name.strip() for name in (targets or ("tflops" if layout == "ck" else "")).split(","))
    if others and layout != "ck":
        raise InvalidValue(f"one model has one target, got {targets}: train one each, or several with --format ck")
    _refuse_unknown(first, *others)
    if warm_start is not None and folds is not None:
        raise InvalidValue(f"--folds {folds} means nothing with --warm-start: it is judged on one fixed hold-out; leave it out")
    base = None if warm_start is None else Model.load(warm_start)
    recipe = Recipe(
        kind=kind or ("gbdt" if base is None else base.manifest.kind),
        knobs={name: value for name, value in knobs.items() if value is not None},
        target=first or None,
        target_log=False if raw_target else None,
        folds=folds or Recipe.folds,
        seed=seed,
        threads=threads,
        hard_mining=hard_mining,
        tune=tune,
    )
    where = (*where, NOT_SUSPECT) if drop_suspect else where
    # An unknown kind or knob is refused before the data are read.
    Procedure(recipe).options()
    Procedure(recipe).tuned_knobs()
    try:
        with TrainingView() as view:
            model = train(
                list(datasets), out, recipe, family=family, where=where, pool=pool, warm_start=base,
                ck=tuple(others) if layout == "ck" else None, progress=view,
            )  # fmt: skip
    except KeyboardInterrupt:
        if base is None:
            click.echo("finished folds are kept: the same command goes on with those that are left", err=True)
        raise
    if as_json:
        print_json({"model": str(out), **model.evaluation})
        return
    data, features = model.manifest.data, model.manifest.features
    click.echo(
        f"{model.family.id} on {', '.join(item.name for item in model.manifest.devices)}: {data.rows:,} vectors, "
        f"{data.problems:,} problems, {data.configs:,} configs, {data.failures:,} failures"
    )
    if features.aliased_rows:
        click.echo(f"! {features.aliased_rows:,} rows have the same features as another config on their problem")
    for name, needs in features.left_out.items():
        click.echo(f"- left out: {name} needs {', '.join(needs)}, unknown for this device")
    if tune:
        click.echo(f"tuned: {assignments(model.evaluation['tuned'])}")
    how = "on one fixed hold-out" if base is not None else f"out of fold, {model.evaluation['folds']} folds"
    show_figures(model.evaluation, f"{how} by {model.evaluation['split']}")
    show_beside(model.evaluation)
    split = "config" if model.evaluation["split"] == "config" else "problem"
    same = shlex.join([*map(str, datasets), *(part for text in where for part in ("--where", text))])
    held = "HELD_OUT_DATASET" if warm_start else f"{same} --split {split}"
    click.echo(f"\nwritten to {out}. Next: kerncast evaluate {out} {held} --report report.html")
