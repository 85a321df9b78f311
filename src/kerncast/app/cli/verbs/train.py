"""`kerncast train`, `evaluate` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from kerncast.app.api.arguments import row_conditions
from kerncast.app.api.evaluate import compare, evaluate, write_files
from kerncast.app.api.showing import echo, shown
from kerncast.app.api.train import train, usual_kind
from kerncast.app.cli.verb import VerbCall, converted_knobs, learner_options, verb
from kerncast.app.cli.views import Json, assignments, print_json, say, show_blocks, working
from kerncast.core.io.arguments import Help, check_place
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import distinct
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import InvalidValue
from kerncast.evaluating.results import write_predictions
from kerncast.evaluating.text import (
    beside_blocks,
    evaluation_blocks,
    figure_blocks,
    off_grid_blocks,
    unseen_device_blocks,
    verdict_blocks,
)
from kerncast.models.model import Model


@verb("train", train, knobs=learner_options)
def train_verb(
    call: VerbCall,
    *,
    no_folds: Annotated[bool, Help("Train without evaluation: one fit, no figures, no intervals.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model on measurements, evaluate it by cross-validation and write it.

    The figures are out of fold: folds hold whole groups of problems, early stopping uses separate groups, and the
    written model comes from the same procedure run on all data. If it is interrupted, run the same command to
    continue with the remaining folds.

    With --base, that model is continued with new data. If they are of a device that it does not know, it is moved there: it
    learns its errors on these rows, a shift at first and more with more rows. They may be files that `kerncast import`
    recognises. The output has the error on held-out rows, before and after. From 40 rows on, a model of the rows alone is
    tried on the same held-out rows, too, and written if its error is at least a twentieth lower.

    With --on ray, every fold and every other fit is a task of a cluster; the model is the same, byte by byte.

    \b
    kerncast train quickstart/gemm_cpu --out model
    kerncast train a100 --kind mlp --hidden 128,64 --out mlp
    kerncast train tables --family gemm/library --pool --software vllm --out vllm_gemm
    kerncast train new --base model --trees 100 --out model2
    kerncast train measured --base pooled --device mygpu.toml --out mygpu
    kerncast train reshards --kind mlp --features in_x,in_y,out_x,out_y,tiles --out mlp
    kerncast train reshards --weights weights --out again
    """
    folds, base, knobs = call["folds"], call["base"], call.knobs
    if no_folds and folds is not None:
        raise InvalidValue(f"--folds {folds} and --no-folds contradict each other: leave one out")
    if no_folds and call["hard_mining"]:
        echo("! --hard-mining is not compared with the run without it: --no-folds evaluates nothing", err=True)
    if any(value is not None for value in knobs.values()):
        kind = call["kind"] or usual_kind(None if base is None else Model.load(base), call["weights"])
        knobs = converted_knobs(kind, knobs)
    try:
        with shown(plain=True, what="reading the measurements") as progress:
            trained = call(folds=0 if no_folds else folds, progress=progress, **knobs)
    except KeyboardInterrupt:
        if base is None and not no_folds:
            echo("finished folds are kept: run the same command to continue with the rest", err=True)
        raise
    moved = "adapted" in trained.evaluation
    if as_json:
        # The marks of a warning and of a remark are for the terminal.
        notes = [note.removeprefix("! ").removeprefix("- ") for note in trained.notes]
        where = {"device": trained.device.name} if moved else {}
        print_json({"path": call["out"], "notes": notes, **where, **trained.evaluation})
    elif moved:
        _show_moved(trained, call["out"])
    else:
        _show_trained(trained, call, base, no_folds)


