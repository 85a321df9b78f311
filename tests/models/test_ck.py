"""The model layout of CK Tile's heuristics: written, read back, refused where the forest and the names disagree."""

import gzip
import json
import re
import shutil

import lightgbm
import numpy as np
import polars as pl
import pytest

from kerncast.app import cli
from kerncast.data import Dataset, schema
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating import compare, evaluate
from kerncast.evaluating.refits import budget_curves
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.ck import GEMM_COLUMNS as NAMES
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

CK = FAMILIES.get("gemm/ck_tile")
GFX942 = devices.get("gfx942")
KNOBS = {"trees": 12, "leaves": 7, "lr": 0.3}
RECIPE = Recipe("gbdt", KNOBS, target="tflops", folds=2, threads=1)
FILES = {"model_tflops.lgbm.gz", "feature_spec.json", "train_manifest.json"}


def ck_rows(problems, seed, dtype="fp16"):
    """A dozen kernels on random shapes; the time is padded arithmetic in whole waves, small tiles less efficient."""
    rng = np.random.default_rng(seed)
    shapes = pl.DataFrame({f"problem.{name}": 64 * rng.integers(1, 64, problems) for name in "MNK"})
    kernels = CK.config.sample(12, 0, CK.bindings({"dtype": "fp16"}, GFX942))
    rows = shapes.join(kernels.rename(lambda name: f"config.{name}"), how="cross")
    m, n, k = (pl.col(f"problem.{name}") for name in "MNK")
    tile_m, tile_n = pl.col("config.tile_m"), pl.col("config.tile_n")
    waves = ((m / tile_m).ceil() * (n / tile_n).ceil() / 228).ceil()
    area = tile_m * tile_n
    time = 2000 + waves * 228 * area * k * 2 / 1.3e6 * (1 + 4000 / area)
    rows = rows.with_columns(time_ns=time * pl.Series(np.exp(0.01 * rng.standard_normal(rows.height))))
    return rows.with_columns(
        device=pl.lit("gfx942"), status=pl.lit("ok"), **{"problem.dtype": pl.lit(dtype), "problem.layout": pl.lit("rcr")}
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`both` as --format ck writes it, and `ck`, a directory with the three files alone."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", ck_rows(30, 0), CK)
    synthetic_dataset(folder / "new", ck_rows(15, 1), CK)
    train(folder / "d", folder / "both", RECIPE, ck=())
    (folder / "ck").mkdir()
    for name in FILES:
        shutil.copy(folder / "both" / name, folder / "ck")
    return folder


def frame_of(path):
    return Dataset.open(path).read().select(pl.col("^(problem|config)\\..*$"))


def forest_of(path, target="tflops"):
    return lightgbm.Booster(model_str=gzip.decompress((path / f"model_{target}.lgbm.gz").read_bytes()).decode())


def test_three_files_alone_predict_what_the_forest_says(home):
    """TFLOPS are expm1 of the booster on features in the order of the spec; the manifest counts what it saw."""
    spec = json.loads((home / "ck" / "feature_spec.json").read_text())
    assert (spec["op_type"], spec["dtype"], spec["arch"]) == ("gemm_universal", "fp16", "gfx942")
    assert (spec["targets"], spec["log_targets"]) == (["tflops"], ["tflops"])
    training = json.loads((home / "ck" / "train_manifest.json").read_text())
    assert (training["data_rows"], training["valid_rows"], training["unique_shapes"]) == (360, 360, 30)
    model, frame = Model.load(home / "ck"), frame_of(home / "new")
    features = CK.features_on(GFX942, ["fp16"]).program.frame(schema.symbol_columns(CK, frame), trusted=True)
    tflops = np.expm1(forest_of(home / "ck").predict(features.select(spec["feature_names"]).to_numpy()))
    found = model.predict_vectors(frame)
    work = 2.0 * frame.select(pl.col("problem.M") * pl.col("problem.N") * pl.col("problem.K")).to_series().to_numpy()
    np.testing.assert_allclose(work / found["time_ns"].to_numpy() / 1e3, tflops, rtol=1e-9)


def test_a_forest_reads_only_what_readers_of_the_layout_can_compute(home):
    """The names and the order of their engine; the hardware numbers that features were computed from come along."""
    spec = json.loads((home / "ck" / "feature_spec.json").read_text())
    assert [name for name in NAMES if name in spec["feature_names"]] == spec["feature_names"]
    # Their 55 first features are all there; our own additions are not.
    assert {"log2_MNK", "layout", "lds_usage_ratio", "overall_tile_efficiency", "cu_utilization"} <= set(spec["feature_names"])
    assert {"waves", "roofline_ns"} <= set(Model.load(home / "both").manifest.features.names)
    assert spec["hardware"]["num_cus"] == GFX942.numbers["num_cus"]
    assert spec["hardware"]["lds_capacity"] == GFX942.numbers["lds_capacity_bytes"]


