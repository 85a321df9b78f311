"""Distillation: a tree from problem to place in the portfolio, learned from measurements, or else from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from kerncast.arrays import Flags, Floats, Ints
from kerncast.compiling.tiers import UNSURE, DecisionTree
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.expr import Program
from kerncast.expr.nodes import INEXACT, Expr
from kerncast.learners.trees import Tree
from kerncast.models.manifest import Range
from kerncast.models.measured import Measured, measured_by_model
from kerncast.models.model import Model
from kerncast.models.reach import Tried
from kerncast.op import Family
from kerncast.scoring.splits import held_out
from kerncast.selecting.tiers.cart import Material, grow
from kerncast.selecting.tiers.problem_sampling import draw_problems

Score = Callable[[pl.DataFrame], Floats]
"""Problems (`problem.*`) → [problem, place in the portfolio]: log times up to a constant per problem, low is chosen;
infinite where a rule forbids the config."""

SAMPLES = 5_000
MOST_LEAVES = 1_024
# A leaf of fewer problems than this would describe single problems, not a region.
LEAST_WEIGHT = 3.0
# The share of problems held out to prune the tree, and again to estimate its loss.
HELD_OUT = 0.2
# Fewer groups of problems than this cannot be divided into three.
FEWEST_GROUPS = 20
# The estimated loss of a leaf starts from the tree's mean loss, weighted like this many problems.
PRIOR = 3.0
# A leaf whose expected loss is this many times the tree's allowed mean loss is unsure, however rare it is.
WORST_LEAF = 5.0


@dataclass(frozen=True)
class Ground:
    """What distillation starts from: the measurements, the device, and the trained ranges."""

    measured: Measured
    device: Device
    dtypes: tuple[str, ...] | None
    hull: Mapping[str, Range]

    @classmethod
    def of(cls, model: Model) -> Ground:
        return cls(measured_by_model(model), model.device, model.manifest.dtypes or None, model.manifest.hull)


@dataclass(frozen=True)
class Distilled:
    """A tree, and how it does on held-out problems."""

    tree: DecisionTree
    leaves: int
    unsure_leaves: int
    samples: int
    answered: float
    """The share of held-out problems that the tree answers itself."""
    loss: float
    """Loss on held-out problems, relative to the model's own choice in the portfolio, which answers where the tree does not."""


def distill(
    model: Model, portfolio: Sequence[int], score: Score, *, seed: int = 0, samples: int = SAMPLES, worst_loss: float = 0.01
) -> DecisionTree:
    """The tree of a trained model over its portfolio (rows of `model.candidates`)."""
    return distill_from(Ground.of(model), portfolio, score, seed=seed, samples=samples, worst_loss=worst_loss).tree


def distill_from(
    ground: Ground, portfolio: Sequence[int], score: Score, *, seed: int = 0, samples: int = SAMPLES, worst_loss: float = 0.01
) -> Distilled:
    """Grow a tree on measured and made-up problems; leaves that would lose too much are unsure.

    The cost of a choice is its measured regret, or the model's estimate if it was not measured. Leaves that are expected
    to lose more than five times `worst_loss` are unsure. Then the most expensive of the others become unsure, as few as
    needed for the loss on held-out problems to be at most `worst_loss`.
    """
    if not portfolio or samples < 0 or not worst_loss > 0:
        raise InvalidValue(
            f"a tree needs a portfolio of at least one config, samples ≥ 0 and a loss above 0, got {len(portfolio)} configs, "
            f"{samples} samples and a loss of {worst_loss}"
        )
    lessons = _lessons(ground, portfolio, score, samples, np.random.default_rng(seed))
    program = splitting_program(ground.measured.family, ground.device, ground.dtypes)
    features = evaluate(program, lessons.problems)
    material = Material(features, lessons.costs, np.ones(len(features)))
    grows, prunes, judges = _parts(lessons.group, seed)
    grown = grow(material.take(grows), MOST_LEAVES, LEAST_WEIGHT, material.take(prunes))
    # Costs relative to the model's own choice.
    extra = lessons.costs - lessons.own[:, None]
    sure, answered, loss = _sure_leaves(grown, features, extra, prunes, judges, worst_loss)
    leaf = grown.leaf_of(features)
    choice = np.array([_best(lessons.costs[leaf == number], int(own)) for number, own in enumerate(grown.value)])
    tree = _deciding(replace(grown, value=np.where(sure, choice, UNSURE).astype(np.float64)), program)
    unsure = int((tree.choices == UNSURE).sum())
    return Distilled(tree, len(tree.choices), unsure, len(features), answered, loss)


@dataclass(frozen=True)
class _Lessons:
    problems: pl.DataFrame
    costs: Floats
    """[problem, place]: 1 − best over own time; 1 for what fails or must not be chosen."""
    own: Floats
    """By problem: the cost of the model's own choice."""
    group: Ints
    """By problem: its group, which must not be split; each made-up problem is its own group."""


