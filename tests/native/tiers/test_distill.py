"""The distilled tree: problem → place in the portfolio, by what choices cost, unsure where it would lose too much."""

import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.table import load_table
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.manifest import Range
from kerncast.models.measured import measured_in_table
from kerncast.models.model import Model
from kerncast.native.tiers.contents import UNSURE
from kerncast.native.tiers.distill import Evidence, distill, evaluate
from kerncast.native.tiers.smallest_set import model_portfolio
from kerncast.native.tiers.teaching import Material, draw_problems, grow
from kerncast.testing.models import synthetic_dataset, synthetic_rows, synthetic_time_ns
from kerncast.training.train import Recipe, train

FAMILY = FAMILIES.get("gemm/triton")
SIZES = ("M", "N", "K")
HULL = {name: Range(low=128, high=8192) for name in SIZES} | {
    "split_k": Range(low=1, high=1), "batch": Range(low=1, high=1), "dtype": Range(labels=("fp16",)),
    "layout": Range(labels=("rcr",)), "tf32": Range(labels=(False,)),
}  # fmt: skip


def truth(configs):
    """A score that is the made-up device's own log time; infinite where a config fails."""

    def score(problems):
        rows = problems.join(configs, how="cross", maintain_order="left_right")
        return np.log(synthetic_time_ns(rows)).reshape(problems.height, configs.height)

    return score


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` of 60 problems and a model `m` trained on it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=60))
    train(folder / "d", folder / "m", Recipe("gbdt", {"trees": 40, "library_trees": 4, "leaves": 15}, folds=3, threads=1))
    return folder


@pytest.fixture(scope="module")
def evidence(home):
    """The same data without a model."""
    return Evidence(measured_in_table(load_table([Dataset.open(home / "d")])), devices.get("a100"), ("fp16",), HULL)


def decided(tree, problems):
    rows = problems.rename(lambda name: f"p.{name.removeprefix('problem.')}").iter_rows(named=True)
    return np.array([[*tree.decide(row)[0], UNSURE][0] for row in rows])


def fresh(evidence, count=400):
    return draw_problems(FAMILY, evidence.measured.problems, HULL, count, np.random.default_rng(99))


def test_the_tree_follows_the_score_on_problems_it_has_not_seen(evidence):
    """What it answers loses about as little as it says, far less than the best single config."""
    portfolio = [0, 3, 5, 6, 7]
    score = truth(evidence.measured.configs[portfolio])
    found = distill(evidence, portfolio, score, samples=1500)
    problems = fresh(evidence)
    chosen, scores = decided(found.tree, problems), score(problems)
    regret = -np.expm1(scores.min(axis=1, keepdims=True) - scores)
    sure = chosen != UNSURE
    assert sure.mean() > 0.85  # a tenth of the problems is as uneven as none that was measured
    assert found.answered > 0.85
    assert found.loss <= 0.01
    lost = regret[np.arange(len(chosen)), chosen][sure]
    assert lost.mean() < 0.015
    assert lost.mean() < regret.mean(axis=0).min() / 3


def test_leaves_compare_configs_where_that_saves_enough(evidence):
    """With scores that know the truth every answer is nearly the best; with useless ones no leaf compares."""
    portfolio = [0, 3, 5, 6, 7]
    score = truth(evidence.measured.configs[portfolio])

    def compare(frame, wanted):
        assert wanted.any(axis=1).mean() > 0.9
        return np.stack([np.where(wanted, score(frame), np.inf)] * 2)

    found = distill(evidence, portfolio, score, samples=600, compare=compare)
    assert found.comparing_leaves > 0
    problems = fresh(evidence)
    scores, rows = score(problems), problems.rename(lambda name: f"p.{name.removeprefix('problem.')}").iter_rows(named=True)
    lost = []
    for own, (places, most) in zip(scores, map(found.tree.decide, rows), strict=True):
        listed = [place for place in places if np.isfinite(own[place])][:most]
        lost += [1.0 - np.exp(own.min() - own[listed].min())] if listed else []
    assert len(lost) > 0.95 * problems.height
    assert np.mean(lost) < 0.003
    useless = distill(evidence, portfolio, score, samples=600, compare=lambda *asked: -compare(*asked))
    assert useless.comparing_leaves == 0


def test_a_model_is_distilled_over_rows_of_its_candidates(home):
    """The same seed gives the same arrays; every split reads an exact feature that the tree keeps."""
    model = Model.load(home / "m")
    portfolio = model_portfolio(model, 0.01, 6)
    configs = model.candidates.select(pl.col("^config\\..*$"))[list(portfolio)]

    def score(problems):
        rows = problems.join(configs, how="cross", maintain_order="left_right")
        return model.predict_vectors(rows)["score"].to_numpy().reshape(problems.height, configs.height)

    tree, again = (distill(Evidence.of(model), portfolio, score, samples=300, seed=4).tree for _ in range(2))
    for name in ("feature", "threshold", "left", "right", "value"):
        assert np.array_equal(getattr(tree.tree, name), getattr(again.tree, name))
    assert set(tree.tree.feature) == set(range(len(tree.program.outputs)))
    assert all(expr.exact for expr in tree.program.outputs.values())
    assert all(item.name.startswith("p.") for item in tree.program.symbols)
    assert tree.choices.min() >= UNSURE
    assert tree.choices.max() < len(portfolio)
    problems = fresh(Evidence.of(model), 50)
    leaf = tree.tree.leaf_values(evaluate(tree.program, problems)).astype(int)
    assert np.array_equal(tree.lists[leaf, 0], decided(tree, problems))


def test_what_no_tree_can_tell_is_left_to_the_next_tier(evidence):
    """Scores without rhyme or reason: unsure nearly everywhere; allowed to lose everything, it answers everything."""

    def noise(problems):
        return np.random.default_rng(problems.height).uniform(0.0, 0.5, (problems.height, 4))

    portfolio = [1, 2, 3, 4]
    strict = distill(evidence, portfolio, noise, samples=800)
    assert strict.answered < 0.2
    assert strict.unsure_leaves > 0
    assert (decided(strict.tree, fresh(evidence)) == UNSURE).mean() > 0.8
    assert strict.loss <= 0.01
    loose = distill(evidence, portfolio, noise, samples=800, worst_loss=1.0)
    assert (loose.answered, loose.unsure_leaves) == (1.0, 0)


def test_where_nothing_can_run_the_tree_is_unsure(evidence):
    """It never names a config that the rules forbid everywhere."""
    found = distill(evidence, [1, 2], lambda problems: np.full((problems.height, 2), np.inf), samples=300)
    problems = fresh(evidence, 50)
    assert (decided(found.tree, problems) == UNSURE).mean() > 0.9


def test_a_config_is_not_chosen_for_sizes_it_was_never_tried_on(tmp_path):
    """The score praises it everywhere, but it was measured up to M = 512 only."""
    small = (pl.col("problem.M") <= 512) | (pl.col("config.BLOCK_M") != 16) | pl.col("config.BLOCK_M").is_null()
    synthetic_dataset(tmp_path / "d", synthetic_rows(problems=150).filter(small))
    measured = measured_in_table(load_table([Dataset.open(tmp_path / "d")]))
    praised = int(measured.configs["config.BLOCK_M"].eq_missing(16).arg_max())
    other = int(measured.configs["config.BLOCK_M"].eq_missing(64).arg_max())
    evidence = Evidence(measured, devices.get("a100"), ("fp16",), HULL)
    found = distill(evidence, [praised, other], lambda frame: np.tile([0.0, 0.5], (frame.height, 1)), samples=1000)
    problems = fresh(evidence)
    large = (problems["problem.M"] > 512).to_numpy()
    assert large.sum() > 100
    assert (decided(found.tree, problems)[large] != 0).mean() > 0.98


def test_drawn_problems_are_new_allowed_and_as_even_as_the_measured_ones(evidence):
    """Inside the hull, different from each other and from what was measured, the same for the same seed."""
    measured = evidence.measured.problems
    drawn, again = (draw_problems(FAMILY, measured, HULL, 500, np.random.default_rng(7)) for _ in range(2))
    assert drawn.equals(again)
    assert drawn.height == 500
    assert drawn.is_unique().all()
    assert drawn.join(measured, on=measured.columns, how="semi").height == 0
    for row in drawn.iter_rows(named=True):
        FAMILY.problem.check({name.removeprefix("problem."): value for name, value in row.items()})
    for name in SIZES:
        assert drawn[f"problem.{name}"].is_between(128, 8192).all()
        assert 0.85 < (drawn[f"problem.{name}"] % 64 == 0).mean() < 0.95  # a tenth has any size
    nothing = {name: Range(low=8, high=8) for name in SIZES}
    assert draw_problems(FAMILY, measured, nothing, 10, np.random.default_rng(0)).height == 0


def test_a_leaf_takes_the_cheapest_choice_not_the_most_frequent_best():
    """Two thirds of the samples like 0 a little better, one third loses half its speed with it."""
    features = np.zeros((300, 1))
    costs = np.where(np.arange(300)[:, None] % 3 > 0, [0.0, 0.01], [0.5, 0.0])
    assert list(grow(Material(features, costs, np.ones(300)), 8, 1.0).value) == [1]
    features[:, 0] = np.arange(300) % 3
    grown = grow(Material(features, costs, np.ones(300)), 8, 1.0)
    assert len(grown.value) == 2
    assert list(grown.leaf_values(features)[:3]) == [1, 0, 0]


def test_a_split_that_does_not_pay_on_other_samples_is_undone():
    """Costs that follow the feature in growing and not in judging: one leaf; where they follow it in both: two."""
    features = np.repeat([[0.0], [1.0]], 50, axis=0)
    follows = np.where(features > 0.5, [1.0, 0.0], [0.0, 1.0])
    material = Material(features, follows, np.ones(100))
    other = Material(features, np.tile([0.0, 1.0], (100, 1)), np.ones(100))
    assert list(grow(material, 8, 1.0, material).value) == [0, 1]
    assert list(grow(material, 8, 1.0, other).value) == [0]


def test_wrong_wishes_are_refused(evidence):
    """An empty portfolio, or a loss of nothing, with what was given."""
    with pytest.raises(InvalidValue, match="got 0 configs"):
        distill(evidence, [], truth(evidence.measured.configs[:0]))
    with pytest.raises(InvalidValue, match="a loss of 0"):
        distill(evidence, [1], truth(evidence.measured.configs[:1]), worst_loss=0)
