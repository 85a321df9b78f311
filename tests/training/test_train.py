"""Training end to end: what a model directory holds, what is refused, what survives an interruption."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.answering.selector import Selector
from kerncast.core.expr import where
from kerncast.core.op import Family
from kerncast.core.progress import Progress
from kerncast.data import Dataset
from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError
from kerncast.evaluating import evaluate
from kerncast.learning.learners import gbdt, growing
from kerncast.library import devices
from kerncast.library.ops.gemm import gemm
from kerncast.library.registry import FAMILIES
from kerncast.models.limits.configs import expectation_of
from kerncast.models.model import Model
from kerncast.models.store.recheck import sample
from kerncast.models.store.store import Store
from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.regenerating.updating import OutOfFold
from kerncast.testing.models import synthetic_dataset, synthetic_rows, synthetic_table
from kerncast.training import Recipe, train
from kerncast.training.procedure import Procedure

KNOBS = {"trees": 6, "library_trees": 4, "leaves": 7, "lr": 0.3}
RECIPE = Recipe("gbdt", KNOBS, folds=3, threads=1)
FIGURES = (
    "efficiency_mean efficiency_p10 efficiency_p1 efficiency_min top1 efficiency_gmean noise_ceiling "
    "mape median_ape ape_p95 rmsre rrmse r2 r2_log coverage_90"
).split()
FILES = {
    "model.json", "evaluation.json", "importances.json", "candidates.parquet", "problems.parquet", "predictions.parquet",
    "MODEL_CARD.md", "time.0.lgbm.gz", *(f"rank.{bag}.lgbm.gz" for bag in range(4)), "valid.0.lgbm.gz",
    "library.npz", "target.npz",
}  # fmt: skip


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_model_directory_says_what_it_is_and_how_good(home):
    """Every file, every figure with its interval, baselines, data and software."""
    assert set(contents(home / "m")) == FILES
    model = Model.load(home / "m")
    overall = model.evaluation["overall"]
    assert overall["n_problems"] == 30
    for name in FIGURES:
        assert overall[name] is None or set(overall[name]) == {"value", "lower", "upper"}
    measured = [overall[name] for name in FIGURES if overall[name] is not None]
    assert len(measured) == len(FIGURES)
    assert all(figure["lower"] <= figure["value"] <= figure["upper"] for figure in measured)
    assert {"random", "best_single", "portfolio_8_oracle", "roofline"} <= set(model.evaluation["baselines"])
    assert overall["efficiency_mean"]["value"] > model.evaluation["baselines"]["random"]["efficiency_mean"]["value"]
    manifest = model.manifest
    assert (manifest.family, manifest.kind, manifest.target) == ("gemm/triton", "gbdt", "relative")
    assert manifest.data.digest == Dataset.open(home / "d").digest
    assert (manifest.data.rows, manifest.data.failures, manifest.data.problems) == (300, 30, 30)
    assert model.seen.height == 30
    assert model.candidates.height == 9  # one of the ten never worked
    assert set(json.loads((home / "m" / "importances.json").read_text())) == set(manifest.features.names)
    assert "gemm/triton" in (home / "m" / "MODEL_CARD.md").read_text()
    assert [item.name for item in home.iterdir() if item.name.startswith(".")] == []


def test_a_model_predicts_a_frame_and_its_interval_holds_the_time(home):
    """time_ns between lower_ns and upper_ns; a column that is missing, or a value out of range, is named."""
    model = Model.load(home / "m")
    frame = Dataset.open(home / "d").read().head(7)
    found = model.predict_vectors(frame.select(pl.col("^(problem|config)\\..*$")))
    assert ((found["lower_ns"] <= found["time_ns"]) & (found["time_ns"] <= found["upper_ns"])).all()
    with pytest.raises(InvalidValue, match=r"no column 'problem\.M'"):
        model.predict_vectors(frame.drop("problem.M"))
    with pytest.raises(InvalidValue, match=r"problem\.M must be"):
        model.predict_vectors(frame.with_columns(pl.lit(0).alias("problem.M")))


def test_the_same_inputs_and_seed_give_the_same_bytes(home, tmp_path):
    """All files; another seed gives another model."""
    train(home / "d", tmp_path / "m", RECIPE)
    assert contents(tmp_path / "m") == contents(home / "m")
    train(home / "d", tmp_path / "other", Recipe("gbdt", KNOBS, folds=3, threads=1, seed=1))
    assert contents(tmp_path / "other") != contents(home / "m")


class Broken(Family):
    """A family with a feature that is infinite for M = 8192."""

    id = "gemm/broken"
    op = gemm

    def features(self, p, c, hw):
        return {"blocks": where(p.M == 8192, p.M * 1e307, p.M)}


def failed_only(rows):
    return rows.with_columns(status=pl.lit("crash"), time_ns=pl.lit(None, pl.Float64))


def contradicted(rows):
    again = rows.filter(pl.col("status") == "ok").head(1).with_columns(time_ns=pl.col("time_ns") * 1e4)
    return pl.concat([rows, again])


REFUSED = {
    "no valid rows": (failed_only, {}, "no row of gemm/triton in .* has status ok"),
    "one problem": (lambda rows: rows.head(10), {}, "there is only one problem"),
    "one problem that works": (
        lambda rows: pl.concat([rows.head(10), failed_only(rows[10:])]),
        {},
        "problems were tried and only one has rows that worked",
    ),
    "fewer problems than folds": (lambda rows: rows.head(20), {}, "2 groups of problems worked and 3 folds .* `folds=2`"),
    "rows that contradict each other": (contradicted, {}, "1 measurements have contradictory repeats"),
    "another op": (lambda rows: rows, {"family": "matmul_sharded/single"}, "holds no rows of matmul_sharded/single"),
    "a filter that keeps nothing": (
        lambda rows: rows,
        {"where": ["problem.M>99999", "status=ok"]},
        "no row of gemm/triton in .* matches `where` 'problem.M>99999' and `where` 'status=ok'",
    ),
    "a filter that keeps failures": (
        lambda rows: rows,
        {"where": "status=out_of_memory"},
        "that matches `where` 'status=out_of_memory' has status ok",
    ),
    "two backends": (
        lambda rows: rows.with_columns(
            backend=pl.when(pl.col("problem.M") > 1024).then(pl.lit("cuda")).otherwise(pl.lit("cpu"))
        ),
        {},
        "2 backends .cpu, cuda., .*: keep one with `where` 'backend=…', or .* `pool`",
    ),
    "two devices": (
        lambda rows: rows.with_columns(device=pl.when(pl.col("problem.M") > 1024).then(pl.lit("h100")).otherwise("device")),
        {},
        "2 devices .a100, h100., .*: keep one with `where` 'device=…', or .* `pool`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_cannot_be_learned_from_are_refused_and_nothing_is_written(tmp_path, case):
    """One sentence; the directory holds what it held before."""
    change, arguments, why = REFUSED[case]
    synthetic_dataset(tmp_path / "d", change(synthetic_rows(problems=12)))
    with pytest.raises(InvalidValue, match=why) as caught:
        train(tmp_path / "d", tmp_path / "deep" / "down" / "m", RECIPE, **arguments)
    assert "\n" not in str(caught.value)
    assert [item.name for item in tmp_path.iterdir()] == ["d"]


def test_a_feature_that_is_not_a_number_is_refused_with_its_name_and_row(tmp_path, monkeypatch):
    """A formula gone wrong is found before anything is learned."""
    broken = Broken()
    monkeypatch.setitem(FAMILIES.found, broken.id, broken)
    rows = (
        synthetic_rows(problems=60)
        .unique("problem.M")
        .select(pl.col("^problem\\..*$").exclude("problem.tf32"), "device", "status", "time_ns")
    )
    synthetic_dataset(tmp_path / "d", rows.with_columns(status=pl.lit("ok"), time_ns=pl.lit(5.0)), broken)
    with pytest.raises(InvalidValue, match=r"feature 'blocks' is 1\.79\S+e\+308 for problem\.M=8192 .*fix its formula"):
        train(tmp_path / "d", tmp_path / "m", RECIPE)
    assert [item.name for item in tmp_path.iterdir()] == ["d"]


def test_an_existing_directory_an_unknown_kind_and_an_unknown_knob_are_refused(home, tmp_path):
    """Before anything is fitted."""
    (tmp_path / "there").mkdir()
    for out, recipe, why in [
        (tmp_path / "there", RECIPE, "exists already"),
        (tmp_path / "m", Recipe("gdbt"), "unknown model 'gdbt': did you mean 'gbdt'"),
        (tmp_path / "m", Recipe("gbdt", {"epochs": 3}), "the model gbdt has no knob `epochs`"),
        (tmp_path / "m", Recipe("gbdt", {"trees": 0}), "^`trees` must be at least 1, got 0$"),
        (tmp_path / "m", Recipe("gbdt", target="speed"), "a target is one of"),
        (tmp_path / "m", Recipe("gbdt", folds=1), "at least 2 folds"),
    ]:
        with pytest.raises(KerncastError, match=why):
            train(home / "d", out, recipe)
    assert [item.name for item in tmp_path.iterdir()] == ["there"]


def test_numbers_that_mean_nothing_and_no_dataset_are_refused_in_python_too(tmp_path):
    """As sentences, before anything is read."""
    for name in ("seed", "tune", "hard_mining", "threads"):
        with pytest.raises(InvalidValue, match=f"{name} must be a whole number, 0 or more, got -1"):
            Recipe(**{name: -1})
    with pytest.raises(InvalidValue, match="there is no dataset to train on"):
        train([], tmp_path / "m")


def test_a_damaged_model_directory_is_refused_by_name(home, tmp_path):
    """A byte flipped anywhere in any file, a file gone, a newer version, another thing altogether."""
    rng = np.random.default_rng(0)
    for name, content in sorted(contents(home / "m").items()):
        for place in rng.integers(0, len(content), 12):
            folder = tmp_path / f"{name}{place}"
            shutil.copytree(home / "m", folder, dirs_exist_ok=True)
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(rng.integers(0, 8))
            (folder / name).write_bytes(damaged)
            if name == "model.json" and json_equal(bytes(damaged), content):
                continue
            with pytest.raises(BadFile) as caught:
                Model.load(folder)
            assert str(folder) in str(caught.value)
            assert "\n" not in str(caught.value)
    for name in FILES:
        shutil.copytree(home / "m", tmp_path / "gone" / name)
        (tmp_path / "gone" / name / name).unlink()
        with pytest.raises(BadFile, match=f"{name}"):
            Model.load(tmp_path / "gone" / name)
    newer = json.loads((home / "m" / "model.json").read_text()) | {"version": 99}
    shutil.copytree(home / "m", tmp_path / "newer")
    (tmp_path / "newer" / "model.json").write_text(json.dumps(newer))
    with pytest.raises(BadFile, match="is version 99, this kerncast reads up to version 1: upgrade"):
        Model.load(tmp_path / "newer")
    with pytest.raises(BadFile, match="is a dataset, not a model"):
        Model.load(home / "d")


def json_equal(one, other):
    """A flip between two kinds of white space changes nothing."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_an_op_with_nothing_to_choose_trains_a_model_of_times(tmp_path):
    """No config, no efficiency; every figure of the times."""
    rng = np.random.default_rng(0)
    sizes = {f"problem.{name}": 32 * rng.integers(1, 40, 30) for name in ("M", "K", "N")}
    rows = pl.DataFrame({"device": "wormhole_b0", **sizes, "problem.num_cores": 8, "status": "ok"})
    rows = rows.with_columns(time_ns=1e3 + pl.col("problem.M") * pl.col("problem.N") * pl.col("problem.K") / 1e3)
    synthetic_dataset(tmp_path / "d", rows, FAMILIES.get("matmul_sharded/single"))
    model = train(tmp_path / "d", tmp_path / "m", RECIPE)
    overall = model.evaluation["overall"]
    assert overall["efficiency_mean"] is None
    assert overall["mape"]["value"] < 10
    assert model.predict_vectors(kerncast.Dataset.open(tmp_path / "d").read().head(3))["time_ns"].is_finite().all()
    assert model.candidates["ok"].to_list() == [30]


