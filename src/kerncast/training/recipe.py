"""How a model is trained: the caller's settings, what was decided from the data, and what `model.json` keeps of both."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kerncast.errors import BadFile, InvalidValue
from kerncast.learners.target import Target, default_target
from kerncast.scoring.splits import CONFIG
from kerncast.tables.table import Table

if TYPE_CHECKING:
    from kerncast.models.model import Model

# Fields that `model.json` does not keep, and why.
LEFT_OUT = {"threads": "it changes only how long training takes; a refit has its own"}
# Fields that it keeps only if they are set, so that other models keep the same bytes as before.
WHERE_SET = ("hold_out", "inherited")


@dataclass(frozen=True)
class Recipe:
    """How to train: the kind of model, its knobs, the target, the folds."""

    kind: str = "gbdt"
    knobs: dict[str, Any] = field(default_factory=dict)
    target: str | None = None
    """`relative` where there is a roofline, else `latency`."""
    target_log: bool | None = None
    folds: int = 5
    seed: int = 0
    threads: int = 0
    hard_mining: int = 0
    tune: int = 0
    hold_out: str | None = None
    """What folds consist of: groups of problems, or configs (`config`) if there is only one problem."""
    inherited: dict[str, Any] = field(default_factory=dict)
    """Knobs of the base of a warm start, used for those that are not given."""

    def __post_init__(self) -> None:
        for name in ("seed", "threads", "hard_mining", "tune"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InvalidValue(f"{name} must be a whole number, 0 or more, got {value!r}")

    def resolved(self, table: Table, base: Model | None) -> Recipe:
        """The recipe with its target decided: that of a warm start's base, or by what is known of the work."""
        by = CONFIG if len(np.unique(table.group)) < 2 and table.trials.choosing else None
        if base is not None:
            given = Target(
                self.target or base.manifest.target, base.manifest.target_log if self.target_log is None else self.target_log
            )
            # Knobs that are not given are the base's: its weights have its shape.
            inherited = base.manifest.options if base.manifest.kind == self.kind else {}
            return replace(self, inherited=inherited, target=given.name, target_log=given.log, hold_out=by)
        name = self.target or default_target(table.rows).name
        target = Target(name, True if self.target_log is None else self.target_log)
        target.encode(table.time_ns[table.ok][:1], table.rows.take(np.flatnonzero(table.ok)[:1]))  # refuses unknown work
        return replace(self, target=target.name, target_log=target.log, hold_out=by)

    def grouped(self, table: Table) -> Table:
        """The table as folds and early stopping divide it."""
        return replace(table, group=table.config) if self.hold_out == CONFIG else table

    def as_options(self) -> dict[str, Any]:
        """The recipe as `model.json` keeps it: every field except those in `LEFT_OUT`."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in LEFT_OUT}
        return {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value
            for name, value in kept.items()
            if value or name not in WHERE_SET
        }

    @classmethod
    def from_options(cls, stored: dict[str, Any], threads: int = 0) -> Self:
        """The recipe that a model was trained with."""
        unknown = sorted(set(stored) - {item.name for item in fields(cls)})
        if unknown:
            raise BadFile(f"the model was trained with '{unknown[0]}', which this kerncast does not know: upgrade kerncast")
        return cls(**stored, threads=threads)
