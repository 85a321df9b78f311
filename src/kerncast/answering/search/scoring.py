"""Scoring configs of one problem: in batches, each config once, within a budget, the best ones kept."""

from __future__ import annotations

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.op import Problem
from kerncast.core.progress import QUIET, Progress
from kerncast.data import schema
from kerncast.models.model import Model

BATCH = 16_384


class Scoring:
    """Scores configs with a model, within a budget. `left` is the rest of the budget (None: no limit)."""

    def __init__(
        self, model: Model, problem: Problem, budget: int | None, keep: int, total: int | None, progress: Progress = QUIET
    ) -> None:
        """`progress` is told how many of `total` are scored (None: the total is unknown)."""
        self.model, self.keep, self.total, self.progress = model, keep, total, progress
        self.budget, self.scored = budget, 0
        self.best = pl.DataFrame()
        self._known: dict[tuple[object, ...], float] = {}
        types = schema.schema_of(model.family)
        self._problem = [
            pl.lit(value, dtype=types[f"problem.{name}"]).alias(f"problem.{name}") for name, value in problem.items()
        ]
        self._names = list(model.family.config.parameters)

    @property
    def left(self) -> int | None:
        """How many more may be scored."""
        return None if self.budget is None else self.budget - self.scored

    @property
    def spent(self) -> bool:
        return self.left == 0

    def once(self, configs: pl.DataFrame) -> None:
        """Score configs that are known to differ from all others: only the best are kept."""
        for start in range(0, configs.height, BATCH):
            if not self.spent:
                self._score(configs.slice(start, BATCH if self.left is None else min(BATCH, self.left)))

    def __call__(self, configs: pl.DataFrame) -> Floats:
        """The score of every config (low is fast); infinite for those beyond the budget."""
        keys = configs.rows()
        fresh: dict[tuple[object, ...], int] = {}
        for place, key in enumerate(keys):
            if key not in self._known:
                fresh.setdefault(key, place)
        places = list(fresh.values())[: self.left]
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            scores = self._score(configs[part])
            self._known |= {keys[place]: float(score) for place, score in zip(part, scores, strict=True)}
        return np.array([self._known.get(key, np.inf) for key in keys])

    def known(self, configs: pl.DataFrame) -> Flags:
        """Which of them were scored already."""
        return np.array([key in self._known for key in configs.rows()], dtype=bool)

    def _score(self, configs: pl.DataFrame) -> Floats:
        vectors = configs.select(*self._problem, *(pl.col(name).alias(f"config.{name}") for name in self._names))
        found = self.model.predict_rows(self.model.describe(vectors))
        self.scored += configs.height
        figures = {"score": found.score, "time_ns": found.time_ns, "lower_ns": found.lower_ns, "upper_ns": found.upper_ns}
        scored = configs.select(self._names).with_columns(
            pl.Series(f"__{name}", values if values is not None else [None] * configs.height, dtype=pl.Float64)
            for name, values in figures.items()
        )
        together = pl.concat([self.best, scored]) if self.best.height else scored
        # Ties go to the config that sorts first, so the result does not depend on the order of scoring.
        self.best = together.sort("__score", *self._names, nulls_last=True).head(self.keep)
        self.progress.step("configs", self.scored, self.total)
        return found.score
