"""The sweep that reshard generates itself: its rules, its slices, and tt-metal's layout of it."""

import hashlib
import json
from itertools import product

import polars as pl
import pytest

from kerncast.core.dtypes import dtype_parameter
from kerncast.core.op import Family, Op, Problem, Suite
from kerncast.core.parameters import Int, PowerOfTwo
from kerncast.core.progress import Progress
from kerncast.core.space import Constraint
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.families.single import reshard_cpu, reshard_single
from kerncast.library.ops.reshard import reshard
from kerncast.measuring.sweeping import Selection, Slice, Sweep, Vectors, open_sweep, write_vectors
from kerncast.measuring.sweeping.files import SweepFramework

CARD = devices.get("wormhole_b0")
SMALL = {
    "height_tiles": range(1, 25),
    "width_tiles": range(1, 25),
    "in_x": [1, 2],
    "in_y": [1, 3],
    "out_x": [2],
    "out_y": [1, 2],
}


def tileable(height, width, x, y, strategy, orientation):
    if strategy == "height":
        return height % (x * y) == 0
    if strategy == "width":
        return width % (x * y) == 0
    return (height % x, width % y) == (0, 0) if orientation == "col_major" else (height % y, width % x) == (0, 0)


def naive(grids, tallest, widest, orientations, both_fit):
    """The rules of the published sweep, one vector at a time."""
    in_x, in_y, out_x, out_y = grids
    found = []
    strategies = ("block", "width", "height")
    for sharding in product(strategies, strategies, orientations, orientations):
        for width in range(1, widest + 1):
            for height in range(1, tallest + 1):
                size = 2 * 32 * height * 32 * width
                if sharding[0] == sharding[1] != "block":
                    continue
                if not tileable(height, width, in_x, in_y, sharding[0], sharding[2]):
                    continue
                if not tileable(height, width, out_x, out_y, sharding[1], sharding[3]):
                    continue
                if size > 1024 * 1024 * min(in_x * in_y, out_x * out_y):
                    continue
                if both_fit and size / (in_x * in_y) + size / (out_x * out_y) > 1_399_000:
                    continue
                found.append((height, width, *grids, *sharding, "bf16"))
    valid = len(found)
    while len(found) > 1600:
        del found[::2]
    return valid, found


@pytest.mark.parametrize(
    ("name", "grids", "orientations"),
    [
        ("published", (1, 1, 2, 1), ("row_major",)),
        ("published", (4, 3, 2, 8), ("row_major",)),
        ("published", (2, 3, 3, 1), ("row_major", "col_major")),
        ("fitting", (1, 2, 1, 1), ("row_major",)),
    ],
)
def test_a_suite_holds_what_the_published_rules_say_in_their_order(name, grids, orientations):
    """Against a plain loop: which vectors are valid, and which remain when every other one is deleted."""
    tallest, widest = 249, 120
    valid, wanted = naive(grids, tallest, widest, orientations, name == "fitting")
    axes = {key: [value] for key, value in zip(("in_x", "in_y", "out_x", "out_y"), grids, strict=True)}
    axes |= {"height_tiles": range(1, tallest + 1), "width_tiles": range(1, widest + 1)}
    axes |= {"in_orientation": orientations, "out_orientation": orientations}
    (suite,) = reshard.sweep(name, axes)
    assert (suite.name, suite.valid) == ("{}x{}-{}x{}-bf16".format(*grids), valid)
    assert valid > 800
    assert suite.problems.rows() == wanted
    Problem(reshard, suite.problems.row(-1, named=True))


def test_equal_grids_have_no_suite_and_dtypes_suites_of_their_own():
    """A wider type fits fewer shapes."""
    axes = {"height_tiles": [12], "width_tiles": [12], **{key: [1, 2] for key in ("in_x", "in_y", "out_x", "out_y")}}
    grids = ["1x1", "1x2", "2x1", "2x2"]
    names = [suite.name for suite in reshard.sweep("published", axes)]
    assert names == [f"{source}-{target}-bf16" for source in grids for target in grids if source != target]
    axes = {"in_x": [1], "in_y": [1], "out_x": [1], "out_y": [2], "dtype": ["bf16", "fp32"]}
    narrow, wide = reshard.sweep("published", axes)
    assert (narrow.name, wide.name) == ("1x1-1x2-bf16", "1x1-1x2-fp32")
    assert narrow.valid > wide.valid > 0
    with pytest.raises(NotFound, match="did you mean 'published'"):
        reshard.sweep("publishd", {})


def rows(sweep):
    return [row for block in sweep.iter_blocks() for row in block.rows()]


def small_sweep(family=reshard_single, axes=None, **more):
    return open_sweep(family, CARD, ["published"], {**SMALL, "dtype": ["bf16"], **(axes or {})}, **more)


