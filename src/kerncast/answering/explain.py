"""Why a model predicts this time, and why this config: contributions, the nearest measured problems, the runners-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.answering.measure import distance
from kerncast.answering.selector import Selector
from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, assignments, duration, known, printable
from kerncast.core.op import Config, Problem
from kerncast.core.parameters import Parameter
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.learning.learners.lightgbm_text import explaining
from kerncast.models.answer import Answer, Pin, Tier
from kerncast.models.manifest import Range
from kerncast.models.model import Model
from kerncast.native.tiers.teaching import allowed_problems

if TYPE_CHECKING:
    from lightgbm import Booster

# Vectors that a prediction is compared with: enough for every large branch of a tree.
TYPICAL = 400
SEED = 0


@dataclass(frozen=True)
class Contribution:
    """One feature, and the factor by which its value makes the predicted time longer (above 1) or shorter."""

    feature: str
    value: float
    factor: float


@dataclass(frozen=True)
class Reasons:
    """A predicted time as a product: a time that follows from the work, the mean miss, and a factor for each feature."""

    time_ns: float
    expected_ns: float | None
    """The softened roofline that the model learned times relative to; None: it learned the times themselves."""
    mean: float
    """What typical vectors take, in multiples of `expected_ns`, or in nanoseconds."""
    contributions: tuple[Contribution, ...]
    """Of every feature that makes a difference, the largest first."""


class NotExplained(InvalidValue):
    """The model is of a kind whose predictions are not sums over features."""


@lru_cache(16)
def _explaining(model: Model, device: Device) -> Booster:
    """The time forest as LightGBM explains it, compared with typical vectors of the device; kept, for it takes a second."""
    learner = model.learner
    if not isinstance(learner, Gbdt):
        raise NotExplained(f"a {model.manifest.kind} model does not say what its features contribute: train a gbdt model")
    if not model.target.log or model.target.higher_is_faster:
        raise NotExplained(
            f"the model predicts {model.target.name}, not the log of a time, so features do not multiply a time: train it with "
            "the target relative or latency"
        )
    bags = learner.trees["time"]
    trees = [replace(tree, value=tree.value / len(bags)) for bag in bags for tree in bag]
    return explaining(trees, model.describe(typical_vectors(model, TYPICAL), device).features)


def reasons(model: Model, vector: pl.DataFrame, device: Device | None = None) -> Reasons:
    """Why a model predicts this time for one vector (`problem.*`, `config.*`) on a device."""
    there = model.device if device is None else device
    rows = model.describe(vector, there)
    *contributions, mean = np.asarray(_explaining(model, there).predict(rows.features[:1], pred_contrib=True))[0]
    added = np.array(contributions)
    factors = np.exp(added)
    order = [int(place) for place in np.argsort(-np.abs(added), kind="stable") if added[place] != 0.0]
    found = tuple(Contribution(rows.names[i], float(rows.features[0, i]), float(factors[i])) for i in order)
    predicted = model.predict_rows(rows).time_ns
    assert predicted is not None
    expected = rows.expected_ns if model.target.name == "relative" else None
    return Reasons(float(predicted[0]), None if expected is None else float(expected[0]), float(np.exp(mean)), found)


def typical_vectors(model: Model, count: int) -> pl.DataFrame:
    """Vectors like those that a model was trained with: a sample of them, or of its ranges and configs if it keeps none."""
    rng = np.random.default_rng(SEED)
    columns = list(schema.parameter_columns(model.family))
    measured = model.out_of_fold
    if measured is not None and measured.height:
        return measured[np.sort(rng.permutation(measured.height)[:count])].select(columns)
    problems = drawn_problems(model, count, rng)
    if not model.family.config.parameters:
        return problems.select(columns)
    configs = [name for name in columns if name.startswith("config.")]
    chosen = model.candidates.select(configs)[rng.integers(model.candidates.height, size=problems.height)]
    return problems.with_columns(chosen).select(columns)


def drawn_problems(model: Model, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """Problems from anywhere in a model's ranges, sizes evenly by their logarithm, that the op allows."""
    kinds, parameters = schema.schema_of(model.family), model.family.problem.parameters
    hull = model.manifest.hull
    columns = {
        f"problem.{name}": pl.Series(_drawn(parameter, hull.get(name), count, rng), dtype=kinds[f"problem.{name}"])
        for name, parameter in parameters.items()
    }
    return allowed_problems(model.family.problem, pl.DataFrame(columns))


