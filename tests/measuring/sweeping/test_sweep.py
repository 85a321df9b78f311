"""Sweeps: the right vectors, in blocks, sliced, thinned out, written and resumed."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.support.artefacts import reseal

from kerncast.app import cli
from kerncast.core.io.artefact import file_checksum
from kerncast.core.op import Config, Family, Problem
from kerncast.core.parameters import Bool, Categorical, Choice, Int
from kerncast.core.progress import Progress
from kerncast.core.space import Constraint
from kerncast.data.schema import row_keys
from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.library import devices
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.single import eltwise_unary_single
from kerncast.library.ops.gemm import gemm
from kerncast.library.problems import problem_set
from kerncast.measuring.sweeping import (
    Selection,
    Slice,
    Sweep,
    Vectors,
    files,
    parse_selection,
    pool,
    vectors_of,
    write_vectors,
)
from kerncast.measuring.sweeping.files import format_named
from kerncast.testing.models import synthetic_dataset, synthetic_rows

A100 = devices.get("a100")


class Toy(Family):
    """Constraints of every kind: config alone, device, label of the problem, numbers of the problem."""

    id = "gemm/toy"
    op = gemm
    environment_parameters = {"threads": Choice(1, 2, 4)}
    parameters = {
        "kind": Categorical({"tiled": 0, "plain": 1}),
        "tile": Choice(4, 8, 16, when=lambda c: c.kind == "tiled"),
        "split": Int(1, 4),
        "packed": Bool(),
    }

    def constraints(self, p, c, hw):
        return [
            Constraint("alone", "a split needs packing", (c.split == 1) | (c.packed == 1)),
            Constraint("device", "split must fit", c.split * 40 <= hw.num_cus),
            Constraint("label", "no packing in fp64", (p.dtype != "fp64") | (c.packed == 0)),
            Constraint("number", "a tile must fit", (c.kind != "tiled") | (c.tile <= p.M)),
            Constraint("environment", "split at most threads", c.split <= p.threads),
        ]


TOY = Toy()
PARAMETERS = len(TOY.problem.parameters)
AXES = {"dtype": ["fp32", "fp64"], "layout": ["rcr"], "threads": [1, 2, 4]}


def toy_problems():
    return problem_set(TOY, ["grid:M=1,5,9,33;N=8;K=8,64"], AXES)


def rows(source):
    return [row for block in source.iter_blocks() for row in block.iter_rows()]


def brute_force(problems):
    """Every (problem, config), each checked one by one: the slow truth."""
    truth = []
    for values in problems.iter_rows(named=True):
        problem = Problem(TOY, values)
        for config in TOY.config.enumerate():
            if not TOY.config.validate({k: v for k, v in config.items() if v is not None}, TOY.bindings(problem, A100)):
                truth.append((*values.values(), *config.values()))
    return truth


@pytest.mark.parametrize("limit", [pool.POOL_ROWS, 3])
def test_all_vectors_are_exactly_the_valid_ones_listed_or_walked(monkeypatch, limit):
    """The masks, the pools and the walk agree with checking each pair; the count is right; blocks stay small."""
    monkeypatch.setattr(pool, "POOL_ROWS", limit)
    monkeypatch.setattr(pool, "_drawn", [])
    monkeypatch.setattr(pool, "BLOCK_ROWS", 7)
    problems = toy_problems() if limit > 3 else toy_problems().filter(pl.col("K") == 8, pl.col("M") != 5)
    sweep = Sweep(TOY, A100, problems)
    truth = brute_force(problems)
    found = rows(sweep)
    assert len(found) == len(truth) == sweep.count() == len(set(found))
    assert set(found) == set(truth)
    assert max(block.height for block in sweep.iter_blocks()) <= 7
    assert sweep._pool(0).checks_problems
    per_problem = Sweep(TOY, A100, problems, Selection(per_problem=2))
    assert max(Counter(row[:PARAMETERS] for row in rows(per_problem)).values()) == 2
    assert set(rows(per_problem)) < set(truth)


def test_vectors_are_values_with_the_keys_of_their_measurements():
    """A row as a Vector, its key equal to the vectorised one; a family with nothing to choose has one config."""
    sweep = Sweep(triton, A100, problem_set(triton, ["cubes"], {"dtype": ["fp16"], "layout": ["rrr"]}), Selection(2))
    block = next(sweep.iter_blocks())
    keys = row_keys(triton, block.with_columns(device=pl.lit("a100")))
    assert [vector.key("a100") for vector in vectors_of(triton, block)] == keys.to_list()
    assert sweep.count() == block.height == 2 * sweep.problems.height
    axes = {"func": ["exp"], "dtype": ["bf16"], "buffer": ["dram"]}
    single = Sweep(
        eltwise_unary_single, devices.get("wormhole_b0"), problem_set(eltwise_unary_single, ["grid:dim3=32,64"], axes)
    )
    assert not single._pool(0).checks_problems
    assert single.count() == len(rows(single)) == 2


def test_a_sample_is_uniform_over_the_valid_configs_of_its_problem():
    """Each valid config equally often over the seeds; a problem's sample does not depend on its company."""
    problems = toy_problems()
    one = problems.filter((pl.col("M") == 9) & (pl.col("K") == 64) & (pl.col("dtype") == "fp32") & (pl.col("threads") == 2))
    valid = brute_force(one)
    seen = Counter(row for seed in range(120) for row in rows(Sweep(TOY, A100, one, Selection(3), seed=seed)))
    assert set(seen) == set(valid)
    expected = 360 / len(valid)
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < len(valid) + 6 * np.sqrt(2 * len(valid))
    crowd = set(rows(Sweep(TOY, A100, problems, Selection(3), seed=5)))
    assert set(rows(Sweep(TOY, A100, one, Selection(3), seed=5))) <= crowd


