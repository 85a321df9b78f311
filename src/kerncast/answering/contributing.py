"""Why a model predicts this time: what each feature does to it, compared with typical vectors of the same model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.core.parameters import Parameter
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contributions import LeafRanges
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.models.manifest import Range
from kerncast.models.model import Model
from kerncast.native.tiers.problem_sampling import allowed_problems

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
def _ranges(model: Model, device: Device) -> LeafRanges:
    """The leaves of the time forest, with typical vectors of the device as background; kept, for it takes a second."""
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
    return LeafRanges.of(trees, model.describe(typical_vectors(model, TYPICAL), device).features)


def reasons(model: Model, vector: pl.DataFrame, device: Device | None = None) -> Reasons:
    """Why a model predicts this time for one vector (`problem.*`, `config.*`) on a device."""
    there = model.device if device is None else device
    ranges, rows = _ranges(model, there), model.describe(vector, there)
    mean, added = ranges.contributions(rows.features[0])
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
