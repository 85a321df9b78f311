"""What `model.json` keeps of a recipe: everything that a refit needs."""

import dataclasses
import json

import pytest

from kerncast.errors import BadFile
from kerncast.training.procedure import LEFT_OUT, Recipe

FIELDS = {item.name for item in dataclasses.fields(Recipe)}
OTHER = Recipe(
    kind="mlp", knobs={"lr": 0.5, "epochs": 3}, target="latency", target_log=False, folds=7, seed=3, threads=2, hard_mining=1,
    tune=4, hold_out="config", inherited={"width": 8}, features=("tiles", "in_x"), rows=500,
)  # fmt: skip


def test_every_field_is_kept_or_named_as_left_out():
    """A value that is not the default comes back from JSON; a new field is tested here too, or this fails."""
    for item in dataclasses.fields(Recipe):
        assert getattr(OTHER, item.name) != getattr(Recipe(), item.name), f"OTHER must say something of {item.name}"
    kept = OTHER.as_options()
    assert set(kept) == FIELDS - set(LEFT_OUT)
    assert Recipe.from_options(json.loads(json.dumps(kept)), threads=OTHER.threads) == OTHER
    assert set(LEFT_OUT) <= FIELDS


def test_a_field_that_is_added_is_kept_without_further_ado():
    """A recipe that does not say it has its default; one that this kerncast does not know is refused."""
    wider = dataclasses.make_dataclass("Wider", [("bins", int, dataclasses.field(default=255))], bases=(Recipe,), frozen=True)
    assert wider(bins=63).as_options()["bins"] == 63
    assert wider.from_options(wider(bins=63).as_options()).bins == 63
    assert wider.from_options(Recipe().as_options()).bins == 255
    with pytest.raises(BadFile, match="trained with 'bins', which this kerncast does not know: upgrade kerncast"):
        Recipe.from_options(wider().as_options())
