"""How much must be measured: the three curves, and what an active choice looks for."""

import numpy as np
import polars as pl
import pytest

from kerncast.core.progress import Progress
from kerncast.errors import InvalidValue
from kerncast.evaluating.refits import ACTIVE_SHARES, PROBLEM_SHARES, budget_curves
from kerncast.testing.models import synthetic_dataset, synthetic_rows, synthetic_table
from kerncast.training.procedure import Procedure, acquisition
from kerncast.training.train import Recipe, train


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset of 30 problems and a model of it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=30))
    train(folder / "d", folder / "m", Recipe("linear", folds=2))
    return folder


def test_the_three_curves_have_their_points(home):
    """Every share a point with its interval; more of the data is more vectors; both choices start from the same."""
    stages = []

    class Heard(Progress):
        def stage(self, name, number=1, of=1):
            stages.append((number, of))

    curves = budget_curves(home / "m", [home / "d"], threads=1, progress=Heard())
    assert set(curves) == {"problems", "configs", "active"}
    # Of ten configs, 5, 10 and 25 % are the same two: one point, which says 20 %.
    assert [point["share"] for point in curves["configs"]] == [0.2, 0.5, 1.0]
    total = len(PROBLEM_SHARES) + 3 + 2 * len(ACTIVE_SHARES)
    assert stages == [(number + 1, total) for number in range(total)]
    figures = {"problems", "vectors", "efficiency_mean", "lower", "upper", "efficiency_p10"}
    assert [set(point) for point in curves["problems"]] == [figures] * len(PROBLEM_SHARES)
    assert [set(point) for point in curves["configs"]] == [figures | {"share"}] * 3
    assert [set(point) for point in curves["active"]] == [{"vectors", "share", "random", "active"}] * len(ACTIVE_SHARES)
    for point in curves["problems"] + curves["configs"]:
        assert 0 <= point["lower"] <= point["efficiency_mean"] <= point["upper"] <= 1
    assert [point["problems"] for point in curves["problems"]] == [2, 4, 8, 14, 20]
    for name in ("problems", "configs", "active"):
        vectors = [point["vectors"] for point in curves[name]]
        assert vectors == sorted(set(vectors))
    # Two thirds of the problems, all of their vectors.
    assert curves["configs"][-1]["vectors"] == curves["problems"][-1]["vectors"] == 200
    assert curves["active"][0]["random"] == curves["active"][0]["active"]


def test_a_curve_needs_something_to_choose_and_problems_to_hold_out(home, tmp_path):
    """One sentence each, before anything is fitted."""
    with pytest.raises(InvalidValue, match="needs several configs per problem, gemm/triton has one here"):
        budget_curves(home / "m", [home / "d"], where=["config.kind=library"])
    synthetic_dataset(tmp_path / "d", synthetic_rows(problems=5))
    with pytest.raises(InvalidValue, match="needs 6 groups of problems that worked, got 5"):
        budget_curves(home / "m", [tmp_path / "d"])


def test_what_may_be_fastest_is_asked_for_before_what_is_surely_slow():
    """Of the vectors that are left, the best of each problem come before the slowest; the worth is a gain in log time."""
    table = synthetic_table(problems=60)
    table = table.take(table.ok)
    rng = np.random.default_rng(0)
    known = rng.random(len(table.problem)) < 0.5
    procedure = Procedure(
        Recipe("gbdt", {"trees": 40, "library_trees": 4, "leaves": 15, "lr": 0.2}, threads=1).resolved(table, None)
    )
    rest = table.take(~known)
    worth = acquisition(table.take(known), rest.rows, rest.problem, procedure)
    assert worth.shape == rest.problem.shape
    points = pl.DataFrame({"problem": rest.problem, "time": rest.time_ns, "worth": worth})
    points = points.with_columns(slower=pl.col("time") / pl.min("time").over("problem"))
    best, slow = points.filter(pl.col("slower") == 1.0)["worth"], points.filter(pl.col("slower") > 2.0)["worth"]
    assert best.median() > 0 > slow.median()
    first = points.sort("worth", descending=True).head(len(points) // 5)
    assert first["slower"].mean() < points["slower"].mean()
