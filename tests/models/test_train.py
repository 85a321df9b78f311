"""Training end to end: what a model directory holds, what is refused, what survives an interruption."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.expr import where
from kerncast.models import Model, Recipe, train
from kerncast.op import Family
from kerncast.ops.gemm import gemm
from kerncast.registry import FAMILIES
from kerncast.testing.models import synthetic_dataset, synthetic_rows

KNOBS = {"trees": 6, "leaves": 7, "lr": 0.3}
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


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` and a model `m` trained on it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=30, repeats=2))
    train(folder / "d", folder / "m", RECIPE)
    return folder


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
    found = model.predict(frame.select(pl.col("^(problem|config)\\..*$")))
    assert ((found["lower_ns"] <= found["time_ns"]) & (found["time_ns"] <= found["upper_ns"])).all()
    with pytest.raises(InvalidValue, match=r"no column 'problem\.M'"):
        model.predict(frame.drop("problem.M"))
    with pytest.raises(InvalidValue, match=r"problem\.M must be"):
        model.predict(frame.with_columns(pl.lit(0).alias("problem.M")))


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
    "one problem": (lambda rows: rows.head(10), {}, "there is one problem only"),
    "fewer problems than folds": (lambda rows: rows.head(20), {}, "2 groups of problems worked and 3 folds .* --folds 2"),
    "rows that contradict each other": (contradicted, {}, "1 measurements contradict themselves"),
    "another op": (lambda rows: rows, {"family": "matmul_sharded/single"}, "holds no rows of matmul_sharded/single"),
    "a filter that keeps nothing": (lambda rows: rows, {"where": ["problem.M>99999"]}, "has status ok"),
    "two devices": (
        lambda rows: rows.with_columns(device=pl.when(pl.col("problem.M") > 1024).then(pl.lit("h100")).otherwise("device")),
        {},
        "2 devices .a100, h100.: keep one with --where 'device=…', or .* --pool",
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
    with pytest.raises(InvalidValue, match=r"feature 'blocks' is 1\.79\S+e\+308 for problem\.M=8192 .*mend its formula"):
        train(tmp_path / "d", tmp_path / "m", RECIPE)
    assert [item.name for item in tmp_path.iterdir()] == ["d"]


def test_an_existing_directory_an_unknown_kind_and_an_unknown_knob_are_refused(home, tmp_path):
    """Before anything is fitted."""
    (tmp_path / "there").mkdir()
    for out, recipe, why in [
        (tmp_path / "there", RECIPE, "exists already"),
        (tmp_path / "m", Recipe("gdbt"), "unknown model 'gdbt': did you mean 'gbdt'"),
        (tmp_path / "m", Recipe("gbdt", {"epochs": 3}), "--epochs means nothing for the model gbdt"),
        (tmp_path / "m", Recipe("gbdt", {"trees": 0}), "model gbdt: .*>= 1"),
        (tmp_path / "m", Recipe("gbdt", target="speed"), "a target is one of"),
        (tmp_path / "m", Recipe("gbdt", folds=1), "at least 2 folds"),
    ]:
        with pytest.raises(KerncastError, match=why):
            train(home / "d", out, recipe)
    assert [item.name for item in tmp_path.iterdir()] == ["there"]


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
    with pytest.raises(BadFile, match="not a kerncast model"):
        Model.load(home / "d")


def json_equal(one, other):
    """A flip between two kinds of white space changes nothing."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_a_warm_start_from_a_damaged_model_writes_nothing(home, tmp_path):
    """The base is checked before the data are read."""
    shutil.copytree(home / "m", tmp_path / "base")
    (tmp_path / "base" / "time.0.lgbm.gz").write_bytes(b"")
    with pytest.raises(BadFile, match=r"time\.0\.lgbm\.gz differs from its checksum"):
        train(home / "d", tmp_path / "m", RECIPE, warm_start=tmp_path / "base")
    assert [item.name for item in tmp_path.iterdir()] == ["base"]


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
    assert model.predict(kerncast.Dataset.open(tmp_path / "d").read().head(3))["time_ns"].is_finite().all()
    assert model.candidates["ok"].to_list() == [30]


