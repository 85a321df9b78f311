"""How a model is trained: the caller's settings, what was decided from the data, and what `model.json` keeps of both."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.learners.contract import Target, default_target
from kerncast.learning.scoring.trials import CONFIG
from kerncast.learning.tables.table import Table

if TYPE_CHECKING:
    from kerncast.models.model import Model

# Fields that `model.json` does not keep, and why.
LEFT_OUT = {"threads": "it changes only how long training takes; a refit has its own"}


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
    features: tuple[str, ...] = ()
    """The features to learn from, if not all of them."""
    rows: int = 0
    """At most this many rows, drawn by the seed, whole problems and as evenly over devices as they go; 0: all of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))  # JSON has lists only
        for name in ("seed", "threads", "hard_mining", "tune", "rows"):
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
            features = self.features or tuple(base.manifest.recipe.get("features", ()))
            return replace(self, inherited=inherited, target=given.name, target_log=given.log, hold_out=by, features=features)
        name = self.target or default_target(table.rows).name
        target = Target(name, True if self.target_log is None else self.target_log)
        target.encode(table.time_ns[table.ok][:1], table.rows.take(np.flatnonzero(table.ok)[:1]))  # refuses unknown work
        return replace(self, target=target.name, target_log=target.log, hold_out=by)

    def sampled(self, table: Table) -> Table:
        """The table with at most `rows` rows: whole problems drawn by the seed, as evenly over devices as they go."""
        if not self.rows or len(table.time_ns) <= self.rows:
            return table
        sizes = np.bincount(table.device)
        left, quota = self.rows, np.zeros(len(sizes), np.int64)
        # The smallest devices first: what they do not need is divided among the others.
        for place, number in enumerate(np.argsort(sizes, kind="stable")):
            quota[number] = min(int(sizes[number]), left // (len(sizes) - place))
            left -= int(quota[number])
        # The problems of a device are drawn in one random order, until the next one would not fit.
        order = np.random.default_rng(self.seed).permutation(int(table.problem.max()) + 1)
        rank = np.lexsort((np.arange(len(table.problem)), order[table.problem], table.device))
        before = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        last = np.full(len(order), -1, np.int64)
        last[table.problem[rank]] = before  # the last row of each problem, in its device's order
        kept = last[table.problem] < quota[table.device]
        return table.take(np.flatnonzero(kept)).renumbered()

    def narrowed(self, table: Table) -> Table:
        """The table with the features to learn from, in the order in which the family has them."""
        if not self.features:
            return table
        for name in self.features:
            if name not in table.rows.names:
                raise NotFound.named(f"feature of {table.family.id} in these data", name, table.rows.names)
        return replace(table, rows=table.rows.only([name for name in table.rows.names if name in self.features]))

    def grouped(self, table: Table) -> Table:
        """The table as folds and early stopping divide it."""
        return replace(table, group=table.config) if self.hold_out == CONFIG else table

    def as_options(self) -> dict[str, Any]:
        """The recipe as `model.json` keeps it: every field except those in `LEFT_OUT`."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in LEFT_OUT}
        return {name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in kept.items()}

    @classmethod
    def from_options(cls, stored: dict[str, Any], threads: int = 0) -> Self:
        """The recipe that a model was trained with."""
        unknown = sorted(set(stored) - {item.name for item in fields(cls)})
        if unknown:
            raise BadFile(f"the model was trained with '{unknown[0]}', which this kerncast does not know: upgrade kerncast")
        return cls(**stored, threads=threads)
