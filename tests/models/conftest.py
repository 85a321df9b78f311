"""A small model that several files judge."""

import pytest

from kerncast.models import train
from kerncast.models.train import Recipe
from kerncast.testing.models import synthetic_dataset, synthetic_rows

SMALL = Recipe("gbdt", {"trees": 6, "leaves": 7, "lr": 0.3}, folds=3, threads=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` and a model `m` trained on it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=30, repeats=2))
    train(folder / "d", folder / "m", SMALL)
    return folder
