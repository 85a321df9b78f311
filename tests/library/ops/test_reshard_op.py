"""The reshard op: what its shards are, what it refuses, and what it costs at the least."""

import pytest

from kerncast.core.device import hardware_namespace
from kerncast.core.expr import Program
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.ops.reshard import reshard

PLAIN = {
    "height_tiles": 24, "width_tiles": 36, "in_x": 2, "in_y": 3, "out_x": 3, "out_y": 4,
    "in_strategy": "block", "out_strategy": "width", "dtype": "bf16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "orientation", "shard"),
    [
        ("block", "row_major", (8, 18)),
        ("block", "col_major", (12, 12)),
        ("width", "row_major", (24, 6)),
        ("width", "col_major", (24, 6)),
        ("height", "row_major", (4, 36)),
    ],
)
def test_shards_follow_from_grid_strategy_and_orientation(strategy, orientation, shard):
    """Column-major blocks lay the height along x; whole rows and columns are cut alike in both orientations."""
    problem = Problem(reshard, {**PLAIN, "in_strategy": strategy, "in_orientation": orientation})
    assert (problem.in_shard_rows, problem.in_shard_columns, problem.in_shard_tiles) == (*shard, 24 * 36 / 6)
    assert (problem.out_shard_rows, problem.out_shard_columns, problem.out_shard_tiles) == (24, 3, 72)


@pytest.mark.parametrize(("change", "side"), [({"height_tiles": 25}, "input"), ({"width_tiles": 38}, "output")])
def test_a_shard_of_broken_tiles_is_refused_with_the_rule(change, side):
    """Either side, by name."""
    with pytest.raises(InvalidValue, match=f"the {side} grid must cut the tensor into equal shards of whole tiles"):
        Problem(reshard, {**PLAIN, **change})


def test_what_only_moves_has_a_roofline_where_no_peak_is_known():
    """Types that nothing multiplies can still be moved: twice the tensor's bytes, at the memory's rate."""
    work = reshard.work(reshard.namespace())
    card = devices.get("wormhole_b0")
    assert "uint16" not in card.peak_tflops
    floor = Program({"ns": work.roofline_ns(hardware_namespace())}).bind(card.bindings(reshard.dtype, ["uint16"]))
    problem = Problem(reshard, {**PLAIN, "dtype": "uint16"})
    found = floor.scalar(reshard.problem.qualified(problem.as_dict()))["ns"]
    assert found == pytest.approx(2 * 24 * 36 * 1024 * 2 / 288)
