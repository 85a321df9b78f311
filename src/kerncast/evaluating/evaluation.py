"""`evaluate`: a model on problems that it has not seen, or its recipe refitted fold by fold on a harder split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.evaluating.points import problem_points, rates, row_points, slices, worst_predictions, worst_problems
from kerncast.evaluating.results import Evaluation as Evaluation
from kerncast.learning.assess import PORTFOLIO, TRIED_ENOUGH, Learned, assess
from kerncast.learning.measurements import Folded, read_measurements, resolved_software, rows_where
from kerncast.learning.metrics import Predicted
from kerncast.learning.table import MIXTURES, Table, refuse_mixtures, table_of, tried_rows
from kerncast.learning.trials import folds_by_group, folds_by_size
from kerncast.models.conformal import cross_bounds
from kerncast.models.limits.widening import LEVEL, Errors
from kerncast.models.model import Model
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure, Recipe, Spread
from kerncast.training.train import expand

Paths = Sequence[str | Path] | str | Path


@dataclass(frozen=True)
class Judged:
    """A table for some models, and what was left out of it."""

    table: Table
    measured: Folded
    """What the table was made from: another model reads it with its own features and device numbers."""
    seen_problems: int
    """Problems left out because a model was trained on their group (or kept, with `include_seen`)."""
    includes_seen: bool


def listed(paths: Paths) -> list[str | Path]:
    """One path, or several."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def open_all(paths: Paths) -> list[Dataset]:
    """Datasets as `train` takes them: one, several, or a directory of them."""
    return [Dataset.open(path) for path in expand(listed(paths))]


def digest_of(model: Model, datasets: Sequence[Dataset]) -> str:
    """The digest of the datasets that hold rows of the model's family, as its manifest stores it."""
    return "+".join(sorted(item.digest for item in datasets if model.family.id in {family.id for family in item.families}))


def recipe_of(model: Model, threads: int) -> Recipe:
    """The recipe that the model was trained with, to fit it again."""
    if not model.manifest.recipe:
        raise InvalidValue(
            f"{model.path} does not say how it was trained, so it cannot be fitted again: leave out `split` and "
            "`budget_curve`, or train a model here with `kerncast train`"
        )
    if model.manifest.warm_start:
        raise InvalidValue(
            f"{model.path} continues another model, so refitting its recipe alone would not reproduce it: give data "
            "that neither has seen and leave out `split` and `budget_curve`"
        )
    return Recipe.from_options(model.manifest.recipe, threads)


def holders_of(model: Model, datasets: Sequence[Dataset]) -> list[Dataset]:
    """The datasets that hold rows of the model's family; there must be one."""
    holders = [dataset for dataset in datasets if model.family.id in {item.id for item in dataset.families}]
    if not holders:
        held = sorted({item.id for dataset in datasets for item in dataset.families})
        raise InvalidValue(f"{model.path} is a model of {model.family.id}; the data holds {', '.join(held) or 'no rows'}")
    return holders


def rows_for(model: Model, datasets: Sequence[Dataset], where: Sequence[str] = ()) -> pl.DataFrame:
    """The rows of the model's family; rows of another device or dtype are refused."""
    holders = holders_of(model, datasets)
    pieces = read_measurements(model.family, holders, resolved_software(model.family, holders, where))
    rows = tried_rows(pieces, where, model.family.id, f"there is nothing to judge {model.path} by")
    own = {record.name for record in model.manifest.devices}
    _refuse_others(rows["device"], own, f"{model.path} was trained on", "device")
    if model.manifest.dtypes:
        _refuse_others(rows["problem.dtype"], set(model.manifest.dtypes), f"{model.path} was trained on", "problem.dtype")
    # On its training data the model may pool what training pooled; on other data different software is not a repeat.
    if digest_of(model, datasets) != model.manifest.data.digest:
        refuse_mixtures(rows, [column for column in MIXTURES if column != "device"], pooled=model.manifest.software)
    return rows


def _refuse_others(values: pl.Series, own: set[str], who: str, column: str) -> None:
    others = sorted(set(values.unique()) - own)
    if others:
        raise InvalidValue(
            f"{who} {', '.join(sorted(own))}; {int(values.is_in(others).sum()):,} rows are of {', '.join(others)}: keep the "
            f"others with `where` '{column}={','.join(sorted(own))}'"
        )


