"""Distillation: a tree from problem to place in the portfolio, learned from measurements, or else from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.expr.nodes import INEXACT, Expr
from kerncast.errors import InvalidValue
from kerncast.learning.learners.trees import Tree
from kerncast.learning.table import BoundRule, namespaces
from kerncast.learning.trials import held_out
from kerncast.models.candidates import model_rules
from kerncast.models.limits.configs import Reach, problem_numbers
from kerncast.models.manifest import Range
from kerncast.models.measured import Measured, measured_by_model
from kerncast.models.model import Model
from kerncast.native.tiers.contents import COMPARED_BY_ALL, UNSURE, DecisionTree
from kerncast.native.tiers.teaching import Material, draw_problems, grow

Score = Callable[[pl.DataFrame], Floats]
"""Problems (`problem.*`) → [problem, place in the portfolio]: log times up to a constant per problem, low is chosen;
infinite where a rule forbids the config."""
Compare = Callable[[pl.DataFrame, Flags], Floats]
"""Problems, and by [problem, place] which configs are compared → [2, problem, place]: the scores by which all configs of a list
are compared, and those for the best of them."""

Allowed = Callable[[pl.DataFrame], Flags]
"""Problems → [problem, place]: whether the rules allow the config."""

SAMPLES = 5_000
# What the answers of a tree may lose, on average, to the model's own choice in the portfolio, which loses some 0.1 % itself.
WORST_LOSS = 0.002
# The same for a tree that answers alone. It compares nothing, and what it is unsure of gets a fallback, which loses more: on a
# CK-like model with a portfolio of 64 it answers 94 % of the problems with this limit, and 24 % with the one above.
WORST_LOSS_ALONE = 0.03
MOST_LEAVES = 1_024
# A leaf of fewer problems than this would describe single problems, not a region.
LEAST_WEIGHT = 3.0
# Leaves that may compare configs are larger: a longer list needs more problems to learn from.
LEAST_COMPARING_WEIGHT = 12.0
# The share of problems held out to prune the tree, and again to estimate its loss.
HELD_OUT = 0.2
# Fewer groups of problems than this cannot be divided into three.
FEWEST_GROUPS = 20
# The estimated loss of a leaf starts from the tree's mean loss, weighted like this many problems.
PRIOR = 3.0
# Configs that a leaf lists: the first that can run the problem is chosen.
PLACES = 4
# Leaves that compare configs: how many of those that can run the problem, and how many they list, as rules exclude some.
COMPARED, LISTED = 12, 24
# What a leaf must save by comparing, as a share of the time: it takes some microseconds instead of half of one.
WORTH_COMPARING = 0.0005
# What a config that cannot run costs while the tree grows.
PASSED_OVER = 0.1
# A leaf whose expected loss is this many times the tree's allowed mean loss is unsure, however rare it is.
WORST_LEAF = 5.0


@dataclass(frozen=True)
class Evidence:
    """What distillation starts from: the measurements, the device, and the trained ranges."""

    measured: Measured
    device: Device
    dtypes: tuple[str, ...] | None
    hull: Mapping[str, Range]
    rules: tuple[BoundRule, ...] = ()
    """Rules that the problem and a config decide together."""

    @classmethod
    def of(cls, model: Model) -> Evidence:
        rules = tuple(rule for rule in model_rules(model) if namespaces(rule.holds) == {"p", "c"})
        return cls(measured_by_model(model), model.device, model.manifest.dtypes or None, model.manifest.hull, rules)

    def program(self, portfolio: Sequence[int]) -> Program:
        """The inputs of splits: parameters and exact features of the problem alone, and which configs it allows.

        A log or a root orders problems like its argument does, and the argument is exact: it is used instead.
        """
        family, outputs, seen = self.measured.family, {}, set()
        features = family.features_on(self.device, self.dtypes).program.outputs
        configs = self.measured.configs[list(portfolio)]
        known = {f"p.{name}": item for name, item in family.problem.symbols.items()}
        for name, expr in {**known, **features, **_obeyed(self.rules, configs)}.items():
            while expr.kind in INEXACT:
                name, expr = f"inside {name}", expr.args[0]
            reads = [item.name for item in Program({name: expr}).symbols]
            if expr.exact and reads and all(item.startswith("p.") for item in reads) and expr.digest not in seen:
                seen.add(expr.digest)
                outputs[name] = expr
        return Program(outputs)


def _obeyed(rules: Sequence[BoundRule], configs: pl.DataFrame) -> dict[str, Expr]:
    """By rule and config: whether a problem obeys it, such as that N is a multiple of 128; equal ones once."""
    found: dict[bytes, tuple[str, Expr]] = {}
    for rule in rules:
        for place, values in enumerate(configs.iter_rows(named=True)):
            known = {f"c.{name.removeprefix('config.')}": value for name, value in values.items()}
            expr = Program({"holds": rule.holds}).bind(known).outputs["holds"]
            found.setdefault(expr.digest, (f"{rule.name} of {place}", expr))
    return dict(found.values())


@dataclass(frozen=True)
class Distilled:
    """A tree, and how it does on held-out problems."""

    tree: DecisionTree
    leaves: int
    unsure_leaves: int
    comparing_leaves: int
    samples: int
    answered: float
    """The share of held-out problems that the tree answers itself."""
    loss: float
    """Loss on held-out problems, relative to the model's own choice in the portfolio, which answers where the tree does not."""


