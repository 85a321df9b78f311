"""A dataset in a few lines: rows, problems, configs, statuses, noise of each family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, distinct, printable
from kerncast.data.condensed import spread_of
from kerncast.data.schema import REPEAT_OF
from kerncast.errors import KerncastError

if TYPE_CHECKING:
    from kerncast.data.dataset import Dataset

COLUMNS = ("family", "rows", "problems", "configs", "statuses", "devices", "noise")


# Of more rows, problems and configs are not counted and the noise is not looked at: showing a dataset takes a moment.
COUNTED_ROWS = 5_000_000


@dataclass(frozen=True)
class FamilySummary:
    """What a dataset holds of one family."""

    family: str
    rows: int
    problems: int | None
    """A problem counts once for each device. None: there are too many rows to count them for a summary."""
    configs: int | None
    statuses: dict[str, int]
    devices: tuple[str, ...]
    noise: float | None
    """The median relative MAD: of the samples of a row where they are recorded, else of repeated rows; None: not known."""
    pooled: dict[str, int] | None = None
    """How many problems there are without their devices, and how many devices; None: one device, or not counted."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table row."""
        statuses = ", ".join(f"{name} {count:,}" for name, count in self.statuses.items())
        noise = "unknown" if self.noise is None else f"{self.noise:.2%}"
        problems, configs = ("not counted" if count is None else f"{count:,}" for count in (self.problems, self.configs))
        problems += distinct(self.pooled)
        return self.family, f"{self.rows:,}", problems, configs, statuses, ", ".join(self.devices), noise


def summaries(dataset: Dataset) -> list[FamilySummary]:
    """One entry per family; reads the columns that it needs, none of them whole."""
    found = []
    for family in dataset.families:
        rows, total = dataset.scan(family), dataset.rows_of(family)
        ends = rows.group_by("status", "device").len().collect(engine="streaming")
        statuses = ends.group_by("status").agg(pl.col("len").sum()).sort("len", "status", descending=[True, False])
        machines = tuple(str(name) for name in ends["device"].unique().sort())
        problems = configs = noise = pooled = None
        if total <= COUNTED_ROWS:
            problems, configs = _distinct(rows, "device", "problem"), _distinct(rows, "config")
            if len(machines) > 1:
                pooled = {"problems": _distinct(rows, "problem"), "devices": len(machines)}
            noise = _noise(rows)
        found.append(FamilySummary(family.id, total, problems, configs, dict(statuses.iter_rows()), machines, noise, pooled))
    return found


def _distinct(rows: pl.LazyFrame, *parts: str) -> int:
    """How many different problems, configs or both there are, or problems on devices."""
    columns = [name for name in rows.collect_schema().names() if name.partition(".")[0] in parts]
    if not columns:
        return 1
    return int(rows.select(pl.struct(columns).hash(seed=0)).unique().select(pl.len()).collect(engine="streaming").item())


def noise_of_samples(rows: pl.LazyFrame) -> float | None:
    """The median relative MAD of the samples of a row; None: no row records it."""
    ok = rows.filter(pl.col("status") == "ok")
    # A source that keeps the standard deviation has no MAD: that of a normal distribution is taken.
    spread = pl.coalesce("time_ns_mad", pl.col("time_ns_std") * 0.6745)
    found = ok.select((spread / pl.col("time_ns")).median()).collect(engine="streaming").item()
    return None if found is None else float(found)


def _noise(rows: pl.LazyFrame) -> float | None:
    within = noise_of_samples(rows)
    if within is not None:
        return within
    ok = rows.filter(pl.col("status") == "ok")
    between = spread_of(ok.select("time_ns", repeat=pl.struct(REPEAT_OF).hash(seed=0), at=pl.lit(0)))["deviation"].median()
    return between if isinstance(between, float) else None


def _read(dataset: Dataset) -> tuple[str, list[FamilySummary], str]:
    """A title, the summaries, and an error if they could not be read: showing a dataset never fails."""
    title = f"Dataset({dataset.path}; {sum(part.rows for part in dataset.contents.parts):,} rows)"
    try:
        unfinished = "" if dataset.completeness is None else f"; {dataset.completeness}"
        title = f"Dataset({dataset.path}; {dataset.rows:,} rows{unfinished})"
        return title, summaries(dataset), ""
    except (KerncastError, OSError, pl.exceptions.PolarsError) as error:
        return title, [], f"it cannot be read: {error}"


def dataset_text(dataset: Dataset) -> str:
    """The dataset as a small table."""
    title, found, problem = _read(dataset)
    if not found:
        return printable(f"{title} {problem}".strip())
    return str(TextTable(COLUMNS, [item.cells for item in found], title, COLUMNS[1:4]))


def dataset_html(dataset: Dataset) -> str:
    """The same for a notebook."""
    title, found, problem = _read(dataset)
    parts = [html.table(COLUMNS, [item.cells for item in found], right=COLUMNS[1:4])] if found else []
    return html.panel(title, *parts, *([html.note(problem)] if problem else []))
