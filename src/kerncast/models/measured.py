"""The measurements as the portfolio and the tree need them: shares of problem × config, problems in groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.learning.scoring.trials import Trials
from kerncast.learning.tables.table import Table
from kerncast.models.labels import Labels, labels_of

if TYPE_CHECKING:
    from kerncast.models.model import Model


NUMBER = "__number"


@dataclass(frozen=True)
class Measured:
    """Every config that was tried on some problems; configs and problems are numbered by their rows here."""

    family: Family
    trials: Trials
    problems: pl.DataFrame
    """`problem.*`, one row per problem number."""
    configs: pl.DataFrame
    """`config.*`, one row per config number."""
    group: Ints
    """By problem: its group, which folds keep together."""
    score: Floats | None = None
    """By row of the trials: the score of a model that had not seen the problem (low is chosen); None: unknown."""
    predicted_ns: Floats | None = None
    """By row of the trials: the time that this model predicted."""
    labels: Labels | None = None
    """The names of the configs, by their numbers; None: the data name no kernels."""

    @cached_property
    def shares(self) -> Floats:
        """[problem, config]: best time over own time; 0 where it failed, NaN where it was not tried."""
        found = np.full((self.problems.height, self.configs.height), np.nan)
        found[self.trials.problem, self.trials.config] = self.trials.share
        return found

    @cached_property
    def solvable(self) -> Ints:
        """The problems on which something worked: on the others there is nothing to choose."""
        return np.asarray(self.trials.problems[self.trials.solvable])


def measured_by_model(model: Model, device: str | None = None) -> Measured:
    """The training data of a model, of one of its devices or of all; configs are numbered by the rows of `model.candidates`."""
    frame = model.out_of_fold
    if frame is None or not model.candidates.height:
        raise InvalidValue(
            f"{model.path} does not say what it was trained on (no predictions.parquet): train it again with `kerncast train`"
        )
    if device is not None:
        frame = frame.filter(pl.col("device") == device)
    columns = [name for name in frame.columns if name.startswith("config.")]
    numbered = model.candidates.select(columns).with_row_index(NUMBER)
    if columns:
        frame = frame.join(numbered, on=columns, how="inner", nulls_equal=True, maintain_order="left")
    else:  # a family with nothing to choose
        frame = frame.with_columns(pl.lit(0).alias(NUMBER))
    keys = [name for name in frame.columns if name.startswith("problem.")]
    # Rows are sorted by device, then problem.
    number = frame.select(pl.struct(*keys, "device").rle_id().cast(pl.Int64)).to_series().to_numpy()
    time_ns = frame["measured_ns"].fill_null(float("inf")).to_numpy()
    noise = frame["noise"].fill_null(float("nan")).to_numpy()
    unknown = np.full(len(number), np.nan)
    config = frame[NUMBER].cast(pl.Int64).to_numpy()
    _, first = np.unique(number, return_index=True)
    problems = frame.select(keys)[first]
    return Measured(
        model.family,
        Trials(number, config, time_ns, noise, unknown, unknown),
        problems,
        numbered.drop(NUMBER),
        _groups(problems, model.family),
        frame["score"].to_numpy() if model.evaluated else None,
        frame["time_ns"].to_numpy() if model.evaluated else None,
        model.labels,
    )


def measured_in_table(table: Table) -> Measured:
    """The measurements of a dataset, configs numbered as in `table.configs`."""
    _, problem = np.unique(table.problem, return_inverse=True)
    _, config = np.unique(table.config, return_inverse=True)
    trials = Trials(problem, config, table.trials.time_ns, table.noise, table.half_a, table.half_b)
    labels = None if table.labels is None else labels_of(table.labels, table.configs)
    return Measured(table.family, trials, table.problems, table.configs, _groups(table.problems, table.family), labels=labels)


def _groups(problems: pl.DataFrame, family: Family) -> Ints:
    keys = [f"problem.{name}" for name in family.op.split_group]
    return problems.select(pl.struct(keys).rank("dense").cast(pl.Int64)).to_series().to_numpy()
