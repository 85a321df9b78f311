"""Where shipped models come from, in words: the NOTICE file and the closing sections of a model's card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from kerncast.core import software as programs
from kerncast.core.io.quoting import markdown_code, markdown_text
from kerncast.data.formats.aiconfigurator.places import PACKAGE, WHEEL
from kerncast.models.model import Model

if TYPE_CHECKING:
    from kerncast.regenerating.shipping.plans import Plan

NOTICE_FILE = "NOTICE"
NOTICE = """The models in this folder were learned from these tables:

{sources}

Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0

No rows of these tables are included. The models are trees that were fitted to samples of them; each folder's MODEL_CARD.md
says which tables, how many rows, and how wrong the model is on rows that it was not given. The golden predictions beside each
model are its own answers to problems that were made by a rule.
"""
_VERSION = re.compile(rf"{PACKAGE}-(\d[\w.]*?)(?:-|\.dist-info)")


@dataclass(frozen=True)
class Origin:
    """Who published tables, where, and under which licence."""

    title: str
    place: str
    licence: str
    copyright: str

    @property
    def words(self) -> str:
        return f"{self.title}, {self.place}, licence {self.licence}"

    @property
    def bullet(self) -> str:
        """Its line in NOTICE."""
        return f"- {self.words}. {self.copyright.removesuffix('.')}."


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
