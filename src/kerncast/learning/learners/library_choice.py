"""Whether the vendor's library is the better choice: a separate forest, for families with a library candidate.

A library's choice of kernel is erratic: one of two neighbouring shapes may run at two thirds of the speed. Boosted trees
smooth that away. Extremely randomised trees, grown until a few problems are left in a leaf, remember it. Their mean is
the logarithm of how much slower the library is than the best of the other configs. It is added to the score of the
library's row: every tree first tests whether a row is the library's, and gives 0 for other rows.
"""

from __future__ import annotations

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.errors import NotFound
from kerncast.learning.learners.contract import FEWEST_GROUPS
from kerncast.learning.learners.trees import Tree
from kerncast.learning.tables.feature_rows import Rows
from kerncast.learning.tables.table import Table

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
