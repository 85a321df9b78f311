"""`compare`: the rule behind each verdict, on arrays made for it; then two models paired on what neither has seen."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.errors import InvalidValue
from kerncast.evaluating import Limits, compare, evaluate
from kerncast.evaluating.compare import judge
from kerncast.library.registry import FAMILIES
from kerncast.testing.models import TILES, synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

COUNT = 200
GOOD = np.linspace(0.90, 1.0, COUNT)
EVEN = np.tile([1.0, -1.0], COUNT // 2)
WIDE = Limits(max_p10=100.0, max_median=100.0)


def verdict_of(change, old=GOOD, margin=0.0, limits=None):
    """What `judge` says of efficiencies that change so."""
    old, new = np.broadcast_arrays(old, old + change)
    points = pl.DataFrame({"problem.M": np.arange(len(old)), "device": "a100", "old_efficiency": old, "new_efficiency": new})
    return judge(old, new, np.full(len(old), margin), limits or Limits(), points, {}, "efficiency")


def one_down(drop, others=0.0, place=50):
    change = np.full(COUNT, others)
    change[place] = -drop
    return change


def lowest_down(drop, others=0.0):
    """P10 falls, and with 15 % of the problems hardly the mean."""
    return np.where(np.arange(COUNT) < 30, -drop, others)


CASES = {
    "all better": ("BETTER", 0.01, {}, "interval"),
    "nothing changed": ("SAME", 0.0, {}, "interval"),
    "a little up and down": ("SAME", 0.002 * EVEN, {}, "interval"),
    "mean down for certain": ("WORSE", -0.006 - 0.001 * EVEN, {}, r"mean efficiency down 0\.60% \(limit 0\.50%\)"),
    "median down for certain": (
        "WORSE", np.where(np.abs(np.arange(COUNT) - 100) < 45, -0.009, 0.0), {}, r"median efficiency down 0\.\d+%",
    ),
    "P10 down for certain": ("WORSE", lowest_down(0.03), {}, r"p10 efficiency down [23]\.\d+% \(limit 2\.00%\)"),
    "one problem alone, all others up": (
        "WORSE", one_down(0.15, 0.01), {}, r"1 problem down more than 10% .*worst: M=50, 92\.5% to 77\.5%",
    ),
    "one problem down, but within its noise": ("BETTER", one_down(0.15, 0.01), {"margin": 0.08}, "interval"),
    "one problem down by less than its limit": ("BETTER", one_down(0.09, 0.01), {}, "interval"),
    "mean down, but not for certain": (
        "AMBIGUOUS", np.where(np.arange(COUNT) % 40 == 0, -0.99, 0.012), {"limits": Limits(max_problem=100.0)}, "mean .* down",
    ),
    "P10 down, mean up for certain": ("AMBIGUOUS", lowest_down(0.03, 0.02), {}, "p10 efficiency down"),
    "a loss within the limits": ("AMBIGUOUS", -0.002, {}, "a loss, within the limits"),
    "no breach, but an interval that is too wide": (
        "AMBIGUOUS", 0.09 * EVEN, {"old": np.full(COUNT, 0.9), "limits": WIDE}, "more problems",
    ),
    "a wide limit of the mean does not widen what is the same": (
        "AMBIGUOUS", 0.09 * EVEN, {"old": np.full(COUNT, 0.9), "limits": replace(WIDE, max_mean=5.0)}, "to decide",
    ),
    "a narrow limit of the mean narrows it": ("AMBIGUOUS", 0.01 * EVEN, {"limits": Limits(max_mean=0.05)}, "more problems"),
    "the same without that limit": ("SAME", 0.01 * EVEN, {}, "interval"),
    "limits are adjustable": ("AMBIGUOUS", -0.006, {"limits": Limits(max_mean=2.0, max_median=2.0)}, "within the limits"),
    "one limit of nothing": ("WORSE", one_down(0.001), {"limits": Limits(max_problem=0.0)}, "1 problem down more than 0%"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_follows_the_rule_and_says_why(case):
    """WORSE needs a breach and certainty, or one problem alone; BETTER and SAME allow no breach."""
    expected, change, options, why = CASES[case]
    found = verdict_of(change, **options)
    assert found.verdict == expected
    assert pl.Series(found.reasons).str.contains(why).any(), found.reasons
    interval = found.as_json()["mean_difference"]
    assert interval["lower"] <= interval["value"] <= interval["upper"]


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "AMBIGUOUS"), (0.05, "AMBIGUOUS"), (-0.15, "WORSE")])
def test_one_problem_has_no_interval_and_so_no_certainty(change, verdict):
    """Null bounds, said in words; only the limit of one problem can still be breached."""
    found = verdict_of(np.array([change]), old=np.array([0.8]))
    assert (found.verdict, found.as_json()["mean_difference"]["lower"]) == (verdict, None)
    assert "has no interval" in found.reasons[-1]


def test_the_summary_counts_what_changed():
    """Improved, same and degraded; the largest drop; both sides' figures."""
    summary = verdict_of(np.array([0.01, 0.0, -0.05, 1e-12]), old=np.array([0.5, 0.6, 0.7, 0.8])).as_json()
    assert (summary["improved"], summary["same"], summary["degraded"], summary["n_problems"]) == (1, 2, 1, 4)
    np.testing.assert_allclose(summary["worst_drop"], 0.05)
    np.testing.assert_allclose(summary["new"]["mean"], summary["old"]["mean"] - 0.01)
    assert set(summary["old"]) == set(summary["new"]) == {"mean", "median", "p10", "min"}


