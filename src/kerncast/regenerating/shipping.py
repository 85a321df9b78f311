"""The models that come with the package, built from public tables: the tables of each, training on all their devices, cards.

`kerncast regenerate shipped` runs it. The tables are those of AIConfigurator (PyPI: aiconfigurator-core) and those that
Tenstorrent published, all Apache-2.0. None of their rows are in the package, only what the models learned."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import polars as pl

from kerncast.core import software as programs
from kerncast.core.io.atomic import replace_directory, scratch_folder, write_text
from kerncast.core.io.quoting import markdown_code, markdown_text
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.aiconfigurator.kinds import KINDS
from kerncast.data.formats.aiconfigurator.tables import PACKAGE, WHEEL, tables_at
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.table import Table, load_table
from kerncast.models.files import write_slim
from kerncast.models.manifest import CARD
from kerncast.models.model import Model
from kerncast.models.physics import FILE as MISSES
from kerncast.models.physics import learn_misses
from kerncast.regenerating.shipped_plans import (
    AICONFIGURATOR,
    LEAST_SHARE,
    SMALL,
    WORMHOLE,
    Origin,
    Plan,
    PublicTable,
    WormholePlan,
    files_at,
)
from kerncast.training.procedure import Procedure, Recipe, Spread
from kerncast.training.train import fit_table

NOTICE_FILE = "NOTICE"
NOTICE = """The models in this folder were learned from these tables:

{sources}

Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0

No rows of these tables are included. The models are trees that were fitted to samples of them; each folder's MODEL_CARD.md
says which tables, how many rows, and how wrong the model is on rows that it was not given. The golden predictions beside each
model are its own answers to problems that were made by a rule.
"""
_VERSION = re.compile(rf"{PACKAGE}-(\d[\w.]*?)(?:-|\.dist-info)")


def aiconfigurator(version: str | None) -> Origin:
    """AIConfigurator's op tables, of a version of its package."""
    said = f"=={version}" if version else " (its version is not known)"
    return Origin(
        "op tables of AIConfigurator (NVIDIA)", f"PyPI {WHEEL}{said}", "Apache-2.0",
        "Copyright (c) NVIDIA CORPORATION & AFFILIATES. All rights reserved",
    )  # fmt: skip


def notice(old: str, origins: Iterable[Origin]) -> str:
    """The text of NOTICE: origins of models that were built now, and those of others that the old text names."""
    new = {f"- {origin.title}, ": origin.bullet for origin in origins}
    kept = [line for line in old.splitlines() if line.startswith("- ") and not line.startswith(tuple(new))]
    return NOTICE.format(sources="\n".join(sorted([*kept, *new.values()])))


def source_of(tables: Path) -> Origin:
    """The package that tables at a path are from: its version is in the name of a wheel, or in the folder beside it."""
    path = tables.resolve()
    names = [path.name, *(item.name for folder in (path, *path.parents[:4]) for item in folder.glob(f"{PACKAGE}-*.dist-info"))]
    for name in names:
        match = _VERSION.match(name)
        if match:
            return aiconfigurator(match[1])
    if PACKAGE in path.parts:
        try:
            return aiconfigurator(metadata.version(WHEEL))
        except metadata.PackageNotFoundError:
            pass
    return aiconfigurator(None)


def told(
    model: Model, plan: Plan, source: Origin, software: Iterable[tuple[str, str | None]], rows: int, more: Iterable[str] = ()
) -> str:
    """The closing sections of a card; `more` are lines about other errors."""
    versions = [f"{device} {programs.parts(text or '').get('version', 'unknown')}" for device, text in software]
    used = model.manifest.data.rows
    lines = [
        "",
        "## Where it comes from",
        "",
        plan.came_from(source, ", ".join(versions)),
        f"It learned from {used:,} of {rows:,} rows"
        + (": whole problems drawn by the seed, of each device about as many." if used < rows else "."),
        f"Build it again: {markdown_code(plan.command)}.",
        "",
        "## Held-out error by device and dtype",
        "",
        "Out of fold: no fold saw a row of the groups that it predicts.",
        "",
        "| device | dtype | rows | MAPE | median error |",
        "|---|---|---|---|---|",
    ]
    for device, dtype, count, mape, median in errors_by_device(model).iter_rows():
        lines.append(f"| {markdown_text(device)} | {markdown_text(dtype)} | {count:,} | {mape:.1%} | {median:.1%} |")
    return "\n".join([*lines, *more]) + "\n"


def errors_by_device(model: Model) -> pl.DataFrame:
    """The out-of-fold errors of a model: device, dtype, rows, MAPE and median error."""
    found = model.out_of_fold
    if found is None:
        return pl.DataFrame(
            schema={"device": pl.String, "dtype": pl.String, "rows": pl.Int64, "mape": pl.Float64, "median": pl.Float64}
        )
    dtype = pl.col("problem.dtype") if "problem.dtype" in found.columns else pl.lit("any")
    error = (pl.col("time_ns") / pl.col("measured_ns") - 1.0).abs()
    known = found.filter(pl.col("time_ns").is_not_null() & pl.col("measured_ns").is_not_null())
    return (
        known.group_by("device", dtype.alias("dtype"))
        .agg(pl.len().alias("rows"), error.mean().alias("mape"), error.median().alias("median"))
        .sort("device", "dtype")
    )


PLANS: tuple[Plan, ...] = (*AICONFIGURATOR, *WORMHOLE)
FORMAT = "aiconfigurator"
# Rows of one model that say how kernels miss their rooflines: quantiles need no more.
MISSES_ROWS = 20_000


