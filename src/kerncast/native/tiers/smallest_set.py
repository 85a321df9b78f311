"""The portfolio: the smallest set of configs whose best loses next to nothing on held-out problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.io.atomic import write_text
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.table import load_table
from kerncast.learning.trials import folds_by_group
from kerncast.models.candidates import Candidates
from kerncast.models.manifest import MANIFEST
from kerncast.models.measured import Measured, measured_by_model, measured_in_table
from kerncast.models.model import Model

FOLDS = 5
# When a set grows by one config, exchanging more than two of the others rarely helps.
MOST_SWAPS = 4
# With more configs than this only the promising ones are considered: 2,000 problems × 4,608 configs took 51 s otherwise.
MOST_CANDIDATES, GENERALISTS, CONTENDERS = 704, 64, 16
# Configs of a portfolio that a problem should have to choose from, so far as the rules allow as many.
ENOUGH = 3
# Gains below this are rounding errors: sums of thousands of shares, each off by about 1e-16.
NOTHING = 1e-9


@dataclass(frozen=True)
class CurvePoint:
    """The losses of a set of some size: 1 − best time over the time of the set's best, averaged over problems."""

    size: int
    training_loss: float
    """On the problems that the set was chosen by."""
    loss: float
    """On held-out problems."""
    efficiency_p10: float
    efficiency_min: float

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.size, "training_loss": self.training_loss, "loss": self.loss,
            "efficiency_p10": self.efficiency_p10, "efficiency_min": self.efficiency_min,
        }  # fmt: skip


@dataclass(frozen=True)
class PortfolioChoice:
    """The configs to keep, in the order in which each adds most, and the losses of sets of other sizes."""

    configs: tuple[int, ...]
    curve: tuple[CurvePoint, ...]
    """From one config up to the first size that loses little enough, or to the largest allowed."""
    reached: bool
    """Whether the set's loss on held-out problems is within the limit."""
    folds: int
    """0: too few groups of problems to hold any out, so `loss` in the curve is that of training."""
    problems: int
    uncovered: int
    """Problems that some config solves, but none in the portfolio; each counts as a loss of 1."""
    untried: int = 0
    """Held-out problems on which no config of the set chosen without them was tried; each counts as a loss of 1."""


def choose_portfolio(measured: Measured, loss: float = 0.002, most: int = 64, *, seed: int = 0) -> PortfolioChoice:
    """The smallest set, of at most `most` configs, that loses at most `loss` on held-out problems.

    Sets are chosen on some folds of problems and scored on the others, size by size, until the mean over all
    problems is small enough. The result is the set of that size chosen on all problems, with configs added for problems
    that would have none.
    """
    if not 0.0 <= loss < 1.0 or most < 1:
        raise InvalidValue(f"`loss` must be from 0 to below 1 and `most` at least 1, got {loss} and {most}")
    solved = measured.solvable
    if not len(solved):
        raise InvalidValue("no config worked on any problem: there is nothing to choose a portfolio from")
    tried = ~np.isnan(measured.shares[solved])
    shares = np.nan_to_num(measured.shares[solved])
    group = measured.group[solved]
    folds = min(FOLDS, len(np.unique(group)))
    fold = folds_by_group(group, folds, seed) if folds > 1 else np.zeros(len(solved), np.int64)
    splits = [(fold != number, fold == number) for number in range(folds)] if folds > 1 else []
    most = min(most, int((shares > 0).any(axis=0).sum()))
    chosen = _Growing(shares, most)
    held = [_Growing(shares[others], most) for others, _ in splits]
    curve: list[CurvePoint] = []
    while len(chosen.picked) < most:
        chosen.grow()
        efficiency = chosen.best
        if splits:
            efficiency = np.empty(len(solved))
            for growing, (_, own) in zip(held, splits, strict=True):
                growing.grow()
                efficiency[own] = shares[own][:, growing.picked].max(axis=1)
        training, low = 1.0 - float(chosen.best.mean()), float(np.percentile(efficiency, 10))
        point = CurvePoint(len(chosen.picked), training, 1.0 - float(efficiency.mean()), low, float(efficiency.min()))
        curve.append(point)
        if point.loss <= loss:
            break
    judged = [(growing, own) for growing, (_, own) in zip(held, splits, strict=True)]
    untried = sum(int((~tried[own][:, growing.picked]).all(axis=1).sum()) for growing, own in judged)
    picked = _cover(shares, chosen.picked, most)
    left = int((shares[:, picked].max(axis=1) <= 0).sum())
    return PortfolioChoice(
        tuple(_ordered(shares, picked)), tuple(curve), curve[-1].loss <= loss, len(splits), len(solved), left, untried
    )


def model_portfolio(model: Model, loss: float = 0.002, most: int = 64) -> tuple[int, ...]:
    """The portfolio of a trained model, as rows of `model.candidates`."""
    return choose_portfolio(measured_by_model(model), loss, most).configs