def distill(
    evidence: Evidence,
    portfolio: Sequence[int],
    score: Score,
    *,
    seed: int = 0,
    samples: int = SAMPLES,
    worst_loss: float = WORST_LOSS,
    compare: Compare | None = None,
    allowed: Allowed | None = None,
) -> Distilled:
    """Grow a tree on measured and made-up problems; leaves that would lose too much are unsure.

    `compare` has the scores of the trees that compare configs. A leaf compares if that saves enough on held-out problems.

    With `allowed` the tree is to answer alone, by rules and by where configs were tried: nobody asks the model whether a config
    fails. So a leaf lists no config that failed, or that the model expects to fail, on one of the problems that reach the leaf.

    The cost of a choice is its measured regret, or the model's estimate if it was not measured. Leaves that are expected
    to lose more than WORST_LEAF times `worst_loss` are unsure. Then the most expensive of the others become unsure, as few as
    needed for the loss on held-out problems to be at most `worst_loss`.
    """
    if not portfolio or samples < 0 or not worst_loss > 0:
        raise InvalidValue(
            f"a tree needs a portfolio of at least one config, samples ≥ 0 and a loss above 0, got {len(portfolio)} configs, "
            f"{samples} samples and a loss of {worst_loss}"
        )
    examples = examples_of(evidence, portfolio, score, samples, np.random.default_rng(seed), allowed)
    program = evidence.program(portfolio)
    features = evaluate(program, examples.problems)
    # What cannot run is passed over, so it costs about what the next config of a list does.
    material = Material(
        features, np.where(examples.runs, examples.costs, np.minimum(examples.costs, PASSED_OVER)), np.ones(len(features))
    )
    grows, prunes, judges = parts_of(examples.group, seed)
    weight = LEAST_WEIGHT if compare is None else LEAST_COMPARING_WEIGHT
    grown = grow(material.take(grows), MOST_LEAVES, weight, material.take(prunes))
    leaf = grown.leaf_of(features)
    lists, compares = _lists(examples, leaf, grown, grows), np.ones(len(grown.value), np.int64)
    answers, lost = _outcome(examples, lists[leaf])
    if compare is not None:
        wide = _wide_lists(examples, leaf, grown, grows)
        saving, compared = _compared(examples, wide[leaf], compare, prunes | judges)
        # A leaf compares where that saves enough.
        expected = _by_leaf(lost - saving, leaf, prunes, len(lists))
        compares = np.where(expected > WORTH_COMPARING, COMPARED, 1)
        answers, lost = (np.where(compares[leaf] > 1, b, a) for a, b in ((answers, compared), (lost, saving)))
    sure, answered, loss = _sure_leaves(answers, lost, leaf, len(lists), prunes, judges, worst_loss)
    everything = np.ones(len(leaf), dtype=bool)
    lists = np.where(sure[:, None], _lists(examples, leaf, grown, everything), UNSURE)
    if (compares > 1).any():
        wide = np.where(sure[:, None], _wide_lists(examples, leaf, grown, everything), UNSURE)
        short = np.pad(lists, ((0, 0), (0, wide.shape[1] - lists.shape[1])), constant_values=UNSURE)
        lists = np.where(compares[:, None] > 1, wide, short)
    compares = np.where(sure, compares, 1)
    distinct, number = np.unique(np.column_stack([lists, compares]), axis=0, return_inverse=True)
    # Without splits whose two sides agree, and with only the features that are read.
    merged, names = replace(grown, value=number.ravel().astype(np.float64)).merged(), list(program.outputs)
    used = sorted(set(merged.feature.tolist()))
    kept = Program({names[item]: program.outputs[names[item]] for item in used})
    nodes = replace(merged, feature=np.searchsorted(used, merged.feature).astype(np.int64))
    tree = DecisionTree(kept, nodes, distinct[:, :-1].copy(), distinct[:, -1].copy())
    unsure, comparing = int((tree.choices == UNSURE).sum()), int((tree.compares[tree.tree.value.astype(np.int64)] > 1).sum())
    return Distilled(tree, len(tree.choices), unsure, comparing, len(features), answered, loss)