def folded_for(model: Model, datasets: Sequence[Dataset], where: Sequence[str] = ()) -> Folded:
    """The rows of `rows_for`, with their repeats folded."""
    return Folded.of(model.family, rows_for(model, datasets, where).get_columns())


def table_for(model: Model, measured: Folded) -> Table:
    """Measurements as this model reads them: its own device numbers, its own features in its own order."""
    present = set(measured.frame["device"].unique())
    machines = {item.name: item.device for item in model.manifest.devices if item.name in present}
    names = model.manifest.features.names
    table = table_of(model.family, measured, machines, "", kept=names)
    return replace(table, rows=table.rows.only(names))


def unknown_configs(models: Sequence[Model], table: Table) -> dict[str, int] | None:
    """The configs that worked in a table, but not in the training of some model: its `select` never chooses them.

    None if there is none, if there is nothing to choose, or if a model does not say which configs it knows.
    """
    columns = list(table.configs.columns)
    if not columns or not all(model.candidates.height for model in models):
        return None
    worked = table.rows.frame.select(columns).with_columns(__problem=pl.Series(table.problem)).filter(pl.Series(table.ok))
    known = worked
    for model in models:
        known = known.join(model.candidates.select(columns), on=columns, how="semi", nulls_equal=True)
    total, found = worked.select(columns).n_unique(), known.select(columns).n_unique()
    if found == total:
        return None
    others = worked.join(known.select(columns).unique(), on=columns, how="anti", nulls_equal=True)
    problems = worked["__problem"].n_unique()
    return {
        "configs": total - found, "of_configs": total, "problems": others["__problem"].n_unique(), "of_problems": problems,
        "problems_without_others": problems - known["__problem"].n_unique(),
    }  # fmt: skip


def untrained_labels(models: Sequence[Model], table: Table) -> dict[str, Any] | None:
    """The problems whose labels some model was not trained with: it refuses to answer for them. None if there is none."""
    outside: dict[str, pl.Series] = {}
    for model in models:
        for name, seen in model.manifest.hull.items():
            if seen.labels and (column := f"problem.{name}") in table.problems.columns:
                values = table.problems[column]
                other = ~values.is_in(list(seen.labels)) & values.is_not_null()
                outside[name] = outside[name] | other if name in outside else other
    strange = {name: other for name, other in outside.items() if other.any()}
    if not strange:
        return None
    count = int(pl.DataFrame(list(strange.values())).select(pl.any_horizontal(pl.all())).to_series().sum())
    return {"problems": count, "of_problems": table.problems.height, "parameters": sorted(strange)}


def judged(models: Sequence[Model], datasets: Sequence[Dataset], where: Sequence[str], include_seen: bool) -> Judged:
    """The rows that none of the models has seen."""
    rows = rows_for(models[0], datasets, where)
    for model in models[1:]:
        rows_for(model, datasets, where)
    group = models[0].seen.columns
    seen = pl.concat([model.seen.select(group) for model in models]).unique()
    problem = ["device", *(name for name in rows.columns if name.startswith("problem."))]
    joined = rows.select(group).join(
        seen.with_columns(__seen=True), on=group, how="left", nulls_equal=True, maintain_order="left"
    )
    trained_on = joined["__seen"].fill_null(False)
    known = rows.select(problem).filter(trained_on).n_unique() if trained_on.any() else 0
    if known and not include_seen:
        columns = rows.get_columns()
        del rows
        rows = rows_where(columns, ~trained_on)
        if not (rows["status"] == "ok").any():
            names = " or ".join(str(model.path) for model in models)
            rest = f", and nothing worked on the other {rows.select(problem).n_unique():,}" if rows.height else ""
            split = "refit fold by fold with `split=problem`, " if len(models) == 1 else ""
            raise InvalidValue(
                f"{'all ' if rows.is_empty() else ''}{known:,} problems were trained on by {names}{rest}: give other data, "
                f"{split}or look at the training data with `include_seen`"
            )
    columns = rows.get_columns()
    del rows
    measured = Folded.of(models[0].family, columns)
    return Judged(table_for(models[0], measured), measured, known, include_seen and known > 0)


SPLITS = ("problem", "size", "config", "device")


