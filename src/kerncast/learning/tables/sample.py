"""A part of very many rows: whole problems, chosen before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kerncast.core.op import Family
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.data.drawing import columns_of, draw_problems
from kerncast.data.filters import Condition
from kerncast.data.label_shift import NOT_SUSPECT

# So many times the rows that are asked for are read: repeats of a measurement become one, and whole problems are drawn again.
MARGIN = 8
# Fewer rows are all read: a draw among all of them is the same for a dataset of any size.
READ_WHOLE = 5_000_000


@dataclass(frozen=True)
class Sample:
    """How many rows are wanted, and by which seed they are drawn."""

    rows: int
    seed: int

    def drawn(
        self, family: Family, holders: Sequence[Dataset], where: Sequence[Condition], progress: Progress
    ) -> tuple[Condition, ...]:
        """The conditions, and a draw of problems if there are far more rows than are wanted."""
        total = sum(dataset.rows_of(family) for dataset in holders)
        # Suspect rows are found by their neighbours, so all rows are needed to leave them out.
        if not self.rows or total <= max(READ_WHOLE, 2 * MARGIN * self.rows) or NOT_SUSPECT in where:
            return tuple(where)
        pieces = (piece for dataset in holders for piece in dataset.pieces(family, where, columns_of(family)))
        draw, rows = draw_problems(family, pieces, max(MARGIN * self.rows, READ_WHOLE // 5), self.seed)
        progress.say(f"of {total:,} rows, {rows:,} are read: whole problems, drawn by the seed")
        return (*where, draw)
