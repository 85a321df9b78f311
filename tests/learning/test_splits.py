"""Who is trained on and who is scored."""

import numpy as np
import pytest

from kerncast.errors import InvalidValue
from kerncast.learning.trials import folds_by_group, folds_by_size, held_out


@pytest.mark.parametrize("seed", range(5))
def test_folds_and_hold_outs_never_split_a_group(seed):
    """All rows of a group on one side, folds nearly equal in groups, the same for the same seed."""
    groups = np.random.default_rng(seed).integers(100, 137, 400)
    fold = folds_by_group(groups, 5, seed)
    aside = held_out(groups, 0.2, seed)
    for number in np.unique(groups):
        assert len(np.unique(fold[groups == number])) == 1
        assert len(np.unique(aside[groups == number])) == 1
    per_fold = [len(np.unique(groups[fold == number])) for number in range(5)]
    assert max(per_fold) - min(per_fold) <= 1
    assert len(np.unique(groups[aside])) == round(0.2 * len(np.unique(groups)))
    np.testing.assert_array_equal(fold, folds_by_group(groups, 5, seed))
    assert (fold != folds_by_group(groups, 5, seed + 1)).any()


def test_a_hold_out_has_something_on_either_side():
    """However small or large the share."""
    groups = np.array([0, 0, 1])
    for share in (0.0, 0.01, 0.99, 1.0):
        assert 0 < held_out(groups, share, 0).sum() < 3


def test_more_folds_than_groups_are_refused():
    """With the number that would do."""
    with pytest.raises(InvalidValue, match=r"3 groups of problems and 5 folds: .*`folds=3`"):
        folds_by_group(np.array([1, 1, 2, 3]), 5, 0)
    with pytest.raises(InvalidValue, match="at least 2 folds, got 1"):
        folds_by_group(np.array([1, 2]), 1, 0)


def test_bands_of_size_are_in_order_and_equal_sizes_stay_together():
    """Each band lies wholly below the next."""
    size = np.array([8.0, 1.0, 2.0, 2.0, 2.0, 64.0, 4.0, 16.0, 32.0, 2.0])
    bands = folds_by_size(size, 3)
    assert bands[size == 2.0].tolist() == [0] * 4
    assert (np.diff(bands[np.argsort(size, kind="stable")]) >= 0).all()
    assert np.unique(bands).tolist() == [0, 1, 2]
