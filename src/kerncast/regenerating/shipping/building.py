"""Building the shipped models: import the rows of one, train on all their devices, keep what answers need."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue, NotFound
from kerncast.files.atomic import replace_directory, scratch_folder, write_text
from kerncast.models.manifest import CARD
from kerncast.models.model import Model
from kerncast.models.roofline_misses import FILE as MISSES
from kerncast.models.roofline_misses import learn_misses
from kerncast.models.slim import write_slim
from kerncast.progress import QUIET, Progress
from kerncast.regenerating.shipping.attribution import NOTICE_FILE, Origin, notice, told
from kerncast.regenerating.shipping.catalogue import plans_named
from kerncast.regenerating.shipping.given import Given
from kerncast.regenerating.shipping.golden import write_golden
from kerncast.regenerating.shipping.plans import SMALL, Plan
from kerncast.tables.table import Table, load_table
from kerncast.training.procedure import Procedure, Spread
from kerncast.training.train import fit_table

# Rows of one model that say how kernels miss their rooflines: quantiles need no more.
MISSES_ROWS = 20_000


@dataclass(frozen=True)
class Built:
    """One model that was built, or why it was not."""

    name: str
    path: str
    devices: tuple[str, ...] = ()
    rows: int = 0
    mape: float | None = None
    """Out of fold, over all devices; a share."""
    bytes: int = 0
    seconds: float = 0.0
    left_out: str = ""
    """Why there is no such model; empty if there is."""


def build_shipped(
    tables: Path | Sequence[Path],
    out: Path,
    *,
    only: Sequence[str] = (),
    sample: str | None = None,
    rows: int = 0,
    seed: int = 0,
    threads: int = 0,
    spread: Spread | None = None,
    progress: Progress = QUIET,
) -> list[Built]:
    """Build the shipped models of public tables in a folder, each whole or not at all.

    `tables` are AIConfigurator's (a wheel or a folder), and the files of Wormhole cards or a folder that has them. `only` names
    models or ops; `sample` is `small` for few rows and trees; `rows` is the most of a model (0: as its plan says). A model that
    is there already is replaced. What the tables do not hold is left out, and said. How kernels miss their rooflines is learned
    when all models are built. `spread` runs the fits elsewhere.
    """
    if sample not in (None, SMALL):
        raise InvalidValue(f"`sample` is {SMALL}, or left out for all rows of the recipe, got '{sample}'")
    plans = [plan.smaller() if sample else plan.limited(rows) for plan in plans_named(only)]
    given = Given.at([tables] if isinstance(tables, Path) else tables)
    out.mkdir(parents=True, exist_ok=True)
    built, misses, origins = list[Built](), list[pl.DataFrame](), set[Origin]()
    for number, plan in enumerate(plans, 1):
        progress.stage(f"{plan.name} ({number} of {len(plans)})", number, len(plans))
        start = time.monotonic()
        with scratch_folder(out) as folder:
            try:
                data, origin = given.rows_of(plan, folder / "data", progress)
            except NotFound as error:
                built.append(Built(plan.name, "", left_out=str(error)))
                continue
            item, missed = _build(plan, data, origin, out, folder, seed, threads, spread, progress)
        built.append(replace(item, seconds=time.monotonic() - start))
        misses += missed
        if not item.left_out:
            origins.add(origin)
    if misses and not only:
        learn_misses(pl.concat(misses)).write(out / MISSES)
    if origins:
        file = out / NOTICE_FILE
        write_text(file, notice(file.read_text(encoding="utf-8") if file.exists() else "", origins))
    return built


def _build(
    plan: Plan,
    data: Dataset,
    origin: Origin,
    out: Path,
    folder: Path,
    seed: int,
    threads: int,
    spread: Spread | None,
    progress: Progress,
) -> tuple[Built, list[pl.DataFrame]]:
    try:
        whole = load_table([data], plan.family, plan.where, pool=True)
    except InvalidValue:
        if not plan.where:
            raise
        return Built(plan.name, "", left_out=f"no row of its table has {' and '.join(plan.where)}"), []
    recipe = plan.recipe(seed, threads)
    table = recipe.sampled(whole)
    folds = min(recipe.folds, len(np.unique(table.group)))
    recipe = replace(recipe, folds=folds).resolved(table, None)
    model = fit_table(table, Procedure(recipe, progress, spread=spread), folder / "model", evaluated=True)
    more = plan.more_errors(model, table, threads, progress)
    _tell(model, plan, origin, data, len(whole.time_ns), more)
    slim = folder / plan.name
    write_slim(model, slim)
    write_golden(Model.load(slim), slim)
    _put(slim, out / plan.name, folder)
    place = out / plan.name
    size = sum(file.stat().st_size for file in place.iterdir())
    figures = model.figures
    built = Built(
        plan.name, str(place), tuple(record.name for record in model.manifest.devices), len(table.time_ns),
        None if figures is None or figures.runtime is None else figures.runtime.mape.value, size,
    )  # fmt: skip
    return built, _misses(table) if plan.says_misses else []


def _put(new: Path, place: Path, folder: Path) -> None:
    """Put a finished model where it belongs, instead of an older one."""
    if place.exists():
        replace_directory(new, place, folder / "older")
    else:
        shutil.move(new, place)


def _tell(model: Model, plan: Plan, origin: Origin, data: Dataset, rows: int, more: Sequence[str]) -> None:
    """Complete the card of a model: where its rows are from, how to build it again, its errors by device and dtype."""
    card = model.path / CARD
    software = data.devices_and_software(plan.family)
    closing = told(model, plan, origin, software, rows, more)
    card.write_text(card.read_text(encoding="utf-8") + closing, encoding="utf-8")


def _misses(table: Table) -> list[pl.DataFrame]:
    """Rows of a table as `learn_misses` reads them; none without a roofline."""
    roofline = table.rows.roofline_ns
    if roofline is None:
        return []
    frame = pl.DataFrame({"roofline_ns": roofline, "time_ns": table.time_ns}).with_columns(
        op=pl.lit(table.family.op.name), device=table.device_names
    )
    step = max(1, frame.height // MISSES_ROWS)
    return [frame.gather_every(step)]
