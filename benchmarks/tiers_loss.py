"""Loss of the quick tiers on two public sets of A100 matmuls: `KERNCAST_DATA=… python benchmarks/tiers_loss.py`.

For each fold, the model (default recipe), the portfolio with its small forest, and the tree are built from the other folds.
Then each of them chooses for the problems of the fold, which none has seen. Data: PyTorch's AutoHeuristic collection,
a100_mm.zip and mixedmm_a100_data.zip, as published with torchgen/_autoheuristic in https://github.com/pytorch/pytorch.

The model and the portfolio choose among the configs that were tried on the problem. If the tree chooses a config that was not
tried, its time is unknown. Such a problem is passed on to the portfolio, as if the tree were unsure, and counted.
"""

from __future__ import annotations

import os

# Set before LightGBM is loaded. It does not change the figures; more threads would slow down everything else on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
from choosing import data_file, table_of
from reporting import Benchmark, Interval, Row, Target, finish, format_figure, script_parser

from kerncast.data import schema
from kerncast.learning.feature_rows import Featurizer
from kerncast.learning.learners.contract import Learner
from kerncast.learning.table import Table, family_rules, namespaces
from kerncast.learning.trials import folds_by_group
from kerncast.models.limits.configs import Reach, problem_numbers
from kerncast.models.measured import Measured, hull, measured_in_table
from kerncast.native.tiers.build import samples_for
from kerncast.native.tiers.contents import COMPARING, COMPARING_FIRST
from kerncast.native.tiers.distill import Distilled, Evidence, best_compared, distill, evaluate
from kerncast.native.tiers.smallest_set import choose_portfolio
from kerncast.native.tiers.teaching import compact_forest, draw_problems, forest_scores
from kerncast.training.procedure import Procedure, Recipe

Floats = npt.NDArray[np.float64]

DATA = {"A100 mm": "a100_mm.zip", "A100 mixed_mm": "mixedmm_a100_data.zip"}
TARGETS = {"portfolio": Target(high=0.2), "tree": Target(high=0.3)}
ANSWERED = Target(low=90.0)
BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on public data",
    "Loss of the quick tiers",
    "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), a100_mm and mixed_mm",
    "none stated",
)
SPLIT = "five folds, problems unseen"
# Problems per batch of feature rows.
BLOCK = 2_000


@dataclass(frozen=True)
class Scorer:
    """Scores of the portfolio's configs for given problems, by the learner of one fold; cached by problem."""

    learner: Learner
    featurizer: Featurizer
    names: tuple[str, ...]
    configs: pl.DataFrame
    known: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def __call__(self, problems: pl.DataFrame) -> Floats:
        rows = problems.rows()
        new = problems.filter(pl.Series([row not in self.known for row in rows], dtype=pl.Boolean))
        for start in range(0, new.height, BLOCK):
            part = new[start : start + BLOCK]
            self.known.update(zip(part.rows(), self._block(part), strict=True))
        return np.stack([self.known[row] for row in rows])

    def features(self, rows: pl.DataFrame) -> Floats:
        return self.featurizer.describe(rows).only(self.names).features

    def _block(self, problems: pl.DataFrame) -> Floats:
        rows = problems.join(self.configs, how="cross", maintain_order="left_right")
        output = self.learner.predict(self.featurizer.describe(rows).only(self.names))
        assert output.score is not None
        scores = np.where(self._allowed(rows), output.score, np.inf)
        return scores.reshape(problems.height, self.configs.height)

    def _allowed(self, rows: pl.DataFrame) -> npt.NDArray[np.bool_]:
        family = self.featurizer.family
        symbols = schema.symbol_columns(family, rows)
        bound = self.featurizer.device.bindings(family.op.dtype, self.featurizer.dtypes)
        allowed = np.ones(rows.height, dtype=bool)
        for constraint in family.config.constraints:
            allowed &= constraint.program.bind(bound).frame(symbols, trusted=True).to_series().to_numpy() != 0.0
        return allowed


