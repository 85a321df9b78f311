"""Problem sets: named ones, grids, samplers, files, and what they refuse."""

import json

import numpy as np
import polars as pl
import pytest

from kerncast.core.expr import Namespace
from kerncast.core.op import Op, Problem
from kerncast.core.parameters import Bool, Choice, Int
from kerncast.core.space import Constraint
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.ops.gemm import gemm
from kerncast.library.ops.ttnn_ops import eltwise_unary
from kerncast.library.problems import named_sets, parse_vary, problem_set

PLAIN = {"dtype": ["fp32"], "layout": ["rcr"]}


def shapes(frame):
    return set(frame.select("M", "N", "K").iter_rows())


@pytest.mark.parametrize("name", named_sets(gemm))
def test_every_named_set_holds_different_valid_problems_that_keep_its_promise(name):
    """Sizes in range, no repeats, and the property that the set is named for."""
    frame = problem_set(gemm, [name], PLAIN)
    assert frame.height == frame.n_unique() > 20
    for row in frame.iter_rows(named=True):
        Problem(gemm, row)
    promise = {
        "small": pl.max_horizontal("M", "N", "K").is_between(64, 57344) & (frame.height < 30),
        "cubes": (pl.col("M") == pl.col("N")) & (pl.col("N") == pl.col("K")),
        "llm": pl.col("M").is_between(1, 8192) & (pl.min_horizontal("N", "K") >= 768),
        "tall_skinny": pl.max_horizontal("M", "N") >= 8 * pl.min_horizontal("M", "N"),
        "k_heavy": pl.col("K") >= 16 * pl.max_horizontal("M", "N"),
        "primes": pl.any_horizontal(pl.col(side) % 2 == 1 for side in "MNK"),
        "edge": pl.min_horizontal("M", "N", "K") < 17,
        "wide": pl.min_horizontal("M", "N", "K") >= 1,
    }[name]  # fmt: skip
    assert frame.select(promise.all()).item()


def test_a_file_may_be_named_as_one(tmp_path):
    """`file:FILE` is the same as the path alone; another kind of file is refused with what to do."""
    (tmp_path / "p.json").write_text("[[64, 64, 64], [1, 4096, 4096]]")
    given = [problem_set(gemm, [f"{prefix}{tmp_path / 'p.json'}"], PLAIN) for prefix in ("", "file:")]
    assert given[0].equals(given[1])
    with pytest.raises(InvalidValue, match=r"p\.txt must be a \.json, \.parquet or \.csv file"):
        problem_set(gemm, [f"file:{tmp_path / 'p.txt'}"], PLAIN)


def test_wide_and_edge_reach_every_corner():
    """Six decades of work in wide; each side equal to 1, with both others large, in edge."""
    wide = problem_set(gemm, ["wide"], PLAIN).with_columns(flops=2.0 * pl.col("M") * pl.col("N") * pl.col("K"))
    assert 600 < wide.height < 800
    assert np.histogram(np.log10(wide["flops"].to_numpy()), range(4, 13))[0].min() > 0
    edge = problem_set(gemm, ["edge"], PLAIN)
    assert 450 < edge.height < 650
    for side, others in (("M", "NK"), ("N", "MK"), ("K", "MN")):
        alone = edge.filter(pl.col(side) == 1)
        assert alone.select(pl.min_horizontal(*others)).max().item() >= 4096


def test_grids_take_lists_steps_and_factors_for_any_op():
    """The value syntax, the order (last axis fastest) and the defaults of what is not named."""
    frame = problem_set(gemm, ["grid:M=1,3;N=256:1024:256;K=16:100:x2.5"], parse_vary(gemm, ["dtype=fp32", "layout=all"]))
    assert shapes(frame) == {(m, n, k) for m in (1, 3) for n in (256, 512, 768, 1024) for k in (16, 40, 100)}
    assert frame["layout"].head(4).to_list() == ["rcr", "rrr", "crr", "ccr"]
    assert frame["batch"].unique().to_list() == [1]
    other = problem_set(
        eltwise_unary, ["grid:dim2=32,64;dim3=32;func=exp"], parse_vary(eltwise_unary, ["dtype=bf16", "buffer=all"])
    )
    assert other.height == 4  # fmt: skip


def test_lognormal_is_seeded_different_and_centred_in_its_range():
    """N different draws whose median is the geometric middle; the seed alone decides."""
    frame = problem_set(gemm, ["lognormal:4000"], PLAIN, seed=3)
    assert len(shapes(frame)) == 4000
    assert frame.equals(problem_set(gemm, ["lognormal:4000"], PLAIN, seed=3))
    assert shapes(frame) != shapes(problem_set(gemm, ["lognormal:4000"], PLAIN, seed=4))
    for side in "MNK":
        assert 1 <= frame[side].min() <= frame[side].max() <= 8192
        assert 70 < frame[side].median() < 120  # √8192 is 90.5
    narrow = problem_set(
        eltwise_unary, ["lognormal:50;dim2=32:64;dim3=100:5000"], {"func": ["exp"], "dtype": ["bf16"], "buffer": ["l1"]}
    )
    assert narrow["dim2"].is_between(32, 64).all()  # fmt: skip
    with pytest.raises(InvalidValue, match="hardly more than 3 different draws, 50 were asked for"):
        problem_set(gemm, ["lognormal:50;M=1:3"], {**PLAIN, "N": [1], "K": [1]})