@pytest.mark.parametrize(
    "more", [{}, {"selection": Selection(4)}, {"max_vectors": 101}, {"selection": Selection(4), "max_vectors": 50}]
)
def test_slices_are_disjoint_complete_and_balanced(more):
    """The shares of any sweep add up to it; thinning out keeps exactly the asked number, in proportion."""
    problems = toy_problems()
    whole = rows(Sweep(TOY, A100, problems, seed=2, **more))
    shares = [Sweep(TOY, A100, problems, seed=2, part=Slice(i, 5), **more) for i in range(1, 6)]
    found = [rows(share) for share in shares]
    assert [len(share) for share in found] == [share.count() for share in shares]
    assert Counter(row for share in found for row in share) == Counter(whole)
    assert len(set(whole)) == len(whole)
    if "max_vectors" in more:
        assert len(whole) == more["max_vectors"]
        everything = Counter(row[:PARAMETERS] for row in rows(Sweep(TOY, A100, problems, more.get("selection"), seed=2)))
        kept = Counter(row[:PARAMETERS] for row in whole)
        share = len(whole) / everything.total()
        assert all(abs(kept[problem] - share * n) < 1 for problem, n in everything.items())
    else:
        assert {len({row[:PARAMETERS] for row in share}) for share in found} <= {9, 10}  # of 48 problems


def test_a_portfolio_is_checked_against_every_problem(tmp_path):
    """Only its configs, only where they are valid; a config that can never be is refused by name."""
    configs = [{"kind": "tiled", "tile": 8, "split": 1, "packed": True}, {"kind": "plain", "split": 2, "packed": True}]
    file = tmp_path / "best.json"
    file.write_text(json.dumps(configs))
    found = rows(Sweep(TOY, A100, toy_problems(), parse_selection(TOY, f"portfolio:{file}")))
    wanted = {tuple(c.get(name) for name in TOY.parameters) for c in configs}
    assert set(found) == {row for row in brute_force(toy_problems()) if row[PARAMETERS:] in wanted}
    file.write_text(json.dumps([{"kind": "plain", "split": 2, "packed": False}]))
    with pytest.raises(BadFile, match=r"best\.json: a split needs packing; got kind=plain"):
        parse_selection(TOY, f"portfolio:{file}")
    for text in ("sample:0", "some", "portfolio:best"):
        with pytest.raises(InvalidValue, match="configs are all, sample:N"):
            parse_selection(TOY, text)


