"""Prediction intervals cover what they promise, on problems that they were not calibrated on."""

import numpy as np
import pytest

from kerncast.models.conformal import calibrate, cross_bounds


def world(seed, problems, rows=20):
    """Predictions and what is measured: errors are larger on small problems, skewed, and shared within a problem."""
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(problems), rows)
    predicted = np.exp(np.repeat(rng.uniform(8, 16, problems), rows) + rng.normal(0, 0.5, len(problem)))
    scale = 0.02 + 0.2 * np.exp(-(np.log(predicted) - 8) / 3)
    errors = 0.4 * np.repeat(rng.normal(0, 1, problems), rows) + rng.gumbel(0, 1, len(problem))
    return problem, predicted * np.exp(scale * errors), predicted


def coverage(interval, measured, predicted):
    lower, upper = interval.bounds(predicted)
    return float(((lower <= measured) & (measured <= upper)).mean())


@pytest.mark.parametrize("seed", range(6))
def test_ninety_percent_are_covered_on_new_problems(seed):
    """88 to 92 %, and not much less at either end of the sizes."""
    interval = calibrate(*world(seed, 800))
    _, measured, predicted = world(seed + 100, 800)
    assert 0.88 <= coverage(interval, measured, predicted) <= 0.92
    order = np.argsort(predicted)
    for part in (order[: len(order) // 4], order[-len(order) // 4 :]):
        assert 0.85 <= coverage(interval, measured[part], predicted[part]) <= 0.95


@pytest.mark.parametrize("problems", [30, 100, 300])
def test_few_problems_make_the_interval_wider_not_wrong(problems):
    """On average over worlds never below what it promises."""
    found = [coverage(calibrate(*world(seed, problems)), *world(seed + 500, 300)[1:]) for seed in range(20)]
    assert 0.89 <= np.mean(found) <= 0.97


def test_what_is_claimed_in_cross_validation_was_calibrated_on_other_folds():
    """The bounds of a fold do not move with its own measurements; a failure has bounds too."""
    problem, measured, predicted = world(0, 100)
    fold = problem % 5
    lower, upper = cross_bounds(problem, fold, measured, predicted)
    assert 0.88 <= ((lower <= measured) & (measured <= upper)).mean() <= 0.94
    spoiled = np.where(fold == 2, measured * 100, measured)
    spoiled[fold == 3] = np.nan
    again = cross_bounds(problem, fold, spoiled, predicted)
    without = cross_bounds(problem, fold, np.where(fold == 3, np.nan, measured), predicted)
    np.testing.assert_array_equal(again[0][fold == 2], without[0][fold == 2])
    assert np.isfinite(again[0]).all()


def test_one_problem_cannot_be_calibrated_on():
    """No interval, rather than one that promises nothing."""
    assert calibrate(np.zeros(5, int), np.ones(5), np.ones(5)) is None
