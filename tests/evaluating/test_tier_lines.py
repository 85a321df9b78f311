"""What `evaluate` says of the quick tiers."""

import numpy as np
import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.core.op import Config
from kerncast.evaluating import evaluate
from kerncast.evaluating.text import tier_blocks
from kerncast.evaluating.tiers import NOT_TRIED, Tried, _line, tier_lines
from kerncast.library.registry import FAMILIES
from kerncast.models.answer import Tier
from kerncast.native.tiers.build import TierOptions
from kerncast.testing.models import FAMILY, synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train


def problems_of(found):
    """The problems of an evaluation, as a selector is asked them."""
    columns = found.problems.select(pl.col("^problem\\..*$").name.map(lambda name: name.removeprefix("problem.")))
    return list(columns.iter_rows(named=True))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiers")
    model = train(
        synthetic_dataset(folder / "d"), folder / "m", Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 15}, folds=2)
    )
    synthetic_dataset(folder / "new", synthetic_rows(problems=20, seed=5))
    found = evaluate(model, [folder / "new"])
    return found, tier_lines(found, Selector(model, options=TierOptions(samples=200)))


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
    assert full["efficiency"]["value"] == pytest.approx(found.as_json()["overall"]["efficiency_mean"]["value"])
    assert full["loses_to_full"] == 0.0


def test_what_a_tier_refuses_or_hands_on_is_no_part_of_its_line(tmp_path):
    """Trained on small N only: a line is the mean over what that tier answers, and `loses` is on the same problems."""
    rows = synthetic_rows(problems=40)
    small = rows["problem.N"].median()
    synthetic_dataset(tmp_path / "d", rows.filter(pl.col("problem.N") <= small))
    synthetic_dataset(tmp_path / "new", synthetic_rows(problems=30, seed=5))
    model = train(tmp_path / "d", tmp_path / "m", Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 15}, folds=2))
    found = evaluate(model, [tmp_path / "new"])
    options = TierOptions(samples=200)
    tree, portfolio, full = tier_lines(found, Selector(model, options=options))
    asked = Selector(model, options=options)
    inside = np.array([asked.select(item, "full").ok for item in problems_of(found)])
    assert 0 < inside.sum() < len(inside)
    own = found.problems["efficiency"].to_numpy()[inside]
    assert full["n_problems"] == inside.sum()
    assert full["efficiency"]["value"] == pytest.approx(own.mean())
    assert (full["answers_itself"], full["not_tried"], full["loses_to_full"]) == (inside.mean(), 0, 0.0)
    for line in (tree, portfolio):
        assert line["n_problems"] + line["not_tried"] == round(line["answers_itself"] * len(inside)) <= inside.sum()
        assert line["efficiency"]["value"] > 0.5


@pytest.mark.parametrize(("measured", "judged"), [(18, True), (17, False)])
def test_a_tier_whose_choices_were_mostly_not_measured_is_not_judged(measured, judged):
    """As where each problem has its own sample of configs: the few that were measured say nothing of the others."""
    own = np.r_[np.full(measured, 0.9), np.full(20 - measured, np.nan)]
    line = _line(Tier.TREE, {Tier.TREE: own, Tier.FULL: np.ones(20)}, np.ones(20, dtype=bool), np.ones(5), 1)
    assert (line["efficiency"] is not None, line["loses_to_full"] is not None) == (judged, judged)
    assert (line["n_problems"], line["not_tried"]) == (measured, 20 - measured)
    (text,) = [block for block in tier_blocks([{**line, "tier": "tree"}]) if str(block).startswith("a tier")] or [None]
    assert (text is None) == judged


def test_the_row_of_a_config_is_that_of_the_problem_it_was_tried_on(lines):
    """Among millions, without an object per row: a config that was tried elsewhere or nowhere has none; the last row counts."""
    family, found = FAMILIES.get(FAMILY), lines[0]
    names = list(family.config.parameters)
    vectors = found.rows.select("number", "measured_ns", *(f"config.{name}" for name in names)).sample(fraction=0.5, seed=0)
    vectors = pl.concat(
        [vectors, vectors.head(40).reverse(), vectors.head(1).with_columns(number=10**6)], how="vertical_relaxed"
    )
    problems = found.problems.reverse()
    tried = Tried.of(family, problems, vectors)
    expected = {}
    for row, (number, _, *values) in enumerate(vectors.iter_rows()):
        expected[number, Config.trusted(family, dict(zip(names, values, strict=True)))] = row
    configs = {config for _, config in expected}
    assert len(configs) > 5
    for place, number in enumerate(problems["number"]):
        for config in configs:
            assert tried.row(place, config) == expected.get((number, config), NOT_TRIED)
    nowhere = Config.trusted(family, dict.fromkeys(names, 7))
    assert tried.row(0, nowhere) == NOT_TRIED