def test_the_configs_of_a_dataset_are_a_portfolio(tmp_path):
    """Those that worked somewhere in it, each once; a dataset of another family, or in which nothing worked, is refused."""
    rows = synthetic_rows(problems=4)
    data, failed = synthetic_dataset(tmp_path / "data", rows), rows.filter(pl.col("status") != "ok")
    found = parse_selection(triton, f"portfolio:{data}").portfolio
    worked = rows.filter(pl.col("status") == "ok").select(f"config.{name}" for name in found.columns).unique()
    assert Counter(found.rows()) == Counter(worked.rows())
    assert worked.height < rows.select(worked.columns).unique().height
    with pytest.raises(KerncastError, match="gemm/triton"):
        parse_selection(TOY, f"portfolio:{data}")
    with pytest.raises(InvalidValue, match="no config of gemm/triton worked"):
        parse_selection(triton, f"portfolio:{synthetic_dataset(tmp_path / 'failed', failed)}")


def triton_sweep(**more):
    problems = problem_set(triton, ["cubes"], {"dtype": ["fp16", "fp32"], "layout": ["rcr"]})
    return Sweep(triton, A100, problems, Selection(per_problem=30), **more)


def contents(path: Path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_a_stopped_sweep_continues_to_the_same_bytes(tmp_path, monkeypatch, file_format):
    """Killed after two parts, or with a damaged part, the same command ends in what one run would have written."""
    monkeypatch.setattr(type(format_named(file_format)), "rows", 500)
    whole = write_vectors(triton_sweep(), tmp_path / "whole", file_format=file_format)
    assert (whole.vectors, whole.problems, whole.parts, whole.reused) == (2220, 74, 5, 0)
    assert rows(Vectors.open(tmp_path / "whole")) == rows(triton_sweep())

    class Stopping(Progress):
        def step(self, what, done=0, of=None):
            if done == 1000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_vectors(triton_sweep(), tmp_path / "cut", file_format=file_format, progress=Stopping())
    with pytest.raises(BadFile, match="cut is unfinished: run the same"):
        Vectors.open(tmp_path / "cut")
    assert write_vectors(triton_sweep(), tmp_path / "cut", file_format=file_format).reused == 1000
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")

    part = tmp_path / "cut" / f"part-00003.{file_format}"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(BadFile, match=r"part-00003\..* is truncated"):
        rows(Vectors.open(tmp_path / "cut"))
    assert write_vectors(triton_sweep(), tmp_path / "cut", file_format=file_format).reused == 1500
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert write_vectors(triton_sweep(), tmp_path / "cut", file_format=file_format) == files.SweepSummary(
        tmp_path / "cut", whole.vectors, whole.problems, whole.configs, whole.bytes, whole.parts, whole.vectors
    )


def test_other_sweeps_and_foreign_directories_are_refused_by_name(tmp_path):
    """A resume is the same sweep or nothing; a reader accepts no stranger."""
    write_vectors(triton_sweep(), tmp_path / "v")
    for other, words in (
        (triton_sweep(seed=1), "its seed is 0, this one's is 1"),
        (triton_sweep(part=Slice(1, 2)), "its slice is None, this one's is 1/2"),
        (Sweep(triton, A100, triton_sweep().problems.head(3), Selection(30)), "its problems are different"),
    ):
        with pytest.raises(InvalidValue, match=f"holds another sweep .*{words}"):
            write_vectors(other, tmp_path / "v")
    manifest = tmp_path / "v" / "vectors.json"
    text = manifest.read_text()
    other_space = text.replace(triton.config.digest, "0" * 32)
    for changed, words in (
        (text.replace("kerncast-vectors", "other"), "is not a list of vectors: its format is 'other'"),
        (other_space, "differs from its checksum"),
        (reseal(json.loads(other_space)).decode(), "another config space"),
        (text[:90], "is damaged"),
    ):
        manifest.write_text(changed)
        with pytest.raises(BadFile, match=words):
            Vectors.open(tmp_path / "v")
    with pytest.raises(NotFound, match="there are no vectors at"):
        Vectors.open(tmp_path / "nowhere")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(BadFile, match=r"photos is not a directory of vectors.*choose another `out`"):
        write_vectors(triton_sweep(), tmp_path / "photos")
    with pytest.raises(CannotWrite, match=r"a\.jpg is a file, and vectors are a directory: choose another `out`"):
        write_vectors(triton_sweep(), tmp_path / "photos" / "a.jpg")
    with pytest.raises(InvalidValue, match="take at most 74 slices"):
        triton_sweep(part=Slice(1, 75))
    with pytest.raises(InvalidValue, match="the sweep is empty: no config of gemm/toy is valid on"):
        write_vectors(Sweep(TOY, devices.Device("tiny", "", "cpu", {"num_cus": 1}), toy_problems()), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_verb_writes_says_and_refuses(tmp_path, capsys):
    """The summary for people and programs, the second run, a constraint that cannot be checked, exit code 2."""

    def run(*args):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["sweep", "gemm/triton", "--problems", "cubes", *args, "--out", str(tmp_path / "v")])
        return stopped.value.code, *capsys.readouterr()

    axes = ("--vary", "dtype=fp16", "--vary", "layout=rcr", "--configs", "sample:5", "--device")
    code, out, err = run(*axes, "cpu_generic", "--json")
    assert code == 0
    assert {k: json.loads(out)[k] for k in ("vectors", "problems")} == {"vectors": 185, "problems": 37}
    assert "not checked: shared_memory_fits needs smem_per_block_bytes" in err
    assert "already complete" in run(*axes, "cpu_generic")[1]
    code, out, err = run(*axes, "a100")
    assert (code, out) == (2, "")
    assert "its device is cpu_generic, this one's is a100" in err
    assert run("--slice", "3")[0] == 2
    assert all(
        isinstance(vector.config, Config) for vector in vectors_of(triton, next(Vectors.open(tmp_path / "v").iter_blocks()))
    )


def test_a_second_sweep_into_a_directory_that_is_being_written_is_refused(tmp_path):
    """One writer, told by its process; the lock leaves nothing behind, and neither does a holder that was killed."""
    sweep = Sweep(TOY, A100, toy_problems())
    refused = []

    class Meanwhile(Progress):
        def step(self, what, done=0, of=None):
            with pytest.raises(InvalidValue, match=f"is being written by process {os.getpid()}: wait for it, or choose"):
                write_vectors(sweep, tmp_path / "v")
            refused.append(done)

    write_vectors(sweep, tmp_path / "v", progress=Meanwhile())
    assert refused
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == ["part-00000.parquet", "vectors.json"]
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / files.LOCK).write_text("1234567")
    assert write_vectors(sweep, tmp_path / "w").vectors == sweep.count()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    with pytest.raises(BadFile, match="is not a directory of vectors"):
        write_vectors(sweep, tmp_path / "foreign")
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("half", "change", "why"),
    [
        ("config", {"BLOCK_M": 17}, "row 3: config.BLOCK_M must be .*, got 17"),
        ("config", {"colour": 1}, "row 3: unknown parameter of gemm/triton 'config.colour'"),
        ("problem", {"M": "many"}, "row 3: problem.M must be of type int, got 'many'"),
        ("problem", {"N": None}, "row 3: problem.N must be .*, got None"),
    ],
)
def test_a_vector_outside_its_family_is_refused_by_file_and_row(half, change, why, tmp_path):
    """Before it is measured, even if file and checksum agree."""
    write_vectors(triton_sweep(max_vectors=100), tmp_path / "v", file_format="json")
    part, manifest = tmp_path / "v" / "part-00000.json", tmp_path / "v" / "vectors.json"
    rows = json.loads(part.read_text())
    rows[2][half] |= change
    part.write_text(json.dumps(rows))
    listed = json.loads(manifest.read_text())
    listed["parts"][0] |= {"bytes": part.stat().st_size, "checksum": file_checksum(part)}
    manifest.write_bytes(reseal(listed))
    with pytest.raises(BadFile, match=f"part-00000.json, {why}.* make the vectors again with `kerncast sweep`"):
        list(Vectors.open(tmp_path / "v").iter_blocks())
