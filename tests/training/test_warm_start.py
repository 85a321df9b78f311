"""Warm starts: what they keep of their base, what is reported beside them, what they refuse."""

import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.table import load_table
from kerncast.library.registry import FAMILIES
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe, train
from kerncast.training.warm_start import refuse_strangers

KNOBS = {"trees": 6, "library_trees": 4, "leaves": 7, "lr": 0.3}
RECIPE = Recipe("gbdt", KNOBS, folds=3, threads=1)


def test_a_warm_start_from_a_damaged_model_writes_nothing(home, tmp_path):
    """The base is checked before the data are read."""
    shutil.copytree(home / "m", tmp_path / "base")
    (tmp_path / "base" / "time.0.lgbm.gz").write_bytes(b"")
    with pytest.raises(BadFile, match=r"time\.0\.lgbm\.gz differs from its checksum"):
        train(home / "d", tmp_path / "m", RECIPE, warm_start=tmp_path / "base")
    assert [item.name for item in tmp_path.iterdir()] == ["base"]


def test_a_warm_start_reports_the_base_beside_itself(home, tmp_path):
    """Scored on one hold-out of new problems; the knobs that are not given are the base's."""
    synthetic_dataset(tmp_path / "new", synthetic_rows(problems=20, seed=9, slower=3.0))
    model = train(
        tmp_path / "new", tmp_path / "m", Recipe("gbdt", {"trees": 10, "library_trees": 4}, threads=1), warm_start=home / "m"
    )
    report = model.evaluation["warm_start"]
    assert report["hold_out_seen_by_base"] is False
    assert report["continued"]["mape"]["value"] < report["base"]["mape"]["value"]
    assert model.manifest.options["leaves"] == KNOBS["leaves"]
    assert model.manifest.options["trees"] == 10
    assert model.manifest.size["time_trees"] > Model.load(home / "m").manifest.size["time_trees"]
    assert model.seen.height > 40


def test_a_warm_start_covers_what_its_base_covered(tmp_path):
    """Ranges and candidates are those of both; a config of either is counted over both, each portfolio first in turn."""
    rows = synthetic_rows(problems=40)
    small, tile = pl.col("problem.M") <= 512, pl.col("config.BLOCK_M") == 64
    synthetic_dataset(tmp_path / "small", rows.filter(small))
    synthetic_dataset(tmp_path / "large", rows.filter(~small & (tile | (pl.col("config.kind") == "library"))))
    base = train(tmp_path / "small", tmp_path / "base", RECIPE)
    model = train(tmp_path / "large", tmp_path / "m", RECIPE, warm_start=base)
    assert model.manifest.hull["M"].low == base.manifest.hull["M"].low
    assert model.manifest.hull["M"].high == rows["problem.M"].max() > base.manifest.hull["M"].high
    columns = [name for name in base.candidates.columns if name.startswith("config.")]
    assert model.candidates.select(columns).equals(base.candidates.select(columns))
    alone = train(tmp_path / "large", tmp_path / "alone", RECIPE)
    both = base.candidates.join(alone.candidates, on=columns, how="left", nulls_equal=True, maintain_order="left")
    assert model.candidates["ok"].to_list() == (both["ok"] + both["ok_right"].fill_null(0)).to_list()
    np.testing.assert_allclose(
        model.candidates["share"],
        (both["share"] * base.seen.height + both["share_right"].fill_null(0.0) * alone.seen.height) / model.seen.height,
    )
    first = [item.candidates.filter(pl.col("portfolio_place") == 0).select(columns).row(0) for item in (model, alone)]
    assert first[0] == first[1]
    assert sorted(model.candidates["portfolio_place"].drop_nulls()) == list(
        range(model.candidates["portfolio_place"].max() + 1)
    )


@pytest.mark.parametrize(
    ("recipe", "changes", "why"),
    [
        (Recipe("mlp", {"epochs": 1}), {}, "it is a gbdt model, but the model asked for is mlp"),
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


def test_other_features_are_named(home):
    """The first that only one side has, not the whole lists."""
    base = Model.load(home / "m")
    table = load_table([Dataset.open(home / "d")])
    names = table.rows.names
    fewer = replace(table, rows=table.rows.only(names[2:]))
    procedure = Procedure(RECIPE.resolved(table, base))
    with pytest.raises(InvalidValue, match=f"those of the data: only the model has {names[0]}, {names[1]}; they must agree"):
        refuse_strangers(fewer, procedure, base)
    turned = replace(table, rows=table.rows.only(names[::-1]))
    with pytest.raises(InvalidValue, match="their order differs"):
        refuse_strangers(turned, procedure, base)
