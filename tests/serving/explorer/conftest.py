"""A model of made-up measurements, its slim copy and its dataset, made once."""

import pytest

from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.recipe import Recipe
from kerncast.training.train import train


@pytest.fixture(scope="session")
def explored(tmp_path_factory):
    """A folder with `data`, `model` and `slim`."""
    folder = tmp_path_factory.mktemp("explored")
    data = synthetic_dataset(folder / "data", synthetic_rows(problems=40, repeats=2, noise=0.02))
    model = train(data, folder / "model", Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 15}, folds=2, threads=1))
    model.slimmed(folder / "slim")
    return folder
