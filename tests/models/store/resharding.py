"""Reshards on lines, and questions about them, for tests of stores with models of parts of an op."""

import json

import polars as pl

GRIDS = [(1, 2), (2, 2), (1, 4)]
ASKED = {"op": "reshard", "in_x": 2, "in_y": 2, "out_x": 2, "out_y": 1, "height_tiles": 16, "width_tiles": 16, "dtype": "bf16"}
WIDE = {**ASKED, "in_strategy": "width", "out_strategy": "height"}
BLOCK = {**ASKED, "in_strategy": "block", "out_strategy": "width"}


def ask(query, request):
    return json.loads(query.answer(json.dumps(request)))


def reshard_rows(pair, slope, software=None, most=24):
    """Times on lines: 1,000 ns and `slope` ns a tile and input core."""
    found = [
        {"problem.height_tiles": 8 * height, "problem.width_tiles": 8 * width, "problem.in_x": x, "problem.in_y": y,
         "time_ns": 1000.0 + slope * x * y * 64 * height * width}
        for x, y in GRIDS for height in range(1, most, 3) for width in range(1, most, 5)
    ]  # fmt: skip
    fixed = {"problem.out_x": 2, "problem.out_y": 1, "problem.dtype": "bf16", "problem.in_strategy": pair[0]}
    fixed |= {"problem.out_strategy": pair[1], "device": "wormhole_b0", "status": "ok"}
    fixed |= {"software": json.dumps({"commit": software})} if software else {}
    return pl.DataFrame(found).with_columns(pl.lit(value).alias(name) for name, value in fixed.items())
