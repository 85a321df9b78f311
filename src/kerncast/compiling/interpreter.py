"""The same answers without a compiler: tiers evaluated by LightGBM and numpy, much slower."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.compiling.binding import MISSING, encode
from kerncast.compiling.lower import Artefact
from kerncast.data import schema
from kerncast.expr import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Interpreter:
    """What an artefact computes, in Python."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.model = artefact.model

    @cached_property
    def _configs(self) -> pl.DataFrame:
        columns = [f"config.{name}" for name in self.model.family.config.parameters]
        frame = self.model.candidates.select(columns)
        return frame if columns else pl.DataFrame({"__none": np.zeros(self.artefact.candidates)})

    @cached_property
    def _rules(self) -> Program:
        return Program({rule.name: rule.holds for rule in self.artefact.config_rules})

    def vectors(self, values: Mapping[str, Any], rows: Ints) -> pl.DataFrame:
        """One problem with some candidates, as stored in a dataset."""
        kinds = schema.schema_of(self.model.family)
        problem = [pl.lit(value, kinds[f"problem.{name}"]).alias(f"problem.{name}") for name, value in values.items()]
        return self._configs[rows].with_columns(problem)

    def allowed(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """Which candidates can run the problem, by the family's rules."""
        if not self._rules.outputs:
            return np.ones(len(rows), dtype=bool)
        symbols = schema.symbol_columns(self.model.family, self.vectors(values, rows))
        holds = self._rules.frame(symbols, trusted=True).to_numpy() != 0.0
        return np.asarray(holds.all(axis=1))

    def reached(self, values: Mapping[str, Any]) -> Flags:
        """Which candidates were tried on problems like this one."""
        reach = self.artefact.tiers.reach
        if reach is None:
            return np.ones(self.artefact.candidates, dtype=bool)
        given = encode(self.model.family.problem, values)
        inactive = [float(parameter.inactive) for parameter in self.model.family.problem.parameters.values()]
        numbers = [other if number == MISSING else float(number) for number, other in zip(given, inactive, strict=True)]
        return reach.holds(np.array(numbers))

    def suits(self, values: Mapping[str, Any], row: int) -> bool:
        """Whether one candidate can run the problem, and was tried on such."""
        return bool(self.allowed(values, np.array([row]))[0] and self.reached(values)[row])

    def choosable(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """Of some candidates those that can run the problem; of these, if there are any, those that were tried on such."""
        allowed = self.allowed(values, rows)
        both = allowed & self.reached(values)[rows]
        return both if both.any() else allowed

    def scores(self, values: Mapping[str, Any], rows: Ints) -> tuple[Floats, Floats]:
        """Scores (low is chosen) and times; infinite and negative where a config cannot run."""
        allowed = self.choosable(values, rows)
        score, time_ns = np.full(len(rows), np.inf), np.full(len(rows), -1.0)
        if allowed.any():
            found = self.model.predict_rows(self.model.describe(self.vectors(values, rows[allowed])))
            assert found.time_ns is not None
            score[allowed], time_ns[allowed] = found.score, found.time_ns
        return score, time_ns

    @cached_property
    def _small(self) -> Any:
        from lightgbm import Booster

        return None if self.artefact.tiers.forest is None else Booster(model_str=self.artefact.tiers.forest)

    def quick_scores(self, values: Mapping[str, Any]) -> Floats | None:
        """What the small forest says of the portfolio; None where there is no small forest."""
        if self._small is None:
            return None
        rows = self.artefact.members("portfolio")
        allowed, score = self.choosable(values, rows), np.full(len(rows), np.inf)
        if allowed.any():
            described = self.model.describe(self.vectors(values, rows[allowed]))
            score[allowed] = -self._small.predict(described.features, raw_score=True, num_threads=1)
        return score

    def time_of(self, values: Mapping[str, Any], row: int) -> float:
        """The predicted time of one candidate."""
        return float(self.scores(values, np.array([row]))[1][0])
