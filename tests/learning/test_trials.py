"""Choosing, ties, what noise allows, and the choosers that need no model."""

import numpy as np
import pytest

from kerncast.learning.assess import (
    fixed_choice,
    greedy_portfolio,
    marked_choice,
    mean_shares,
    portfolio_oracle,
    portfolio_tried,
    random_choice,
)
from kerncast.learning.metrics import Trials

NAN = np.nan


def trials(times, noise=None, half_a=None, half_b=None, problem=None, config=None):
    """Two problems with three configs each, rows out of order."""
    unknown = [NAN] * len(times)
    columns = [times, noise or unknown, half_a or unknown, half_b or unknown]
    return Trials(
        np.array(problem or [1, 0, 0, 1, 0, 1]), np.array(config or [2, 0, 1, 0, 2, 1]), *(np.array(c, float) for c in columns)
    )


# Problem 0: configs 0, 1, 2 take 10, 20, 40; problem 1: they take 30, 15, fail.
TIMES = [np.inf, 10.0, 20.0, 30.0, 40.0, 15.0]


def test_the_lowest_score_is_chosen_and_equals_go_to_the_first_config():
    """Whatever the order of rows; a failure may be chosen, and has share 0."""
    made = trials(TIMES)
    assert made.best_ns.tolist() == [10.0, 15.0]
    assert made.share.tolist() == [0.0, 1.0, 0.5, 0.5, 0.25, 1.0]
    assert made.config[made.choose(np.zeros(6))].tolist() == [0, 0]
    assert made.choose(np.array(TIMES)).tolist() == [1, 5]
    assert made.share[made.choose(np.array([-9.0, 1, 2, 0, 0, 0]))].tolist() == [0.25, 0.0]


def test_the_choice_does_not_depend_on_the_order_of_rows():
    """Ties included."""
    rng = np.random.default_rng(0)
    times, scores = rng.random(60) + 1.0, rng.integers(0, 3, 60).astype(float)
    problem, config = np.repeat(np.arange(6), 10), np.tile(np.arange(10), 6)
    mixed = rng.permutation(60)
    unknown = np.full(60, NAN)
    straight = Trials(problem, config, times, unknown, unknown, unknown)
    turned = Trials(problem[mixed], config[mixed], times[mixed], unknown, unknown, unknown)
    np.testing.assert_array_equal(config[straight.choose(scores)], config[mixed][turned.choose(scores[mixed])])


def test_a_choice_within_the_noise_of_the_best_is_a_tie():
    """Two standard errors of the difference; without noise only the best itself."""
    times = [np.inf, 100.0, 103.0, 100.0, 105.0, 100.0]
    noisy = trials(times, noise=[NAN, 0.01, 0.015, 0.01, 0.015, 0.01])
    assert noisy.tied(np.array([2, 3])).tolist() == [True, True]
    assert noisy.tied(np.array([4, 0])).tolist() == [False, False]
    assert trials(times).tied(np.array([2, 5])).tolist() == [False, True]


def test_the_noise_ceiling_chooses_on_one_half_and_is_scored_on_the_other():
    """Problem 0 the halves disagree about; problem 1 they agree; a config that failed takes no part."""
    made = trials(TIMES, half_a=[NAN, 10, 20, 30, 40, 15], half_b=[NAN, 25, 20, 30, 40, 15])
    # Chosen on a: config 0, 25 where 20 was to be had; chosen on b: config 1, 20 where 10 was.
    np.testing.assert_allclose(made.noise_ceiling, [(20 / 25 + 10 / 20) / 2, 1.0])


def test_the_spread_within_one_run_is_no_noise_ceiling():
    """Known noise without a second visit gives none; nor do a few problems of many that were visited twice."""
    assert trials(TIMES, noise=[0.01] * 6).noise_ceiling is None
    count = 20
    problem, config = np.repeat(np.arange(count), 2), np.tile(np.arange(2), count)
    for repeated, known in ((4, False), (5, True)):
        half = np.where(problem < repeated, 1.0, NAN)
        made = Trials(problem, config, np.ones(2 * count), np.full(2 * count, 0.01), half, half)
        assert (made.noise_ceiling is not None) == known
        assert not known or len(made.noise_ceiling) == repeated


def test_baselines_by_hand():
    """Random, a fixed config, a greedy portfolio and its oracle, a library that was tried everywhere or not."""
    made = trials(TIMES)
    np.testing.assert_allclose(random_choice(made), [(1 + 0.5 + 0.25) / 3, (0.5 + 1) / 3])
    shares = mean_shares(made, 3)
    np.testing.assert_allclose(shares, [0.75, 0.75, 0.125])
    np.testing.assert_allclose(fixed_choice(made, shares), [1.0, 0.5])
    # A config that was not tried on the same problems (NaN) is not taken, even if nothing else was tried.
    np.testing.assert_allclose(fixed_choice(made, np.array([NAN, 0.5, 0.4])), [0.5, 1.0])
    assert np.isnan(fixed_choice(made, np.full(3, NAN))).all()
    assert greedy_portfolio(made, 3, 3) == [0, 1]
    np.testing.assert_allclose(portfolio_oracle(made, [0, 1]), [1.0, 1.0])
    np.testing.assert_allclose(portfolio_oracle(made, [2]), [0.25, 0.0])
    sampled = trials([1.0, 2.0, 3.0, 4.0], problem=[0, 0, 1, 1], config=[0, 1, 2, 3])
    assert portfolio_tried(sampled, [0, 1]).tolist() == [True, False]
    np.testing.assert_allclose(marked_choice(made, made.config == 1), [0.5, 1.0])
    assert marked_choice(made, np.array([False, True, False, False, False, False])) is None


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_the_best_of_k_is_at_least_as_good_as_the_first(k):
    """Up to the oracle."""
    scores = np.array([0.0, 3.0, 2.0, 1.0, 1.0, 2.0])
    found = trials(TIMES).top(scores, k)
    assert found.tolist() == {1: [0.25, 0.0], 2: [0.5, 0.5], 3: [1.0, 1.0], 9: [1.0, 1.0]}[k]
