"""Leading dimensions, bias and activation of gemm: optional, and invisible where they are not used."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tests.support.artefacts import reseal

from kerncast.answering.query import Query, among
from kerncast.answering.selector import Selector
from kerncast.core.io.artefact import file_checksum
from kerncast.core.op import Problem, key_text
from kerncast.data import Dataset, schema
from kerncast.data.dataset import merge
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.gemm_cpu import gemm_cpu
from kerncast.library.families.gemm_triton import triton
from kerncast.library.ops.gemm import gemm
from kerncast.library.problems.files import complete
from kerncast.library.registry import OPS
from kerncast.native import MISSING, encode
from kerncast.native.tiers.build import plain_tiers
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

SIZES = {"M": 4, "N": 5, "K": 6, "dtype": "fp32"}
SHAPE = {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}
NEW = ("lda", "ldb", "ldc", "bias", "activation")


@pytest.mark.parametrize(
    ("layout", "lda", "ldb"), [("rrr", 6, 5), ("rcr", 6, 6), ("crr", 4, 5), ("ccr", 4, 6)]
)  # fmt: skip
def test_what_is_packed_is_none_and_not_in_the_key(layout, lda, ldb):
    """The packed leading dimension, 0, false and none mean the same as nothing, and a key names none of it."""
    given = {**SIZES, "layout": layout}
    plain = Problem(gemm_cpu, given)
    same = Problem(gemm_cpu, given, lda=lda, ldb=ldb, ldc=5, bias=False, activation="none")
    assert same == plain == Problem(gemm_cpu, given, lda=0, ldb=np.int64(0), ldc=None)
    assert [plain[name] for name in NEW] == [None] * 5
    text = f"gemm/cpu|here|p.K=6|p.M=4|p.N=5|p.batch=1|p.dtype=fp32|p.layout={layout}|p.split_k=1|p.threads=1"
    assert key_text("gemm/cpu", "here", same.items(), []) == text
    apart = Problem(gemm_cpu, given, lda=lda + 1, bias=True, activation="gelu")
    assert "p.activation=gelu|p.batch=1|p.bias=true|p.dtype=fp32" in key_text("gemm/cpu", "here", apart.items(), [])
    assert apart.usual() == plain
    assert plain.usual() is plain
    for name, packed in (("lda", lda), ("ldb", ldb), ("ldc", 5)):
        with pytest.raises(InvalidValue, match=f"{name} must be at least that of a packed {name[-1].upper()}"):
            Problem(gemm_cpu, given, **{name: packed - 1})


def test_lists_of_problems_may_name_them():
    """0 and the packed value list the packed problem once; a list may leave them out."""
    axes = pl.DataFrame({"M": [4, 4, 4], "N": [5] * 3, "K": [6] * 3, "dtype": ["fp32"] * 3, "layout": ["rrr"] * 3})
    assert complete(gemm.problem, axes, "a list", strict=True).height == 1
    found = complete(gemm.problem, axes.with_columns(lda=pl.Series([0, 6, 8])), "a list", strict=True)
    assert found["lda"].to_list() == [None, 8]
    with pytest.raises(InvalidValue, match="lda must be at least"):
        complete(gemm.problem, axes.with_columns(lda=pl.Series([0, 6, 5])), "a list", strict=True)


def test_a_dataset_has_the_columns_only_if_they_say_something(tmp_path):
    """Packed rows have none of them, however they are given; parts with and without them are read and merged as one."""
    rows = synthetic_rows(problems=4).drop("key")
    packed = rows.with_columns(pl.lit(False).alias("problem.bias"), pl.col("problem.K").alias("problem.lda"))
    apart = packed.with_columns(pl.col("problem.lda") + 8, pl.lit("relu").alias("problem.activation"))
    made = {}
    for name, given in (("plain", rows.drop([f"problem.{x}" for x in NEW])), ("packed", packed), ("apart", apart)):
        made[name] = Dataset.create(tmp_path / name)
        made[name].append(triton, given)
    assert made["plain"].digest == made["packed"].digest != made["apart"].digest
    files = {name: pl.read_parquet_schema(data.path / data.contents.parts[0].file) for name, data in made.items()}
    assert not any(f"problem.{x}" in files["packed"] for x in NEW)
    assert {x for x in NEW if f"problem.{x}" in files["apart"]} == {"lda", "activation"}
    both, _ = merge([made["plain"].path, made["apart"].path], tmp_path / "both")
    found = both.read()
    assert list(found.columns) == list(schema.schema_of(triton))
    assert found["problem.lda"].null_count() == found.height // 2
    assert found["key"].n_unique() == 2 * made["plain"].read()["key"].n_unique()
    assert both.read(where=["problem.lda>0"]).height == rows.height


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of packed products alone, and one that has seen rows with gaps, biases and activations."""
    folder = tmp_path_factory.mktemp("gemm")
    packed = synthetic_rows(problems=24)
    slower = packed.drop("key").with_columns(
        pl.col("problem.K").add(pl.Series([8, 24] * (packed.height // 2))).alias("problem.lda"),
        pl.lit(True).alias("problem.bias"),
        pl.lit("gelu").alias("problem.activation"),
        pl.col("time_ns") * 1.5,
    )
    recipe = Recipe("gbdt", {"trees": 30, "library_trees": 4, "leaves": 7}, folds=2, threads=1)
    both = pl.concat([packed, schema.conform(triton, slower)])
    found = {}
    for name, rows in (("packed", packed), ("both", both)):
        found[name] = train(synthetic_dataset(folder / f"{name}_data", rows), folder / name, recipe)
    return found


def test_only_a_model_of_such_rows_reads_their_features(models):
    """Features that are the same in all rows are left out, so models of packed products stay as they were."""
    names = {name: set(model.manifest.features.names) for name, model in models.items()}
    assert names["both"] - names["packed"] == {"lda_alignment", "log2_lda_over_packed", "bias", "activation"}
    frame = pl.DataFrame({**{name: [value] * 3 for name, value in SHAPE.items()}, "lda": [512, 520, 528]})
    shown = models["both"].predict(frame, {"kind": "library"})
    assert shown["status"].to_list() == ["ok"] * 3
    assert shown["time_ns"][1] > 1.2 * shown["time_ns"][0]


ASKED = [
    {},
    {"lda": 512},
    {"lda": 0, "bias": False},
    {"lda": 520, "bias": True, "activation": "gelu"},
    {"lda": 1 << 20},
    {"ldc": 1024},
    {"activation": "silu"},
    {"lda": 511},
]


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("name", ["packed", "both"])
def test_c_python_and_json_agree(models, name):
    """What was never trained on is out of range, and said so; everywhere the same status, words, config and time."""
    selectors = [Selector(models[name], tiers=plain_tiers(models[name]), tier="full", compile=c) for c in (True, False)]
    readers = [Query(among([models[name]]), compile=compile) for compile in (True, False)]
    statuses = []
    for more in ASKED:
        asked = {"op": "gemm", "family": "gemm/triton", "device": "a100", **SHAPE, **more}
        replies = [json.loads(reader.answer(json.dumps(asked))) for reader in readers]
        times = [reply.pop("time_ns", None) for reply in replies]
        assert times[0] == (times[1] and pytest.approx(times[1], rel=1e-12))
        bounds = [[reply.pop(name, 0.0) for name in ("lower_ns", "upper_ns")] for reply in replies]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
        assert replies[0] == replies[1]
        statuses.append(replies[0]["status"])
        if more.get("lda") == 511:
            assert "lda must be at least" in replies[0]["message"]
            continue
        compiled, interpreted = (selector.select({**SHAPE, **more}) for selector in selectors)
        assert (compiled.status, compiled.config, compiled.reason) == (
            interpreted.status,
            interpreted.config,
            interpreted.reason,
        )
        assert compiled.status == statuses[-1]
        assert compiled.time_ns == (interpreted.time_ns and pytest.approx(interpreted.time_ns, rel=1e-12))
    seen = "ok" if name == "both" else "out_of_range"
    assert statuses == ["ok"] * 3 + [seen] + ["out_of_range"] * 3 + ["bad_input"]
    said = selectors[0].select({**SHAPE, "lda": 1 << 20}).reason
    assert ("lda was trained with packed or 136 to 8216 only" if name == "both" else "lda was trained with packed only") in said


@pytest.mark.needs("a C compiler")
def test_a_zeroed_struct_of_an_older_caller_is_packed(models):
    """The new fields are the last of the C struct, and 0 in them means what missing does."""
    selector = Selector(models["both"], tiers=plain_tiers(models["both"]), tier="full")
    assert list(triton.problem.parameters)[-5:] == list(NEW)
    numbers = encode(selector.model.family.problem, selector.problem(SHAPE))
    assert numbers[-5:] == [MISSING] * 5
    missing, zeroed = (selector.answerer.binding.select(given, "full") for given in (numbers, [*numbers[:-5], *[0] * 5]))
    assert (missing.status, missing.tier, zeroed.tier) == ("ok", "full", "memo"), "it is the same problem"
    assert replace(zeroed, tier="full") == missing


def test_the_names_of_pytorch_find_it(models):
    """addmm implies a bias, and contradicts a request without one; bmm and linear leave that open."""
    assert all(OPS.get(alias) is gemm for alias in ("addmm", "bmm", "linear"))
    reader = Query(among([models["both"]]), compile=False)

    def reply(**more):
        return json.loads(reader.answer(json.dumps({**SHAPE, "lda": 520, "activation": "gelu", **more})))

    assert reply(op="addmm")["time_ns"] == reply(op="gemm", bias=True)["time_ns"]
    assert reply(op="linear")["time_ns"] == reply(op="bmm")["time_ns"] == reply(op="gemm")["time_ns"]
    assert "contradicts" in reply(op="addmm", bias=False)["message"]


def test_an_optional_parameter_is_declared_soundly():
    """No default and no condition besides, and its usual value follows from what is always there."""
    from kerncast.core.parameters import Computed, Int
    from kerncast.core.space import Space

    for wrong in ({"default": 1}, {"when": lambda p: p.a > 1}, {"usual": Computed("as c", lambda p: p.c)}):
        others = {"a": Int(1, 9), "c": Int(0, 9, usual=0)}
        with pytest.raises(InvalidValue, match=r"x: (b is optional|the usual value of b)"):
            Space("x", "p", {**others, "b": Int(0, 9, **{"usual": 0, **wrong})})
    with pytest.raises(InvalidValue, match="the usual value must be a whole number from 0 to 9, got 12"):
        Int(0, 9, usual=12)


def test_a_file_with_a_column_too_many_is_still_refused(tmp_path):
    """Only declared columns may be missing or there."""
    data = Dataset.create(tmp_path / "data")
    data.append(triton, synthetic_rows(problems=1))
    file = data.path / data.contents.parts[0].file
    pl.read_parquet(file).with_columns(pl.lit(1).alias("problem.ldd")).write_parquet(file)
    manifest = json.loads((data.path / "dataset.json").read_text())
    manifest["parts"][0]["checksum"] = file_checksum(file)
    (data.path / "dataset.json").write_bytes(reseal(manifest))
    data = Dataset.open(data.path)
    with pytest.raises(BadFile, match=r"problem\.ldd"):
        data.read()