def _drawn(parameter: Parameter, seen: Range | None, count: int, rng: np.random.Generator) -> list[object]:
    if seen is not None and seen.labels:
        return [seen.labels[place] for place in rng.integers(len(seen.labels), size=count)]
    if seen is None or seen.low is None or seen.high is None:
        return [parameter.default] * count
    low, high = max(seen.low, 1), max(seen.high, 1)
    sizes: Floats = np.exp(rng.uniform(np.log(low), np.log(high), count))
    return [parameter.value(parameter.nearest(int(size))) for size in sizes]


NEAREST, RUNNERS_UP, FEATURES = 3, 5, 8


@dataclass(frozen=True)
class Neighbour:
    """A measured problem near the one asked about."""

    problem: dict[str, Any]
    best: dict[str, Any]
    best_ns: float
    chosen_ns: float | None
    """The time of the chosen config on that problem; None: it was not measured there."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """The reasons for an answer. It prints as `kerncast select --explain` prints them, and a notebook shows tables."""

    answer: Answer
    contributions: list[Contribution]
    """The largest first; empty for models that do not provide them."""
    neighbours: list[Neighbour]
    runners_up: list[Answer]
    """The next configs of one tier, in the order of the model's score."""
    tier: Tier = Tier.FULL
    """The tier that they are ranked in."""
    reasons: tuple[str, ...] = ()
    """Why some of them were not chosen although they are predicted to be faster."""

    @property
    def blocks(self) -> list[str | TextTable]:
        """Sentences and tables, in the order in which they are read."""
        return [*self._features, *self._nearest, *self._others]

    @property
    def _features(self) -> list[str | TextTable]:
        if not self.contributions:
            return ["the contribution of each feature is only known for gbdt models with a log target"]
        rows = [(item.feature, f"{item.value:g}", f"× {item.factor:.3f}") for item in self.contributions]
        columns = ("feature", "value", "makes the time")
        return [TextTable(columns, rows, "what mattered most (relative to the average training vector)", columns[1:])]

    @property
    def _nearest(self) -> list[str | TextTable]:
        if not self.neighbours:
            return []
        rows = [
            (assignments(item.problem), assignments(item.best), duration(item.best_ns), duration(item.chosen_ns))
            for item in self.neighbours
        ]
        columns = ("measured problem", "its fastest config", "took", "the chosen one took")
        return [TextTable(columns, rows, "the nearest measured problems", columns[2:])]

    @property
    def _others(self) -> list[str | TextTable]:
        if not self.runners_up or not self.answer.time_ns:
            return []
        rows = [
            (assignments(known(item.config)), duration(item.time_ns), f"{item.time_ns / self.answer.time_ns - 1:+.1%}")
            for item in self.runners_up
            if item.config is not None and item.time_ns is not None
        ]
        columns = ("config", "predicted", "against the chosen")
        title = f"runners-up of the {self.tier} tier, in the order of the model's score"
        return [TextTable(columns, rows, title, columns[1:]), *self.reasons]

    def __repr__(self) -> str:
        # A table stands alone; what is said of it follows it.
        spaced = (f"\n{block}" if isinstance(block, TextTable) else printable(block) for block in self.blocks)
        return "\n".join(spaced).strip("\n")

    def _repr_html_(self) -> str:
        shown = (
            html.table(block.columns, block.rows, block.title, block.right)
            if isinstance(block, TextTable)
            else html.note(block)
            for block in self.blocks
        )
        return html.panel(f"{self.answer.problem.op.name}: why {assignments(known(self.answer.config or {}))}", *shown)

    def as_json(self) -> dict[str, Any]:
        runners = [{key: value for key, value in item.as_json().items() if key != "problem"} for item in self.runners_up]
        return {
            "contributions": [vars(item) for item in self.contributions],
            "nearest_measured": [vars(item) for item in self.neighbours],
            "runners_up": runners,
            "ranked_by": str(self.tier),
            "faster_runners_up": list(self.reasons),
        }


