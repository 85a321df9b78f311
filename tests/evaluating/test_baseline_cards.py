"""Figures that every model stands beside: what they are where an efficiency alone does not tell, or one problem is all."""

import numpy as np
import pytest

from kerncast.evaluating import compare, evaluate
from kerncast.evaluating.report.page import write_report
from kerncast.evaluating.text import not_better_sentence
from kerncast.learning.assess import assess, learned_choices, random_choice, random_expectations
from kerncast.learning.metrics import Predicted, Trials, baseline_card, selection_figures
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows, synthetic_table
from kerncast.training.train import Recipe, train

SHAPE = ["problem.M", "problem.N", "problem.K"]


def trials(problem, config, times):
    unknown = np.full(len(times), np.nan)
    return Trials(np.array(problem), np.array(config), np.array(times), unknown, unknown, unknown)


def test_a_random_choice_hits_the_best_by_chance_and_ties_are_as_good():
    """1 of 4 and 2 of 4 configs; regret is expected over configs, and there is none where one failed."""
    made = trials([0] * 4 + [1] * 4, [0, 1, 2, 3] * 2, [1.0, 2.0, 2.0, 4.0, 5.0, 5.0, 10.0, 10.0])
    card = baseline_card(random_choice(made), random_expectations(made))
    assert card["top1"]["value"] == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert card["regret_mean"]["value"] == pytest.approx(((0 + 1 + 1 + 3) / 4 + (0 + 0 + 1 + 1) / 4) / 2)
    failed = trials([0, 0], [0, 1], [1.0, np.inf])
    assert baseline_card(random_choice(failed), random_expectations(failed))["regret_mean"] is None


def test_regret_is_the_time_lost_over_the_best_and_a_failed_choice_leaves_none():
    """Half the efficiency is twice the time."""
    assert selection_figures(np.array([1.0, 0.5, 0.8]))["regret_mean"]["value"] == pytest.approx((0 + 1 + 0.25) / 3)
    assert selection_figures(np.array([1.0, 0.0]))["regret_mean"] is None


@pytest.mark.parametrize("seed", range(5))
def test_the_portfolio_is_never_below_the_best_single_config(seed):
    """Where each problem tried most configs but not all, problem by problem."""
    table = synthetic_table(problems=30)
    table = table.take((np.random.default_rng(seed).random(len(table.problem)) < 0.5) | (table.config == 4))
    found = learned_choices(table, table.problem % 3, None)
    known = np.isfinite(found["best_single"])
    assert (found["portfolio_8_oracle"] >= found["best_single"])[known].all()


def test_where_each_problem_has_its_own_configs_no_single_config_is_judged():
    """A config that was tried here and there has a mean over other problems than the next: it may score below chance."""
    table = synthetic_table(problems=60)
    everywhere = learned_choices(table, table.problem % 3, None)
    assert len(everywhere["best_single"]) == 60
    sampled = table.take(np.random.default_rng(0).random(len(table.problem)) < 0.3)
    assert learned_choices(sampled, sampled.problem % 3, None) == {}
    # Two configs on every problem, and a sample of the others: the single one is the better of the two.
    kept = table.take((np.random.default_rng(0).random(len(table.problem)) < 0.2) | (table.config < 2))
    single = learned_choices(kept, kept.problem % 3, None)["best_single"]
    both = [kept.trials.share[(kept.config == number)] for number in (0, 1)]
    assert np.nanmean(single) == pytest.approx(max(share.mean() for share in both), abs=0.02)


def test_one_problem_has_figures_without_bounds(tmp_path, run):
    """Null in JSON, - in the table; the report and `compare` go without them."""
    rows = synthetic_rows(problems=20)
    first = rows.select(SHAPE).head(1)
    synthetic_dataset(tmp_path / "d", rows.join(first, on=SHAPE, how="anti"))
    synthetic_dataset(tmp_path / "one", rows.join(first, on=SHAPE, how="semi"))
    train(tmp_path / "d", tmp_path / "m", Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7}, folds=2, threads=1))
    found = evaluate(tmp_path / "m", [tmp_path / "one"])
    cards = [found.as_json()["overall"], *found.as_json()["baselines"].values()]
    figures = [figure for card in cards for figure in card.values() if isinstance(figure, dict)]
    assert figures
    assert all((figure["lower"], figure["upper"]) == (None, None) for figure in figures)
    write_report(found, Model.load(tmp_path / "m"), tmp_path / "r.html")
    assert compare(tmp_path / "m", tmp_path / "m", [tmp_path / "one"]).as_json()["mean_difference"]["lower"] is None
    _, out, _ = run("evaluate", tmp_path / "m", tmp_path / "one", "--no-tiers")
    (line,) = [line for line in out.splitlines() if line.startswith("mean ")]
    assert line.split()[2] == "-"


def test_a_model_that_chooses_no_better_than_without_it_is_named():
    """Compared problem by problem with a random and with the best fixed config; a model that knows the times is not named."""
    table = synthetic_table(problems=30)
    fold = table.problem % 3
    assert assess(table, Predicted(table.trials.time_ns), fold)["not_better"] == {}
    worst = np.where(table.ok, -table.trials.time_ns, -np.inf)
    found = assess(table, Predicted(worst), fold)
    assert set(found["not_better"]) == {"random", "best_single"}
    against = found["not_better"]["random"]
    assert against["other"] == pytest.approx(found["baselines"]["random"]["efficiency_mean"]["value"])
    assert against["ahead"]["value"] == pytest.approx(against["model"] - against["other"])
    said = not_better_sentence(found)
    assert said.startswith(f"the model chooses no better than without it: {against['model']:.1%}, where a random config has ")
    assert said.endswith("take that config for all problems, or measure more problems")