@pytest.mark.parametrize("value", [-1.0, 150.0, float("nan")])
def test_a_limit_that_is_no_share_is_refused(value):
    """A NaN would never be breached."""
    with pytest.raises(InvalidValue, match=r"`max_p10` is a drop of efficiency from 0 to 100 %, got"):
        Limits(max_p10=value)


RECIPE = Recipe("gbdt", {"trees": 15, "library_trees": 4, "leaves": 7, "lr": 0.3}, folds=2, threads=1)
POOR = Recipe("roofline", folds=2)
SHAPE = ["problem.M", "problem.N", "problem.K"]
ROWS = synthetic_rows(problems=60)
SHAPES = ROWS.select(SHAPE).unique(maintain_order=True)


def part(start, count):
    return ROWS.join(SHAPES.slice(start, count), on=SHAPE, how="semi")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models `a` and `b` trained on 20 problems each, 5 of them common; `poor`, which cannot choose; `rest`, unseen by all."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d_a", part(0, 20))
    synthetic_dataset(folder / "d_b", part(15, 20))
    synthetic_dataset(folder / "all", ROWS)
    train(folder / "d_a", folder / "a", RECIPE)
    train(folder / "d_b", folder / "b", RECIPE)
    train(folder / "d_a", folder / "poor", POOR)
    return folder


def test_problems_that_either_model_has_seen_are_left_out(home):
    """35 of 60 were trained on by one or the other; all of them count when asked for, and are labelled."""
    found = compare(home / "a", home / "b", [home / "all"])
    assert (found.as_json()["n_problems"], found.as_json()["problems_seen_in_training"]) == (25, 35)
    assert found.as_json()["includes_training_data"] is False
    assert found.problems.join(SHAPES.head(35), on=SHAPE, how="semi").is_empty()
    whole = compare(home / "a", home / "b", [home / "all"], include_seen=True)
    assert (whole.as_json()["n_problems"], whole.as_json()["includes_training_data"]) == (60, True)
    with pytest.raises(InvalidValue, match=r"all 20 problems were trained on by .*a or .*b: give other data"):
        compare(home / "a", home / "b", [home / "d_a"])


def test_a_model_is_the_same_as_itself_and_worse_when_it_cannot_choose(home):
    """Agreement is the share of equal choices; efficiencies are those that `evaluate` reports."""
    same = compare(home / "a", home / "a", [home / "all"])
    assert (same.verdict, same.as_json()["agreement"], same.as_json()["same"]) == ("SAME", 1.0, 40)
    found = compare(home / "a", home / "poor", [home / "all"])
    assert (found.verdict, found.as_json()["measure"]) == ("WORSE", "efficiency")
    for side, name in (("old", "a"), ("new", "poor")):
        overall = evaluate(home / name, [home / "all"]).as_json()["overall"]
        np.testing.assert_allclose(found.as_json()[side]["mean"], overall["efficiency_mean"]["value"])
    assert found.as_json()["agreement"] == found.problems["same_choice"].mean() < 1.0


def test_configs_that_a_model_does_not_choose_from_are_counted_and_said(home, tmp_path):
    """Models rank them all the same, so a verdict and figures on them alone would say nothing about what `select` runs."""
    rows = synthetic_rows(problems=8, seed=9, tiles=[*TILES[:2], (256, 16, 16, 2, 8)])
    first = pl.col("problem.M") == rows["problem.M"][0]
    rows = rows.filter(~first | (pl.col("config.BLOCK_M") == 256))
    data = synthetic_dataset(tmp_path / "new", rows)
    verdict = compare(home / "a", home / "b", data, include_seen=True)
    judged = evaluate(home / "b", data, include_seen=True)
    for summary, text in ((verdict.as_json(), str(verdict)), (judged.as_json(), str(judged))):
        found = summary["unknown_configs"]
        assert (found["configs"], found["of_configs"]) == (1, 4)
        assert found["problems"] == found["of_problems"] == rows.select(SHAPE).n_unique()
        assert found["problems_without_others"] == rows.filter(first).select(SHAPE).n_unique()
        assert "! 1 of 4 configs are not among those that worked in training" in text
        assert "Train on data that have them" in text
    assert evaluate(home / "b", home / "all", include_seen=True).as_json()["unknown_configs"] is None