def evaluate(
    model: Model | str | Path,
    datasets: Paths,
    *,
    split: str | None = None,
    include_seen: bool = False,
    where: Sequence[str] = (),
    worst: int = 20,
    threads: int = 0,
    spread: Spread | None = None,
    progress: Progress = QUIET,
) -> Evaluation:
    """Evaluate a model; with `split`, refit its recipe fold by fold and evaluate that. `spread` runs the folds elsewhere."""
    if split is not None and include_seen:
        raise InvalidValue(
            f"`include_seen` cannot be combined with `split={split}`, which scores each problem with a refitted model "
            "that did not see it: leave one of them out"
        )
    model = model if isinstance(model, Model) else Model.load(model)
    opened = open_all(datasets)
    facts: dict[str, Any] = {
        "model": str(model.path), "kind": model.manifest.kind, "op": model.manifest.op, "family": model.family.id,
        "devices": [item.name for item in model.manifest.devices], "datasets": [str(path) for path in listed(datasets)],
        "split": split, "interval_level": LEVEL,
    }  # fmt: skip
    if split is None:
        found = judged([model], opened, where, include_seen)
        table = found.table
        facts |= {"problems_seen_in_training": found.seen_problems, "includes_training_data": found.includes_seen}
        facts |= {"unknown_configs": unknown_configs([model], table), "training_recorded": model.recorded}
        facts["untrained_labels"] = untrained_labels([model], table)
        del found  # its rows take as much memory as the table
        predicted = model.rank_rows(table.rows)
        summary = assess(table, predicted, np.zeros(len(table.problem), np.int64), learned_by(model, table))
    else:
        facts |= {"problems_seen_in_training": 0, "includes_training_data": False, "unknown_configs": None}
        facts["training_recorded"] = True
        table, predicted, fold = cross_validated(model, opened, where, threads, split, spread=spread, progress=progress)
        keep = np.isfinite(predicted.score)
        table, fold = table.take(keep), fold[keep]
        times = (predicted.time_ns, predicted.lower_ns, predicted.upper_ns)
        predicted = Predicted(predicted.score[keep], *(None if each is None else each[keep] for each in times))
        if split == "config":
            # Folds of whole problems for the baselines: they could never choose a config that was held out.
            groups = len(np.unique(table.group))
            count = min(groups, len(np.unique(fold)))
            fold = folds_by_group(table.group, count, 0) if groups > 1 else np.zeros_like(fold)
        summary = assess(table, predicted, fold)
    problems, rows = problem_points(table, predicted), row_points(table, predicted)
    worked = rows.filter(pl.Series(table.ok))
    summary = {
        **facts, **summary, "rates": rates(problems), "slices": slices(table, predicted),
        "worst": worst_problems(problems, worst), "worst_predictions": worst_predictions(worked, worst),
    }  # fmt: skip
    return Evaluation(summary, problems, worked, rows.filter(pl.Series(~table.ok)).drop("measured_ns"))


def cross_validated(
    model: Model, opened: Sequence[Dataset], where: Sequence[str], threads: int, split: str = "problem", *,
    spread: Spread | None = None, progress: Progress = QUIET,
) -> tuple[Table, Predicted, Ints]:  # fmt: skip
    """Rows with the out-of-fold predictions of the model's recipe: those of its training, if it split the same rows so."""
    table = table_for(model, folded_for(model, opened, where))
    same_data = digest_of(model, opened) == model.manifest.data.digest and tuple(where) == model.manifest.data.where
    same = same_data and split == (model.manifest.recipe.get("hold_out") or "problem")
    known = _remembered(model, table) if same else None
    predicted, fold = known or refitted(model, table, split, threads, spread=spread, progress=progress)
    return table, predicted, fold


def learned_by(model: Model, table: Table) -> Learned | None:
    """What the learning baselines know: how well each config did in training. None: the model does not record it."""
    columns = list(table.configs.columns)
    if not columns:
        return Learned(np.ones(1), [0])
    if not model.candidates.height:
        return None
    numbered = table.configs.with_columns(__number=pl.Series(np.unique(table.config)))
    joined = numbered.join(model.candidates, on=columns, how="left", nulls_equal=True, maintain_order="left")
    shares = np.full(int(table.config.max()) + 1, np.nan)
    often = (joined["ok"] + joined["failed"] >= TRIED_ENOUGH * model.manifest.data.problems).fill_null(False).to_numpy()
    known = joined["share"].fill_null(0.0).to_numpy()
    shares[joined["__number"].to_numpy()] = np.where(often, known, np.nan)
    picked = joined.filter(pl.col("portfolio_place") < PORTFOLIO).sort("portfolio_place")["__number"].to_list()
    return Learned(shares, picked)