def shortlist(scores: Floats, loss: float, most: int) -> list[int]:
    """The fewest configs, at most `most`, whose best is on average within `loss` of the best of all, by scores of problem ×
    config (logarithms of times, infinite where a config cannot run). It needs no measurement of every config on a problem.
    """
    solvable = np.isfinite(scores).any(axis=1)
    best = scores[solvable].min(axis=1, keepdims=True)
    growing = _Growing(np.exp(best - scores[solvable]), most)
    while len(growing.places) < min(most, scores.shape[1]) and 1.0 - growing.best.mean() > loss:
        growing.grow()
    return growing.picked


def covered(model: Model, portfolio: Sequence[int], problems: pl.DataFrame, most: int) -> tuple[int, ...]:
    """The portfolio with configs added, while there is room, for problems that the rules let few of its configs run.

    Measured problems may all be aligned, and then no config of their portfolio needs to guard its edges.
    """
    if not len(model.candidates.columns) or not problems.height:
        return tuple(portfolio)
    allowed = Candidates(model, None).rules_of_many(problems, np.arange(model.candidates.height))
    wanted, share = np.minimum(allowed.sum(axis=1), ENOUGH), model.candidates["share"].to_numpy()
    picked = list(portfolio)
    while len(picked) < most:
        bare = allowed[:, picked].sum(axis=1) < wanted
        works = allowed[bare].sum(axis=0)
        works[picked] = 0
        if not works.any():
            break
        # Among the configs that run most of them, the best on average.
        picked.append(int(np.lexsort((-share, -works))[0]))
    return tuple(picked)


class _Growing:
    """A set that grows by one config at a time, and exchanges members while that helps."""

    def __init__(self, shares: Floats, most: int) -> None:
        self.columns = _promising(shares, most)
        self.shares = shares[:, self.columns]
        self.places: list[int] = []
        self._cover()

    @property
    def picked(self) -> list[int]:
        """The set, as columns of the shares."""
        return [int(self.columns[place]) for place in self.places]

    def _cover(self) -> None:
        """The best and the second-best share that each problem gets from the set, and which member gives the best."""
        rows = np.arange(len(self.shares))
        inside = np.zeros((len(rows), len(self.places) + 2))
        inside[:, 2:] = self.shares[:, self.places]
        self.holder = inside.argmax(axis=1) - 2
        self.best = inside[rows, self.holder + 2].copy()
        inside[rows, self.holder + 2] = 0.0
        self.second = inside.max(axis=1)

    def grow(self) -> None:
        """Add the config that adds most, then exchange members."""
        totals = self._totals(self.best)
        if totals.max() <= self.best.sum() + NOTHING:
            # Every problem has its best config already. The config that would help most if those were missing is the
            # best guess at what other problems need.
            totals = self._totals(self.second)
            if totals.max() <= self.second.sum() + NOTHING:
                totals = self._totals(np.zeros(len(self.best)))
        self.places.append(int(totals.argmax()))
        self._cover()
        for _ in range(MOST_SWAPS):
            if not self._swap():
                break

    def _totals(self, covered: Floats) -> Floats:
        """For each config outside the set: the sum of the shares that problems would get, given `covered` already."""
        totals = np.maximum(self.shares, covered[:, None]).sum(axis=0)
        totals[self.places] = -1.0
        return np.asarray(totals)

    def _swap(self) -> bool:
        """Exchange the member whose best replacement adds most; False if no exchange adds anything."""
        joined = self._totals(self.best)
        found = (self.best.sum() + NOTHING, -1, -1)
        for place in range(len(self.places)):
            # Without this member its problems fall back to their second best; nothing changes for the others.
            own = self.holder == place
            part, best, second = self.shares[own], self.best[own, None], self.second[own, None]
            change = np.maximum(part, second).sum(axis=0) - np.maximum(part, best).sum(axis=0)
            totals = joined + change
            config = int(totals.argmax())
            if totals[config] > found[0] + NOTHING:
                found = (float(totals[config]), place, config)
        if found[1] < 0:
            return False
        self.places[found[1]] = found[2]
        self._cover()
        return True


def _promising(shares: Floats, most: int) -> Ints:
    """The columns worth considering: contenders for the best of some problem, and those that are good on average."""
    count, limit = shares.shape[1], max(MOST_CANDIDATES, 2 * most)
    if count <= limit:
        return np.arange(count)
    contender = np.partition(shares, count - CONTENDERS, axis=1)[:, count - CONTENDERS, None]
    worth = np.maximum(0.0, shares - contender).sum(axis=0)
    ranked = np.argsort(-worth, kind="stable")[: limit - GENERALISTS]
    return np.union1d(ranked, np.argsort(-shares.sum(axis=0), kind="stable")[:GENERALISTS])


