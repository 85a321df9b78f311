"""`evaluate --against`: somebody else's choices on the same measurements."""

import json

import numpy as np
import polars as pl
import pytest

from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluate import evaluate
from kerncast.evaluate.solutions import read_solutions, score_solutions
from kerncast.models import Recipe, train
from kerncast.registry import FAMILIES
from kerncast.testing.models import FAMILY, synthetic_dataset, synthetic_rows

TRITON = FAMILIES.get(FAMILY)
NEW = synthetic_rows(problems=8, seed=7)
SHAPE = ["problem.M", "problem.N", "problem.K"]
# Never measured, and one of those that need too much shared memory.
UNMEASURED = {"kind": "triton", "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_stages": 2, "num_warps": 1}
FAILED = {"kind": "triton", "BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 4, "num_warps": 8}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A model judged on 8 problems."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=20).join(NEW, on=SHAPE, how="anti"))
    synthetic_dataset(folder / "new", NEW)
    train(folder / "d", folder / "m", Recipe("gbdt", {"trees": 5, "leaves": 7}, folds=2, threads=1))
    return evaluate(folder / "m", [folder / "new"])


def solutions(configs):
    """One choice for each of the first problems of `NEW`."""
    shapes = NEW.select(SHAPE).unique(maintain_order=True).iter_rows()
    return [
        {"problem": {"M": m, "N": n, "K": k, "dtype": "fp16", "layout": "rcr"}, "config": config}
        for (m, n, k), config in zip(shapes, configs, strict=False)
    ]


def scored(tmp_path, found, content):
    path = tmp_path / "theirs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return score_solutions(path, found, TRITON)


def test_choices_are_scored_where_they_were_measured_and_counted_where_not(tmp_path, found):
    """Two by the library, one that failed (it gets 0), one never measured, four problems without an answer."""
    listed = solutions([{"kind": "library"}, {"kind": "library"}, FAILED, UNMEASURED])
    got = scored(tmp_path, found, {"solutions": listed, "made_by": "somebody"})
    assert (got["n_problems"], got["solutions_not_measured"], got["problems_without_solution"]) == (3, 1, 4)
    best = NEW.filter(pl.col("status") == "ok").with_columns(best=pl.min("time_ns").over(SHAPE))
    library = best.filter(pl.col("config.kind") == "library").select(*SHAPE, share=pl.col("best") / pl.col("time_ns"))
    shapes = NEW.select(SHAPE).unique(maintain_order=True)
    shares = shapes.head(2).join(library, on=SHAPE, how="left", maintain_order="left")["share"].to_list()
    np.testing.assert_allclose(got["solutions_efficiency_mean"], (sum(shares) + 0.0) / 3)
    ours = shapes.head(3).join(found.problems, on=SHAPE, how="left", maintain_order="left")["efficiency"]
    np.testing.assert_allclose(got["model_efficiency_mean"], ours.mean())
    assert got["model_better"] == int(sum(o > t for o, t in zip(ours, [*shares, 0.0], strict=True)))


def test_a_bare_list_and_equal_choices_twice_are_fine_and_none_that_was_measured_is_refused(tmp_path, found):
    """Nothing to compare is said, not divided by."""
    one = solutions([{"kind": "library"}])
    assert scored(tmp_path, found, one + one)["n_problems"] == 1
    with pytest.raises(InvalidValue, match=r"theirs\.json answers 2 of these problems, and none of its choices was measured"):
        scored(tmp_path, found, solutions([UNMEASURED, UNMEASURED]))


BAD = {
    "not JSON": ("[{", "not a list of solutions"),
    "not a list": ('{"M": 1}', r"not a list of solutions .*Expected `array`"),
    "a part is missing": ('[{"problem": {}}]', r"missing required field `config`.*\[0\]"),
    "a key too many": ('[{"problem": {}, "config": {}, "time": 1}]', r"unknown field `time`.*\[0\]"),
    "a value out of range": (solutions([{"kind": "library"}, {"kind": "cuda"}]), r"solution 2: .*kind must be .*'cuda'"),
    "a parameter that is not known": (solutions([{"kind": "library", "tile": 3}]), "solution 1: .*tile"),
    "a number that is a list": (solutions([UNMEASURED | {"BLOCK_M": [16]}]), "solution 1: .*BLOCK_M"),
    "two choices for one problem": (
        solutions([{"kind": "library"}]) + solutions([FAILED]), "solution 2: solution 1 chooses otherwise for this problem",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_refused_with_the_place(tmp_path, found, case):
    """The file, which solution, and the rule; one sentence."""
    content, why = BAD[case]
    with pytest.raises(BadFile, match=why) as caught:
        scored(tmp_path, found, content)
    assert "theirs.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """As is a directory."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadFile, match="cannot read"):
            read_solutions(path)
