"""Building the quick tiers of a model: portfolio, small forest, tree. Done once, then cached by hash."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.expr import Program
from kerncast.core.io.artefact import is_intact, keep_sum
from kerncast.core.io.atomic import replace_file
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import CannotWrite, InvalidValue, KerncastError
from kerncast.learning.learners.contract import read_arrays, write_arrays
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.learning.learners.trees import Tree, as_arrays, from_arrays
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.models.answer import ALONE, Tier, named_tiers
from kerncast.models.limits.configs import Expectation, Reach, expectation_of, reach_of
from kerncast.models.model import Model
from kerncast.native import encode
from kerncast.native.build import BRIEF, NotTrusted, folder_for, load
from kerncast.native.c99 import NotInC
from kerncast.native.interpreter import Interpreter
from kerncast.native.lower import Artefact, lower
from kerncast.native.tiers.contents import COMPARING, COMPARING_FIRST, UNSURE, DecisionTree, Tiers
from kerncast.native.tiers.distill import COMPARED, WORST_LOSS_ALONE, Evidence, distill
from kerncast.native.tiers.smallest_set import covered, model_portfolio, shortlist
from kerncast.native.tiers.teaching import MOST_ROWS, TREES, compact_forest, draw_problems, forest_scores

LOSS, MOST = 0.002, 64
# A model with fewer trees than this many times those of a small forest is quick enough itself.
WORTH_IMITATING = 2
# Problems that the model answers to teach the tree and the small forest: so many for each config of the portfolio, because
# they have so much to tell apart. On a CK-like model with 64 configs the tree lost less with 12,000 than with 6,000.
SAMPLES_PER_CONFIG, FEWEST_SAMPLES, MOST_SAMPLES = 200, 2_000, 12_000
# How many of them the portfolio must have configs for, by the rules.
COVERED = 200
# The stages of a build, and CPU seconds of the compiling after it.
CHOOSING_IT, ASKING = "choosing the portfolio", "asking the model about problems like those it was trained on"
TEACHING, GROWING = "teaching the small forest", "growing the tree"
COMPILING_SECONDS = 4.5
# Problems like the measured ones that say which candidates a model prefers; each costs a millisecond.
LIKE_MEASURED = 400


@dataclass(frozen=True)
class TierOptions:
    """How large the portfolio may be, and what it may lose."""

    loss: float = LOSS
    most: int = MOST
    seed: int = 0
    samples: int | None = None
    """None: by the size of the portfolio."""
    alone: bool = False
    """For an artefact of the tree alone: no small forest; a tree that compares nothing and knows what fails."""

    def __post_init__(self) -> None:
        if not 0 < self.loss < 1 or self.most < 1:
            raise InvalidValue(f"`loss` must be above 0 and below 1, and `most` at least 1, got {self.loss} and {self.most}")

    @property
    def identity(self) -> str:
        # The last word changes whenever tiers are built or kept differently.
        alone = " alone" if self.alone else ""
        return f"loss {self.loss} most {self.most} seed {self.seed} samples {self.samples} by portfolio{alone}"

    def samples_for(self, portfolio: Sequence[int]) -> int:
        """How many problems the model answers."""
        return self.samples or samples_for(len(portfolio))


def samples_for(configs: int) -> int:
    """How many problems teach the quick tiers of a portfolio."""
    return min(max(SAMPLES_PER_CONFIG * configs, FEWEST_SAMPLES), MOST_SAMPLES)


def tiers_of(model: Model, options: TierOptions | None = None, *, progress: Progress = QUIET) -> Tiers:
    """The tiers of a model: from the cache, or built now (some seconds) and kept."""
    options = options or TierOptions()
    return _cached(model, options.identity, lambda: build_tiers(model, options, progress=progress))


def _cached(model: Model, identity: str, build: Callable[[], Tiers]) -> Tiers:
    try:
        folder = folder_for("tiers", model.manifest.checksum, identity)
    except CannotWrite:  # then they are built each time
        return build()
    found = kept_tiers(folder / "tiers.npz", model)
    if found is None:
        found = build()
        keep_tiers(folder, found)
    return found


def tiers_named(
    model: Model, names: str | Iterable[str], options: TierOptions | None = None, *, progress: Progress = QUIET
) -> tuple[Tiers, tuple[Tier, ...]]:
    """Tiers of a model by name: a tree that is alone is another one than a tree that leaves problems to the portfolio.

    For `full` alone nothing is built.
    """
    include = named_tiers(names)
    if include == (Tier.FULL,):
        return plain_tiers(model), include
    return tiers_of(model, replace(options or TierOptions(), alone=include == ALONE), progress=progress), include


def plain_tiers(model: Model) -> Tiers:
    """All candidates as the portfolio, best on average first, and no other tier: for when quick choices are not needed."""
    order = np.lexsort((np.arange(model.candidates.height), -model.candidates["share"].to_numpy()))
    return Tiers(tuple(int(row) for row in order), reach=reach_of(model), expectation=expectation_of(model))


def short_tiers(model: Model) -> Tiers:
    """The few candidates that the model itself prefers as the portfolio, and no other tier.

    Where each problem was measured with a few configs out of hundreds, measurements cannot say which configs are enough, but
    predictions can.
    """
    plain = plain_tiers(model)
    if len(plain.portfolio) <= MOST or model.out_of_fold is None:
        return plain

    def shortened() -> Tiers:
        measured, drawn = _measured_and_drawn(model, LIKE_MEASURED, seed=0)
        scores = PortfolioScores(lower(model, plain, [Tier.PORTFOLIO]))(pl.concat([measured, drawn]))
        preferred = [plain.portfolio[place] for place in shortlist(scores, LOSS, MOST)]
        # Whatever the model prefers, the configs that others would take stay: it may be asked to compare with them.
        rows = dict.fromkeys([*_always(model), *preferred])
        return replace(plain, portfolio=covered(model, list(rows), drawn[:COVERED], MOST))

    return _cached(model, f"short {LOSS} {MOST} {LIKE_MEASURED}", shortened)


def _always(model: Model) -> list[int]:
    """The candidates that every sample of the family has."""
    same = [
        pl.all_horizontal(pl.col(f"config.{name}") == value for name, value in values.items()) for values in model.family.always
    ]
    return model.candidates.select(pl.arg_where(pl.any_horizontal(*same))).to_series().to_list() if same else []


def _measured_and_drawn(model: Model, samples: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The problems of the training data, and random ones in their range."""
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    assert model.out_of_fold is not None
    measured = model.out_of_fold.select(columns).unique(maintain_order=True)
    drawn = draw_problems(model.family, measured, model.manifest.hull, samples, np.random.default_rng(seed))
    return measured, drawn.select(columns)