def _cover(shares: Floats, picked: list[int], most: int) -> list[int]:
    """The set with configs added, while there is room, for problems on which nothing in it works."""
    picked = list(picked)
    while len(picked) < most:
        bare = shares[:, picked].max(axis=1) <= 0
        works = (shares[bare] > 0).sum(axis=0)
        if not bare.any() or not works.max():
            break
        # Among the configs that work on most of them, the fastest there.
        picked.append(int(np.lexsort((-shares[bare].sum(axis=0), -works))[0]))
    return picked


def _ordered(shares: Floats, picked: list[int]) -> list[int]:
    """The set in the order in which each adds most to those before it; ties go to the first config."""
    left, order = sorted(picked), []
    covered = np.zeros(len(shares))
    while left:
        gains = [float(np.maximum(shares[:, config], covered).sum()) for config in left]
        config = left.pop(int(np.argmax(gains)))
        order.append(config)
        covered = np.maximum(covered, shares[:, config])
    return order


@dataclass(frozen=True)
class Portfolio:
    """The smallest set of configs within the allowed loss, and the losses of smaller sets."""

    measured: Measured
    found: PortfolioChoice
    loss: float

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configs, in the order in which each adds most."""
        return [self.config(number) for number in self.found.configs]

    def config(self, number: int) -> dict[str, Any]:
        """One of the measured configs."""
        values = self.measured.configs.row(number, named=True)
        return {name.removeprefix("config."): value for name, value in values.items() if value is not None}

    @property
    def labels(self) -> list[list[str]]:
        """The names of each of the configs in the data: several if a name also says for which problems it is; or none."""
        known = self.measured.labels
        return [[] if known is None else known.all_of(number) for number in self.found.configs]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.found
        return {
            "family": self.measured.family.id, "problems": found.problems, "configs": self.measured.configs.height,
            "loss_wanted": self.loss, "reached": found.reached, "folds": found.folds,
            "problems_without_config": found.uncovered, "problems_not_tried": found.untried, "portfolio": self.configs,
            **({} if self.measured.labels is None else {"labels": self.labels}),
            "curve": [point.as_json() for point in found.curve],
        }  # fmt: skip

    def __repr__(self) -> str:
        last = self.found.curve[-1]
        return (
            f"Portfolio of {self.measured.family.id}: {len(self.found.configs)} of {self.measured.configs.height:,} configs "
            f"lose {last.loss:.2%} on held-out problems{f'; {self.caution}' if self.caution else ''}"
        )

    @property
    def caution(self) -> str:
        """Why the loss may say nothing about the configs, and what to do; empty if it does."""
        found = self.found
        if not found.untried:
            return ""
        return (
            f"on {found.untried:,} of {found.problems:,} held-out problems none of the set was tried, which counts as a loss "
            "of 100 %: if each problem has its own sample of configs, no set of them was tried on all problems; measure the "
            "same configs on every problem (`configs=all`, or `configs=portfolio:FILE` with a list of yours)"
        )


def portfolio_of(
    source: Model | Dataset | str | Path,
    *,
    loss: float = 0.002,
    max_configs: int = 64,
    family: str | None = None,
    where: Sequence[str] = (),
    out: str | Path | None = None,
    build_list: str | Path | None = None,
) -> Portfolio:
    """The smallest set of configs of a model or a dataset that is enough.

    `out` writes it as JSON, for sweeps; `build_list` writes the kernels' names, one per line, for a build.
    """
    place = None if out is None else Path(out)
    if place is not None and place.suffix != ".json":
        raise InvalidValue(f"`out` must be a .json file, so that `configs=portfolio:FILE` reads it, got {place}")
    measured = _measured(source, family, tuple(where))
    if not measured.configs.width:
        raise InvalidValue(f"{measured.family.id} has exactly one config: there is nothing to choose")
    portfolio = Portfolio(measured, choose_portfolio(measured, loss, max_configs), loss)
    if build_list is not None:
        if measured.labels is None:
            raise InvalidValue(
                f'`build_list` {build_list}: the data name no kernels; import them with a label column (`label = "column"` in '
                "a mapping), or write the configs with `out`"
            )
        write_text(Path(build_list), "".join(f"{label}\n" for names in portfolio.labels for label in names))
    if place is not None:
        write_text(place, json.dumps(portfolio.configs, indent=2) + "\n")
    return portfolio


def _measured(source: Model | Dataset | str | Path, family: str | None, where: tuple[str, ...]) -> Measured:
    if isinstance(source, Dataset) or (not isinstance(source, Model) and not (Path(source) / MANIFEST).exists()):
        opened = source if isinstance(source, Dataset) else Dataset.open(source)
        return measured_in_table(load_table([opened], family, where))
    if where or family is not None:
        raise InvalidValue("`where` and `family` are for datasets; a model has one family and its own rows: leave them out")
    return measured_by_model(source if isinstance(source, Model) else Model.load(source))
