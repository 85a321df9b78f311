"""The configs that a model may answer with: which of them can run a problem, and how the model scores them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.limits.configs import Reach, problem_numbers
from kerncast.models.problem_frames import problem_frame
from kerncast.models.rules import config_rules, model_rules

if TYPE_CHECKING:
    from kerncast.models.model import Model


# Vectors that are described and predicted at a time, to limit memory.
MOST_TOGETHER = 50_000


class Candidates:
    """The candidates of a model, as rows; `reach` says where each was tried (None: not known)."""

    def __init__(self, model: Model, reach: Reach | None, device: Device | None = None) -> None:
        self.model, self.reach, self.device = model, reach, device
        self.available: Flags | None = None
        """By candidate: whether it may be chosen; None: all may."""
        self.preferred: Flags | None = None
        """By candidate: whether it is chosen before the others that were tried on such problems; None: all are alike."""

    @cached_property
    def _configs(self) -> pl.DataFrame:
        columns = [f"config.{name}" for name in self.model.family.config.parameters]
        frame = self.model.candidates.select(columns)
        return frame if columns else pl.DataFrame({"__none": np.zeros(self.model.candidates.height)})

    @cached_property
    def _rules(self) -> Program:
        return Program({rule.name: rule.holds for rule in config_rules(model_rules(self.model, self.device))})

    def vectors(self, values: Mapping[str, Any], rows: Ints) -> pl.DataFrame:
        """One problem with some candidates, as stored in a dataset."""
        kinds = schema.schema_of(self.model.family)
        problem = [pl.lit(value, kinds[f"problem.{name}"]).alias(f"problem.{name}") for name, value in values.items()]
        return self._configs[rows].with_columns(problem)

    def allowed(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """Which candidates are available and can run the problem, by the family's rules."""
        problem = problem_frame(self.model.family, [values])
        return np.asarray(self._available(problem, self.rules_of_many(problem, rows), rows)[0])

    def _available(self, problems: pl.DataFrame, holds: Flags, rows: Ints) -> Flags:
        """[problem, place in `rows`]: which of the candidates that obey the rules are there."""
        if self.available is not None:
            holds = holds & self.available[rows]
        for number in range(problems.height if self.model.given is not None else 0):
            built = self.model.built_for({n.removeprefix("problem."): v for n, v in problems.row(number, named=True).items()})
            if built is not None:
                holds[number] &= built[rows]
        return holds

    def _rules_hold(self, vectors: pl.DataFrame) -> Flags:
        if not self._rules.outputs:
            return np.ones(vectors.height, dtype=bool)
        symbols = schema.symbol_columns(self.model.family, vectors)
        return np.asarray((self._rules.frame(symbols, trusted=True).to_numpy() != 0.0).all(axis=1))

    def rules_of_many(self, problems: pl.DataFrame, rows: Ints) -> Flags:
        """[problem, place in `rows`]: whether the rules allow the candidate."""
        configs, together = self._configs[rows], max(1, MOST_TOGETHER // len(rows))
        parts = [problems[start : start + together] for start in range(0, problems.height, together)]
        holds = [self._rules_hold(part.join(configs, how="cross", maintain_order="left_right")) for part in parts]
        return np.concatenate(holds).reshape(problems.height, len(rows))

    def reached(self, values: Mapping[str, Any]) -> Flags:
        """Which candidates were tried on problems like this one."""
        if self.reach is None:
            return np.ones(self.model.candidates.height, dtype=bool)
        return self.reach.holds(problem_numbers(self.model.family, problem_frame(self.model.family, [values]))[0])

    def _narrowed(self, allowed: Flags, numbers: Floats, rows: Ints) -> Flags:
        """Of the candidates that can run a problem those tried on such problems, else on its labels, else all.

        Beyond the sizes that were measured a kernel of bf16 may still run bf16, and one of int8 may not.
        """
        if self.reach is None:
            return allowed
        limits = [self.reach.holds(numbers, sizes)[..., rows] for sizes in (False, True)]
        for limit in limits if self.preferred is None else [*limits, self.preferred[rows]]:
            fewer = allowed & limit
            allowed = np.where(fewer.any(axis=-1, keepdims=True), fewer, allowed)
        return allowed

    def runs(self, values: Mapping[str, Any], row: int) -> bool:
        """Whether the model expects one candidate to run, so far as it learned from failures."""
        return not self.model.learner.fails(self.model.describe(self.vectors(values, np.array([row])), self.device))[0]

    def choosable(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """The candidates that can run the problem; if any of those were tried on similar problems, only these."""
        problem = problem_frame(self.model.family, [values])
        allowed = self._available(problem, self.rules_of_many(problem, rows), rows)
        return np.asarray(self._narrowed(allowed, problem_numbers(self.model.family, problem), rows)[0])

    def scores(self, values: Mapping[str, Any], rows: Ints) -> tuple[Floats, Floats]:
        """Scores (low is chosen) and times; infinite and negative where a config cannot run, or is expected to fail."""
        score, time_ns = self.scores_of_many(problem_frame(self.model.family, [values]), rows)
        return score[0], time_ns[0]

    def scores_of_many(self, problems: pl.DataFrame, rows: Ints) -> tuple[Floats, Floats]:
        """`scores` for a frame of problems: [problem, place in `rows`]. One call of the learner serves many problems."""
        score, time_ns = np.full((problems.height, len(rows)), np.inf), np.full((problems.height, len(rows)), -1.0)
        every = np.array_equal(rows, np.arange(self._configs.height))
        configs, together = self._configs if every else self._configs[rows], max(1, MOST_TOGETHER // len(rows))
        for start in range(0, problems.height, together):
            part, own = problems[start : start + together], slice(start, start + together)
            vectors = part.join(configs, how="cross", maintain_order="left_right")
            allowed = self._available(part, self._rules_hold(vectors).reshape(part.height, len(rows)), rows)
            allowed = self._narrowed(allowed, problem_numbers(self.model.family, part), rows)
            if allowed.any():
                kept = vectors if allowed.all() else vectors.filter(pl.Series(allowed.ravel()))
                described = self.model.describe(kept, self.device)
                scored, runs = self.model.scored(described), ~self.model.learner.fails(described)
                score[own][allowed] = np.where(runs, scored[0], np.inf)
                time_ns[own][allowed] = np.where(runs, scored[1], -1.0)
        return score, time_ns


def refuse_no_candidates(model: Model) -> None:
    """Refuse to choose from a model that does not say which configs work."""
    if not model.candidates.height:
        raise InvalidValue(
            f"{model.path} does not record which configs work, so there is nothing to choose from: give the configs with "
            "`configs` (kernels:FILE, build:DIR, a dataset or benchmark file, all)"
        )


def library_rows(model: Model) -> list[int]:
    """The candidates that are the vendor library's own choice; empty if the family declares none."""
    if not model.family.library:
        return []
    found = model.candidates.with_row_index("__row").filter(schema.is_library(model.family))
    return [int(row) for row in found["__row"].to_list()]


def by_share(model: Model) -> Ints:
    """All candidates, best on average first."""
    share = model.candidates["share"].to_numpy()
    return np.lexsort((np.arange(model.candidates.height), -share)).astype(np.int64)
