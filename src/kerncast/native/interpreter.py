"""The same answers without C: tiers evaluated by the learner itself and numpy, much slower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.learners.trees import sum_of
from kerncast.models.candidates import Candidates
from kerncast.native.lower import Artefact
from kerncast.native.tiers.contents import COMPARED_BY_ALL, COMPARING_FIRST


class Interpreter(Candidates):
    """Computes in Python what an artefact computes."""

    def __init__(self, artefact: Artefact) -> None:
        super().__init__(artefact.model, artefact.tiers.reach)
        self.artefact = artefact
        self.available = None if artefact.decided is None else artefact.decided.available

    def quick_scores(self, values: Mapping[str, Any]) -> Floats | None:
        """The small forest's scores of the portfolio; None if there is no small forest."""
        trees = self.artefact.tiers.forest
        if trees is None:
            return None
        rows = self.artefact.portfolio
        allowed, score = self.choosable(values, rows), np.full(len(rows), np.inf)
        if allowed.any():
            described = self.model.describe(self.vectors(values, rows[allowed]))
            score[allowed] = -sum_of(trees, described.features)
        return score

    def leaf(self, values: Mapping[str, Any]) -> tuple[Ints, int]:
        """The candidates in the leaf of a problem that may run it, in the leaf's order; and how many of them are compared."""
        assert self.artefact.tiers.tree is not None
        places, most = self.artefact.tiers.tree.decide(self.model.family.problem.qualified(dict(values)))
        rows = self.artefact.portfolio[places]
        return rows[self.allowed(values, rows) & self.reached(values)[rows]] if len(rows) else rows, most

    def tree_choice(self, values: Mapping[str, Any]) -> int | None:
        """The candidate that the tree chooses; None if it is unsure, or nothing in its list can run the problem."""
        if self.artefact.tiers.tree is None:
            return None
        rows, most = self.leaf(values)
        if most > 1 and len(rows):
            rows, trees = rows[:most], self.artefact.tiers.comparing
            features = self.model.describe(self.vectors(values, rows)).features
            order = np.lexsort((rows, -sum_of(trees[:COMPARING_FIRST], features)))
            few = order[:COMPARED_BY_ALL]
            few = few[np.lexsort((rows[few], -sum_of(trees, features[few])))]
            rows = rows[np.r_[few, order[COMPARED_BY_ALL:]]]
        # Leaves of a tree that is alone list nothing that fails.
        return next((int(row) for row in rows if self.artefact.alone or self.runs(values, int(row))), None)

    def portfolio_choice(self, values: Mapping[str, Any]) -> int | None:
        """The candidate that the portfolio chooses; None if nothing in it can run the problem."""
        rows, scores = self.artefact.portfolio, self.quick_scores(values)
        if scores is None:
            scores = self.scores(values, rows)[0]
        best = rows[np.lexsort((rows, scores))[: int(np.isfinite(scores).sum())]]
        # A small forest does not know what fails.
        return next((int(row) for row in best if self.runs(values, int(row))), None)

    def time_of(self, values: Mapping[str, Any], row: int) -> float:
        """The predicted time of one candidate, whether or not it is expected to run."""
        found = self.model.predict_rows(self.model.describe(self.vectors(values, np.array([row])))).time_ns
        assert found is not None
        return float(found[0])