def _show_trained(trained: Model, call: VerbCall, base: Path | None, no_folds: bool) -> None:
    data, features, out = trained.manifest.data, trained.manifest.features, call["out"]
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
        say(note)
    if call["tune"]:
        echo(f"tuned: {assignments(trained.evaluation['tuned'])}")
    conditions = (*row_conditions(call["where"], call["software"]), *((NOT_SUSPECT,) if call["drop_suspect"] else ()))
    same = " ".join(map(word, [*call["data"], *(part for text in conditions for part in ("--where", text))]))
    if no_folds or call["weights"] is not None:
        why = "--weights" if call["weights"] is not None else "--no-folds"
        echo("", f"not evaluated ({why}): its errors are unknown, and predictions have no interval")
        data_to_judge = "HELD_OUT_DATASET" if call["weights"] is not None else f"{same} --split problem"
        echo("", f"written to {out}. Next: kerncast evaluate {word(out)} {data_to_judge}")
        return
    how = "on one fixed hold-out" if base is not None else f"out of fold, {trained.evaluation['folds']} folds"
    show_blocks(figure_blocks(trained.evaluation, f"{how} by {trained.evaluation['split']}"))
    show_blocks(beside_blocks(trained.evaluation))
    show_blocks(off_grid_blocks(trained.evaluation.get("off_grid", ())))
    show_blocks(unseen_device_blocks(trained.evaluation.get("unseen_devices", ())))
    split = "config" if trained.evaluation["split"] == "config" else "problem"
    held = "HELD_OUT_DATASET" if base is not None else f"{same} --split {split}"
    echo("", f"written to {out}. Next: kerncast evaluate {word(out)} {held} --report report.html")


def _show_moved(model: Model, out: Path) -> None:
    facts: dict[str, Any] = model.evaluation["adapted"]
    echo(f"{model.family.id} on {model.device.name}: {facts['rows']:,} rows in {facts['groups']:,} groups")
    for line in facts.get("not_used", ()):
        echo(f"! {line}")
    if "after" not in facts:
        echo("! too few groups of problems to hold any out: the error is not known, and predictions have no interval")
    else:
        of = f" (fold {facts['alone_folds']} was enough)" if facts.get("alone_folds") == 1 else ""
        alone = f", {facts['alone']:.1%} by a model of the rows alone{of}" if "alone" in facts else ""
        echo(f"error on rows that were held out (MAPE): {facts['before']:.1%} before, {facts['after']:.1%} after{alone}")
        if facts["kept"] == "alone":
            echo("the model of the rows alone is better, and was written: it answers for problems like these rows only")
        elif facts["after"] >= facts["before"]:
            echo("! the rows do not improve the model: measure more of them, and other sizes")
    echo(f"written to {out}. Next: kerncast models add {word(out)}, or measure more and move it again")


@verb("evaluate", evaluate)
def evaluate_verb(call: VerbCall, *, as_json: Json = False) -> None:
    """Score a model against the best measured config of every problem that it has not seen.

    Problems that the model was trained on are left out and counted. To judge on the training data itself, refit
    the recipe fold by fold with --split. With --on ray, every fold of --split, of all --seeds, is a task of a cluster; the
    figures are the same.

    \b
    kerncast evaluate model new_measurements
    kerncast evaluate model quickstart/gemm_cpu --split problem --report report.html
    kerncast evaluate model quickstart/gemm_cpu --split problem --off-grid
    kerncast evaluate model h100 --split nk --json
    """
    report, rows = (None if call[name] is None else Path(call[name]) for name in ("report", "save_predictions"))
    check_place("report", report)
    check_place("save_predictions", rows)
    loaded = Model.load(call["model"])
    with shown(plain=True) as progress:
        found = call(model=loaded, report=None, save_predictions=None, progress=progress)
    # Print the figures first, so that a full disk cannot lose them.
    if as_json:
        print_json(found.as_json(call["worst"]))
    else:
        show_blocks(evaluation_blocks(found.as_json(), call["worst"]))
    with shown(plain=True) as progress:
        write_files(found, loaded, report, rows, progress)
    if report is not None and not as_json:
        echo("", f"report: {report}")


@verb("compare", compare)
def compare_verb(
    call: VerbCall, *, strict: Annotated[bool, Help("Exit 1 on AMBIGUOUS too.")] = False, as_json: Json = False
) -> None:
    """Is the new model safe to ship? BETTER, SAME, WORSE (exit 1) or AMBIGUOUS, with reasons.

    The models are compared problem by problem, on problems that neither was trained on.

    \b
    kerncast compare model model2 held_out
    kerncast compare model model2 held_out --tier tree
    kerncast compare model model2 held_out --strict --max-p10 1 --json
    """
    place = call["save_predictions"] and Path(call["save_predictions"])
    check_place("save_predictions", place)
    with working("comparing"):
        found = call(save_predictions=None)
    # Print the verdict first, so that a full disk cannot lose it.
    if as_json:
        print_json(found.as_json())
    else:
        show_blocks(verdict_blocks(found.verdict, found.reasons, found.as_json()))
    if place is not None:
        write_predictions(place, found.problems)
    if found.verdict == "WORSE" or (strict and found.verdict == "AMBIGUOUS"):
        raise SystemExit(1)