@dataclass(frozen=True)
class Examples:
    """What a tree learns from: measured and made-up problems, and what every choice costs on them."""

    problems: pl.DataFrame
    costs: Floats
    """[problem, place]: 1 − best over own time; 1 for what fails or must not be chosen."""
    own: Floats
    """By problem: the cost of the model's own choice."""
    runs: Flags
    """[problem, place]: whether the config may be chosen."""
    group: Ints
    """By problem: its group, which must not be split; each made-up problem is its own group."""
    fails: Flags
    """[problem, place]: whether the config would be chosen although it fails."""


def examples_of(
    evidence: Evidence,
    portfolio: Sequence[int],
    score: Score,
    samples: int,
    rng: np.random.Generator,
    allowed: Allowed | None = None,
) -> Examples:
    """The measured problems on which something worked, then `samples` made-up ones."""
    measured = evidence.measured
    drawn = draw_problems(measured.family, measured.problems, evidence.hull, samples, rng)
    solved = measured.solvable
    known = measured.problems[solved]
    problems = pl.concat([known, drawn.select(known.columns)])
    scores = np.asarray(score(problems), dtype=np.float64)
    tried = Reach.of(measured, portfolio).holds(problem_numbers(measured.family, problems))
    # If no config was tried on such problems, only the model's guess is left.
    scores = np.where(tried | ~tried.any(axis=1, keepdims=True), scores, np.inf)
    runs, chosen, least = np.isfinite(scores), scores.argmin(axis=1), scores.min(axis=1, keepdims=True)
    some = np.isfinite(least)
    # 1 − best over own time, according to the scores; 1 everywhere if nothing can run.
    costs = np.where(some, -np.expm1(np.where(some, least, 0.0) - np.where(runs, scores, np.inf)), 1.0)
    shares = measured.shares[solved][:, list(portfolio)]
    best = np.nanmax(np.where(np.isnan(shares), 0.0, shares), axis=1, keepdims=True)
    costs[: len(solved)] = np.where(np.isnan(shares), costs[: len(solved)], 1.0 - shares / np.where(best > 0, best, 1.0))
    if measured.score is not None:
        chosen[: len(solved)] = _chosen_unseen(measured, portfolio)[solved]
    own = np.where(runs.any(axis=1), costs[np.arange(len(costs)), chosen], 0.0)
    group = np.r_[measured.group[solved], measured.group.max() + 1 + np.arange(drawn.height)]
    if allowed is None:
        return Examples(problems, costs, own, runs, group, np.zeros_like(runs))
    may = allowed(problems) & tried
    failed = np.r_[shares == 0.0, np.zeros((drawn.height, len(portfolio)), dtype=bool)]
    return Examples(problems, costs, own, may, group, may & (failed | ~runs))


