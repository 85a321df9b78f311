"""`linear` and `roofline`: lines of time against size, and the lower bound of the time, scaled by one number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.expr import Expr
from kerncast.core.io.atomic import write_atomically
from kerncast.core.io.foreign import guarded
from kerncast.core.io.parquet import read_parquet
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import (
    Fitting,
    Learner,
    LearnerOptions,
    Level,
    Lines,
    Output,
    Target,
    read_arrays,
    write_arrays,
)
from kerncast.learning.table import Table

FILE = "lines.parquet"
# The fewest different sizes that make a line; a group with fewer uses the line of all rows.
FEWEST_SIZES = 2
# A reading is absurd if it is this many times off the robust line: no disturbance of a real run is that large.
ABSURD = 10.0


def group_columns(family: Family) -> list[str]:
    """The columns that define a group: those the op declares, the family's environment and the config."""
    problem = [*family.op.line_group, *family.environment_parameters]
    return [f"problem.{name}" for name in problem] + [f"config.{name}" for name in family.config.parameters]


def sizes(rows: Rows) -> Floats:
    """The size that the time grows with: what the op declares, else the roofline, else the bytes or FLOPs."""
    program = rows.family.op.line_program
    if program is not None:
        return program.frame(schema.symbol_columns(rows.family, rows.frame), trusted=True).to_series().to_numpy()
    for known in (rows.roofline_ns, rows.bytes, rows.flops):
        if known is not None:
            return known
    raise _no_size(rows.family)


def _no_size(family: Family) -> InvalidValue:
    return InvalidValue(f"op {family.op.name} declares no line_size and no work, and a line needs a size: use another model")


class Linear(Learner):
    """time = intercept + slope × size, by least squares in nanoseconds, one line per group."""

    kind = "linear"
    doc = "one line per group: time against size"
    reads_features = False

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        ok = table.take(table.ok)
        self.target_ = fitting.target
        known = schema.without_unused(table.family, ok.rows.frame)
        groups = {name: known[name] for name in group_columns(table.family) if name in known.columns}
        frame = pl.DataFrame({**groups, "size": sizes(ok.rows), "time_ns": ok.time_ns})
        self.lines_ = self._lines(frame, list(groups))
        pooled = self._lines(frame.select("size", "time_ns"), [])
        self.lines_ = pl.concat([self.lines_, pooled], how="diagonal") if groups else pooled
        return self

    def _columns(self, family: Family) -> list[str]:
        """The columns of its groups; optional parameters that no row gave are not among them."""
        return [name for name in group_columns(family) if name in self.lines_.columns]

    @staticmethod
    def _lines(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        averaged = (
            frame.group_by(*columns, "size").agg(pl.mean("time_ns"), rows=pl.len()).sort(*columns, "size", nulls_last=True)
        )
        averaged = averaged if columns else averaged.with_columns(__all=pl.lit(0))
        by = columns or ["__all"]
        lines = _quality(_fitted(averaged, by), by)
        return lines.drop("__all", strict=False).with_columns(pooled=pl.lit(not columns))

    def predict(self, rows: Rows) -> Output:
        columns = self._columns(rows.family)
        size = sizes(rows)
        pooled = self.lines_.filter("pooled").row(0, named=True)
        found = rows.frame.with_row_index("__row").select("__row", *columns)
        if columns:
            lines = self.lines_.filter(~pl.col("pooled") & pl.col("slope").is_not_null())
            found = found.join(lines, on=columns, how="left", nulls_equal=True, maintain_order="left")
        else:
            found = found.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("slope", "intercept", "shortest"))

        def line(name: str) -> Floats:
            # A group that was never measured, or only at one size, uses the line of all rows.
            return found[name].fill_null(pooled[name] or 0.0).to_numpy()

        # A line with a negative intercept crosses zero; no size runs faster than a tenth of the fastest measured.
        time_ns = np.maximum(line("intercept") + line("slope") * size, line("shortest") / 10.0)
        return Output(self.target_.encode(time_ns, rows))

    def save(self, folder: Path) -> None:
        lines = self.lines_.with_columns(target=pl.lit(self.target_.name), target_log=pl.lit(self.target_.log))
        lines.write_parquet(folder / FILE)

    def write_csv(self, out: Path, names: Sequence[str], target: Target) -> bool:
        write_atomically(out, self.table().write_csv)
        return True

    @classmethod
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        learner = cls(options)
        with guarded(folder / FILE, "train the model again, or restore the file"):
            lines = read_parquet(folder / FILE)
            learner.target_ = Target(lines["target"][0], bool(lines["target_log"][0]))
        learner.lines_ = lines.drop("target", "target_log")
        return learner

    def size(self) -> dict[str, int]:
        lines = self.table()
        return {
            "lines": lines.height,
            "negative_intercepts": int((lines["intercept_ns"] < 0).sum()),
            "absurd_readings": int(lines["absurd"].sum()),
        }

    def table(self) -> pl.DataFrame:
        """The lines: group, coefficients in nanoseconds, quality; for a CSV file or a report."""
        own = self.lines_.filter(~pl.col("pooled")) if self.lines_.height > 1 else self.lines_
        groups = {name: name.split(".", 1)[1] for name in own.columns if "." in name}
        named = {"slope": "slope_ns", "intercept": "intercept_ns", "shortest": "shortest_ns"}
        order = ("slope_ns", "intercept_ns", "r2", "rrmse", "rmsre", "sizes", "points", "shortest_ns", "absurd")
        return own.rename({**groups, **named}).select(*groups.values(), *order)

    def problem_numbers(self, family: Family) -> dict[str, Expr]:
        program = family.op.line_program
        return {} if program is None else {"line_size": program.outputs["size"]}

    def lowered(self, family: Family, values: Collection[str]) -> Lines:
        """The lines as C and a blob read them; `values` are the numbers of the problem that are known there."""
        columns = self._columns(family)
        size = next((name for name in ("line_size", "roofline_ns", "bytes", "flops") if name in values), None)
        if size is None:
            raise _no_size(family)
        pooled = self.lines_.filter("pooled").row(0, named=True)
        lines = self.lines_.filter(~pl.col("pooled") & pl.col("slope").is_not_null())
        keys, reads = np.empty((lines.height, len(columns))), []
        for place, column in enumerate(columns):
            side, name = column.split(".", 1)
            space = family.problem if side == "problem" else family.config
            parameter = space.parameters[name]
            codes = dict(parameter.codes)
            keys[:, place] = [
                float(parameter.inactive if item is None else codes.get(item, item)) for item in lines[column].to_list()
            ]
            before = 0 if side == "problem" else len(family.problem.parameters)
            reads.append(before + list(space.parameters).index(name))
        order = np.lexsort(keys.T[::-1]) if len(columns) else np.arange(lines.height)
        numbers = lines.select("intercept", "slope", "shortest").to_numpy()[order] if lines.height else np.empty((0, 3))
        others = np.array([[float(pooled[name] or 0.0) for name in ("intercept", "slope", "shortest")]])
        return Lines(keys[order], np.concatenate([numbers, others]), tuple(reads), size)


