"""How the forests of `gbdt` are grown: what each learns from, the binned rows that they share, and LightGBM's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.learning.learners.contract import Fitting, label_weights
from kerncast.learning.learners.ranking import ListwiseLoss
from kerncast.learning.tables.table import Table

if TYPE_CHECKING:
    from lightgbm import Booster

FOREST_TITLES = {"time": "times", "rank": "order", "valid": "failures"}
PATIENCE = 30
# With fewer rows, a leaf of twenty would be a large part of them.
FEW_ROWS = 1000
# With more rows than this, and configs to choose from, features have fewer bins: a fifth to a quarter less work, and no
# worse choices on A100 matmuls. Half of the features for each tree of the order, with 240 trees at a rate of 0.1, is cheaper
# still, but on mixed-dtype ones P10 fell to 99.83 %, against 99.94 % with these. With fewer rows a fit takes seconds.
MANY_ROWS = 20_000
BINS, FEWER_BINS = 255, 63
# Order depends on few rows, those near the top of each problem, so its leaves may be small; a leaf needs the curvature of
# about one undecided config. With bagging the forest grown on everything differs little from those of the folds.
RANKING = {"min_data_in_leaf": 10, "min_sum_hessian_in_leaf": 1.0, "bagging_fraction": 0.8, "bagging_freq": 1}
REGRESSING = {"min_data_in_leaf": 20, "feature_fraction": 0.8}
# Each tree sees this share of the features. With a third of them, two trees of three do not see the dtype or the code path, and
# cannot make up for it: on vLLM's H200 GEMMs, pairs (N, K) unseen, 200 trees err by 4.7 % with a third, 3.4 % with 0.7 or all.
TIMES_ALONE = {"min_data_in_leaf": 5, "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.7}
# With more rows than this each tree sees half of them.
ENOUGH_ROWS, SHARE_OF_ENOUGH = 40_000, 0.5


def has_many_rows(table: Table) -> bool:
    """Whether a fit of a table takes so long that shortcuts are worth it."""
    return table.trials.choosing and len(table.ok) > MANY_ROWS


@dataclass(frozen=True)
class Part:
    """Some rows of the table that is fitted, and their positions in it."""

    table: Table
    rows: Ints

    def take(self, mask: Flags) -> Part:
        """The rows that the mask keeps."""
        return Part(self.table.take(mask), self.rows[mask])


class Bins:
    """The binned features of all rows, made once: each forest is grown on some of these rows."""

    def __init__(self, table: Table, threads: int, keep: bool, categorical: Sequence[str] = (), fewer: bool = False) -> None:
        import lightgbm

        # No pre-filter: features would differ between forests, and with few rows LightGBM would drop them all.
        most = FEWER_BINS if fewer or has_many_rows(table) else BINS
        own = {"verbosity": -1, "feature_pre_filter": False, "max_bin": most, "num_threads": threads}
        self._all = lightgbm.Dataset(
            table.rows.features,
            np.zeros(len(table.ok)),
            feature_name=list(table.rows.names),
            categorical_feature=list(categorical),
            # A warm start needs the raw rows, to predict them with its base.
            free_raw_data=not keep,
            params=own,
        ).construct()

    def of(self, task: Task) -> Any:
        """The rows of a task with its labels, as LightGBM takes them."""
        data = self._all.subset(task.rows.tolist()).construct()
        return data.set_label(task.labels).set_weight(task.weights)


@dataclass(frozen=True)
class Task:
    """What one forest is grown on."""

    rows: Ints
    labels: Floats
    weights: Floats | None
    objective: str
    growing: dict[str, Any]
    """How its trees are grown, as LightGBM calls it."""
    ranking: ListwiseLoss | None = None
    """Custom gradients instead of LightGBM's objective."""


def time_task(part: Part, fitting: Fitting, alone: bool, medians: bool) -> Task:
    """Learn the target, from the rows that worked; `alone`: there are no configs to choose from."""
    worked = part.take(part.table.ok)
    ok = worked.table
    labels = fitting.target.encode(ok.time_ns, ok.rows)
    growing: dict[str, Any] = REGRESSING
    if alone:
        growing = TIMES_ALONE if len(labels) < ENOUGH_ROWS else {**TIMES_ALONE, "bagging_fraction": SHARE_OF_ENOUGH}
    return Task(worked.rows, labels, label_weights(ok), "regression_l1" if medians else "regression", growing)


def rank_task(part: Part, temperature: float) -> Task:
    """Learn the order of the configs within each problem."""
    return Task(part.rows, np.zeros(len(part.rows)), None, "none", RANKING, ListwiseLoss(part.table, temperature))


def valid_task(part: Part) -> Task:
    """Learn which configs work, among those that obey the rules."""
    obeying = part.take(part.table.allowed)
    return Task(obeying.rows, obeying.table.ok.astype(np.float64), None, "binary", REGRESSING)


@dataclass
class Grower:
    """Grows the forests one by one and reports progress."""

    trees: int
    leaves: int
    lr: float
    fitting: Fitting
    threads: int
    bins: Bins
    forests: int
    grown: int = 0

    def _parameters(self, task: Task, bag: int) -> dict[str, Any]:
        return {
            "objective": task.ranking.gradients if task.ranking is not None else task.objective,
            "metric": "None" if task.ranking is not None else "",
            "learning_rate": self.lr,
            "num_leaves": self.leaves,
            "lambda_l2": 1.0,
            **task.growing,
            **({"min_data_in_leaf": max(1, len(task.labels) // 100)} if len(task.labels) < FEW_ROWS else {}),
            "seed": self.fitting.seed + bag,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": self.threads,
            "verbosity": -1,
        }

    def rounds(self, name: str, task: Task, judge: Task, base: Booster | None) -> int:
        """The best number of trees on the validation groups."""
        import lightgbm

        forest = lightgbm.train(
            self._parameters(task, 0),
            self.bins.of(task),
            self.trees,
            valid_sets=[self.bins.of(judge)],
            feval=None if judge.ranking is None else judge.ranking.error,
            init_model=base,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), self._tell(name, self.trees)],
        )
        self.grown += 1
        # For a continued forest, LightGBM counts the trees of its base too.
        before = 0 if base is None else base.num_trees()
        best = forest.best_iteration
        return max(1, best - before if best > before else best)

    def grow(self, name: str, task: Task, rounds: int, bag: int, base: Booster | None) -> Booster:
        """One forest on all rows, continuing from `base`; the forests of a bag differ in the rows that each tree sees."""
        import lightgbm

        parameters, tell = self._parameters(task, bag), self._tell(name, rounds)
        forest = lightgbm.train(parameters, self.bins.of(task), rounds, init_model=base, callbacks=[tell])
        self.grown += 1
        return forest

    def _tell(self, name: str, rounds: int) -> Callable[[Any], None]:
        def callback(env: Any) -> None:
            share = (env.iteration + 1 - env.begin_iteration) / rounds
            done = round((self.grown + min(1.0, share)) * self.trees)
            self.fitting.progress.step(f"trees for {FOREST_TITLES[name]}", done, self.forests * self.trees)

        return callback