def _chosen_unseen(measured: Measured, portfolio: Sequence[int]) -> Ints:
    """By measured problem: the portfolio config that the model chose out of fold."""
    assert measured.score is not None
    place = np.full(measured.configs.height, -1)
    place[list(portfolio)] = np.arange(len(portfolio))
    found = np.full((measured.problems.height, len(portfolio)), np.inf)
    inside = place[measured.trials.config] >= 0
    found[measured.trials.problem[inside], place[measured.trials.config[inside]]] = measured.score[inside]
    return np.asarray(found.argmin(axis=1))


def evaluate(program: Program, problems: pl.DataFrame) -> Floats:
    """The program's outputs for a frame of `problem.*`."""
    symbols = problems.rename(lambda name: f"p.{name.removeprefix('problem.')}")
    return np.ascontiguousarray(program.frame(symbols, trusted=True).to_numpy(), dtype=np.float64)


def parts_of(group: Ints, seed: int) -> tuple[Flags, Flags, Flags]:
    """Whole groups to grow on, to prune by, and to judge by; with too few groups, all are used for everything."""
    if len(np.unique(group)) < FEWEST_GROUPS:
        everything = np.ones(len(group), dtype=bool)
        return everything, everything, everything
    aside = held_out(group, 2 * HELD_OUT, seed)
    prunes = np.zeros(len(group), dtype=bool)
    prunes[aside] = held_out(group[aside], 0.5, seed)
    return ~aside, prunes, aside & ~prunes


def _lists(examples: Examples, leaf: Ints, grown: Tree, used: Flags) -> Ints:
    """By leaf: up to PLACES configs, each the best on the problems of the leaf that none before it can run."""
    found = np.full((len(grown.value), PLACES), UNSURE)
    order = np.argsort(leaf[used], kind="stable")
    rows = np.flatnonzero(used)[order]
    starts = np.searchsorted(leaf[rows], np.arange(len(grown.value) + 1))
    for number in range(len(grown.value)):
        left = rows[starts[number] : starts[number + 1]]
        fails = np.asarray(examples.fails[left].any(axis=0))
        if not len(left):
            found[number, 0] = int(grown.value[number])
            continue
        for place in range(PLACES):
            best = int(np.where(fails, np.inf, examples.costs[left].sum(axis=0)).argmin())
            if fails[best] or not examples.runs[left, best].any():
                break
            found[number, place] = best
            left = left[~examples.runs[left, best]]
            if not len(left):
                break
    return found


def _wide_lists(examples: Examples, leaf: Ints, grown: Tree, used: Flags) -> Ints:
    """By leaf: up to LISTED configs, each the one that lowers the cost of the best of them most."""
    width = min(LISTED, examples.costs.shape[1])
    found = np.full((len(grown.value), max(width, PLACES)), UNSURE)
    for number in range(len(grown.value)):
        rows = np.flatnonzero(used & (leaf == number))
        if not len(rows):
            found[number, 0] = int(grown.value[number])
            continue
        costs = examples.costs[rows]
        # Where several would do, the one that is better by itself.
        least, alone = np.ones(len(rows)), 1e-3 * costs.sum(axis=0)
        for place in range(width):
            total = np.minimum(costs, least[:, None]).sum(axis=0) + alone
            total[found[number, :place]] = np.inf
            best = found[number, place] = int(total.argmin())
            least = np.minimum(least, costs[:, best])
    return found


