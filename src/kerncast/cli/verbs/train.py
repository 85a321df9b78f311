"""`kerncast train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.knobs import WithKnobs, given_knobs
from kerncast.cli.on_ray import on_ray_options
from kerncast.cli.options import in_options
from kerncast.cli.stored import MODEL, store_of_model
from kerncast.cli.views.evaluation import show
from kerncast.cli.views.output import assignments, datasets_argument, json_option, print_json, software_option, where_option
from kerncast.errors import InvalidValue
from kerncast.writing.shell import word
from kerncast.writing.terminal import distinct

TARGETS = "relative, latency, tflops, bandwidth"
# Options of the verb itself; all others are knobs of a kind of model.
OWN = {
    "family", "drop_suspect", "pool", "targets", "raw_target", "folds", "seed", "threads", "hard_mining", "tune",
    "format", "features", "weights", "software", "rows", "on", "address",
}  # fmt: skip


@click.command("train", cls=WithKnobs)
@datasets_argument()
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="MODELDIR", help="Where to write the model.")
@click.option(
    "--model", metavar="KIND", shell_complete=completing.kinds,
    help="roofline, linear, mlp, gbdt, deep, or a kind of another package. [default: gbdt, or the kind of --warm-start]",
)  # fmt: skip
@click.option(
    "--family", metavar="FAMILY", shell_complete=completing.families, help="Which family, when the data holds several."
)
@where_option
@software_option
@click.option("--drop-suspect", is_flag=True, help="Leave out rows whose labels fit other rows better (see `inspect`).")
@click.option("--pool", is_flag=True, help="Train on several devices, backends, software versions or cache states together.")
@click.option(
    "--targets",
    metavar="NAME",
    help=f"What to predict: {TARGETS}; with --format ck several of the last three. [default: relative]",
)
@click.option("--raw-target", is_flag=True, help="Learn the target itself instead of its logarithm (log1p for tflops).")
@click.option("--folds", type=click.IntRange(min=2), help="Cross-validation folds. [default: 5]")
@click.option(
    "--rows", default=0, type=click.IntRange(min=0), metavar="N",
    help="Learn from at most N rows: whole problems, drawn by the seed, of each device about as many. [default: all]",
)  # fmt: skip
@click.option("--no-folds", is_flag=True, help="Train without evaluation: one fit, no figures, no intervals.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="The same data and seed give the same bytes."
)
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Cores to train with, one per fold. [default: all]")
@click.option("--warm-start", type=MODEL, metavar="MODEL", help="Continue from this model with new data.")
@store_of_model
@click.option(
    "--hard-mining",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Give badly chosen problems more weight, in N rounds; reported next to the run without it.",
)
@click.option(
    "--tune",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Try N settings of the knobs that are not given, scored inside each fold.",
)
@click.option(
    "--format", type=click.Choice(["kerncast", "ck"]), default="kerncast", show_default=True,
    help="ck: also write the files of CK Tile's heuristics into MODELDIR.",
)  # fmt: skip
@click.option(
    "--features", multiple=True, metavar="NAMES", help="Learn from these features only, comma-separated. [default: all]"
)
@click.option(
    "--weights", type=click.Path(path_type=Path), metavar="DIR",
    help="Take an mlp from the CSV files of `kerncast export --to csv` instead of fitting one; it is not evaluated.",
)  # fmt: skip
@on_ray_options("every fold and every other fit is a task of a cluster; the model is the same, byte by byte")
@json_option
def command(
    datasets: tuple[Path, ...], out: Path, model: str | None, where: tuple[str, ...], warm_start: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Train a model on measurements and say how good it is on problems it has not seen.

    The figures are out of fold: folds hold whole groups of problems, early stopping uses separate groups, and the
    written model comes from the same procedure run on all data. If it is interrupted, run the same command to
    continue with the remaining folds.

    \b
    kerncast train quickstart/gemm_cpu --out model
    kerncast train a100 --model mlp --hidden 128,64 --out mlp
    kerncast train tables --family gemm/library --pool --software vllm --out vllm_gemm
    kerncast train new --warm-start model --trees 100 --out model2
    kerncast train reshards --model mlp --features in_x,in_y,out_x,out_y,tiles --out mlp
    kerncast train reshards --weights weights --out again
    """
    from kerncast.api.results import row_conditions
    from kerncast.api.train import refuse_folds, train
    from kerncast.data.label_shift import NOT_SUSPECT
    from kerncast.evaluating.text import beside_blocks, figure_blocks, off_grid_blocks, unseen_device_blocks
    from kerncast.models.model import Model

    refuse_folds(warm_start, options["folds"])
    base = None if warm_start is None else Model.load(warm_start)
    no_folds = options.pop("no_folds")
    if no_folds and options["folds"] is not None:
        raise InvalidValue(f"--folds {options['folds']} and --no-folds contradict each other: leave one out")
    if no_folds and options["hard_mining"]:
        echo("! --hard-mining is not compared with the run without it: --no-folds evaluates nothing", err=True)
    options["folds"] = 0 if no_folds else options["folds"]
    given = options["weights"] is not None
    kind = model or ("mlp" if given else "gbdt" if base is None else base.manifest.kind)
    own = {name: options.pop(name) for name in list(options) if name not in OWN}
    try:
        with shown(plain=True, what="reading the measurements") as progress:
            trained = train(
                datasets, out=out, model=kind, where=where, warm_start=base, progress=progress, **options,
                **given_knobs(kind, own),
            )  # fmt: skip
    except KeyboardInterrupt:
        if base is None and not no_folds:
            echo("finished folds are kept: run the same command to continue with the rest", err=True)
        raise
    if as_json:
        # The marks of a warning and of a remark are for the terminal.
        notes = [note.removeprefix("! ").removeprefix("- ") for note in trained.notes]
        print_json({"path": str(out), "notes": notes, **trained.evaluation})
        return
    data, features = trained.manifest.data, trained.manifest.features
    problems = f"{data.problems:,} problems{distinct(trained.evaluation.get('pooled'))}"
    echo(
        f"{trained.family.id} on {', '.join(item.name for item in trained.manifest.devices)}: {data.rows:,} vectors, "
        f"{problems}, {data.configs:,} configs, {data.failures:,} failures"
    )
    if features.aliased_rows:
        echo(f"! {features.aliased_rows:,} rows have the same features as another config on their problem")
    for name, needs in features.left_out.items():
        echo(f"- left out: {name} needs {', '.join(needs)}, unknown for this device")
    for note in trained.notes:
        echo(in_options(note, click.get_current_context().command))
    if options["tune"]:
        echo(f"tuned: {assignments(trained.evaluation['tuned'])}")
    conditions = (*row_conditions(where, options["software"]), *((NOT_SUSPECT,) if options["drop_suspect"] else ()))
    same = " ".join(map(word, [*datasets, *(part for text in conditions for part in ("--where", text))]))
    if no_folds or given:
        why = "--weights" if given else "--no-folds"
        echo("", f"not evaluated ({why}): its errors are unknown, and predictions have no interval")
        data_to_judge = "HELD_OUT_DATASET" if given else f"{same} --split problem"
        echo("", f"written to {out}. Next: kerncast evaluate {word(out)} {data_to_judge}")
        return
    how = "on one fixed hold-out" if base is not None else f"out of fold, {trained.evaluation['folds']} folds"
    show(figure_blocks(trained.evaluation, f"{how} by {trained.evaluation['split']}"))
    show(beside_blocks(trained.evaluation))
    show(off_grid_blocks(trained.evaluation.get("off_grid", ())))
    show(unseen_device_blocks(trained.evaluation.get("unseen_devices", ())))
    split = "config" if trained.evaluation["split"] == "config" else "problem"
    held = "HELD_OUT_DATASET" if warm_start else f"{same} --split {split}"
    echo("", f"written to {out}. Next: kerncast evaluate {word(out)} {held} --report report.html")
