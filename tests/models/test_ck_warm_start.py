"""Warm starts with CK Tile's files: base and new trees, the base's schema, what the manifest records, what is refused."""

import gzip
import json
import shutil

import lightgbm
import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.registry import FAMILIES
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset

GEMM = FAMILIES.get("gemm/ck_tile")
KNOBS = {"trees": 20, "leaves": 7, "lr": 0.3, "threads": 1, "progress": None}


def files_alone(model, folder):
    """The files of CK's layout without kerncast's own."""
    folder.mkdir()
    for file in model.iterdir():
        if file.name.startswith(("model_", "feature_spec", "train_manifest", "cv_metrics", "feature_importances")):
            shutil.copy(file, folder)
    return folder


def forest_text(folder, target="tflops"):
    plain = folder / f"model_{target}.lgbm"
    return plain.read_text() if plain.exists() else gzip.decompress((folder / f"model_{target}.lgbm.gz").read_bytes()).decode()


def elsewhere(made_by_ck):
    """Vectors of large problems, of which the new data below have none."""
    rows = made_by_ck.gemm_rows(20, 7)
    return rows.filter(pl.col("problem.M") > 1024).select(pl.col("^(problem|config)\\..*$")).with_columns(
        pl.lit(1, pl.Int64).alias("problem.split_k"), pl.lit(1, pl.Int64).alias("problem.batch"),
        *(pl.lit(None, pl.Int64).alias(f"problem.{name}") for name in ("lda", "ldb", "ldc")),
        pl.lit(None, pl.Boolean).alias("problem.bias"), pl.lit(None, pl.String).alias("problem.activation"),
    )  # fmt: skip


def agreeing(made_by_ck, base, path):
    """New small problems whose times are what the base says: they have nothing new to teach."""
    rows = made_by_ck.gemm_rows(12, 3, small=True)
    synthetic_dataset(path, rows, GEMM)
    frame = Dataset.open(path).read().select(pl.col("^(problem|config)\\..*$"))
    said = base.predict_vectors(frame)["time_ns"]
    shutil.rmtree(path)
    synthetic_dataset(path, rows.sort([name for name in frame.columns if name in rows.columns]).with_columns(
        time_ns=frame.with_columns(said=said).sort([name for name in frame.columns if name in rows.columns])["said"]
    ), GEMM)  # fmt: skip
    return path


def test_a_model_of_this_layout_is_continued(made_by_ck, tmp_path):
    """60 and 20 trees, the first 60 those of the base; where the new data say nothing new, it predicts what the base does."""
    home = made_by_ck.home
    kerncast.train(home / "d", out=tmp_path / "base", file_format="ck", folds=2, **KNOBS | {"trees": 60})
    before = lightgbm.Booster(model_str=forest_text(tmp_path / "base"))
    base = Model.load(files_alone(tmp_path / "base", tmp_path / "base_files"))
    data = agreeing(made_by_ck, base, tmp_path / "agreeing")
    kerncast.train(data, out=tmp_path / "m", file_format="ck", base=tmp_path / "base", **KNOBS)
    told = json.loads((tmp_path / "m" / "train_manifest.json").read_text())
    after = lightgbm.Booster(model_str=forest_text(tmp_path / "m"))
    assert told["warm_start_from"] == str(tmp_path / "base")
    assert told["prev_n_estimators"] == before.num_trees()
    assert told["total_n_estimators"] == after.num_trees() == told["prev_n_estimators"] + told["new_n_estimators"]
    assert told["new_n_estimators"] >= 1
    frame = elsewhere(made_by_ck)
    continued = Model.load(files_alone(tmp_path / "m", tmp_path / "m_files"))
    inputs = continued.describe(frame).features
    np.testing.assert_array_equal(after.predict(inputs, num_iteration=before.num_trees()), before.predict(inputs))
    np.testing.assert_allclose(continued.predict_vectors(frame)["time_ns"], base.predict_vectors(frame)["time_ns"], rtol=1e-3)
    # A forest grown from nothing on the same data knows nothing of these problems.
    kerncast.train(data, out=tmp_path / "alone", file_format="ck", folds=2, **KNOBS)
    alone = Model.load(files_alone(tmp_path / "alone", tmp_path / "alone_files")).predict_vectors(frame)["time_ns"]
    assert (alone / base.predict_vectors(frame)["time_ns"] - 1).abs().median() > 0.3