def test_features_are_computed_from_the_numbers_that_the_spec_tells(home, tmp_path):
    """A model that was trained with another number of units means that number by `cu_utilization`."""
    shutil.copytree(home / "ck", tmp_path / "x")
    spec_with(hardware=lambda s: {"num_cus": 100, "unheard_of": 3})(tmp_path / "x")
    frame = frame_of(home / "new")
    column = {name: Model.load(home / name if name == "ck" else tmp_path / name) for name in ("ck", "x")}
    used = {name: model.describe(frame).only(["cu_utilization"]).features[:, 0] for name, model in column.items()}
    np.testing.assert_allclose(used["x"] / used["ck"], GFX942.numbers["num_cus"] / 100)


def test_a_model_of_that_layout_is_evaluated_and_compared_as_any_other(home):
    """What it was trained on is not recorded: all problems count, the baselines that learn are left out."""
    summary = evaluate(home / "ck", [home / "new"]).as_json()
    assert (summary["problems_seen_in_training"], summary["overall"]["n_problems"]) == (0, 15)
    assert set(summary["baselines"]) == {"random", "roofline"}
    assert summary["overall"]["efficiency_mean"]["value"] > summary["baselines"]["random"]["efficiency_mean"]["value"]
    verdict = compare(home / "ck", home / "both", [home / "new"])
    assert verdict.as_json()["n_problems"] == 15
    for again in (
        lambda: evaluate(home / "ck", [home / "new"], split="problem"),
        lambda: budget_curves(home / "ck", [home / "new"]),
    ):
        with pytest.raises(InvalidValue, match="does not say how it was trained"):
            again()


def test_several_targets_are_written_in_the_units_of_its_readers(home, tmp_path):
    """log1p of TFLOPS and GB/s, plain milliseconds; a directory that has the latency alone answers in nanoseconds."""
    knobs = ["--trees", "12", "--leaves", "7", "--lr", "0.3", "--folds", "2", "--threads", "1"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", str(home / "d"), "--out", str(tmp_path / "m"), "--format", "ck", *knobs,
                  "--targets", "tflops,latency, bandwidth"])  # fmt: skip
    assert stopped.value.code == 0
    spec = json.loads((tmp_path / "m" / "feature_spec.json").read_text())
    assert spec["targets"] == ["tflops", "latency", "bandwidth"]
    assert spec["log_targets"] == ["tflops", "bandwidth"]
    rows = Dataset.open(home / "d").read()
    frame = rows.select(pl.col("^(problem|config)\\..*$"))
    features = CK.features_on(GFX942, ["fp16"]).program.frame(schema.symbol_columns(CK, frame), trusted=True)
    inputs = features.select(spec["feature_names"]).to_numpy()
    milliseconds = forest_of(tmp_path / "m", "latency").predict(inputs)
    gigabytes = np.expm1(forest_of(tmp_path / "m", "bandwidth").predict(inputs))
    bytes_moved = 2.0 * frame.select(
        pl.col("problem.M") * pl.col("problem.K") + pl.col("problem.K") * pl.col("problem.N")
        + pl.col("problem.M") * pl.col("problem.N")
    ).to_series().to_numpy()  # fmt: skip
    measured = rows["time_ns"].to_numpy()
    assert 0.8 < np.median(milliseconds * 1e6) / np.median(measured) < 1.25
    assert 0.8 < np.median(gigabytes / (bytes_moved / measured)) < 1.25
    for name in ("model_tflops.lgbm.gz", "model_bandwidth.lgbm.gz", "model.json"):
        (tmp_path / "m" / name).unlink()
    found = Model.load(tmp_path / "m").predict_vectors(frame)["time_ns"].to_numpy()
    np.testing.assert_allclose(found, np.maximum(milliseconds * 1e6, 1e-3))


def test_the_number_of_threads_is_not_in_the_file(home):
    """A forest's text names the threads it was grown with; the same data and seed would give other bytes."""
    text = gzip.decompress((home / "both" / "model_tflops.lgbm.gz").read_bytes()).decode()
    assert re.findall(r"num_threads: \d+", text) == ["num_threads: 0"]


def test_a_model_of_two_dtypes_is_read_back(tmp_path):
    """The layout has one place for them."""
    synthetic_dataset(tmp_path / "d", pl.concat([ck_rows(8, 0), ck_rows(8, 0, "bf16")]), CK)
    train(tmp_path / "d", tmp_path / "m", RECIPE, ck=())
    for file in (tmp_path / "m").iterdir():
        if file.name not in FILES:
            file.unlink()
    assert Model.load(tmp_path / "m").manifest.dtypes == ("bf16", "fp16")
    assert evaluate(tmp_path / "m", [tmp_path / "d"]).as_json()["overall"]["n_problems"] == 16