@dataclass(frozen=True)
class FoldResult:
    """For each held-out problem: the efficiency of each tier, and whether the tree answered."""

    full: Floats
    model_in_portfolio: Floats
    """The model's own choice in the portfolio, without the small forest."""
    portfolio: Floats
    tree: Floats
    answered: npt.NDArray[np.bool_]
    untried: npt.NDArray[np.bool_]
    size: int
    distilled: Distilled
    build_s: float


def run_fold(training: Table, held: Table, recipe: Recipe) -> FoldResult:
    learner = Procedure(recipe).fit(training)
    measured = measured_in_table(training)
    portfolio = choose_portfolio(measured).configs
    family, device = training.family, training.devices[0]
    dtypes = tuple(sorted(training.rows.frame["problem.dtype"].unique()))
    scorer = Scorer(learner, Featurizer(family, device, dtypes), training.rows.names, measured.configs[list(portfolio)])
    mixed = tuple(rule for rule in family_rules(family, device, dtypes) if namespaces(rule.holds) == {"p", "c"})
    evidence = Evidence(measured, device, dtypes, hull(training, None), mixed)
    start = time.perf_counter()
    samples = samples_for(len(portfolio))
    drawn = draw_problems(family, measured.problems, evidence.hull, samples, np.random.default_rng(0))
    asked = pl.concat([measured.problems, drawn.select(measured.problems.columns)])
    # As in a selector: only configs that were tried on similar problems, unless there are none.
    tried = Reach.of(measured, portfolio).holds(problem_numbers(measured.family, asked))
    scores = np.where(tried | ~tried.any(axis=1, keepdims=True), scorer(asked), np.inf)
    small = compact_forest(scorer.features, scorer.names, scorer.configs, asked, scores)
    assert small is not None
    compare = forest_scores([small[:COMPARING_FIRST], small[:COMPARING]], scorer.features, scorer.configs)
    distilled = distill(evidence, portfolio, scorer, samples=samples, compare=compare)
    spent = time.perf_counter() - start
    unseen = measured_in_table(held)
    shares = _shares(unseen, scorer.configs)
    rows = np.arange(len(shares))
    output = learner.predict(held.rows)
    assert output.score is not None
    full = unseen.trials.share[unseen.trials.choose(output.score)]
    exact = scorer(unseen.problems)
    model_choice = shares[rows, np.where(np.isnan(shares), np.inf, exact).argmin(axis=1)]
    quick = forest_scores([small], scorer.features, scorer.configs)(unseen.problems, np.isfinite(exact))[0]
    second = shares[rows, np.where(np.isnan(shares), np.inf, quick).argmin(axis=1)]
    may = np.isfinite(exact) & Reach.of(measured, portfolio).holds(problem_numbers(measured.family, unseen.problems))
    chosen = _decide(distilled, unseen.problems, may, compare(unseen.problems, may))
    got = shares[rows, np.maximum(chosen, 0)]
    untried = (chosen >= 0) & np.isnan(got)
    tree = np.where((chosen < 0) | untried, second, got)
    solved = unseen.trials.solvable
    kept = [np.nan_to_num(item)[solved] for item in (full, model_choice, second, tree)]
    return FoldResult(*kept, (chosen >= 0)[solved], untried[solved], len(portfolio), distilled, spent)


def _shares(unseen: Measured, configs: pl.DataFrame) -> Floats:
    """[problem, place in the portfolio]: measured efficiency; NaN where a config was not tried."""
    numbered = unseen.configs.with_row_index("number")
    place = configs.join(numbered, on=configs.columns, how="left", nulls_equal=True, maintain_order="left")["number"]
    found = np.full((unseen.problems.height, configs.height), np.nan)
    for column, number in enumerate(place):
        if number is not None:
            found[:, column] = unseen.shares[:, number]
    return found


def _decide(
    distilled: Distilled, problems: pl.DataFrame, may: npt.NDArray[np.bool_], compared: Floats
) -> npt.NDArray[np.int64]:
    """By problem: the best of the first places of its leaf's list that may be chosen, as many as are compared; or -1."""
    tree = distilled.tree
    leaf = tree.tree.leaf_of(evaluate(tree.program, problems)) if tree.program.outputs else np.zeros(problems.height, np.int64)
    places, most = tree.ranked[leaf], tree.compares[tree.tree.value.astype(np.int64)][leaf]
    listed, rows = np.maximum(places, 0), np.arange(problems.height)
    runs = (places >= 0) & may[rows[:, None], listed]
    runs &= runs.cumsum(axis=1) <= most[:, None]
    return np.where(runs.any(axis=1), listed[rows, best_compared(runs, listed, compared)], -1)