def test_pooled_devices_train_one_model(tmp_path):
    """With `pool` both devices are in the manifest, and each can be predicted for."""
    rows = synthetic_rows(problems=20)
    other = rows.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2)
    synthetic_dataset(tmp_path / "d", pl.concat([rows, other]))
    model = train(tmp_path / "d", tmp_path / "m", RECIPE, pool=True)
    assert [device.name for device in model.manifest.devices] == ["a100", "h100"]
    frame = rows.filter(pl.col("status") == "ok").select(pl.col("^(problem|config)\\..*$"))
    slow, fast = (model.predict_vectors(frame, devices.get(name))["time_ns"].median() for name in ("a100", "h100"))
    assert fast < slow


@pytest.mark.parametrize("kind", ["gbdt", "mlp", "linear"])
def test_a_config_that_never_worked_in_training_is_chosen_last(tmp_path, kind):
    """Fewer failures than teach a forest, of the one that looks fastest: no fold chooses it, as none would be served it."""
    rows = synthetic_rows(problems=12, tiles=[(64, 64, 32, 3, 4), (128, 64, 32, 3, 4), (32, 32, 32, 2, 4)])
    broken = (pl.col("config.BLOCK_M") == 128).fill_null(False)
    rows = rows.with_columns(
        status=pl.when(broken).then(pl.lit("crash")).otherwise(pl.lit("ok")), time_ns=pl.when(~broken).then("time_ns")
    )
    synthetic_dataset(tmp_path / "d", rows)
    knobs = {"gbdt": KNOBS, "mlp": {"epochs": 2}, "linear": {}}[kind]
    model = train(tmp_path / "d", tmp_path / "m", Recipe(kind, knobs, folds=3, threads=1))
    assert model.evaluation["overall"]["efficiency_min"]["value"] > 0
    said = model.out_of_fold.with_columns(served=pl.Series(model.rank_rows(model.describe(model.out_of_fold)).score))
    failed, worked = (said.filter(pl.col("measured_ns").is_null() == missing) for missing in (True, False))
    for fold in range(3):
        mine = pl.col("fold") == fold
        assert failed.filter(mine)["score"].min() > worked.filter(mine)["score"].max()
    assert failed["served"].min() > worked["served"].max()


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    """One sentence that names --out and the reason, and speaks of space only where that is the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match=r"^could not write .*/file/m: Not a directory; choose another place$"):
        train(tmp_path / "nowhere", tmp_path / "file" / "m")


def test_hard_mining_is_reported_beside_what_it_replaces(home, tmp_path):
    """The same folds without it."""
    model = train(home / "d", tmp_path / "m", Recipe("gbdt", KNOBS, folds=3, threads=1, hard_mining=1))
    plain = Model.load(home / "m").evaluation["overall"]["efficiency_mean"]
    assert model.evaluation["without_hard_mining"]["efficiency_mean"] == plain


class Watch(Progress):
    """Notes the stages and in which of them something was fitted; may interrupt one."""

    def __init__(self, stop_at=None):
        self.stop_at, self.stages, self.fitted = stop_at, [], []

    def stage(self, name, number, of):
        self.stages.append(name)

    def step(self, what, done, of):
        if self.stages[-1] not in self.fitted:
            self.fitted.append(self.stages[-1])
        if self.stages[-1] == self.stop_at:
            raise KeyboardInterrupt


def test_an_interrupted_training_goes_on_with_the_folds_it_finished(home, tmp_path):
    """Stopped in fold 3 there is no model; the same call fits fold 3 and the rest, and the result is the same."""
    with pytest.raises(KeyboardInterrupt):
        train(home / "d", tmp_path / "m", RECIPE, progress=Watch("fold 3 of 3"))
    assert not (tmp_path / "m").exists()
    (kept,) = tmp_path.iterdir()
    assert sorted(item.name for item in kept.iterdir()) == ["0.npz", "1.npz"]
    (kept / "1.npz").write_bytes((kept / "1.npz").read_bytes()[:100])  # cut off, as by a full disk
    watch = Watch()
    train(home / "d", tmp_path / "m", RECIPE, progress=watch)
    assert watch.stages == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3", "the final fit"]
    assert watch.fitted == ["fold 2 of 3", "fold 3 of 3", "the final fit"]
    assert contents(tmp_path / "m") == contents(home / "m")
    assert [item.name for item in tmp_path.iterdir()] == ["m"]


def test_finished_folds_of_other_rows_are_not_taken_up(tmp_path):
    """Another filter that keeps as many rows of the same dataset is another training."""
    rows = synthetic_rows(problems=12)
    twin = rows.with_columns(pl.lit("bf16").alias("problem.dtype"), time_ns=pl.col("time_ns") * 3)
    synthetic_dataset(tmp_path / "d", pl.concat([rows, twin]))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "d", tmp_path / "m", RECIPE, where=["problem.dtype=fp16"], progress=Watch("the final fit"))
    watch = Watch()
    train(tmp_path / "d", tmp_path / "m", RECIPE, where=["problem.dtype=bf16"], progress=watch)
    assert watch.fitted == watch.stages


def test_folds_side_by_side_give_the_bytes_of_one_after_another(home, tmp_path):
    """Whatever the number of cores; each fold and the final fit are told of."""
    watch = Watch()
    train(home / "d", tmp_path / "m", Recipe("gbdt", KNOBS, folds=3, threads=3), progress=watch)
    assert contents(tmp_path / "m") == contents(home / "m")
    assert sorted(watch.stages) == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3", "the final fit"]


def test_an_interruption_of_folds_side_by_side_stops_them_all(home, tmp_path):
    """The same call then ends as if it had never been stopped."""
    recipe = Recipe("gbdt", KNOBS, folds=3, threads=2)
    with pytest.raises(KeyboardInterrupt):
        train(home / "d", tmp_path / "m", recipe, progress=Watch("the final fit"))
    assert not (tmp_path / "m").exists()
    train(home / "d", tmp_path / "m", recipe)
    assert contents(tmp_path / "m") == contents(home / "m")


def test_many_rows_of_many_groups_are_learned_from_without_a_search(tmp_path, monkeypatch):
    """The default number of trees is taken; where it is given, the groups set aside are asked as ever."""
    monkeypatch.setattr(growing, "MANY_ROWS", 100)
    monkeypatch.setattr(gbdt, "MANY_GROUPS", 20)
    asked = []
    rounds = growing.Grower.rounds
    monkeypatch.setattr(growing.Grower, "rounds", lambda self, name, *rest: asked.append(name) or rounds(self, name, *rest))
    procedure = Procedure(Recipe("gbdt", {"bags": 1, "library_trees": 0}).resolved(synthetic_table(), None))
    assert procedure.fit(synthetic_table()).options.trees == 300
    assert asked == []
    given = Procedure(Recipe("gbdt", KNOBS).resolved(synthetic_table(), None))
    given.fit(synthetic_table())
    assert set(asked) == {"time", "rank", "valid"}


@pytest.fixture(scope="module")
def blind(home):
    """A model trained without folds."""
    return train(home / "d", home / "blind", RECIPE, no_folds=True)


def test_without_folds_there_is_one_fit_and_it_says_that_it_was_not_evaluated(home, blind):
    """The weights are those of the model with folds; no figure, no interval, and the card says why."""
    judged = Model.load(home / "m")
    weights = [name for name in contents(judged.path) if name.endswith((".gz", ".npz"))]
    assert {name: contents(blind.path)[name] for name in weights} == {name: contents(judged.path)[name] for name in weights}
    assert (blind.evaluated, judged.evaluated, blind.manifest.folds, blind.manifest.interval) == (False, True, 0, None)
    assert (blind.evaluation["evaluated"], blind.evaluation["overall"]) == (False, {})
    assert "**Not evaluated.**" in (blind.path / "MODEL_CARD.md").read_text()
    assert blind.out_of_fold["score"].null_count() == blind.out_of_fold.height == judged.out_of_fold.height
    found = blind.predict_vectors(Dataset.open(home / "d").read().head(3).select(pl.col("^(problem|config)\\..*$")))
    assert "lower_ns" not in found.columns


def test_a_model_without_folds_is_judged_later_as_it_would_have_been(home, blind):
    """`evaluate` with a split refits the recipe's own folds."""
    later = evaluate(blind, [home / "d"], split="problem", threads=1).as_json()["overall"]
    assert later["efficiency_mean"] == Model.load(home / "m").evaluation["overall"]["efficiency_mean"]


def test_every_reader_copes_with_a_model_without_folds(home, blind, tmp_path):
    """Selecting, exporting, the store, rechecking and fair comparison know what was measured, and claim no efficiency."""
    assert expectation_of(blind) is None
    tiers = build_tiers(blind, TierOptions(samples=50))
    answer = Selector(blind, tiers=tiers).select({"M": 256, "N": 256, "K": 256, "dtype": "fp16", "layout": "rcr"})
    assert answer.config is not None
    assert (answer.lower_ns, answer.upper_ns, answer.efficiency) == (None, None, None)
    added = Store(tmp_path / "store").add(blind.path)
    assert (added.record.efficiency, added.record.mape) == (None, None)
    assert not sample(blind, 20)["chosen"].any()
    seen = Dataset.open(home / "d").read()
    assert OutOfFold(blind).fair(seen).is_empty()


def test_a_warm_start_without_folds_continues_on_everything(home, blind, tmp_path):
    """No hold-out, so no figures of its own nor of its base."""
    more = train(home / "d", tmp_path / "more", warm_start=home / "m", no_folds=True)
    assert not more.evaluated
    assert "warm_start" not in more.evaluation
    assert more.manifest.size["time_trees"] > blind.manifest.size["time_trees"]