def build_tiers(model: Model, options: TierOptions, *, progress: Progress = QUIET) -> Tiers:
    """Choose the portfolio, ask the model about many problems, and teach the small forest and the tree."""
    if not model.family.config.parameters:  # nothing to choose
        return Tiers((0,))
    forecast = _Forecast(progress)
    forecast.begin(CHOOSING_IT)
    portfolio, reach, expectation = model_portfolio(model, options.loss, options.most), reach_of(model), expectation_of(model)
    samples = options.samples_for(portfolio)
    measured, drawn = _measured_and_drawn(model, samples, options.seed)
    portfolio = covered(model, portfolio, drawn[:COVERED], options.most)
    if len(portfolio) < 2 and not options.alone:
        return Tiers(portfolio, reach=reach, expectation=expectation)
    teaches = not options.alone and isinstance(model.learner, Gbdt)
    teaches = teaches and sum(model.learner.size().values()) > WORTH_IMITATING * TREES
    forecast.expect((measured.height + drawn.height) * len(portfolio), teaches)
    forecast.begin(ASKING)
    score = PortfolioScores(lower(model, Tiers(portfolio, reach=reach), [Tier.PORTFOLIO]), progress)
    grown = partial(distill, Evidence.of(model), portfolio, score, seed=options.seed, samples=samples)
    if options.alone:
        forecast.begin(GROWING)
        found = grown(worst_loss=WORST_LOSS_ALONE, allowed=score.allowed)
        judged = (found.answered, found.loss)
        return Tiers(portfolio, found.tree, None, reach, expectation, alone=True, judged=judged)
    problems = pl.concat([measured, drawn])
    scores = score(problems)
    forest, compare = None, None
    if teaches:
        forecast.begin(TEACHING)
        names = [f"config.{name}" for name in model.family.config.parameters]
        configs = model.candidates.select(names)[list(portfolio)]
        features = model.manifest.features.names

        def describe(rows: pl.DataFrame) -> Floats:
            return model.describe(rows).features

        forest = compact_forest(describe, features, configs, problems, scores, options.seed)
        if forest is not None:
            compare = forest_scores([forest[:COMPARING_FIRST], forest[:COMPARING]], describe, configs)
    forecast.begin(GROWING)
    return Tiers(portfolio, grown(compare=compare).tree, forest, reach, expectation)


