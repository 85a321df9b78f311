"""How the forests of `gbdt` are grown: what each learns from, the binned rows that they share, and LightGBM's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.errors import NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import FEWEST_GROUPS, Fitting, label_weights
from kerncast.learning.learners.trees import Tree
from kerncast.learning.table import Table

if TYPE_CHECKING:
    from lightgbm import Booster


# Descriptions of two knobs that all ranking learners share.
TEMPERATURE = "regret (log time over the best) at which a config's weight in the ranking is 1/e"
BLEND = "share of the ranking in the choice; 0 chooses by time alone"


def wanted_shares(table: Table, temperature: float) -> Floats:
    """exp(-regret / temperature) of every row, adding up to 1 on each problem; 0 for failures, and where nothing worked.

    Differences within the noise need not be ordered: a row's temperature is never below its noise.
    """
    trials = table.trials
    spread = np.maximum(temperature, np.nan_to_num(table.noise))
    wanted = np.where(trials.share > 0, np.exp(np.log(np.maximum(trials.share, 1e-300)) / spread), 0.0)
    sums = np.add.reduceat(wanted[trials.order], trials.starts)
    return wanted / np.asarray(trials.per_row(np.where(sums > 0, sums, 1.0)), np.float64)


class ListwiseLoss:
    """Soft cross-entropy between the scores of each problem and the goal from its measured times, for LightGBM."""

    def __init__(self, table: Table, temperature: float) -> None:
        trials = table.trials
        self.starts = trials.starts
        # Rows are usually sorted by problem already: then nothing is moved.
        self.order = None if (np.diff(trials.order) == 1).all() else trials.order
        counts = np.diff(np.r_[self.starts, len(trials.order)])
        self.place = np.repeat(np.arange(len(counts)), counts)
        self.wanted = wanted_shares(table, temperature)[trials.order]
        # Probabilities shrink with the number of configs; scaled by it, gradients keep their size. A problem on which
        # nothing worked has no order.
        self.scale = np.where(trials.solvable, counts, 0)[self.place] * table.weight[trials.order]

    def _believed(self, raw: Floats) -> Floats:
        scores = raw if self.order is None else raw[self.order]
        powers = np.exp(scores - np.maximum.reduceat(scores, self.starts)[self.place])
        return np.asarray(powers / np.add.reduceat(powers, self.starts)[self.place])

    def _as_given(self, values: Floats) -> Floats:
        if self.order is None:
            return values
        back = np.empty_like(values)
        back[self.order] = values
        return back

    def gradients(self, raw: Floats, _: Any) -> tuple[Floats, Floats]:
        """First and second derivatives with respect to the score, as LightGBM expects them."""
        believed = self._believed(raw)
        gradient = self.scale * (believed - self.wanted)
        curvature = np.maximum(self.scale * np.maximum(believed * (1.0 - believed), 1e-3), 1e-6)
        return self._as_given(gradient), self._as_given(curvature)

    def error(self, raw: Floats, _: Any) -> tuple[str, float, bool]:
        """The cross-entropy per problem, for early stopping: smaller is better."""
        logs = np.log(np.maximum(self._believed(raw), 1e-300))
        return "cross_entropy", float(-(self.wanted * logs).sum() / len(self.starts)), False


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
class PartOfTable:
    """Some rows of the table that is fitted, and their positions in it."""

    table: Table
    rows: Ints

    def take(self, mask: Flags) -> PartOfTable:
        """The rows that the mask keeps."""
        return PartOfTable(self.table.take(mask), self.rows[mask])


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

    def of(self, task: ForestTask) -> Any:
        """The rows of a task with its labels, as LightGBM takes them."""
        data = self._all.subset(task.rows.tolist()).construct()
        return data.set_label(task.labels).set_weight(task.weights)


@dataclass(frozen=True)
class ForestTask:
    """What one forest is grown on."""

    rows: Ints
    labels: Floats
    weights: Floats | None
    objective: str
    growing: dict[str, Any]
    """How its trees are grown, as LightGBM calls it."""
    ranking: ListwiseLoss | None = None
    """Custom gradients instead of LightGBM's objective."""


def time_task(part: PartOfTable, fitting: Fitting, alone: bool, medians: bool) -> ForestTask:
    """Learn the target, from the rows that worked; `alone`: there are no configs to choose from."""
    worked = part.take(part.table.ok)
    ok = worked.table
    labels = fitting.target.encode(ok.time_ns, ok.rows)
    growing: dict[str, Any] = REGRESSING
    if alone:
        growing = TIMES_ALONE if len(labels) < ENOUGH_ROWS else {**TIMES_ALONE, "bagging_fraction": SHARE_OF_ENOUGH}
    return ForestTask(worked.rows, labels, label_weights(ok), "regression_l1" if medians else "regression", growing)


def rank_task(part: PartOfTable, temperature: float) -> ForestTask:
    """Learn the order of the configs within each problem."""
    return ForestTask(part.rows, np.zeros(len(part.rows)), None, "none", RANKING, ListwiseLoss(part.table, temperature))


