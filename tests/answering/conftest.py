"""A model of made-up measurements and its tiers, made once."""

import pytest

from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selector")
    return train(
        synthetic_dataset(folder / "data"),
        folder / "model",
        Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 15}, folds=2),
    )


@pytest.fixture(scope="session")
def tiers(model):
    return build_tiers(model, TierOptions(samples=200))
