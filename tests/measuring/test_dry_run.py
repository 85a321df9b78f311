"""What a collection would take: the estimate of a dry run, and candidates that are drawn instead of listed."""

import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring import dry_run as estimate
from kerncast.measuring import run as active
from kerncast.measuring.collection import Collection, Request
from kerncast.measuring.plan import VectorChoice
from kerncast.measuring.sweeping import sweep as sweeps
from kerncast.testing.backends import QUICK

TRITON = family_named("gemm/triton")
INSTANT = "kerncast.testing.backends:Instant"
CHOSEN = {"problems": ["grid:M=64:1024:64;N=64,128;K=64"], "vary": ["dtype=fp16", "layout=rcr"]}


def options(**changes):
    return {"measuring": kerncast.Measuring(INSTANT, samples=2), **CHOSEN, "configs": "sample:20", **changes}


def test_a_dry_run_says_how_long_it_takes_and_leaves_nothing(tmp_path, monkeypatch):
    """It measures some vectors somewhere else; rows that exist are not counted; a budget is an upper bound."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    told = kerncast.collect("gemm/triton", dry_run=True, out=tmp_path / "d", **options())
    assert (told.vectors, told.already_there, told.exact) == (640, 0, True)
    assert 0 < told.seconds < 3600
    assert [path.name for path in tmp_path.rglob("*")] == ["scratch"]
    kerncast.collect("gemm/triton", out=tmp_path / "d", **options(problems="grid:M=64:1024:64;N=64;K=64"))
    told = kerncast.collect("gemm/triton", dry_run=True, out=tmp_path / "d", **options())
    assert (told.vectors, told.already_there) == (320, 320)
    told = kerncast.collect("gemm/triton", dry_run=True, out=tmp_path / "e", extent=kerncast.Extent(budget=1e-3), **options())
    assert told.seconds == 1e-3


def test_a_space_that_is_too_large_to_count_is_drawn_from(tmp_path, monkeypatch):
    """Some problems stand for all of them: the numbers are close, and are called estimates."""
    whole = kerncast.collect("gemm/triton", dry_run=True, out=tmp_path / "d", **options(configs="sample:100"))
    assert whole.exact
    monkeypatch.setattr(estimate, "DRAWN", 400)
    told = kerncast.collect("gemm/triton", dry_run=True, out=tmp_path / "d", **options(configs="sample:100"))
    assert not told.exact
    assert told.vectors == pytest.approx(whole.vectors, rel=0.2)
    assert "about" in str(told)


def test_a_count_that_takes_long_is_an_estimate(monkeypatch):
    """Close to the truth, and nothing but some problems is checked; a limit is still met exactly."""
    opencl, device = family_named("gemm/cpu"), devices.get("local")
    problems = ["grid:M=8:128:8;N=16,256;K=64"]
    axes = {"dtype": ["fp32"], "layout": ["rrr"], "threads": [1]}
    sweep = sweeps.Sweep
    from kerncast.measuring.sweeping import Selection, open_sweep

    exact = open_sweep(opencl, device, problems, axes, Selection(50)).count()
    monkeypatch.setattr(sweeps, "COUNTED_CHECKS", 1000)
    opened = open_sweep(opencl, device, problems, axes, Selection(50))
    assert isinstance(opened, sweep)
    about, is_exact = opened.count_about()
    assert about == pytest.approx(exact, rel=0.1)
    assert is_exact == (not opened._takes_long)
    limited = open_sweep(opencl, device, problems, axes, Selection(50), max_vectors=100)
    assert sum(block.height for block in limited.iter_blocks()) == 100


def test_candidates_of_an_active_choice_are_bounded(tmp_path, monkeypatch):
    """Every problem keeps some configs; vectors from a folder are thinned to a share that depends on them alone."""
    found = VectorChoice(TRITON, **CHOSEN, most_candidates=1000).planned(devices.get("a100"))
    blocks = pl.concat(list(found.source.iter_blocks()))
    assert found.total == blocks.height <= 1000
    assert blocks.select(pl.col("problem.M", "problem.N")).unique().height == 32

    monkeypatch.setattr(active, "MOST_CANDIDATES", 200)
    collection = Collection(Request(TRITON, INSTANT, ("0",), tmp_path / "d", QUICK), Dataset.create(tmp_path / "d"))
    monkeypatch.setattr(Collection, "device", "a100")
    collection.total = blocks.height
    thinned = active._distinct(collection, [blocks])
    assert 120 < thinned.height < 280
    assert thinned.equals(active._distinct(collection, [blocks]))
    assert active._distinct(collection, []).height == 0