def _fitted(averaged: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Points ordered by group and size, with the predictions of the group's line and of its robust line."""
    x, y = pl.col("size"), pl.col("time_ns")
    dx = x - x.mean()
    slope = pl.when(x.n_unique() >= FEWEST_SIZES).then((dx * (y - y.mean())).sum() / (dx**2).sum())
    half = (pl.len().cast(pl.Int64) // 2).clip(1)
    steep = ((y.shift(-half) - y) / (x.shift(-half) - x)).median()
    found = averaged.with_columns(slope=slope.over(by), robust_slope=steep.over(by))
    intercept = y.mean() - pl.col("slope") * x.mean()
    level = (y - pl.col("robust_slope") * x).median()
    found = found.with_columns(intercept=intercept.over(by), robust=level.over(by) + pl.col("robust_slope") * x)
    # Where the robust line falls to zero or below, the shortest reading replaces it.
    return found.with_columns(
        line=pl.col("intercept") + pl.col("slope") * x, robust=pl.max_horizontal("robust", y.min().over(by))
    )


def _quality(fitted: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """One row per line: coefficients, R², RRMSE, RMSRE, and how many readings are absurd."""
    y, error = pl.col("time_ns"), pl.col("time_ns") - pl.col("line")
    scatter = ((y - y.mean()) ** 2).sum()
    off = pl.max_horizontal(y / pl.col("robust"), pl.col("robust") / y)
    return fitted.group_by(by, maintain_order=True).agg(
        pl.first("slope", "intercept"),
        shortest=y.min(),
        sizes=pl.col("size").n_unique(),
        points=pl.sum("rows"),
        r2=pl.when(scatter > 0).then(1.0 - (error**2).sum() / scatter),
        rrmse=(error**2).mean().sqrt() / y.mean(),
        rmsre=((error / y) ** 2).mean().sqrt(),
        absurd=(off > ABSURD).sum(),
    )


class RooflineLearner(Learner):
    """Predicts the roofline times a constant: the median ratio."""

    kind = "roofline"
    doc = "the analytic floor times one measured factor"

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        if table.rows.roofline_ns is None:
            raise InvalidValue(
                f"there is no roofline for {table.family.op.name} on {table.devices[0].name}: its work, the device's peak or "
                "its bandwidth is unknown; use another model"
            )
        self.level_ = float(np.median(fitting.target.encode(table.time_ns[table.ok], table.rows.take(table.ok))))
        return self

    def predict(self, rows: Rows) -> Output:
        return Output(np.full(len(rows), self.level_))

    def save(self, folder: Path) -> None:
        write_arrays(folder / "roofline.npz", {"level": np.array(self.level_)})

    @classmethod
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        learner = cls(options)
        learner.level_ = float(read_arrays(folder / "roofline.npz")["level"])
        return learner

    def lowered(self, family: Family, values: Collection[str]) -> Level:
        return Level(self.level_)
