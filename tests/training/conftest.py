"""A small model that several files judge."""

import pytest

from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

SMALL = Recipe("gbdt", {"trees": 6, "library_trees": 4, "leaves": 7, "lr": 0.3}, folds=3, threads=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` and a model `m` trained on it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=30, repeats=2))
    train(folder / "d", folder / "m", SMALL)
    return folder