def test_work_limits_use_the_ops_own_arithmetic():
    """--max-flops and --max-bytes keep exactly the problems at or below the limit."""
    frame = problem_set(gemm, ["wide"], {"dtype": ["fp64", "fp16"], "layout": ["rcr"]})
    small = problem_set(gemm, ["wide"], {"dtype": ["fp64", "fp16"], "layout": ["rcr"]}, max_flops=1e8, max_bytes=1e7)
    size = pl.when(pl.col("dtype") == "fp64").then(8).otherwise(2)
    m, n, k = (pl.col(side) for side in "MNK")
    truth = frame.filter((2 * m * n * k <= 1e8) & ((m * k + k * n + m * n) * size <= 1e7))
    assert small.equals(truth)
    assert 0 < small.height < frame.height
    with pytest.raises(InvalidValue, match="no problem of cubes is left"):
        problem_set(gemm, ["cubes"], PLAIN, max_flops=1)


class Odd(Op):
    name = "odd"
    parameters = {"n": Int(1, 9), "fused": Bool(), "width": Choice(2, 4, when=lambda p: p.fused == 1)}
    split_group = ("n",)

    def constraints(self, p: Namespace):
        return [Constraint("odd", "n must be odd", p.n % 2 == 1)]


def test_conditions_and_constraints_of_the_problem_space_hold(tmp_path):
    """A grid drops what cannot be and empties what does not apply; a file that claims it is refused."""
    op = Odd()
    frame = problem_set(op, ["grid:n=1:9;fused=all;width=2,4"])
    assert set(frame.iter_rows()) == {(n, f, w) for n in (1, 3, 5, 7, 9) for f, w in ((False, None), (True, 2), (True, 4))}
    file = tmp_path / "list.json"
    for entry, words in (
        ({"n": 2, "fused": False}, "n must be odd; got n=2, fused=False"),
        ({"n": 1, "fused": False, "width": 2}, "width does not apply here"),
        ({"n": 1, "fused": True}, "odd needs width, one of 2, 4"),
        ({"n": 1, "fused": 1}, "entry 1: fused must be true or false, got 1"),
    ):
        file.write_text(json.dumps([entry]))
        with pytest.raises((BadFile, InvalidValue), match=words):
            problem_set(op, [str(file)])


def test_one_list_in_every_file_format_is_one_problem_set(tmp_path):
    """JSON lists, objects and suites, CSV and parquet, bare names and problem.* columns."""
    truth = [(1, 256, 512), (33, 7, 64)]
    frame = pl.DataFrame(truth, schema=["M", "N", "K"], orient="row")
    (tmp_path / "lists.json").write_text(json.dumps(truth))
    (tmp_path / "objects.json").write_text(json.dumps(frame.to_dicts()))
    (tmp_path / "suite.json").write_text(json.dumps([{"problem": row, "config": {"x": 1}} for row in frame.to_dicts()]))
    frame.write_csv(tmp_path / "bare.csv")
    frame.rename(lambda name: f"problem.{name}").with_columns(time_ns=1.5).write_parquet(tmp_path / "rows.parquet")
    frame.cast(pl.Float64).write_parquet(tmp_path / "floats.parquet")
    for file in sorted(tmp_path.iterdir()):
        assert problem_set(gemm, [str(file)], PLAIN).select("M", "N", "K").rows() == truth, file.name
    both = problem_set(gemm, [str(tmp_path / "lists.json"), "cubes"], PLAIN)
    assert both.height == 2 + problem_set(gemm, ["cubes"], PLAIN).height


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2]]", r"each entry must be \[M, N, K\], got \[1, 2\]"),
        ("[[1, 2, 0]]", "entry 1: K must be a whole number from 1 to 2147483647, got 0"),
        ("[[1, 2, 2.5]]", "got 2.5"),
        ('[{"M": 1, "N": 2, "k": 3}]', "unknown parameter of gemm 'k'"),
        ('{"M": 1}', "must be a list"),
        ("[]", "lists nothing"),
        ("[[1, 2,", "not a readable json file"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, words):
    """The file, the entry, the rule and the value."""
    file = tmp_path / "list.json"
    file.write_text(text)
    with pytest.raises(BadFile, match=words) as refusal:
        problem_set(gemm, [str(file)], PLAIN)
    assert str(file) in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "vary", "words"),
    [
        ("lmm", [], "unknown problem set of gemm 'lmm': did you mean 'llm'"),
        ("llm", ["dtype=fp16"], r"llm does not give layout, .*`vary` layout=… \(one of rcr"),
        ("llm", ["dtype=fp16", "layout=rcr", "M=1"], "M is given by llm already"),
        ("llm", ["dtype=fp16", "dtype=fp32"], "dtype is given twice"),
        ("llm", ["colour=red"], "unknown parameter of gemm 'colour'"),
        ("grid:M=8:4", [], "lo ≤ hi"),
        ("grid:M=1:9:x1", [], "a factor over 1"),
        ("grid:M=all", [], "too many for 'all'"),
        ("grid:M=1:9999;N=1:9999;K=1", [], "over the limit of 10,000,000"),
        ("lognormal:0", [], "lognormal takes a number of problems"),
        ("nowhere.json", [], "cannot read nowhere.json"),
    ],
)
def test_bad_specifications_are_refused_with_the_next_step(spec, vary, words):
    """One sentence with the rule and the value."""
    with pytest.raises((InvalidValue, NotFound, BadFile), match=words):
        problem_set(gemm, [spec], parse_vary(gemm, vary))