def plans_named(names: Sequence[str] = ()) -> list[Plan]:
    """The plans of some models or ops, in their own order; all, if none is named."""
    known = [plan.name for plan in PLANS]
    for name in names:
        if not any(name in (plan.name, plan.op) for plan in PLANS):
            raise NotFound.named("shipped model", name, [*known, *dict.fromkeys(plan.op for plan in PLANS)])
    return [plan for plan in PLANS if not names or plan.name in names or plan.op in names]


@dataclass(frozen=True)
class PublicTables:
    """The tables among the paths that the caller names: AIConfigurator's, and those that are one file each."""

    aiconfigurator: Path | None = None
    kinds: frozenset[str] = frozenset()
    """The kinds of AIConfigurator's tables that there are."""
    files: Mapping[PublicTable, Path] = field(default_factory=dict)

    @classmethod
    def at(cls, paths: Sequence[Path]) -> PublicTables:
        """What is at some paths: a wheel, a file, a folder of either kind of tables or of both."""
        whole, kinds, files = None, frozenset[str](), dict[PublicTable, Path]()
        for path in paths:
            own = files_at(path)
            for table, file in own.items():
                if table in files:
                    raise InvalidValue(f"{files[table]} and {file} are the same table: name one of them")
            files |= own
            if path.name in {name for table in own for name in table.files}:
                continue
            try:
                with tables_at(path) as found:
                    held = frozenset(place.kind for place in found.places)
            except BadFile:
                if own:
                    continue
                raise
            if whole is not None:
                raise InvalidValue(f"{whole} and {path} both hold tables of AIConfigurator: name one of them")
            whole, kinds = path, held
        return cls(whole, kinds, files)

    def rows_of(self, plan: Plan, out: Path, progress: Progress) -> tuple[Dataset, Origin]:
        """The rows that a plan learns from, and who published them; raises NotFound if they are not among the tables."""
        if isinstance(plan, WormholePlan):
            file = self.files.get(plan.table)
            if file is None:
                raise NotFound(f"there is no file {' or '.join(plan.table.files)}")
            return plan.table.rows(file, out, progress), plan.table.origin
        held = {kind.name for kind in KINDS.values() if any(rows.family_id == plan.family for rows in kind.rows)}
        if self.aiconfigurator is None or not held & self.kinds:
            raise NotFound(f"there is no table of {' or '.join(sorted(held))}")
        options = ImportOptions(only=(plan.family,), keep_software=(plan.framework,), least_share=LEAST_SHARE)
        data = import_files(FORMAT, [self.aiconfigurator], out, options, progress=progress)
        return data, source_of(self.aiconfigurator)


@dataclass(frozen=True)
class BuiltModel:
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
) -> list[BuiltModel]:
    """Build the shipped models of public tables in a folder, each whole or not at all.

    `tables` are AIConfigurator's (a wheel or a folder), and the files of Wormhole cards or a folder that has them. `only` names
    models or ops; `sample` is `small` for few rows and trees; `rows` is the most of a model (0: as its plan says). A model that
    is there already is replaced. What the tables do not hold is left out, and said. How kernels miss their rooflines is learned
    when all models are built. `spread` runs the fits elsewhere.
    """
    if sample not in (None, SMALL):
        raise InvalidValue(f"`sample` is {SMALL}, or left out for all rows of the recipe, got '{sample}'")
    plans = [plan.smaller() if sample else plan.limited(rows) for plan in plans_named(only)]
    public = PublicTables.at([tables] if isinstance(tables, Path) else tables)
    out.mkdir(parents=True, exist_ok=True)

    def procedure(recipe: Recipe) -> Procedure:
        return Procedure(replace(recipe, threads=threads), progress, spread=spread)

    built, misses, origins = list[BuiltModel](), list[pl.DataFrame](), set[Origin]()
    for number, plan in enumerate(plans, 1):
        progress.stage(f"{plan.name} ({number} of {len(plans)})", number, len(plans))
        start = time.monotonic()
        with scratch_folder(out) as folder:
            try:
                data, origin = public.rows_of(plan, folder / "data", progress)
            except NotFound as error:
                built.append(BuiltModel(plan.name, "", left_out=str(error)))
                continue
            item, missed = _build(plan, data, origin, out, folder, procedure, seed)
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
    plan: Plan, data: Dataset, origin: Origin, out: Path, folder: Path, procedure: Callable[[Recipe], Procedure], seed: int
) -> tuple[BuiltModel, list[pl.DataFrame]]:
    """One model, put in its place, and how the kernels of its rows miss their rooflines."""
    try:
        whole = load_table([data], plan.family, plan.where, pool=True)
    except InvalidValue:
        if not plan.where:
            raise
        return BuiltModel(plan.name, "", left_out=f"no row of its table has {' and '.join(plan.where)}"), []
    recipe = plan.recipe(seed)
    table = recipe.sampled(whole)
    fitting = procedure(replace(recipe, folds=min(recipe.folds, len(np.unique(table.group)))).resolved(table, None))
    model = fit_table(table, fitting, folder / "model", evaluated=True)
    more = plan.more_errors(model, table, fitting.recipe.threads, fitting.progress)
    card = model.path / CARD
    closing = told(model, plan, origin, data.devices_and_software(plan.family), len(whole.time_ns), more)
    card.write_text(card.read_text(encoding="utf-8") + closing, encoding="utf-8")
    new, place = folder / plan.name, out / plan.name
    write_slim(model, new)
    if place.exists():
        replace_directory(new, place, folder / "older")
    else:
        shutil.move(new, place)
    figures = model.figures
    built = BuiltModel(
        plan.name, str(place), tuple(record.name for record in model.manifest.devices), len(table.time_ns),
        None if figures is None or figures.runtime is None else figures.runtime.mape.value,
        sum(file.stat().st_size for file in place.iterdir()),
    )  # fmt: skip
    return built, _misses(table) if plan.says_misses else []


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
