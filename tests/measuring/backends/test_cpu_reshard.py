"""Resharding on the CPU: the page map, the runs made from it, and the bytes that really move."""

from itertools import pairwise, product

import numpy as np
import pytest

from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.library.families.single import reshard_cpu
from kerncast.measuring.backends.cpu.machine import Machine
from kerncast.measuring.backends.cpu.reshard import ReshardPart, moves, placement
from kerncast.models.model import Model

CONFIG = Config(reshard_cpu)
SHARDINGS = list(product(("block", "width", "height"), ("row_major", "col_major")))


def problem(source, target, *, in_grid=(2, 3), out_grid=(3, 4), threads=1, dtype="bf16", scale=1):
    """A tensor of 24 × 36 tiles (or a multiple), which every sharding of the grids used here divides."""
    return Problem(
        reshard_cpu,
        height_tiles=24 * scale, width_tiles=36 * scale, dtype=dtype, threads=threads,
        in_x=in_grid[0], in_y=in_grid[1], in_strategy=source[0], in_orientation=source[1],
        out_x=out_grid[0], out_y=out_grid[1], out_strategy=target[0], out_orientation=target[1],
    )  # fmt: skip


def naive_placement(height, width, x, y, strategy, orientation):
    """Tile by tile: the tensor is dealt out in shards, and each core takes the next one."""
    grid = [(column, row) for row in range(y) for column in range(x)]
    if orientation == "col_major":
        grid = [(column, row) for column in range(x) for row in range(y)]
    down, across = {"height": (x * y, 1), "width": (1, x * y), "block": (y, x)}[strategy]
    if strategy == "block" and orientation == "col_major":
        down, across = x, y
    high, wide = height // down, width // across
    found, n = {}, 0
    for top in range(0, height, high):
        for left in range(0, width, wide):
            column, row = grid[n]
            n += 1
            for place in range(high * wide):
                found[top + place // wide, left + place % wide] = (row * x + column, place)
    return [found[row, column] for row in range(height) for column in range(width)]


@pytest.mark.parametrize(("strategy", "orientation"), SHARDINGS)
@pytest.mark.parametrize("grid", [(2, 3), (3, 4), (1, 1), (4, 1), (1, 6)])
def test_every_tile_has_the_place_that_dealing_out_shards_gives_it(strategy, orientation, grid):
    """Blocks, columns and rows, along the grid's rows or down its columns."""
    values = problem((strategy, orientation), SHARDINGS[0], in_grid=grid, out_grid=(1, 1)).as_dict()
    found = placement(values, "in")
    assert list(zip(found.core, found.place, strict=True)) == naive_placement(24, 36, *grid, strategy, orientation)
    assert found.shard_tiles * found.cores == 24 * 36


@pytest.mark.parametrize("threads", [1, 3])
def test_runs_move_every_tile_once_and_are_as_long_as_they_can_be(threads):
    """Neighbours on both sides travel together; only a core's end or another thread's share cuts them."""
    for source, target in product(SHARDINGS, SHARDINGS):
        values = problem(source, target).as_dict()
        before, after = placement(values, "in"), placement(values, "out")
        found = moves(before, after, threads)
        wanted = dict(zip(zip(after.core, after.place, strict=True), zip(before.core, before.place, strict=True), strict=True))
        runs = list(zip(found.from_core, found.from_place, found.to_core, found.to_place, found.tiles, strict=True))
        moved = {(d, e + step): (b, c + step) for b, c, d, e, n in runs for step in range(n)}
        assert moved == wanted
        assert found.tiles.sum() == len(wanted)
        joined = [
            index for index, (left, right) in enumerate(pairwise(runs), 1) if (left[0], left[1] + left[4], left[2]) == right[:3]
        ]
        assert set(joined) <= set(found.first[1:-1])
        shares = np.add.reduceat(found.tiles, found.first[:-1])
        assert len(found.first) == threads + 1
        assert shares.max() - shares.min() <= 1


@pytest.fixture(scope="module")
def part():
    return ReshardPart(Machine())


@pytest.mark.needs("a C compiler")
def test_all_strategies_orientations_and_types_arrive_byte_for_byte(part):
    """One thread or several, whole tiles of any size."""
    for source, target in product(SHARDINGS, SHARDINGS):
        assert part.prepare(problem(source, target), CONFIG).check() == 0.0
    for dtype, threads in product(("fp32", "bfp8", "bfp4", "uint8"), (1, 2, 5)):
        assert part.prepare(problem(SHARDINGS[0], SHARDINGS[2], dtype=dtype, threads=threads), CONFIG).check() == 0.0
    assert part.prepare(problem(SHARDINGS[0], SHARDINGS[0], in_grid=(1, 1), out_grid=(1, 1), threads=2), CONFIG).run(3) > 0


@pytest.mark.needs("a C compiler")
def test_a_tile_that_is_lost_or_misplaced_is_an_error(part):
    """The check trusts no run: a shortened, a diverted or a shifted one shows."""
    for field, change in (("bytes", -1), ("to_offset", 64), ("from_offset", -2048), ("to", 1)):
        prepared = part.prepare(problem(SHARDINGS[0], SHARDINGS[2]), CONFIG)
        victim = np.flatnonzero(prepared.plan.keep[0]["from_offset"] >= 2048)[0]
        prepared.plan.keep[0][field][victim] += change
        assert prepared.check() > 0.0, field


@pytest.mark.needs("a C compiler")
def test_memory_is_that_of_the_largest_problem_and_earlier_ones_survive_growth():
    """Side by side a hundred problems take no more than the largest; buffers that moved are found again."""
    part = ReshardPart(Machine())
    held = [part.prepare(problem(SHARDINGS[0], sharding), CONFIG) for sharding in SHARDINGS for _ in range(20)]
    shard = 24 * 36 // 6 * 2048
    assert [len(buffer) for buffer in part.source.buffers[:7]] == [shard] * 6 + [0]
    larger = part.prepare(problem(SHARDINGS[0], SHARDINGS[1], scale=3), CONFIG)
    assert [len(buffer) for buffer in part.source.buffers[:7]] == [9 * shard] * 6 + [0]
    addresses = [buffer.ctypes.data for buffer in part.source.buffers[:6] + part.target.buffers[:12]]
    assert all(address % 4096 == 0 for address in addresses)
    assert len(set(addresses)) == 18
    assert all(prepared.check() == 0.0 for prepared in (held[0], larger, held[-1]))


@pytest.mark.needs("a C compiler")
def test_measured_problems_become_lines(run, tmp_path):
    """From the sweep to a model on this machine: every row checked, a line for each group that it was measured in."""
    axes = ("height_tiles=8:64:8", "width_tiles=8,16", "in_x=2", "in_y=2", "out_x=4", "out_y=1", "threads=1")
    vary = [word for axis in axes for word in ("--vary", axis)]
    assert run("sweep", "reshard/cpu", "--problems", "published", *vary, "--max-vectors", 60, "--out", tmp_path / "v")[0] == 0
    args = (tmp_path / "v", "--samples", 3, "--out", tmp_path / "data")
    code, _, told = run("collect", *args)
    assert code == 0, told
    rows = Dataset.open(tmp_path / "data").read()
    assert rows.height == 60
    assert set(rows["status"]) == {"ok"}
    assert set(rows["max_abs_err"]) == {0.0}
    code, _, told = run("train", tmp_path / "data", "--kind", "linear", "--folds", 2, "--out", tmp_path / "lines")
    assert code == 0, told
    groups = rows.select("problem.in_strategy", "problem.out_strategy").n_unique()
    assert Model.load(tmp_path / "lines").learner.size()["lines"] == groups