def loss(full: Floats, tier: Floats) -> tuple[float, float, float]:
    """The share of the full choice's mean efficiency that a tier loses, with a 95 % interval over problems."""
    pairs = np.stack([full, tier], axis=-1)
    index = np.random.default_rng(0).integers(len(full), size=(1000, len(full)))
    drawn = pairs[index].mean(axis=1)
    low, high = np.percentile(1.0 - drawn[:, 1] / drawn[:, 0], [2.5, 97.5])
    return 1.0 - float(tier.mean() / full.mean()), float(low), float(high)


def report(name: str, table: Table) -> list[Row]:
    recipe = Recipe(threads=1).resolved(table, None)
    fold = folds_by_group(table.group, recipe.folds, recipe.seed)
    results: list[FoldResult] = []
    for number in range(recipe.folds):
        done = run_fold(table.take(fold != number), table.take(fold == number), recipe)
        results.append(done)
        lines = [f"{tier} loses {loss(done.full, getattr(done, tier))[0]:.3%}" for tier in TARGETS]
        grown = done.distilled
        kinds = f"{grown.unsure_leaves} unsure, {grown.comparing_leaves} comparing"
        grew = f"{grown.leaves} leaves ({kinds}, {len(grown.tree.program.outputs)} features)"
        print(
            f"  fold {number + 1}: n {len(done.full):,}, full {done.full.mean():.2%}, {', '.join(lines)}; "
            f"portfolio of {done.size}, tree of {grew} from {grown.samples:,} problems in {done.build_s:.1f} s with "
            f"LightGBM's scores; its own estimate of its loss is {grown.loss:.2%}",
            flush=True,
        )
    return _summary(name, results)


def _joined(results: Sequence[FoldResult], name: str) -> Floats:
    return np.concatenate([getattr(item, name) for item in results]).astype(np.float64)


def _summary(name: str, results: Sequence[FoldResult]) -> list[Row]:
    full = _joined(results, "full")
    print(f"{name}: {len(full):,} problems, five folds; full choice {full.mean():.2%}")
    answered, untried = _joined(results, "answered") > 0, _joined(results, "untried") > 0
    scored = answered & ~untried
    value, low, high = loss(full[scored], _joined(results, "tree")[scored])
    print(
        f"  the tree answers {answered.mean():.2%}, {untried.mean():.2%} with a config not tried there (scored as the "
        f"portfolio's choice); on the other {scored.sum():,} answers it loses {value:.3%} ({low:.3%} to {high:.3%})"
    )
    n, rows = f"{len(full):,} problems", []
    tiers = {"model_in_portfolio": "the portfolio ranked by the model itself", "portfolio": "the portfolio", "tree": "the tree"}
    for tier, label in tiers.items():
        own = _joined(results, tier)
        value, low, high = (100 * found for found in loss(full, own))
        against = f"the model over all configs {format_figure(100 * full.mean(), '%')}"
        note = f"speed {100 * own.mean():.2f} %, P10 {100 * np.percentile(own, 10):.2f} %, worst {100 * own.min():.2f} %"
        if tier == "tree":
            note += f"; it answers {format_figure(100 * answered.mean(), '%')} of the problems, the portfolio the others"
        if tier == "tree":
            share = 100 * float(answered.mean())
            rows.append(Row(f"{name}: problems that the tree answers itself", share, "%", ANSWERED, "", n, SPLIT))
        text = f"{name}: speed lost by {label} against the model's choice"
        rows.append(Row(text, value, "%", TARGETS.get(tier), against, n, SPLIT, Interval(low, high), note))
    return rows


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    stated: list[Row] = []
    for title, file in DATA.items():
        path = data_file("autoheuristic", file, source="pytorch/pytorch, AutoHeuristic data sets")
        stated += report(title, table_of("autoheuristic", path, "a100"))
    sys.exit(finish(BENCHMARK, stated, given.json))