def explain(selector: Selector, answer: Answer, tier: Tier = Tier.FULL) -> Explanation:
    """Why a selector gave this answer (one with a config); runners-up are ranked in one tier."""
    assert answer.config is not None
    ranking = Tier.PORTFOLIO if tier is Tier.TREE and not selector.artefact.alone else tier
    # One more than is shown, since the choice is among them, and another one because a pin may come first.
    ranked = [item for item in selector.rank(answer.problem, RUNNERS_UP + 2, ranking) if item.ok and item.tier is ranking]
    others = [item for item in ranked if item.config != answer.config][:RUNNERS_UP]
    return Explanation(
        answer,
        _contributions(selector, answer.problem, answer.config),
        neighbours(selector.model, answer.problem, answer.config),
        others,
        ranking,
        _reasons(selector, answer, ranked, others, ranking),
    )


def _reasons(selector: Selector, answer: Answer, ranked: list[Answer], others: list[Answer], tier: Tier) -> tuple[str, ...]:
    """One sentence for each reason why a runner-up that is predicted to be faster was not chosen."""
    own = answer.time_ns if answer.time_ns is not None else selector.predict(answer.problem, answer.config).time_ns
    faster = [item for item in others if own is not None and item.time_ns is not None and item.time_ns < own]
    if not faster:
        return ()
    if answer.pin is Pin.DECIDED:
        return (f"{len(faster)} of them are predicted to be faster: a pin decided, not the model",)
    places = [item.config for item in ranked]
    place = places.index(answer.config) if answer.config in places else len(places)
    ahead = [item for item in faster if places.index(item.config) < place]
    found = []
    if ahead:
        chooser = "the tree" if answer.tier is Tier.TREE else "a small forest" if tier is Tier.PORTFOLIO else "another tier"
        found.append(
            f"{len(ahead)} of them are ahead in the model's own order: {chooser} that imitates the model chose; ask the "
            "full tier for the model's own choice"
        )
    if len(faster) > len(ahead):
        found.append(
            f"{len(faster) - len(ahead)} of them are predicted to be faster but have a worse score: the score also has what "
            "ranking trees learned from comparing configs on the same problem"
        )
    return tuple(found)


def _contributions(selector: Selector, problem: Problem, config: Config) -> list[Contribution]:
    """The largest of the factors that make up the predicted time; none for a model that does not say them."""
    row = selector.configs.index(config) if config in selector.configs else None
    if row is None:
        return []
    try:
        return list(reasons(selector.model, selector.vectors(problem, [row])).contributions[:FEATURES])
    except NotExplained:
        return []


def neighbours(model: Model, problem: Problem, config: Config, count: int = NEAREST) -> list[Neighbour]:
    """What was measured on the problems most like this one; none if the model does not keep its measurements."""
    frame, family = model.out_of_fold, model.family
    if frame is None or "measured_ns" not in frame.columns:
        return []
    columns = [f"problem.{name}" for name in family.problem.parameters]
    problems = frame.select(columns).unique(maintain_order=True)
    names = list(family.problem.parameters)
    away = [distance(problem.as_dict(), dict(zip(names, row, strict=True))) for row in problems.iter_rows()]
    found = []
    for place in np.argsort(away, kind="stable")[:count]:
        own = problems[int(place)]
        rows = frame.join(own, on=columns, how="semi", nulls_equal=True).filter(pl.col("measured_ns").is_not_null())
        if not rows.height:
            continue
        best = rows.sort("measured_ns").row(0, named=True)
        same = (
            rows.filter(*(pl.col(f"config.{key}").eq_missing(pl.lit(item)) for key, item in config.items())) if config else rows
        )
        found.append(
            Neighbour(
                {name.removeprefix("problem."): value for name, value in own.row(0, named=True).items() if value is not None},
                {key: best[f"config.{key}"] for key in family.config.parameters if best[f"config.{key}"] is not None},
                float(best["measured_ns"]),
                float(same["measured_ns"][0]) if same.height else None,
            )
        )
    return found
