"""What features add to a prediction: exact, and all together the prediction."""

import lightgbm
import numpy as np
import pytest

from kerncast.learning.learners.lightgbm_text import explaining, read_trees
from kerncast.learning.learners.trees import Tree, sum_of


def explained(trees, background, row):
    """The mean, and what each feature adds."""
    *added, mean = explaining(trees, background).predict(row[None], pred_contrib=True)[0]
    return mean, np.array(added)


def grown(rows=400, features=6, seed=0, **options):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).round(2)
    y = np.sin(2 * x[:, 0]) * x[:, 1] + np.abs(x[:, 2]) + 0.3 * (x[:, 3] > 0) * x[:, 1]
    settings = {"num_leaves": 31, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 3, "deterministic": True}
    booster = lightgbm.train({**settings, **options}, lightgbm.Dataset(x, y), 25)
    return booster, x


def test_they_are_those_of_lightgbm():
    """With the training rows as background: its TreeSHAP, number by number, the mean included."""
    booster, x = grown()
    trees = read_trees(booster.model_to_string())
    for row in x[:8]:
        theirs = booster.predict(row[None], pred_contrib=True)[0]
        mean, added = explained(trees, x, row)
        np.testing.assert_allclose([*added, mean], theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("background", [0, 1, 7])
def test_they_add_up_to_the_prediction_whatever_the_background(background):
    """Also where no background row comes by, and for rows far outside of it."""
    booster, x = grown(seed=1, num_leaves=63)
    trees = read_trees(booster.model_to_string())
    for row in [*x[50:54], np.full(6, 1e9), np.full(6, -1e9)]:
        mean, added = explained(trees, x[:background], row)
        assert mean + added.sum() == pytest.approx(sum_of(trees, row[None])[0], abs=1e-9)


def test_a_feature_that_no_tree_reads_adds_nothing():
    """Trees of one leaf add a constant, and there are forests of nothing else."""
    leaf = Tree(*(np.empty(0, kind) for kind in (np.int64, float, np.int64, np.int64)), np.array([1.5]))
    assert explained([leaf, leaf], np.zeros((3, 2)), np.ones(2))[0] == 3.0
    split = Tree(np.array([1]), np.array([0.5]), np.array([-1]), np.array([-2]), np.array([2.0, 6.0]))
    background = np.array([[9.0, 0.0], [9.0, 0.0], [9.0, 1.0], [9.0, 0.0]])
    mean, added = explained([leaf, split], background, np.ones(2))
    assert (mean, added[0]) == (pytest.approx(4.5, rel=1e-5), 0.0)
    assert added[1] == pytest.approx(3.0, rel=1e-5)