def _compared(examples: Examples, lists: Ints, compare: Compare, asked: Flags) -> tuple[Floats, Flags]:
    """What the best of the first configs of a list that run loses, by the comparing scores; and whether there is one.

    Only of the problems in `asked`; the others count as unanswered.
    """
    rows, listed = np.flatnonzero(asked), np.maximum(lists[asked], 0)
    runs = (lists[asked] != UNSURE) & examples.runs[rows[:, None], listed]
    runs &= runs.cumsum(axis=1) <= COMPARED
    wanted = np.zeros((len(rows), examples.costs.shape[1]), dtype=bool)
    problem, place = np.nonzero(runs)
    wanted[problem, listed[problem, place]] = True
    chosen = listed[np.arange(len(rows)), best_compared(runs, listed, compare(examples.problems[rows], wanted))]
    answers, lost = np.zeros(len(asked), dtype=bool), np.zeros(len(asked))
    answers[rows] = runs.any(axis=1)
    lost[rows] = np.where(runs.any(axis=1), examples.costs[rows, chosen] - examples.own[rows], 0.0)
    return lost, answers


def best_compared(runs: Flags, listed: Ints, scores: Floats) -> Ints:
    """By problem: which of the `listed` places with `runs` is chosen: a few trees compare all of them, more trees the best."""
    first, more = (np.where(runs, np.take_along_axis(part, listed, axis=1), np.inf) for part in scores)
    few = np.argsort(first, axis=1, kind="stable")[:, :COMPARED_BY_ALL]
    best = np.take_along_axis(more, few, axis=1).argmin(axis=1)
    return np.asarray(few[np.arange(len(few)), best])


def _outcome(examples: Examples, lists: Ints) -> tuple[Flags, Floats]:
    """Whether a list (one per problem) has a config that runs, and what the first such loses to the model's own choice."""
    rows = np.arange(len(lists))
    answers, lost = np.zeros(len(lists), dtype=bool), np.zeros(len(lists))
    for place in range(lists.shape[1]):
        config = lists[:, place]
        now = ~answers & (config != UNSURE) & examples.runs[rows, np.maximum(config, 0)]
        lost[now] = examples.costs[rows[now], config[now]] - examples.own[now]
        answers |= now
    return answers, lost


def _by_leaf(values: Floats, leaf: Ints, used: Flags, leaves: int) -> Floats:
    """The mean of each leaf; one that few problems reach is assumed to be as good as the average."""
    count = np.bincount(leaf[used], minlength=leaves)
    return np.asarray((np.bincount(leaf[used], values[used], leaves) + PRIOR * values[used].mean()) / (count + PRIOR))


def _sure_leaves(
    answers: Flags, lost: Floats, leaf: Ints, leaves: int, prunes: Flags, judges: Flags, worst_loss: float
) -> tuple[Flags, float, float]:
    """Which leaves are sure; the share of held-out problems that they answer, and the loss there.

    Leaves are ranked on one set of problems and judged on another, because some small leaves do well by luck.
    """
    mean = _by_leaf(lost, leaf, prunes, leaves)
    order = np.lexsort((np.arange(leaves), -mean))
    held = np.bincount(leaf[judges], lost[judges], leaves)[order] / judges.sum()
    remaining = held.sum() - np.r_[0.0, np.cumsum(held)]
    given_up = int(np.flatnonzero(remaining <= worst_loss)[0]) if (remaining <= worst_loss).any() else leaves
    given_up = max(given_up, int((mean > WORST_LEAF * worst_loss).sum()))
    sure = np.ones(leaves, dtype=bool)
    sure[order[:given_up]] = False
    answers = answers & sure[leaf]
    return sure, float(answers[judges].mean()), float(lost[judges & answers].sum() / judges.sum())
