"""Models of parts of an op: reshards from and to different shardings, a line for each pair of grids."""

import pytest
from resharding import reshard_rows
from tests.support.needs import require

from kerncast.data import Dataset
from kerncast.library.families.single import reshard_single
from kerncast.training.train import Recipe, train


@pytest.fixture(scope="session")
def reshards(tmp_path_factory):
    """Lines `width-height`, `block-width` and `block-width-2` (small, of other software); `mlp`, `forest` of the first."""
    folder = tmp_path_factory.mktemp("reshards")
    variants = {
        "width-height": reshard_rows(("width", "height"), 2.0),
        "block-width": reshard_rows(("block", "width"), 3.0, "a" * 40),
        "block-width-2": reshard_rows(("block", "width"), 5.0, "b" * 40, most=12),
    }
    for name, rows in variants.items():
        Dataset.create(folder / f"{name}-data").append(reshard_single, rows)
        train(folder / f"{name}-data", folder / name, Recipe("linear", folds=2, threads=1))
    only = ("in_x", "in_y", "in_strategy", "tiles")
    train(folder / "width-height-data", folder / "mlp", Recipe("mlp", {"epochs": 3, "hidden": (8, 4)}, folds=2, features=only))
    knobs = {"trees": 5, "library_trees": 2}
    train(folder / "width-height-data", folder / "forest", Recipe("gbdt", knobs, folds=2, threads=1))
    return folder


@pytest.fixture(params=[True, False], ids=["c", "python"])
def compiled(request):
    """Whether a query answers in C."""
    if request.param:
        require("a C compiler")
    return request.param