def spec_with(**changes):
    def change(folder):
        spec = json.loads((folder / "feature_spec.json").read_text())
        (folder / "feature_spec.json").write_text(json.dumps(spec | {k: v(spec) for k, v in changes.items()}))

    return change


def cut(folder):
    file = folder / "model_tflops.lgbm.gz"
    file.write_bytes(file.read_bytes()[:500])


def flipped(folder):
    file = folder / "model_tflops.lgbm.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


STRANGE = {
    "a feature that nobody knows": (
        spec_with(feature_names=lambda s: ["moon_phase", *s["feature_names"][1:]]),
        "feature 'moon_phase' \\(1 such\\) is not one of gemm/ck_tile",
    ),
    "a name too few": (
        spec_with(feature_names=lambda s: s["feature_names"][:-1]), "the forest reads (\\d+) features, feature_spec.json names",
    ),
    "names in another order": (
        spec_with(feature_names=lambda s: [s["feature_names"][1], s["feature_names"][0], *s["feature_names"][2:]]),
        "feature 0 is 'M' in the forest and 'N' in feature_spec.json",
    ),
    "a newer encoding": (spec_with(feature_encoding_version=lambda s: 2), "feature_encoding_version 2 gives the names"),
    "a hardware number that is none": (spec_with(hardware=lambda s: {"num_cus": -1}), "num_cus must be a positive number"),
    "another op": (spec_with(op_type=lambda s: "fmha"), "op_type 'fmha' is not known here"),
    "another device": (spec_with(arch=lambda s: "gfx9999"), "arch gfx9999: unknown device"),
    "another dtype": (spec_with(dtype=lambda s: "fp5"), "dtype must be .*'fp5'"),
    "a spec that is none": (lambda folder: (folder / "feature_spec.json").write_text("[]"), "not a feature spec"),
    "no forest": (lambda folder: (folder / "model_tflops.lgbm.gz").unlink(), "has no model_tflops.lgbm"),
    "a forest cut off": (cut, "model_tflops.lgbm.gz is damaged"),
    "a forest with a byte flipped": (flipped, "model_tflops.lgbm.gz is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", STRANGE)
def test_what_does_not_belong_together_is_refused_by_name(home, tmp_path, case):
    """A forest fed with the wrong column answers all the same: better not to ask it."""
    change, why = STRANGE[case]
    shutil.copytree(home / "ck", tmp_path / "x")
    change(tmp_path / "x")
    with pytest.raises(BadFile, match=why) as caught:
        Model.load(tmp_path / "x")
    assert "\n" not in str(caught.value)


def test_a_forest_without_names_of_its_own_and_uncompressed_is_read(home, tmp_path):
    """As scikit-learn's interface writes it: Column_0, Column_1 …"""
    shutil.copytree(home / "ck", tmp_path / "x")
    text = gzip.decompress((tmp_path / "x" / "model_tflops.lgbm.gz").read_bytes()).decode()
    count = forest_of(home / "ck").num_feature()
    names = " ".join(f"Column_{number}" for number in range(count))
    text = re.sub(r"(?m)^feature_names=.*$", f"feature_names={names}", text)
    (tmp_path / "x" / "model_tflops.lgbm.gz").unlink()
    (tmp_path / "x" / "model_tflops.lgbm").write_text(text)
    frame = frame_of(home / "new")
    np.testing.assert_array_equal(
        Model.load(tmp_path / "x").predict_vectors(frame)["time_ns"], Model.load(home / "ck").predict_vectors(frame)["time_ns"]
    )


def test_what_the_layout_has_no_place_for_is_not_written(home, tmp_path):
    """Another family, another kind, another target, two devices; nothing is left behind."""
    synthetic_dataset(tmp_path / "triton", synthetic_rows(problems=6))
    rows = ck_rows(6, 0)
    synthetic_dataset(tmp_path / "two", pl.concat([rows, rows.with_columns(device=pl.lit("gfx950"))]), CK)
    linear = Recipe("linear", target="tflops", folds=2)
    for data, recipe, others, why in [
        (tmp_path / "triton", RECIPE, (), "for gbdt models of gemm/ck_tile, .*, not for gbdt models of gemm/triton"),
        (home / "d", linear, (), "not for linear models of gemm/ck_tile"),
        (home / "d", Recipe("gbdt", KNOBS, folds=2, threads=1), (), "needs targets that its readers know .*, not relative"),
        (tmp_path / "two", RECIPE, (), "holds one device, the rows are of 2"),
    ]:
        with pytest.raises(InvalidValue, match=why):
            train(data, tmp_path / "m", recipe, ck=others, pool=True)
        assert not (tmp_path / "m").exists()