def folds_of(table: Table, split: str, recipe: Recipe) -> Ints:
    """Which rows are held out together."""
    op = table.family.op
    if split == "problem":
        return _dealt(table.group, recipe, f"problem ({', '.join(op.split_group)})")
    if split == "config":
        return _dealt(table.config, recipe, "config")
    if split == "device":
        if len(table.devices) < 2:
            raise InvalidValue(f"`split=device` needs rows of two devices; all are of {table.devices[0].name}")
        return table.device
    if split == "size":
        size = table.rows.roofline_ns if table.rows.roofline_ns is not None else table.rows.bytes
        if size is None:
            raise InvalidValue(f"`split=size` needs the work of {op.name}, which is unknown: use `split=problem`")
        # A shape counts with its largest dtype, so that all its dtypes are in the same fold.
        largest = np.zeros(int(table.group.max()) + 1)
        np.maximum.at(largest, table.group, size)
        fold = folds_by_size(largest[table.group], recipe.folds)
        if len(np.unique(fold)) < 2:
            raise InvalidValue("`split=size` needs problems of at least two sizes, all have the same: measure others")
        return fold
    if split in op.splits:
        return _dealt(split_groups(table, split), recipe, f"value of {', '.join(op.splits[split])}")
    raise InvalidValue(f"`split` is one of {', '.join([*SPLITS, *op.splits])} for {op.name}, got '{split}'")


def split_groups(table: Table, split: str) -> Ints:
    """The groups that a split keeps together. Early stopping must hold out the same groups, or its check is too easy."""
    if split == "config":
        return table.config
    if split not in table.family.op.splits:
        return table.group
    columns = [f"problem.{name}" for name in table.family.op.splits[split]]
    return table.rows.frame.select(pl.struct(columns).rank("dense")).to_series().to_numpy().astype(np.int64)


def _dealt(groups: Ints, recipe: Recipe, what: str) -> Ints:
    """Folds of whole groups: as many as the recipe has, or one per group if there are fewer groups."""
    count = len(np.unique(groups))
    if count < 2:
        raise InvalidValue(
            f"all rows have the same {what}, so nothing is left to learn from: measure more, or use another `split`"
        )
    return folds_by_group(groups, min(recipe.folds, count), recipe.seed)


def refitted(
    model: Model, table: Table, split: str, threads: int, *, spread: Spread | None = None, progress: Progress = QUIET
) -> tuple[Predicted, Ints]:
    """Out-of-fold predictions of the model's own recipe."""
    recipe = recipe_of(model, threads)
    fold = folds_of(table, split, recipe)
    asked = replace(table, group=split_groups(table, split))
    fold, found, _ = cross_validate(asked, Procedure(recipe, progress, spread=spread), fold)
    # Intervals are calibrated on the other folds. Errors correlate within a problem, or within a config of one problem.
    unit = table.config if len(np.unique(table.problem)) < 2 else table.problem
    lower, upper = cross_bounds(Errors(unit, table.time_ns, found.time_ns, fold))
    known = bool(np.isfinite(lower).any())
    return Predicted(found.score, found.time_ns, lower if known else None, upper if known else None), fold


def _remembered(model: Model, table: Table) -> tuple[Predicted, Ints] | None:
    """The out-of-fold predictions that training made on exactly these rows, so that nothing is fitted again."""
    stored = model.out_of_fold
    if stored is None or model.manifest.warm_start:
        return None
    asked = table.rows.frame.with_columns(device=table.device_names)
    joined = asked.join(stored, on=asked.columns, how="left", nulls_equal=True, maintain_order="left")
    if joined.height != len(table.problem) or joined["score"].null_count():
        return None
    fold, time_ns, score = (joined[name].to_numpy().copy() for name in ("fold", "time_ns", "score"))
    bounds = [joined[name].to_numpy() for name in ("lower_ns", "upper_ns") if name in joined.columns]
    return Predicted(score, time_ns, *bounds), fold
