"""Inductor's templates as optional parameters of gemm/triton's configs: invisible where they are not used."""

import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.core.op import Config, Problem, key
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.library.families.gemm_triton import TEMPLATE_PARAMETERS, triton
from kerncast.models.candidates import library_rows
from kerncast.native.tiers.build import plain_tiers
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

TILE = {"kind": "triton", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4}
SHAPE = {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}
RECIPE = Recipe("gbdt", {"trees": 12, "leaves": 15, "library_trees": 2}, folds=2)
NEW = [f"config.{name}" for name in TEMPLATE_PARAMETERS]


def test_usual_values_are_none_and_not_in_the_key():
    """The plain template with Inductor's usual arguments is one config with it: same key, listed in the same words."""
    said = Config(triton, TILE, problem=None)
    usual = {"template": "mm", "GROUP_M": 8, "k_split": 1, "EPILOGUE_SUBTILE": 1, "matrix_instr_nonkdim": 16,
             "waves_per_eu": 0, "kpack": 1}  # fmt: skip
    same = Config(triton, {**TILE, **usual})
    assert (same, dict(same), repr(same)) == (said, TILE, repr(said))
    problem = Problem(triton, SHAPE)
    # The key that kerncast 0.1 gave it.
    assert key(problem, same, "a100") == "d030df28c6728bfa2b92edd7"
    other = Config(triton, {**TILE, "GROUP_M": 4})
    assert (other.GROUP_M, same.GROUP_M, same["GROUP_M"]) == (4, None, None)
    assert key(problem, other, "a100") != key(problem, same, "a100")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**TILE, "template": "decompose_k", "k_split": 4}, "their kind must be library"),
        ({"kind": "library", "template": "persistent_tma"}, "their kind must be library"),
        ({"kind": "library", "template": "decompose_k"}, "k_split divides K"),
        ({**TILE, "k_split": 4}, "k_split divides K"),
        ({"kind": "library", "template": "decompose_k", "k_split": 3}, "k_split divides K"),
        ({"kind": "library", "GROUP_M": 4}, "those of a tile"),
        ({**TILE, "GROUP_M": 0}, "GROUP_M must be"),
        ({**TILE, "template": "mm_persistent"}, "template must be one of"),
    ],
)
def test_arguments_belong_to_their_templates(config, why):
    """decompose_k divides K evenly and has no tile; a tile's arguments need a tile."""
    with pytest.raises(InvalidValue, match=why):
        Config(triton, config, problem=Problem(triton, SHAPE))


def test_the_space_is_listed_as_before():
    """Optional parameters are left out when configs are listed or drawn, and kept when one is projected."""
    assert triton.config.count() == 8641
    drawn = triton.config.sample(50, seed=0)
    assert all(drawn[name].null_count() == 50 for name in TEMPLATE_PARAMETERS)
    moved = triton.config.project({**TILE, "BLOCK_M": 60, "GROUP_M": 2000, "template": "persistent"})
    assert (moved["BLOCK_M"], moved["GROUP_M"], moved["template"]) == (64, 1024, "persistent")


def with_templates(rows):
    """Every row once more with GROUP_M 4, a little slower, and K decomposed in place of the library's kernel."""
    tiles = rows.filter(pl.col("config.kind") == "triton").with_columns(
        pl.lit(4, pl.Int64).alias("config.GROUP_M"), pl.col("time_ns") * 1.3
    )
    parts = rows.filter(pl.col("config.kind") == "library").with_columns(
        pl.lit("decompose_k").alias("config.template"), pl.lit(4, pl.Int64).alias("config.k_split"), pl.col("time_ns") * 0.5
    )
    return schema.conform(triton, pl.concat([rows, tiles, parts]).drop("key"))


def test_files_and_features_have_them_only_if_they_say_something(tmp_path):
    """A dataset of usual configs has no columns of these, and no model reads a feature of theirs."""
    rows = synthetic_rows(problems=12)
    plain = Dataset.open(synthetic_dataset(tmp_path / "plain", rows.drop(NEW)))
    usual = Dataset.open(synthetic_dataset(tmp_path / "usual", rows.with_columns(pl.lit(8).alias("config.GROUP_M"))))
    assert plain.digest == usual.digest
    stored = pl.read_parquet_schema(plain.path / plain.contents.parts[0].file)
    assert not set(NEW) & set(stored)
    both = with_templates(rows)
    models = {
        "plain": train(plain.path, tmp_path / "m1", RECIPE, no_folds=True),
        "all": train(synthetic_dataset(tmp_path / "all", both), tmp_path / "m2", RECIPE),
    }
    assert not {*TEMPLATE_PARAMETERS, "group_fill", "k_part"} & set(models["plain"].manifest.features.names)
    assert {"GROUP_M", "template", "k_split", "group_fill"} <= set(models["all"].manifest.features.names)
    assert len(library_rows(models["all"])) == 1


@pytest.mark.needs("a C compiler")
def test_compiled_and_interpreted_answers_have_the_same_templates(tmp_path):
    """A config with a template comes out of C as it went in, and is priced as in Python."""
    model = train(synthetic_dataset(tmp_path / "data", with_templates(synthetic_rows(problems=12))), tmp_path / "m", RECIPE)
    tiers = plain_tiers(model)
    compiled, python = Selector(model, tier="full", tiers=tiers), Selector(model, tier="full", tiers=tiers, compile=False)
    assert compiled.is_compiled
    for size in (256, 512, 1024):
        asked = {**SHAPE, "M": size}
        one, other = compiled.select(asked), python.select(asked)
        assert (dict(one.config), one.time_ns) == (dict(other.config), pytest.approx(other.time_ns, rel=1e-9))
        assert dict(one.config)["template"] == "decompose_k"
        said = model.predict(asked, {**TILE, "GROUP_M": 4}).time_ns
        assert said == pytest.approx(model.predict(asked, {**TILE, "GROUP_M": 4, "template": "mm"}).time_ns)
