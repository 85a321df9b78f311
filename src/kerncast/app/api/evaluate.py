"""`kerncast.evaluate` and `kerncast.compare`: how good a model is, and whether a new one is safe to ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import polars as pl

from kerncast.answering.selector import Selector
from kerncast.app.api.arguments import HERE, Cluster, Datasets, ModelOf, RowsOf, Where, model_of, row_conditions, spread_over
from kerncast.app.api.read import paths_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help, check_place
from kerncast.core.progress import Progress
from kerncast.data.formats.solutions import read_solutions
from kerncast.errors import InvalidValue
from kerncast.evaluating.compare import LIMITS, Limits, Verdict
from kerncast.evaluating.compare import compare as compare_models
from kerncast.evaluating.evaluation import Evaluation
from kerncast.evaluating.evaluation import evaluate as evaluate_model
from kerncast.evaluating.refits import budget_curves, seed_lines
from kerncast.evaluating.refits import off_grid as held_out_by_kind
from kerncast.evaluating.report.page import check_can_report, write_report
from kerncast.evaluating.results import write_predictions
from kerncast.evaluating.solutions import score_solutions
from kerncast.evaluating.tiers import tier_lines
from kerncast.models.answer import Tier
from kerncast.models.model import Model

# A report lists at least this many of the worst problems.
FEWEST_WORST = 20


def evaluate(
    model: ModelOf,
    data: Datasets,
    *,
    split: Annotated[
        str | None,
        "Refit the model's recipe fold by fold, split by problem, size, config, device, or a split of the op (gemm: nk).",
        Help(metavar="HOW"),
    ] = None,
    seeds: Annotated[
        int, Help("Refit `split` with this many seeds, and show how much the figures differ.", metavar="N", least=1)
    ] = 1,
    include_seen: Annotated[bool, Help("Score problems the model was trained on too; labelled as such.")] = False,
    where: Where = (),
    software: RowsOf = None,
    report: Annotated[str | Path | None, Help("Write a report (one file, readable offline).", metavar="HTML")] = None,
    budget_curve: Annotated[bool, Help("Show how much data is needed, by refitting on parts of it; takes a while.")] = False,
    off_grid: Annotated[
        bool,
        Help(
            "Also refit without each kind of problems (badly aligned, very small or large, lopsided) and score every "
            "tier there."
        ),
    ] = False,
    against: Annotated[
        str | Path | None,
        "Choices of another system to score next to the model: a JSON list of {problem, config}, a max-autotune solution, "
        "an Inductor lookup table, or a CSV or parquet table.",
        Help(metavar="SOLUTIONS"),
    ] = None,
    worst: Annotated[
        int, Help("How many of the worst choices and of the worst predictions to list.", metavar="N", least=0)
    ] = 10,
    save_predictions: Annotated[
        str | Path | None, Help("Write one row per vector, with its prediction.", metavar="PARQUET")
    ] = None,
    threads: Annotated[int, Help("Threads to refit with. [default: all cores]", least=0)] = 0,
    tiers: Annotated[bool, Help("Do not score and time the quick tiers of `kerncast select`.")] = True,
    cluster: Cluster = HERE,
    progress: Wanted = "auto",
) -> Evaluation:
    """Score a model against the best measured config of every problem that it has not seen.

    Problems that it was trained on are left out and counted. To score the training data itself, `split` refits the recipe
    fold by fold: problem, size, config, device, or a split that the op names. `seeds` repeats that with other seeds, one line
    of figures each. `off_grid` also refits it without each kind of problems (badly aligned, very small or large, lopsided) and
    scores what every tier chooses there, whatever its status.
    `report` writes one offline HTML file. On a Ray `cluster`, the folds of `split`, of all `seeds`, are its tasks.
    """
    if cluster.is_ray and split is None:
        raise InvalidValue("`on=ray` is for the folds of `split`, and without it nothing is fitted: leave it out")
    if seeds < 1 or (seeds > 1 and split is None):
        raise InvalidValue(
            f"`seeds` is how often `split` is refitted, at least once, got {seeds} with split={split}: add `split`"
        )
    page, rows = (None if path is None else Path(path) for path in (report, save_predictions))
    check_place("report", page)
    check_place("save_predictions", rows)
    if page is not None:
        check_can_report()
    judged = model_of(model)
    # Read now, so that a bad file is refused before anything is fitted.
    devices = [item.name for item in judged.manifest.devices]
    solutions = None if against is None else read_solutions(Path(against), judged.family, devices)
    paths, kept = paths_of(data, judged.family), row_conditions(where, software)
    with spread_over(cluster) as spread, shown(progress) as show:
        found = evaluate_model(
            judged, paths, split=split, include_seen=include_seen, where=kept, worst=max(worst, FEWEST_WORST),
            threads=threads, spread=spread, progress=show,
        )  # fmt: skip
        if split is not None and seeds > 1:
            own = found.as_json()["overall"]
            lines = seed_lines(judged, paths, split, seeds, own, kept, threads, spread=spread, progress=show)
            found = found.extended(seeds=lines)
        if budget_curve:
            found = found.extended(budget=budget_curves(judged, paths, kept, threads, progress=show))
        if off_grid:
            lines = held_out_by_kind(judged, paths, kept, threads, tiers=tiers, progress=show)
            found = found.extended(off_grid=lines)
        if tiers and split is None and found.overall.efficiency is not None:
            found = found.extended(tiers=_tiers(found, judged, show))
        if solutions is not None:
            found = found.extended(against=score_solutions(solutions, found, judged.family))
        write_files(found, judged, page, rows, show)
    return found


def write_files(found: Evaluation, model: Model, report: Path | None, save_predictions: Path | None, show: Progress) -> None:
    """Write the files that the caller asked for."""
    if save_predictions is not None:
        write_predictions(save_predictions, pl.concat([found.rows, found.failures], how="diagonal"))  # failures last
    if report is not None:
        show.stage(f"writing {report}")
        write_report(found, model, report)


def _tiers(found: Evaluation, model: Model, show: Progress) -> list[dict[str, Any]] | None:
    """A line per tier; None if the model does not record what that needs."""
    if not model.candidates.height or model.out_of_fold is None or len(model.manifest.devices) > 1:
        return None
    selector = Selector(model, progress=show)
    show.stage("asking the tiers")
    return tier_lines(found, selector)


def compare(
    old: Annotated[ModelOf, Help(metavar="OLD", names="models")],
    new: Annotated[ModelOf, Help(metavar="NEW", names="models")],
    data: Datasets,
    *,
    limits: Limits = LIMITS,
    tier: Annotated[
        Tier | str | None,
        Help("Compare what this tier would run (tree, portfolio or full), instead of the models' own scores.", metavar="TIER"),
    ] = None,
    include_seen: Annotated[bool, Help("Use problems that a model was trained on too; labelled as such.")] = False,
    where: Where = (),
    software: RowsOf = None,
    save_predictions: Annotated[str | Path | None, Help("Write one row per problem.", metavar="PARQUET")] = None,
) -> Verdict:
    """Compare two models on problems that neither has seen: BETTER, SAME, WORSE or AMBIGUOUS, with reasons.

    `tier` (tree, portfolio, full) judges what that tier of
    each model would run instead of the models' own scores: name the tier that ships. `bool(verdict)` is False for WORSE.
    """
    place = None if save_predictions is None else Path(save_predictions)
    check_place("save_predictions", place)
    found = compare_models(
        model_of(old), model_of(new), paths_of(data), limits=limits, include_seen=include_seen,
        where=row_conditions(where, software), tier=tier,
    )  # fmt: skip
    if place is not None:
        write_predictions(place, found.problems)
    return found