def test_pooled_devices_train_one_model(tmp_path):
    """With `pool` both devices are in the manifest, and each can be predicted for."""
    rows = synthetic_rows(problems=20)
    other = rows.with_columns(device=pl.lit("h100"), time_ns=pl.col("time_ns") / 2)
    synthetic_dataset(tmp_path / "d", pl.concat([rows, other]))
    model = train(tmp_path / "d", tmp_path / "m", RECIPE, pool=True)
    assert [device.name for device in model.manifest.devices] == ["a100", "h100"]
    frame = rows.filter(pl.col("status") == "ok").select(pl.col("^(problem|config)\\..*$"))
    slow, fast = (model.predict(frame, kerncast.get_device(name))["time_ns"].median() for name in ("a100", "h100"))
    assert fast < slow


def test_a_warm_start_reports_the_base_beside_itself(home, tmp_path):
    """Scored on one hold-out of new problems; the knobs that are not given are the base's."""
    synthetic_dataset(tmp_path / "new", synthetic_rows(problems=20, seed=9, slower=3.0))
    model = train(tmp_path / "new", tmp_path / "m", Recipe("gbdt", {"trees": 10}, threads=1), warm_start=home / "m")
    report = model.evaluation["warm_start"]
    assert report["hold_out_seen_by_base"] is False
    assert report["continued"]["mape"]["value"] < report["base"]["mape"]["value"]
    assert model.manifest.options["leaves"] == KNOBS["leaves"]
    assert model.manifest.options["trees"] == 10
    assert model.manifest.size["time_trees"] > Model.load(home / "m").manifest.size["time_trees"]
    assert model.seen.height > 40


@pytest.mark.parametrize(
    ("recipe", "changes", "why"),
    [
        (Recipe("mlp", {"epochs": 1}), {}, "its kind of model is 'gbdt', the data's is 'mlp'"),
        (Recipe("gbdt", target="latency"), {}, "its target is 'relative', the data's is 'latency'"),
        (Recipe("gbdt"), {"device": pl.lit("h100")}, "its device is 'a100', the data's is 'h100'"),
        (Recipe("gbdt"), {"problem.dtype": pl.lit("bf16")}, "its dtypes is 'fp16', the data's is 'bf16'"),
    ],
)
def test_a_warm_start_from_a_stranger_is_refused(home, tmp_path, recipe, changes, why):
    """What differs, on both sides; nothing is written."""
    synthetic_dataset(tmp_path / "new", synthetic_rows(problems=12, seed=3).with_columns(**changes))
    with pytest.raises(InvalidValue, match=why):
        train(tmp_path / "new", tmp_path / "m", recipe, warm_start=home / "m")
    assert [item.name for item in tmp_path.iterdir()] == ["new"]


def test_a_warm_start_with_another_ops_data_is_refused(home, tmp_path):
    """The op is the first thing compared."""
    sizes = {f"problem.{name}": [32 * (i + 1) for i in range(6)] for name in ("M", "K", "N")}
    matmul = pl.DataFrame({"device": "wormhole_b0", **sizes, "problem.num_cores": 8, "status": "ok", "time_ns": 7.0})
    synthetic_dataset(tmp_path / "new", matmul, FAMILIES.get("matmul_sharded/single"))
    with pytest.raises(InvalidValue, match="its op is 'gemm', the data's is 'matmul_sharded'"):
        train(tmp_path / "new", tmp_path / "m", RECIPE, warm_start=home / "m")


def test_hard_mining_is_reported_beside_what_it_replaces(home, tmp_path):
    """The same folds without it."""
    model = train(home / "d", tmp_path / "m", Recipe("gbdt", KNOBS, folds=3, threads=1, hard_mining=1))
    plain = Model.load(home / "m").evaluation["overall"]["efficiency_mean"]
    assert model.evaluation["without_hard_mining"]["efficiency_mean"] == plain


class Watch:
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
