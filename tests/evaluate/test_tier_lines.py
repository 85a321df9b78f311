"""What `evaluate` says of the quick tiers."""

import pytest

from kerncast.evaluate import evaluate
from kerncast.evaluate.tier_lines import tier_lines
from kerncast.models import Recipe
from kerncast.models.train import train
from kerncast.select.selector import Selector
from kerncast.select.tiers import TierOptions
from kerncast.testing.models import synthetic_dataset, synthetic_rows


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiers")
    model = train(synthetic_dataset(folder / "d"), folder / "m", Recipe("gbdt", {"trees": 30, "leaves": 15}, folds=2))
    synthetic_dataset(folder / "new", synthetic_rows(problems=20, seed=5))
    found = evaluate(model, [folder / "new"])
    return found, tier_lines(found, Selector.load(model, options=TierOptions(samples=200)))


def test_every_tier_has_a_line_with_what_it_gets_takes_and_weighs(lines):
    """Efficiency with an interval, microseconds, bytes."""
    for line in lines[1]:
        assert 0.5 < line["efficiency"]["lower"] <= line["efficiency"]["value"] <= 1.0
        assert 0.0 <= line["p50_us"] <= line["p99_us"]
        assert line["bytes"] > 0
    assert [line["tier"] for line in lines[1]] == ["tree", "portfolio", "full"]


def test_the_full_tier_gets_what_the_model_gets(lines):
    """Every candidate was tried on every problem, so the free choice is the one that is scored above."""
    found, (_, _, full) = lines
    assert full["not_tried"] == 0
    assert full["efficiency"]["value"] == pytest.approx(found.summary["overall"]["efficiency_mean"]["value"])
    assert full["loses_to_full"] == 0.0
