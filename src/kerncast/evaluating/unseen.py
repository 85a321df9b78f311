"""Rows to judge models by: of their family, device and dtypes, and not in their training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.measurements import Folded, read_measurements, resolved_software, rows_where
from kerncast.learning.table import MIXTURES, Table, refuse_mixtures, table_of, tried_rows
from kerncast.models.model import Model
from kerncast.training.procedure import Recipe
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
