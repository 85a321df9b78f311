"""Metrics against values computed by hand."""

import numpy as np
import pytest

from kerncast.learning.metrics import Predicted, Trials, resampled, runtime_figures, scorecard, selection_figures, top_k


def value(figures, name):
    return figures[name]["value"]


def test_selection_figures_by_hand():
    """Mean, quantiles, worst, hits and the geometric mean of four efficiencies."""
    found = selection_figures(np.array([1.0, 0.5, 1.0, 0.8]))
    assert value(found, "efficiency_mean") == pytest.approx(0.825)
    assert value(found, "efficiency_p50") == pytest.approx(0.9)
    assert value(found, "efficiency_p10") == pytest.approx(0.5 + 0.3 * 0.3)  # linear between the sorted values
    assert value(found, "efficiency_p1") == pytest.approx(0.5 + 0.03 * 0.3)
    assert value(found, "efficiency_min") == 0.5
    assert value(found, "top1") == 0.5
    assert value(found, "efficiency_gmean") == pytest.approx(0.4**0.25)


def test_one_failed_choice_makes_the_geometric_mean_zero():
    """However many others were right."""
    assert value(selection_figures(np.array([0.0, *[1.0] * 999])), "efficiency_gmean") == 0.0


def test_runtime_figures_by_hand():
    """Three problems, five rows."""
    problem = np.array([0, 0, 1, 1, 2])
    measured = np.array([100.0, 200.0, 100.0, 400.0, 50.0])
    predicted = np.array([110.0, 180.0, 150.0, 400.0, 40.0])
    covered = np.array([True, True, False, True, True])
    found = runtime_figures(problem, measured, predicted, covered)
    ape = np.array([0.1, 0.1, 0.5, 0.0, 0.2])
    assert value(found, "mape") == pytest.approx(0.18)
    assert value(found, "median_ape") == pytest.approx(0.1)
    assert value(found, "ape_p95") == pytest.approx(0.5)
    assert value(found, "rmsre") == pytest.approx(np.sqrt((ape**2).mean()))
    squared = 100.0 + 400.0 + 2500.0 + 0.0 + 100.0
    assert value(found, "rrmse") == pytest.approx(np.sqrt(squared / 5) / 170.0)
    assert value(found, "r2") == pytest.approx(1 - squared / ((measured - 170.0) ** 2).sum())
    mse = (np.log(predicted / measured) ** 2).mean()
    assert value(found, "mse_log") == pytest.approx(mse)
    assert value(found, "rmse_log") == pytest.approx(np.sqrt(mse))
    assert value(found, "exp_rmse_log") == pytest.approx(np.exp(np.sqrt(mse)))
    assert 1 < found["exp_rmse_log"]["lower"] < found["exp_rmse_log"]["upper"]
    logs = np.log(measured)
    scatter = ((logs - logs.mean()) ** 2).sum()
    assert value(found, "r2_log") == pytest.approx(1 - (np.log(predicted / measured) ** 2).sum() / scatter)
    assert value(found, "coverage_90") == pytest.approx(0.8)


def test_figures_that_have_no_meaning_are_none():
    """No interval, no coverage; one time only, no scatter to explain."""
    found = runtime_figures(np.array([0, 1]), np.array([5.0, 5.0]), np.array([5.0, 6.0]))
    assert found["coverage_90"] is None
    assert found["r2"] is None
    assert value(found, "mape") == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_bootstrap_interval_holds_the_value_and_narrows_with_problems(seed):
    """Over problems: the same rows in fewer problems say less."""
    rng = np.random.default_rng(seed)
    efficiency = rng.beta(20, 2, 300)
    for figure in selection_figures(efficiency).values():
        assert figure["lower"] <= figure["value"] <= figure["upper"]
    measured = np.exp(rng.normal(10, 2, 400))
    predicted = measured * np.exp(np.repeat(rng.normal(0, 0.2, 20), 20))
    by_row, by_problem = (runtime_figures(problem, measured, predicted) for problem in (np.arange(400), np.arange(400) // 20))
    for figure in (*by_row.values(), *by_problem.values()):
        assert figure is None or figure["lower"] <= figure["value"] <= figure["upper"]
    widths = [figures["mape"]["upper"] - figures["mape"]["lower"] for figures in (by_row, by_problem)]
    assert widths[1] > 2 * widths[0]


def test_resampling_in_pieces_is_seeded_and_bounded(monkeypatch):
    """A thousand resamples however long the values are."""
    values = np.random.default_rng(0).random(5_000)
    found = resampled(values, lambda drawn: drawn.mean(axis=-1))
    assert len(found) == 1000
    np.testing.assert_array_equal(found, resampled(values, lambda drawn: drawn.mean(axis=-1)))
    assert abs(found.std() - values.std() / np.sqrt(5_000)) < 1e-3


def trials(times, problem=None, config=None, noise=None, half_a=None, half_b=None):
    """Two problems with three configs each unless told otherwise."""
    times = np.array(times, dtype=float)
    unknown = np.full(len(times), np.nan)
    return Trials(
        np.array(problem if problem is not None else [0, 0, 0, 1, 1, 1]),
        np.array(config if config is not None else [0, 1, 2, 0, 1, 2]),
        times,
        unknown if noise is None else np.array(noise, dtype=float),
        unknown if half_a is None else np.array(half_a, dtype=float),
        unknown if half_b is None else np.array(half_b, dtype=float),
    )


def test_a_scorecard_has_every_figure_and_none_where_there_is_nothing_to_choose():
    """Problems on which nothing worked do not count; a chosen failure scores 0."""
    made = trials([10.0, 20.0, np.inf, np.inf, np.inf, np.inf])
    card = scorecard(made, Predicted(np.array([2.0, 3.0, 1.0, 1.0, 2.0, 3.0]), np.full(6, 10.0)))
    assert card["n_problems"] == 1
    assert value(card, "efficiency_mean") == 0.0
    assert value(card, "mape") == pytest.approx(0.25)
    assert card["coverage_90"] is None
    assert card["noise_ceiling"] is None
    single = trials([10.0, 20.0], [0, 1], [0, 0])
    assert scorecard(single, Predicted(np.array([1.0, 1.0])))["efficiency_mean"] is None


def test_measuring_the_k_best_scored_gets_more_with_k():
    """1 takes the choice, 2 the better of two, 3 everything."""
    made = trials([10.0, 20.0, 40.0, 30.0, 15.0, 60.0])
    curve = top_k(made, np.array([2.0, 1.0, 3.0, 2.0, 3.0, 1.0]))
    assert [point["k"] for point in curve] == [1, 2, 3]
    assert [point["efficiency_mean"] for point in curve] == pytest.approx([(0.5 + 0.25) / 2, (1.0 + 0.5) / 2, 1.0])
    assert [point["hit"] for point in curve] == [0.0, 0.5, 1.0]