def _lessons(ground: Ground, portfolio: Sequence[int], score: Score, samples: int, rng: np.random.Generator) -> _Lessons:
    measured = ground.measured
    drawn = draw_problems(measured.family, measured.problems, ground.hull, samples, rng)
    solved = measured.solvable
    known = measured.problems[solved]
    problems = pl.concat([known, drawn.select(known.columns)])
    scores = np.asarray(score(problems), dtype=np.float64)
    tried = Tried.of(measured, portfolio).holds(problems)
    # If no config was tried on such problems, only the model's guess is left.
    scores = np.where(tried | ~tried.any(axis=1, keepdims=True), scores, np.inf)
    guessed, chosen = _regret(scores), scores.argmin(axis=1)
    shares = measured.shares[solved][:, list(portfolio)]
    best = np.nanmax(np.where(np.isnan(shares), 0.0, shares), axis=1, keepdims=True)
    costs = guessed.copy()
    costs[: len(solved)] = np.where(np.isnan(shares), guessed[: len(solved)], 1.0 - shares / np.where(best > 0, best, 1.0))
    if measured.score is not None:
        chosen[: len(solved)] = _chosen_unseen(measured, portfolio)[solved]
    own = np.where(np.isfinite(scores).any(axis=1), costs[np.arange(len(costs)), chosen], 0.0)
    group = np.r_[measured.group[solved], measured.group.max() + 1 + np.arange(drawn.height)]
    return _Lessons(problems, costs, own, group)


def _regret(scores: Floats) -> Floats:
    """1 − best over own time, according to the scores; 1 everywhere if nothing can run."""
    best = scores.min(axis=1, keepdims=True)
    known = np.isfinite(best)
    return np.where(known, -np.expm1(np.where(known, best, 0.0) - np.where(np.isfinite(scores), scores, np.inf)), 1.0)


def _chosen_unseen(measured: Measured, portfolio: Sequence[int]) -> Ints:
    """By measured problem: the portfolio config that the model chose out of fold."""
    assert measured.score is not None
    place = np.full(measured.configs.height, -1)
    place[list(portfolio)] = np.arange(len(portfolio))
    found = np.full((measured.problems.height, len(portfolio)), np.inf)
    inside = place[measured.trials.config] >= 0
    found[measured.trials.problem[inside], place[measured.trials.config[inside]]] = measured.score[inside]
    return np.asarray(found.argmin(axis=1))


def splitting_program(family: Family, device: Device, dtypes: Sequence[str] | None) -> Program:
    """The inputs of splits: parameters and exact features of the problem alone.

    A log or a root orders problems like its argument does, and the argument is exact: it is used instead.
    """
    outputs: dict[str, Expr] = {}
    seen: set[bytes] = set()
    features = family.features_on(device, dtypes).program.outputs
    for name, expr in {**{f"p.{name}": item for name, item in family.problem.symbols.items()}, **features}.items():
        while expr.kind in INEXACT:
            name, expr = f"inside {name}", expr.args[0]
        reads = [item.name for item in Program({name: expr}).symbols]
        if expr.exact and reads and all(item.startswith("p.") for item in reads) and expr.digest not in seen:
            seen.add(expr.digest)
            outputs[name] = expr
    return Program(outputs)


def evaluate(program: Program, problems: pl.DataFrame) -> Floats:
    """The program's outputs for a frame of `problem.*`."""
    symbols = problems.rename(lambda name: f"p.{name.removeprefix('problem.')}")
    return np.ascontiguousarray(program.frame(symbols, trusted=True).to_numpy(), dtype=np.float64)


def _parts(group: Ints, seed: int) -> tuple[Flags, Flags, Flags]:
    """Whole groups to grow on, to prune by, and to judge by; with too few groups, all are used for everything."""
    if len(np.unique(group)) < FEWEST_GROUPS:
        everything = np.ones(len(group), dtype=bool)
        return everything, everything, everything
    aside = held_out(group, 2 * HELD_OUT, seed)
    prunes = np.zeros(len(group), dtype=bool)
    prunes[aside] = held_out(group[aside], 0.5, seed)
    return ~aside, prunes, aside & ~prunes


def _sure_leaves(
    grown: Tree, features: Floats, extra: Floats, prunes: Flags, judges: Flags, worst_loss: float
) -> tuple[Flags, float, float]:
    """Which leaves are sure; the share of held-out problems that they answer, and the loss there.

    Leaves are ranked on one set of problems and judged on another, because some small leaves do well by luck.
    """
    leaf, leaves = grown.leaf_of(features), len(grown.value)
    lost = extra[np.arange(len(leaf)), grown.value[leaf].astype(np.int64)]
    count = np.bincount(leaf[prunes], minlength=leaves)
    # A leaf that few problems reach is assumed to be as good as the average.
    mean = (np.bincount(leaf[prunes], lost[prunes], leaves) + PRIOR * lost[prunes].mean()) / (count + PRIOR)
    order = np.lexsort((np.arange(leaves), -mean))
    held = np.bincount(leaf[judges], lost[judges], leaves)[order] / judges.sum()
    remaining = held.sum() - np.r_[0.0, np.cumsum(held)]
    given_up = int(np.flatnonzero(remaining <= worst_loss)[0]) if (remaining <= worst_loss).any() else leaves
    given_up = max(given_up, int((mean > WORST_LEAF * worst_loss).sum()))
    sure = np.ones(leaves, dtype=bool)
    sure[order[:given_up]] = False
    answers = sure[leaf[judges]]
    return sure, float(answers.mean()), float(lost[judges][answers].sum() / judges.sum())


def _best(costs: Floats, otherwise: int) -> int:
    return int(costs.sum(axis=0).argmin()) if len(costs) else int(otherwise)


def _deciding(tree: Tree, program: Program) -> DecisionTree:
    """The tree without splits whose two sides agree, and with only the features that it reads."""
    tree = tree.merged()
    used = sorted(set(tree.feature.tolist()))
    names = list(program.outputs)
    kept = Program({names[item]: program.outputs[names[item]] for item in used})
    return DecisionTree(kept, replace(tree, feature=np.searchsorted(used, tree.feature).astype(np.int64)))
