"""What two shardings put on the network: tables against a tile-by-tile simulation, and features against counting."""

import numpy as np
import pytest
from releasing import reshard_noc

from kerncast.core.device import hardware_namespace
from kerncast.core.expr import Program
from kerncast.core.op import Problem
from kerncast.library import devices
from kerncast.library.families.single import reshard_cpu, reshard_single
from kerncast.library.ops import reshard

NAMES = ("block", "width", "height")
CASES = [
    ((0, 0), ((2, 3), (4, 1))),
    ((0, 2), ((8, 3), (6, 2))),
    ((1, 0), ((5, 1), (2, 7))),
    ((2, 1), ((3, 3), (2, 4))),
    ((1, 2), ((8, 8), (7, 5))),
]


def owner(strategy, grid, height, width):
    """The core (of 8 × 8) that holds each tile, written out tile by tile."""
    x, y = grid
    found = np.zeros((height, width), int)
    for row in range(height):
        for column in range(width):
            if strategy == 0:
                core = (column * x // width, row * y // height)
            else:
                shard = column * x * y // width if strategy == 1 else row * x * y // height
                core = (shard % x, shard // x)
            found[row, column] = core[1] * 8 + core[0]
    return found


@pytest.mark.parametrize(("strategies", "grids"), CASES)
def test_flows_are_the_tiles_that_change_cores(strategies, grids):
    """Counted tile by tile on a tensor that both sides cut evenly: upper halves of shards on network 0, lower on 1."""
    height, width = (
        2 * np.lcm.reduce([reshard_noc.parts(s, g)[side] for s, g in zip(strategies, grids, strict=True)]) for side in (0, 1)
    )
    source, target = (owner(s, g, height, width) for s, g in zip(strategies, grids, strict=True))
    shard_rows = height // reshard_noc.parts(strategies[1], grids[1])[0]
    lower = (np.arange(height) % shard_rows >= shard_rows / 2)[:, None]
    for network in (0, 1):
        counted = np.zeros((64, 64))
        on = np.broadcast_to(lower == bool(network), source.shape)
        np.add.at(counted, (source[on], target[on]), 1 / (height * width))
        np.testing.assert_allclose(reshard_noc.flows(strategies, grids, network), counted, atol=1e-12)


def test_routes_turn_once_and_wrap_round_the_torus():
    """From core (0, 0) to (1, 1) and back: 2 hops one way; the other way round both rings."""
    here, there = 0, 9
    hops = [reshard_noc.routes(network)[a, b].sum() for network in (0, 1) for a, b in ((here, there), (there, here))]
    assert hops == [2, 20, 20, 2]
    # Network 0 leaves the source (router column 1, row 1) east, so it uses row 1 and then column 2.
    east, south = reshard_noc.routes(0)[here, there].reshape(2, 12, 10)
    assert np.argwhere(east).tolist() == [[1, 1]]
    assert np.argwhere(south).tolist() == [[1, 2]]


@pytest.mark.parametrize(("strategies", "grids"), CASES)
def test_shipped_tables_are_what_the_generator_computes(strategies, grids):
    """The file beside the code is not older than the code."""
    (in_x, in_y), (out_x, out_y) = grids
    place = (*strategies, in_x - 1, in_y - 1, out_x - 1, out_y - 1)
    shipped = [table.values[np.ravel_multi_index(place, table.shape)] for table in reshard.network_tables().values()]
    np.testing.assert_allclose(shipped, reshard_noc.rounded(reshard_noc.loads(strategies, grids)), rtol=1e-6)


def test_one_core_to_many_is_bound_by_what_a_core_puts_in():
    """From 1×1, half the tensor over each network at 28.1 bytes a cycle: 36.4 ns a tile, as cards measure."""
    problem = values(height_tiles=16, width_tiles=16, in_x=1, in_y=1, out_x=4, out_y=4, out_strategy="block")
    assert problem["noc_ns"] / 256 == pytest.approx(2048 / (2 * 28.1), rel=1e-3)


def values(family=reshard_single, device="wormhole_b0", **given):
    given = {"in_strategy": "block", "dtype": "bf16", **given}
    problem = Problem(family, given)
    program = family.features_on(devices.get(device), [problem.dtype]).program
    return program.scalar(family.problem.qualified(problem.as_dict()))


@pytest.mark.parametrize(
    ("grids", "strategies", "shape", "runs"),
    [
        # 2 × 2 blocks to 4 heights: each of 8 rows in 2 runs.
        ((2, 2, 2, 2), ("block", "height"), (8, 8), 16),
        # Shards of one width: whole blocks of rows at once, cut where either side cuts: 3 + 2 - 1 pieces in 2 columns.
        ((2, 3, 2, 2), ("block", "block"), (6, 4), 8),
        # 4 and 6 columns meet in 8 pieces, in each of 5 rows.
        ((2, 2, 3, 2), ("width", "width"), (5, 12), 40),
    ],
)
def test_runs_are_pieces_of_contiguous_tiles(grids, strategies, shape, runs):
    """Counted by hand on small tensors."""
    names = dict(zip(("in_x", "in_y", "out_x", "out_y"), grids, strict=True))
    names |= dict(zip(("in_strategy", "out_strategy", "height_tiles", "width_tiles"), (*strategies, *shape), strict=True))
    found = values(**names)
    assert (found["runs"], found["tiles_per_run"]) == (runs, shape[0] * shape[1] / runs)


def test_a_device_without_a_network_has_no_features_of_it():
    """On CPUs the cuts remain and everything of the network is left out, by name."""
    kept = reshard_cpu.features_on(devices.get("cpu_generic"), ["bf16"])
    assert "runs" in kept.program.outputs
    assert not [name for name in kept.program.outputs if "noc_" in name]
    assert "noc_queue_cycles" in kept.left_out


def test_the_floor_of_a_reshard_on_a_chip_is_its_network():
    """Work on the chip: no time for main memory, and the roofline is the busiest link or core."""
    p = reshard_single.namespace
    work = reshard.OnChip(p.tiles * 0, 2 * p.tiles * p.tile_bytes, p)
    hw = devices.get("wormhole_b0").bindings(reshard_single.op.dtype, ["bf16"])
    floor = Program({"floor": work.roofline_ns(hardware_namespace())}).bind(hw)
    shape = {"height_tiles": 8, "width_tiles": 8, "in_x": 2, "in_y": 2, "out_x": 1, "out_y": 1}
    given = Problem(reshard_single, {**shape, "dtype": "bf16", "in_strategy": "block", "out_strategy": "height"})
    found = floor.scalar(reshard_single.problem.qualified(given.as_dict()))["floor"]
    assert found == pytest.approx(64 * 2048 / 2 / 28.1, rel=1e-3)
