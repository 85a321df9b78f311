"""How a search goes through the space of configs, and how the model scores them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import polars as pl

from kerncast.answering.search.space import SearchSpace
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.op import Problem
from kerncast.core.progress import QUIET, Progress
from kerncast.data import schema
from kerncast.errors import NotFound
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


Strategy = Callable[[SearchSpace, Scoring, int], None]

# Size of a generation: a tenth of the budget, within these bounds.
POPULATION = (8, 50)
STALE_GENERATIONS = 20
# The model's candidates take at most this share of a local search's budget; a restart draws this many configs.
CANDIDATE_SHARE = 0.25
RESTART = 16
ASKED_AT_ONCE = 8


def exhaustive(space: SearchSpace, scoring: Scoring, seed: int) -> None:
    """Every config, in the order of the space."""
    for frame in space.frames():
        scoring.once(frame)
        if scoring.spent:
            return


def random(space: SearchSpace, scoring: Scoring, seed: int) -> None:
    """Different configs, all equally likely."""
    assert scoring.left is not None
    scoring.once(space.sample(scoring.left, seed))


def differential_evolution(space: SearchSpace, scoring: Scoring, seed: int) -> None:
    """scipy's differential evolution on the places of the values; each individual is moved to the nearest valid config."""
    from scipy.optimize import differential_evolution as evolve

    def energies(population: Any) -> Any:
        return _projected_scores(space, scoring, np.rint(population).T.astype(np.int64))

    sizes = [parameter.size for parameter in space.parameters.values()]
    for number in count():
        before = scoring.scored
        population = space.indices(space.sample(_individuals(scoring), seed + number))
        if len(population) < 5:  # fewer than scipy needs: the sample is the answer
            scoring(space.sample(len(population), seed))
            return
        evolve(
            energies,
            [(0, size - 1) for size in sizes],
            integrality=[True] * len(sizes),
            init=population,
            rng=seed + number,
            tol=0,
            maxiter=10_000,
            polish=False,
            updating="deferred",
            vectorized=True,
            callback=_Patience(scoring).ended,
        )
        if scoring.spent or scoring.scored == before:
            return


def _projected_scores(space: SearchSpace, scoring: Scoring, places: Ints) -> Floats:
    """Scores of the valid configs nearest to some places; infinite if none is near."""
    points = space.nearest(places)
    scores = np.full(len(points), np.inf)
    found = [place for place, point in enumerate(points) if point is not None]
    scores[found] = scoring(space.frame(point for point in points if point is not None))
    return scores


class _Patience:
    """Ends an evolution when the budget is spent, or when generation after generation shows nothing new."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring, self.seen, self.stale = scoring, scoring.scored, 0

    def ended(self, intermediate_result: Any) -> bool:
        """Called by scipy after each generation; scipy decides by the argument's name what to pass."""
        self.stale = self.stale + 1 if self.scoring.scored == self.seen else 0
        self.seen = self.scoring.scored
        return self.scoring.spent or self.stale >= STALE_GENERATIONS


def _individuals(scoring: Scoring) -> int:
    assert scoring.left is not None
    return int(np.clip(scoring.left // 10, *POPULATION))


def local(space: SearchSpace, scoring: Scoring, seed: int) -> None:
    """Climb from the model's best candidate, one step at a time; then from others, then from random configs."""
    assert scoring.left is not None
    candidates = _candidates(space, scoring, max(1, int(CANDIDATE_SHARE * scoring.left)))
    starts = candidates[np.argsort(scoring(candidates), kind="stable")] if candidates.height else candidates
    climbed: set[tuple[object, ...]] = set()
    for start in starts.rows(named=True):
        _climb(space, scoring, start, climbed)
        if scoring.spent:
            return
    for number in count(1):
        before = scoring.scored
        drawn = space.sample(RESTART, seed + number)
        order = np.argsort(scoring(drawn), kind="stable")
        _climb(space, scoring, drawn.row(int(order[0]), named=True), climbed)
        if scoring.spent or (scoring.scored == before and number > STALE_GENERATIONS):
            return


def _candidates(space: SearchSpace, scoring: Scoring, most: int) -> pl.DataFrame:
    """The configs that worked in training and can run this problem, the best on average first."""
    frame = scoring.model.candidates
    if not frame.height:
        return space.frame([])
    ordered = frame.with_row_index("__row").sort("share", "__row", descending=[True, False])
    columns = [pl.col(f"config.{name}").alias(name) for name in space.parameters]
    return space.valid(ordered.select(columns)).head(most)


def _climb(space: SearchSpace, scoring: Scoring, point: dict[str, Any], climbed: set[tuple[object, ...]]) -> None:
    """Steepest descent of the score; it never starts from the same config twice."""
    score = float(scoring(space.frame([point]))[0])
    while tuple(point.values()) not in climbed and not scoring.spent:
        climbed.add(tuple(point.values()))
        around = space.neighbours(point)
        if not around.height:
            return
        scores = scoring(around)
        best = int(np.argmin(scores))
        if scores[best] >= score:
            return
        point, score = around.row(best, named=True), float(scores[best])


def with_optuna(space: SearchSpace, scoring: Scoring, seed: int) -> None:
    """optuna's tree-structured Parzen estimator; each suggestion is moved to the nearest valid config."""
    try:
        import optuna
    except ImportError as error:
        raise NotFound.package("`strategy=optuna` (unlike `de`)", "optuna", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.IntDistribution(0, parameter.size - 1)
        if parameter.ordered
        else optuna.distributions.CategoricalDistribution(range(parameter.size))
        for name, parameter in space.parameters.items()
        if parameter.size > 1
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    stale = 0
    while not scoring.spent and stale < STALE_GENERATIONS:
        before = scoring.scored
        asked = [study.ask(distributions) for _ in range(ASKED_AT_ONCE)]
        places = [[trial.params.get(name, 0) for name in space.parameters] for trial in asked]
        scores = _projected_scores(space, scoring, np.array(places))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna warns of infinite scores, which occur once the budget is spent
            for trial, score in zip(asked, scores, strict=True):
                study.tell(trial, float(score) if np.isfinite(score) else 1e300)
        stale = stale + 1 if scoring.scored == before else 0


STRATEGIES: dict[str, Strategy] = {
    "exhaustive": exhaustive,
    "random": random,
    "de": differential_evolution,
    "local": local,
    "optuna": with_optuna,
}