class _Forecast:
    """About how long a build still takes, with the compiling that mostly follows it.

    It starts from what the stages took with 4,608 candidates, 12,000 problems and a portfolio of 64 (CPU seconds of a Xeon at
    2.8 GHz), and is corrected by how long the stages took here that are done.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._began = progress, time.monotonic()
        self._seconds = {CHOOSING_IT: 1.1}

    def expect(self, pairs: int, teaches: bool) -> None:
        """So many pairs of a problem and a config are scored, and a small forest is taught by them."""
        self._seconds |= {
            ASKING: 1.5 + 2.2e-6 * pairs, TEACHING: 0.5 + 22e-6 * min(pairs, MOST_ROWS) if teaches else 0.0,
            GROWING: 0.3 + 2.4e-6 * pairs, "compiling": COMPILING_SECONDS,
        }  # fmt: skip

    def begin(self, stage: str) -> None:
        """The next stage."""
        self._progress.stage(stage)
        seconds, place = list(self._seconds.values()), list(self._seconds).index(stage)
        if place:
            pace = (time.monotonic() - self._began) / sum(seconds[:place])
            self._progress.guess(pace * sum(seconds[place:]))


class PortfolioScores:
    """The model's scores of the portfolio for a frame of problems, compiled if it may be."""

    def __init__(self, artefact: Artefact, progress: Progress = QUIET) -> None:
        self._artefact, self._size = artefact, len(artefact.tiers.portfolio)
        identity = f"scores {artefact.model.manifest.checksum} {artefact.tiers.portfolio}"
        try:
            self._binding = load(artefact, identity, flags=BRIEF, progress=progress)
        except (CannotCompile, CannotWrite, NotInC, NotTrusted):  # fall back to Python, which is slower
            self._binding = None
        self._interpreter = Interpreter(artefact)

        self._known: dict[tuple[object, ...], Floats] = {}

    def __call__(self, problems: pl.DataFrame) -> Floats:
        rows = list(problems.iter_rows())
        # The small forest and the tree learn from the same problems.
        new = {row: place for place, row in enumerate(rows) if row not in self._known}
        if new:
            self._known |= zip(new, self._ask(problems[list(new.values())]), strict=True)
        return np.stack([self._known[row] for row in rows])

    def allowed(self, problems: pl.DataFrame) -> Flags:
        """[problem, place]: whether the rules allow the config."""
        return self._interpreter.rules_of_many(problems, self._artefact.portfolio)

    def _ask(self, problems: pl.DataFrame) -> Iterable[Floats]:
        if self._binding is None:
            return self._interpreter.scores_of_many(problems, self._artefact.portfolio)[0]
        names = [name.removeprefix("problem.") for name in problems.columns]
        space = self._artefact.model.family.problem
        points = (encode(space, dict(zip(names, row, strict=True))) for row in problems.iter_rows())
        return [self._binding.scores(point, Tier.PORTFOLIO, self._size)[0] for point in points]


# -- keeping them --------------------------------------------------------------------------------------


