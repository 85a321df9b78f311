"""Plain LightGBM beside kerncast: one forest of untuned settings, on the same rows and folds.

It chooses among the configs that obey the family's rules, as kerncast does, and learns from those that worked.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from choosing import Peer

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.metrics import Predicted, scorecard
from kerncast.learning.table import Table

SETTINGS = {"num_leaves": 63, "learning_rate": 0.1, "verbosity": -1, "num_threads": 1, "deterministic": True,
            "force_row_wise": True, "seed": 0}  # fmt: skip
TREES = 400


def bare_columns(table: Table) -> Floats:
    """The parameters of problem and config and the device, without any feature."""
    columns = [table.rows.frame[name] for name in table.rows.frame.columns]
    codes = [item.rank("dense") if item.dtype in (pl.String, pl.Categorical) else item for item in columns]
    return np.column_stack([item.cast(pl.Float64).fill_null(-1.0).to_numpy() for item in codes] + [table.device])


def out_of_fold(table: Table, fold: Ints, columns: Floats, labels: Floats) -> Floats:
    """What forests predict that have not seen the fold."""
    import lightgbm

    found = np.empty(len(fold))
    for number in np.unique(fold):
        own = fold == number
        seen = ~own & table.ok
        forest = lightgbm.train(SETTINGS, lightgbm.Dataset(columns[seen], labels[seen]), TREES)
        found[own] = forest.predict(columns[own])
    return found


def times(table: Table, fold: Ints, columns: Floats) -> Floats:
    """Times that a forest of log times predicts, in ns."""
    return np.asarray(np.exp(out_of_fold(table, fold, columns, np.log(table.time_ns))))


def _peer(label: str, table: Table, score: Floats, time_ns: Floats | None) -> Peer:
    return Peer(label, scorecard(table.trials, Predicted(np.where(table.allowed, score, np.inf), time_ns)))


def on_log_time(table: Table, fold: Ints) -> list[Peer]:
    """A forest of log times on the bare columns, and one on kerncast's features."""
    inputs = {"plain LightGBM": bare_columns(table), "plain LightGBM with kerncast's features": table.rows.features}
    found = {label: times(table, fold, columns) for label, columns in inputs.items()}
    return [_peer(label, table, time_ns, time_ns) for label, time_ns in found.items()]


def on_tflops(table: Table, fold: Ints) -> list[Peer]:
    """A forest of log1p(TFLOPS) of matrix products on the bare columns. It only chooses: a rate near zero gives no time."""
    work = 2.0 * np.prod([table.rows.frame[f"problem.{name}"].to_numpy().astype(float) for name in "MNK"], axis=0)
    # FLOP per ns are GFLOPS.
    found = out_of_fold(table, fold, bare_columns(table), np.log1p(work / table.time_ns / 1e3))
    return [_peer("plain LightGBM on log1p(TFLOPS)", table, -found, None)]