def valid_task(part: PartOfTable) -> ForestTask:
    """Learn which configs work, among those that obey the rules."""
    obeying = part.take(part.table.allowed)
    return ForestTask(obeying.rows, obeying.table.ok.astype(np.float64), None, "binary", REGRESSING)


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

    def _parameters(self, task: ForestTask, bag: int) -> dict[str, Any]:
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

    def rounds(self, name: str, task: ForestTask, judge: ForestTask, base: Booster | None) -> int:
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

    def grow(self, name: str, task: ForestTask, rounds: int, bag: int, base: Booster | None) -> Booster:
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


# Larger differences are clipped: the choice is clear there, and the exact amount teaches nothing about close cases.
CLEAR = 0.3
IN_A_LEAF = 2
# Thresholds per feature: exported C is quick because trees share conditions.
MOST_BINS = 255


def grow_library_trees(table: Table, trees: int, seed: int) -> tuple[Tree, ...]:
    """The trees; None if the family has no library, no single feature identifies it, or too few problems have both."""
    asked = _telling_feature(table.rows)
    if asked is None or not trees:
        return ()
    rows, labels = _slower_by(table)
    if len(np.unique(table.group[rows])) < FEWEST_GROUPS:
        return ()
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise NotFound.package("learning when a library's kernel is the best choice", "scikit-learn", "train") from error

    features = table.rows.features[rows]
    edges = [_edges(column) for column in features.T]
    bins = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, features.T, strict=True)], axis=1)
    forest = ExtraTreesRegressor(trees, min_samples_leaf=IN_A_LEAF, max_features=1.0, random_state=seed)
    forest.fit(bins, labels, table.weight[rows])
    return tuple(_behind(asked, _tree(one.tree_, edges, trees)).preorder() for one in forest.estimators_)


def _telling_feature(rows: Rows) -> tuple[int, float] | None:
    """The feature and the threshold above which a row is the library's."""
    library = rows.is_library
    if not library.any() or library.all() or len(rows.family.library) != 1:
        return None
    (name,) = rows.family.library
    if name not in rows.names:
        return None
    place = rows.names.index(name)
    own, others = rows.features[library, place], rows.features[~library, place]
    return (place, float(others.max() + own.min()) / 2) if own.min() > others.max() else None


def _slower_by(table: Table) -> tuple[Ints, Floats]:
    """The library's rows, and the log of its time over the best of the others; a failure counts as clearly slower."""
    times, library = table.trials.time_ns, table.rows.is_library
    best_other = np.full(int(table.problem.max()) + 1, np.inf)
    np.minimum.at(best_other, table.problem[~library], times[~library])
    tried = np.zeros(len(best_other), dtype=bool)
    tried[table.problem[~library]] = True
    rows = np.flatnonzero(library & tried[table.problem])
    rows = rows[np.isfinite(times[rows]) | np.isfinite(best_other[table.problem[rows]])]
    with np.errstate(divide="ignore"):
        labels = np.log(times[rows]) - np.log(best_other[table.problem[rows]])
    return rows, np.clip(labels, -CLEAR, CLEAR)


def _edges(column: Floats) -> Floats:
    """Thresholds that cut a feature into bins of about equally many rows."""
    values = np.unique(column)
    if len(values) > MOST_BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, MOST_BINS + 1), method="nearest"))
    return np.asarray((values[1:] + values[:-1]) / 2)


def _tree(grown: object, edges: list[Floats], count: int) -> Tree:
    """A tree of scikit-learn, with thresholds of features instead of bins, and values divided for the mean."""
    feature, threshold = np.asarray(grown.feature), np.asarray(grown.threshold)  # type: ignore[attr-defined]
    sides = np.asarray(grown.children_left), np.asarray(grown.children_right)  # type: ignore[attr-defined]
    bins = np.floor(threshold).astype(np.int64)
    values = np.array([edges[number][bin_] if number >= 0 else 0.0 for number, bin_ in zip(feature, bins, strict=True)])
    said = np.asarray(grown.value)[:, 0, 0] / count  # type: ignore[attr-defined]
    return Tree.of_nodes(feature, values, *sides, said)


def _behind(asked: tuple[int, float], tree: Tree) -> Tree:
    """The tree behind a test whether a row is the library's; other rows get 0."""
    number, threshold = asked
    last, root = len(tree.value), 1 if len(tree.feature) else -1
    # The new root is node 0, so nodes move up by one; the leaf of the others comes last.
    up = [np.where(side >= 0, side + 1, side) for side in (tree.left, tree.right)]
    return Tree(
        np.r_[number, tree.feature],
        np.r_[threshold, tree.threshold],
        np.r_[-1 - last, up[0]].astype(np.int64),
        np.r_[root, up[1]].astype(np.int64),
        np.r_[tree.value, 0.0],
    )
