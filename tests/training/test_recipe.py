"""What `model.json` keeps of a recipe: everything that a refit needs."""

import dataclasses
import json
from pathlib import Path

import pytest

from kerncast.errors import BadFile
from kerncast.training.recipe import LEFT_OUT, WHERE_SET, Recipe

FIELDS = {item.name for item in dataclasses.fields(Recipe)}
OTHER = Recipe(
    kind="mlp", knobs={"lr": 0.5, "epochs": 3}, target="latency", target_log=False, folds=7, seed=3, threads=2, hard_mining=1,
    tune=4, hold_out="config", inherited={"width": 8}, features=("tiles", "in_x"), rows=500,
)  # fmt: skip
STORED = sorted(Path(__file__).parents[1].glob("fixtures/*/*/model.json"))


def test_every_field_is_kept_or_named_as_left_out():
    """A value that is not the default comes back from JSON; a new field is tested here too, or this fails."""
    for item in dataclasses.fields(Recipe):
        assert getattr(OTHER, item.name) != getattr(Recipe(), item.name), f"OTHER must say something of {item.name}"
    kept = OTHER.as_options()
    assert set(kept) == FIELDS - set(LEFT_OUT)
    assert Recipe.from_options(json.loads(json.dumps(kept)), threads=OTHER.threads) == OTHER
    assert {*LEFT_OUT, *WHERE_SET} <= FIELDS


def test_a_field_that_is_added_is_kept_without_further_ado():
    """And a model from before it gets its default."""
    wider = dataclasses.make_dataclass("Wider", [("bins", int, dataclasses.field(default=255))], bases=(Recipe,), frozen=True)
    assert wider(bins=63).as_options()["bins"] == 63
    assert wider.from_options(wider(bins=63).as_options()).bins == 63
    assert wider.from_options(Recipe().as_options()).bins == 255
    with pytest.raises(BadFile, match="trained with 'bins', which this kerncast does not know: upgrade kerncast"):
        Recipe.from_options(wider().as_options())


def test_a_field_that_says_nothing_is_left_out():
    """So the bytes of models without it stay what they were."""
    assert set(Recipe().as_options()) == FIELDS - set(LEFT_OUT) - set(WHERE_SET)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.parent.name)
def test_recipes_of_older_models_are_read_and_written_alike(file):
    """Names, values and their order."""
    recipe = json.loads(file.read_bytes())["recipe"]
    assert json.dumps(Recipe.from_options(recipe).as_options()) == json.dumps(recipe)


def test_there_are_older_models():
    """The test above looked at some."""
    assert STORED