def test_a_tier_is_judged_by_what_it_would_run(home):
    """Per problem the measured efficiency of the tier's answer, or of its fallback outside the trained range."""
    found = compare(home / "a", home / "b", [home / "all"], tier="tree")
    assert found.as_json()["tier"] == "tree"
    assert found.as_json()["n_problems"] + found.as_json()["not_tried"] == 25
    asked = [Selector(home / name) for name in "ab"]
    times = {}
    for row in ROWS.iter_rows(named=True):
        config = {name: row[f"config.{name}"] for name in asked[0].model.family.config.parameters}
        time_ns = row["time_ns"] if row["status"] == "ok" else np.inf
        times.setdefault(tuple(row[name] for name in SHAPE), {})[tuple(config.values())] = time_ns
    statuses = set()
    for point in found.problems.iter_rows(named=True):
        own = times[tuple(point[name] for name in SHAPE)]
        for side, selector in zip(("old", "new"), asked, strict=True):
            problem = {name.removeprefix("problem."): value for name, value in point.items() if name.startswith("problem.")}
            answer = selector.select(problem, "tree")
            statuses.add(str(answer.status))
            chosen = tuple((answer.config or answer.fallback).as_dict().values())
            np.testing.assert_allclose(point[f"{side}_efficiency"], min(own.values()) / own[chosen])
    assert statuses == {"ok", "out_of_range"}
    assert compare(home / "a", home / "a", [home / "all"], tier="portfolio").verdict == "SAME"
    worse = compare(home / "a", home / "poor", [home / "all"], tier="full")
    assert not worse
    assert "full tier" in str(worse)
    with pytest.raises(InvalidValue, match=r"`tier` must be one of tree, portfolio, full, got 'quick'"):
        compare(home / "a", home / "b", [home / "all"], tier="quick")


def test_rows_of_pooled_devices_are_read_with_the_numbers_of_their_own(tmp_path):
    """The figures of each model are those that `evaluate` gives, on devices that want other kernels."""

    def both(rows):
        slow_when_large = pl.col("time_ns") * pl.col("config.BLOCK_M").fill_null(64) ** 2 / 2000
        return pl.concat([rows, rows.with_columns(device=pl.lit("h100"), time_ns=slow_when_large)])

    synthetic_dataset(tmp_path / "d", both(part(0, 20)))
    synthetic_dataset(tmp_path / "new", both(part(20, 15)))
    train(tmp_path / "d", tmp_path / "a", RECIPE, pool=True)
    train(tmp_path / "d", tmp_path / "b", Recipe("gbdt", {"trees": 4, "library_trees": 4}, folds=2, threads=1), pool=True)
    summary = compare(tmp_path / "a", tmp_path / "b", [tmp_path / "new"]).as_json()
    assert summary["n_problems"] == 30
    for side, name in (("old", "a"), ("new", "b")):
        overall = evaluate(tmp_path / name, [tmp_path / "new"]).as_json()["overall"]
        np.testing.assert_allclose(summary[side]["mean"], overall["efficiency_mean"]["value"])
        np.testing.assert_allclose(summary[side]["p10"], overall["efficiency_p10"]["value"])


def test_with_nothing_to_choose_accuracy_is_compared_and_another_family_is_refused(home, tmp_path):
    """The smaller of predicted and measured over the larger: 1 is exact."""
    rng = np.random.default_rng(0)
    sizes = {f"problem.{name}": 32 * rng.integers(1, 40, 240) for name in ("M", "K", "N")}
    rows = pl.DataFrame({"device": "wormhole_b0", **sizes, "problem.num_cores": 8, "status": "ok"})
    rows = rows.with_columns(time_ns=1e3 + pl.col("problem.M") * pl.col("problem.N") * pl.col("problem.K") / 1e3)
    single = FAMILIES.get("matmul_sharded/single")
    synthetic_dataset(tmp_path / "d", rows.head(200), single)
    synthetic_dataset(tmp_path / "new", rows.tail(40), single)
    for name, trees in (("one", 1), ("many", 60)):
        train(
            tmp_path / "d", tmp_path / name, Recipe("gbdt", {"trees": trees, "library_trees": 4, "lr": 0.3}, folds=2, threads=1)
        )
    found = compare(tmp_path / "one", tmp_path / "many", [tmp_path / "new"])
    assert found.as_json()["measure"] == "accuracy"
    assert found.as_json()["new"]["mean"] > found.as_json()["old"]["mean"]
    assert 0 < found.problems["new_efficiency"].min() <= found.problems["new_efficiency"].max() <= 1
    with pytest.raises(
        InvalidValue, match=r"is a model of gemm/triton, .* of matmul_sharded/single: only models of one family"
    ):
        compare(home / "a", tmp_path / "one", [home / "all"])
