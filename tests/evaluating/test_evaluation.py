"""`evaluate`: what is scored, what is held out, what is refused, and that the figures add up."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.core.progress import Progress
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.evaluating import evaluate
from kerncast.evaluating.evaluation import _remembered, folded_for, folds_of, recipe_of, refitted, table_for
from kerncast.learning.feature_rows import Featurizer
from kerncast.learning.metrics import Predicted, scorecard
from kerncast.learning.table import build_table
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models import model as models
from kerncast.models.measured import measured_by_model
from kerncast.models.model import Model
from kerncast.testing.models import FAMILY, synthetic_dataset, synthetic_rows
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe, train

RECIPE = Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7, "lr": 0.3}, folds=3, threads=1)
FIGURES = (
    "efficiency_mean efficiency_p10 efficiency_p1 efficiency_min top1 efficiency_gmean noise_ceiling "
    "efficiency_p50 mape median_ape ape_p95 rmsre rrmse mse_log rmse_log exp_rmse_log r2 r2_log coverage_90"
).split()
SHAPE = ["problem.M", "problem.N", "problem.K"]
OLD = synthetic_rows(problems=24, repeats=2)
UNSEEN = synthetic_rows(problems=20, seed=5).join(OLD, on=SHAPE, how="anti")
UNSEEN_PROBLEMS = UNSEEN.select(SHAPE).n_unique()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d`, a model `m` trained on it, and `new`, which holds some of its problems and others."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", OLD)
    seen = OLD.filter(pl.col("run_id") == "r0").join(
        OLD.select(SHAPE).unique(maintain_order=True).head(7), on=SHAPE, how="semi"
    )
    # A shape in another layout is as good as seen.
    twins = seen.head(10).with_columns(pl.lit("rrr").alias("problem.layout"))
    synthetic_dataset(folder / "new", pl.concat([UNSEEN, seen, twins]))
    train(folder / "d", folder / "m", RECIPE)
    return folder


@pytest.fixture(scope="module")
def found(home):
    """`m` judged on `new`."""
    return evaluate(home / "m", home / "new")


def test_only_problems_of_unseen_groups_are_scored_and_the_others_are_counted(home, found):
    """The twins in another layout are of groups that were trained on: 7 problems and 1 more."""
    assert found.as_json()["problems_seen_in_training"] == 8
    assert found.as_json()["includes_training_data"] is False
    assert found.as_json()["overall"]["n_problems"] == found.problems.height == UNSEEN_PROBLEMS
    assert found.problems.join(Model.load(home / "m").seen, on=SHAPE, how="semi").is_empty()
    assert found.rows.height == int((UNSEEN["status"] == "ok").sum())
    assert found.failures.height == int((UNSEEN["status"] != "ok").sum())


def test_where_all_was_seen_the_way_out_is_named_and_including_it_is_labelled(home):
    """One sentence with --split and --include-seen; then the figures say that they are of training data."""
    with pytest.raises(InvalidValue, match=r"all 24 problems were trained on by .*`split=problem`.*`include_seen`") as caught:
        evaluate(home / "m", [home / "d"])
    assert "\n" not in str(caught.value)
    summary = evaluate(home / "m", [home / "d"], include_seen=True).as_json()
    assert summary["includes_training_data"] is True
    assert (summary["problems_seen_in_training"], summary["overall"]["n_problems"]) == (24, 24)


def test_splitting_the_training_data_by_problem_fits_nothing_and_equals_a_refit_bit_for_bit(home):
    """What training said out of fold is taken up; with another filter the folds are fitted again."""
    stages = []

    class Heard(Progress):
        def stage(self, name, number=1, of=1):
            stages.append(name)

    heard = Heard()
    model = Model.load(home / "m")
    kept = evaluate(model, [home / "d"], split="problem", progress=heard)
    assert stages == []
    assert kept.as_json()["overall"] == model.evaluation["overall"]
    table = table_for(model, folded_for(model, [Dataset.open(home / "d")]))
    again, fold = refitted(model, table, "problem", 1, progress=heard)
    assert stages == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3"]
    ok = table.ok
    for column, values in (("predicted_ns", again.time_ns), ("score", again.score), ("lower_ns", again.lower_ns)):
        np.testing.assert_array_equal(kept.rows[column].to_numpy(), values[ok])
    assert len(np.unique(fold)) == 3
    evaluate(model, [home / "d"], split="problem", where=["problem.M>256"], threads=1, progress=heard)
    assert len(stages) == 6


def two_dtypes_two_devices():
    """Every shape as fp16 and int8 (another roofline, the same group) on two devices."""
    rows = synthetic_rows(problems=30)
    rows = pl.concat([rows, rows.with_columns(pl.lit("int8").alias("problem.dtype"), time_ns=pl.col("time_ns") / 2)])
    rows = pl.concat([rows, rows.with_columns(device=pl.lit("h100"))]).drop("key", "op", "family")
    machines = {name: devices.get(name) for name in ("a100", "h100")}
    return build_table(FAMILIES.get(FAMILY), schema.conform(FAMILIES.get(FAMILY), rows), machines, "x")


def test_the_out_of_fold_predictions_of_a_pooled_model_keep_their_device(tmp_path):
    """So the figures that training printed are found again without a fit, and problems of two devices stay apart."""
    rows = synthetic_rows(problems=8)
    other = rows.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2)
    synthetic_dataset(tmp_path / "d", pl.concat([rows, other]).drop("key", "op", "family"))
    model = train(tmp_path / "d", tmp_path / "m", Recipe("roofline", folds=2), pool=True)
    kept = model.out_of_fold
    assert kept.group_by("device").len().sort("device").rows() == [("a100", rows.height), ("h100", rows.height)]
    assert measured_by_model(model).problems.height == 16
    table = table_for(model, folded_for(model, [Dataset.open(tmp_path / "d")]))
    predicted, fold = _remembered(model, table)
    assert (predicted.time_ns == kept["time_ns"].to_numpy()).all()
    assert (fold == kept["fold"].to_numpy()).all()


def sides(fold, labels):
    """In how many folds each label occurs."""
    return pl.DataFrame({"fold": fold, "label": labels}).group_by("label").agg(pl.n_unique("fold"))["fold"]


@pytest.mark.parametrize(
    ("split", "folds", "together"),
    [("problem", 4, "group"), ("nk", 4, "nk"), ("size", 4, "group"), ("config", 4, "config"), ("device", 2, "device"),
     ("config", 99, "config")],
)  # fmt: skip
def test_a_split_holds_out_what_it_says(split, folds, together):
    """Nothing that a split keeps together is on both sides; there are as many folds as asked for, or as there can be."""
    table = two_dtypes_two_devices()
    frame = table.rows.frame
    nk = frame.select(pl.struct("problem.N", "problem.K").rank("dense")).to_series().to_numpy()
    labels = {"group": table.group, "nk": nk, "config": table.config, "device": table.device}[together]
    fold = folds_of(table, split, Recipe(folds=folds))
    assert len(np.unique(fold)) == min(folds, len(np.unique(labels)))
    assert (sides(fold, labels) == 1).all()
    if split == "size":
        largest = pl.DataFrame({"fold": fold, "group": table.group, "size": table.rows.roofline_ns}).with_columns(
            pl.max("size").over("group")
        )
        bands = largest.group_by("fold").agg(low=pl.min("size"), high=pl.max("size")).sort("fold")
        assert (bands["high"].head(3) < bands["low"].tail(3)).all()


def test_every_split_of_the_command_scores_all_problems(home):
    """Harder splits end to end: nothing is lost, and the baselines learn from problems they are not judged on."""
    for split in ("nk", "size", "config"):
        summary = evaluate(home / "m", [home / "d"], split=split, threads=1).as_json()
        assert (summary["split"], summary["overall"]["n_problems"]) == (split, 24)
        assert summary["baselines"]["best_single"]["n_problems"] == 24
        assert 0.3 < summary["baselines"]["best_single"]["efficiency_mean"]["value"] < 1.0


SINGLE = FAMILIES.get("matmul_sharded/single")


def sharded_rows(count, seed):
    rng = np.random.default_rng(seed)
    sizes = {f"problem.{name}": 32 * rng.integers(1, 40, count) for name in ("M", "K", "N")}
    rows = pl.DataFrame({"device": "wormhole_b0", **sizes, "problem.num_cores": 8, "status": "ok"})
    return rows.with_columns(time_ns=1e3 + pl.col("problem.M") * pl.col("problem.N") * pl.col("problem.K") / 1e3)


def software(rows):
    return pl.concat([rows.with_columns(software=pl.lit(name)) for name in ("v1", "v2")])


def changed(**columns):
    return lambda: (UNSEEN.with_columns(**columns), None)


def as_it_is():
    return UNSEEN, None


REFUSED = {
    "another device": (changed(device=pl.lit("h100")), {}, "trained on a100; 200 rows are of h100: .*device=a100"),
    "another dtype": (
        changed(**{"problem.dtype": pl.lit("bf16")}), {}, r"on fp16; 200 rows are of bf16: .*problem\.dtype=fp16"
    ),
    "another family": (lambda: (sharded_rows(5, 0), SINGLE), {}, "of gemm/triton; the data holds matmul_sharded/single"),
    "nothing worked": (changed(status=pl.lit("crash"), time_ns=pl.lit(None, pl.Float64)), {}, "has status ok"),
    "two software versions": (lambda: (software(UNSEEN), None), {}, r"2 software versions \(v1, v2\).*`where` 'software=…'"),
    "an unknown split": (as_it_is, {"split": "shape"}, "problem, size, config, device, nk for gemm, got 'shape'"),
    "seen problems beside a split": (
        as_it_is, {"split": "problem", "include_seen": True}, "`include_seen` cannot be combined with `split=problem`.*leave"
    ),
    "one device to split by": (as_it_is, {"split": "device"}, "needs rows of two devices; all are of a100"),
    "one config to split by": (as_it_is, {"split": "config", "where": ["config.kind=library"]}, "rows have the same config"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_cannot_judge_the_model_are_refused(home, tmp_path, case):
    """What is there, what is wanted, and the option to use."""
    make, options, why = REFUSED[case]
    rows, family = make()
    synthetic_dataset(tmp_path / "x", rows, family)
    with pytest.raises(InvalidValue, match=why) as caught:
        evaluate(home / "m", [tmp_path / "x"], **options)
    assert "\n" not in str(caught.value)


def test_every_figure_has_its_interval_and_stands_beside_the_baselines(found):
    """The keys that programs read."""
    summary = found.as_json()
    for card in (summary["overall"], *summary["baselines"].values()):
        assert isinstance(card["n_problems"], int)
        assert set(FIGURES) <= set(card)
        assert all(card[name] is None or set(card[name]) == {"value", "lower", "upper"} for name in FIGURES)
    # Nothing was measured at two different times.
    assert [name for name in FIGURES if summary["overall"][name] is None] == ["noise_ceiling"]
    assert summary["problems_measured_twice"] == 0
    assert {"random", "best_single", "portfolio_8_oracle", "library", "roofline"} == set(summary["baselines"])
    # The library's kernel is one of the configs: never better than the best, and what it costs is known.
    library = UNSEEN.filter(pl.col("status") == "ok").with_columns(best=pl.min("time_ns").over(SHAPE))
    share = library.filter(pl.col("config.kind") == "library").select((pl.col("best") / pl.col("time_ns")).mean()).item()
    np.testing.assert_allclose(summary["baselines"]["library"]["efficiency_mean"]["value"], share)


def test_parts_of_the_data_add_up_to_all_of_it(found):
    """Problems and rows of every way to cut them; the mean of the parts is the mean."""
    parts = pl.DataFrame(found.as_json()["slices"])
    assert {"M", "K", "kind"} <= set(parts["by"])
    for _, part in parts.group_by("of", "by"):
        assert part["n_problems"].sum() == UNSEEN_PROBLEMS
        assert part["n_rows"].sum() == found.rows.height
        mean = (part["efficiency_mean"].fill_null(0.0) * part["n_problems"]).sum() / UNSEEN_PROBLEMS
        np.testing.assert_allclose(mean, found.as_json()["overall"]["efficiency_mean"]["value"])


def test_the_worst_problems_come_first_with_what_was_chosen_and_what_was_best(home, found):
    """Sorted; the two configs are the ones that were measured so."""
    worst = evaluate(home / "m", [home / "new"], worst=5).as_json()["worst"]
    assert len(worst) == 5
    assert worst == found.as_json()["worst"][:5]
    efficiencies = [entry["efficiency"] for entry in worst]
    assert efficiencies == sorted(found.problems["efficiency"].to_list())[:5]
    first = worst[0]
    for part in ("chosen", "best"):
        same = [pl.col(f"problem.{name}") == value for name, value in first["problem"].items()]
        same += [pl.col(f"config.{name}") == value for name, value in first[part].items()]
        assert UNSEEN.filter(*same)["time_ns"].to_list() == [first[f"{part}_ns"]]
    assert first["efficiency"] == first["best_ns"] / first["chosen_ns"]


def test_a_config_value_is_shown_where_it_is_best_beside_where_it_is_chosen(home, found, tmp_path):
    """A value that is best but never chosen has a line, with 0 chosen and what the choices lose there; the sums are right."""
    lines = [line for line in found.slices if line.of == "chosen config" and line.by == "kind"]
    assert sum(line.n_best for line in lines) == sum(line.n for line in lines) == UNSEEN_PROBLEMS
    best, chosen = (found.problems[f"{side}.kind"].cast(str) for side in ("best", "chosen"))
    for line in lines:
        there = (best == line.value).to_numpy()
        assert (line.n_best, line.n_agreed) == (there.sum(), (there & (chosen == line.value).to_numpy()).sum())
    # Libraries 100 times faster than the model can know: always best, never chosen.
    library = pl.col("config.kind") == "library"
    synthetic_dataset(
        tmp_path / "x",
        UNSEEN.with_columns(pl.when(library).then(pl.col("time_ns") / 1e4).otherwise("time_ns").alias("time_ns")),
    )
    model = Model.load(home / "m")
    slowest = model.rank_rows
    model.rank_rows = lambda rows: replace(found := slowest(rows), score=found.score + 1e6 * rows.is_library)
    again = evaluate(model, [tmp_path / "x"])
    line = next(line for line in again.slices if line.value == "library")
    assert (line.n, line.n_agreed, line.efficiency_mean, line.mape is None) == (0, 0, None, False)
    assert line.n_best == UNSEEN_PROBLEMS
    assert line.efficiency_mean_where_best == pytest.approx(again.overall.efficiency.mean.value)
    assert re.search(rf"kind +library +{UNSEEN_PROBLEMS} +0 +0 +\d", str(again))


def test_rates_are_the_ops_work_over_the_times(found):
    """TFLOPS and GB/s of the chosen and the best, from 2MNK and the bytes of A, B and C moved once."""
    points = found.problems
    m, n, k = (points[name].cast(float) for name in SHAPE)
    np.testing.assert_allclose(points["best_tflops"], 2 * m * n * k / points["best_ns"] / 1e3)
    np.testing.assert_allclose(points["best_bandwidth_gb_s"], 2 * (m * k + k * n + m * n) / points["best_ns"])
    assert found.tflops.best.p50 == pytest.approx(points["best_tflops"].median())
    assert found.tflops.chosen.max == points["chosen_tflops"].max()
    assert found.bandwidth_gb_s.best.p10 == pytest.approx(np.quantile(points["best_bandwidth_gb_s"], 0.1))
    assert found.worst[0].chosen_tflops == pytest.approx(found.worst[0].best_tflops * found.worst[0].efficiency)


def test_the_worst_predictions_are_the_rows_that_are_furthest_off(home, found):
    """In either direction, chosen or not, each with its own config; as many as asked."""
    off = (found.rows["predicted_ns"] / found.rows["measured_ns"]).log().abs().sort(descending=True)
    assert [abs(np.log(line.ratio)) for line in found.worst_predictions] == pytest.approx(off.head(20).to_list())
    first = found.worst_predictions[0]
    same = [pl.col(f"problem.{name}") == value for name, value in first.problem.items()]
    same += [pl.col(f"config.{name}") == value for name, value in first.config.items()]
    (row,) = found.rows.filter(*same).iter_rows(named=True)
    assert (row["measured_ns"], row["predicted_ns"]) == (first.measured_ns, first.predicted_ns)
    assert first.tflops == pytest.approx(row["flops"] / row["measured_ns"] / 1e3)
    listed = found.as_json(3)
    assert (len(listed["worst"]), len(listed["worst_predictions"])) == (3, 3)


def failing(condition):
    """The unseen rows, with a crash where a condition holds."""
    return UNSEEN.with_columns(
        status=pl.when(condition).then(pl.lit("crash")).otherwise("status"), time_ns=pl.when(~condition).then("time_ns")
    )


def test_choosing_what_failed_scores_nothing(home, found, tmp_path):
    """The chosen config of one problem is made to fail; on the others nothing works, and they are left out."""
    point = found.problems.filter(pl.col("chosen.kind") == "triton").row(0, named=True)
    chosen = [pl.col(f"config.{name.split('.')[1]}").eq_missing(point[name]) for name in point if name.startswith("chosen.")]
    here = pl.all_horizontal([pl.col(name) == point[name] for name in SHAPE])
    synthetic_dataset(tmp_path / "x", failing(~here | pl.all_horizontal(chosen)))
    again = evaluate(home / "m", [tmp_path / "x"])
    overall = again.as_json()["overall"]
    assert (overall["n_problems"], overall["efficiency_mean"]["value"], overall["efficiency_gmean"]["value"]) == (1, 0.0, 0.0)
    (entry,) = again.as_json()["worst"]
    assert (entry["efficiency"], entry["chosen_ns"]) == (0.0, None)


def test_a_label_that_is_chosen_and_never_works_is_part_of_the_table(home, found, tmp_path):
    """It has no row that worked, and all of the loss."""
    synthetic_dataset(tmp_path / "x", failing(pl.col("config.kind") == "triton"))
    summary = evaluate(home / "m", [tmp_path / "x"]).as_json()
    kinds = {line["value"]: line for line in summary["slices"] if line["by"] == "kind"}
    assert kinds["triton"]["n_problems"] == int((found.problems["chosen.kind"] == "triton").sum()) > 0
    assert (kinds["triton"]["efficiency_mean"], kinds["triton"]["n_rows"], kinds["triton"]["mape"]) == (0.0, 0, None)
    assert kinds["triton"]["n_problems"] + kinds["library"]["n_problems"] == UNSEEN_PROBLEMS


def test_an_op_with_nothing_to_choose_is_judged_by_its_times(tmp_path):
    """No efficiency, no choosing baselines; the worst are those whose time is furthest off."""
    synthetic_dataset(tmp_path / "d", sharded_rows(30, 0), SINGLE)
    synthetic_dataset(tmp_path / "new", sharded_rows(15, 1), SINGLE)
    train(tmp_path / "d", tmp_path / "m", RECIPE)
    found = evaluate(tmp_path / "m", [tmp_path / "new"])
    assert found.as_json()["overall"]["efficiency_mean"] is None
    assert found.as_json()["overall"]["mape"]["value"] > 0
    assert {"random", "best_single"}.isdisjoint(found.as_json()["baselines"])
    off = [abs(np.log(entry["predicted_ns"] / entry["best_ns"])) for entry in found.as_json()["worst"]]
    assert off == sorted(off, reverse=True)
    assert len(off) == 15
    assert all(line["efficiency_mean"] is None for line in found.as_json()["slices"])


def test_pooled_devices_and_a_directory_of_datasets_are_judged_together(tmp_path):
    """A problem on another device is another problem; a cut by device is among the parts."""
    both = pl.concat([OLD, OLD.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2)])
    synthetic_dataset(tmp_path / "d", both)
    train(tmp_path / "d", tmp_path / "m", RECIPE, pool=True)
    synthetic_dataset(tmp_path / "all" / "a100", UNSEEN)
    synthetic_dataset(tmp_path / "all" / "h100", UNSEEN.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2))
    summary = evaluate(tmp_path / "m", [tmp_path / "all"]).as_json()
    assert summary["overall"]["n_problems"] == 2 * UNSEEN_PROBLEMS
    parts = {line["value"]: line["n_problems"] for line in summary["slices"] if line["by"] == "device"}
    assert parts == {"a100": UNSEEN_PROBLEMS, "h100": UNSEEN_PROBLEMS}
    assert evaluate(tmp_path / "m", [tmp_path / "d"], include_seen=True).as_json()["problems_seen_in_training"] == 48


def test_features_are_computed_for_few_rows_at_a_time_and_the_answers_are_the_same(tmp_path, monkeypatch):
    """Those of a million rows take gigabytes; a pooled model describes each row by the device that it is of."""
    other = UNSEEN.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2)
    synthetic_dataset(tmp_path / "d", pl.concat([OLD, OLD.with_columns(device=pl.lit("h100"))]))
    synthetic_dataset(tmp_path / "new", pl.concat([UNSEEN, other]))
    train(tmp_path / "d", tmp_path / "m", RECIPE, pool=True)
    whole, heights = evaluate(tmp_path / "m", tmp_path / "new"), []
    compute = Featurizer._features
    monkeypatch.setattr(models, "BLOCK_ROWS", 50)
    monkeypatch.setattr(Featurizer, "_features", lambda *given: heights.append(given[1].height) or compute(*given))
    again = evaluate(tmp_path / "m", tmp_path / "new")
    assert max(heights) == 50
    assert sum(heights) == whole.rows.height + whole.failures.height
    assert again.as_json() == whole.as_json()
    assert again.rows.equals(whole.rows)


def test_several_seeds_are_refits_with_other_folds(home):
    """The first line is the evaluation itself; each further one equals a refit of the recipe with that seed."""
    model = Model.load(home / "m")
    found = kerncast.evaluate(model, home / "d", split="problem", seeds=3, threads=1, tiers=False, progress=None)
    own, *others = found.seeds
    assert own["efficiency_mean"] == found.overall.efficiency.mean.value
    table, recipe = table_for(model, folded_for(model, [Dataset.open(home / "d")])), recipe_of(model, 1)
    for line in others:
        asked = Procedure(replace(recipe, seed=line["seed"]))
        _, again, _ = cross_validate(table, asked)
        assert line["efficiency_mean"] == scorecard(table.trials, Predicted(again.score))["efficiency_mean"]["value"]
    assert [line["seed"] for line in found.seeds] == [recipe.seed, recipe.seed + 1, recipe.seed + 2]
    assert "refitted with 3 seeds: mean efficiency" in str(found)
    with pytest.raises(InvalidValue, match="`seeds` is how often `split` is refitted"):
        kerncast.evaluate(model, home / "d", seeds=3)
