"""`roofline`: the lower bound of the time, scaled by one number. A baseline."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Self

import numpy as np

from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Fitting, Learner, Options, Output, read_arrays, write_arrays
from kerncast.learning.learners.lowering import Level
from kerncast.learning.tables.feature_rows import Rows
from kerncast.learning.tables.table import Table


class Roofline(Learner):
    """Predicts the roofline times a constant: the median ratio."""

    kind = "roofline"
    doc = "the analytic floor times one measured factor"

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        if table.rows.roofline_ns is None:
            raise InvalidValue(
                f"there is no roofline for {table.family.op.name} on {table.devices[0].name}: its work, the device's peak or "
                "its bandwidth is unknown; use another model"
            )
        self.level_ = float(np.median(fitting.target.encode(table.time_ns[table.ok], table.rows.take(table.ok))))
        return self

    def predict(self, rows: Rows) -> Output:
        return Output(np.full(len(rows), self.level_))

    def save(self, folder: Path) -> None:
        write_arrays(folder / "roofline.npz", {"level": np.array(self.level_)})

    @classmethod
    def load(cls, folder: Path, options: Options) -> Self:
        learner = cls(options)
        learner.level_ = float(read_arrays(folder / "roofline.npz")["level"])
        return learner

    def lowered(self, family: Family, values: Collection[str]) -> Level:
        return Level(self.level_)
