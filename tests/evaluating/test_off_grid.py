"""Kinds of problems held out whole: which, and what every tier of a model without them chooses there."""

import numpy as np
import polars as pl
import pytest

from kerncast.errors import InvalidValue
from kerncast.evaluating.refits import off_grid
from kerncast.evaluating.text import joined, off_grid_blocks
from kerncast.learning.assess import HeldOutKind, alignment, kinds_of
from kerncast.native.tiers.build import TierOptions
from kerncast.testing.models import synthetic_dataset, synthetic_rows, synthetic_table
from kerncast.training.train import Recipe, train

RECIPE = Recipe("gbdt", {"trees": 15, "library_trees": 4, "leaves": 15, "lr": 0.3}, folds=2, threads=1)


def test_alignment_is_the_power_of_two_that_divides_a_size():
    """Up to 128; zero is aligned."""
    assert alignment(np.array([0, 1, 6, 12, 40, 64, 128, 4096])).tolist() == [7, 0, 1, 2, 3, 6, 7, 7]


def test_kinds_are_of_whole_groups_and_leave_enough_to_learn_from():
    """A quarter of the problems or so: none that is aligned, none of middling size, none that is nearly a cube."""
    table = synthetic_table(problems=150)
    sizes = table.rows.frame.select("problem.M", "problem.N", "problem.K").to_numpy()
    kinds = {kind.name: kind for kind in kinds_of(table)}
    np.testing.assert_array_equal(kinds["alignment"].held, (sizes % 128 != 0).any(axis=1))
    work = table.rows.roofline_ns
    assert work[~kinds["size"].held].max() < work[kinds["size"].held].max()
    assert work[~kinds["size"].held].min() > work[kinds["size"].held].min()
    unequal = np.log2(sizes).max(axis=1) - np.log2(sizes).min(axis=1)
    assert np.median(unequal[kinds["aspect"].held]) > np.median(unequal[~kinds["aspect"].held])
    for kind in kinds.values():
        assert 0.02 <= kind.held.mean() <= 0.5
        assert not set(table.group[kind.held]) & set(table.group[~kind.held])
    assert kinds_of(table.take(table.group < 40)) == []


def test_every_tier_is_scored_on_kinds_that_its_model_has_not_seen(tmp_path, monkeypatch):
    """Efficiencies of what would run, fallbacks outside the trained range included; the lines print as a table."""
    rows = synthetic_rows(problems=60)
    # A config that was tried on large problems only is unknown to the model without them.
    rows = rows.filter((pl.col("config.BLOCK_M") != 16).fill_null(True) | (pl.col("problem.N") > 4096))
    data = synthetic_dataset(tmp_path / "d", rows)
    model = train(data, tmp_path / "m", RECIPE)
    assert {line["kind"] for line in model.evaluation["off_grid"]} == {"alignment", "size", "aspect"}

    def large(table):
        """One kind is enough here, and saves two fits."""
        return [HeldOutKind("size", "N above 4096", (table.rows.frame["problem.N"] > 4096).to_numpy())]

    with monkeypatch.context() as patch:
        patch.setattr("kerncast.evaluating.refits.kinds_of", large)
        (line,) = off_grid(model, [data], options=TierOptions(samples=60))
    full = line["tiers"][-1]
    assert (full["tier"], full["of_full"]) == ("full", 1.0)
    for tier in line["tiers"]:
        assert tier["n_problems"] + tier["not_tried"] == line["n_problems"]
        assert 0.3 < tier["efficiency"]["value"] <= 1.0
        # All are beyond the trained sizes: the answer is a fallback, and it is scored.
        assert (tier["not_ok"], tier["answers_itself"]) == (1.0, 0.0)
    assert "N above 4096" in joined(off_grid_blocks([line]))
    small = synthetic_dataset(tmp_path / "s", synthetic_rows(problems=20))
    with pytest.raises(InvalidValue, match=r"`off_grid` .* needs 50 groups of problems .*; the data have 20"):
        off_grid(model, [small])
