"""Drift: what is told apart, and that noise alone is never called drift."""

import numpy as np
import pytest

from kerncast.errors import InvalidValue
from kerncast.models.store.recheck import Pairs, Tolerance, judge

PROBLEMS, CONFIGS = 12, 8


def pairs(now=lambda then, rng: then, noise=0.01, seed=0, problems=PROBLEMS, configs=CONFIGS, **changes):
    """Times with noise on either side; the model chooses the truly best config of each problem."""
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(problems), configs)
    true = np.exp(rng.normal(10, 2, problems))[problem] * np.exp(rng.uniform(0, 1, len(problem)))
    chosen = np.zeros(len(problem), bool)
    for number in range(problems):
        own = np.flatnonzero(problem == number)
        chosen[own[np.argmin(true[own])]] = True
    then = true * np.exp(noise * rng.standard_normal(len(true)))
    fresh = now(true, rng) * np.exp(noise * rng.standard_normal(len(true)))
    return Pairs(problem, then, fresh, np.full(len(true), noise * np.sqrt(2)), chosen, **changes)


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_is_fresh(seed):
    """Three per cent on either side."""
    found = judge(pairs(noise=0.03, seed=seed))
    assert found.verdict == "fresh", found.reasons
    assert found.shift.value == pytest.approx(1, abs=0.03)
    assert found.rank_correlation > 0.9


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_a_common_factor_is_a_shift_and_the_choices_stay_sound(factor):
    """Times are off, the order is not: the finding says both."""
    found = judge(pairs(lambda then, rng: then * factor))
    assert found.verdict == "drifted"
    assert found.shift.value == pytest.approx(factor, rel=0.02)
    assert found.movement.value < 0.05
    assert "predicted times are off by that factor" in found.reasons[0]
    assert "its choices are still good" in found.reasons[-1]


def shuffled(then, rng):
    """Other configs are fast now, on every problem."""
    order = rng.permutation(CONFIGS)[None, :] + np.arange(0, len(then), CONFIGS)[:, None]
    return then[order].ravel()


def test_other_configs_on_top_are_told_from_a_shift():
    """What was fast became slow: choices lose, and no common factor explains it."""
    found = judge(pairs(shuffled))
    assert found.verdict == "drifted"
    assert found.efficiency_now < found.efficiency_then - 0.1
    assert any("other configs are best now" in reason for reason in found.reasons)
    assert any("no common factor explains it" in reason for reason in found.reasons)


def test_one_problem_that_fell_is_not_drift_but_not_fresh_either():
    """A mean that one outlier moves says nothing about the rest; a larger sample would."""
    found = judge(pairs(lambda then, rng: then * np.where(np.arange(len(then)) < CONFIGS, rng.uniform(1, 8, len(then)), 1)))
    assert found.verdict == "cannot tell"
    assert "a larger `sample` would tell" in found.reasons[-1]


def test_what_fails_now_is_drift():
    """A vector that worked and no longer does needs no statistics; one in a hundred may be an accident."""

    def failing(count):
        def now(then, rng):
            return np.where(np.arange(len(then)) < count, np.nan, then)

        return now

    found = judge(pairs(failing(10)))
    assert (found.verdict, found.failures) == ("drifted", 10)
    assert judge(pairs(failing(1), noise=0.001)).verdict == "fresh"


def test_too_little_or_too_noisy_cannot_tell():
    """An open question is said to be open, with the next step."""
    assert judge(pairs(problems=4)).verdict == "cannot tell"
    assert judge(pairs(problems=0)).verdict == "cannot tell"
    noisy = judge(pairs(lambda then, rng: then * 1.1, noise=0.03))
    assert noisy.verdict == "cannot tell"
    assert "a larger `sample` would tell" in noisy.reasons[0]


def test_slower_on_a_disturbed_machine_proves_nothing_but_faster_does():
    """Noise only ever slows down."""
    slower = judge(pairs(lambda then, rng: then * 1.5, disturbed=0.8))
    assert slower.verdict == "cannot tell"
    assert "check again when it is quiet" in slower.reasons[0]
    assert judge(pairs(lambda then, rng: then / 1.5, disturbed=0.8)).verdict == "drifted"
    assert judge(pairs(shuffled, disturbed=0.8)).verdict == "cannot tell"
    assert judge(pairs(disturbed=0.8)).verdict == "fresh"


def test_with_nothing_to_choose_only_times_are_judged():
    """One config a problem."""
    found = judge(pairs(configs=1, problems=40))
    assert (found.verdict, found.efficiency_change, found.rank_correlation) == ("fresh", None, None)


def test_limits_are_shares():
    """Not percentages, not zero."""
    with pytest.raises(InvalidValue, match=r"`max_shift` must be above 0 and below 100 %"):
        Tolerance(shift=10)
