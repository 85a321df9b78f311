"""Leaving out rows whose labels belong to other rows."""

import numpy as np
import polars as pl

from kerncast.data import schema
from kerncast.data.label_shift import without_suspect
from kerncast.library.registry import FAMILIES

FAMILY = FAMILIES.get("eltwise_unary/single")


def table(shifted):
    """Times that follow the tile count, in 600 rows of one file; 200 of them two rows late if so wanted."""
    chance = np.random.default_rng(0)
    sides = 32 * chance.integers(1, 64, (600, 2))
    times = 900.0 + 0.01 * sides.prod(axis=1)
    if shifted:
        times[200:400] = times[198:398]
    rows = pl.DataFrame(
        {"problem.func": "exp", "problem.dim2": sides[:, 0], "problem.dim3": sides[:, 1], "problem.dtype": "bf16",
         "problem.buffer": "l1", "device": "wormhole_b0", "status": "ok", "time_ns": times, "source": "a",
         "source_line": np.arange(600)}
    )  # fmt: skip
    return schema.conform(FAMILY, rows)


def test_shifted_rows_go_and_others_stay():
    """A table that is right stays whole; of one that was joined by position, the shifted stretch goes."""
    assert without_suspect(FAMILY, table(False)).height == 600
    left = without_suspect(FAMILY, table(True))
    gone = set(range(600)) - set(left["source_line"])
    assert 190 <= len(gone) <= 210
    assert len(gone & set(range(200, 400))) >= 190