@pytest.mark.parametrize("packed", [False, True])
def test_a_model_that_cks_own_tools_made_is_continued(made_by_ck, tmp_path, packed):
    """Plain or compressed, columns without names, splits by category, floats among its parameters: base and new trees."""
    base = made_by_ck.gemm
    if packed:
        base = tmp_path / "packed"
        shutil.copytree(made_by_ck.gemm, base)
        for file in base.glob("*.lgbm"):
            (base / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    data = agreeing(made_by_ck, Model.load(base), tmp_path / "agreeing")
    model = kerncast.train(data, out=tmp_path / "m", file_format="ck", base=base, trees=20, threads=1, progress=None)
    told, spec = (json.loads((tmp_path / "m" / name).read_text()) for name in ("train_manifest.json", "feature_spec.json"))
    theirs = json.loads((base / "feature_spec.json").read_text())
    same = ("feature_names", "categorical_features", "dtype", "arch", "op_type", "targets", "log_targets")
    assert {name: spec[name] for name in same} == {name: theirs[name] for name in same}
    assert spec["hardware"]["num_cus"] == 228
    assert spec["hardware"]["lds_capacity"] == 65536, "what their engine assumes if the spec does not say"
    assert told["prev_n_estimators"] == 60
    assert set(told["n_estimators"]) == {"tflops", "latency"}
    assert told["total_n_estimators"] == lightgbm.Booster(model_str=forest_text(tmp_path / "m")).num_trees() > 60
    assert (model.manifest.options["leaves"], model.manifest.options["lr"]) == (15, 0.1)
    # kerncast's own model next to the files continues the same forest; what it was trained on is not known, so nothing is
    # outside of its range.
    assert model.manifest.size["time_trees"] > 60
    assert set(model.manifest.hull) == {"dtype"}
    frame, before = elsewhere(made_by_ck), Model.load(base)
    for continued in (model, Model.load(files_alone(tmp_path / "m", tmp_path / "files"))):
        np.testing.assert_allclose(
            continued.predict_vectors(frame)["time_ns"], before.predict_vectors(frame)["time_ns"], rtol=1e-3
        )


def test_a_base_without_ck_files_or_of_another_schema_is_refused(made_by_ck, tmp_path):
    """By name, with what to do; nothing is written."""
    home = made_by_ck.home
    kerncast.train(home / "d", out=tmp_path / "plain", folds=2, targets="tflops", **KNOBS)
    synthetic_dataset(tmp_path / "gfx950", made_by_ck.gemm_rows(12, 1, device="gfx950"), GEMM)
    rows = made_by_ck.gemm_rows(12, 1).with_columns(**{"problem.dtype": pl.lit("bf16")})
    synthetic_dataset(tmp_path / "bf16", rows, GEMM)
    shutil.copytree(made_by_ck.gemm, tmp_path / "latency")
    (tmp_path / "latency" / "model_tflops.lgbm").unlink()
    for data, base, more, why in [
        (home / "new", tmp_path / "plain", {}, "`file_format=ck` continues its CK forests, and it has none: train it with"),
        (
            home / "new",
            made_by_ck.gemm,
            {"targets": "tflops,bandwidth"},
            "no model_bandwidth.lgbm to continue, only tflops, lat",
        ),
        (home / "new", made_by_ck.gemm, {"raw_target": True}, "its target is 'tflops', the data's is 'tflops \\(raw\\)'"),
        (home / "new", tmp_path / "latency", {}, "its only forest is of milliseconds"),
        (home / "conv_data", made_by_ck.gemm, {}, "'gemm/ck_tile', the data's is 'grouped_conv_bwd_data/ck_tile'"),
        (tmp_path / "gfx950", made_by_ck.gemm, {}, "is 'gfx942', the data's is 'gfx950'"),
        (tmp_path / "bf16", made_by_ck.gemm, {}, "is 'fp16', the data's is 'bf16'"),
    ]:
        with pytest.raises(InvalidValue, match=why) as caught:
            kerncast.train(data, out=tmp_path / "m", file_format="ck", base=base, **{**KNOBS, **more})
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"categorical_features": ["moon"]}, "lists 'moon' in categorical_features, and not in feature_names"),
        ({"feature_names": ["N", "M"], "categorical_features": []}, "the forest reads 72 features, feature_spec.json names 2"),
        ({"hardware": {"num_cus": 0}}, "num_cus must be a positive number"),
        ({"arch": 7}, "not a feature spec"),
    ],
)
def test_a_damaged_spec_of_the_base_is_refused(made_by_ck, tmp_path, change, why):
    """Before anything is trained."""
    shutil.copytree(made_by_ck.gemm, tmp_path / "base")
    spec = json.loads((tmp_path / "base" / "feature_spec.json").read_text())
    (tmp_path / "base" / "feature_spec.json").write_text(json.dumps(spec | change))
    with pytest.raises(BadFile, match=why):
        kerncast.train(made_by_ck.home / "new", out=tmp_path / "m", file_format="ck", base=tmp_path / "base", **KNOBS)


def test_a_forest_whose_objective_has_a_link_is_refused(made_by_ck, tmp_path):
    """A Poisson forest predicts a logarithm: taken for TFLOPS it would rank, with absurd times."""
    shutil.copytree(made_by_ck.gemm, tmp_path / "base")
    text = forest_text(tmp_path / "base").replace("objective=regression", "objective=poisson")
    (tmp_path / "base" / "model_tflops.lgbm").write_text(text)
    with pytest.raises(BadFile, match="its objective is poisson, so it does not predict tflops itself"):
        Model.load(tmp_path / "base")