def test_slices_and_limits_hold_for_generated_sweeps(monkeypatch):
    """Batches or one piece, slices are disjoint and together the sweep, a limit is met exactly, threads multiply it."""
    whole = rows(small_sweep())
    monkeypatch.setattr("kerncast.measuring.sweeping.sweep.BLOCK_ROWS", 500)
    assert rows(small_sweep()) == whole
    assert len(whole) > 2000
    parts = [rows(small_sweep(part=Slice(index, 3))) for index in (1, 2, 3)]
    assert sorted(row for part in parts for row in part) == sorted(whole)
    assert min(map(len, parts)) > 0
    limited = small_sweep(max_vectors=123)
    assert limited.count() == len(set(rows(limited))) == 123
    assert set(rows(limited)) < set(whole)
    assert small_sweep(max_vectors=10**6).count() == len(whole)
    assert small_sweep(reshard_cpu, {"threads": [1, 2]}).count() == 2 * len(whole)
    cheap = rows(small_sweep(max_bytes=100 * 2 * 2048))
    assert cheap == [row for row in whole if row[0] * row[1] <= 100]
    with pytest.raises(InvalidValue, match="no problem of published is left"):
        write_vectors(small_sweep(max_bytes=1), "unused")
    with pytest.raises(InvalidValue, match="published is a whole sweep and cannot be combined with other problems"):
        open_sweep(reshard_single, CARD, ["published", "lognormal:3"])


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("file_format", ["parquet", "tt-sweep"])
def test_a_stopped_generated_sweep_continues_to_the_same_bytes(tmp_path, monkeypatch, file_format):
    """Killed after some files, or with a damaged one, the same command ends in what one run would have written."""
    monkeypatch.setattr("kerncast.measuring.sweeping.files.ParquetVectors.rows", 700)
    monkeypatch.setattr("kerncast.measuring.sweeping.files.SweepFramework.rows", 1)
    whole = write_vectors(small_sweep(), tmp_path / "whole", file_format=file_format)
    assert whole.vectors == whole.problems == len(rows(small_sweep()))
    assert whole.parts >= 4

    class Stopping(Progress):
        def step(self, what, done=0, of=None):
            if done > 1400:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_vectors(small_sweep(), tmp_path / "cut", file_format=file_format, progress=Stopping())
    with pytest.raises(BadFile, match="cut is unfinished"):
        Vectors.open(tmp_path / "cut")
    assert 1400 < write_vectors(small_sweep(), tmp_path / "cut", file_format=file_format).reused < whole.vectors
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    last = sorted((tmp_path / "cut").rglob("*-*.*"))[-1]
    last.write_bytes(last.read_bytes()[:-9])
    assert write_vectors(small_sweep(), tmp_path / "cut", file_format=file_format).reused < whole.vectors
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert rows(Vectors.open(tmp_path / "cut")) == rows(small_sweep())
    with pytest.raises(InvalidValue, match="its problems are different"):
        write_vectors(small_sweep(axes={"in_x": [1]}), tmp_path / "cut", file_format=file_format)


def test_the_tt_metal_layout_is_named_hashed_and_read_back(run, tmp_path):
    """One file per pair of grids, a suite per dtype, vectors by the hash that tt-metal's generator would give them."""
    out = tmp_path / "v"
    asked = ("--vary", "height_tiles=7:56:7", "--vary", "width_tiles=1:6:1", "--vary", "dtype=bf16,bfp8", "--vary", "out_y=2")
    args = ("sweep", "reshard/single", "--problems", "published", *asked, "--device", "wormhole_b0", "--out", out)
    code, shown, _ = run(*args, "-x", 2, "-y", 7, "--format", "tt-sweep", "--json")
    assert code == 0
    files = sorted(path.relative_to(out / "vectors_export").as_posix() for path in (out / "vectors_export").rglob("*.json"))
    read = pl.concat(Vectors.open(out).iter_blocks())
    assert json.loads(shown)["vectors"] == read.height
    grids = read.select("problem.in_x", "problem.in_y", "problem.out_x", "problem.out_y").unique().rows()
    assert files == sorted("{0}x{1}/reshard-{0}x{1}-{2}x{3}.json".format(*item) for item in grids)
    axes = {"height_tiles": range(7, 57, 7), "width_tiles": range(1, 7), "dtype": ["bf16", "bfp8"], "out_y": [2]}
    assert read.rows() == rows(open_sweep(reshard_single, CARD, ["published"], {**axes, "in_x": [2], "in_y": [7, 8]}))
    suites = json.loads((out / "vectors_export/2x7/reshard-2x7-3x2.json").read_text())
    assert list(suites) == ["2x7-3x2-DataType.BFLOAT16", "2x7-3x2-DataType.BFLOAT8_B"]
    for file in files:
        for suite, vectors in json.loads((out / "vectors_export" / file).read_text()).items():
            for name, vector in vectors.items():
                after = {key: vector.pop(key) for key in ("timestamp", "input_hash", "tag")}
                assert after["input_hash"] == name == hashlib.sha224(str(vector).encode()).hexdigest()
                assert vector["suite_name"] == suite