def write_tiers(file: Path, tiers: Tiers) -> None:
    """As plain arrays."""
    arrays: dict[str, npt.NDArray[np.generic]] = {"rows": np.array(tiers.portfolio, np.int64)}
    if tiers.reach is not None:
        arrays |= {f"reach.{name}": getattr(tiers.reach, name) for name in ("low", "high", "labels")}
    if tiers.expectation is not None:
        arrays |= {
            "expectation.edges": np.array(tiers.expectation.edges_ns),
            "expectation.efficiency": np.array(tiers.expectation.efficiency),
        }
    if tiers.forest is not None:
        arrays |= {f"forest.{name}": part for name, part in as_arrays(tiers.forest).items()}
    if tiers.tree is not None:
        arrays |= {f"tree.{name}": part for name, part in as_arrays([tiers.tree.tree]).items()}
        arrays |= {"tree.names": np.array(list(tiers.tree.program.outputs)), "tree.lists": tiers.tree.lists}
        arrays["tree.compares"] = tiers.tree.compares
    if tiers.judged is not None:
        arrays["alone"] = np.array(tiers.judged)
    write_arrays(file, arrays)


def kept_tiers(file: Path, model: Model) -> Tiers | None:
    """The cached tiers, if the file is as it was written: a damaged name of an array in it would leave a part of them out."""
    return read_tiers(file, model) if is_intact(file) else None


def read_tiers(file: Path, model: Model) -> Tiers | None:
    """The cached tiers; None if there are none, or they are unusable."""
    if not file.is_file():
        return None
    try:
        arrays = read_arrays(file)
        portfolio = np.asarray(arrays["rows"], np.int64)
        _refuse_outside(portfolio, 0, max(1, model.candidates.height))
        tree = None
        if "tree.names" in arrays:
            program = Evidence.of(model).program(portfolio.tolist())
            names = [str(name) for name in arrays["tree.names"]]
            (nodes,), lists = _trees("tree.", arrays, len(names)), np.asarray(arrays["tree.lists"], np.int64)
            compares = np.asarray(arrays["tree.compares"], np.int64)
            _refuse_outside(lists, UNSURE, len(portfolio))
            _refuse_outside(nodes.value, 0, len(lists))
            _refuse_outside(compares, 1, COMPARED + 1)
            if len(compares) != len(lists) or ((compares > 1).any() and "forest.nodes" not in arrays):
                raise InvalidValue("it does not say how to compare configs")
            tree = DecisionTree(Program({name: program.outputs[name] for name in names}), nodes, lists, compares)
        forest = _trees("forest.", arrays, len(model.manifest.features.names)) if "forest.nodes" in arrays else None
        reach = None
        if "reach.low" in arrays:
            low, high = (np.asarray(arrays[f"reach.{name}"], np.float64) for name in ("low", "high"))
            reach = Reach(low, high, np.asarray(arrays["reach.labels"], np.uint64))
        expectation = None
        if "expectation.efficiency" in arrays:
            edges, means = (np.asarray(arrays[f"expectation.{name}"], np.float64) for name in ("edges", "efficiency"))
            expectation = Expectation(tuple(edges.tolist()), tuple(means.tolist()))
        answered, loss = np.asarray(arrays["alone"], np.float64).tolist() if "alone" in arrays else (0.0, 0.0)
        judged = (answered, loss) if "alone" in arrays else None
        return Tiers(tuple(portfolio.tolist()), tree, forest, reach, expectation, judged is not None, judged)
    except (KerncastError, KeyError, ValueError, OSError):
        return None


def _trees(prefix: str, arrays: dict[str, npt.NDArray[np.generic]], features: int) -> tuple[Tree, ...]:
    return from_arrays({name.removeprefix(prefix): part for name, part in arrays.items() if name.startswith(prefix)}, features)


def _refuse_outside(places: npt.NDArray[Any], low: int, high: int) -> None:
    if not len(places) or places.min() < low or places.max() >= high:
        raise InvalidValue("it names a place that does not exist")


def keep_tiers(folder: Path, tiers: Tiers) -> None:
    """Write the tiers to the cache, with their checksum."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "tiers.npz", lambda draft: write_tiers(draft, tiers))
        keep_sum(folder / "tiers.npz")
    except OSError:  # then they are built again next time
        return