def test_results_of_the_tt_metal_layout_come_back_to_their_problems(run, tmp_path):
    """The importer joins by hash: results in any order, and a vector without one was not run."""
    axes = {"height_tiles": [2, 4], "width_tiles": [4, 8], "in_x": [2], "in_y": [1], "out_x": [4], "out_y": [1]}
    write_vectors(open_sweep(reshard_single, CARD, ["published"], axes), tmp_path, file_format="tt-sweep")
    (suite,) = json.loads((tmp_path / "vectors_export/2x1/reshard-2x1-4x1.json").read_text()).values()
    heights = {name: int(vector["shape"].split(",")[2]) // 32 for name, vector in suite.items()}
    results = [
        {"input_hash": name, "status": "TestStatus.PASS", "device_perf": {"DEVICE KERNEL DURATION [ns]": 1000 * height}}
        for name, height in reversed(heights.items())
        if name != min(heights)
    ]
    (tmp_path / "results_export/2x1").mkdir(parents=True)
    (tmp_path / "results_export/2x1/reshard-2x1-4x1.json").write_text(json.dumps(results))
    code, _, told = run("import", "tt-sweep", tmp_path, "--device", "wormhole_b0", "--out", tmp_path / "data")
    assert code == 0, told
    found = Dataset.open(tmp_path / "data").read()
    assert found.height == len(suite) > 4
    assert found.filter(pl.col("time_ns") == 1000 * pl.col("problem.height_tiles")).height == len(suite) - 1
    assert found.filter(pl.col("status") == "not_run").height == 1


def test_layouts_and_options_refuse_what_they_have_no_words_for(run, tmp_path):
    """tt-metal's layout is for cards and sorted grids; -x and -y are for grids."""
    with pytest.raises(InvalidValue, match=r"`file_format=tt-sweep` writes vectors of reshard/single, .*, not of reshard/cpu"):
        write_vectors(small_sweep(reshard_cpu), tmp_path / "v", file_format="tt-sweep")
    shape = {"height_tiles": 4, "width_tiles": 4, "in_x": 1, "in_y": 1, "in_strategy": "block", "out_strategy": "block"}
    problems = pl.DataFrame([{**shape, "out_x": x, "out_y": 1, "dtype": dtype} for dtype in ("bf16", "fp32") for x in (2, 4)])
    with pytest.raises(InvalidValue, match="from 1x1 to 2x1 are not next to each other"):
        list(SweepFramework().cut(Sweep(reshard_single, CARD, problems).iter_blocks()))
    code, _, told = run("sweep", "gemm/triton", "--problems", "cubes", "-x", 2, "--out", tmp_path / "w")
    assert code == 2
    assert "-x chooses input grids by in_x, which gemm lacks" in told
    code, _, told = run("sweep", "reshard/single", "--problems", "published", "-y", 9, "--out", tmp_path / "w")
    assert code == 2
    assert "-y must be a whole number from 1 to 8, got 9" in told


class Stencil(Op):
    """An op of someone else's, with a sweep of two suites."""

    name = "stencil"
    parameters = {"points": Int(1, 10_000), "dtype": dtype_parameter("fp32", "fp64")}
    split_group = ("points",)
    sweeps = {"lines": "lines of two lengths"}

    def sweep(self, name, axes):
        for dtype in axes.get("dtype", ["fp32"]):
            for start in (1, 1_000):
                points = pl.Series("points", range(start, start + 40))
                yield Suite(f"{start}-{dtype}", points.to_frame().with_columns(dtype=pl.lit(dtype)), 40)


class StencilTiled(Family):
    """Eight configs, of which short lines allow few."""

    id = "stencil/tiled"
    op = Stencil()
    parameters = {"tile": PowerOfTwo(1, 128)}

    def constraints(self, p, c, hw):
        yield Constraint("fits", "a tile is no longer than the line", c.tile <= p.points)


@pytest.mark.parametrize("limits", [{}, {"max_vectors": 90}, {"max_vectors": 90, "part": Slice(2, 3)}, {"part": Slice(1, 4)}])
@pytest.mark.parametrize("selection", [Selection(), Selection(per_problem=3)])
def test_any_op_may_generate_sweeps_and_its_configs_are_those_of_a_plain_sweep(limits, selection):
    """A generated sweep that is one batch is the plain sweep of the same problems, whatever is asked of it."""
    family = StencilTiled()
    both = {"dtype": ["fp32", "fp64"]}
    problems = pl.concat(suite.problems for suite in family.op.sweep("lines", both))
    generated = open_sweep(family, CARD, ["lines"], both, selection, **limits)
    plain = Sweep(family, CARD, problems, selection, **limits)
    assert rows(generated) == rows(plain)
    assert generated.count() == plain.count() > 0
    assert (generated.problem_count, generated.unchecked) == (plain.problem_count, plain.unchecked)
